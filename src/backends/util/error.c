/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/util/error.h"

#include <stdarg.h>

TRITONSERVER_Error *nrd_tb_error(nrd_error *err)
{
    if (!err) {
        return NULL;
    }
    TRITONSERVER_Error *out = TRITONSERVER_ErrorNew(
        (TRITONSERVER_Error_Code)nrd_error_triton_code(err), nrd_error_message(err));
    nrd_error_free(err);
    return out;
}

TRITONSERVER_Error *nrd_tb_errorf(TRITONSERVER_Error_Code code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    nrd_error *err = nrd_errorv((nrd_error_code)code, fmt, args);
    va_end(args);
    return nrd_tb_error(err);
}
