/* SPDX-License-Identifier: Apache-2.0
 * A runner as far as its layers run: device, ranks, weights and the memory between operations. Whatever the engine, the
 * device and the configuration leave open (types, windows) is settled here. An encoder is no more than this; runner.c adds
 * what steps of sequences need. */
#include "base/dtype.h"
#include "base/mem.h"
#include "engine/run/blocks.h"
#include "engine/run/network.h"
#include "engine/run/operations.h"
#include "engine/run/steps.h"

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
    NRD_TRY(nrd_run_init_ropes(r));
    NRD_TRY(nrd_run_init_position_bias(r));
    NRD_TRY(init_windows(r));
    NRD_TRY(nrd_run_init_stretches(r));
    nrd_run_init_inputs_of_many(r);
    nrd_run_init_pending(r);
    nrd_run_init_joined(r);
    NRD_TRY(nrd_run_init_activations(r));
    NRD_TRY(nrd_run_init_taps(r));
    return nrd_run_tune(r);
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

nrd_error *nrd_run_open(nrd_runner **out, nrd_device *dev, const nrd_engine *engine, const nrd_runner_config *cfg)
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
    nrd_run_close(r);
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
    nrd_run_close(r);
    return err;
}

void nrd_run_close(nrd_runner *r)
{
    if (!r) {
        return;
    }
    if (r->stream) {
        nrd_error_free(r->dev->ops->stream_sync(r->stream));
    }
    nrd_run_convolve_fini(r);
    nrd_run_free_kv(r);
    nrd_run_free_activations(r);
    nrd_run_free_ropes(r);
    nrd_run_free_position_bias(r);
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
