/* SPDX-License-Identifier: Apache-2.0 */
#include "executor/scores.h"

#include "base/logits.h"
#include "base/mem.h"

#include <math.h>

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
        nrd_best_of(logits, vocab, s->top_k, s->top_ids + at);
        for (int32_t k = 0; k < s->top_k; k++) {
            s->top_log_probs[at + (size_t)k] = (float)((double)logits[s->top_ids[at + (size_t)k]] - total);
        }
    }
}
