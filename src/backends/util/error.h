/* SPDX-License-Identifier: Apache-2.0
 * backends/util/error.h - errors of the interfaces, made in a plug-in of the server.
 *
 * Purpose   What backends, caches and repository agents hand back to the server that has opened them.
 * Owner     Stateless; any thread. The receiver deletes the error.
 */
#ifndef NRD_BACKENDS_UTIL_ERROR_H
#define NRD_BACKENDS_UTIL_ERROR_H

#include "base/error.h"
#include "triton/core/tritonserver.h"

#define NRD_TB_TRY(expr)                                                                           \
    do {                                                                                           \
        TRITONSERVER_Error *nrd_tb_err_ = (expr);                                                  \
        if (nrd_tb_err_) {                                                                         \
            return nrd_tb_err_;                                                                    \
        }                                                                                          \
    } while (0)

/* Same code and message; takes `err` always. */
TRITONSERVER_Error *nrd_tb_error(nrd_error *err);
TRITONSERVER_Error *nrd_tb_errorf(TRITONSERVER_Error_Code code, const char *fmt, ...)
    NRD_PRINTF(2, 3);

#endif
