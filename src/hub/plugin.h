/* SPDX-License-Identifier: Apache-2.0
 * hub/plugin.h - what nereid_hub.so does for models by name: requests, and files that are checked.
 *
 * Purpose   `nereid` is not linked with libcurl and OpenSSL: who has models as files needs neither. This
 *           table is what stands between.
 * Owner     One thread calls; a call returns when all is done. Callbacks come one at a time, maybe from
 *           another thread.
 * Errors    A code as in base/error.h and a text; the two sides share no error objects. Where the server
 *           refuses, reply.status is its answer, which the caller words.
 * Safety    The token goes to the host of `origin` alone, never to where it sends on. Addresses are https://;
 *           http:// only on this machine, and only where the origin is such an address too.
 */
#ifndef NRD_HUB_PLUGIN_H
#define NRD_HUB_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct nrd_hub_fault {
    int code; /* 0: none */
    char text[1024];
} nrd_hub_fault;

typedef struct nrd_hub_access { /* all borrowed */
    const char *origin;  /* an address of the host that gets the token */
    const char *token;   /* "": none */
    const char *ca_file; /* "": as the system says */
    long stall_secs;     /* an answer from which nothing comes has ended */
} nrd_hub_access;

typedef struct nrd_hub_reply { /* the last answer */
    long status;       /* 0: none came */
    long wait_secs;    /* Retry-After; -1: none */
    char code[64];     /* X-Error-Code */
    char message[256]; /* X-Error-Message */
    char next[2049];   /* address of the next page; "": none */
} nrd_hub_reply;

typedef enum {
    NRD_HUB_HASH_NONE,
    NRD_HUB_HASH_SHA256, /* of the content */
    NRD_HUB_HASH_GIT,    /* SHA-1 of git's blob */
} nrd_hub_hash_kind;

typedef struct nrd_hub_part {
    const char *url;
    const char *path; /* grows from its beginning, so that what is there can be gone on with */
    uint64_t size;
    const char *hash; /* hexadecimal */
    nrd_hub_hash_kind kind;
    const char *etag; /* what the file must still have; "": any */
} nrd_hub_part;

/* Bytes that are there now; is_old: they were before. */
typedef void (*nrd_hub_progress)(void *user, uint64_t n, bool is_old);

typedef struct nrd_hub_ops {
    /* A small answer; more than max_bytes is a fault. take(user, data, n) gets it whole. */
    void (*get)(const nrd_hub_access *a, const char *url, size_t max_bytes,
                void (*take)(void *user, const char *data, size_t n), void *user, nrd_hub_reply *reply,
                nrd_hub_fault *fault);
    /* The size of a file, and what tells this content from another ("": nothing does). */
    void (*measure)(const nrd_hub_access *a, const char *url, uint64_t *size, char etag[256], nrd_hub_reply *reply,
                    nrd_hub_fault *fault);
    /* Fills part->path, parts of it at the same time, goes on where a connection broke, and checks size and
     * hash. After a fault the file is a beginning that can be gone on with, or, where it was wrong, gone. */
    void (*fetch)(const nrd_hub_access *a, const nrd_hub_part *part, nrd_hub_progress progress, void *user,
                  nrd_hub_reply *reply, nrd_hub_fault *fault);
} nrd_hub_ops;

/* The one symbol of the plug-in; changes its name with the table. */
#define NRD_HUB_SYMBOL "nrd_hub_ops_1"

#endif
