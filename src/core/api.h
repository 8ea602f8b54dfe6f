/* SPDX-License-Identifier: Apache-2.0
 * core/api.h - errors between the core and the Triton interfaces.
 *
 * nrd_error and TRITONSERVER_Error are the same object inside this library. */
#ifndef NRD_CORE_API_H
#define NRD_CORE_API_H

#include "base/error.h"
#include "triton/core/tritonbackend.h"
#include "triton/core/tritonserver.h"

static inline TRITONSERVER_Error *as_api(nrd_error *err)
{
    return (TRITONSERVER_Error *)(void *)err;
}

static inline nrd_error *from_api(TRITONSERVER_Error *err)
{
    return (nrd_error *)(void *)err;
}

#define NRD_API_TRY(expr)                                                                          \
    do {                                                                                           \
        nrd_error *nrd_api_err_ = (expr);                                                          \
        if (nrd_api_err_) {                                                                        \
            return as_api(nrd_api_err_);                                                           \
        }                                                                                          \
    } while (0)

#endif
