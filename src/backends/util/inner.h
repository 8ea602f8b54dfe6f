/* SPDX-License-Identifier: Apache-2.0
 * backends/util/inner.h - requests that a backend sends to other models of its server.
 *
 * Purpose   What bls, disaggregated and whisper share: configurations of other models, requests in the client's name, what comes back,
 *           and a watch over clients that go away meanwhile.
 * Owner     nrd_tb_inflight: any thread. The rest has no state.
 * Errors    As in the interface: NULL or a TRITONSERVER_Error that the receiver deletes.
 */
#ifndef NRD_BACKENDS_UTIL_INNER_H
#define NRD_BACKENDS_UTIL_INNER_H

#include "backends/util/util.h"

#include <pthread.h>

/* The configuration of another model, without its name and version. *out is the caller's: nrd_tb_inner_config_free. */
TRITONSERVER_Error *nrd_tb_inner_config(nrd_tb_config **out, TRITONSERVER_Server *server, const char *name);
void nrd_tb_inner_config_free(nrd_tb_config *c); /* NULL is fine */

/* Buffers in host memory for the answers of inner requests. */
TRITONSERVER_Error *nrd_tb_inner_allocator(TRITONSERVER_ResponseAllocator **out);

/* A request to `model` with the id of the client's request. *out may be there after an error: it is the caller's. */
TRITONSERVER_Error *nrd_tb_inner_request(TRITONSERVER_InferenceRequest **out, TRITONSERVER_Server *server, const char *model,
                                         TRITONBACKEND_Request *client);
/* What is left of the client's timeout, which began to run at start_ns (nrd_now_ns). */
TRITONSERVER_Error *nrd_tb_inner_timeout(TRITONSERVER_InferenceRequest *r, TRITONBACKEND_Request *client, uint64_t start_ns);

/* The end of a client's request that ran from start_ns until now: statistics, then the factory and the request are given back. */
void nrd_tb_inner_over(TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request *client, TRITONBACKEND_ResponseFactory *factory,
                       bool is_ok, uint64_t start_ns);

/* The response's error as an error of our own; NULL if it has none, or there is no response. */
TRITONSERVER_Error *nrd_tb_inner_error(TRITONSERVER_InferenceResponse *r);
/* Output i, borrowed until the response is deleted. */
TRITONSERVER_Error *nrd_tb_inner_output(TRITONSERVER_InferenceResponse *r, uint32_t i, nrd_tb_tensor *out);
bool nrd_tb_inner_find(TRITONSERVER_InferenceResponse *r, const char *name, nrd_tb_tensor *out);

/* ---- clients that go away ---- */

/* One request of a client, in the structure of whoever serves it. */
typedef struct nrd_tb_flight {
    struct nrd_tb_flight *prev, *next; /* of inner.c */
    TRITONBACKEND_ResponseFactory *factory; /* borrows until nrd_tb_inflight_remove */
    /* The client has gone. Called under the list's lock, more than once; does not remove the flight. */
    void (*cancel)(struct nrd_tb_flight *f);
} nrd_tb_flight;

typedef struct nrd_tb_inflight {
    pthread_mutex_t mu;
    pthread_cond_t wake;
    nrd_tb_flight *first; /* guarded by mu */
    pthread_t watcher;    /* looks for clients that have gone */
    bool is_started, stop;
} nrd_tb_inflight;

TRITONSERVER_Error *nrd_tb_inflight_start(nrd_tb_inflight *l);
void nrd_tb_inflight_stop(nrd_tb_inflight *l); /* when all flights are over; one that is zero is fine */
void nrd_tb_inflight_add(nrd_tb_inflight *l, nrd_tb_flight *f);
void nrd_tb_inflight_remove(nrd_tb_inflight *l, nrd_tb_flight *f);

#endif
