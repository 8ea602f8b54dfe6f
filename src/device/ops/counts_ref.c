/* SPDX-License-Identifier: Apache-2.0
 * counts: starts a slot's row of occurrences. Counters saturate. */
#include "device/ops/ops.h"

#include <string.h>

nrd_error *nrd_counts_check(const nrd_counts_args *a)
{
    if (a->slot < 0 || a->vocab <= 0 || a->n < 0 || !a->counts || (a->n > 0 && !a->ids)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "counts: slot %d, vocabulary %d, %d ids", a->slot,
                          a->vocab, a->n);
    }
    return NULL;
}

void nrd_counts_ref(const nrd_counts_args *a)
{
    uint16_t *row = a->counts + (int64_t)a->slot * a->vocab;

    memset(row, 0, (size_t)a->vocab * sizeof *row);
    for (int32_t i = 0; i < a->n; i++) {
        int32_t id = a->ids[i];
        if (id >= 0 && id < a->vocab && row[id] < UINT16_MAX) {
            row[id]++;
        }
    }
}
