/* SPDX-License-Identifier: Apache-2.0
 * Opening an executor's parts, in the order in which they need each other. */
#include "executor/internal.h"

#include "base/dtype.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "device/device.h"
#include "executor/draft_model.h"
#include "executor/eagle_model.h"
#include "executor/medusa_model.h"
#include "executor/ranks/launched.h"
#include "executor/redrafter_model.h"
#include "model/spec_recurrent.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static void warn_of_runner(void *user, const char *message)
{
    nrd_exec_log(user, 1, "steps are not recorded as graphs any more: %s", message);
}

/* For snapshots of states. */
static uint64_t state_cache_bytes(const nrd_exec *x)
{
    nrd_device_info di;

    if (!x->cfg.enable_kv_cache_reuse || x->cfg.state_cache_bytes > 0) {
        return x->cfg.enable_kv_cache_reuse ? x->cfg.state_cache_bytes : 0;
    }
    x->dev->ops->get_info(x->dev, &di);
    return nrd_recurrent_cache_bytes(x->spec, x->lim.max_batch_size, di.mem_free_bytes);
}

/* Of weights that are not on the GPU. A CPU's are where they are. */
static double streamed_share(nrd_exec *x)
{
    nrd_device_info di;

    x->dev->ops->get_info(x->dev, &di);
    if (di.host_is_device && x->cfg.gpu_weights_percent < 1) {
        nrd_exec_log(x, 1, "gpu_weights_percent has no effect on a CPU");
    }
    if (di.host_is_device && x->cfg.n_device_ids > 0) {
        nrd_exec_log(x, 1, "gpu_device_ids has no effect on a CPU");
    }
    return di.host_is_device ? 0 : 1 - x->cfg.gpu_weights_percent;
}

/* As many tokens back as each layer sees: a list that the layers take in turn. */
static void tell_windows(const nrd_exec *x)
{
    const int32_t most = x->lim.max_seq_len, n = x->cfg.n_max_attention_window > 0 ? x->cfg.n_max_attention_window : 1;
    nrd_str list = {0};

    for (int32_t i = 0; i < n; i++) {
        const int32_t w = x->cfg.n_max_attention_window > 0 ? x->cfg.max_attention_window[i] : most;
        nrd_str_printf(&list, "%s%d", i ? ", " : "", w > 0 && w < most ? w : most);
    }
    nrd_exec_log(x, 2, "TRTGptModel mMaxAttentionWindowSize: (%s) * %d", nrd_str_cstr(&list), (x->spec->n_layers + n - 1) / n);
    nrd_str_fini(&list);
}

/* In the words of the published backend: where it runs and what its limits are. */
static void tell(const nrd_exec *x, bool has_gpu)
{
    const int32_t n = x->spec->tp_size * x->spec->pp_size;

    nrd_exec_log(x, 2, "MPI size: %d, MPI local size: %d, rank: 0", n, nrd_launched_here(n));
    if (has_gpu) {
        nrd_exec_log(x, 2, "Rank 0 is using GPU %d", x->cfg.n_device_ids > 0 ? x->cfg.device_ids[0] : 0);
    }
    nrd_exec_log(x, 2, "TRTGptModel maxNumSequences: %d", x->lim.max_batch_size);
    nrd_exec_log(x, 2, "TRTGptModel maxBatchSize: %d", x->lim.max_batch_size);
    nrd_exec_log(x, 2, "TRTGptModel maxBeamWidth: %d", x->lim.max_beam_width);
    nrd_exec_log(x, 2, "TRTGptModel maxSequenceLen: %d", x->lim.max_seq_len);
    tell_windows(x);
    nrd_exec_log(x, 2, "TRTGptModel enableTrtOverlap: 0"); /* the parameter has no effect */
    nrd_exec_log(x, 2, "TRTGptModel normalizeLogProbs: %d", x->cfg.normalize_log_probs);
    nrd_exec_log(x, 2, "TRTGptModel maxNumTokens: %d", x->lim.max_num_tokens);
    nrd_exec_log(x, 2, "TRTGptModel maxInputLen: %d", x->lim.max_input_len);
}

static nrd_error *open_runner(nrd_exec *x, const char *engine_dir)
{
    const nrd_build_limits *b = nrd_engine_limits(x->engine);
    int32_t n_slots = nrd_exec_max_entries(x);
    int32_t top = x->lim.max_beam_width > 1 ? 2 * x->lim.max_beam_width : 1;
    nrd_runner_config rc = {
        .kv_dtype = x->cfg.kv_dtype,
        .compute_f32 = x->cfg.compute_dtype == NRD_DTYPE_F32,
        .streamed_share = streamed_share(x),
        .two_step_head = x->cfg.two_step_head,
        .deterministic = x->cfg.deterministic,
        .normalize_log_probs = x->cfg.normalize_log_probs,
        .keep_choice_logits = b->gather_generation_logits || b->max_draft_len > 0 || x->speculative.posterior_threshold > 0,
        .max_draft_rows = nrd_exec_draft_rows(x),
        .max_chain = nrd_exec_longest_chain(x),
        .max_tokens = x->lim.max_num_tokens,
        .max_entries = n_slots,
        .state_cache_bytes = state_cache_bytes(x),
        .max_top = top > NRD_MAX_TOP_LOGPROBS ? top : NRD_MAX_TOP_LOGPROBS,
        .max_context = x->lim.max_seq_len,
        .encoder = x->encoder,
        .max_encoder_input = x->lim.max_encoder_input,
        .max_picture_states = x->lim.max_picture_states,
        .block_tokens = b->tokens_per_block > 0 ? b->tokens_per_block : 64,
        .windows = x->cfg.n_max_attention_window > 0 ? x->cfg.max_attention_window : NULL,
        .n_windows = x->cfg.n_max_attention_window,
        .n_sink = x->cfg.sink_token_length,
        .on_context_rows = nrd_exec_on_context_rows,
        .on_state_sum = nrd_exec_on_state_sum,
        .no_graphs = !x->cfg.cuda_graph_mode,
        .no_overlap = x->cfg.no_overlap,
        .max_graphs = x->cfg.cuda_graph_cache_size,
        .profile_every = x->cfg.profile_every,
        .profile_spans = x->cfg.profile_spans,
        .on_warning = warn_of_runner,
        .on_choice_row = nrd_exec_on_choice_row,
        .on_mask_ready = nrd_exec_on_mask_ready,
        .user = x,
        .on_input = x->cfg.on_product_input ? nrd_exec_on_input : NULL,
        .on_cache = x->cfg.on_cache ? nrd_exec_on_cache : NULL,
    };
    NRD_TRY(nrd_exec_eagle_read(x, engine_dir, &rc.taps));
    NRD_TRY(nrd_exec_start_ranks(x, engine_dir, &rc));
    if (x->ranks) {
        rc.rank = nrd_ranks_runner(x->ranks);
    }
    NRD_TRY(nrd_runner_new(&x->runner, x->dev, x->engine, &rc));
    if (nrd_runner_tune_seconds(x->runner) > 0.01) {
        nrd_exec_log(x, 2, "kernels chosen in %.2f s", nrd_runner_tune_seconds(x->runner));
    }
    x->info.tokens_per_block = rc.block_tokens;
    return NULL;
}

static void fill_info(nrd_exec *x)
{
    const nrd_build_limits *b = nrd_engine_limits(x->engine);
    nrd_device_info di;
    nrd_exec_info *o = &x->info;

    x->dev->ops->get_info(x->dev, &di);
    snprintf(o->architecture, sizeof o->architecture, "%s", x->spec->architecture);
    snprintf(o->device, sizeof o->device, "%s", di.name);
    x->rows_are_alone = di.host_is_device && di.f32_rows == 0; /* a matrix unit takes many rows otherwise than few */
    o->vocab = x->spec->vocab;
    o->n_layers = x->spec->n_layers;
    o->hidden = x->spec->hidden;
    o->max_batch_size = x->lim.max_batch_size;
    const int32_t of_picture = x->encoder ? 0 : nrd_exec_encoder_room(x);
    o->max_input_len = x->lim.max_input_len - of_picture;
    o->max_seq_len = x->lim.max_seq_len - of_picture;
    o->max_num_tokens = x->lim.max_num_tokens;
    o->max_beam_width = x->lim.max_beam_width;
    o->max_draft_len = b->max_draft_len;
    o->weight_bytes += nrd_engine_weight_bytes(x->engine); /* a draft model's are there */
    o->weight_bytes += x->encoder ? nrd_engine_weight_bytes(x->encoder) : 0;
    o->dtype = x->spec->dtype;
    o->kv_dtype = nrd_runner_kv_dtype(x->runner);
    o->logits_dtype = NRD_DTYPE_F32;
    o->gather_context_logits = b->gather_context_logits;
    o->gather_generation_logits = b->gather_generation_logits;
    o->bos_id = x->spec->bos_id;
    o->eos_id = x->spec->eos_id;
    o->pad_id = x->spec->pad_id;
    o->tp_size = x->spec->tp_size;
    o->pp_size = x->spec->pp_size;
    o->mixed_context_tokens = x->sched_lim.mixed_context_tokens;
    o->even_context_tokens = x->sched_lim.even_context_tokens;
}

static nrd_error *open_device(nrd_exec *x, const char *engine_dir)
{
    nrd_error *err = NULL;
    char *timing_cache = NULL;
    NRD_TRY(nrd_path_make(&timing_cache, engine_dir, NRD_TIMING_CACHE));
    nrd_device_config dc = {
        .device_id = x->cfg.n_device_ids > 0 ? x->cfg.device_ids[0] : 0,
        .n_threads = x->cfg.n_threads,
        .n_shares = nrd_launched_here(x->spec->tp_size * x->spec->pp_size),
        .isa = x->cfg.cpu_isa ? x->cfg.cpu_isa : "",
        .timing_cache = timing_cache,
    };
    err = nrd_device_open_as(&x->dev, &x->device_name, x->cfg.device ? x->cfg.device : "auto", &dc);
    free(timing_cache);
    return err;
}

/* A CPU takes a millisecond for a token or two of a prompt: by default no step holds up those who
 * generate for much longer than a quarter of a second. */
static int32_t mixed_context_tokens(const nrd_exec *x)
{
    nrd_device_info di;
    x->dev->ops->get_info(x->dev, &di);
    return x->cfg.mixed_context_tokens != 0 ? x->cfg.mixed_context_tokens
           : di.host_is_device              ? 256
                                            : 0;
}

/* Of a GPU, whose limit holds while few prompts wait: tokens that a Hopper GPU computes in about 13 ms, by the products that
 * a token takes part in; 16 bits take twice as long as 8. docs/performance/gpu-engine.md has the figures. */
static int32_t even_context_tokens(const nrd_exec *x)
{
    const double products = 6.4e12, of_experts = x->spec->has_experts ? (double)x->spec->moe.top_k / x->spec->moe.n_experts : 1;
    nrd_device_info di;
    double n = 1;

    x->dev->ops->get_info(x->dev, &di);
    if (di.host_is_device || x->cfg.mixed_context_tokens != 0) {
        return 0;
    }
    for (size_t i = 0; i < nrd_engine_n_weights(x->engine); i++) {
        const char *name = "";
        const nrd_weight *w = nrd_engine_weight_at(x->engine, i, &name);
        const bool looked_up = !strcmp(name, "transformer.vocab_embedding.weight") || !strcmp(name, "lm_head.weight");
        n += looked_up ? 0 : (double)w->rows * (double)w->cols * (strstr(name, ".experts.") ? of_experts : 1);
    }
    n = products / n / (strstr(x->spec->quant_algo, "FP8") ? 1 : 2);
    return n > 256 ? (int32_t)fmin(n, x->lim.max_num_tokens) / 64 * 64 : 256;
}

/* Beside the choices of one request, others' tokens wait for a step of all of them. A CPU gains little from
 * more at a time (docs/performance/attacks.md has the figures); a GPU computes a hundred as quickly as one.
 * Without reuse of blocks each late choice would compute the prompt again. */
static int32_t choices_at_once(const nrd_exec *x)
{
    nrd_device_info di;
    x->dev->ops->get_info(x->dev, &di);
    const int32_t n = x->cfg.choices_at_once != 0 ? x->cfg.choices_at_once : di.host_is_device ? 16 : 0;
    return x->cfg.enable_kv_cache_reuse && n > 0 ? n : 0;
}

static nrd_error *start_record(nrd_exec *x, const char *engine_dir)
{
    const uint64_t bytes = x->cfg.scheduler_record_bytes;
    const char *slash = strrchr(engine_dir, '/');

    if (bytes == 0) {
        return x->cfg.scheduler_record ? nrd_errorf(NRD_ERR_INVALID_ARG, "scheduler_record needs scheduler_record_bytes")
                                       : NULL;
    }
    if (bytes < NRD_RECORD_MIN_BYTES || bytes > NRD_RECORD_MAX_BYTES) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "scheduler_record_bytes is %" PRIu64 ", expected 0 or %u to %u", bytes,
                          NRD_RECORD_MIN_BYTES, NRD_RECORD_MAX_BYTES);
    }
    NRD_TRY(nrd_record_new(&x->record, slash && slash[1] ? slash + 1 : engine_dir, (size_t)bytes, x->cfg.scheduler_record,
                           &x->sched_lim, &x->kv_config, x->kv));
    nrd_sched_set_tap(x->sched, nrd_record_tap(x->record));
    return NULL;
}

/* The engine of the encoder whose states this model reads. */
static nrd_error *open_encoder(nrd_exec *x, const char *engine_dir)
{
    const char *dir = x->cfg.encoder_dir && x->cfg.encoder_dir[0] ? x->cfg.encoder_dir : NULL;

    if (x->spec->n_layers == 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s has no layers: it is the encoder of a decoder, whose engine opens it", engine_dir);
    }
    if (!x->spec->cross_attention) {
        return dir ? nrd_errorf(NRD_ERR_INVALID_ARG, "encoder_model_path is given, but the model (%s) is no decoder that reads "
                                "an encoder's states", x->spec->architecture)
                   : NULL;
    }
    if (x->speculative.method != NRD_EXEC_NO_METHOD || x->cfg.enable_lora) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "draft tokens and LoRA adapters are not supported for encoder-decoder models");
    }
    nrd_error *err = nrd_engine_open_encoder(&x->encoder, engine_dir, dir, x->cfg.verify_checksums);
    x->cfg.encoder_dir = NULL; /* the caller's */
    return err;
}

/* A state cannot be taken back by a token, and is copied nowhere. */
static nrd_error *check_recurrent(const nrd_exec *x)
{
    if (!nrd_spec_is_recurrent(x->spec)) {
        return NULL;
    }
    if (x->lim.max_beam_width > 1) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "max_beam_width is %d: %s models have layers with a recurrent state, and take "
                          "no beams; build the engine with 1", x->lim.max_beam_width, x->spec->model_type);
    }
    return nrd_exec_speculative_check_recurrent(&x->speculative, x->spec);
}

static void settle_recurrent(nrd_exec *x)
{
    if (!nrd_spec_is_recurrent(x->spec)) {
        return;
    }
    const size_t kept = nrd_runner_states_kept_bytes(x->runner), all = nrd_runner_state_bytes(x->runner);
    const int32_t n_states = nrd_runner_n_states(x->runner);

    nrd_exec_log(x, 2, "recurrent states: %.1f MB for %d sequences, %.1f MB for %d snapshots", (double)(all - kept) / 1e6,
                 x->lim.max_batch_size, (double)kept / 1e6, n_states);
    if (x->cfg.enable_kv_cache_reuse && n_states == 0) {
        nrd_exec_log(x, 1, "no snapshot of a recurrent state fits into state_cache_bytes: KV cache reuse is off");
        x->cfg.enable_kv_cache_reuse = false;
    }
}

static void settle_scheduler(nrd_exec *x)
{
    const int32_t window = nrd_runner_common_window(x->runner);
    if (window > 0 && window < x->lim.max_seq_len && x->cfg.enable_kv_cache_reuse) {
        nrd_exec_log(x, 1, "every layer has an attention window: KV cache reuse is off");
        x->cfg.enable_kv_cache_reuse = false;
    }
    x->sched_lim = (nrd_sched_limits){
        .max_batch_size = x->lim.max_batch_size,
        .max_beam_width = x->lim.max_beam_width,
        .max_num_tokens = x->lim.max_num_tokens,
        .window = window < x->lim.max_seq_len ? window : 0,
        .n_sink = x->cfg.sink_token_length,
        .max_utilization = x->cfg.policy == NRD_POLICY_MAX_UTILIZATION,
        .is_static = x->cfg.batching == NRD_BATCHING_STATIC,
        .chunked_context = x->lim.chunked_context,
        .recurrent = nrd_spec_is_recurrent(x->spec),
        .mixed_context_tokens = mixed_context_tokens(x),
        .even_context_tokens = even_context_tokens(x),
        .choices_at_once = choices_at_once(x),
        .max_draft_rows = nrd_exec_draft_rows(x),
        .filled_up = nrd_runner_filled_up(x->runner),
        .n_micro = x->spec->pp_size > 1 ? nrd_runner_n_buffers(x->spec) : 0,
    };
}

/* What rank 0 tells the others of a step must fit into a message, whatever requests come. Half of it is for what tokens of
 * pictures see (vision.c). */
static nrd_error *check_step_bytes(const nrd_exec *x)
{
    const size_t most = (size_t)NRD_RANKS_MESSAGE_BYTES / (x->vision ? 2 : 1);
    const size_t need = nrd_runner_step_bytes(x->runner, &x->plans[0]);

    return !x->ranks || need <= most
               ? NULL
               : nrd_errorf(NRD_ERR_INVALID_ARG, "a step may take %zu bytes from rank to rank, at most %zu: lower max_num_tokens (%d), "
                            "max_batch_size (%d) or max_seq_len (%d)", need, most, x->lim.max_num_tokens, x->lim.max_batch_size,
                            x->lim.max_seq_len);
}

nrd_error *nrd_exec_open_all(nrd_exec *x, const char *engine_dir)
{
    nrd_error *err = NULL;
    NRD_TRY(nrd_exec_check_config(&x->cfg));
    NRD_TRY(nrd_exec_speculative_read(x->cfg.speculative_config, &x->speculative));
    NRD_TRY(nrd_exec_speculative_of_mode(&x->cfg, &x->speculative));
    NRD_TRY(nrd_engine_open(&x->engine, engine_dir, 0, x->cfg.verify_checksums));
    x->spec = nrd_engine_spec(x->engine);
    NRD_TRY(open_encoder(x, engine_dir));
    NRD_TRY(nrd_exec_vision_read(x, engine_dir));
    nrd_exec_settle_limits(x);
    NRD_TRY(check_recurrent(x));
    NRD_TRY(nrd_exec_redrafter_read(x, engine_dir));
    NRD_TRY(open_device(x, engine_dir));
    nrd_device_info di;
    x->dev->ops->get_info(x->dev, &di);
    if (di.host_is_device && nrd_engine_settle(x->engine, di.mem_free_bytes)) {
        nrd_exec_log(x, 2, "weights are in memory of large pages");
    }
    tell(x, !di.host_is_device);
    NRD_TRY(open_runner(x, engine_dir));
    nrd_exec_log(x, 2, "Loaded engine size: %" PRIu64 " MiB", nrd_engine_weight_bytes(x->engine) >> 20);
    NRD_TRY(nrd_classifier_new(&x->classifier, x->engine));
    NRD_TRY(nrd_projection_new(&x->projection, x->engine));
    NRD_TRY(nrd_exec_draft_open(x, engine_dir));
    NRD_TRY(nrd_exec_medusa_open(x, engine_dir));
    NRD_TRY(nrd_exec_eagle_open(x));
    NRD_TRY(nrd_exec_redrafter_open(x));
    NRD_TRY(nrd_exec_vision_open(x));
    settle_recurrent(x);
    settle_scheduler(x);
    NRD_TRY(nrd_exec_size_kv(x));
    NRD_TRY(nrd_sched_new(&x->sched, &x->sched_lim, x->kv));
    NRD_TRY(nrd_exec_draft_start(x));
    NRD_TRY(nrd_exec_medusa_start(x));
    NRD_TRY(nrd_exec_eagle_start(x));
    NRD_TRY(nrd_exec_redrafter_start(x));
    NRD_TRY(start_record(x, engine_dir));
    x->n_plans = nrd_runner_n_buffers(x->spec);
    for (int i = 0; i < x->n_plans; i++) {
        NRD_TRY(nrd_plan_init(&x->plans[i], &x->sched_lim, x->kv));
    }
    NRD_TRY(check_step_bytes(x));
    NRD_TRY(nrd_exec_pool_new(&x->pool));
    x->iter_cap = x->cfg.iter_stats_max_iterations > 0 ? x->cfg.iter_stats_max_iterations : 0;
    NRD_NEW_GOTO(x->iter_ring, x->iter_cap, err, fail);
    NRD_NEW_GOTO(x->events, x->plans[0].cap_entries, err, fail);
    NRD_TRY_GOTO(nrd_exec_lora_open(x), err, fail);
    fill_info(x);
    x->overlap = !di.host_is_device;
    x->watch.computes_here = di.host_is_device;
    NRD_TRY_GOTO(nrd_exec_stall_start(x), err, fail);
    if (pthread_create(&x->thread, NULL, nrd_exec_loop_main, x) != 0) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "cannot start the engine thread");
    }
    x->thread_started = true;
    err = x->cfg.lora_prefetch_dir ? nrd_exec_lora_prefetch(x, x->cfg.lora_prefetch_dir) : NULL;
fail:
    return err;
}
