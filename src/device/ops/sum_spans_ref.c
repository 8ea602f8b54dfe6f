/* SPDX-License-Identifier: Apache-2.0
 * sum_spans: out[s] = the sum of the rows of span s, as far as they are there. Bound: memory. */
#include "device/ops/ops.h"

#include <string.h>

nrd_error *nrd_sum_spans_check(const nrd_sum_spans_args *a)
{
    if (a->n_spans < 0 || a->first < 0 || a->n_rows < 0 || a->hidden <= 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "sum_spans: %d spans, %d rows of %d, from %d on", a->n_spans, a->n_rows, a->hidden, a->first);
    }
    return a->n_spans == 0 || (a->x && a->starts && a->out) ? NULL
                                                            : nrd_errorf(NRD_ERR_INVALID_ARG, "sum_spans: x, starts and out are needed");
}

void nrd_sum_spans_ref(const nrd_sum_spans_args *a)
{
    for (int32_t s = 0; s < a->n_spans; s++) {
        double *out = a->out + (int64_t)s * a->hidden;
        for (int32_t i = a->starts[s]; i < a->starts[s + 1]; i++) {
            if (i < a->first || i >= a->first + a->n_rows) {
                continue;
            }
            if (i == a->starts[s]) {
                memset(out, 0, (size_t)a->hidden * sizeof *out);
            }
            for (int32_t k = 0; k < a->hidden; k++) {
                out[k] += (double)a->x[(int64_t)(i - a->first) * a->hidden + k];
            }
        }
    }
}
