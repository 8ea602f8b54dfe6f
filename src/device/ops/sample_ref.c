/* SPDX-License-Identifier: Apache-2.0
 * sample: choice of one token a row, by sorting the whole vocabulary.
 *
 * Order     bias, penalties, min length, banned, mask, times; then temperature, top-k, top-p, min-p, draw.
 * top-p     the shortest prefix of the candidates, best first (ties: lowest id), whose probability
 *           among the top-k reaches top_p. min-p: probability >= min_p * the best one's.
 * Draw      walks the kept candidates in ascending id order and takes the first whose cumulated
 *           probability exceeds nrd_sample_uniform(seed, draw).
 * Logprobs  log-softmax of the logits after everything up to the times, before temperature; a token
 *           that may not be chosen has -inf. out_logprob_norm: after temperature, among the kept.
 * Nothing   If no token may be chosen, id 0 with log probability -inf. If no logit was a number above -inf as it came, and
 *           the row asks (NRD_SAMPLE_TELLS), NRD_SAMPLE_NO_NUMBERS in place of the id. */
#include "device/ops/ops.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>

nrd_error *nrd_sample_check(const nrd_sample_args *a)
{
    if (a->n_rows < 0 || a->vocab <= 0 || a->n_top < 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "sample: %d rows, vocabulary %d, %d best", a->n_rows,
                          a->vocab, a->n_top);
    }
    if (a->n_rows > 0 && (!a->logits || !a->rows || !a->out_ids)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "sample: logits, rows and out_ids are needed");
    }
    if (a->n_top > 0 && (!a->out_top_ids || !a->out_top_logprobs || a->n_top > a->vocab)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "sample: no room for the best %d of %d", a->n_top, a->vocab);
    }
    if (a->logits_stride && a->logits_stride < a->vocab) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "sample: rows of %lld logits for a vocabulary of %d",
                          (long long)a->logits_stride, a->vocab);
    }
    return NULL;
}

nrd_error *nrd_linear_sample_check(const nrd_linear_args *l, const nrd_rough_weight *rough, const nrd_sample_args *a)
{
    int64_t rows = 0;

    NRD_TRY(nrd_linear_check(l));
    NRD_TRY(nrd_sample_check(a));
    for (int p = 0; p < l->n_parts; p++) {
        rows += l->w[p]->rows;
    }
    if (a->logits != l->y || a->n_rows != l->n_tokens || (a->logits_stride ? a->logits_stride : a->vocab) != rows) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "linear_sample: %d rows of %lld logits are not the results of linear",
                          a->n_rows, (long long)rows);
    }
    if (!rough) {
        return NULL;
    }
    if (l->n_parts != 1 || !rough->w || !rough->error || !rough->length || rough->w->dtype != NRD_DTYPE_Q8_0 ||
        rough->w->rows != rows || rough->w->cols != l->w[0]->cols) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "linear_sample: the rough weight is no q8_0 of %lld x %lld", (long long)rows,
                          (long long)l->w[0]->cols);
    }
    return nrd_weight_check(rough->w, "linear_sample");
}

typedef struct candidate {
    float logit;
    int32_t id;
} candidate;

static int best_first(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->logit != y->logit) {
        return x->logit > y->logit ? -1 : 1;
    }
    return x->id < y->id ? -1 : 1;
}

static int by_id(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    return x->id < y->id ? -1 : 1;
}

/* The ranges; then, as openai/whisper weighs them, times alone where they are together above the best of the rest. */
static void keep_times(const nrd_sample_times *t, candidate *c, int32_t n)
{
    double text = -INFINITY, time = -INFINITY, sum = 0;

    for (int32_t i = 0; i < n; i++) {
        const int32_t from = i < t->first ? t->text_from : t->time_from, end = i < t->first ? t->text_end : t->time_end;
        if (i < from || i >= end) {
            c[i].logit = -INFINITY;
        }
        double *best = i < t->first ? &text : &time;
        *best = (double)c[i].logit > *best ? (double)c[i].logit : *best;
    }
    if (time == -INFINITY) {
        return;
    }
    for (int32_t i = t->first; i < n; i++) {
        sum += exp((double)c[i].logit - time);
    }
    for (int32_t i = 0; i < t->first && time + log(sum) > text; i++) {
        c[i].logit = -INFINITY;
    }
}

static void adjust(const nrd_sample_args *a, const nrd_sample_row *r, const float *logits, candidate *c)
{
    const uint16_t *counts = (r->flags & NRD_SAMPLE_COUNTS) && a->counts
                                 ? a->counts + (int64_t)r->slot * a->vocab : NULL;

    for (int32_t i = 0; i < a->vocab; i++) {
        float v = logits[i];
        if (r->bias && !r->bias_ids) {
            v += r->bias[i];
        }
        for (int32_t k = 0; r->bias_ids && k < r->n_bias; k++) {
            v += r->bias_ids[k] == i ? r->bias[k] : 0;
        }
        if (counts && counts[i]) {
            v = v > 0 ? v / r->repetition_penalty : v * r->repetition_penalty;
            v -= r->presence_penalty + r->frequency_penalty * (float)counts[i];
        }
        if (r->mask && !(r->mask[i / 32] >> (i % 32) & 1u)) {
            v = -INFINITY;
        }
        c[i].logit = v == v ? v : -INFINITY;
        c[i].id = i;
    }
    if (r->n_suppress_end > 0 && r->end_id >= 0 && r->end_id < a->vocab) {
        c[r->end_id].logit = -INFINITY;
    }
    for (int32_t i = 0; a->banned_ids && i < r->n_banned; i++) {
        int32_t id = a->banned_ids[r->banned_start + i];
        if (id >= 0 && id < a->vocab) {
            c[id].logit = -INFINITY;
        }
    }
    if (r->times.first > 0 && r->times.first < a->vocab) {
        keep_times(&r->times, c, a->vocab);
    }
}

/* What may be drawn in a row: `kept` candidates, with probabilities e^((logit - peak) inv_t) / total. */
typedef struct choice {
    int32_t kept;
    double peak, log_total; /* of all that may be chosen, before temperature (NRD_SAMPLE_UNMASKED: the total is that of all logits) */
    double inv_t, total;
} choice;

static double share(const choice *k, const candidate *c)
{
    return exp(((double)c->logit - k->peak) * k->inv_t);
}

static double sum_of(const choice *k, const candidate *c)
{
    double total = 0;
    for (int32_t i = 0; i < k->kept; i++) {
        total += share(k, &c[i]);
    }
    return total;
}

/* The log of the sum of a row as it came. */
static double log_sum(const float *logits, int32_t n)
{
    double peak = -INFINITY, sum = 0;

    for (int32_t i = 0; i < n; i++) {
        peak = (double)logits[i] > peak ? (double)logits[i] : peak; /* not so for NAN */
    }
    for (int32_t i = 0; i < n; i++) {
        sum += logits[i] == logits[i] ? exp((double)logits[i] - peak) : 0;
    }
    return peak + log(sum);
}

/* Candidates best first, and how many of them temperature, top-k, top-p and min-p leave. */
static choice keep(const nrd_sample_args *a, int32_t row, candidate *c)
{
    const nrd_sample_row *r = &a->rows[row];
    int64_t stride = a->logits_stride ? a->logits_stride : a->vocab;
    choice k = {.inv_t = 1.0};
    double sum = 0;
    int32_t i = 0;

    adjust(a, r, a->logits + row * stride, c);
    qsort(c, (size_t)a->vocab, sizeof *c, best_first);
    k.peak = (double)c[0].logit;
    while (k.kept < a->vocab && c[k.kept].logit != -INFINITY) {
        k.kept++;
    }
    k.log_total = r->flags & NRD_SAMPLE_UNMASKED ? log_sum(a->logits + row * stride, a->vocab) : k.peak + log(sum_of(&k, c));
    if (r->temperature <= 0 || r->top_k == 1 || k.kept == 0) {
        k.kept = k.kept ? 1 : 0;
    } else {
        k.inv_t = 1.0 / (double)r->temperature;
        k.kept = r->top_k > 0 && r->top_k < k.kept ? r->top_k : k.kept;
    }
    k.total = sum_of(&k, c);
    if (r->top_p > 0 && r->top_p < 1) {
        for (i = 0; i < k.kept && sum < (double)r->top_p * k.total; i++) {
            sum += share(&k, &c[i]);
        }
        k.kept = i;
    }
    if (r->min_p > 0) {
        for (i = 0; i < k.kept && share(&k, &c[i]) >= (double)r->min_p; i++) {
        }
        k.kept = i > 0 ? i : k.kept > 0 ? 1 : 0;
    }
    k.total = sum_of(&k, c);
    return k;
}

static void best_of(const nrd_sample_args *a, int32_t row, const choice *k, const candidate *c)
{
    for (int32_t i = 0; i < a->n_top; i++) {
        a->out_top_ids[(int64_t)row * a->n_top + i] = c[i].id;
        a->out_top_logprobs[(int64_t)row * a->n_top + i] =
            c[i].logit == -INFINITY ? -INFINITY : (float)((double)c[i].logit - k->log_total);
    }
}

static void sample_row(const nrd_sample_args *a, int32_t row, candidate *c)
{
    const nrd_sample_row *r = &a->rows[row];
    const choice k = keep(a, row, c);
    candidate pick = {-INFINITY, 0};

    best_of(a, row, &k, c);
    if (k.kept == 1) {
        pick = c[0];
    } else if (k.kept > 1) {
        double target = (double)nrd_sample_uniform(r->seed, r->draw) * k.total, sum = 0;
        qsort(c, (size_t)k.kept, sizeof *c, by_id);
        for (int32_t i = 0; i < k.kept && sum <= target; i++) {
            pick = c[i];
            sum += share(&k, &c[i]);
        }
    }
    const float *x = a->logits + row * (a->logits_stride ? a->logits_stride : a->vocab);
    bool tells = (r->flags & NRD_SAMPLE_TELLS) != 0;
    for (int32_t i = 0; i < a->vocab; i++) {
        tells = tells && !(x[i] > -INFINITY);
    }
    a->out_ids[row] = tells ? (int32_t)NRD_SAMPLE_NO_NUMBERS : pick.id;
    if (a->out_logprob && (r->flags & NRD_SAMPLE_LOGPROB)) {
        a->out_logprob[row] = k.kept ? (float)((double)pick.logit - k.log_total) : -INFINITY;
    }
    if (a->out_logprob_norm && (r->flags & NRD_SAMPLE_NORMALIZE)) {
        a->out_logprob_norm[row] =
            k.kept ? (float)(((double)pick.logit - k.peak) * k.inv_t - log(k.total)) : -INFINITY;
    }
}

bool nrd_sample_may(const nrd_sample_args *a, int32_t row, int32_t id, double slack)
{
    const nrd_sample_row *r = &a->rows[row];
    candidate *c = nrd_xmalloc((size_t)a->vocab * sizeof *c);
    const choice k = keep(a, row, c);
    const double target = (double)nrd_sample_uniform(r->seed, r->draw) * k.total;
    double below = 0, upto = 0;
    bool is_kept = false;

    for (int32_t i = 0; i < k.kept; i++) {
        below += c[i].id < id ? share(&k, &c[i]) : 0;
        upto += c[i].id <= id ? share(&k, &c[i]) : 0;
        is_kept = is_kept || c[i].id == id;
    }
    free(c);
    return is_kept && below <= target + slack * k.total && upto >= target - slack * k.total;
}

void nrd_sample_ref(const nrd_sample_args *a)
{
    candidate *c = nrd_xmalloc((size_t)a->vocab * sizeof *c);

    for (int32_t row = 0; row < a->n_rows; row++) {
        sample_row(a, row, c);
    }
    /* After all rows: rows of one slot must not see each other's tokens in this step. */
    for (int32_t row = 0; row < a->n_rows; row++) {
        const nrd_sample_row *r = &a->rows[row];
        const int32_t id = a->out_ids[row] == NRD_SAMPLE_NO_NUMBERS ? 0 : a->out_ids[row];
        if (r->flags & NRD_SAMPLE_NO_UPDATE) {
            continue;
        }
        if (a->slot_tokens) {
            a->slot_tokens[r->slot] = id;
        }
        if ((r->flags & NRD_SAMPLE_COUNTS) && a->counts) {
            uint16_t *n = &a->counts[(int64_t)r->slot * a->vocab + id];
            *n = (uint16_t)(*n < UINT16_MAX ? *n + 1 : *n);
        }
    }
    free(c);
}
