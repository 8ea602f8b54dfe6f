/* SPDX-License-Identifier: Apache-2.0
 * Operations of layers with a state on the CPU: a task is a part of one sequence's channels or heads, all its tokens one
 * after the other. */
#include "device/cpu/cpu.h"

enum { CONV_CHANNELS = 64, NORM_TOKENS = 4, HEAD_NUMBERS = 64 };

static nrd_error *only_f32(const char *op, nrd_dtype act)
{
    return act == NRD_DTYPE_F32 ? NULL : nrd_errorf(NRD_ERR_UNSUPPORTED, "cpu: %s of %s", op, nrd_dtype_name(act));
}

static bool has_tokens(const nrd_batch_view *b, int32_t seq)
{
    return b->q_start[seq] < b->q_start[seq + 1];
}

/* ---- short_conv; i[0]: tasks of a sequence ---- */

static void run_conv(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)
{
    const nrd_short_conv_args *a = &c->u.short_conv;
    const int32_t seq = task / c->i[0], first = task % c->i[0] * CONV_CHANNELS;
    const int32_t end = first + CONV_CHANNELS < a->channels ? first + CONV_CHANNELS : a->channels;

    (void)phase;
    for (int32_t from = first; has_tokens(a->batch, seq) && from < end; from += 16) {
        r->k->short_conv(a, seq, from, end - from < 16 ? end - from : 16, (float *)(void *)r->scratch);
    }
}

static const nrd_cpu_op op_conv = {run_conv};

nrd_error *nrd_short_conv_cpu(nrd_cpu_cmd *c, int n_threads)
{
    const nrd_short_conv_args *a = &c->u.short_conv;
    (void)n_threads;
    NRD_TRY(only_f32("short_conv", a->act_dtype));
    c->op = &op_conv;
    c->i[0] = (a->channels + CONV_CHANNELS - 1) / CONV_CHANNELS;
    c->n_tasks[0] = a->batch->n_seqs * c->i[0];
    c->scratch_bytes = (size_t)NRD_SHORT_CONV_MAX * 16 * sizeof(float);
    return NULL;
}

/* ---- ssm; i[0]: tasks of a sequence, i[1]: heads of a task ---- */

static void run_ssm(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)
{
    const nrd_ssm_args *a = &c->u.ssm;
    const int32_t seq = task / c->i[0], first = task % c->i[0] * c->i[1];
    const int32_t end = first + c->i[1] < a->n_heads ? first + c->i[1] : a->n_heads;

    (void)phase;
    for (int32_t head = first; has_tokens(a->batch, seq) && head < end; head++) {
        r->k->ssm(a, seq, head, (float *)(void *)r->scratch);
    }
}

static const nrd_cpu_op op_ssm = {run_ssm};

nrd_error *nrd_ssm_cpu(nrd_cpu_cmd *c, int n_threads)
{
    const nrd_ssm_args *a = &c->u.ssm;
    (void)n_threads;
    NRD_TRY(only_f32("ssm", a->act_dtype));
    c->op = &op_ssm;
    c->i[1] = a->head_dim < HEAD_NUMBERS ? HEAD_NUMBERS / a->head_dim : 1; /* Mamba's are of one number */
    c->i[0] = (a->n_heads + c->i[1] - 1) / c->i[1];
    c->n_tasks[0] = a->batch->n_seqs * c->i[0];
    c->scratch_bytes = (size_t)a->head_dim * (size_t)a->n_state * sizeof(float);
    return NULL;
}

/* ---- delta_rule: a head a task ---- */

static void run_delta(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)
{
    const nrd_delta_rule_args *a = &c->u.delta_rule;
    const int32_t seq = task / a->n_heads;

    (void)phase;
    if (has_tokens(a->batch, seq)) {
        r->k->delta_rule(a, seq, task % a->n_heads, (float *)(void *)r->scratch);
    }
}

static const nrd_cpu_op op_delta = {run_delta};

nrd_error *nrd_delta_rule_cpu(nrd_cpu_cmd *c, int n_threads)
{
    const nrd_delta_rule_args *a = &c->u.delta_rule;
    (void)n_threads;
    NRD_TRY(only_f32("delta_rule", a->act_dtype));
    c->op = &op_delta;
    c->n_tasks[0] = a->batch->n_seqs * a->n_heads;
    c->scratch_bytes = (size_t)a->k_dim * (size_t)a->v_dim * sizeof(float);
    return NULL;
}

/* ---- rg_lru: a head a task ---- */

static void run_lru(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)
{
    const nrd_rg_lru_args *a = &c->u.rg_lru;
    const int32_t seq = task / a->n_heads;

    (void)phase;
    if (has_tokens(a->batch, seq)) {
        r->k->rg_lru(a, seq, task % a->n_heads, (float *)(void *)r->scratch);
    }
}

static const nrd_cpu_op op_lru = {run_lru};

nrd_error *nrd_rg_lru_cpu(nrd_cpu_cmd *c, int n_threads)
{
    const nrd_rg_lru_args *a = &c->u.rg_lru;
    (void)n_threads;
    NRD_TRY(only_f32("rg_lru", a->act_dtype));
    c->op = &op_lru;
    c->n_tasks[0] = a->batch->n_seqs * a->n_heads;
    c->scratch_bytes = (size_t)10 * (size_t)a->head_dim * sizeof(float); /* both gates of four tokens, a decay, a state */
    return NULL;
}

/* ---- gated_norm ---- */

static void run_norm(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)
{
    const nrd_gated_norm_args *a = &c->u.gated_norm;
    const int32_t end = (task + 1) * NORM_TOKENS;

    (void)phase;
    for (int32_t t = task * NORM_TOKENS; t < end && t < a->n_tokens; t++) {
        r->k->gated_norm(a, t);
    }
}

static const nrd_cpu_op op_norm = {run_norm};

nrd_error *nrd_gated_norm_cpu(nrd_cpu_cmd *c, int n_threads)
{
    const nrd_gated_norm_args *a = &c->u.gated_norm;
    (void)n_threads;
    NRD_TRY(only_f32("gated_norm", a->act_dtype));
    c->op = &op_norm;
    c->n_tasks[0] = (a->n_tokens + NORM_TOKENS - 1) / NORM_TOKENS;
    return NULL;
}
