/* SPDX-License-Identifier: Apache-2.0
 * backends/bls/drafts_internal.h - rounds of drafts: drafts.c asks, drafts_kept.c has what they left for the answer. */
#ifndef NRD_BACKENDS_BLS_DRAFTS_INTERNAL_H
#define NRD_BACKENDS_BLS_DRAFTS_INTERNAL_H

#include "backends/bls/flow_internal.h"

enum { NRD_BLS_FIRST_TIMES = 3 };
extern const char *const nrd_bls_first_times[NRD_BLS_FIRST_TIMES]; /* outputs that are those of the first round */

struct bls_drafts {
    int32_t n_draft;    /* tokens that a round proposes at the most */
    bool use_logits;    /* the draft model's logits decide what is kept, not only its tokens */
    int32_t min_length; /* the client's, in new tokens */
    int32_t n_prompt, n_ids, max_ids;
    int32_t max_prompt; /* tokens that a round's prompt has at most, as far as answers told it */
    bool is_rest;       /* the round in flight has no draft and is the last one */
    int32_t *ids;     /* [max_ids] prompt and answer so far */
    float *log_probs; /* [max_ids - n_prompt] of the answer's tokens, where the client asks for them */
    int32_t n_log_probs;
    float cum_log_prob, acceptance_rate;
    int32_t n_proposed, n_accepted; /* of all rounds */
    int64_t first_times[NRD_BLS_FIRST_TIMES]; /* of the first round, as nrd_bls_first_times */
    bool has_counts, has_log_probs, has_times;
    bool has_draft; /* the request in flight, to tensorrt_llm */
    int32_t n_asked;                          /* new tokens of the request in flight */
    TRITONSERVER_InferenceResponse *response; /* of the request in flight, until its final flag; owns */
    int64_t log_probs_shape[3];
};

#endif
