/* SPDX-License-Identifier: Apache-2.0
 * engine/run/masks.h - which tokens the choices of a step may take, where guides say so.
 *
 * Purpose   A row of bits for each guided choice, made on the host and uploaded as a whole. Behind a draft the guide
 *           stands where the draft's tokens lead to: on a copy of its state, which goes when the mask is there.
 * Owner     A batch (batch.h), refilled with it. The runner's thread.
 * Units     Words of 32 tokens.
 * Life      reserve -> add … -> begin -> (pending: finish) -> the choices are made.
 */
#ifndef NRD_ENGINE_RUN_MASKS_H
#define NRD_ENGINE_RUN_MASKS_H

#include "engine/run/mask_worker.h"
#include "engine/scheduler.h"
#include "nereid/device.h"

typedef struct nrd_guided_row {
    const nrd_seq *seq;
    struct nrd_guide_state *state;
    int32_t row;  /* its place among the choices */
    bool is_copy; /* owned */
} nrd_guided_row;

typedef struct nrd_masks {
    nrd_device *dev;
    bool shared; /* host == mem */
    int32_t vocab, max_rows;
    uint32_t *host, *mem; /* [cap] words */
    size_t cap, n;
    nrd_guided_row *rows; /* [max_rows] in the order of their masks */
    int32_t n_rows;
    struct nrd_guide_state **fresh; /* [max_rows] states whose mask is not known yet */
    int32_t n_fresh;
    bool *no_choice; /* [max_rows] by row: its mask was not ready, what is chosen has no meaning */
    int32_t n_no_choice;
    bool pending; /* the worker makes some; their upload is to come */
} nrd_masks;

nrd_error *nrd_masks_init(nrd_masks *m, nrd_device *dev, bool shared, int32_t vocab, int32_t max_rows) NRD_MUST_USE;
void nrd_masks_fini(nrd_masks *m);
/* Begins anew, with room for the masks of this plan. May wait for the stream. */
nrd_error *nrd_masks_reserve(nrd_masks *m, nrd_stream *s, const nrd_plan *p) NRD_MUST_USE;
/* The mask of choice `row`, behind n_ahead tokens of the sequence's draft: its address on the device, or NULL where the
 * guide does not let these tokens come, so that nobody looks at the choice. */
const uint32_t *nrd_masks_add(nrd_masks *m, const nrd_seq *q, int32_t row, int32_t n_ahead);
/* All are added: the upload is enqueued, or the worker begins with those that are not known (`pending`). */
nrd_error *nrd_masks_begin(nrd_masks *m, nrd_stream *s, nrd_mask_worker *worker) NRD_MUST_USE;
/* Waits for the worker, at most GUIDE_STEP_MS, and enqueues the upload; rows whose mask is not there get no_choice. */
nrd_error *nrd_masks_finish(nrd_masks *m, nrd_stream *s, nrd_mask_worker *worker) NRD_MUST_USE;

#endif
