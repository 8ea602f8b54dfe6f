/* SPDX-License-Identifier: Apache-2.0
 * norm and act: operations on rows. */
#include "ops/harness.h"

/* Where results of `type` may lie beside the reference's. Two quantizations of nearly equal numbers differ by one
 * step. */
static limit row_limit(nrd_dtype type, const float *want, int64_t n, double absolute)
{
    if (!kind->is_exact) {
        return (limit){0, 0, rounding(type) + 2e-6};
    }
    return (limit){type == kind->eight ? eight_step(want, n) : absolute, 1e-5, 0};
}

/* ---- norm ---- */

typedef struct norm_row {
    unsigned on;
    int32_t hidden,
        most_tokens; /* tokens: a random number up to this, 0 too on devices that take it */
} norm_row;

/* clang-format off */
static const norm_row norm_table[] = {
    {ON_ALL, 1, 19},     {ON_CPU, 31, 19},    {ON_ALL, 64, 9},    {ON_CUDA, 63, 9},   {ON_CPU, 97, 19},
    {ON_CPU, 576, 19},   {ON_ALL, 640, 19},   {ON_ALL, 1024, 19}, {ON_CUDA, 2056, 9}, {ON_CUDA, 4096, 9},
    {ON_CUDA, 5120, 9},  {ON_CUDA, 16384, 2}, {ON_CUDA, 40000, 2},
};
/* clang-format on */

/* What a joint between two sublayers may have, on every row of the table for every type. */
static const struct norm_form {
    nrd_norm_kind kind;
    bool eight, other, delta, post, ids, no_weight; /* other: out of the next activation type */
    bool to_residual;
    float sum_scale;
} norm_forms[] = {
    {NRD_NORM_RMS, false, false, true, false, false, false, false, 0},
    {NRD_NORM_RMS, true, false, true, true, false, false, false, 0},
    {NRD_NORM_RMS, false, false, true, true, false, false, false, 0.3f},
    {NRD_NORM_RMS, true, false, true, false, false, false, false, 1.7f},
    {NRD_NORM_RMS, true, false, false, false, false, false, false, 0},
    {NRD_NORM_RMS, true, false, true, false, true, false, false, 0.8f},
    {NRD_NORM_LAYER, false, true, false, false, true, false, false, 0},
    {NRD_NORM_LAYER, false, false, true, false, true, false, false, 0},
    {NRD_NORM_LAYER, false, false, true, false, false, false, false, 0},
    {NRD_NORM_RMS, false, false, true, true, false, true, false, 0.6f},
    {NRD_NORM_LAYER, false, false, true, false, false, false, true, 0},
    {NRD_NORM_LAYER, true, false, true, false, false, false, true, 0},
    {NRD_NORM_RMS, false, false, false, false, false, false, true, 0},
};

typedef struct norm_case {
    const struct norm_form *form;
    nrd_dtype act, out;
    int32_t n, hidden, n_out;
    nrd_weight w, b, post;
    void *residual, *delta;
    nrd_pending_scales pending;
    int32_t *ids;
} norm_case;

static nrd_norm_args norm_args(const norm_case *c)
{
    return (nrd_norm_args){.kind = c->form->kind,
                           .eps = 1e-5f,
                           .n_tokens = c->n,
                           .hidden = c->hidden,
                           .n_rows = c->n_out,
                           .to_residual = c->form->to_residual,
                           .sum_scale = c->form->sum_scale,
                           .pending = c->pending,
                           .out_dtype = c->out,
                           .act_dtype = c->act};
}

static void norm_target(const norm_case *c, const target *t, const nrd_norm_args *want)
{
    const size_t act_bytes = nrd_row_bytes(c->act, c->hidden) * (size_t)c->n;
    nrd_weight w = weight_on(t, &c->w, false), b = weight_on(t, &c->b, false),
               post = weight_on(t, &c->post, false);
    nrd_norm_args a = norm_args(c);
    const int64_t n_out = (int64_t)c->n_out * c->hidden, all = (int64_t)c->n * c->hidden;

    a.delta = c->form->delta ? dev_put(t, c->delta, act_bytes) : NULL;
    a.delta_weight = c->form->post ? &post : NULL;
    a.residual = dev_put(t, c->residual, act_bytes);
    a.weight = c->form->no_weight ? NULL : &w;
    a.bias = c->form->kind == NRD_NORM_LAYER ? &b : NULL;
    a.row_ids = c->form->ids ? dev_put(t, c->ids, (size_t)c->n_out * 4) : NULL;
    a.out = dev_out(t, nrd_row_bytes(c->out, c->hidden) * (size_t)c->n_out);
    a.out_row_scale = c->out == NRD_DTYPE_F8_E4M3 ? dev_out(t, (size_t)c->n_out * 4) : NULL;
    if (c->pending.rows) {
        float *rows = dev_put(t, c->pending.rows, (size_t)c->n * 4);
        a.pending = (nrd_pending_scales){rows, dev_put(t, c->pending.columns, (size_t)c->hidden * 4)};
        a.out_row_scale = a.out_row_scale && !a.row_ids ? rows : a.out_row_scale;
    }
    ok(t->ops->norm(t->s, &a));
    sync(t);
    const float *sums = rows_of(c->act, want->residual, NULL, c->n, c->hidden);
    compare(t, "residual", dev_rows(t, c->act, a.residual, NULL, c->n, c->hidden), sums, all,
            kind->is_exact ? (limit){1e-5, 1e-5, 0} : (limit){0, 0, rounding(c->act)});
    if (a.weight) {
        const float *out = rows_of(c->out, want->out, want->out_row_scale, c->n_out, c->hidden);
        compare(t, "", dev_rows(t, c->out, a.out, a.out_row_scale, c->n_out, c->hidden), out, n_out,
                row_limit(c->out, out, n_out, 1e-6));
    }
}

static void norm_check(const struct norm_form *form, nrd_dtype act, nrd_dtype out, int32_t n,
                       int32_t hidden)
{
    norm_case c = {.form = form,
                   .act = act,
                   .out = out,
                   .n = n,
                   .hidden = hidden,
                   .n_out = form->ids ? (n + 1) / 2 : n};
    const nrd_dtype vector = rnd() % 2 ? NRD_DTYPE_BF16 : NRD_DTYPE_F32;
    const bool pending = form->delta && !kind->is_exact && rnd() % 2; /* exact kinds' products leave no scales */

    c.w = weight_new(vector, hidden, 1, 1);
    c.b = weight_new(kind->is_exact ? NRD_DTYPE_F16 : NRD_DTYPE_F32, hidden, 1, 1);
    c.post = weight_new(NRD_DTYPE_F32, hidden, 1, 1);
    c.residual = host_as(act, (int64_t)n * hidden, 2);
    c.delta = host_as(act, (int64_t)n * hidden, 1);
    c.pending = pending ? (nrd_pending_scales){host_normal(n, 0.5f), host_normal(hidden, 0.5f)} : (nrd_pending_scales){0};
    c.ids = host((size_t)(n + 1) * 4);
    for (int32_t i = 0; i < c.n_out; i++) {
        c.ids[i] = rnd_in(0, n - 1);
    }
    case_name("norm %d %s -> %s, %d x %d%s%s%s%s%s%s%s", (int)form->kind, nrd_dtype_name(act),
              nrd_dtype_name(out), n, hidden, form->delta ? " delta" : "",
              form->post ? " post" : "", form->ids ? " ids" : "",
              form->no_weight ? " sum only" : "", form->to_residual ? " kept" : "",
              form->sum_scale > 0 ? " scaled" : "", pending ? " pending" : "");
    nrd_norm_args want = norm_args(&c);
    size_t bytes = nrd_row_bytes(act, hidden) * (size_t)n;
    want.residual = memcpy(host(bytes + 1), c.residual, bytes);
    want.delta = form->delta ? c.delta : NULL;
    want.delta_weight = form->post ? &c.post : NULL;
    want.weight = form->no_weight ? NULL : &c.w;
    want.bias = form->kind == NRD_NORM_LAYER ? &c.b : NULL;
    want.row_ids = form->ids ? c.ids : NULL;
    want.out = host(nrd_row_bytes(out, hidden) * (size_t)(c.n_out + 1));
    want.out_row_scale = out == NRD_DTYPE_F8_E4M3 ? host((size_t)(c.n_out + 1) * 4) : NULL;
    ok(nrd_norm_check(&want));
    nrd_norm_ref(&want);
    for (int i = 0; i < n_targets; i++) {
        norm_target(&c, &targets[i], &want);
    }
    case_end();
}

/* Rows alone, by fours and all together: a row's bits are the same. */
static void norm_alone(const target *t, nrd_dtype act, nrd_dtype out, nrd_norm_kind norm,
                       int32_t hidden)
{
    enum { N = 19 };
    static const int32_t steps[] = {N, 4, 1};
    const size_t in = nrd_row_bytes(act, hidden), row = nrd_row_bytes(out, hidden);
    void *residual = host_as(act, (int64_t)N * hidden, 2),
         *delta = dev_put(t, host_as(act, (int64_t)N * hidden, 1), in * N);
    nrd_weight w_host = weight_new(NRD_DTYPE_F32, hidden, 1, 1),
               b_host = weight_new(NRD_DTYPE_F32, hidden, 1, 1);
    nrd_weight w = weight_on(t, &w_host, false), b = weight_on(t, &b_host, false);
    char *first = NULL;

    for (int k = 0; k < 3; k++) {
        char *res = dev_put(t, residual, in * N), *o = dev_out(t, row * N),
             *raw = host((row + 4) * N);
        float *scale = dev_put(t, raw, N * 4);
        for (int32_t r = 0; r < N; r += steps[k]) {
            nrd_norm_args a = {.kind = norm,
                               .eps = 1e-5f,
                               .hidden = hidden,
                               .n_tokens = r + steps[k] < N ? steps[k] : N - r,
                               .delta = (char *)delta + in * (size_t)r,
                               .residual = res + in * (size_t)r,
                               .weight = &w,
                               .bias = norm == NRD_NORM_LAYER ? &b : NULL,
                               .out = o + row * (size_t)r,
                               .out_dtype = out,
                               .act_dtype = act,
                               .out_row_scale = out == NRD_DTYPE_F8_E4M3 ? scale + r : NULL};
            ok(t->ops->norm(t->s, &a));
        }
        dev_get(t, raw, o, row * N);
        dev_get(t, raw + row * N, scale, N * 4);
        case_name("norm %d %s -> %s of %d, rows by %d", (int)norm, nrd_dtype_name(act),
                  nrd_dtype_name(out), hidden, steps[k]);
        if (first) {
            same_bytes(t, "", raw, first, (row + 4) * N);
        } else {
            first = raw;
        }
    }
    case_end();
}

void check_norm(void)
{
    for (size_t i = 0; i < sizeof norm_table / sizeof *norm_table; i++) {
        const norm_row *row = &norm_table[i];
        for (int k = 0; is_here(row->on) && k < kind->n_acts; k++) {
            const nrd_dtype act = kind->acts[k], other = kind->acts[(k + 1) % kind->n_acts];
            for (size_t f = 0; f < sizeof norm_forms / sizeof *norm_forms; f++) {
                const struct norm_form *form = &norm_forms[f];
                const int32_t n = rnd_in(1, row->most_tokens);
                norm_check(form, act,
                           form->eight   ? kind->eight
                           : form->other ? other
                                         : act,
                           n, row->hidden);
            }
            for (int x = 0; x < n_targets && row->hidden < 40000; x++) {
                norm_alone(&targets[x], act, act, NRD_NORM_LAYER, row->hidden);
                norm_alone(&targets[x], act, other, NRD_NORM_RMS, row->hidden);
                norm_alone(&targets[x], act, kind->eight, NRD_NORM_RMS, row->hidden);
            }
        }
    }
    if (kind->is_exact) { /* an empty step */
        norm_check(&norm_forms[0], kind->acts[0], kind->acts[0], 0, 64);
    }
}

/* ---- act ---- */

typedef struct act_row {
    unsigned on;
    int32_t inter, n; /* n 0: random, up to 9 */
} act_row;

/* clang-format off */
static const act_row act_table[] = {
    {ON_CPU, 1, 0},      {ON_CUDA, 3, 0},     {ON_CPU, 33, 0},     {ON_CUDA, 64, 0},    {ON_CPU, 160, 0},
    {ON_CUDA, 1000, 0},  {ON_CPU, 1536, 0},   {ON_CPU, 2048, 0},   {ON_CPU, 2049, 0},   {ON_CUDA, 4096, 0},
    {ON_CPU, 4500, 0},   {ON_CUDA, 14336, 0}, {ON_CUDA, 28672, 0}, {ON_CUDA, 40000, 0},
    /* many long rows */
    {ON_CUDA | LARGE, 14336, 300}, {ON_CUDA | LARGE, 4104, 531}, {ON_CUDA | LARGE, 9000, 300}, {ON_CUDA | LARGE, 2048, 297},
};
/* clang-format on */

static void act_check(nrd_act_kind act_kind, bool gated, nrd_dtype act, nrd_dtype out, int32_t n,
                      int32_t inter)
{
    const int64_t width = gated ? 2 * (int64_t)inter : inter, all = (int64_t)n * inter;
    const size_t bytes = nrd_row_bytes(out, inter) * (size_t)n;
    nrd_act_args a = {.kind = act_kind,
                      .gated = gated,
                      .n_tokens = n,
                      .inter = inter,
                      .act_dtype = act,
                      .out_dtype = out,
                      .xielu_p = 0.7f,
                      .xielu_n = 1.3f};
    void *x = host_as(act, n * width, 2);
    float *scale = host_normal(n, 1);
    int32_t *ids = host((size_t)n * 4 + 4);
    const bool scaled = rnd_in(0, 3) == 0;

    for (int32_t i = 0; i < n; i++) {
        ids[i] = rnd_in(0, n - 1);
    }
    a.in_scale = scaled ? scale : NULL;
    a.in_scale_id = ids;
    a.x = x;
    a.out = host(bytes + 1);
    a.out_row_scale = out == NRD_DTYPE_F8_E4M3 ? host((size_t)n * 4) : NULL;
    ok(nrd_act_check(&a));
    nrd_act_ref(&a);
    const float *want = rows_of(out, a.out, a.out_row_scale, n, inter);
    case_name("act %d %s -> %s, %d x %d%s%s", (int)act_kind, nrd_dtype_name(act), nrd_dtype_name(out),
              n, inter, gated ? " gated" : "", scaled ? " scaled" : "");
    for (int i = 0; i < n_targets; i++) {
        const target *t = &targets[i];
        a.x = dev_put(t, x, nrd_row_bytes(act, width) * (size_t)n);
        a.in_scale = scaled ? dev_put(t, scale, (size_t)n * 4) : NULL;
        a.in_scale_id = dev_put(t, ids, (size_t)n * 4);
        a.out = dev_out(t, bytes);
        a.out_row_scale = out == NRD_DTYPE_F8_E4M3 ? dev_out(t, (size_t)n * 4) : NULL;
        ok(t->ops->act(t->s, &a));
        compare(t, "", dev_rows(t, out, a.out, a.out_row_scale, n, inter), want, all,
                row_limit(out, want, all, 1e-5));
    }
    case_end();
}

/* The gate's other factors in rows of their own, with and without a cutoff. */
static void act_apart(nrd_act_kind act_kind, nrd_dtype act, nrd_dtype out, int32_t n, int32_t inter, float cutoff, bool apart)
{
    const int64_t stride = inter + 8 * rnd_in(0, 3), width = apart ? inter : 2 * (int64_t)inter, all = (int64_t)n * inter;
    const size_t bytes = nrd_row_bytes(out, inter) * (size_t)n;
    void *x = host_as(act, n * width, 2), *up = host_as(act, n * stride, 2);
    nrd_act_args a = {.kind = act_kind, .gated = true, .n_tokens = n, .inter = inter, .x = x, .act_dtype = act, .out = host(bytes + 1),
                      .out_dtype = out, .up = apart ? up : NULL, .up_stride = apart ? stride : 0, .cutoff = cutoff};

    a.out_row_scale = out == NRD_DTYPE_F8_E4M3 ? host((size_t)n * 4) : NULL;
    ok(nrd_act_check(&a));
    nrd_act_ref(&a);
    const float *want = rows_of(out, a.out, a.out_row_scale, n, inter);
    case_name("act %d %s -> %s, %d x %d%s, cutoff %g", (int)act_kind, nrd_dtype_name(act), nrd_dtype_name(out), n, inter,
              apart ? " apart" : "", (double)cutoff);
    for (int i = 0; i < n_targets; i++) {
        const target *t = &targets[i];
        nrd_act_args d = a;
        d.x = dev_put(t, x, nrd_row_bytes(act, width) * (size_t)n);
        d.up = apart ? dev_put(t, up, nrd_row_bytes(act, stride) * (size_t)n) : NULL;
        d.out = dev_out(t, bytes);
        d.out_row_scale = out == NRD_DTYPE_F8_E4M3 ? dev_out(t, (size_t)n * 4) : NULL;
        ok(t->ops->act(t->s, &d));
        compare(t, "", dev_rows(t, out, d.out, d.out_row_scale, n, inter), want, all, row_limit(out, want, all, 1e-5));
    }
    case_end();
}

/* x with its columns in another order, times a number each, or both. */
static void act_columns(nrd_dtype act, nrd_dtype out, int32_t n, int32_t inter, bool ordered, bool scaled)
{
    const int64_t all = (int64_t)n * inter;
    const size_t bytes = nrd_row_bytes(out, inter) * (size_t)n;
    void *x = host_as(act, all, 2);
    int32_t *order = host((size_t)inter * sizeof *order);
    float *columns = host_normal(inter, 1);

    for (int32_t i = 0; i < inter; i++) {
        const int32_t k = rnd_in(0, i);
        order[i] = order[k];
        order[k] = i;
    }
    nrd_act_args a = {.n_tokens = n, .inter = inter, .x = x, .act_dtype = act, .out = host(bytes + 1), .out_dtype = out,
                      .order = ordered ? order : NULL, .columns = scaled ? columns : NULL};
    a.out_row_scale = out == NRD_DTYPE_F8_E4M3 ? host((size_t)n * 4) : NULL;
    ok(nrd_act_check(&a));
    nrd_act_ref(&a);
    const float *want = rows_of(out, a.out, a.out_row_scale, n, inter);
    case_name("act%s%s %s -> %s, %d x %d", ordered ? " in another order" : "", scaled ? " times columns" : "", nrd_dtype_name(act),
              nrd_dtype_name(out), n, inter);
    for (int i = 0; i < n_targets; i++) {
        const target *t = &targets[i];
        nrd_act_args d = a;
        d.x = dev_put(t, x, nrd_row_bytes(act, inter) * (size_t)n);
        d.order = ordered ? dev_put(t, order, (size_t)inter * sizeof *order) : NULL;
        d.columns = scaled ? dev_put(t, columns, (size_t)inter * sizeof *columns) : NULL;
        d.out = dev_out(t, bytes);
        d.out_row_scale = out == NRD_DTYPE_F8_E4M3 ? dev_out(t, (size_t)n * 4) : NULL;
        ok(t->ops->act(t->s, &d));
        compare(t, "", dev_rows(t, out, d.out, d.out_row_scale, n, inter), want, all, row_limit(out, want, all, 1e-7));
    }
    case_end();
}

void check_act(void)
{
    static const int32_t widths[] = {1, 20, 33, 256, 2049, 4504, 16384};
    for (int i = 0; i < 28; i++) {
        const int32_t inter = widths[i % 7] > 10000 && small_only ? 64 : widths[i % 7];
        const nrd_dtype act = kind->acts[i % kind->n_acts];
        const float cutoff = i % 3 ? 0.5f * (float)rnd_in(1, 4) : 0;
        act_apart(i % 2 ? NRD_ACT_GELU_TANH : NRD_ACT_SILU, act, i % 4 == 3 ? kind->eight : act, rnd_in(kind->is_exact ? 0 : 1, 9), inter,
                  cutoff, !(cutoff > 0) || i % 5 < 2);
    }
    for (int i = 0; i < 63; i++) {
        const nrd_dtype act = kind->acts[i % kind->n_acts], other = kind->acts[i / 2 % kind->n_acts];
        const bool ordered = i % 9 < 6, scaled = i % 9 >= 3;
        const bool eight = i % 3 == 2 && !(ordered && kind->eight == NRD_DTYPE_F8_E4M3);
        act_columns(act, eight ? kind->eight : other, rnd_in(kind->is_exact ? 0 : 1, 9), widths[i % 7] > 10000 && small_only ? 64 : widths[i % 7],
                    ordered, scaled);
    }
    for (size_t i = 0; i < sizeof act_table / sizeof *act_table; i++) {
        const act_row *row = &act_table[i];
        for (int t = 0; is_here(row->on) && t < kind->n_acts; t++) {
            for (int k = 0; k <= NRD_ACT_QUICK_GELU; k++) {
                const bool only_gated = k == NRD_ACT_CLAMPED_SWIGLU, never = k == NRD_ACT_XIELU;
                const bool gated = only_gated || (!never && (k + (int)i) % 2 == 0);
                const int32_t n = row->n ? row->n : rnd_in(kind->is_exact ? 0 : 1, 9);
                if (row->n && k != t * 2) { /* three of many rows are enough */
                    continue;
                }
                if (!row->n) {
                    act_check((nrd_act_kind)k, gated, kind->acts[t],
                              kind->acts[(t + k) % kind->n_acts], n, row->inter);
                }
                act_check((nrd_act_kind)k, only_gated || (!never && !gated), kind->acts[t], kind->eight, n, row->inter);
            }
        }
    }
}

/* ---- speed ---- */

static const struct rows_speed {
    unsigned on;
    int32_t hidden, inter, counts[7];
} rows_speeds[] = {
    {ON_CPU, 576, 1536, {1, 32, 512}},
    {ON_CUDA, 4096, 14336, {1, 8, 16, 64, 256, 1024, 2048}},
};

/* Inputs move through copies, so that large ones come from memory. */
typedef struct rows_run {
    nrd_norm_args norm;
    nrd_act_args act;
    char *pool;
    size_t bytes;
} rows_run;
enum { POOL_BYTES = 512 << 20 };

static char *rows_place(const rows_run *r, size_t bytes, int i)
{
    const size_t n = r->bytes / bytes;
    return r->pool + (size_t)i % (n > 32 ? 32 : n) * bytes;
}

static void norm_call(const target *t, int i, void *user)
{
    rows_run *r = user;
    const size_t bytes =
        nrd_row_bytes(r->norm.act_dtype, r->norm.hidden) * (size_t)r->norm.n_tokens;
    r->norm.residual = rows_place(r, bytes, 2 * i);
    r->norm.delta = rows_place(r, bytes, 2 * i + 1);
    ok(t->ops->norm(t->s, &r->norm));
}

static void act_call(const target *t, int i, void *user)
{
    rows_run *r = user;
    r->act.x = rows_place(
        r, nrd_row_bytes(r->act.act_dtype, 2 * (int64_t)r->act.inter) * (size_t)r->act.n_tokens, i);
    ok(t->ops->act(t->s, &r->act));
}

static void speed_rows_of(const target *t, const struct rows_speed *s, int32_t n, nrd_dtype out,
                          rows_run *r)
{
    const nrd_dtype act = kind->acts[0];
    const double in = (double)nrd_dtype_block_bytes(act) * n;
    const nrd_weight ones = weight_new(NRD_DTYPE_F32, s->hidden, 1, 1),
                     w = weight_on(t, &ones, false);
    float *scale = out == NRD_DTYPE_F8_E4M3 ? dev_out(t, (size_t)n * 4) : NULL;
    void *y = dev_out(t, nrd_row_bytes(out, s->inter) * (size_t)n);

    r->norm = (nrd_norm_args){.eps = 1e-5f,
                              .n_tokens = n,
                              .hidden = s->hidden,
                              .weight = &w,
                              .out = y,
                              .out_dtype = out,
                              .out_row_scale = scale,
                              .act_dtype = act};
    r->act = (nrd_act_args){.kind = NRD_ACT_SILU,
                            .gated = true,
                            .n_tokens = n,
                            .inter = s->inter,
                            .act_dtype = act,
                            .out = y,
                            .out_dtype = out,
                            .out_row_scale = scale};
    speed_row(measure(t, norm_call, r, 32), /* two read, their sum and the row written */
              (work){in * 3 * s->hidden + (double)nrd_row_bytes(out, s->hidden) * n, 0, PEAK_FLOAT},
              "norm + residual -> %s %d x %d", nrd_dtype_name(out), n, s->hidden);
    speed_row(measure(t, act_call, r, 32),
              (work){in * 2 * s->inter + (double)nrd_row_bytes(out, s->inter) * n, 0, PEAK_FLOAT},
              "silu * up -> %s %d x %d", nrd_dtype_name(out), n, s->inter);
    r->act.kind = NRD_ACT_NONE;
    r->act.gated = false;
    if (out != act) {
        speed_row(measure(t, act_call, r, 32), (work){in * s->inter + (double)nrd_row_bytes(out, s->inter) * n, 0, PEAK_FLOAT},
                  "rows -> %s %d x %d", nrd_dtype_name(out), n, s->inter);
    }
}

void speed_rows(void)
{
    for (size_t i = 0; i < sizeof rows_speeds / sizeof *rows_speeds; i++) {
        const struct rows_speed *s = &rows_speeds[i];
        for (int k = 0; is_here(s->on) && k < 7 && s->counts[k] > 0; k++) {
            const target *t = &targets[0];
            rows_run r = {.bytes = kind->is_exact ? (size_t)s->counts[k] * (size_t)s->inter * 8
                                                  : POOL_BYTES};
            r.pool = dev_pool(t, kind->acts[0], r.bytes);
            speed_rows_of(t, s, s->counts[k], kind->acts[0], &r);
            speed_rows_of(t, s, s->counts[k], kind->eight, &r);
            case_end();
        }
    }
}
