/* SPDX-License-Identifier: Apache-2.0 */
#include "executor/scores.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

enum { LANES = 4, BLOCK = 64 * LANES }; /* BLOCK: numbers whose sum is made in float */

nrd_error *nrd_exec_scores_new(nrd_exec_scores **out, int32_t n, int32_t top_k)
{
    const size_t tokens = (size_t)n, others = tokens * (size_t)top_k;
    nrd_error *err = NULL;
    uint8_t *mem = NULL;

    *out = NULL;
    NRD_NEW_GOTO(mem, nrd_exec_scores_bytes(tokens, (uint64_t)top_k), err, fail);
    nrd_exec_scores *s = (nrd_exec_scores *)(void *)mem;
    s->top_k = top_k;
    s->log_probs = (float *)(void *)(s + 1);
    s->ranks = (int32_t *)(void *)(s->log_probs + tokens);
    s->top_ids = s->ranks + tokens;
    s->top_log_probs = (float *)(void *)(s->top_ids + others);
    for (int32_t k = 0; k < top_k && n > 0; k++) {
        s->top_ids[k] = -1;
    }
    *out = s;
fail:
    return err;
}

uint64_t nrd_exec_scores_bytes(uint64_t n, uint64_t top_k)
{
    return sizeof(nrd_exec_scores) + n * (1 + top_k) * (sizeof(float) + sizeof(int32_t));
}

/* Four numbers at a time: the loop does this for each token of the vocabulary behind each token of a prompt. */
typedef float four __attribute__((vector_size(16)));
typedef int32_t four_ints __attribute__((vector_size(16)));

static four chosen(four_ints which, four a, four b)
{
    return (four)((which & (four_ints)a) | (~which & (four_ints)b));
}

/* e^x for x <= 0: 2^f by its series on [-1/2, 1/2], times 2^i in the bits of the exponent. */
static four exp_of(four x)
{
    const four magic = {12582912, 12582912, 12582912, 12582912}; /* 1.5 * 2^23: what is added to it is rounded to a whole number */
    const four least = {-126, -126, -126, -126}, scaled = x * 1.44269504f, t = chosen(scaled > least, scaled, least);
    const four r = t + magic, f = t - (r - magic);
    four p = f * 1.54035304e-4f + 1.33335581e-3f;

    p = p * f + 9.61812911e-3f;
    p = p * f + 5.55041087e-2f;
    p = p * f + 2.40226507e-1f;
    p = p * f + 6.93147181e-1f;
    p = p * f + 1.0f;
    return (four)((four_ints)p + (((four_ints)r - (four_ints)magic) << 23));
}

/* The numbers from i on; -INFINITY behind the last one. */
static four load(const float *x, int32_t i, int32_t n)
{
    four v = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    if (n - i >= LANES) {
        memcpy(&v, x + i, sizeof v);
    } else {
        memcpy(&v, x + i, (size_t)(n - i) * sizeof *x);
    }
    return v;
}

static float peak_of(const float *x, int32_t n)
{
    four most = load(x, 0, n);
    for (int32_t i = LANES; i < n; i += LANES) {
        const four v = load(x, i, n);
        most = chosen(v > most, v, most);
    }
    for (int k = 1; k < LANES; k++) {
        most[0] = most[k] > most[0] ? most[k] : most[0];
    }
    return most[0];
}

double nrd_log_sum_exp(const float *logits, int32_t n)
{
    const float peak = peak_of(logits, n);
    double sum = 0;

    for (int32_t i = 0; i < n; i += BLOCK) {
        const int32_t end = n - i < BLOCK ? n : i + BLOCK;
        four part = {0};
        for (int32_t k = i; k < end; k += LANES) {
            part += exp_of(load(logits, k, n) - peak);
        }
        sum += (double)part[0] + (double)part[1] + (double)part[2] + (double)part[3];
    }
    return (double)peak + log(sum);
}

/* The best k, best first; ties: lowest id. Insertion into a short list. */
static void best_of(const float *logits, int32_t n, int32_t k, double log_total, int32_t *ids,
                    float *log_probs)
{
    int32_t have = 0;
    for (int32_t i = 0; i < n; i++) {
        if (have == k && !(logits[i] > logits[ids[k - 1]])) {
            continue;
        }
        int32_t at = have < k ? have++ : k - 1;
        while (at > 0 && logits[i] > logits[ids[at - 1]]) {
            ids[at] = ids[at - 1];
            at--;
        }
        ids[at] = i;
    }
    for (int32_t i = 0; i < k; i++) {
        log_probs[i] = (float)((double)logits[ids[i]] - log_total);
    }
}

static int32_t rank_of(const float *logits, int32_t n, float logit)
{
    int32_t above = 0;
    for (int32_t i = 0; i < n; i++) {
        above += logits[i] > logit;
    }
    return above + 1;
}

void nrd_exec_scores_row(const nrd_exec_scores *s, const nrd_seq *q, int32_t pos, const float *logits, int32_t vocab)
{
    const int32_t next = pos + 1;

    if (s->on_row) {
        s->on_row(s->user, pos, logits);
        return;
    }
    if (next >= q->req.n_prompt) {
        return;
    }
    const double total = nrd_log_sum_exp(logits, vocab);
    const int32_t id = q->dec.tokens[next];
    const bool known = id < vocab; /* rows of a prompt table are not */
    const int32_t entry = next - s->first;
    s->log_probs[entry] = known ? (float)((double)logits[id] - total) : -INFINITY;
    if (s->ranks) {
        s->ranks[entry] = known ? rank_of(logits, vocab, logits[id]) : 0;
    }
    if (s->top_k > 0) {
        const size_t at = (size_t)entry * (size_t)s->top_k;
        best_of(logits, vocab, s->top_k, total, s->top_ids + at, s->top_log_probs + at);
    }
}
