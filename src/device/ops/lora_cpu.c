/* SPDX-License-Identifier: Apache-2.0
 * lora on the CPU, two phases: hidden = scale * x A^T, (four tokens, part) a task; then y += hidden B^T and its gain,
 * (sixteen tokens, 512 columns of y) a task. Tokens beside each other with one adapter share the reading of
 * its rows. */
#include "device/cpu/cpu.h"

enum { TOKENS = NRD_LORA_DOT_TOKENS, ADD_TOKENS = 16, COLS = 512 };

static const nrd_lora_pair *pair_of(const nrd_lora_args *a, int32_t token, int32_t part)
{
    int32_t slot = a->token_slot[token];
    return slot < 0 ? NULL : &a->pairs[slot * a->slot_stride + part];
}

/* The tile's rows of x as floats. */
static const float *floats(nrd_cpu_run *r, const nrd_lora_args *a, int32_t t0, int32_t t1)
{
    if (a->x_dtype == NRD_DTYPE_F32) {
        return (const float *)a->x + t0 * a->cols;
    }
    size_t row_bytes = nrd_row_bytes(a->x_dtype, a->cols);
    float *x = (float *)(void *)r->scratch;
    for (int32_t t = t0; t < t1; t++) {
        if (a->token_slot[t] >= 0) {
            nrd_act_q8_dequantize((const uint8_t *)a->x + (size_t)t * row_bytes, a->cols, x + (t - t0) * a->cols);
        }
    }
    return x;
}

static void shrink(nrd_cpu_run *r, const nrd_lora_args *a, int32_t task)
{
    int32_t part = task % a->n_parts, t0 = task / a->n_parts * TOKENS;
    int32_t t1 = t0 + TOKENS < a->n_tokens ? t0 + TOKENS : a->n_tokens;
    int64_t stride = (int64_t)a->n_parts * a->max_rank;
    const float *x = NULL;

    for (int32_t t = t0, n; t < t1; t += n) {
        const nrd_lora_pair *w = pair_of(a, t, part);
        for (n = 1; t + n < t1 && a->token_slot[t + n] == a->token_slot[t]; n++) {
        }
        if (!w || w->rank == 0) {
            continue;
        }
        x = x ? x : floats(r, a, t0, t1);
        float *h = a->hidden + t * stride + (int64_t)part * a->max_rank;
        r->k->lora_dots((nrd_dtype)w->dtype, w->a, w->rank, a->cols, x + (t - t0) * a->cols, a->cols, n, h, stride);
        for (int32_t i = 0; i < n; i++) {
            r->k->scale_row(h + i * stride, w->scale, NULL, w->rank);
        }
    }
}

static void expand(nrd_cpu_run *r, const nrd_lora_args *a, int32_t task, int32_t n_chunks)
{
    int32_t t0 = task / n_chunks * ADD_TOKENS, from = task % n_chunks * COLS;
    int32_t t1 = t0 + ADD_TOKENS < a->n_tokens ? t0 + ADD_TOKENS : a->n_tokens;
    int64_t end = from + COLS < a->y_stride ? from + COLS : a->y_stride;

    for (int32_t t = t0, n; t < t1; t += n) {
        for (n = 1; t + n < t1 && a->token_slot[t + n] == a->token_slot[t]; n++) {
        }
        for (int32_t p = 0; p < a->n_parts; p++) {
            const nrd_lora_pair *w = pair_of(a, t, p);
            int64_t first = a->part[p].row0, stop = first + a->part[p].n_rows;
            int64_t lo = first > from ? first : from, hi = stop < end ? stop : end;
            if (!w || w->rank == 0 || lo >= hi) {
                continue;
            }
            size_t elem = nrd_dtype_block_bytes((nrd_dtype)w->dtype);
            r->k->lora_add((nrd_dtype)w->dtype, (const uint8_t *)w->b + (size_t)(lo - first) * elem,
                           a->part[p].n_rows, w->rank, a->hidden + ((int64_t)t * a->n_parts + p) * a->max_rank,
                           (int64_t)a->n_parts * a->max_rank, n, hi - lo, (float *)a->y + t * a->y_stride + lo, a->y_stride);
            for (int32_t i = t; w->gain && i < t + n; i++) {
                r->k->gain_row((float *)a->y + i * a->y_stride + lo, w->gain + (lo - first),
                               w->gain + a->part[p].n_rows + (lo - first), hi - lo);
            }
        }
    }
}

/* i[0]: column tasks of phase 1. */
static void run(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)
{
    if (phase == 0) {
        shrink(r, &c->u.lora, task);
    } else {
        expand(r, &c->u.lora, task, c->i[0]);
    }
}

static const nrd_cpu_op op = {run};

nrd_error *nrd_lora_cpu(nrd_cpu_cmd *c, int n_threads)
{
    const nrd_lora_args *a = &c->u.lora;

    (void)n_threads;
    if ((a->x_dtype != NRD_DTYPE_F32 && a->x_dtype != NRD_DTYPE_ACT_Q8) || a->y_dtype != NRD_DTYPE_F32) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cpu: lora from %s to %s", nrd_dtype_name(a->x_dtype),
                          nrd_dtype_name(a->y_dtype));
    }
    c->op = &op;
    c->i[0] = (int32_t)((a->y_stride + COLS - 1) / COLS);
    c->n_tasks[0] = (a->n_tokens + TOKENS - 1) / TOKENS * a->n_parts;
    c->n_tasks[1] = (a->n_tokens + ADD_TOKENS - 1) / ADD_TOKENS * c->i[0];
    c->scratch_bytes = a->x_dtype == NRD_DTYPE_F32 ? 0 : (size_t)a->cols * TOKENS * sizeof(float);
    return NULL;
}
