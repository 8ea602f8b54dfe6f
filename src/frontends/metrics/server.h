/* SPDX-License-Identifier: Apache-2.0
 * frontends/metrics/server.h - GET /metrics in the Prometheus text form.
 * Owner: started and freed by the main thread; one loop thread of its own, so that a scrape never
 * waits for inference traffic. Errors: UNAVAILABLE when the port is taken. */
#ifndef NRD_FRONTENDS_METRICS_SERVER_H
#define NRD_FRONTENDS_METRICS_SERVER_H

#include "base/error.h"
#include "frontends/common/models.h"
#include "frontends/http/server.h"
#include "frontends/options.h"

/* Borrows tls until the server is freed; NULL: not encrypted. */
nrd_error *nrd_metrics_service_start(nrd_http_server **out, TRITONSERVER_Server *server,
                                     const nrd_options *o, nrd_tls *tls) NRD_MUST_USE;

/* Answers with all metrics, on any port. models: also under vLLM's names; NULL: under Triton's alone. */
void nrd_metrics_answer(nrd_http_request *req, TRITONSERVER_Server *server, nrd_models *models);

#endif
