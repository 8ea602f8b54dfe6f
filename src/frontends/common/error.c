/* SPDX-License-Identifier: Apache-2.0 */
#include "frontends/common/error.h"

nrd_error *nrd_from_triton(TRITONSERVER_Error *e)
{
    if (!e) {
        return NULL;
    }
    nrd_error *err =
        nrd_errorf((nrd_error_code)TRITONSERVER_ErrorCode(e), "%s", TRITONSERVER_ErrorMessage(e));
    TRITONSERVER_ErrorDelete(e);
    return err;
}
