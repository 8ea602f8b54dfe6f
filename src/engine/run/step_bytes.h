/* SPDX-License-Identifier: Apache-2.0
 * engine/run/step_bytes.h - a step as plain bytes: what rank 0 writes (share.c) and the other ranks read (follow.c).
 *
 * Rank 0 has the plan; the other ranks need only what decides the shapes of the operations and the arrays that they read:
 * the packed batch, copies of blocks, and which rows go through the head. They choose no tokens. Both sides are programs of
 * one build, so the bytes are structures as they lie.
 */
#ifndef NRD_ENGINE_RUN_STEP_BYTES_H
#define NRD_ENGINE_RUN_STEP_BYTES_H

#include "engine/run/runner_internal.h"

/* Rows [at, at + n) of the step whose logits, or states, rank 0 reads beside the choices'. */
typedef struct nrd_row_range {
    int32_t at, n;
    bool of_states; /* only with pipeline stages: else rank 0 has them */
} nrd_row_range;

typedef struct nrd_step_head {
    nrd_graph_shape pad; /* rows 0: the step is not padded; else its stride is the shape's */
    int32_t pad_ctx;
    bool ahead;                /* it is recorded now */
    bool from_tables;          /* nrd_batch.from_tables */
    nrd_batch_sizes sizes;
    int32_t max_q_len, max_ctx_len, n_single, n_moves, n_copies, n_ranges;
    int32_t sight_words; /* of a row of the mask that pictures in prompts have; 0: there is none */
    int32_t n_places; /* numbers of what nrd_run_pictures_follow takes */
    int32_t n_takes;
    int32_t cross_max_ctx;
    int64_t single_ctx, prompt_pairs, cross_single_ctx, cross_prompt_pairs;
} nrd_step_head;

/* Where the parts behind the head begin. */
typedef struct nrd_step_layout {
    size_t batch, moves, copies, sight, places, takes, ranges, end;
} nrd_step_layout;

/* n_sight: words of that mask. */
nrd_step_layout nrd_step_lay_out(size_t batch_bytes, size_t n_moves, size_t n_copies, size_t n_ranges, size_t n_sight, size_t n_places,
                                 size_t n_takes);

#endif
