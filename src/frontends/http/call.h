/* SPDX-License-Identifier: Apache-2.0
 * frontends/http/call.h - one inference that came by HTTP.
 *
 * Purpose   What HTTP adds to an inference (common/infer.h): its request, its reply, and the way of
 *           responses from the core's threads back to the loop thread.
 * Owner     The loop thread of the HTTP request; the callbacks of the core only post to it.
 * Lifetime  new, fill, submit. Before submit: abandon. After it the call frees itself when the
 *           core has released the request and the last response has been handled.
 */
#ifndef NRD_FRONTENDS_HTTP_CALL_H
#define NRD_FRONTENDS_HTTP_CALL_H

#include "frontends/common/infer.h"
#include "frontends/http/api.h"
#include "frontends/http/compress.h"

typedef enum { NRD_OUTPUT_JSON, NRD_OUTPUT_BINARY } nrd_output_kind;

typedef struct nrd_http_call nrd_http_call;

/* A response on its way to the loop thread. */
typedef struct nrd_http_message {
    nrd_http_task task;
    nrd_http_call *call;
    TRITONSERVER_InferenceResponse *response;
    bool final;
} nrd_http_message;

struct nrd_http_call {
    nrd_infer infer; /* first: a pointer to it is one to the call */
    nrd_http_api *api;
    nrd_http_request *req; /* shares */
    char *inflated;        /* owns: the body after decompression */
    nrd_output_kind default_kind;
    nrd_http_encoding reply_encoding;

    /* Called on the loop thread for every response (NULL: none) until final. Takes it. */
    void (*on_response)(nrd_http_call *call, TRITONSERVER_InferenceResponse *response, bool final);
    void *user; /* argument for on_response */

    /* state of the handler and of on_response */
    TRITONSERVER_InferenceResponse *response; /* infer, generate: the one answer, owns */
    int n_responses;
    const char *model;          /* of infer; lives as long as it is read */
    const nrd_model_info *info; /* of generate; shares */
    nrd_error *(*read)(nrd_http_call *call);
    nrd_error *err; /* of read, or of writing the answer */
    bool parsing;   /* errors are JSON from here on */
    bool stream, started;
    bool first_is_empty; /* of generate: the first answer had no content */
    int status;   /* of the first response */
    nrd_str text; /* reply being built */
    nrd_str rest; /* binary outputs of the reply that are not sent from their tensors */

    /* private to call.c */
    atomic_int n_messages;
    atomic_bool lost; /* a response between the first and the last had no memory to be posted */
    nrd_http_message first, last; /* most calls need no other */
};

nrd_error *nrd_http_call_new(nrd_http_call **out, nrd_http_api *api, nrd_http_request *req,
                             const char *model, int64_t version) NRD_MUST_USE;
/* What the limits of its key say to it. false: it was answered (429), and the call is gone. */
bool nrd_http_call_admit(nrd_http_call *call);
/* Reads the body with `read`, on a worker if it is long, and submits; errors are answered. Takes the
 * call. */
void nrd_http_call_read(nrd_http_call *call, nrd_error *(*read)(nrd_http_call *call), bool is_long);
/* From here on errors come as responses. On error the caller still has the call. */
nrd_error *nrd_http_call_submit(nrd_http_call *call) NRD_MUST_USE;
void nrd_http_call_abandon(nrd_http_call *call);
/* At the last response: NO_MEMORY if one before it is missing. The last one is NULL then. */
nrd_error *nrd_http_call_error(nrd_http_call *call) NRD_MUST_USE;

/* Appends name:value of one response parameter. */
nrd_error *nrd_http_put_parameter(nrd_str *out, const char *name, TRITONSERVER_ParameterType type,
                                  const void *value) NRD_MUST_USE;
/* A JSON value as a request parameter. */
nrd_error *nrd_http_set_parameter(nrd_http_call *call, const char *name,
                                  const nrd_json *value) NRD_MUST_USE;
/* What the headers bring: those that match --http-header-forward-pattern as parameters, the key's salt. */
nrd_error *nrd_http_forward_headers(nrd_http_call *call) NRD_MUST_USE;

#endif
