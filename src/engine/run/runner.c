/* SPDX-License-Identifier: Apache-2.0
 * The runner's creation and end, and what its owner calls: submit enqueues a step, wait brings its
 * result.
 *
 * There are two batches and two outputs, so that a step may be enqueued while the one before it
 * runs. Whatever the engine, the device and the configuration leave open (types, windows, graphs)
 * is settled here. */
#include "engine/run/runner.h"

#include "base/dtype.h"
#include "base/mem.h"
#include "engine/run/runner_internal.h"

#include <string.h>

enum { BARE_BLOCK_TOKENS = 64 }; /* what engines have that say nothing */

static nrd_error *init_windows(nrd_runner *r)
{
    const nrd_model_spec *m = r->spec;
    const int32_t first = nrd_spec_first_layer(r->model, r->cfg.rank.rank);
    nrd_error *err = NULL;
    NRD_NEW_GOTO(r->layer_window, m->n_layers, err, fail);
    r->common_window = INT32_MAX;
    /* Which blocks sequences keep is decided for the layers of all stages. */
    for (int32_t i = 0; i < r->model->n_layers; i++) {
        int32_t w = r->model->layer_is_sliding[i] ? m->sliding_window : 0, own = i - first;
        int32_t asked = r->cfg.windows ? r->cfg.windows[i % r->cfg.n_windows] : 0;
        if (asked > 0 && asked < r->cfg.max_context && (w == 0 || asked < w)) {
            w = asked;
        }
        if (own >= 0 && own < m->n_layers) {
            r->layer_window[own] = w;
        }
        if (w == 0) {
            r->common_window = 0;
        } else if (r->common_window > 0 && w > r->common_window) {
            r->common_window = w;
        } else if (r->common_window == INT32_MAX) {
            r->common_window = w;
        }
    }
    if (r->common_window == INT32_MAX) {
        r->common_window = 0;
    }
    r->cfg.windows = NULL;
fail:
    return err;
}

/* Of two 16-bit types the cache takes that of the activations: attention multiplies the two. */
static nrd_dtype kv_default(nrd_dtype act, nrd_dtype device)
{
    bool act16 = act == NRD_DTYPE_F16 || act == NRD_DTYPE_BF16;
    bool device16 = device == NRD_DTYPE_F16 || device == NRD_DTYPE_BF16;
    return act16 && device16 ? act : device;
}

nrd_error *nrd_runner_check_ranks(const nrd_device *dev, const nrd_model_spec *m)
{
    if (m->tp_size * m->pp_size > 1 && !dev->ops->comm_open) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "tp_size %d, pp_size %d: this device works alone; use the device "
                                               "\"cpu\", or an engine of one rank",
                          m->tp_size, m->pp_size);
    }
    if (m->tp_size > 1 && m->qk_norm_wide && !dev->ops->head_squares) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "tp_size %d: this device has no norm of q and k over heads that ranks share; use "
                                               "the device \"cpu\", or an engine of one rank", m->tp_size);
    }
    if (m->pp_size > 1 && !dev->ops->send) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "pp_size %d: this device has no pipeline stages (send, receive); use "
                                               "the device \"cpu\", or divide the model by tp_size",
                          m->pp_size);
    }
    return NULL;
}

static nrd_error *open_comm(nrd_runner *r)
{
    const nrd_device_ops *ops = r->dev->ops;
    const nrd_runner_rank *rank = &r->cfg.rank;
    nrd_comm_config cc = nrd_runner_comm_config(r->model, &r->cfg);

    if (rank->size <= 1) {
        return NULL;
    }
    cc.rank = rank->rank;
    cc.shared = rank->shared;
    cc.far = rank->far;
    cc.by_library = nrd_engine_limits(r->engine)->nccl_all_reduce;
    NRD_TRY(nrd_runner_check_ranks(r->dev, r->model));
    return ops->comm_open(r->dev, &cc, &r->comm);
}

/* A row of logits: of the last stage's ranks together; rank 0 gets them without padding. */
static size_t logit_cols(const nrd_runner *r)
{
    if (r->spec->embed_width > 0) { /* there is no head: rows of states stand there (pooled.c) */
        return (size_t)r->spec->hidden;
    }
    if (r->is_last) {
        return (size_t)r->w.lm_head.rows * (size_t)r->model->tp_size;
    }
    return r->cfg.rank.rank == 0 ? (size_t)r->model->vocab : 0;
}

static void choose_act(nrd_runner *r, const nrd_device_info *info)
{
    r->shared = info->host_is_device;
    r->act = r->cfg.compute_f32 ? NRD_DTYPE_F32 : r->spec->dtype;
    if (!r->cfg.compute_f32 && (r->spec->dtype == NRD_DTYPE_F32 || r->shared)) {
        r->act = info->act_dtype;
    }
    r->act_bytes = nrd_dtype_block_bytes(r->act);
}

/* Of an encoder or a picture. */
static int32_t most_states(const nrd_runner *r)
{
    return r->spec->cross_attention ? r->cfg.max_encoder_input : r->cfg.max_picture_states;
}

static nrd_error *init(nrd_runner *r)
{
    const nrd_device_ops *ops = r->dev->ops;
    const nrd_model_spec *m = r->spec;
    const nrd_build_limits *lim = nrd_engine_limits(r->engine);
    nrd_device_info info;

    NRD_TRY(nrd_run_check_features(r));
    NRD_TRY(nrd_run_check_inputs(r));
    ops->get_info(r->dev, &info);
    choose_act(r, &info);
    r->kv_dtype = r->cfg.kv_dtype != NRD_DTYPE_NONE ? r->cfg.kv_dtype
                  : r->cfg.compute_f32              ? NRD_DTYPE_F32
                  : lim->kv_dtype != NRD_DTYPE_NONE ? lim->kv_dtype
                  : m->encoder                      ? r->act /* its keys live for one step: nothing to save */
                                                    : kv_default(r->act, info.kv_dtype);
    if (nrd_spec_kv_layers(m) > 0 && ops->kv_block_bytes(r->dev, r->kv_dtype, 1, 1, 16) == 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "this device ('%s') has no KV cache of type %s; build the engine with another --kv_cache_dtype",
                          info.name, nrd_dtype_name(r->kv_dtype));
    }
    r->stream = r->cfg.stream;
    if (!r->stream) {
        NRD_TRY(ops->stream_new(r->dev, &r->stream));
    }
    NRD_TRY(open_comm(r));
    nrd_weights_config wc = {.act_dtype = r->act,
                             .kv_dtype = r->kv_dtype,
                             .compute_f32 = r->cfg.compute_f32,
                             .streamed_share = r->cfg.streamed_share,
                             .rank = r->cfg.rank.rank};
    NRD_TRY(nrd_run_advised(nrd_weights_load(&r->w, r->stream, r->dev, r->engine, &wc), "weights"));
    NRD_TRY(nrd_run_advised(nrd_run_init_rough_head(r), "weights"));
    r->logit_cols = logit_cols(r);
    NRD_TRY(nrd_run_init_rope(r, &m->rope, &r->inv_freq, &r->rope_scale));
    NRD_TRY(nrd_run_init_rope(r, &m->rope_local, &r->inv_freq_local, &r->rope_scale_local));
    NRD_TRY(nrd_run_init_pair_axis(r));
    NRD_TRY(nrd_run_init_alibi(r));
    NRD_TRY(nrd_run_init_rel_bias(r));
    NRD_TRY(init_windows(r));
    NRD_TRY(nrd_run_init_stretches(r));
    NRD_TRY(nrd_run_init_activations(r));
    NRD_TRY(nrd_run_init_taps(r));
    NRD_TRY(nrd_run_tune(r));
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
        .axes = r->pair_axis != NULL,
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
    /* Recorded steps of both buffers share their arrays, which steps that stages have at once cannot. */
    if (r->cfg.no_graphs || r->shared || nrd_run_is_staged(r)) {
        return NULL;
    }
    return nrd_graphs_init(&r->graphs, r->dev, r->stream, r->cfg.max_graphs, r->cfg.on_warning, r->cfg.user);
}

int32_t nrd_runner_n_buffers(const nrd_model_spec *model)
{
    const int32_t n = model->pp_size < NRD_SCHED_MAX_MICRO ? model->pp_size : NRD_SCHED_MAX_MICRO;
    return n > 2 ? n : 2;
}

nrd_comm_config nrd_runner_comm_config(const nrd_model_spec *model, const nrd_runner_config *cfg)
{
    return (nrd_comm_config){
        .size = model->tp_size * model->pp_size,
        .group = model->tp_size,
        .piece_bytes = (size_t)cfg->max_tokens * (size_t)model->hidden * sizeof(float),
        .n_pieces = nrd_runner_n_buffers(model),
    };
}

nrd_error *nrd_runner_new(nrd_runner **out, nrd_device *dev, const nrd_engine *engine,
                          const nrd_runner_config *cfg)
{
    nrd_error *err = NULL;
    nrd_runner *r = NULL;

    *out = NULL;
    NRD_NEW_GOTO(r, 1, err, fail);
    r->dev = dev;
    r->engine = engine;
    r->model = nrd_engine_spec(engine);
    r->own = nrd_spec_of_rank(r->model, cfg->rank.rank);
    r->spec = &r->own;
    r->cfg = *cfg;
    r->is_first = nrd_spec_is_first(r->model, cfg->rank.rank);
    r->is_last = nrd_spec_is_last(r->model, cfg->rank.rank);
    r->n_buffers = nrd_runner_n_buffers(r->model);
    NRD_TRY_GOTO(init(r), err, fail);
    *out = r;
    return NULL;

fail:
    nrd_runner_free(r);
    return err;
}

nrd_error *nrd_runner_new_bare(nrd_runner **out, nrd_device *dev, const nrd_runner_bare *bare)
{
    nrd_device_info info;
    nrd_error *err = NULL;
    nrd_runner *r = NULL;

    *out = NULL;
    NRD_NEW_GOTO(r, 1, err, fail);
    r->dev = dev;
    r->own.hidden = bare->hidden;
    r->own.embed_scale = bare->embed_scale;
    r->own.dtype = bare->dtype;
    r->own.n_layers = NRD_SPEC_MAX_LAYERS; /* rows that reach layers (DeepStack): the decoder's own runner knows how many it has */
    r->spec = r->model = &r->own;
    r->cfg.block_tokens = BARE_BLOCK_TOKENS;
    r->cfg.max_entries = 1;
    dev->ops->get_info(dev, &info);
    choose_act(r, &info);
    NRD_TRY_GOTO(dev->ops->stream_new(dev, &r->stream), err, fail);
    *out = r;
    return NULL;

fail:
    nrd_runner_free(r);
    return err;
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
    nrd_run_convolve_fini(r);
    nrd_run_free_kv(r);
    nrd_run_free_activations(r);
    nrd_run_fini_rough_head(r);
    nrd_weights_unload(&r->w);
    if (r->comm) {
        r->dev->ops->comm_close(r->comm);
    }
    if (r->stream && !r->cfg.stream) {
        r->dev->ops->stream_free(r->stream);
    }
    free(r->layer_window);
    free(r->stretches);
    free(r);
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
