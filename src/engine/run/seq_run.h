/* SPDX-License-Identifier: Apache-2.0
 * engine/run/seq_run.h - what the runner does for a sequence beside its choices.
 *
 * Purpose   The part of nrd_seq (engine/sequence.h) that only the runner looks at: rows that the
 *           maker wants to see, and the sequence's own vector on the device.
 * Owner     Set by the maker before nrd_sched_add; read by engine/run.
 */
#ifndef NRD_ENGINE_RUN_SEQ_RUN_H
#define NRD_ENGINE_RUN_SEQ_RUN_H

#include <stdbool.h>
#include <stdint.h>

/* What is added to the logits before a choice. */
typedef struct nrd_token_bias {
    const float *values; /* [n] */
    const int32_t *ids;  /* [n] rising; NULL: values has one for every token of the vocabulary */
    int32_t n;           /* 0: no bias */
} nrd_token_bias;

typedef struct nrd_seq_run {
    bool want_context_rows; /* every prompt position from context_from on goes through the LM head */
    int32_t context_from;
    int32_t context_row;    /* this prompt position does; 0: none. Not beside want_context_rows, nor with ranks */
    bool want_states;     /* the last layer's normed states of every prompt position are kept … */
    bool want_last_state; /* … of the last one only */
    bool want_first_state; /* … of the first one only */
    bool want_logit_rows; /* logits of every choice are kept */
    const uint8_t *prompt_table; /* rows of the hidden size in the runner's type, of nrd_runner_table_new;
                                  * token `vocab` + i of the prompt is row i; NULL: none */
    int32_t n_prompt_rows;
    const int32_t *axes; /* [n_prompt, NRD_ROPE_AXES] places of the prompt's tokens (M-RoPE), or NULL: all at their positions */
    int32_t axes_shift;  /* added to the position of a token behind the prompt */
    nrd_token_bias bias;  /* of nrd_runner_bias_new; the maker frees it */
    const struct nrd_kv_parcel *parcel; /* NRD_HANDED_BLOCKS: the prompt's blocks (engine/run/parcel.h), until its first step is over */
    int32_t adapter;      /* 1 + the slot of its LoRA adapter on the device; 0: none */
} nrd_seq_run;

#endif
