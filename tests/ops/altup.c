/* SPDX-License-Identifier: Apache-2.0
 * Several states of a token: what is predicted, corrected and matched in size. */
#include "ops/harness.h"

typedef struct altup_case {
    nrd_dtype act;
    int32_t n, hidden, n_states;
    void *states, *x, *delta;
    const float *norm, *router, *predict, *correct, *delta_weight, *scale;
} altup_case;

static limit near(nrd_dtype act)
{
    return kind->is_exact ? (limit){3e-5, 3e-5, 0} : (limit){0, 0, rounding(act) + 1e-4};
}

static size_t row_bytes(const altup_case *c, int64_t rows)
{
    return nrd_row_bytes(c->act, c->hidden) * (size_t)rows;
}

/* A constant of the case, where the operation runs. */
static const float *put(const target *t, const float *x, int64_t n)
{
    return t ? dev_put(t, x, (size_t)n * 4) : x;
}

static void *put_rows(const altup_case *c, const target *t, const void *x, int64_t rows)
{
    return t ? dev_put(t, x, row_bytes(c, rows) + 1) : memcpy(host(row_bytes(c, rows) + 1), x, row_bytes(c, rows));
}

static void *out_rows(const altup_case *c, const target *t)
{
    return t ? dev_out(t, row_bytes(c, c->n)) : host(row_bytes(c, c->n) + 1);
}

static nrd_altup_router router_of(const altup_case *c, const target *t)
{
    return (nrd_altup_router){.norm = put(t, c->norm, c->hidden),
                              .router = put(t, c->router, (int64_t)c->n_states * c->hidden),
                              .eps = 1e-6f};
}

/* t NULL: by the reference. */
static nrd_altup_predict_args predict(const altup_case *c, const target *t)
{
    const nrd_altup_predict_args a = {.n_tokens = c->n,
                                      .hidden = c->hidden,
                                      .n_states = c->n_states,
                                      .states = put_rows(c, t, c->states, (int64_t)c->n_states * c->n),
                                      .router = router_of(c, t),
                                      .coefs = put(t, c->predict, (int64_t)c->n_states * c->n_states * c->n_states),
                                      .active = out_rows(c, t),
                                      .act_dtype = c->act};
    if (t) {
        ok(t->ops->altup_predict(t->s, &a));
    } else {
        ok(nrd_altup_predict_check(&a));
        nrd_altup_predict_ref(&a);
    }
    return a;
}

/* in_place: the result takes the place of x, as callers may ask. */
static nrd_altup_correct_args correct(const altup_case *c, const target *t, bool in_place)
{
    void *x = put_rows(c, t, c->x, c->n);
    const nrd_altup_correct_args a = {.n_tokens = c->n,
                                      .hidden = c->hidden,
                                      .n_states = c->n_states,
                                      .states = put_rows(c, t, c->states, (int64_t)c->n_states * c->n),
                                      .x = x,
                                      .delta = put_rows(c, t, c->delta, c->n),
                                      .x_scale = 0.7f,
                                      .delta_weight = put(t, c->delta_weight, c->hidden),
                                      .router = router_of(c, t),
                                      .coefs = put(t, c->correct, (int64_t)c->n_states * c->n_states),
                                      .scale = put(t, c->scale, c->hidden),
                                      .out = in_place ? x : out_rows(c, t),
                                      .act_dtype = c->act};
    if (t) {
        ok(t->ops->altup_correct(t->s, &a));
    } else {
        ok(nrd_altup_correct_check(&a));
        nrd_altup_correct_ref(&a);
    }
    return a;
}

/* The states behind the first get its size. */
static nrd_altup_match_args match(const altup_case *c, const target *t, bool has_mean)
{
    const nrd_altup_match_args a = {.n_tokens = c->n,
                                    .hidden = c->hidden,
                                    .n = c->n_states,
                                    .like = put_rows(c, t, c->x, c->n),
                                    .x = put_rows(c, t, c->states, (int64_t)c->n_states * c->n),
                                    .floor = 1e-5f,
                                    .mean = has_mean ? out_rows(c, t) : NULL,
                                    .act_dtype = c->act};
    if (t) {
        ok(t->ops->altup_match(t->s, &a));
    } else {
        ok(nrd_altup_match_check(&a));
        nrd_altup_match_ref(&a);
    }
    return a;
}

static void same_rows(const altup_case *c, const target *t, const char *what, const void *got, const void *want, int64_t rows)
{
    compare(t, what, dev_rows(t, c->act, got, NULL, rows, c->hidden), rows_of(c->act, want, NULL, rows, c->hidden), rows * c->hidden,
            near(c->act));
}

static void check_case(const altup_case *c, bool other)
{
    const int64_t all = (int64_t)c->n_states * c->n;
    const nrd_altup_predict_args p = predict(c, NULL);
    const nrd_altup_correct_args r = correct(c, NULL, false);
    const nrd_altup_match_args m = match(c, NULL, other);

    case_name("altup %s, %d x %d states of %d", nrd_dtype_name(c->act), c->n, c->n_states, c->hidden);
    for (int i = 0; i < n_targets; i++) {
        const target *t = &targets[i];
        const nrd_altup_predict_args tp = predict(c, t);
        same_rows(c, t, "predicted", tp.states, p.states, all);
        same_rows(c, t, "active", tp.active, p.active, c->n);
        const nrd_altup_correct_args tr = correct(c, t, other);
        same_rows(c, t, "corrected", tr.states, r.states, all);
        same_rows(c, t, "scaled", tr.out, r.out, c->n);
        const nrd_altup_match_args tm = match(c, t, other);
        same_rows(c, t, "matched", tm.x, m.x, all);
        if (other) {
            same_rows(c, t, "mean", tm.mean, m.mean, c->n);
        }
    }
    case_end();
}

void check_altup(void)
{
    static const int32_t widths[] = {1, 31, 72, 640, 1000, 2048}, states[] = {4, 1, 4, 3, 4, NRD_ALTUP_MAX_STATES};

    for (int i = 0; i < 18; i++) {
        altup_case c = {.act = kind->acts[i % kind->n_acts],
                        .n = rnd_in(kind->is_exact ? 0 : 1, 19),
                        .hidden = widths[i % 6],
                        .n_states = states[(i + i / 6) % 6]};
        const int64_t n = c.n_states, h = c.hidden;
        c.states = host_as(c.act, n * c.n * h, i % 7 == 6 ? 1e-3f : 1); /* so small that the floor counts */
        c.x = host_as(c.act, c.n * h, 1);
        c.delta = host_as(c.act, c.n * h, 2);
        c.norm = host_normal(h, 1);
        c.router = host_normal(n * h, 4);
        c.predict = host_normal(n * n * n, 0.3f);
        c.correct = host_normal(n * n, 0.3f);
        c.delta_weight = host_normal(h, 1);
        c.scale = host_normal(h, 1);
        check_case(&c, i % 2);
    }
}
