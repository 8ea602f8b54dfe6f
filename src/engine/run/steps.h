/* SPDX-License-Identifier: Apache-2.0
 * engine/run/steps.h - what a step does around the network: cache, encoder, pictures, other ranks.
 *
 * Owner     The engine loop thread.
 * Errors    Those of a step mean that the device is lost, or another rank.
 */
#ifndef NRD_ENGINE_RUN_STEPS_H
#define NRD_ENGINE_RUN_STEPS_H

#include "engine/run/runner_internal.h"

/* ---- request_tables.c ---- */

/* Rows of prompt tables are n embeddings longer from now on: they add them behind the first n layers. UNSUPPORTED: not here. */
nrd_error *nrd_run_take_deep_rows(nrd_runner *r, int32_t n) NRD_MUST_USE;

/* ---- encoder.c ---- */

/* Opens cfg.encoder beside the runner. INVALID_ARG where the two do not belong together. */
nrd_error *nrd_run_encoder_init(nrd_runner *r) NRD_MUST_USE;
void nrd_run_encoder_fini(nrd_runner *r);
/* Runs the encoder for the plan's entries that need it, and fills their places in the cache. Waits. */
nrd_error *nrd_run_encode(nrd_runner *r, const nrd_plan *p) NRD_MUST_USE;

/* ---- picture_layers.c ---- */

nrd_error *nrd_run_pictures_init(nrd_runner *r) NRD_MUST_USE;
void nrd_run_pictures_fini(nrd_runner *r);
/* Fills the places that the plan's entries have for their pictures. Waits where there are any. */
nrd_error *nrd_run_pictures_fill(nrd_runner *r, const nrd_plan *p) NRD_MUST_USE;
/* Which places these are, for other ranks: so many numbers, at most NRD_RUN_PLACES a token of the step. out NULL: counts them. */
enum { NRD_RUN_PLACES = 5 };
size_t nrd_run_pictures_list(const nrd_runner *r, const nrd_plan *p, int32_t *out);
/* The same in a rank that has no states of its own. INTERNAL: the list is none. */
nrd_error *nrd_run_pictures_follow(nrd_runner *r, const int32_t *list, size_t n) NRD_MUST_USE;

/* ---- parcel.c ---- */

/* Behind nrd_run_copy_blocks, which saves what was in the blocks before. */
nrd_error *nrd_run_take_blocks(nrd_runner *r, const nrd_plan *p) NRD_MUST_USE;
/* The same for other ranks: blocks [first, n_blocks) of a packed sequence come from the place. */
typedef struct nrd_kv_take {
    int32_t entry, first, n_blocks;
    nrd_parcel_place place;
} nrd_kv_take;
int32_t nrd_run_list_takes(const nrd_plan *p,
                           nrd_kv_take *out); /* so many; out NULL: counts them */
/* blocks: [n_blocks] of that sequence's table. An error means that this rank is lost. Waits. */
nrd_error *nrd_run_take_share(nrd_runner *r, const nrd_kv_take *take,
                              const int32_t *blocks) NRD_MUST_USE;

/* ---- steps.c ---- */

/* The shape that a recorded step of n sequences with n_tokens, the longest with so many, and contexts up to `ctx` is filled up
 * to; false: such steps are not recorded. */
bool nrd_run_pad(const nrd_runner *r, int32_t n, int32_t n_tokens, int32_t longest, int32_t ctx, nrd_batch_pad *pad);
/* The padded step packed in b, recorded where its shape comes again, or at once. is_recording: as nrd_graphs_run has it. */
nrd_error *nrd_run_padded(nrd_runner *r, nrd_batch *b, const nrd_batch_pad *pad, bool at_once, bool *is_recording) NRD_MUST_USE;
/* What rank 0 chose, to the other ranks, where steps are enqueued before the host knows it. */
nrd_error *nrd_run_tell_choices(nrd_runner *r) NRD_MUST_USE;

nrd_error *nrd_run_enqueue(nrd_runner *r, const nrd_plan *p, int32_t buffer) NRD_MUST_USE;

/* The rest of a staged step: rank 0 gets logits and chooses. */
nrd_error *nrd_run_conclude(nrd_runner *r, int32_t buffer) NRD_MUST_USE;

/* ---- stages.c ---- */

/* Where rank 0 is not on the last stage: rows of `width` floats from there, into the memory of the logits. */
nrd_error *nrd_run_hear_rows(nrd_runner *r, int32_t n_rows, size_t width) NRD_MUST_USE;
/* The other side: rows of the memory of logits, `stride` floats apart. Nothing where rank 0 is on the last stage. */
nrd_error *nrd_run_tell_rows(nrd_runner *r, int32_t n_rows, size_t width, size_t stride) NRD_MUST_USE;
/* The residual of a step's tokens, from the stage before and to the one behind. */
nrd_error *nrd_run_take_over(nrd_runner *r, int32_t n_tokens) NRD_MUST_USE;
nrd_error *nrd_run_hand_over(nrd_runner *r, int32_t n_tokens) NRD_MUST_USE;

/* ---- share.c ---- */

/* Gives the step that is packed in b to the other ranks. Nothing where this one is alone. pad: the shape it
 * is filled up to, or NULL; ahead: it is recorded now. */
nrd_error *nrd_run_share(nrd_runner *r, const nrd_plan *p, const nrd_batch *b, const nrd_batch_pad *pad,
                         bool ahead) NRD_MUST_USE;

#endif
