/* SPDX-License-Identifier: Apache-2.0
 * engine/decode/seq_decode.h - what a sequence has said, and what its next choice depends on.
 *
 * Purpose   The part of nrd_seq (engine/sequence.h) that the decoder keeps: tokens and their log
 *           probabilities, hypotheses of a beam search, where its guide and its sampling stand.
 * Owner     engine/decode writes it, from nrd_decode_prepare on. The maker allocates the arrays, puts
 *           the prompt into `tokens`, and makes `guide` and `beams`. Others read what stands above
 *           the line.
 * Units     Tokens. n_known <= max_total: prompt and generated tokens that the host has seen.
 */
#ifndef NRD_ENGINE_DECODE_SEQ_DECODE_H
#define NRD_ENGINE_DECODE_SEQ_DECODE_H

#include <stdbool.h>
#include <stdint.h>

/* Numerically equal to nrd_finish_reason of the executor API. */
typedef enum {
    NRD_SEQ_FINISH_NONE = 0,
    NRD_SEQ_FINISH_END_ID = 1,
    NRD_SEQ_FINISH_STOP_WORDS = 2,
    NRD_SEQ_FINISH_LENGTH = 3,
    NRD_SEQ_FINISH_CANCELLED = 4,
    NRD_SEQ_FINISH_ERROR = 5,
    NRD_SEQ_FINISH_TIMED_OUT = 6,
} nrd_seq_finish;

typedef struct nrd_beams nrd_beams;

typedef struct nrd_seq_decode {
    int32_t *tokens; /* [max_total] */
    int32_t n_known;
    float *log_probs; /* [max_total - n_prompt] or NULL */
    int32_t *top_ids; /* [max_total - n_prompt, n_top] or NULL */
    float *top_log_probs;
    double cum_log_prob;
    nrd_beams *beams;              /* width > 1 */
    struct nrd_guide_state *guide; /* what may come next (guided/guided.h); NULL: anything */
    bool needs_host;   /* the next choice depends on the last one on the host: never ahead */
    bool keeps_counts; /* a penalty is on: the slot's row of counts is needed */
    /* ---- decode only ---- */
    bool is_reasoning; /* with a budget for it, of which it has had */
    int32_t n_reasoned;
    bool greedy;
    float top_p_now; /* decayed top-p */
} nrd_seq_decode;

#endif
