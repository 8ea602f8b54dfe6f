/* SPDX-License-Identifier: Apache-2.0
 * Mixture of experts: which experts tokens take (scores, groups, corrected scores), products of sorted pairs for every
 * format of weights, with experts that nobody takes and experts that all take, and their sum. */
#include "ops/harness.h"

/* ---- the table ---- */

typedef struct moe_row {
    int32_t experts, top_k, groups, top_groups;
    nrd_moe_score score;
    bool bias, normalize;
    float scale;
    float jitter;        /* SPARSEMIXER */
    float skew;          /* added to the logits of the first expert: how lopsided the routing is */
    int32_t tokens[6];
} moe_row;

static const moe_row table[] = {
    {8, 2, 1, 1, NRD_MOE_SOFTMAX, false, true, 1, 0, 0, {1, 2, 5, 40, 130}},
    {6, 1, 1, 1, NRD_MOE_SOFTMAX, false, false, 1, 0, 1, {1, 3, 17, 64}},
    {60, 4, 1, 1, NRD_MOE_SOFTMAX, false, false, 1, 0, 3, {1, 4, 33, 100}},
    {24, 6, 4, 2, NRD_MOE_SIGMOID, true, true, 2.5f, 0, 0, {1, 7, 48}},
    {24, 5, 6, 3, NRD_MOE_SOFTMAX, false, false, 2, 0, 0, {1, 7, 48}},
    {12, 3, 3, 1, NRD_MOE_SIGMOID, true, false, 1, 0, 1, {2, 19}},
    {5, 5, 1, 1, NRD_MOE_SIGMOID, false, true, 1, 0, 0, {1, 18, 70}},
    {1, 1, 1, 1, NRD_MOE_SOFTMAX, false, false, 0.5f, 0, 0, {1, 20, 340}},
    {3, 2, 1, 1, NRD_MOE_SOFTMAX, false, true, 1, 0, 1, {90, 160, 330, 500}}, /* hundreds of pairs an expert */
    {131, 8, 1, 1, NRD_MOE_SOFTMAX, false, true, 1, 0, 20, {3, 90}},
    {16, 2, 1, 1, NRD_MOE_SPARSEMIXER, false, false, 1, 0.01f, 0, {1, 9, 70}},
    {6, 3, 1, 1, NRD_MOE_SPARSEMIXER, false, false, 1, 0.3f, 2, {2, 30}},
};
enum { N_ROWS = sizeof table / sizeof *table };

/* ---- pairs ---- */

/* Arrays for so many tokens in host memory; pairs_on() has them on a device. */
static nrd_moe_pairs pairs_new(const moe_row *row, int32_t n)
{
    const size_t all = (size_t)n * (size_t)row->top_k * 4 + 4;
    return (nrd_moe_pairs){row->experts, row->top_k, host(all), host(all),
                           host((size_t)(row->experts + 1) * 4), host(all), host(all)};
}

static nrd_moe_pairs pairs_on(const target *t, const nrd_moe_pairs *p, int32_t n)
{
    const size_t all = (size_t)n * (size_t)p->top_k * 4;
    return (nrd_moe_pairs){p->n_experts,
                           p->top_k,
                           dev_put(t, p->expert, all),
                           dev_put(t, p->weight, all),
                           dev_put(t, p->first, (size_t)(p->n_experts + 1) * 4),
                           dev_put(t, p->token, all),
                           dev_put(t, p->place, all)};
}

static nrd_moe_pairs pairs_back(const target *t, const moe_row *row, const nrd_moe_pairs *d, int32_t n)
{
    const size_t all = (size_t)n * (size_t)row->top_k * 4;
    nrd_moe_pairs p = pairs_new(row, n);
    dev_get(t, p.expert, d->expert, all);
    dev_get(t, p.weight, d->weight, all);
    dev_get(t, p.first, d->first, (size_t)(row->experts + 1) * 4);
    dev_get(t, p.token, d->token, all);
    dev_get(t, p.place, d->place, all);
    return p;
}

static nrd_moe_route_args route_new(const moe_row *row, int32_t n)
{
    const int64_t stride = row->experts + rnd_in(0, 3);
    float *logits = host_normal(n * stride, 1.5f);

    for (int32_t t = 0; t < n; t++) {
        logits[t * stride] += row->skew;
    }
    return (nrd_moe_route_args){.n_tokens = n,
                                .logits = logits,
                                .logits_stride = stride,
                                .score = row->score,
                                .bias = row->bias ? host_normal(row->experts, 0.3f) : NULL,
                                .n_groups = row->groups,
                                .top_groups = row->top_groups,
                                .group_max = row->score == NRD_MOE_SOFTMAX, /* DeepSeek-V2; V3 takes two and sigmoids */
                                .normalize = row->normalize,
                                .scale = row->scale,
                                .expert_scale = row->normalize ? host_normal(row->experts, 1.0f) : NULL,
                                .jitter = row->jitter,
                                .pairs = pairs_new(row, n)};
}

/* What a rank has that has some of the experts only; the first of its pairs and the first that are not. */
static nrd_moe_pairs window_of(const nrd_moe_pairs *p, int32_t *out_from, int32_t *out_to)
{
    nrd_moe_pairs w = *p;
    const int32_t e = rnd_in(0, p->n_experts - 1);

    w.first += e;
    w.n_experts = rnd_in(1, p->n_experts - e);
    *out_from = w.first[0];
    *out_to = w.first[w.n_experts];
    return w;
}

/* Rows of other ranks' pairs hold anything: here no numbers. */
static void spoil_others(void *rows, size_t row_bytes, int64_t n, int32_t from, int32_t to)
{
    memset(rows, 0xff, (size_t)from * row_bytes);
    memset((char *)rows + (size_t)to * row_bytes, 0xff, (size_t)(n - to) * row_bytes);
}

/* ---- route ---- */

/* Sorted by expert, tokens ascending within one, and every pair where place says. */
static bool is_sorted(const nrd_moe_pairs *p, int32_t n)
{
    const int32_t n_pairs = n * p->top_k;
    bool good = p->first[0] == 0 && p->first[p->n_experts] == n_pairs;

    for (int32_t e = 0; good && e < p->n_experts; e++) {
        good = p->first[e] <= p->first[e + 1] && p->first[e + 1] <= n_pairs;
        for (int32_t i = p->first[e]; good && i + 1 < p->first[e + 1]; i++) {
            good = p->token[i] < p->token[i + 1];
        }
    }
    for (int32_t i = 0; good && i < n_pairs; i++) {
        const int32_t at = p->place[i], e = p->expert[i];
        good = at >= p->first[e] && at < p->first[e + 1] && p->token[at] == i / p->top_k;
    }
    return good;
}

/* The same experts, or where scores are equal within float32's rounding, others with the same weight. */
static void route_target(const nrd_moe_route_args *want, const moe_row *row, const target *t)
{
    const int32_t n = want->n_tokens, n_pairs = n * row->top_k;
    nrd_moe_route_args a = *want;
    int32_t other = 0;

    a.logits = dev_put(t, want->logits, (size_t)(n * want->logits_stride) * 4);
    a.bias = want->bias ? dev_put(t, want->bias, (size_t)row->experts * 4) : NULL;
    a.expert_scale = want->expert_scale ? dev_put(t, want->expert_scale, (size_t)row->experts * 4) : NULL;
    a.pairs = (nrd_moe_pairs){row->experts,
                              row->top_k,
                              dev_out(t, (size_t)n_pairs * 4),
                              dev_out(t, (size_t)n_pairs * 4),
                              dev_out(t, (size_t)(row->experts + 1) * 4),
                              dev_out(t, (size_t)n_pairs * 4),
                              dev_out(t, (size_t)n_pairs * 4)};
    ok(t->ops->moe_route(t->s, &a));
    const nrd_moe_pairs got = pairs_back(t, row, &a.pairs, n);
    for (int32_t i = 0; i < n_pairs; i++) {
        other += got.expert[i] != want->pairs.expert[i];
    }
    verdict(t, "experts", other <= n_pairs / 100);
    verdict(t, "order", is_sorted(&got, n));
    if (other == 0) {
        compare(t, "weights", got.weight, want->pairs.weight, n_pairs, (limit){1e-6, 1e-5, 0});
    }
}

static void check_route(const moe_row *row, int32_t n)
{
    nrd_moe_route_args want = route_new(row, n);
    case_name("moe_route, %d of %d experts, %d of %d groups, %d tokens", row->top_k, row->experts, row->top_groups,
              row->groups, n);
    ok(nrd_moe_route_check(&want));
    nrd_moe_route_ref(&want);
    for (int i = 0; i < n_targets; i++) {
        route_target(&want, row, &targets[i]);
    }
    case_end();
}

/* ---- products ---- */

typedef struct product_case {
    nrd_moe_linear_args a; /* host pointers */
    nrd_weight w[2], bias[2];
    float *x_scale; /* of F8, else NULL */
    bool is_window; /* of a rank that has some of the experts */
    int64_t cols, stride, n_pairs;
} product_case;

static nrd_weight stack_new(nrd_dtype t, int32_t n, int64_t rows, int64_t cols)
{
    nrd_weight w = weight_new(t, n * rows, cols, 0.05f);
    w.n_stacked = n;
    return w;
}

/* Whether one type of x suits both without another rounding. */
static bool go_together(nrd_dtype a, nrd_dtype b)
{
    return kind->is_exact && has_weight(b) && nrd_is_float_dtype(a) == nrd_is_float_dtype(b);
}

/* `whole`: as products of F8 in blocks take it that round x, too. */
static void product_new(product_case *c, const moe_row *row, int32_t n, nrd_dtype type, nrd_dtype second, bool whole)
{
    const int32_t one = nrd_dtype_block(type), other = nrd_dtype_block(second), block = one > other ? one : other;
    size_t row_bytes;
    bool row_scale;

    *c = (product_case){.n_pairs = (int64_t)n * row->top_k,
                        .cols = block > 1         ? block * (int64_t)rnd_in(1, block < 64 ? 32 : 3)
                                : rnd_in(0, 2) ? 16 * (int64_t)rnd_in(1, rnd_in(0, 1) ? 6 : 90)
                                               : rnd_in(20, 90)};
    nrd_moe_route_args route = route_new(row, n);
    nrd_moe_route_ref(&route);
    int32_t window_from = 0, window_to = (int32_t)c->n_pairs;
    c->is_window = rnd_in(0, 2) == 0;
    const nrd_moe_pairs pairs = c->is_window ? window_of(&route.pairs, &window_from, &window_to) : route.pairs;
    c->a = (nrd_moe_linear_args){.n_tokens = n, .pairs = pairs, .x_sorted = rnd_in(0, 1) == 1,
                                 .n_parts = rnd_in(1, 2), .y_dtype = kind->acts[rnd_in(0, kind->n_acts - 1)],
                                 .deterministic = rnd_in(0, 1) == 1};
    if (whole) {
        c->a.y_dtype = NRD_DTYPE_BF16;
        c->a.deterministic = false;
    }
    const bool alike = whole || rnd_in(0, 1); /* as the parts of a gated product are */
    for (int p = 0; p < c->a.n_parts; p++) {
        const int64_t rows = p > 0 && alike ? c->stride : whole ? 128 * rnd_in(1, 5) : rnd_in(0, 2) ? 16 * rnd_in(1, rnd_in(0, 1) ? 4 : 20) : rnd_in(1, 40);
        c->w[p] = stack_new(p ? second : type, pairs.n_experts, rows, c->cols);
        if (whole) {
            square_blocks(&c->w[p]);
        }
        c->a.w[p] = &c->w[p];
        c->bias[p] = weight_new(kind->is_exact && n % 3 == 0 ? NRD_DTYPE_BF16 : NRD_DTYPE_F32, pairs.n_experts * rows, 1, 0.5f);
        c->a.bias[p] = !alike && rnd_in(0, 1) ? &c->bias[p] : NULL;
        c->stride += rows;
    }
    nrd_weight first = weight_on(&targets[0], &c->w[0], true);
    c->a.x_dtype = targets[0].ops->linear_input(targets[0].dev, &first, NRD_DTYPE_F32, &row_bytes, &row_scale);
    const int64_t n_rows = c->a.x_sorted ? c->n_pairs : n;
    float *x = host_normal(n_rows * c->cols, 1);
    void *rows = host(row_bytes * (size_t)n_rows + 64);
    c->x_scale = c->a.x_dtype == NRD_DTYPE_F8_E4M3 ? host((size_t)n_rows * 4) : NULL;
    for (int64_t i = 0; i < n_rows; i++) {
        nrd_store_row(c->a.x_dtype, rows, i, c->cols, x + i * c->cols, c->x_scale);
    }
    if (c->a.x_sorted) {
        spoil_others(rows, row_bytes, c->n_pairs, window_from, window_to);
    }
    c->a.x = rows;
    c->a.x_row_scale = c->x_scale;
}

/* Each token alone has the bits that it has among others. */
static void tokens_alone(const product_case *c, const target *t, const nrd_moe_linear_args *together, const char *y)
{
    const nrd_moe_pairs *p = &c->a.pairs;
    const size_t x_row = nrd_row_bytes(c->a.x_dtype, c->cols), y_row = nrd_row_bytes(c->a.y_dtype, c->stride);

    for (int32_t i = 0; i < c->a.n_tokens; i += 1 + c->a.n_tokens / 5) {
        const moe_row row = {.experts = p->n_experts, .top_k = p->top_k};
        nrd_moe_linear_args a = *together;
        nrd_moe_pairs one = pairs_new(&row, 1);
        float *scale = host((size_t)p->top_k * 4);
        char *x = host(x_row * (size_t)p->top_k), *got = host(y_row * (size_t)p->top_k);
        memcpy(one.expert, p->expert + i * p->top_k, (size_t)p->top_k * 4);
        nrd_moe_sort(&one, 1);
        for (int32_t j = 0; j < p->top_k; j++) { /* where the token's rows of x are, and go */
            const int64_t from = c->a.x_sorted ? p->place[i * p->top_k + j] : i;
            const int64_t to = c->a.x_sorted ? one.place[j] : 0;
            memcpy(x + (size_t)to * x_row, (const char *)c->a.x + (size_t)from * x_row, x_row);
            scale[to] = c->x_scale ? c->x_scale[from] : 1.0f;
        }
        a.n_tokens = 1;
        a.pairs = pairs_on(t, &one, 1);
        a.x = dev_put(t, x, x_row * (size_t)p->top_k);
        a.x_row_scale = c->x_scale ? dev_put(t, scale, (size_t)p->top_k * 4) : NULL;
        a.y = dev_out(t, y_row * (size_t)p->top_k);
        ok(t->ops->moe_linear(t->s, &a));
        dev_get(t, got, a.y, y_row * (size_t)p->top_k);
        for (int32_t j = 0; j < p->top_k; j++) {
            same_bytes(t, "tokens alone", got + (size_t)one.place[j] * y_row,
                       y + (size_t)p->place[i * p->top_k + j] * y_row, y_row);
        }
    }
}

/* The same two parts with an activation between, where the device takes that in one. */
static void gated_target(const product_case *c, const target *t, const nrd_moe_linear_args *plain, const float *parts)
{
    const int64_t rows = c->stride / 2;
    const nrd_act_kind act = rnd_in(0, 1) ? NRD_ACT_SILU : NRD_ACT_GELU_TANH;
    nrd_moe_linear_args a = *plain;
    bool done = false;

    if (!t->ops->moe_linear_gated || a.n_parts != 2) {
        return;
    }
    float *want = host((size_t)(c->n_pairs * rows) * 4 + 64), *got = host((size_t)(c->n_pairs * rows) * 4 + 64);
    a.y = dev_put(t, want, nrd_row_bytes(a.y_dtype, rows) * (size_t)c->n_pairs);
    ok(t->ops->moe_linear_gated(t->s, &a, act, &done));
    if (!done) {
        return;
    }
    for (int64_t i = 0; i < c->n_pairs * rows; i++) {
        const float *row = parts + i / rows * c->stride;
        want[i] = nrd_act_value(act, row[i % rows]) * row[rows + i % rows];
    }
    memcpy(got, dev_rows(t, a.y_dtype, a.y, NULL, c->n_pairs, rows), (size_t)(c->n_pairs * rows) * 4);
    compare(t, "gated", got, want, c->n_pairs * rows, (limit){0, 0, rounding(a.y_dtype) + 8e-3});
}

/* Whether a device may round x to E4M3 in groups of 128. */
static bool may_round_x(const product_case *c)
{
    bool may = c->w[0].dtype == NRD_DTYPE_F8_B128 && !c->a.deterministic && c->a.y_dtype == NRD_DTYPE_BF16;

    for (int p = 0; p < c->a.n_parts; p++) {
        may = may && c->w[p].rows / c->a.pairs.n_experts % 128 == 0;
    }
    return may;
}

/* Whether a matrix unit may round weights of blocks and x to bfloat16. */
static bool is_rounded(const product_case *c, const target *t)
{
    bool is = false;

    for (int p = 0; p < c->a.n_parts; p++) {
        is = is || may_round(t, c->w[p].dtype, c->a.n_tokens, c->a.deterministic);
    }
    return is;
}

static void product_target(const product_case *c, const target *t, const float *want)
{
    const bool rounded = is_rounded(c, t);
    const size_t x_row = nrd_row_bytes(c->a.x_dtype, c->cols), y_row = nrd_row_bytes(c->a.y_dtype, c->stride);
    nrd_moe_linear_args a = c->a;
    nrd_weight w[2], bias[2];
    char *y = host(y_row * (size_t)c->n_pairs + 64);

    for (int p = 0; p < a.n_parts; p++) {
        w[p] = weight_on(t, &c->w[p], true);
        a.w[p] = &w[p];
        if (a.bias[p]) {
            bias[p] = weight_on(t, &c->bias[p], false);
            a.bias[p] = &bias[p];
        }
    }
    a.pairs = pairs_on(t, &c->a.pairs, a.n_tokens);
    const size_t n_rows = (size_t)(a.x_sorted ? c->n_pairs : a.n_tokens);
    a.x = dev_put(t, c->a.x, x_row * n_rows);
    a.x_row_scale = c->x_scale ? dev_put(t, c->x_scale, n_rows * 4) : NULL;
    a.y = dev_put(t, y, y_row * (size_t)c->n_pairs); /* zeros, as `want` has where nothing is written */
    ok(t->ops->moe_linear(t->s, &a));
    dev_get(t, y, a.y, y_row * (size_t)c->n_pairs);
    compare(t, "", rows_of(a.y_dtype, y, NULL, c->n_pairs, c->stride), want, c->n_pairs * c->stride,
            rounded && is_block_type(c->w[0].dtype) ? (limit){0, 0, 4e-3}
            : kind->is_exact ? (limit){2e-4, 1e-5, 0}
                             : (limit){0, 0, may_round_x(c) ? 4e-2 : rounding(a.y_dtype) + 2.5e-3});
    if (!c->is_window && !rounded && (kind->rows_alone || a.deterministic)) {
        tokens_alone(c, t, &a, y);
    }
    gated_target(c, t, &a, want);
}

static void check_product(const moe_row *row, int32_t n, nrd_dtype type, nrd_dtype second, bool whole)
{
    product_case c;
    product_new(&c, row, n, type, second, whole);
    float *want = host((size_t)(c.n_pairs * c.stride) * 4 + 64);
    nrd_moe_linear_args a = c.a;

    a.y = want;
    a.y_dtype = NRD_DTYPE_F32;
    case_name("moe_linear %s, %s, %d parts of %lld x %lld, %d of %d experts%s, %d tokens%s%s", nrd_dtype_name(type),
              nrd_dtype_name(second), a.n_parts, (long long)c.stride, (long long)c.cols, row->top_k, row->experts,
              c.is_window ? ", some here" : "", n,
              a.x_sorted ? ", x sorted" : "", a.bias[0] || a.bias[1] ? ", bias" : "");
    ok(nrd_moe_linear_check(&a));
    nrd_moe_linear_ref(&a);
    for (int i = 0; i < n_targets; i++) {
        product_target(&c, &targets[i], want);
    }
    case_end();
}

/* ---- sum ---- */

static void check_sum(const moe_row *row, int32_t n, int shared)
{
    const int32_t hidden = rnd_in(1, 2200);
    const bool weighted = rnd_in(0, 2) > 0;
    const int64_t n_pairs = (int64_t)n * row->top_k, all = (int64_t)n * hidden;
    const nrd_dtype act = kind->acts[0];
    const size_t elem = nrd_dtype_block_bytes(act);
    nrd_moe_route_args route = route_new(row, n);
    nrd_moe_route_ref(&route);
    nrd_moe_sum_args a = {.n_tokens = n, .hidden = hidden, .pairs = route.pairs, .act_dtype = act,
                          .y = host_as(act, n_pairs * hidden, 1),
                          .shared = shared ? host_as(act, all, 1) : NULL,
                          .shared_gate = shared > 1 ? host_normal(n * 3, 1) : NULL,
                          .gate_stride = 3,
                          .out = host((size_t)all * elem + 64)};

    const bool is_window = rnd_in(0, 1) == 1;
    if (is_window) {
        int32_t from, to;
        a.pairs = window_of(&route.pairs, &from, &to);
        spoil_others((void *)(uintptr_t)a.y, (size_t)hidden * elem, n_pairs, from, to);
    }
    const nrd_moe_pairs pairs = a.pairs;
    a.pairs.weight = weighted ? a.pairs.weight : NULL;
    case_name("moe_sum%s, %d of %d experts%s, %d tokens of %d%s%s", weighted ? "" : " without weights", row->top_k, row->experts,
              is_window ? ", some here" : "", n, hidden, shared ? ", shared" : "", shared > 1 ? " with a gate" : "");
    ok(nrd_moe_sum_check(&a));
    nrd_moe_sum_ref(&a);
    const float *want = rows_of(act, a.out, NULL, n, hidden);
    for (int i = 0; i < n_targets; i++) {
        const target *t = &targets[i];
        nrd_moe_sum_args d = a;
        d.pairs = pairs_on(t, &pairs, n);
        d.pairs.weight = weighted ? d.pairs.weight : NULL;
        d.y = dev_put(t, a.y, (size_t)(n_pairs * hidden) * elem);
        d.out = shared ? dev_put(t, a.shared, (size_t)all * elem) : dev_out(t, (size_t)all * elem);
        d.shared = shared ? d.out : NULL; /* in place */
        d.shared_gate = a.shared_gate ? dev_put(t, a.shared_gate, (size_t)n * 12) : NULL;
        ok(t->ops->moe_sum(t->s, &d));
        compare(t, "", dev_rows(t, act, d.out, NULL, n, hidden), want, all,
                kind->is_exact ? (limit){1e-5, 1e-5, 0} : (limit){0, 0, rounding(act)});
    }
    case_end();
}

/* ---- speed ---- */

typedef struct moe_speed {
    const char *model;
    int32_t experts, top_k, hidden, inter;
    nrd_dtype types[2];
} moe_speed;

static const moe_speed speeds[] = {
    {"Mixtral 8x7B", 8, 2, 4096, 14336, {NRD_DTYPE_F8_E4M3}},
    {"Qwen3-30B-A3B", 128, 8, 2048, 768, {NRD_DTYPE_F8_E4M3, NRD_DTYPE_BF16}},
    {"GPT-OSS-20B", 32, 4, 2880, 2880, {NRD_DTYPE_MXFP4}},
    {"Qwen3-30B-A3B", 128, 8, 2048, 768, {NRD_DTYPE_F8_B128, NRD_DTYPE_NVFP4}},
};
static const int32_t speed_tokens[] = {1, 4, 16, 64, 128, 256, 512, 1024, 2048, 8192};
enum { N_SPEED_TOKENS = sizeof speed_tokens / sizeof *speed_tokens, MOST_TOKENS = 8192 };

static void moe_call(const target *t, int i, void *user)
{
    (void)i;
    ok(t->ops->moe_linear(t->s, user));
}

static void gated_call(const target *t, int i, void *user)
{
    bool done;
    (void)i;
    ok(t->ops->moe_linear_gated(t->s, user, NRD_ACT_SILU, &done));
}

/* One of the two products, at all numbers of tokens; the experts of a token are drawn evenly. */
static void speed_product(const target *t, const moe_speed *s, nrd_dtype type, bool is_down)
{
    const moe_row row = {.experts = s->experts, .top_k = s->top_k, .groups = 1, .top_groups = 1, .scale = 1};
    const int64_t rows = is_down ? s->hidden : s->inter, cols = is_down ? s->inter : s->hidden, parts = is_down ? 1 : 2;
    nrd_weight host_w = weight_new(type, s->experts * rows, cols, 0.05f), w[2];
    nrd_moe_linear_args a = {.x_sorted = is_down, .n_parts = (int32_t)parts, .y_dtype = NRD_DTYPE_BF16};
    const size_t n_x = (size_t)MOST_TOKENS * (size_t)(is_down ? s->top_k : 1);
    size_t row_bytes;
    bool row_scale;

    host_w.n_stacked = s->experts;
    if (type == NRD_DTYPE_F8_B128) {
        square_blocks(&host_w);
    }
    for (int p = 0; p < parts; p++) {
        w[p] = weight_on(t, &host_w, true);
        a.w[p] = &w[p];
    }
    a.x_dtype = t->ops->linear_input(t->dev, &w[0], NRD_DTYPE_F32, &row_bytes, &row_scale);
    a.x = dev_pool(t, a.x_dtype, row_bytes * n_x);
    a.x_row_scale = row_scale ? dev_pool(t, NRD_DTYPE_F32, n_x * 4) : NULL;
    a.y = dev_out(t, nrd_row_bytes(a.y_dtype, rows * parts) * (size_t)(MOST_TOKENS * s->top_k));
    for (int i = 0; i < N_SPEED_TOKENS; i++) {
        const int32_t n = speed_tokens[i], n_pairs = n * s->top_k;
        nrd_moe_route_args route = route_new(&row, n);
        int32_t taken = 0;
        nrd_moe_route_ref(&route);
        for (int32_t e = 0; e < s->experts; e++) {
            taken += route.pairs.first[e + 1] > route.pairs.first[e];
        }
        a.n_tokens = n;
        a.pairs = pairs_on(t, &route.pairs, n);
        const double one = (double)nrd_weight_bytes(type, NRD_LAYOUT_ROWS, rows, cols) * (double)parts;
        speed_row(measure(t, moe_call, &a, 16),
                  (work){taken * one + (double)row_bytes * (is_down ? n_pairs : n) +
                             (double)nrd_row_bytes(a.y_dtype, rows * parts) * n_pairs,
                         2.0 * n_pairs * (double)(rows * parts * cols), type == NRD_DTYPE_F8_E4M3 ? PEAK_EIGHT : PEAK_FLOAT},
                  "%-8s %s %4d tokens, %d of %d", is_down ? "down" : "up", nrd_dtype_name(type), n, s->top_k, s->experts);
        bool gated = false;
        if (!is_down && t->ops->moe_linear_gated) {
            ok(t->ops->moe_linear_gated(t->s, &a, NRD_ACT_SILU, &gated));
        }
        if (gated) {
            speed_row(measure(t, gated_call, &a, 16),
                      (work){taken * one + (double)row_bytes * n + (double)nrd_row_bytes(a.y_dtype, rows) * n_pairs,
                             2.0 * n_pairs * (double)(rows * parts * cols), type == NRD_DTYPE_F8_E4M3 ? PEAK_EIGHT : PEAK_FLOAT},
                      "%-8s %s %4d tokens, %d of %d", "gated", nrd_dtype_name(type), n, s->top_k, s->experts);
        }
    }
    case_end();
}

void speed_moe(void)
{
    for (size_t i = 0; is_here(ON_CUDA) && i < sizeof speeds / sizeof *speeds; i++) {
        printf("%s\n", speeds[i].model);
        for (int k = 0; k < 2 && speeds[i].types[k]; k++) {
            speed_product(&targets[0], &speeds[i], speeds[i].types[k], false);
            speed_product(&targets[0], &speeds[i], speeds[i].types[k], true);
        }
    }
}

/* Types that only GPUs multiply, with few pairs an expert and with many. */
static void check_packed_types(void)
{
    static const int rows[] = {0, 2, 7, 8};

    for (int type = N_WEIGHT_TYPES; type < N_LINEAR_TYPES && has_weight(weight_types[type]); type++) {
        for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
            const moe_row *row = &table[rows[k]];
            for (int i = 0; i < 6 && row->tokens[i] > 0; i++) {
                check_product(row, row->tokens[i], weight_types[type], weight_types[type], false);
                for (int again = 0; weight_types[type] == NRD_DTYPE_F8_B128 && again < 3; again++) {
                    check_product(row, row->tokens[i], weight_types[type], weight_types[type], true);
                }
            }
        }
    }
}

void check_moe(void)
{
    if (!targets[0].ops->moe_route) {
        return;
    }
    for (int k = 0, type = 0; k < N_ROWS; k++) {
        for (int i = 0; i < 6 && table[k].tokens[i] > 0; i++) {
            check_route(&table[k], table[k].tokens[i]);
            check_sum(&table[k], table[k].tokens[i], i % 3);
            for (int n = small_only ? 1 : 3; n > 0; n--, type++) { /* every type meets every kind of routing in time */
                const nrd_dtype t = weight_types[type % N_WEIGHT_TYPES];
                const nrd_dtype other = weight_types[(type + 1) % N_WEIGHT_TYPES];
                if (has_weight(t)) {
                    check_product(&table[k], table[k].tokens[i], t, n == 1 && go_together(t, other) ? other : t, false);
                }
            }
        }
    }
    check_packed_types();
}
