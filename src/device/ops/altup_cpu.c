/* SPDX-License-Identifier: Apache-2.0
 * altup_predict, altup_correct, altup_match on the CPU: a task is some tokens. Sums of products are the kernels that adapters have:
 * lora_dots multiplies a row by a few others, lora_add adds a few rows times a number each. Bound: memory. */
#include "device/cpu/cpu.h"

#include <math.h>
#include <string.h>

/* Tokens [*from, *to) of a task. */
static void tokens_of(const nrd_cpu_cmd *c, int32_t task, int32_t n_tokens, int32_t *from, int32_t *to)
{
    *from = task * c->i[0];
    *to = n_tokens - *from < c->i[0] ? n_tokens : *from + c->i[0];
}

/* m(x); room: a row. */
static void route(nrd_cpu_run *r, const nrd_altup_router *by, const float *x, int32_t hidden, int32_t n, float *room, float *m)
{
    r->k->norm_row(NRD_NORM_RMS, by->eps, hidden, x, by->norm, NULL, room);
    r->k->lora_dots(NRD_DTYPE_F32, by->router, n, hidden, room, hidden, 1, m, n);
    for (int32_t k = 0; k < n; k++) {
        m[k] = tanhf(m[k] / (float)hidden);
    }
}

static float times(const float *coefs, const float *m, int32_t n)
{
    float sum = 0;

    for (int32_t k = 0; k < n; k++) {
        sum += coefs[k] * m[k];
    }
    return sum;
}

/* Row t of state q. */
static float *state_of(void *states, int32_t q, int32_t n_tokens, int32_t t, int32_t hidden)
{
    return (float *)states + ((int64_t)q * n_tokens + t) * hidden;
}

static void run_predict(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)
{
    const nrd_altup_predict_args *a = &c->u.altup_predict;
    const int32_t n = a->n_states, h = a->hidden;
    float *before = (float *)(void *)r->scratch, m[NRD_ALTUP_MAX_STATES], by[NRD_ALTUP_MAX_STATES];
    int32_t from, to;

    (void)phase;
    tokens_of(c, task, a->n_tokens, &from, &to);
    for (int32_t t = from; t < to; t++) {
        route(r, &a->router, state_of(a->states, 0, a->n_tokens, t, h), h, n, before, m);
        for (int32_t p = 0; p < n; p++) {
            memcpy(before + (int64_t)p * h, state_of(a->states, p, a->n_tokens, t, h), (size_t)h * sizeof *before);
        }
        for (int32_t q = 0; q < n; q++) {
            for (int32_t p = 0; p < n; p++) {
                by[p] = times(a->coefs + (q * n + p) * n, m, n);
            }
            r->k->lora_add(NRD_DTYPE_F32, before, h, n, by, n, 1, h, state_of(a->states, q, a->n_tokens, t, h), h);
        }
        memcpy((float *)a->active + (int64_t)t * h, state_of(a->states, 0, a->n_tokens, t, h), (size_t)h * sizeof *before);
    }
}

static void run_correct(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)
{
    const nrd_altup_correct_args *a = &c->u.altup_correct;
    const int32_t n = a->n_states, h = a->hidden;
    float *made = (float *)(void *)r->scratch, *room = made + h, m[NRD_ALTUP_MAX_STATES];
    int32_t from, to;

    (void)phase;
    tokens_of(c, task, a->n_tokens, &from, &to);
    for (int32_t t = from; t < to; t++) {
        const float *first = state_of(a->states, 0, a->n_tokens, t, h);
        float *out = (float *)a->out + (int64_t)t * h;
        r->k->norm_row(NRD_NORM_RMS, a->router.eps, h, (const float *)a->delta + (int64_t)t * h, a->delta_weight, NULL, room);
        memcpy(made, (const float *)a->x + (int64_t)t * h, (size_t)h * sizeof *made);
        r->k->scale_row(made, a->x_scale, room, h);
        route(r, &a->router, made, h, n, room, m);
        memcpy(room, first, (size_t)h * sizeof *room);
        r->k->scale_row(room, -1, made, h); /* what is new */
        for (int32_t q = 0; q < n; q++) {
            const float share = 1 + times(a->coefs + q * n, m, n);
            r->k->lora_add(NRD_DTYPE_F32, room, h, 1, &share, 1, 1, h, state_of(a->states, q, a->n_tokens, t, h), h);
        }
        for (int32_t i = 0; i < h; i++) {
            out[i] = first[i] * a->scale[i];
        }
    }
}

static float mean_square(nrd_cpu_run *r, const float *x, int32_t n)
{
    float sum;

    r->k->lora_dots(NRD_DTYPE_F32, x, 1, n, x, n, 1, &sum, 1);
    return sum / (float)n;
}

static void run_match(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)
{
    const nrd_altup_match_args *a = &c->u.altup_match;
    const int32_t h = a->hidden;
    float *sum = (float *)(void *)r->scratch;
    int32_t from, to;

    (void)phase;
    tokens_of(c, task, a->n_tokens, &from, &to);
    for (int32_t t = from; t < to; t++) {
        const float *like = (const float *)a->like + (int64_t)t * h;
        const float size = sqrtf(mean_square(r, like, h));
        memcpy(sum, like, (size_t)h * sizeof *sum);
        for (int32_t j = 0; j < a->n; j++) {
            float *x = state_of(a->x, j, a->n_tokens, t, h);
            r->k->scale_row(x, size / sqrtf(fmaxf(mean_square(r, x, h), a->floor)), NULL, h);
            r->k->add_row(sum, x, h);
        }
        if (a->mean) {
            r->k->scale_row(sum, 1.0f / (float)(a->n + 1), NULL, h);
            memcpy((float *)a->mean + (int64_t)t * h, sum, (size_t)h * sizeof *sum);
        }
    }
}

static nrd_error *prepare(nrd_cpu_cmd *c, const nrd_cpu_op *op, nrd_dtype act, int32_t n_tokens, int32_t hidden, int32_t rows,
                          int n_threads)
{
    if (act != NRD_DTYPE_F32) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cpu: states of a token as %s", nrd_dtype_name(act));
    }
    c->op = op;
    c->i[0] = n_tokens / (n_threads * 4) + 1;
    c->n_tasks[0] = (n_tokens + c->i[0] - 1) / c->i[0];
    c->scratch_bytes = (size_t)hidden * (size_t)rows * sizeof(float);
    return NULL;
}

nrd_error *nrd_altup_predict_cpu(nrd_cpu_cmd *c, int n_threads)
{
    static const nrd_cpu_op op = {run_predict};
    const nrd_altup_predict_args *a = &c->u.altup_predict;
    return prepare(c, &op, a->act_dtype, a->n_tokens, a->hidden, a->n_states, n_threads);
}

nrd_error *nrd_altup_correct_cpu(nrd_cpu_cmd *c, int n_threads)
{
    static const nrd_cpu_op op = {run_correct};
    const nrd_altup_correct_args *a = &c->u.altup_correct;
    return prepare(c, &op, a->act_dtype, a->n_tokens, a->hidden, 2, n_threads);
}

nrd_error *nrd_altup_match_cpu(nrd_cpu_cmd *c, int n_threads)
{
    static const nrd_cpu_op op = {run_match};
    const nrd_altup_match_args *a = &c->u.altup_match;
    return prepare(c, &op, a->act_dtype, a->n_tokens, a->hidden, 1, n_threads);
}
