/* SPDX-License-Identifier: Apache-2.0
 * add_rows: out[i] += rows[i][skip : skip + hidden], where there is such a row. Bound: memory. */
#include "device/ops/ops.h"

nrd_error *nrd_add_rows_check(const nrd_add_rows_args *a)
{
    if (a->n_tokens < 0 || a->hidden <= 0 || a->skip < 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "add_rows: %d tokens of %d, from %lld on", a->n_tokens, a->hidden,
                          (long long)a->skip);
    }
    if (a->n_tokens > 0 && (!a->rows || !a->out)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "add_rows: rows and out are needed");
    }
    return nrd_is_float_dtype(a->dtype) ? NULL
                                        : nrd_errorf(NRD_ERR_UNSUPPORTED, "add_rows: type %s", nrd_dtype_name(a->dtype));
}

void nrd_add_rows_ref(const nrd_add_rows_args *a)
{
    for (int32_t i = 0; i < a->n_tokens; i++) {
        for (int32_t k = 0; k < a->hidden && a->rows[i]; k++) {
            const int64_t at = (int64_t)i * a->hidden + k;
            nrd_store_f32(a->dtype, a->out, at, nrd_load_f32(a->dtype, a->out, at) + nrd_load_f32(a->dtype, a->rows[i], a->skip + k));
        }
    }
}
