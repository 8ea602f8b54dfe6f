/* SPDX-License-Identifier: Apache-2.0
 * act on the CPU: (token, 2048 columns) a task. What is taken off a row is found before, a token a task. Bound: exponentials, about
 * 12 instructions a vector. */
#include "device/cpu/cpu.h"

#include <string.h>

enum { COLS = 2048 };

/* n numbers of a row, and those that they are gated by, times the row's scale, in `room`. */
static void scaled(nrd_cpu_run *r, const nrd_act_args *a, int32_t t, int64_t n, const float **x, const float **gate, float *room)
{
    const float mul = a->in_scale[a->in_scale_id[t]];

    memcpy(room, *x, (size_t)n * sizeof *room);
    r->k->scale_row(room, mul, NULL, n);
    *x = room;
    if (*gate) {
        memcpy(room + COLS, *gate, (size_t)n * sizeof *room);
        r->k->scale_row(room + COLS, mul, NULL, n);
        *gate = room + COLS;
    }
}

/* What is taken off row t of x, into the memory of all threads. */
static void find_cutoff(nrd_cpu_run *r, const nrd_act_args *a, int32_t t)
{
    const float *x = (const float *)a->x + (int64_t)t * (a->up ? 1 : 2) * a->inter;
    float mean, deviation;

    r->k->row_moments(x, a->inter, &mean, &deviation);
    ((float *)(void *)r->shared)[t] = mean + a->cutoff * deviation;
}

/* Numbers [from, from + n) of the result's row t as `order` and `columns` have them. */
static void take_columns(const nrd_act_args *a, int32_t t, int64_t from, int64_t n, float *y)
{
    const float *x = (const float *)a->x + (int64_t)t * a->inter;

    for (int64_t i = 0; a->order && i < n; i++) {
        y[i] = x[a->order[from + i]];
    }
    x = a->order ? y : x + from;
    for (int64_t i = 0; a->columns && i < n; i++) {
        y[i] = x[i] * a->columns[from + i];
    }
}

/* i[0]: column tasks of a token, i[1]: tokens of a task. */
static void run(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)
{
    const nrd_act_args *a = &c->u.act;
    if (phase == 0) {
        find_cutoff(r, a, task);
        return;
    }
    int64_t from = (int64_t)(task % c->i[0]) * COLS, n = a->inter - from < COLS ? a->inter - from : COLS;
    int32_t t0 = task / c->i[0] * c->i[1], t1 = t0 + c->i[1] < a->n_tokens ? t0 + c->i[1] : a->n_tokens;
    size_t out_bytes = nrd_row_bytes(a->out_dtype, a->inter);
    float *y = (float *)(void *)r->scratch;
    const int64_t stride = (a->gated && !a->up ? 2 : 1) * a->inter;

    for (int32_t t = t0; t < t1; t++) {
        const float *x = (const float *)a->x + t * stride + from;
        uint8_t *row = (uint8_t *)a->out + (size_t)t * out_bytes;
        const float *gate = a->up ? (const float *)a->up + t * a->up_stride + from : a->gated ? x + a->inter : NULL;
        bool q8 = a->out_dtype == NRD_DTYPE_ACT_Q8;
        float *to = q8 ? y : (float *)(void *)row + from;
        if (a->in_scale) {
            scaled(r, a, t, n, &x, &gate, y + COLS);
        }
        if (a->cutoff > 0) {
            r->k->above_row(x, ((const float *)(void *)r->shared)[t], n, y + COLS);
            x = y + COLS;
        }
        if (a->order || a->columns) {
            take_columns(a, t, from, n, to);
        } else if (a->kind == NRD_ACT_XIELU) {
            r->k->xielu_row(x, a->xielu_p, a->xielu_n, n, to);
        } else {
            r->k->act_row(a->kind, x, gate, n, !a->up && !a->in_scale && a->cutoff <= 0 ? stride : 0, to);
        }
        if (q8) {
            r->k->act_q8_part(y, n, from / 32, a->inter, row);
        }
    }
}

static const nrd_cpu_op op = {run};

nrd_error *nrd_act_cpu(nrd_cpu_cmd *c, int n_threads)
{
    const nrd_act_args *a = &c->u.act;

    if (a->act_dtype != NRD_DTYPE_F32 || (a->out_dtype != NRD_DTYPE_F32 && a->out_dtype != NRD_DTYPE_ACT_Q8)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cpu: act from %s to %s", nrd_dtype_name(a->act_dtype),
                          nrd_dtype_name(a->out_dtype));
    }
    c->op = &op;
    c->i[0] = (a->inter + COLS - 1) / COLS;
    c->i[1] = a->n_tokens / (n_threads * 4) + 1;
    c->n_tasks[0] = a->cutoff > 0 ? a->n_tokens : 0;
    c->n_tasks[1] = c->i[0] * ((a->n_tokens + c->i[1] - 1) / c->i[1]);
    c->shared_bytes = a->cutoff > 0 ? (size_t)a->n_tokens * sizeof(float) : 0;
    c->scratch_bytes = (a->in_scale ? 3 : a->cutoff > 0 ? 2 : 1) * COLS * 4;
    return NULL;
}
