/* SPDX-License-Identifier: Apache-2.0
 * What the other ranks do with a step that rank 0 tells them. */
#include "engine/run/step_bytes.h"
#include "engine/run/blocks.h"
#include "engine/run/head.h"
#include "engine/run/network.h"
#include "engine/run/steps.h"

#include <string.h>

/* The batch's arrays as rank 0 packed them, to `mem` on the device. */
static nrd_error *take_batch(nrd_runner *r, nrd_batch *b, const nrd_step_head *h, const uint8_t *arrays, uint8_t *mem)
{
    nrd_batch_lay_out(b, &h->sizes, mem);
    b->view.max_q_len = h->max_q_len;
    b->view.max_ctx_len = h->max_ctx_len;
    b->view.n_single = h->n_single;
    b->view.single_ctx = h->single_ctx;
    b->view.prompt_pairs = h->prompt_pairs;
    b->from_tables = h->from_tables;
    b->cross.max_q_len = h->max_q_len;
    b->cross.n_single = h->n_single;
    b->cross.max_ctx_len = h->cross_max_ctx;
    b->cross.single_ctx = h->cross_single_ctx;
    b->cross.prompt_pairs = h->cross_prompt_pairs;
    memcpy(b->host, arrays, b->n_bytes);
    return r->shared ? NULL : r->dev->ops->copy(r->stream, mem, b->host, b->n_bytes);
}

/* Prompts' blocks that another engine computed, into those that the packed batch names; mem: where it goes on the device. */
static nrd_error *take_shares(nrd_runner *r, const nrd_batch *b, const nrd_step_head *h,
                              const uint8_t *mem, const uint8_t *takes)
{
    const int32_t *table =
        (const int32_t *)(const void *)(b->host + ((const uint8_t *)b->view.block_table - mem));

    for (int32_t i = 0; i < h->n_takes; i++) {
        nrd_kv_take take;
        memcpy(&take, takes + (size_t)i * sizeof take, sizeof take);
        if (take.entry < 0 || take.entry >= h->sizes.n_entries || take.first < 0 ||
            take.n_blocks > h->sizes.stride) {
            return nrd_errorf(NRD_ERR_INTERNAL, "a step takes %d blocks for sequence %d",
                              take.n_blocks, take.entry);
        }
        NRD_TRY(nrd_run_take_share(r, &take, table + (size_t)take.entry * (size_t)h->sizes.stride));
    }
    return NULL;
}

/* Layers and head, as rank 0 runs them, but for the choices. Head and states are the last stage's. */
static nrd_error *compute(nrd_runner *r, nrd_batch *b, const nrd_step_head *h, const uint8_t *ranges)
{
    NRD_TRY(nrd_run_layers(r, b));
    bool has_delta = nrd_run_head_adds_delta(r);
    if (!r->is_last) {
        return NULL;
    }
    for (int32_t i = 0; i < h->n_ranges; i++) {
        nrd_row_range range;
        memcpy(&range, ranges + (size_t)i * sizeof range, sizeof range);
        NRD_TRY(nrd_run_head_rows(r, h->sizes.n_tokens, range.of_states, range.at, range.n, &has_delta));
    }
    if (h->sizes.n_rows == 0) {
        return NULL;
    }
    NRD_TRY(nrd_run_head(r, h->sizes.n_tokens, has_delta, b->row_ids, h->sizes.n_rows));
    return nrd_run_tell_choices(r);
}

/* Several steps may be under way, as in rank 0. */
static nrd_error *follow(nrd_runner *r, const nrd_step_head *h, const uint8_t *step, const nrd_step_layout *l)
{
    const nrd_device_ops *ops = r->dev->ops;
    const uint32_t buffer = r->n_followed++ % (uint32_t)r->n_buffers;
    nrd_batch *b = &r->batch[buffer];
    nrd_plan copies = {.moves = (int32_t(*)[2])(uintptr_t)(step + l->moves),
                       .n_moves = h->n_moves,
                       .copies = (int32_t(*)[2])(uintptr_t)(step + l->copies),
                       .n_copies = h->n_copies};
    nrd_batch_pad pad = {.shape = h->pad,
                         .tree_words = h->sizes.tree_words,
                         .ctx = h->pad_ctx,
                         .stride = h->sizes.stride,
                         .mem = r->batch[0].mem};

    if (r->n_followed > (uint32_t)r->n_buffers) {
        NRD_TRY(ops->event_wait(r->out[buffer].done)); /* its arrays are read until then */
    }
    uint8_t *mem = h->pad.rows > 0 ? pad.mem : b->mem;
    NRD_TRY(take_batch(r, b, h, step + l->batch, mem));
    NRD_TRY(nrd_batch_take_sight(b, r->stream, (const uint32_t *)(const void *)(step + l->sight), h->sight_words));
    NRD_TRY(nrd_run_copy_blocks(r, &copies));
    NRD_TRY(take_shares(r, b, h, mem, step + l->takes));
    NRD_TRY(nrd_run_pictures_follow(r, (const int32_t *)(const void *)(step + l->places), (size_t)h->n_places));
    if (h->pad.rows > 0 && r->graphs.cap > 0) {
        NRD_TRY(nrd_run_padded(r, b, &pad, h->ahead, NULL));
    } else {
        NRD_TRY(compute(r, b, h, step + l->ranges));
    }
    NRD_TRY(ops->event_record(r->stream, r->out[buffer].done));
    return r->shared ? ops->stream_sync(r->stream) : NULL; /* where nothing runs before it is waited for */
}

nrd_error *nrd_runner_follow(nrd_runner *r, const void *step, size_t bytes)
{
    nrd_step_head h;

    if (bytes < sizeof h) {
        return nrd_errorf(NRD_ERR_INTERNAL, "a step of %zu bytes", bytes);
    }
    memcpy(&h, step, sizeof h);
    size_t batch = nrd_batch_layout_bytes(&h.sizes);
    nrd_step_layout l = nrd_step_lay_out(batch, (size_t)h.n_moves, (size_t)h.n_copies, (size_t)h.n_ranges,
                            (size_t)h.sizes.n_tokens * (size_t)h.sight_words, (size_t)h.n_places,
                            (size_t)h.n_takes);
    if (l.end > bytes || batch > r->batch[0].cap_bytes) {
        return nrd_errorf(NRD_ERR_INTERNAL, "a step of %zu bytes says that it has %zu", bytes, l.end);
    }
    return follow(r, &h, step, &l);
}
