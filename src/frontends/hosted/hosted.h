/* SPDX-License-Identifier: Apache-2.0
 * frontends/hosted/hosted.h - the ports that managed services ask for: Amazon SageMaker, Google Vertex AI.
 *
 * Purpose   Other paths and another mark of binary data for what the HTTP service does: requests are
 *           handed to its handlers (http/handlers.h) with an nrd_http_api of their own.
 * Owner     Started, drained and freed by the main thread; handlers run on loop threads.
 * Errors    INVALID_ARG: variables of the environment that are missing or wrong; UNAVAILABLE: the port.
 * Lifetime  As the HTTP service: freed before the core, when no request is in flight there.
 * Sources   Triton's SageMaker and Vertex AI endpoints as of server 2.51; SageMaker, "Custom inference
 *           code with hosting services" and "Multi-model endpoint contract"; Vertex AI, "Custom container
 *           requirements for prediction".
 */
#ifndef NRD_FRONTENDS_HOSTED_HOSTED_H
#define NRD_FRONTENDS_HOSTED_HOSTED_H

#include "base/error.h"
#include "frontends/common/front.h"

typedef struct nrd_sagemaker nrd_sagemaker;
typedef struct nrd_vertex nrd_vertex;

nrd_error *nrd_sagemaker_start(nrd_sagemaker **out, nrd_front *front) NRD_MUST_USE;
int nrd_sagemaker_port(const nrd_sagemaker *s);
/* All NULL is fine. */
void nrd_sagemaker_drain(nrd_sagemaker *s);
size_t nrd_sagemaker_connections(const nrd_sagemaker *s);
void nrd_sagemaker_free(nrd_sagemaker *s);

nrd_error *nrd_vertex_start(nrd_vertex **out, nrd_front *front) NRD_MUST_USE;
int nrd_vertex_port(const nrd_vertex *v);
void nrd_vertex_drain(nrd_vertex *v);
size_t nrd_vertex_connections(const nrd_vertex *v);
void nrd_vertex_free(nrd_vertex *v);

#endif
