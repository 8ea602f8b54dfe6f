/* SPDX-License-Identifier: Apache-2.0
 * What a runner has beside its network, for steps of sequences, and what its owner calls: submit enqueues a step, wait
 * brings its result.
 *
 * There are two batches and two outputs, so that a step may be enqueued while the one before it runs. */
#include "engine/run/runner.h"

#include "engine/run/head.h"
#include "engine/run/network.h"
#include "engine/run/steps.h"

/* Of an encoder or a picture. */
static int32_t most_states(const nrd_runner *r)
{
    return r->spec->cross_attention ? r->cfg.max_encoder_input : r->cfg.max_picture_states;
}

static nrd_error *init(nrd_runner *r)
{
    const nrd_model_spec *m = r->spec;
    nrd_batch_limits bl = {
        .max_tokens = r->cfg.max_tokens,
        .max_entries = r->cfg.max_entries,
        .max_fill = NRD_GRAPHS_FILL,
        .max_rows = nrd_run_max_rows(r),
        .max_blocks = (r->cfg.max_context + r->cfg.block_tokens - 1) / r->cfg.block_tokens + 1,
        .block_tokens = r->cfg.block_tokens,
        .max_cross_blocks = (most_states(r) + r->cfg.block_tokens - 1) / r->cfg.block_tokens,
        .pictures = r->cfg.max_picture_states > 0,
        .vocab = m->vocab,
        .row_bytes = (size_t)m->hidden * r->act_bytes,
        .normalize_log_probs = r->cfg.normalize_log_probs,
        .picture_rows = m->picture_rows,
        .axes = r->ropes.pair_axis != NULL,
        .overlap = !r->cfg.no_overlap && !r->cfg.deterministic,
    };
    NRD_TRY(nrd_mask_worker_new(&r->mask_worker, (size_t)bl.max_rows, r->cfg.on_mask_ready,
                                r->cfg.user));
    for (int i = 0; i < r->n_buffers; i++) {
        NRD_TRY(nrd_batch_init(&r->batch[i], r->dev, &bl));
        NRD_TRY(nrd_run_outputs_init(r, &r->out[i]));
    }
    r->max_blocks = bl.max_blocks;
    if (m->cross_attention) {
        NRD_TRY(nrd_run_encoder_init(r));
    }
    if (r->cfg.max_picture_states > 0) {
        NRD_TRY(nrd_run_pictures_init(r));
    }
    if (r->cfg.profile_every > 0) {
        NRD_TRY(nrd_profile_new(&r->profile, r->dev, r->stream, r->cfg.profile_every,
                                16 + 24 * m->n_layers, r->cfg.profile_spans));
    }
    /* Recorded steps of both buffers share their arrays, which steps that stages have at once cannot; who calibrates is told
     * of a step while it runs. */
    if (r->cfg.no_graphs || r->shared || nrd_run_is_staged(r) || r->cfg.on_input || r->cfg.on_cache) {
        return NULL;
    }
    return nrd_graphs_init(&r->graphs, r->dev, r->stream, r->cfg.max_graphs, r->cfg.on_warning, r->cfg.user);
}

nrd_error *nrd_runner_new(nrd_runner **out, nrd_device *dev, const nrd_engine *engine,
                          const nrd_runner_config *cfg)
{
    nrd_runner *r = NULL;

    *out = NULL;
    NRD_TRY(nrd_run_open(&r, dev, engine, cfg));
    nrd_error *err = init(r);
    if (err) {
        nrd_runner_free(r);
        return err;
    }
    *out = r;
    return NULL;
}

void nrd_runner_free(nrd_runner *r)
{
    if (!r) {
        return;
    }
    if (r->stream) {
        nrd_error_free(r->dev->ops->stream_sync(r->stream));
    }
    nrd_graphs_fini(&r->graphs);
    nrd_profile_free(r->profile);
    nrd_mask_worker_free(r->mask_worker);
    for (int i = 0; i < r->n_buffers; i++) {
        nrd_batch_fini(&r->batch[i]);
        nrd_run_outputs_fini(r, &r->out[i]);
    }
    nrd_run_encoder_fini(r);
    nrd_run_pictures_fini(r);
    nrd_run_close(r);
}

double nrd_runner_tune_seconds(const nrd_runner *r)
{
    return r->tune_seconds;
}

nrd_dtype nrd_runner_kv_dtype(const nrd_runner *r)
{
    return r->kv_dtype;
}

static int32_t filled_up(int32_t n_tokens)
{
    const int32_t rows = nrd_graphs_rows(n_tokens, INT32_MAX);
    return rows > 0 ? rows : n_tokens;
}

int32_t (*nrd_runner_filled_up(const nrd_runner *r))(int32_t n_tokens)
{
    return r->graphs.cap > 0 ? filled_up : NULL;
}

int32_t nrd_runner_common_window(const nrd_runner *r)
{
    return r->common_window;
}

nrd_error *nrd_runner_submit(nrd_runner *r, const nrd_plan *p, int32_t buffer)
{
    bool by_op = false;
    NRD_TRY(nrd_profile_begin(r->profile, buffer, p->n_entries, p->n_tokens, &by_op));
    r->marked = by_op ? p : NULL;
    nrd_error *err = nrd_run_enqueue(r, p, buffer);
    r->marked = NULL;
    NRD_TRY(err);
    NRD_TRY(nrd_profile_end(r->profile, buffer));
    return r->dev->ops->event_record(r->stream, r->out[buffer].done);
}

void nrd_runner_profile(nrd_runner *r, nrd_profile_sums *out, bool reset)
{
    nrd_profile_read(r->profile, out, reset);
}

int32_t nrd_runner_spans(nrd_runner *r, nrd_profile_span *out, int32_t first, int32_t max)
{
    return r->profile ? nrd_profile_spans(r->profile, out, first, max) : 0;
}

nrd_error *nrd_runner_wait(nrd_runner *r, int32_t buffer, nrd_step_result *out)
{
    nrd_outputs *o = &r->out[buffer];
    if (nrd_run_is_staged(r)) {
        NRD_TRY(nrd_run_conclude(r, buffer));
    }
    NRD_TRY(r->dev->ops->event_wait(o->done));
    NRD_TRY(nrd_profile_done(r->profile, buffer));
    *out = (nrd_step_result){
        .ids = (const int32_t *)(const void *)o->host,
        .log_probs = (const float *)(const void *)(o->host + o->off_log_probs),
        .log_probs_norm = (const float *)(const void *)(o->host + o->off_norm),
        .n_top = o->n_top,
        .top_ids = (const int32_t *)(const void *)(o->host + o->off_top_ids),
        .top_log_probs = (const float *)(const void *)(o->host + o->off_top_log_probs),
        .normalize = r->cfg.normalize_log_probs,
        .logits = o->n_kept > 0 ? o->logits : NULL,
        .logits_stride = (int64_t)r->logit_cols,
        .was_recorded = o->is_recording,
        .no_choice = r->batch[buffer].masks.n_no_choice > 0 ? r->batch[buffer].masks.no_choice : NULL,
    };
    nrd_run_tell_pooled(r, &o->pooled);
    for (int32_t i = 0; i < o->n_kept; i++) {
        const nrd_kept_choice *k = &o->kept[i];
        if (k->tree && !nrd_tree_holds(k->tree, out->ids + k->root, k->row - k->root - 1)) {
            continue;
        }
        r->cfg.on_choice_row(r->cfg.user, k->seq, k->beam, k->n_generated,
                             o->logits + (size_t)k->row * r->logit_cols);
    }
    return NULL;
}
