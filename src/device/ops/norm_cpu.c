/* SPDX-License-Identifier: Apache-2.0
 * norm on the CPU: rows divided among threads. Bound: memory, 3 to 4 rows read or written a row. */
#include "device/cpu/cpu.h"

#include <string.h>

/* Vector as floats: where it lies, or converted into `room`. */
static const float *floats_of(const nrd_weight *w, int32_t n, float *room)
{
    if (!w || w->dtype == NRD_DTYPE_F32) {
        return w ? w->data : NULL;
    }
    for (int32_t i = 0; i < n; i++) {
        room[i] = nrd_weight_at(w, i);
    }
    return room;
}

/* i[0]: rows of a task. Scratch: one row, then delta weight, weight, bias. */
static void run(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)
{
    const nrd_norm_args *a = &c->u.norm;
    int32_t n = a->hidden, total = phase == 0 || !a->row_ids ? a->n_tokens : a->n_rows;
    int32_t from = task * c->i[0], to = from + c->i[0] < total ? from + c->i[0] : total;
    float *row = (float *)(void *)r->scratch, *room = row + n;
    const float scale = nrd_norm_sum_scale(a);
    bool add = a->delta && phase == 0, out = a->weight && (phase == 1 || !a->row_ids);

    if (r->owner != c) {
        (void)floats_of(a->delta_weight, n, room);
        (void)floats_of(a->weight, n, room + n);
        (void)floats_of(a->bias, n, room + 2 * n);
        r->owner = c;
    }
#define VEC(w, i) ((w) && (w)->dtype != NRD_DTYPE_F32 ? room + (i) * n : (w) ? (const float *)(w)->data : NULL)
    const float *dw = VEC(a->delta_weight, 0), *w = VEC(a->weight, 1), *b = VEC(a->bias, 2);
#undef VEC
    size_t out_bytes = nrd_row_bytes(a->out_dtype, n);
    for (int32_t i = from; i < to; i++) {
        float *x = (float *)a->residual + (int64_t)(phase == 1 ? a->row_ids[i] : i) * n;
        if (add) {
            const float *d = (const float *)a->delta + (int64_t)i * n;
            if (dw) {
                r->k->norm_row(a->kind, a->eps, n, d, dw, NULL, row);
                d = row;
            }
            r->k->add_row(x, d, n);
            if (scale < 1 || scale > 1) {
                r->k->scale_row(x, scale, NULL, n);
            }
        }
        if (out) {
            uint8_t *y = (uint8_t *)a->out + (size_t)i * out_bytes;
            bool q8 = a->out_dtype == NRD_DTYPE_ACT_Q8;
            float *normed = q8 ? row : (float *)(void *)y;
            r->k->norm_row(a->kind, a->eps, n, x, w, b, normed);
            if (q8) {
                r->k->act_q8_row(row, n, y);
            }
            if (a->to_residual) {
                memcpy(x, normed, (size_t)n * sizeof *x);
            }
        }
    }
}

static const nrd_cpu_op op = {run};

nrd_error *nrd_norm_cpu(nrd_cpu_cmd *c, int n_threads)
{
    const nrd_norm_args *a = &c->u.norm;

    if (a->act_dtype != NRD_DTYPE_F32 ||
        (a->weight && a->out_dtype != NRD_DTYPE_F32 && a->out_dtype != NRD_DTYPE_ACT_Q8)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cpu: norm from %s to %s", nrd_dtype_name(a->act_dtype),
                          nrd_dtype_name(a->out_dtype));
    }
    c->op = &op;
    c->i[0] = a->n_tokens / (n_threads * 4) + 1;
    c->scratch_bytes = (size_t)a->hidden * 4 * 4;
    if (a->delta || (a->weight && !a->row_ids)) {
        c->n_tasks[0] = (a->n_tokens + c->i[0] - 1) / c->i[0];
    }
    if (a->weight && a->row_ids) {
        c->n_tasks[1] = (a->n_rows + c->i[0] - 1) / c->i[0];
    }
    return NULL;
}
