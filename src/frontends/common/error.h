/* SPDX-License-Identifier: Apache-2.0
 * frontends/common/error.h - errors of the core as errors of this house.
 *
 * Purpose   The one place where a TRITONSERVER_Error becomes an nrd_error. Each protocol then has
 *           a table from our codes to its own (http/status.c, grpc/server.c).
 * Owner     Stateless; any thread.
 */
#ifndef NRD_FRONTENDS_COMMON_ERROR_H
#define NRD_FRONTENDS_COMMON_ERROR_H

#include "base/error.h"
#include "triton/core/tritonserver.h"

/* Always takes e: NULL stays NULL. The codes are equal by number (base/error.h). */
nrd_error *nrd_from_triton(TRITONSERVER_Error *e) NRD_MUST_USE;

#endif
