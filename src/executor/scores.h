/* SPDX-License-Identifier: Apache-2.0
 * executor/scores.h - log probabilities of a prompt's own tokens.
 *
 * Purpose   Rows of logits of a prompt's positions become the log probability of the token behind each, its rank among all tokens
 *           and the best ones instead. The first token has nothing before it: 0, rank 0, and no others (id -1).
 * Owner     The loop writes; who waits for them, or the answer that they come with, reads when the prompt is computed.
 * Errors    Of new: UNAVAILABLE, no memory.
 */
#ifndef NRD_EXECUTOR_SCORES_H
#define NRD_EXECUTOR_SCORES_H

#include "base/error.h"
#include "engine/sequence.h"

typedef struct nrd_exec_scores {
    float *log_probs;     /* [n] of tokens */
    int32_t *ranks;       /* [n] tokens that are likelier, and 1; or NULL */
    int32_t *top_ids;     /* [n, top_k] best first; or NULL */
    float *top_log_probs; /* [n, top_k] or NULL */
    int32_t top_k;
    int32_t first;        /* the token that entry 0 is of */
    void (*on_row)(void *user, int32_t position, const float *logits); /* instead of all of these; or NULL */
    void *user;
} nrd_exec_scores;

/* With memory of its own, which free() gives back together with it. */
nrd_error *nrd_exec_scores_new(nrd_exec_scores **out, int32_t n, int32_t top_k) NRD_MUST_USE;
uint64_t nrd_exec_scores_bytes(uint64_t n, uint64_t top_k);
/* The logits [vocab] of the prompt's position `pos`, which are about the token behind it. */
void nrd_exec_scores_row(const nrd_exec_scores *s, const nrd_seq *q, int32_t pos, const float *logits, int32_t vocab);

#endif
