/* SPDX-License-Identifier: Apache-2.0
 * frontends/http/handlers.h - the endpoints of the HTTP service, for the table that names them.
 *
 * Purpose   One function for each row of routes.c, and the small answers that they share.
 * Owner     Loop threads; `user` is the nrd_http_api.
 */
#ifndef NRD_FRONTENDS_HTTP_HANDLERS_H
#define NRD_FRONTENDS_HTTP_HANDLERS_H

#include "frontends/http/api.h"

#define NRD_HTTP_JSON "application/json"
#define NRD_HTTP_PLAIN "text/plain" /* what Triton says where it names no type */

extern const nrd_http_route_row nrd_http_routes[];
extern const size_t nrd_http_n_routes;

/* metadata.c */
nrd_http_handler nrd_http_on_health, nrd_http_on_server, nrd_http_on_model_ready, nrd_http_on_model,
    nrd_http_on_config, nrd_http_on_stats;
/* infer.c, generate.c */
nrd_http_handler nrd_http_on_infer, nrd_http_on_generate, nrd_http_on_generate_stream;
/* repository.c */
nrd_http_handler nrd_http_on_index, nrd_http_on_load, nrd_http_on_unload;
/* settings.c */
nrd_http_handler nrd_http_on_logging, nrd_http_on_trace;
/* shared_memory.c */
nrd_http_handler nrd_http_on_shm_status, nrd_http_on_shm_register, nrd_http_on_shm_unregister,
    nrd_http_on_cuda_status, nrd_http_on_cuda_register, nrd_http_on_cuda_unregister;

/* status.c */
/* 200 with an empty body, or the error, which is taken. */
void nrd_http_finish(nrd_http_request *req, nrd_error *err);
/* Answers with a JSON document of the core. Always takes both. */
void nrd_http_reply_message(nrd_http_request *req, TRITONSERVER_Error *e, TRITONSERVER_Message *m);
/* The body as JSON, or NULL without a body. */
nrd_error *nrd_http_optional_json(nrd_http_request *req, nrd_json_doc **out) NRD_MUST_USE;
/* The body of an order, which the loop reads itself: short, or an error. */
nrd_error *nrd_http_order_json(nrd_http_request *req, nrd_json_doc **out) NRD_MUST_USE;
/* Leaves *out alone when there is no such member. */
nrd_error *nrd_http_member_bool(const nrd_json *object, const char *key, bool *out) NRD_MUST_USE;

#endif
