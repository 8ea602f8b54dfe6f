/* SPDX-License-Identifier: Apache-2.0
 * engine/run/batch_internal.h - a batch from the inside, for the files that fill it.
 *
 *   batch.c         memory, tokens, choices, padding, upload
 *   batch_cross.c   the same tokens beside the states of encoders or pictures
 *   batch_sight.c   what tokens see in steps with pictures in prompts
 *
 * All of it belongs to the engine loop thread.
 */
#ifndef NRD_ENGINE_RUN_BATCH_INTERNAL_H
#define NRD_ENGINE_RUN_BATCH_INTERNAL_H

#include "engine/run/batch.h"

/* Where each array begins in a batch's block, in bytes; `end` is the size of all. */
typedef struct nrd_batch_layout {
    size_t ids, positions, axes, token_seq, token_slot, types, tree, q_start, ctx_len, state_slot, row_ids, rows, prompts, table, end;
    size_t cross_positions, cross_seq, cross_start, cross_ctx, cross_table, cross_place;
} nrd_batch_layout;

/* Sequences of the view of states, at most: tokens of one that see other pictures are one of their own. */
int32_t nrd_batch_most_cross(const nrd_batch_limits *lim);
/* … of a plan, before it is filled up; 0: nobody reads states in this step. */
int32_t nrd_batch_count_cross(const nrd_batch *b, const nrd_plan *p);
/* b->cross has the view's tokens, and its own arrays at `mem` on the device, with `stride` blocks of each sequence. */
void nrd_batch_point_to_cross(nrd_batch *b, const nrd_batch_layout *l, int32_t stride, uint8_t *mem);
/* The same, and fills them, padding too; behind b->view. */
void nrd_batch_fill_cross(nrd_batch *b, const nrd_plan *p, const nrd_batch_layout *l, const nrd_batch_pad *pad, uint8_t *mem);

/* Fills and uploads the mask of a plan with pictures in prompts; does nothing for others. UNAVAILABLE: no memory. */
nrd_error *nrd_batch_make_sight(nrd_batch *b, nrd_stream *s, const nrd_plan *p) NRD_MUST_USE;
void nrd_batch_free_sight(nrd_batch *b);

#endif
