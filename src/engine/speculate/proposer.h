/* SPDX-License-Identifier: Apache-2.0
 * engine/speculate/proposer.h - who guesses the tokens that a step may check all at once.
 *
 * Purpose   A draft: tokens that may follow what a sequence has said. The scheduler asks for one where it plans a
 *           choice, the runner computes it as if it were known text, with a choice behind every token, and
 *           engine/speculate/verify.h says how far it holds. Who guesses does not matter to any of them.
 * Owner     Made and freed by the sequence's maker, called by the loop thread only.
 * Units     Token ids of the model's vocabulary.
 * Sources   Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", ICML 2023.
 */
#ifndef NRD_ENGINE_SPECULATE_PROPOSER_H
#define NRD_ENGINE_SPECULATE_PROPOSER_H

#include "base/error.h"
#include "engine/speculate/tree.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct nrd_seq nrd_seq;
typedef struct nrd_proposer nrd_proposer;
struct nrd_step_costs;

/* What became of a draft. */
typedef struct nrd_draft_outcome {
    int32_t n_proposed, n_accepted;
    const int32_t *path;    /* [n_accepted] nodes of the tree that held; NULL: the first tokens, of no tree */
    const int32_t *choices; /* [1 + n_proposed] the model's, behind the last known token and behind each of the draft */
} nrd_draft_outcome;

struct nrd_proposer {
    /* Writes at most `max` tokens that may follow the n_known ones; returns how many, 0: no idea. No clock, no
     * device, no allocation: it is part of a plan. A network's tokens (`passes`) are written later, before the plan
     * runs. */
    int32_t (*propose)(nrd_proposer *p, const nrd_seq *q, int32_t *out, int32_t max);
    /* The logits that token i of the last draft was drawn from, [vocab]. Asked only where `scratch` is. */
    const float *(*logits)(const nrd_proposer *p, int32_t i);
    void (*hear)(nrd_proposer *p, const nrd_draft_outcome *o);
    /* Told for each choice that goes on in the text: behind which of the step's packed tokens it was made. NULL: does not
     * matter. */
    void (*hear_token)(nrd_proposer *p, uint64_t step, int32_t token);
    void (*free)(nrd_proposer *p);
    /* How likely a token of a draft is right when those before it are, in [0, 1]: the scheduler weighs it against
     * the time that the token takes (engine/speculate/budget.h). Above 1: the draft was asked for, whatever it
     * costs. */
    float rate;
    bool always; /* every draft is computed, whatever it costs */
    /* ---- where a draft is a tree: its first nodes, as many as propose said, of which the step computes the first so
     * many ---- */
    nrd_token_tree *tree; /* NULL: a draft is one continuation */
    const float *likely;  /* [nodes] how likely each is right, falling; NULL: rate, rate^2, ... */
    bool whole;           /* all nodes of a draft or none: some are there for what their choices say */
    int32_t vocab;
    float threshold; /* with logits: a token stays where p >= threshold * q; < 0: a new draw from [0, 1) each */
    void *scratch;   /* with logits: of nrd_speculate_scratch_bytes(vocab) */
    float posterior_threshold, posterior_alpha; /* of typical acceptance (engine/speculate/typical.h), with vocab; threshold 0: exact */
    /* ---- where a network guesses (engine/speculate/drafter.h) ---- */
    const struct nrd_step_costs *passes; /* what its passes take; NULL: no network */
    int32_t n_passes;    /* in which it guesses a whole draft; 0: one for each token */
    int32_t pass_tokens; /* of one pass, at most */
    int32_t lag;         /* written by propose: tokens that it has to compute before its first guess, but for the last */
    int32_t catch_up;    /* written by the plan: it computes so many of them in this step, which has no draft */
};

/* Lookahead decoding: a window of guesses is computed beside the text, `window` places wide and ngram - 1 levels deep, each
 * level's choices being the next one's guesses; the n-grams that come out of it, and those of the text, are what a step
 * verifies, at most n_verify at a time. window >= 1, ngram >= 2, n_verify >= 1,
 * nrd_lookahead_nodes() <= NRD_MAX_TREE. Takes nrd_proposer_lookahead_bytes(). Source: Fu et al., "Break the Sequential
 * Dependency of LLM Inference Using Lookahead Decoding", ICML 2024. */
typedef struct nrd_lookahead {
    int32_t window, ngram, n_verify;
} nrd_lookahead;
nrd_error *nrd_proposer_lookahead(nrd_proposer **out, const nrd_lookahead *l, int32_t max_total) NRD_MUST_USE;
size_t nrd_proposer_lookahead_bytes(const nrd_lookahead *l, int32_t max_total);
int32_t nrd_lookahead_nodes(const nrd_lookahead *l); /* of a step's tree, at most */

/* A draft that a request brought, for its first tokens. Copies ids and logits [n, vocab] (or NULL). */
nrd_error *nrd_proposer_of_request(nrd_proposer **out, const int32_t *ids, int32_t n, const float *logits,
                                   int32_t vocab, float threshold) NRD_MUST_USE;
/* Text that repeats itself, or its prompt (a summary, an edit of code): what followed the last time that the same
 * tokens stood. The most recent of the longest repeats counts, of at least min_match and at most max_match tokens
 * (1 <= min_match <= max_match). A draft has at most max_draft tokens; a sequence at most max_total. Takes
 * nrd_proposer_ngram_bytes(max_total) bytes. Source: Saxena, "Prompt Lookup Decoding", 2023. */
nrd_error *nrd_proposer_ngram(nrd_proposer **out, int32_t max_draft, int32_t min_match, int32_t max_match,
                              int32_t max_total) NRD_MUST_USE;
size_t nrd_proposer_ngram_bytes(int32_t max_total);
void nrd_proposer_free(nrd_proposer *p); /* NULL is fine */
/* Moves a rate by what became of a draft. */
void nrd_proposer_learn(float *rate, int32_t n_proposed, int32_t n_accepted);

#endif
