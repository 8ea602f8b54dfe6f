/* SPDX-License-Identifier: Apache-2.0
 * hub/plugin/ask.h - one question to the hub: redirections, the token, and when to ask again.
 *
 * Owner     Any thread, each with a handle of its own.
 * Errors    UNAVAILABLE: no complete answer, or the server asks to wait longer than a minute; INVALID_ARG: it
 *           sends on to an address that is not allowed; else the status, which reply.status has too.
 * Limits    8 redirections.
 */
#ifndef NRD_HUB_PLUGIN_ASK_H
#define NRD_HUB_PLUGIN_ASK_H

#include "hub/plugin.h"
#include "net/http.h"

typedef struct nrd_hub_head { /* of the last answer */
    char location[2049];
    char etag[256];  /* without quotes; "": none that holds for each byte */
    uint64_t length; /* Content-Length; UINT64_MAX: not said */
} nrd_hub_head;

typedef struct nrd_hub_question {
    const nrd_hub_access *access;
    const char *url;
    bool has_range;
    uint64_t first, last; /* bytes, both included */
    const char *etag;     /* "": any */
    nrd_http_sink sink;   /* as in net/http.h */
    void *user;
    size_t max_body;
} nrd_hub_question;

typedef struct nrd_hub_answer {
    nrd_http_reply http;
    nrd_hub_head head;
    char url[2049];   /* that answered */
    bool again;       /* after an error: asking later may help */
} nrd_hub_answer;

/* The caller ends answer->http with nrd_http_reply_fini also on errors. */
nrd_error *nrd_hub_ask(nrd_http_handle *h, const nrd_hub_question *q, nrd_hub_answer *answer,
                       nrd_hub_reply *reply) NRD_MUST_USE;
/* Waits as the last answer wanted it, or a little. */
void nrd_hub_wait(const nrd_hub_reply *reply, unsigned attempt);

#endif
