/* SPDX-License-Identifier: Apache-2.0
 * cross_attention_mask: which of an encoder's states each position of the decoder sees. States have no order among themselves, so those
 * that are seen first lie first in the cache, and a position sees so many of them; rows that see less than one before them are refused. */
#include "executor/internal.h"

#include "base/mem.h"

#include <stdlib.h>

nrd_error *nrd_exec_cross_mask_check(const nrd_exec *x, const nrd_exec_request *in, int32_t n, int32_t n_begin)
{
    const int32_t rows = in->n_cross_mask_rows, cols = in->n_cross_mask_cols;

    if (!in->cross_attention_mask) {
        return NULL;
    }
    if (!x->encoder) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cross_attention_mask is not supported: the model (%s) has no encoder whose states it could "
                          "hide", x->spec->architecture);
    }
    if (x->ranks) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cross_attention_mask is not supported over several ranks");
    }
    if (cols != n || rows < n_begin || rows > x->lim.max_seq_len) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "cross_attention_mask has the shape [%d, %d], expected [%d to %d, %d]: a row for each token that "
                          "the text begins with, and for what follows, a column for each state of the encoder", rows, cols, n_begin,
                          x->lim.max_seq_len, n);
    }
    for (int32_t r = 0; r < rows; r++) {
        const uint8_t *row = in->cross_attention_mask + (size_t)r * (size_t)cols;
        bool any = false;
        for (int32_t c = 0; c < cols; c++) {
            any = any || row[c];
            if (r > 0 && row[c - cols] && !row[c]) {
                return nrd_errorf(NRD_ERR_UNSUPPORTED, "cross_attention_mask: row %d hides state %d, which row %d sees; rows may only see what "
                                  "those before them see, and more", r, c, r - 1);
            }
        }
        if (!any) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "cross_attention_mask: row %d sees no state", r);
        }
    }
    return NULL;
}

nrd_error *nrd_exec_cross_mask_copy(nrd_exec_request_state *r, const nrd_exec_request *in)
{
    const int32_t rows = in->n_cross_mask_rows, cols = in->n_cross_mask_cols;
    nrd_error *err = NULL;
    int32_t n = 0;

    if (!in->cross_attention_mask) {
        return NULL;
    }
    NRD_NEW_GOTO(r->cross_order, cols, err, fail);
    NRD_NEW_GOTO(r->cross_seen, rows, err, fail);
    r->n_cross_seen = rows;
    for (int32_t k = 0; k < rows; k++) {
        const uint8_t *row = in->cross_attention_mask + (size_t)k * (size_t)cols;
        for (int32_t c = 0; c < cols; c++) {
            if (row[c] && (k == 0 || !row[c - cols])) {
                r->cross_order[c] = n++;
            }
        }
        r->cross_seen[k] = n;
    }
    for (int32_t c = 0; c < cols; c++) { /* what none sees */
        if (!in->cross_attention_mask[(size_t)(rows - 1) * (size_t)cols + (size_t)c]) {
            r->cross_order[c] = n++;
        }
    }
fail:
    return err;
}
