/* SPDX-License-Identifier: Apache-2.0
 * One step: pack the plan, copy blocks, run the layers, choose, download.
 *
 * Steps in which every sequence has one token, or a draft of one length, are filled up to one of few shapes (graphs.h)
 * and recorded as a graph, which the device then runs without the host asking for each operation. All
 * others, and a shape's first step, are enqueued operation by operation. */
#include "engine/run/runner_internal.h"

bool nrd_run_pad(const nrd_runner *r, int32_t n, int32_t each, int32_t ctx, nrd_batch_pad *pad)
{
    const int32_t tokens = r->cfg.max_tokens < nrd_run_max_rows(r) ? r->cfg.max_tokens : nrd_run_max_rows(r);
    const int32_t max = r->cfg.max_entries < tokens / each ? r->cfg.max_entries : tokens / each;
    if (r->graphs.cap == 0) {
        return false;
    }
    pad->each = each;
    pad->tree_words = 0;
    pad->rows = nrd_graphs_rows(n, max);
    pad->ctx = nrd_graphs_ctx(ctx, r->cfg.max_context);
    pad->stride = (pad->ctx + r->cfg.block_tokens - 1) / r->cfg.block_tokens;
    /* Steps of both buffers use one block and one array of results: the stream orders them, so that
     * a graph serves both. */
    pad->mem = r->batch[0].mem;
    return pad->rows > 0 && pad->stride <= r->max_blocks;
}

/* Whether every sequence has as many new tokens, with a choice behind each; then also the shape to fill up to. */
static bool recordable(const nrd_runner *r, const nrd_plan *p, nrd_batch_pad *pad)
{
    const int32_t each = p->n_entries > 0 ? p->entries[0].n : 1;
    int32_t ctx = each;
    if (p->n_tokens != p->n_entries * each || p->n_rows != p->n_tokens || nrd_batch_has_prompts(p)) {
        return false;
    }
    for (int32_t i = 0; i < p->n_entries; i++) {
        const nrd_plan_entry *e = &p->entries[i];
        if (e->n != each || e->n_draft != each - 1 || e->row < 0 || (r->pictures && e->seq->req.n_cross > 0) ||
            ((e->seq->run.want_context_rows || e->seq->run.context_row >= e->start) && e->start < e->seq->req.n_prompt)) {
            return false;
        }
        ctx = e->start + each > ctx ? e->start + each : ctx;
    }
    if (!nrd_run_pad(r, p->n_entries, each, ctx, pad)) {
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

static nrd_error *padded_step(nrd_runner *r, nrd_batch *b)
{
    NRD_TRY(nrd_run_layers(r, b));
    NRD_TRY(nrd_run_head(r, b->view.n_tokens, nrd_run_head_adds_delta(r), b->row_ids, b->n_rows));
    if (r->cfg.rank.rank == 0) {
        NRD_TRY(finish_masks(r, b));
        NRD_TRY(nrd_run_choose(r, b, &r->out[0]));
    }
    return nrd_run_tell_choices(r);
}

static nrd_error *record(nrd_runner *r, nrd_batch *b, nrd_graph **out)
{
    const nrd_device_ops *ops = r->dev->ops;
    nrd_graph *g = NULL;

    NRD_TRY(ops->graph_begin(r->stream));
    nrd_error *err = padded_step(r, b);
    nrd_error *end = ops->graph_end(r->stream, &g); /* also after an error: recording must end */
    if (err) {
        nrd_error_free(end);
        if (g) {
            ops->graph_free(g);
        }
        return err;
    }
    *out = g;
    return end;
}

static nrd_graph_slot *slot_of(nrd_runner *r, const nrd_batch *b, const nrd_batch_pad *pad,
                               bool *seen)
{
    nrd_graph_key key = {
        .rows = pad->rows,
        .each = pad->each,
        .tree_words = pad->tree_words,
        .ctx = pad->ctx,
        .n_top = b->n_top,
        .adapter_rank = b->token_slot ? r->bank.max_rank : 0,
        .banned = b->n_banned > 0 ? b->banned_mem : NULL,
        .counts = r->counts,
    };
    return nrd_graphs_get(&r->graphs, &key, seen);
}

/* The slot's graph, recorded first where it has none. Where that goes wrong, the step as it is, and
 * no more recording. */
static nrd_error *launch(nrd_runner *r, nrd_batch *b, nrd_graph_slot *slot)
{
    if (!slot->graph) {
        nrd_error *err = record(r, b, &slot->graph);
        if (err) {
            if (r->cfg.on_warning) {
                r->cfg.on_warning(r->cfg.user, nrd_error_message(err));
            }
            nrd_error_free(err);
            NRD_TRY(r->dev->ops->stream_sync(r->stream)); /* graphs may be running */
            nrd_graphs_fini(&r->graphs);
            return padded_step(r, b);
        }
    }
    return r->dev->ops->graph_launch(r->stream, slot->graph);
}

nrd_error *nrd_run_record_and_launch(nrd_runner *r, nrd_batch *b, const nrd_batch_pad *pad)
{
    bool seen = false;
    return launch(r, b, slot_of(r, b, pad, &seen));
}

/* A shape's first step runs as it is: many shapes come once, and recording takes longer than
 * enqueueing. So does one whose masks are not ready: a graph would have to wait for them as a
 * whole. */
nrd_error *nrd_run_replay(nrd_runner *r, nrd_batch *b, const nrd_batch_pad *pad)
{
    bool seen = false;
    nrd_graph_slot *slot = slot_of(r, b, pad, &seen);
    return !seen || r->marked || b->masks.pending ? padded_step(r, b) : launch(r, b, slot);
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
    NRD_TRY(nrd_run_state_rows(r, p, &has_delta));
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
    bool has_delta = nrd_run_head_adds_delta(r), padded = recordable(r, p, &pad);

    o->n_rows = o->n_top = o->n_kept = 0;
    NRD_TRY(nrd_batch_fill(b, r->stream, p, padded ? &pad : NULL, r->mask_worker));
    NRD_TRY(nrd_run_share(r, p, b, padded ? &pad : NULL, false));
    NRD_TRY(nrd_run_copy_blocks(r, p));
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
    NRD_TRY(nrd_run_mark(r, NRD_PROFILE_UPLOAD, 1, (double)b->n_bytes, 0));
    if (padded) {
        NRD_TRY(nrd_run_replay(r, b, &pad));
        NRD_TRY(nrd_run_copy_states(r, p, false));
        NRD_TRY(nrd_run_keep_choices(r, p, o));
        return nrd_run_download(r, b, o, r->out[0].mem);
    }
    NRD_TRY(nrd_run_layers(r, b));
    NRD_TRY(nrd_run_copy_states(r, p, false));
    NRD_TRY(nrd_run_context_rows(r, p, &has_delta));
    NRD_TRY(nrd_run_context_row(r, p, b, &has_delta));
    NRD_TRY(nrd_run_state_rows(r, p, &has_delta));
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
