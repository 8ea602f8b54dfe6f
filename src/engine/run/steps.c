/* SPDX-License-Identifier: Apache-2.0
 * One step: pack the plan, copy blocks, run the layers, choose, download.
 *
 * Steps with a choice behind every token, those of drafts with them, are filled up to one of few shapes (graphs.h)
 * and recorded as a graph, which the device then runs without the host asking for each operation. All
 * others, and a shape's first step, are enqueued operation by operation. */
#include "engine/run/blocks.h"
#include "engine/run/head.h"
#include "engine/run/network.h"
#include "engine/run/operations.h"
#include "engine/run/steps.h"

bool nrd_run_pad(const nrd_runner *r, int32_t n, int32_t n_tokens, int32_t longest, int32_t ctx, nrd_batch_pad *pad)
{
    const int32_t max_tokens = r->cfg.max_tokens < nrd_run_max_rows(r) ? r->cfg.max_tokens : nrd_run_max_rows(r);
    if (r->graphs.cap == 0) {
        return false;
    }
    pad->shape = nrd_graphs_shape(n, n_tokens, longest, r->cfg.max_entries, max_tokens);
    pad->tree_words = 0;
    pad->ctx = nrd_graphs_ctx(ctx, r->cfg.max_context);
    pad->stride = (pad->ctx + r->cfg.block_tokens - 1) / r->cfg.block_tokens;
    /* Steps of both buffers use one block and one array of results: the stream orders them, so that
     * a graph serves both. */
    pad->mem = r->batch[0].mem;
    return pad->shape.rows > 0 && pad->stride <= r->max_blocks;
}

/* Whether there is a choice behind every new token; then also the shape to fill up to. */
static bool recordable(const nrd_runner *r, const nrd_plan *p, nrd_batch_pad *pad)
{
    int32_t longest = 1, ctx = 1;
    if (p->n_rows != p->n_tokens || nrd_batch_has_prompts(p)) {
        return false;
    }
    for (int32_t i = 0; i < p->n_entries; i++) {
        const nrd_plan_entry *e = &p->entries[i];
        if (e->n_draft != e->n - 1 || e->row < 0 || (r->pictures && e->seq->req.n_cross > 0) ||
            ((e->seq->run.want_context_rows || e->seq->run.context_row >= e->start) && e->start < e->seq->req.n_prompt)) {
            return false;
        }
        longest = e->n > longest ? e->n : longest;
        ctx = e->start + e->n > ctx ? e->start + e->n : ctx;
    }
    if (!nrd_run_pad(r, p->n_entries, p->n_tokens, longest, ctx, pad)) {
        return false;
    }
    pad->tree_words = nrd_batch_tree_words(p);
    return true;
}

/* Masks that are still being made are waited for here, with the logits under way. A device that
 * runs what is enqueued only when it is waited for must begin now. */
static nrd_error *finish_masks(nrd_runner *r, nrd_batch *b)
{
    if (b->masks.pending && r->shared) {
        NRD_TRY(r->dev->ops->stream_sync(r->stream));
    }
    return nrd_masks_finish(&b->masks, r->stream, r->mask_worker);
}

nrd_error *nrd_run_tell_choices(nrd_runner *r)
{
    nrd_broadcast_args a = {
        .comm = r->comm,
        .x = r->slot_tokens,
        .bytes = (int64_t)r->cfg.max_entries * (int64_t)sizeof *r->slot_tokens,
    };
    return r->comm && r->dev->ops->broadcast ? r->dev->ops->broadcast(r->stream, &a) : NULL;
}

typedef struct step_of {
    nrd_runner *r;
    nrd_batch *b;
} step_of;

static nrd_error *padded_step(void *user)
{
    nrd_runner *r = ((step_of *)user)->r;
    nrd_batch *b = ((step_of *)user)->b;

    NRD_TRY(nrd_run_layers(r, b));
    if (b->two_steps) {
        return nrd_run_head_choose(r, b->view.n_tokens, nrd_run_head_adds_delta(r), b, &r->out[0]);
    }
    NRD_TRY(nrd_run_head(r, b->view.n_tokens, nrd_run_head_adds_delta(r), b->row_ids, b->n_rows));
    if (r->cfg.rank.rank == 0) {
        NRD_TRY(finish_masks(r, b));
        NRD_TRY(nrd_run_choose(r, b, &r->out[0]));
    }
    return nrd_run_tell_choices(r);
}

/* A step whose masks are not ready runs as it is: a graph would have to wait for them as a whole. */
nrd_error *nrd_run_padded(nrd_runner *r, nrd_batch *b, const nrd_batch_pad *pad, bool at_once, bool *is_recording)
{
    const nrd_graph_key key = {
        .shape = pad->shape,
        .tree_words = pad->tree_words,
        .ctx = pad->ctx,
        .n_top = b->n_top,
        .two_steps = b->two_steps,
        .adapter_rank = b->token_slot ? r->bank.max_rank : 0,
        .banned = b->n_banned > 0 ? b->banned_mem : NULL,
        .counts = r->counts.rows,
    };
    const nrd_graphs_how how = r->marked || b->masks.pending ? NRD_GRAPHS_AS_IT_IS
                               : at_once                     ? NRD_GRAPHS_AT_ONCE
                                                             : NRD_GRAPHS_IF_AGAIN;
    step_of step = {r, b};
    return nrd_graphs_run(&r->graphs, &key, how, padded_step, &step, is_recording);
}

static nrd_error *init_counts(nrd_runner *r, const nrd_plan *p)
{
    for (int32_t i = 0; i < p->n_entries; i++) {
        if (p->entries[i].init_counts) {
            NRD_TRY(nrd_run_init_counts(r, &p->entries[i]));
        }
    }
    return NULL;
}

/* The first stage's part, done when this returns, so that the others can begin. Masks are waited for here: the
 * steps that are concluded before this one use the same guides. */
static nrd_error *first_stage(nrd_runner *r, const nrd_plan *p, int32_t buffer)
{
    r->submitted[buffer] = p;
    NRD_TRY(nrd_run_layers(r, &r->batch[buffer]));
    NRD_TRY(r->dev->ops->stream_sync(r->stream));
    return finish_masks(r, &r->batch[buffer]);
}

/* Counts are filled only now: a step before this one may have chosen for the slot's last owner. */
nrd_error *nrd_run_conclude(nrd_runner *r, int32_t buffer)
{
    const nrd_plan *p = r->submitted[buffer];
    const nrd_batch *b = &r->batch[buffer];
    nrd_outputs *o = &r->out[buffer];
    bool has_delta = false;

    NRD_TRY(nrd_run_context_rows(r, p, &has_delta));
    NRD_TRY(nrd_run_pool(r, p, &o->pooled, &has_delta));
    NRD_TRY(init_counts(r, p));
    if (b->n_rows > 0) {
        NRD_TRY(nrd_run_head(r, p->n_tokens, has_delta, b->row_ids, b->n_rows));
        NRD_TRY(nrd_run_keep_choices(r, p, o));
        NRD_TRY(nrd_run_choose(r, b, o));
        NRD_TRY(nrd_run_download(r, b, o, o->mem));
    }
    return r->dev->ops->event_record(r->stream, o->done);
}

nrd_error *nrd_run_enqueue(nrd_runner *r, const nrd_plan *p, int32_t buffer)
{
    nrd_batch *b = &r->batch[buffer];
    nrd_outputs *o = &r->out[buffer];
    nrd_batch_pad pad;
    bool has_delta, padded = recordable(r, p, &pad);

    o->n_rows = o->n_top = o->n_kept = o->pooled.n = 0;
    o->is_recording = false;
    NRD_TRY(nrd_batch_fill(b, r->stream, p, padded ? &pad : NULL, r->mask_worker));
    NRD_TRY(nrd_run_share(r, p, b, padded ? &pad : NULL, false));
    NRD_TRY(nrd_run_copy_blocks(r, p));
    NRD_TRY(nrd_run_take_blocks(r, p));
    NRD_TRY(nrd_run_copy_states(r, p, true));
    if (r->encoder) {
        NRD_TRY(nrd_run_encode(r, p));
    } else if (r->pictures) {
        NRD_TRY(nrd_run_pictures_fill(r, p));
    }
    if (nrd_run_is_staged(r)) {
        return first_stage(r, p, buffer);
    }
    NRD_TRY(init_counts(r, p));
    b->two_steps = b->n_rows > 0 && nrd_run_only_chosen(r, p, b) && nrd_run_takes_two_steps(r, b);
    NRD_TRY(nrd_run_mark(r, NRD_PROFILE_UPLOAD, 1, (double)b->n_bytes, 0));
    if (padded) {
        NRD_TRY(nrd_run_padded(r, b, &pad, false, &o->is_recording));
        NRD_TRY(nrd_run_copy_states(r, p, false));
        NRD_TRY(nrd_run_keep_choices(r, p, o));
        return nrd_run_download(r, b, o, r->out[0].mem);
    }
    NRD_TRY(nrd_run_layers(r, b));
    has_delta = nrd_run_head_adds_delta(r);
    NRD_TRY(nrd_run_copy_states(r, p, false));
    NRD_TRY(nrd_run_context_rows(r, p, &has_delta));
    NRD_TRY(nrd_run_context_row(r, p, b, &has_delta));
    NRD_TRY(nrd_run_pool(r, p, &o->pooled, &has_delta));
    if (b->n_rows > 0 && nrd_run_only_chosen(r, p, b)) {
        NRD_TRY(nrd_run_head_choose(r, b->view.n_tokens, has_delta, b, o));
        NRD_TRY(nrd_run_download(r, b, o, o->mem));
    } else if (b->n_rows > 0) {
        NRD_TRY(nrd_run_head(r, b->view.n_tokens, has_delta, b->row_ids, b->n_rows));
        NRD_TRY(nrd_run_keep_choices(r, p, o));
        NRD_TRY(finish_masks(r, b));
        NRD_TRY(nrd_run_choose(r, b, o));
        NRD_TRY(nrd_run_tell_choices(r));
        NRD_TRY(nrd_run_download(r, b, o, o->mem));
    }
    return NULL;
}
