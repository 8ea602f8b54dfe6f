/* SPDX-License-Identifier: Apache-2.0
 * nereid/server.h - what libtritonserver.so offers beyond Triton's C API.
 *
 * Purpose   A backend reports that a model has failed while it served, and the program around the
 *           server can ask for such models. A backend names inputs that clients may send and that
 *           it does not use. A caller that keeps metadata of a model asks whether it is still
 *           valid. A backend says that executing a model never blocks; the server may then do that
 *           on a thread that the program has lent it, and wakes none. A backend asks how long a
 *           request may take. Programs and backends account for the memory that requests take.
 * Owner     Any thread; all return at once.
 * ABI       A backend or program that must also run with other builds of libtritonserver.so
 *           declares these functions weak (#pragma weak) and calls none that is NULL. A function
 *           that a backend defines is not seen by other builds.
 */
#ifndef NEREID_SERVER_H
#define NEREID_SERVER_H

#include "triton/core/tritonbackend.h"

#include <stdbool.h>
#include <stdint.h>

#define NRD_SERVER_API __attribute__((visibility("default")))

/* The model is no longer ready, with this reason (copied) in the repository index and in the errors of
 * requests to come. Its running requests are answered by the backend as always; when they are, the
 * model is finalized, and it may be loaded again. The call has no effect when a newer copy of the
 * model has already replaced this one. */
NRD_SERVER_API void nrd_backend_model_failed(TRITONBACKEND_Model *model, const char *reason);

/* Requests may carry an input of this name (copied) and type although the model's configuration does
 * not have it: it is dropped instead of refused. In TRITONBACKEND_ModelInitialize only, else
 * INVALID_ARG. */
NRD_SERVER_API TRITONSERVER_Error *nrd_backend_ignore_input(TRITONBACKEND_Model *model,
                                                            const char *name,
                                                            TRITONSERVER_DataType datatype);

/* On the steady clock in nanoseconds, 0 for none: by when the request must be running (its queue policy
 * rejects what waits longer), and by when it must be over (its timeout, counted from its arrival). For a
 * backend whose own queue goes on where the server's ends. */
NRD_SERVER_API void nrd_backend_request_times(TRITONBACKEND_Request *request, uint64_t *out_start_by_ns,
                                              uint64_t *out_end_by_ns);

/* A response parameter (true), which ensembles hand on: the request's time was over, and the response holds
 * what there was. Such a response is not cached. */
#define NRD_SERVER_TIMED_OUT "timed_out"

/* Defined by a backend that has such models; called once for each, after
 * TRITONBACKEND_ModelInitialize. true: TRITONBACKEND_ModelInstanceExecute never blocks for this model:
 * it waits for no other thread, device, file or network and does not sleep, and a request whose
 * inputs have 64 KB or less usually takes well below 20 microseconds. It may then be called on
 * threads that were lent (nrd_server_lend_thread), on another one each time, but for one instance
 * never on two at once. The server measures: when an execution took longer, or returned before all
 * its requests were released, the model's own threads run the next 16, or up to 1,016 where that
 * happens again and again. A backend that does not define it is never called on such threads. */
NRD_SERVER_API bool nrd_backend_never_blocks(TRITONBACKEND_Model *model);

/* true: TRITONSERVER_ServerInferAsync, called on this thread, may execute the model before it
 * returns, where that saves waking another thread: when nothing waits for the model and the model's
 * backend never blocks. The callbacks of the request's allocator, responses and release are then
 * called on this thread, before that call returns; a caller must not hold a lock that they take.
 * After 0.1 ms it begins no further step of an ensemble. false (as every thread begins): no longer.
 */
NRD_SERVER_API void nrd_server_lend_thread(bool lent);

/* Whether a model failed that way and has neither been loaded again nor unloaded. */
NRD_SERVER_API bool nrd_server_has_failed(TRITONSERVER_Server *server);

/* Before TRITONSERVER_ServerNew: the tables of backends, models and options are logged at the start only where verbose lines
 * are, or where the start fails. */
NRD_SERVER_API void nrd_server_options_hide_tables(TRITONSERVER_ServerOptions *options);

/* Which load of a model a request for this version (-1: the newest) would run on: a number that no
 * other load of this process has. 0: no version of it is ready. */
NRD_SERVER_API uint64_t nrd_server_load_number(TRITONSERVER_Server *server, const char *model,
                                               int64_t version);

/* Waits until no version of the model is on its way out: what it held is free then. False: some still is after
 * that time. */
NRD_SERVER_API bool nrd_server_wait_unloaded(TRITONSERVER_Server *server, const char *model, uint64_t timeout_ns);

/* ---- memory of requests ----
 * Who is about to take memory whose size a request decides claims it before, and gives it back with the
 * memory. One sum for the process; pieces below NRD_CLAIM_LEAST bytes are not counted. What the parts of
 * the server claim for one request (its body, its inputs, tensors between models, what an engine keeps, its
 * answers) is one account: each part's claim joins it. */
#define NRD_CLAIM_LEAST 8192u
#define NRD_CLAIM_ALL UINT64_MAX
typedef struct nrd_account nrd_account; /* counted; any thread */
/* What one request, or one part of the server on its behalf, has claimed. Zeroed at first; changed by these
 * functions alone. */
typedef struct nrd_claim {
    uint64_t bytes;
    nrd_account *account; /* shared; NULL: the request is this claim */
} nrd_claim;
/* c NULL: the bytes belong to nobody's claim, and are given back with NULL. what ("its body"): for the message.
 * INVALID_ARG: more than one request may have; UNAVAILABLE: all together would have more than they may. On
 * errors nothing is claimed. */
NRD_SERVER_API TRITONSERVER_Error *nrd_server_claim(nrd_claim *c, uint64_t bytes, const char *what);
/* The same number as was claimed, or NRD_CLAIM_ALL: what c has, and its share of an account. */
NRD_SERVER_API void nrd_server_unclaim(nrd_claim *c, uint64_t bytes);

/* From now on the part counts in the account of the whole, which may be the part itself: others can then join
 * it. What each has already is counted with it. No other thread may be using either claim. Without memory for an
 * account, here and below, claims stay apart. */
NRD_SERVER_API void nrd_server_claim_join(nrd_claim *part, nrd_claim *whole);
/* What the server and its backends claim for this request counts with the whole. Before ServerInferAsync. */
NRD_SERVER_API void nrd_server_request_join(TRITONSERVER_InferenceRequest *request, nrd_claim *whole);
/* The claim counts with the request, which was given to ServerInferAsync and is not deleted. No effect on a
 * claim that has joined. */
NRD_SERVER_API void nrd_server_claim_join_request(nrd_claim *c, TRITONSERVER_InferenceRequest *request);
/* The same for a backend, and for a request that it makes on behalf of another. */
NRD_SERVER_API void nrd_backend_claim_join(nrd_claim *c, TRITONBACKEND_Request *request);
NRD_SERVER_API void nrd_backend_request_join(TRITONSERVER_InferenceRequest *inner, TRITONBACKEND_Request *outer);
/* Bytes that all requests, and that one, may have; 0: any number, as every process begins. */
NRD_SERVER_API void nrd_server_limit_memory(uint64_t all, uint64_t one);
NRD_SERVER_API uint64_t nrd_server_claimed(void);

/* Tokens that a model read and made for one request, its prompts and its answers, as its backend counts them: a sum
 * of the account, which the claim has joined (no effect on one that has not). */
NRD_SERVER_API void nrd_server_count_tokens(nrd_claim *c, uint64_t n);
NRD_SERVER_API uint64_t nrd_server_tokens(const nrd_claim *c);

/* The Triton release whose interfaces these are: what clients are told and check. */
#define NRD_TRITON_VERSION "2.51.0"

/* A TRITONSERVER_MetricFormat: the metrics as JSON, with the recent values of histograms (see
 * nrd_metrics_json in base/metric.h). Another core refuses the number, which no published version
 * has. */
#define NRD_METRIC_FORMAT_JSON 0x4e52

#endif
