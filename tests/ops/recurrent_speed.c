/* SPDX-License-Identifier: Apache-2.0
 * Speed of layers with a state: prompts and single tokens, in chunks where the device has them, and token by token. */
#include "ops/harness.h"

enum { CONV_KERNEL = 4 };

typedef struct recurrent_speed {
    unsigned on;
    int32_t n_seqs, q_len;
} recurrent_speed;

static const recurrent_speed table[] = {
    {ON_CPU, 1, 1},    {ON_CPU, 1, 64},    {ON_CUDA, 1, 1},    {ON_CUDA, 64, 1},
    {ON_CUDA, 1, 16},  {ON_CUDA, 1, 64},   {ON_CUDA, 1, 2048}, {ON_CUDA, 1, 8192},
    {ON_CUDA, 8, 256}, {ON_CUDA, 8, 1024},
};

typedef struct recurrent_run {
    nrd_batch_view view;
    nrd_short_conv_args conv;
    nrd_ssm_args ssm;
    nrd_delta_rule_args delta;
} recurrent_run;

static void conv_call(const target *t, int i, void *user)
{
    (void)i;
    ok(t->ops->short_conv(t->s, &((recurrent_run *)user)->conv));
}

static void ssm_call(const target *t, int i, void *user)
{
    (void)i;
    ok(t->ops->ssm(t->s, &((recurrent_run *)user)->ssm));
}

static void delta_call(const target *t, int i, void *user)
{
    (void)i;
    ok(t->ops->delta_rule(t->s, &((recurrent_run *)user)->delta));
}

static void make_view(const recurrent_speed *s, const target *t, nrd_batch_view *v)
{
    const int32_t n = s->n_seqs * s->q_len;
    int32_t *pos = host((size_t)n * 4), *start = host((size_t)(s->n_seqs + 1) * 4), *slot = host((size_t)s->n_seqs * 4);

    for (int32_t q = 0; q < s->n_seqs; q++) {
        slot[q] = q;
        start[q + 1] = start[q] + s->q_len;
        for (int32_t k = 0; k < s->q_len; k++) {
            pos[start[q] + k] = 1 + k; /* goes on with a state */
        }
    }
    *v = (nrd_batch_view){.n_tokens = n,
                          .n_seqs = s->n_seqs,
                          .max_q_len = s->q_len,
                          .positions = dev_put(t, pos, (size_t)n * 4),
                          .q_start = dev_put(t, start, (size_t)(s->n_seqs + 1) * 4),
                          .state_slot = dev_put(t, slot, (size_t)s->n_seqs * 4)};
}

static const float *numbers(const target *t, int64_t n, float mean)
{
    float *x = host_normal(n, 0.3f);
    for (int64_t i = 0; i < n; i++) {
        x[i] += mean;
    }
    return dev_put(t, x, (size_t)n * 4);
}

/* Qwen3-Next's sizes: 16 heads of keys and 32 of values, all of 128. */
static void speed_delta(const recurrent_speed *s, const target *t, recurrent_run *r, nrd_dtype act)
{
    enum { KEYS = 16, HEADS = 32, DIM = 128, ROW = (2 * KEYS + HEADS) * DIM };
    const size_t elem = nrd_dtype_block_bytes(act);
    const double n = r->view.n_tokens, state = (double)HEADS * DIM * DIM * s->n_seqs;
    char *x = dev_pool(t, act, (size_t)r->view.n_tokens * ROW * elem);
    char *gates = dev_pool(t, act, (size_t)r->view.n_tokens * 2 * HEADS * elem);

    r->delta = (nrd_delta_rule_args){.batch = &r->view,
                                     .q = x,
                                     .k = x + KEYS * DIM * elem,
                                     .v = x + 2 * KEYS * DIM * elem,
                                     .alpha = gates,
                                     .beta = gates + HEADS * elem,
                                     .qkv_stride = ROW,
                                     .gate_stride = 2 * HEADS,
                                     .n_k_heads = KEYS,
                                     .n_heads = HEADS,
                                     .k_dim = DIM,
                                     .v_dim = DIM,
                                     .a = numbers(t, HEADS, -1),
                                     .dt_bias = numbers(t, HEADS, -3),
                                     .state = dev_pool(t, NRD_DTYPE_F32, (size_t)state * 4),
                                     .out = dev_out(t, (size_t)r->view.n_tokens * HEADS * DIM * elem),
                                     .act_dtype = act};
    const work w = {state * 8 + n * (double)elem * (ROW + HEADS * DIM), 6.0 * n * HEADS * DIM * DIM, PEAK_FLOAT};
    speed_row(measure(t, delta_call, r, 8), w, "delta_rule %d x %d", s->n_seqs, s->q_len);
    if (s->q_len > 1 && !kind->is_exact) {
        r->delta.deterministic = true;
        speed_row(measure(t, delta_call, r, 8), w, "delta_rule %d x %d, token by token", s->n_seqs, s->q_len);
    }
}

/* Mamba-2 of 2.7 billion: 80 heads of 64, states of 128. */
static void speed_ssm(const recurrent_speed *s, const target *t, recurrent_run *r, nrd_dtype act)
{
    enum { HEADS = 80, DIM = 64, STATE = 128, ROW = HEADS * DIM + 2 * STATE };
    const size_t elem = nrd_dtype_block_bytes(act);
    const double n = r->view.n_tokens, state = (double)HEADS * DIM * STATE * s->n_seqs;
    char *x = dev_pool(t, act, (size_t)r->view.n_tokens * ROW * elem);

    r->ssm = (nrd_ssm_args){.batch = &r->view,
                            .x = x,
                            .b = x + HEADS * DIM * elem,
                            .c = x + (HEADS * DIM + STATE) * elem,
                            .dt = dev_pool(t, act, (size_t)r->view.n_tokens * HEADS * elem),
                            .x_stride = ROW,
                            .bc_stride = ROW,
                            .dt_stride = HEADS,
                            .n_heads = HEADS,
                            .head_dim = DIM,
                            .n_groups = 1,
                            .n_state = STATE,
                            .a = numbers(t, HEADS, -1),
                            .d = numbers(t, HEADS, 1),
                            .dt_bias = numbers(t, HEADS, -3),
                            .dt_max = 1e30f,
                            .state = dev_pool(t, NRD_DTYPE_F32, (size_t)state * 4),
                            .out = dev_out(t, (size_t)r->view.n_tokens * HEADS * DIM * elem),
                            .act_dtype = act};
    const work w = {state * 8 + n * (double)elem * (ROW + HEADS + HEADS * DIM), 5.0 * n * HEADS * DIM * STATE, PEAK_FLOAT};
    speed_row(measure(t, ssm_call, r, 8), w, "ssm %d x %d", s->n_seqs, s->q_len);
    if (s->q_len > 1 && !kind->is_exact) {
        r->ssm.deterministic = true;
        speed_row(measure(t, ssm_call, r, 8), w, "ssm %d x %d, token by token", s->n_seqs, s->q_len);
    }
}

/* Qwen3-Next's: over q, k and v. */
static void speed_conv(const recurrent_speed *s, const target *t, recurrent_run *r, nrd_dtype act)
{
    enum { CHANNELS = 8192 };
    const size_t elem = nrd_dtype_block_bytes(act), bytes = (size_t)r->view.n_tokens * CHANNELS * elem;
    const double n = r->view.n_tokens, state = (double)(CONV_KERNEL - 1) * CHANNELS * s->n_seqs;

    r->conv = (nrd_short_conv_args){.batch = &r->view,
                                    .x = dev_pool(t, act, bytes),
                                    .x_stride = CHANNELS,
                                    .channels = CHANNELS,
                                    .kernel = CONV_KERNEL,
                                    .weight = numbers(t, (int64_t)CHANNELS * CONV_KERNEL, 0),
                                    .act = NRD_ACT_SILU,
                                    .state = dev_pool(t, NRD_DTYPE_F32, (size_t)state * 4),
                                    .out = dev_out(t, bytes),
                                    .act_dtype = act};
    speed_row(measure(t, conv_call, r, 8),
              (work){state * 8 + 2 * (double)bytes, 2.0 * CONV_KERNEL * n * CHANNELS, PEAK_FLOAT}, "short_conv %d x %d",
              s->n_seqs, s->q_len);
}

void speed_recurrent(void)
{
    const nrd_dtype act = kind->is_exact ? NRD_DTYPE_F32 : NRD_DTYPE_BF16;

    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const target *t = &targets[0];
        recurrent_run r = {0};
        if (is_here(table[i].on)) {
            make_view(&table[i], t, &r.view);
            speed_conv(&table[i], t, &r, act);
            speed_delta(&table[i], t, &r, act);
            speed_ssm(&table[i], t, &r, act);
            case_end();
        }
    }
}
