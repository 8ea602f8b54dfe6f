/* SPDX-License-Identifier: Apache-2.0
 * Mixture of experts: which experts a token takes, the products of sorted pairs, their sum. Sums in double. */
#include "device/ops/ops.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- checks ---- */

static nrd_error *check_pairs(const char *op, const nrd_moe_pairs *p, int32_t n_tokens, bool weighted)
{
    if (p->n_experts < 1 || p->n_experts > NRD_MOE_MAX_EXPERTS || p->top_k < 1 || p->top_k > NRD_MOE_MAX_TOP_K) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: %d of %d experts; at most %d of %d", op, p->top_k, p->n_experts,
                          (int)NRD_MOE_MAX_TOP_K, (int)NRD_MOE_MAX_EXPERTS);
    }
    if (n_tokens < 0 || n_tokens > INT32_MAX / p->top_k) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: %d tokens", op, n_tokens);
    }
    if (n_tokens > 0 && (!p->expert || (weighted && !p->weight) || !p->first || !p->token || !p->place)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: all arrays of the pairs are needed", op);
    }
    return NULL;
}

nrd_error *nrd_moe_route_check(const nrd_moe_route_args *a)
{
    const nrd_moe_pairs *p = &a->pairs;

    NRD_TRY(check_pairs("moe_route", p, a->n_tokens, true));
    if (p->top_k > p->n_experts) { /* a window of the others may have fewer */
        return nrd_errorf(NRD_ERR_INVALID_ARG, "moe_route: %d of %d experts", p->top_k, p->n_experts);
    }
    if (a->n_tokens > 0 && (!a->logits || a->logits_stride < p->n_experts)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "moe_route: logits of %d experts, %lld apart", p->n_experts,
                          (long long)a->logits_stride);
    }
    if ((unsigned)a->score > NRD_MOE_SPARSEMIXER) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "moe_route: score %d", (int)a->score);
    }
    if (a->score == NRD_MOE_SPARSEMIXER && (a->bias || a->n_groups > 1 || a->normalize || a->expert_scale || !(a->jitter >= 0))) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "moe_route: bias, groups, sums or scales of experts beside sparsemixer");
    }
    if (a->n_groups < 1 || p->n_experts % a->n_groups || a->top_groups < 1 || a->top_groups > a->n_groups ||
        p->n_experts / a->n_groups * a->top_groups < p->top_k) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "moe_route: %d of %d groups for %d of %d experts", a->top_groups,
                          a->n_groups, p->top_k, p->n_experts);
    }
    return NULL;
}

nrd_error *nrd_moe_linear_check(const nrd_moe_linear_args *a)
{
    NRD_TRY(check_pairs("moe_linear", &a->pairs, a->n_tokens, true));
    if (a->n_parts < 1 || a->n_parts > NRD_LINEAR_MAX_PARTS || (a->n_tokens > 0 && (!a->x || !a->y))) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "moe_linear: %d tokens, %d parts", a->n_tokens, a->n_parts);
    }
    for (int32_t p = 0; p < a->n_parts; p++) {
        if (!a->w[p] || a->w[p]->cols != a->w[0]->cols || a->w[p]->cols <= 0 ||
            nrd_weight_n_stacked(a->w[p]) != a->pairs.n_experts) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "moe_linear: part %d is no stack of %d matrices of %lld columns", p,
                              a->pairs.n_experts, a->w[0] ? (long long)a->w[0]->cols : 0);
        }
        NRD_TRY(nrd_weight_check(a->w[p], "moe_linear"));
        const nrd_weight *b = a->bias[p];
        if (b && (b->rows * b->cols != a->w[p]->rows || !nrd_is_float_dtype(b->dtype) || !b->data)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "moe_linear: bias of %lld %s elements for %lld rows",
                              (long long)(b->rows * b->cols), nrd_dtype_name(b->dtype), (long long)a->w[p]->rows);
        }
    }
    if (nrd_row_bytes(a->x_dtype, a->w[0]->cols) == 0 || !nrd_is_float_dtype(a->y_dtype)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "moe_linear: %s to %s", nrd_dtype_name(a->x_dtype),
                          nrd_dtype_name(a->y_dtype));
    }
    return NULL;
}

nrd_error *nrd_moe_sum_check(const nrd_moe_sum_args *a)
{
    NRD_TRY(check_pairs("moe_sum", &a->pairs, a->n_tokens, false));
    if (a->hidden <= 0 || (a->n_tokens > 0 && (!a->y || !a->out)) || (a->shared_gate && !a->shared)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "moe_sum: %d tokens of %d", a->n_tokens, a->hidden);
    }
    if (!nrd_is_float_dtype(a->act_dtype)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "moe_sum: %s", nrd_dtype_name(a->act_dtype));
    }
    return NULL;
}

/* ---- route ---- */

/* The sum of the two highest of n >= 1 numbers, or the highest alone; of one, itself. */
static float best_of(const float *x, int32_t n, bool max_only)
{
    float first = x[0], second = -INFINITY;
    for (int32_t i = 1; i < n; i++) {
        if (x[i] > first) {
            second = first;
            first = x[i];
        } else if (x[i] > second) {
            second = x[i];
        }
    }
    return n > 1 && !max_only ? first + second : first;
}

/* The first of the highest; it becomes -inf. -1: there is none above that. */
static int32_t take_best(float *x, int32_t n)
{
    int32_t best = -1;
    float most = -INFINITY;
    for (int32_t i = 0; i < n; i++) {
        if (x[i] > most) {
            most = x[i];
            best = i;
        }
    }
    if (best >= 0) {
        x[best] = -INFINITY;
    }
    return best;
}

void nrd_moe_choose(const nrd_moe_route_args *a, const float *s, float *room, int32_t *out_expert)
{
    const int32_t n = a->pairs.n_experts, each = n / a->n_groups;
    float *rank = room, *group = room + n;
    bool allowed[NRD_MOE_MAX_EXPERTS];

    for (int32_t e = 0; e < n; e++) {
        rank[e] = s[e] + (a->bias ? a->bias[e] : 0);
    }
    for (int32_t g = 0; a->n_groups > 1 && g < a->n_groups; g++) {
        group[g] = best_of(rank + g * each, each, a->group_max);
        allowed[g] = false;
    }
    for (int32_t i = 0; a->n_groups > 1 && i < a->top_groups; i++) {
        const int32_t g = take_best(group, a->n_groups);
        allowed[g < 0 ? i : g] = true;
    }
    for (int32_t e = 0; a->n_groups > 1 && e < n; e++) {
        rank[e] = allowed[e / each] ? rank[e] : -INFINITY;
    }
    for (int32_t j = 0; j < a->pairs.top_k; j++) {
        const int32_t e = take_best(rank, n);
        out_expert[j] = e < 0 ? j : e; /* no number among the logits: any expert, so that memory stays whole */
    }
}

void nrd_moe_sparsemixer(const nrd_moe_route_args *a, const float *logits, float *room, int32_t *out_expert,
                         float *out_weight)
{
    const int32_t n = a->pairs.n_experts;

    memcpy(room, logits, (size_t)n * sizeof *room);
    for (int32_t j = 0; j < a->pairs.top_k; j++) {
        const int32_t best = take_best(room, n), e = best < 0 ? j : best;
        const double top = (double)logits[e];
        double sum = 1; /* the choice's own share */
        for (int32_t i = 0; i < n; i++) { /* what was taken is -inf */
            const double x = (double)logits[i];
            const bool is_near = (top - x) / fmax(fabs(x), top) <= 2 * (double)a->jitter;
            sum += isfinite(room[i]) && is_near ? exp(x - top) : 0;
        }
        out_expert[j] = e;
        out_weight[j] = (float)((double)a->scale / sum);
    }
}

void nrd_moe_sort(const nrd_moe_pairs *p, int32_t n_tokens)
{
    const int32_t n_pairs = n_tokens * p->top_k;

    memset(p->first, 0, (size_t)(p->n_experts + 1) * sizeof *p->first);
    for (int32_t i = 0; i < n_pairs; i++) {
        p->first[p->expert[i] + 1]++;
    }
    for (int32_t e = 0; e < p->n_experts; e++) {
        p->first[e + 1] += p->first[e];
    }
    for (int32_t i = 0; i < n_pairs; i++) { /* first[e] runs through its pairs ... */
        const int32_t at = p->first[p->expert[i]]++;
        p->token[at] = i / p->top_k;
        p->place[i] = at;
    }
    for (int32_t e = p->n_experts; e > 0; e--) { /* ... and ends where the next one begins */
        p->first[e] = p->first[e - 1];
    }
    p->first[0] = 0;
}

static void scores(const nrd_moe_route_args *a, const float *logits, float *s)
{
    const int32_t n = a->pairs.n_experts;
    double top = -INFINITY, sum = 0;

    for (int32_t e = 0; e < n; e++) {
        top = fmax(top, (double)logits[e]);
    }
    for (int32_t e = 0; e < n; e++) {
        sum += exp((double)logits[e] - top);
    }
    for (int32_t e = 0; e < n; e++) {
        s[e] = a->score == NRD_MOE_SIGMOID ? (float)(1 / (1 + exp(-(double)logits[e])))
                                           : (float)(exp((double)logits[e] - top) / sum);
    }
}

void nrd_moe_route_ref(const nrd_moe_route_args *a)
{
    const nrd_moe_pairs *p = &a->pairs;
    float *s = nrd_xmalloc((size_t)(2 * p->n_experts + a->n_groups) * sizeof *s);

    for (int64_t t = 0; t < a->n_tokens; t++) {
        int32_t *chosen = p->expert + t * p->top_k;
        double sum = 0;
        if (a->score == NRD_MOE_SPARSEMIXER) {
            nrd_moe_sparsemixer(a, a->logits + t * a->logits_stride, s, chosen, p->weight + t * p->top_k);
            continue;
        }
        scores(a, a->logits + t * a->logits_stride, s);
        nrd_moe_choose(a, s, s + p->n_experts, chosen);
        for (int32_t j = 0; j < p->top_k; j++) {
            sum += (double)s[chosen[j]];
        }
        for (int32_t j = 0; j < p->top_k; j++) {
            const double w = (double)s[chosen[j]] / (a->normalize ? sum : 1);
            p->weight[t * p->top_k + j] = (float)(w * (double)a->scale * (double)(a->expert_scale ? a->expert_scale[chosen[j]] : 1));
        }
    }
    nrd_moe_sort(p, a->n_tokens);
    free(s);
}

/* ---- products and their sum ---- */

void nrd_moe_linear_ref(const nrd_moe_linear_args *a)
{
    const int64_t cols = a->w[0]->cols, n = a->pairs.n_experts;
    int64_t stride = 0, at = 0;
    float *w = nrd_xmalloc((size_t)cols * sizeof *w), *x = nrd_xmalloc((size_t)cols * sizeof *x);

    for (int32_t p = 0; p < a->n_parts; p++) {
        stride += a->w[p]->rows / n;
    }
    for (int32_t p = 0; p < a->n_parts; at += a->w[p]->rows / n, p++) {
        const int64_t rows = a->w[p]->rows / n;
        for (int64_t e = 0; e < n; e++) {
            for (int64_t i = a->pairs.first[e]; i < a->pairs.first[e + 1]; i++) {
                nrd_load_row(a->x_dtype, a->x, a->x_sorted ? i : a->pairs.token[i], cols, a->x_row_scale, x);
                for (int64_t r = 0; r < rows; r++) {
                    double sum = 0;
                    nrd_weight_row(a->w[p], e * rows + r, w);
                    for (int64_t k = 0; k < cols; k++) {
                        sum += (double)w[k] * (double)x[k];
                    }
                    sum += a->bias[p] ? (double)nrd_weight_at(a->bias[p], e * rows + r) : 0;
                    nrd_store_f32(a->y_dtype, a->y, i * stride + at + r, (float)sum);
                }
            }
        }
    }
    free(w);
    free(x);
}

void nrd_moe_sum_ref(const nrd_moe_sum_args *a)
{
    const nrd_moe_pairs *p = &a->pairs;
    const int64_t from = a->n_tokens > 0 ? p->first[0] : 0, to = a->n_tokens > 0 ? p->first[p->n_experts] : 0;

    for (int64_t t = 0; t < a->n_tokens; t++) {
        double gate = 1;
        if (a->shared_gate) {
            gate = 1 / (1 + exp(-(double)a->shared_gate[t * a->gate_stride]));
        }
        for (int64_t i = 0; i < a->hidden; i++) {
            double sum = 0;
            for (int32_t j = 0; j < p->top_k; j++) {
                const int64_t pair = p->place[t * p->top_k + j];
                if (pair < from || pair >= to) {
                    continue;
                }
                sum += (p->weight ? (double)p->weight[t * p->top_k + j] : 1.0) *
                       (double)nrd_load_f32(a->act_dtype, a->y, pair * a->hidden + i);
            }
            if (a->shared) {
                sum += gate * (double)nrd_load_f32(a->act_dtype, a->shared, t * a->hidden + i);
            }
            nrd_store_f32(a->act_dtype, a->out, t * a->hidden + i, (float)sum);
        }
    }
}
