/* SPDX-License-Identifier: Apache-2.0
 * clamp: out = x, but at least `low` and at most `high`. Bound: memory. */
#include "device/ops/ops.h"

#include <math.h>

nrd_error *nrd_clamp_check(const nrd_clamp_args *a)
{
    if (a->n_tokens < 0 || a->width <= 0 || a->out_stride < a->width) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "clamp: %d tokens of %d, to rows of %lld", a->n_tokens, a->width, (long long)a->out_stride);
    }
    if (!(a->low <= a->high)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "clamp: from %g to %g", (double)a->low, (double)a->high);
    }
    if (a->n_tokens > 0 && (!a->x || !a->out || (a->x == a->out && a->out_stride != a->width))) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "clamp: x and out are needed, one behind the other or the same");
    }
    return nrd_is_float_dtype(a->dtype) ? NULL : nrd_errorf(NRD_ERR_UNSUPPORTED, "clamp: type %s", nrd_dtype_name(a->dtype));
}

void nrd_clamp_ref(const nrd_clamp_args *a)
{
    for (int64_t i = 0; i < a->n_tokens; i++) {
        for (int64_t k = 0; k < a->width; k++) {
            const float v = nrd_load_f32(a->dtype, a->x, i * a->width + k);
            nrd_store_f32(a->dtype, a->out, i * a->out_stride + k, fminf(fmaxf(v, a->low), a->high));
        }
    }
}
