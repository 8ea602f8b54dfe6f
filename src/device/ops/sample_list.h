/* SPDX-License-Identifier: Apache-2.0
 * device/ops/sample_list.h - parts of sample on the CPU for logits that come piece by piece.
 *
 * Purpose   linear_sample keeps the best candidates of a row instead of its logits; what becomes of a
 *           logit, and what is drawn from the best k, is the same code as where the row is in memory.
 */
#ifndef NRD_DEVICE_OPS_SAMPLE_LIST_H
#define NRD_DEVICE_OPS_SAMPLE_LIST_H

#include "device/cpu/cpu.h"

/* Larger logits, infinity too, count as this one. */
#define NRD_SAMPLE_MAX 3.4e38f

typedef struct nrd_candidate {
    float logit;
    int32_t id;
} nrd_candidate;

/* Logits of ids [first, first + n) after bias, penalties and bans: x itself when nothing changes it and the row has no rule of
 * times (which needs all logits, and comes behind this), else in room, which may be x. */
const float *nrd_sample_adjust(const nrd_sample_args *a, const nrd_sample_row *r, const float *x, int32_t first,
                               int32_t n, float *room);
/* Draws from the best top_k of a row (n > 0 of them, in any order, which is changed). */
int32_t nrd_sample_from_list(const nrd_sample_row *row, nrd_candidate *list, int32_t n);
/* None of x[0..n) is a number above minus infinity. */
bool nrd_sample_no_numbers(const float *x, int64_t n);
/* Notes the choices of all rows in slot_tokens and counts. */
void nrd_sample_update(const nrd_sample_args *a);

#endif
