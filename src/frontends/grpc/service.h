/* SPDX-License-Identifier: Apache-2.0
 * frontends/grpc/service.h - the gRPC service: GRPCInferenceService and grpc.health.v1.
 *
 * Purpose   For main.c: start, drain, stop. The files of this folder share rpc.h.
 * Owner     The main thread; the service runs threads of its own, one for each completion queue.
 * Errors    UNAVAILABLE: the address cannot be bound. INVALID_ARG: certificates, patterns.
 * Lifetime  start after the core server exists; drain, wait until it is idle, stop the core, free.
 * Sources   gRPC C-core API; KServe predict protocol v2 and Triton's extensions, server 2.51.
 */
#ifndef NRD_FRONTENDS_GRPC_SERVICE_H
#define NRD_FRONTENDS_GRPC_SERVICE_H

#include "base/error.h"
#include "frontends/common/front.h"
#include "triton/core/tritonserver.h"

#include <stddef.h>

typedef struct nrd_grpc_service nrd_grpc_service;

/* Borrows front until free. */
nrd_error *nrd_grpc_service_start(nrd_grpc_service **out, nrd_front *front) NRD_MUST_USE;
int nrd_grpc_service_port(const nrd_grpc_service *s);
void nrd_grpc_service_drain(nrd_grpc_service *s); /* no new calls, no new requests in streams */
size_t nrd_grpc_service_busy(const nrd_grpc_service *s); /* requests and answers not yet done */
/* No request may be in flight in the core. NULL is fine. */
void nrd_grpc_service_free(nrd_grpc_service *s);

#endif
