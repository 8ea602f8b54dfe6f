/* SPDX-License-Identifier: Apache-2.0
 * all_reduce, gather, send and receive: what their arguments must be. */
#include "device/ops/ops.h"

nrd_error *nrd_all_reduce_check(const nrd_all_reduce_args *a)
{
    if (!a->comm || a->n < 0 || (a->n > 0 && !a->x)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "all_reduce: %lld elements", (long long)a->n);
    }
    return nrd_is_float_dtype(a->dtype)
               ? NULL
               : nrd_errorf(NRD_ERR_UNSUPPORTED, "all_reduce of %s", nrd_dtype_name(a->dtype));
}

nrd_error *nrd_gather_check(const nrd_gather_args *a)
{
    if (!a->comm || a->n_rows < 0 || a->cols < 1 || (a->n_rows > 0 && !a->x)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "gather: %d rows of %d", a->n_rows, a->cols);
    }
    return NULL;
}

nrd_error *nrd_transfer_check(const nrd_transfer_args *a)
{
    if (!a->comm || a->n_rows < 0 || a->row_bytes < 1 || a->stride < a->row_bytes || (a->n_rows > 0 && !a->x)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "transfer: %d rows of %lld bytes", a->n_rows,
                          (long long)a->row_bytes);
    }
    return NULL;
}
