/* SPDX-License-Identifier: Apache-2.0
 * Layers with a state: convolution, selective scan, delta rule, gated linear unit, gated norm. A case is two steps over the same slots, so
 * that sequences begin, go on and stand beside each other; both their results and the states are compared. */
#include "ops/harness.h"

enum { SEQS = 4, SLOTS = 6, STEPS = 2 };

/* What the sequences of a step are: new tokens, and where they stand. A slot of -1 is padding. */
typedef struct seq_step {
    int32_t n[SEQS], slot[SEQS], position[SEQS];
} seq_step;

typedef struct made_step {
    nrd_batch_view view; /* host arrays */
} made_step;

/* The second step goes on with two sequences, one slot has a new owner, and one is padding. With `is_long` some have prompts
 * of several chunks, whose last is not full. */
static void make_steps(bool is_long, made_step *out)
{
    const int32_t few = rnd_in(1, 9), some = rnd_in(2, 30), more = rnd_in(1, 7);
    seq_step s[STEPS] = {{{is_long ? 60 + 15 * few : few, 1, is_long ? 15 + some : some, 1}, {3, 0, 5, -1}, {0, 0, 0, 0}},
                         {{1, is_long ? 32 * more + 1 : more, is_long ? 64 : 1, 1}, {0, 3, 1, -1}, {0, 0, 0, 0}}};
    s[1].position[0] = s[0].n[1]; /* slot 0 goes on, so does slot 3, and slot 1 begins */
    s[1].position[1] = s[0].n[0];
    for (int k = 0; k < STEPS; k++) {
        nrd_batch_view *v = &out[k].view;
        int32_t *q_start = host((SEQS + 1) * 4), *slot = host(SEQS * 4), *position = host(512 * 4), at = 0, longest = 0;
        for (int32_t i = 0; i < SEQS; i++) {
            q_start[i] = at;
            slot[i] = s[k].slot[i];
            longest = s[k].n[i] > longest ? s[k].n[i] : longest;
            for (int32_t t = 0; t < s[k].n[i]; t++) {
                position[at++] = s[k].position[i] + t;
            }
        }
        q_start[SEQS] = at;
        *v = (nrd_batch_view){.n_tokens = at, .n_seqs = SEQS, .max_q_len = longest, .positions = position, .q_start = q_start,
                              .state_slot = slot};
    }
}

static nrd_batch_view view_on(const target *t, const nrd_batch_view *v)
{
    nrd_batch_view d = *v;
    d.positions = dev_put(t, v->positions, (size_t)v->n_tokens * 4);
    d.q_start = dev_put(t, v->q_start, (SEQS + 1) * 4);
    d.state_slot = dev_put(t, v->state_slot, SEQS * 4);
    return d;
}

static limit near(nrd_dtype act)
{
    return kind->is_exact ? (limit){2e-5, 2e-5, 0} : (limit){0, 0, rounding(act) + 1e-4};
}

/* One operation with its arrays on the host (t NULL: computed by the reference) or on a device. */
typedef struct recurrent_case {
    nrd_dtype act;
    int64_t row, out_row, state_size; /* numbers: of an input row, of a result's, of a slot */
    const void *x[STEPS];
    const float *state;               /* [SLOTS, state_size]: what former owners left */
    void (*run)(const struct recurrent_case *c, const target *t, const nrd_batch_view *v, const void *x, float *state,
                void *out);
    const void *user;
} recurrent_case;

static void check_steps(recurrent_case *c, bool is_long)
{
    static const char *const names[2][STEPS] = {{"first step", "second step"}, {"first long step", "second long step"}};
    made_step steps[STEPS];
    float *want_state = host((size_t)(SLOTS * c->state_size) * 4);
    void *want[STEPS];

    make_steps(is_long, steps);
    c->state = host_normal(SLOTS * c->state_size, 1);
    memcpy(want_state, c->state, (size_t)(SLOTS * c->state_size) * 4);
    for (int k = 0; k < STEPS; k++) {
        const int64_t n = steps[k].view.n_tokens;
        c->x[k] = host_as(c->act, n * c->row, 1);
        want[k] = host(nrd_row_bytes(c->act, c->out_row) * (size_t)n);
        c->run(c, NULL, &steps[k].view, c->x[k], want_state, want[k]);
    }
    for (int i = 0; i < n_targets; i++) {
        const target *t = &targets[i];
        float *state = dev_put(t, c->state, (size_t)(SLOTS * c->state_size) * 4);
        float *got = host((size_t)(SLOTS * c->state_size) * 4);
        for (int k = 0; k < STEPS; k++) {
            const int64_t n = steps[k].view.n_tokens;
            const nrd_batch_view v = view_on(t, &steps[k].view);
            void *out = dev_out(t, nrd_row_bytes(c->act, c->out_row) * (size_t)n);
            c->run(c, t, &v, dev_put(t, c->x[k], nrd_row_bytes(c->act, c->row) * (size_t)n), state, out);
            sync(t);
            compare(t, names[is_long][k], dev_rows(t, c->act, out, NULL, n, c->out_row),
                    rows_of(c->act, want[k], NULL, n, c->out_row), n * c->out_row, near(c->act));
        }
        dev_get(t, got, state, (size_t)(SLOTS * c->state_size) * 4);
        compare(t, is_long ? "states of long ones" : "states", got, want_state, SLOTS * c->state_size,
                kind->is_exact ? (limit){2e-5, 2e-5, 0} : (limit){0, 0, 1e-3});
    }
}

static void check_case(recurrent_case *c)
{
    check_steps(c, false);
    check_steps(c, true);
    case_end();
}

static const void *at(nrd_dtype act, const void *row, int64_t column)
{
    return (const char *)row + (size_t)column * nrd_dtype_block_bytes(act);
}

/* A constant of the case, where the operation runs. */
static const float *put(const target *t, const float *x, int64_t n)
{
    return t ? dev_put(t, x, (size_t)n * 4) : x;
}

/* ---- short_conv ---- */

typedef struct conv_row {
    int32_t channels, kernel;
    bool gated, bias;
    const float *w, *b;
} conv_row;

static void run_conv(const recurrent_case *c, const target *t, const nrd_batch_view *v, const void *x, float *state, void *out)
{
    const conv_row *r = c->user;
    const nrd_short_conv_args a = {.batch = v,
                                   .x = at(c->act, x, r->gated ? 2 * r->channels : 3),
                                   .in_gate = r->gated ? x : NULL,
                                   .out_gate = r->gated ? at(c->act, x, r->channels) : NULL,
                                   .x_stride = c->row,
                                   .channels = r->channels,
                                   .kernel = r->kernel,
                                   .weight = put(t, r->w, (int64_t)r->channels * r->kernel),
                                   .bias = r->bias ? put(t, r->b, r->channels) : NULL,
                                   .act = r->gated ? NRD_ACT_NONE : NRD_ACT_SILU,
                                   .state = state,
                                   .out = out,
                                   .act_dtype = c->act};
    if (t) {
        ok(t->ops->short_conv(t->s, &a));
    } else {
        ok(nrd_short_conv_check(&a));
        nrd_short_conv_ref(&a);
    }
}

static void check_conv(nrd_dtype act)
{
    static const conv_row table[] = {{5, 3, true, false, NULL, NULL},   {64, 2, true, true, NULL, NULL},
                                     {130, 4, false, true, NULL, NULL}, {200, 16, false, false, NULL, NULL}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        conv_row r = table[i];
        r.w = host_normal((int64_t)r.channels * r.kernel, 0.5f);
        r.b = host_normal(r.channels, 0.5f);
        recurrent_case c = {.act = act,
                            .row = r.gated ? 3 * (int64_t)r.channels : r.channels + 7,
                            .out_row = r.channels,
                            .state_size = (int64_t)r.channels * (r.kernel - 1),
                            .run = run_conv,
                            .user = &r};
        case_name("short_conv %s of %d, kernel %d%s%s", nrd_dtype_name(act), r.channels, r.kernel, r.gated ? " gated" : "",
                  r.bias ? " bias" : "");
        check_case(&c);
    }
}

/* ---- ssm ---- */

typedef struct ssm_row {
    int32_t n_heads, head_dim, n_groups, n_state;
    bool a_of_states, deterministic;
    float dt_min, dt_max;
    const float *a, *d, *dt_bias;
} ssm_row;

static void run_ssm(const recurrent_case *c, const target *t, const nrd_batch_view *v, const void *x, float *state, void *out)
{
    const ssm_row *r = c->user;
    const int64_t inner = (int64_t)r->n_heads * r->head_dim, groups = (int64_t)r->n_groups * r->n_state;
    const nrd_ssm_args a = {.batch = v,
                            .x = x,
                            .b = at(c->act, x, inner),
                            .c = at(c->act, x, inner + groups),
                            .dt = at(c->act, x, inner + 2 * groups),
                            .x_stride = c->row,
                            .bc_stride = c->row,
                            .dt_stride = c->row,
                            .n_heads = r->n_heads,
                            .head_dim = r->head_dim,
                            .n_groups = r->n_groups,
                            .n_state = r->n_state,
                            .a = put(t, r->a, (int64_t)r->n_heads * (r->a_of_states ? r->n_state : 1)),
                            .a_of_states = r->a_of_states,
                            .d = put(t, r->d, r->n_heads),
                            .dt_bias = put(t, r->dt_bias, r->n_heads),
                            .dt_min = r->dt_min,
                            .dt_max = r->dt_max,
                            .deterministic = r->deterministic,
                            .state = state,
                            .out = out,
                            .act_dtype = c->act};
    if (t) {
        ok(t->ops->ssm(t->s, &a));
    } else {
        ok(nrd_ssm_check(&a));
        nrd_ssm_ref(&a);
    }
}

static void check_ssm(nrd_dtype act)
{
    static const ssm_row table[] = {
        {.n_heads = 4, .head_dim = 8, .n_groups = 2, .n_state = 16, .dt_max = INFINITY},
        {.n_heads = 3, .head_dim = 24, .n_groups = 1, .n_state = 20, .dt_min = 0.05f, .dt_max = 0.8f},
        {.n_heads = 2, .head_dim = 64, .n_groups = 1, .n_state = 128, .dt_max = INFINITY},
        {.n_heads = 2, .head_dim = 40, .n_groups = 1, .n_state = 32, .deterministic = true, .dt_max = INFINITY},
        {.n_heads = 70, .head_dim = 1, .n_groups = 1, .n_state = 16, .a_of_states = true, .dt_max = INFINITY},
        {.n_heads = 1, .head_dim = 5, .n_groups = 1, .n_state = 256, .dt_max = INFINITY}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        ssm_row r = table[i];
        const int64_t n_a = (int64_t)r.n_heads * (r.a_of_states ? r.n_state : 1);
        float *rate = host_normal(n_a, 1);
        for (int64_t k = 0; k < n_a; k++) {
            rate[k] = -expf(rate[k]);
        }
        r.a = rate;
        r.d = host_normal(r.n_heads, 1);
        r.dt_bias = host_normal(r.n_heads, 0.5f);
        const int64_t inner = (int64_t)r.n_heads * r.head_dim;
        recurrent_case c = {.act = act,
                            .row = inner + 2 * (int64_t)r.n_groups * r.n_state + r.n_heads,
                            .out_row = inner,
                            .state_size = inner * r.n_state,
                            .run = run_ssm,
                            .user = &r};
        case_name("ssm %s of %d x %d, %d groups, state %d%s", nrd_dtype_name(act), r.n_heads, r.head_dim, r.n_groups,
                  r.n_state, r.a_of_states ? ", rates of its own" : r.deterministic ? ", deterministic" : "");
        check_case(&c);
    }
}

/* ---- delta_rule ---- */

typedef struct delta_row {
    int32_t n_k_heads, n_heads, k_dim, v_dim;
    bool by_turns, twice, deterministic;
    const float *a, *dt_bias;
} delta_row;

static void run_delta(const recurrent_case *c, const target *t, const nrd_batch_view *v, const void *x, float *state, void *out)
{
    const delta_row *r = c->user;
    const int64_t keys = (int64_t)r->n_k_heads * r->k_dim, values = (int64_t)r->n_heads * r->v_dim;
    const nrd_delta_rule_args a = {.batch = v,
                                   .q = x,
                                   .k = at(c->act, x, keys),
                                   .v = at(c->act, x, 2 * keys),
                                   .beta = at(c->act, x, 2 * keys + values),
                                   .alpha = at(c->act, x, 2 * keys + values + r->n_heads),
                                   .qkv_stride = c->row,
                                   .gate_stride = c->row,
                                   .n_k_heads = r->n_k_heads,
                                   .n_heads = r->n_heads,
                                   .k_dim = r->k_dim,
                                   .v_dim = r->v_dim,
                                   .keys_by_turns = r->by_turns,
                                   .twice = r->twice,
                                   .deterministic = r->deterministic,
                                   .a = put(t, r->a, r->n_heads),
                                   .dt_bias = put(t, r->dt_bias, r->n_heads),
                                   .state = state,
                                   .out = out,
                                   .act_dtype = c->act};
    if (t) {
        ok(t->ops->delta_rule(t->s, &a));
    } else {
        ok(nrd_delta_rule_check(&a));
        nrd_delta_rule_ref(&a);
    }
}

static void check_delta(nrd_dtype act)
{
    static const delta_row table[] = {{.n_k_heads = 2, .n_heads = 4, .k_dim = 16, .v_dim = 16},
                                      {.n_k_heads = 1, .n_heads = 3, .k_dim = 20, .v_dim = 12},
                                      {.n_k_heads = 2, .n_heads = 2, .k_dim = 128, .v_dim = 128},
                                      {.n_k_heads = 1, .n_heads = 1, .k_dim = 33, .v_dim = 70, .twice = true},
                                      {.n_k_heads = 1, .n_heads = 2, .k_dim = 40, .v_dim = 48, .deterministic = true},
                                      {.n_k_heads = 1, .n_heads = 1, .k_dim = 256, .v_dim = 80},
                                      {.n_k_heads = 2, .n_heads = 6, .k_dim = 24, .v_dim = 12, .by_turns = true}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        delta_row r = table[i];
        float *rate = host_normal(r.n_heads, 1);
        for (int32_t k = 0; k < r.n_heads; k++) {
            rate[k] = -expf(rate[k]);
        }
        r.a = rate;
        r.dt_bias = host_normal(r.n_heads, 0.5f);
        const int64_t values = (int64_t)r.n_heads * r.v_dim;
        recurrent_case c = {.act = act,
                            .row = 2 * (int64_t)r.n_k_heads * r.k_dim + values + 2 * r.n_heads,
                            .out_row = values,
                            .state_size = values * r.k_dim,
                            .run = run_delta,
                            .user = &r};
        case_name("delta_rule %s of %d x %d, keys %d x %d%s%s", nrd_dtype_name(act), r.n_heads, r.v_dim, r.n_k_heads, r.k_dim,
                  r.by_turns ? " by turns" : r.deterministic ? " deterministic" : "", r.twice ? ", twice" : "");
        check_case(&c);
    }
}

/* ---- rg_lru ---- */

typedef struct lru_row {
    int32_t n_heads, head_dim;
    const float *w[2], *b[2], *decay;
} lru_row;

static void run_lru(const recurrent_case *c, const target *t, const nrd_batch_view *v, const void *x, float *state, void *out)
{
    const lru_row *r = c->user;
    const int64_t width = (int64_t)r->n_heads * r->head_dim;
    /* the rows of x are not apart from each other: those of the case hold it and the gates one behind the other */
    const nrd_rg_lru_args a = {.batch = v,
                               .x = x,
                               .gate = at(c->act, x, v->n_tokens * width),
                               .gate_stride = width,
                               .n_heads = r->n_heads,
                               .head_dim = r->head_dim,
                               .in_weight = put(t, r->w[0], width * r->head_dim),
                               .in_bias = put(t, r->b[0], width),
                               .decay_weight = put(t, r->w[1], width * r->head_dim),
                               .decay_bias = put(t, r->b[1], width),
                               .decay = put(t, r->decay, width),
                               .state = state,
                               .out = out,
                               .act_dtype = c->act};
    if (t) {
        ok(t->ops->rg_lru(t->s, &a));
    } else {
        ok(nrd_rg_lru_check(&a));
        nrd_rg_lru_ref(&a);
    }
}

static void check_lru(nrd_dtype act)
{
    static const int32_t table[][2] = {{3, 24}, {2, 64}, {1, 5}, {1, 100}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        lru_row r = {.n_heads = table[i][0], .head_dim = table[i][1]};
        const int64_t width = (int64_t)r.n_heads * r.head_dim;
        for (int k = 0; k < 2; k++) {
            r.w[k] = host_normal(width * r.head_dim, 1 / sqrtf((float)r.head_dim));
            r.b[k] = host_normal(width, 0.5f);
        }
        float *decay = host_normal(width, 0.7f);
        for (int64_t k = 0; k < width; k++) {
            decay[k] -= 2;
        }
        r.decay = decay;
        recurrent_case c = {.act = act, .row = 2 * width, .out_row = width, .state_size = width, .run = run_lru, .user = &r};
        case_name("rg_lru %s of %d x %d", nrd_dtype_name(act), r.n_heads, r.head_dim);
        check_case(&c);
    }
}

/* ---- gated_norm ---- */

static void check_gated_norm(nrd_dtype act, int32_t width, int32_t n_groups, bool shared, bool gate_first, bool no_norm,
                             bool gate_silu)
{
    const int32_t n = rnd_in(1, 9), gate_stride = width + 5, n_weight = shared ? width / n_groups : width;
    const float *w = host_normal(n_weight, 1);
    const void *x = host_as(act, (int64_t)n * width, 2), *gate = host_as(act, (int64_t)n * gate_stride, 1);
    nrd_gated_norm_args a = {.n_tokens = n,
                             .width = width,
                             .n_groups = n_groups,
                             .x = x,
                             .gate = gate,
                             .gate_stride = gate_stride,
                             .weight = no_norm ? NULL : w,
                             .shared_weight = shared,
                             .gate_first = gate_first,
                             .gate_silu = gate_silu,
                             .eps = 1e-5f,
                             .out = host(nrd_row_bytes(act, width) * (size_t)n),
                             .act_dtype = act};
    case_name("gated_norm %s of %d x %d in %d%s%s%s", nrd_dtype_name(act), n, width, n_groups, shared ? " shared" : "",
              gate_first ? " gate first" : "", no_norm ? gate_silu ? " silu only" : " gate only" : "");
    ok(nrd_gated_norm_check(&a));
    nrd_gated_norm_ref(&a);
    for (int i = 0; i < n_targets; i++) {
        const target *t = &targets[i];
        nrd_gated_norm_args d = a;
        void *in = dev_put(t, x, nrd_row_bytes(act, width) * (size_t)n);
        d.x = in;
        d.gate = dev_put(t, gate, nrd_row_bytes(act, gate_stride) * (size_t)n);
        d.weight = no_norm ? NULL : dev_put(t, w, (size_t)n_weight * 4);
        d.out = i % 2 ? in : dev_out(t, nrd_row_bytes(act, width) * (size_t)n);
        ok(t->ops->gated_norm(t->s, &d));
        sync(t);
        compare(t, "", dev_rows(t, act, d.out, NULL, n, width), rows_of(act, a.out, NULL, n, width), (int64_t)n * width,
                near(act));
    }
    case_end();
}

void check_recurrent(void)
{
    for (int k = 0; k < kind->n_acts; k++) {
        const nrd_dtype act = kind->acts[k];
        check_conv(act);
        check_ssm(act);
        check_delta(act);
        check_lru(act);
        check_gated_norm(act, 144, 2, false, true, false, false);
        check_gated_norm(act, 1024, 1, false, true, false, false);
        check_gated_norm(act, 52, 4, true, false, false, false);
        check_gated_norm(act, 512, 4, true, false, false, false);
        check_gated_norm(act, 75, 1, false, false, true, false);
        check_gated_norm(act, 75, 1, false, false, true, true);
    }
}
