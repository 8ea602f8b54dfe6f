/* SPDX-License-Identifier: Apache-2.0
 * frontends/openai/generate.h - what the files share that run a request: generate.c its life, inputs.c what the model is
 * asked, pieces.c what becomes of its answers.
 *
 * Owner     The loop of the request's connection.
 * Errors    Those of the core; UNSUPPORTED: what this model cannot give; NO_MEMORY.
 */
#ifndef NRD_FRONTENDS_OPENAI_GENERATE_H
#define NRD_FRONTENDS_OPENAI_GENERATE_H

#include "frontends/openai/internal.h"

/* A response of the model. Borrows from it. */
typedef struct nrd_oai_piece {
    const int32_t *ids;
    size_t n_ids;
    const float *log_probs;
    size_t n_log_probs;
    const int32_t *top_ids;
    const float *top_log_probs;
    size_t n_top_ids, n_top_log_probs;
    nrd_oai_probs prompt;
    float cum_log_prob;
    int32_t reused_blocks, tokens_per_block;
    int64_t prompt_tokens;
    int64_t finish_reason; /* nrd_finish_reason, 0: not given */
    int64_t arrival_ns, first_token_ns, last_token_ns;
} nrd_oai_piece;

/* Alternatives to each token that the model is asked for. */
static inline int nrd_oai_asked_top(const nrd_oai_request *r)
{
    return r->n_top > 0 ? r->n_top : 1;
}

/* inputs.c: the inputs and outputs of a call. turn: which of the prompt's choices it is. */
nrd_error *nrd_oai_fill(nrd_http_call *call, const nrd_oai_choice *c, int turn) NRD_MUST_USE;

/* pieces.c */
nrd_error *nrd_oai_read_piece(const nrd_oai_request *r, TRITONSERVER_InferenceResponse *response, nrd_oai_piece *p) NRD_MUST_USE;
/* Its tokens become text, up to what ends the answer: c->finish. */
nrd_error *nrd_oai_take_ids(nrd_oai_choice *c, const nrd_oai_piece *p) NRD_MUST_USE;
/* Nothing more comes. */
nrd_error *nrd_oai_finish_choice(nrd_oai_choice *c) NRD_MUST_USE;

#endif
