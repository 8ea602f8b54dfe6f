/* SPDX-License-Identifier: Apache-2.0
 * linear_gated on the CPU: both products of a few tiles of rows, then their activation while they are in L2.
 *
 * Which     Steps of many tokens on the matrix unit, whose products are fast enough for results on their way through L3 to count; elsewhere
 *           it gains nothing (docs/performance/cpu-kernels.md). No row depends on who computes it: bits are those of linear and act. */
#include "device/ops/linear_parts.h"

enum { TILES = 4, COLS = TILES * 16, FEWEST = 64, MOST = 2048 }; /* tokens: with more a slab does not stay in L2 */
enum { AT_SLAB = 1 };                                            /* of nrd_cpu_cmd.at */

static void run(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)
{
    const nrd_linear_args *a = &c->u.linear_gated.linear;
    const int64_t inter = a->w[0]->rows, from = (int64_t)task * TILES, n_tiles = inter / 16;
    const int64_t to = from + TILES < n_tiles ? from + TILES : n_tiles;
    float *slab[2] = {(float *)(void *)(r->scratch + c->at[AT_SLAB])};

    if (phase == 0) {
        nrd_linear_cpu_panels(r, c, task);
        return;
    }
    slab[1] = slab[0] + (int64_t)a->n_tokens * COLS;
    for (int p = 0; p < 2; p++) {
        nrd_linear_cpu_tiles(r, c, p, from, to, slab[p], from, COLS);
    }
    for (int64_t t = 0; t < a->n_tokens; t++) {
        r->k->act_row(c->u.linear_gated.act, slab[0] + t * COLS, slab[1] + t * COLS, (to - from) * 16, 0,
                      (float *)a->y + t * inter + from * 16);
    }
}

static const nrd_cpu_op op = {run};

nrd_error *nrd_linear_gated_cpu(nrd_cpu_cmd *c, nrd_act_kind act, int n_threads, bool *out_fits)
{
    const nrd_linear_args *a = &c->u.linear_gated.linear;

    NRD_TRY(nrd_linear_check(a));
    c->u.linear_gated.act = act;
    *out_fits = a->n_parts == 2 && a->w[0]->rows == a->w[1]->rows && a->w[0]->rows % 16 == 0 && a->x_dtype == NRD_DTYPE_F32 &&
                a->y_dtype == NRD_DTYPE_F32 && a->n_tokens >= FEWEST && a->n_tokens <= MOST;
    for (int p = 0; p < 2 && *out_fits; p++) {
        *out_fits = nrd_linear_cpu_on_unit(c->k, a, p);
    }
    if (!*out_fits) {
        return NULL;
    }
    NRD_TRY(nrd_linear_cpu(c, n_threads));
    c->op = &op;
    c->n_tasks[1] = (int32_t)((a->w[0]->rows / 16 + TILES - 1) / TILES);
    c->at[AT_SLAB] = (c->scratch_bytes + 63) & ~(size_t)63;
    c->scratch_bytes = c->at[AT_SLAB] + (size_t)a->n_tokens * COLS * 2 * sizeof(float);
    return NULL;
}
