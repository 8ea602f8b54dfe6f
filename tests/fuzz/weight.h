/* SPDX-License-Identifier: Apache-2.0
 * tests/fuzz/weight.h - reads all of a weight that a reader of heads has taken. */
#ifndef NRD_TESTS_FUZZ_WEIGHT_H
#define NRD_TESTS_FUZZ_WEIGHT_H

#include "base/dtype.h"
#include "nereid/device/core.h"
#include "parts.h"

/* Ends the process where its bytes are not those of its type and size. No data: there is none. */
static inline void fuzz_read_weight(const nrd_weight *w)
{
    size_t bytes = 0;

    if (!w->data) {
        return;
    }
    if (!nrd_dtype_bytes(w->dtype, (uint64_t)(w->rows * w->cols), &bytes) || w->data_bytes != bytes) {
        abort();
    }
    fuzz_sum(w->data, w->data_bytes);
    if (w->dtype == NRD_DTYPE_I8 && !w->scales) {
        abort();
    }
    fuzz_sum(w->scales, w->scales ? (size_t)w->rows * sizeof(float) : 0);
}

#endif
