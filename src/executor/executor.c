/* SPDX-License-Identifier: Apache-2.0
 * The executor API: opening an engine, the queue of requests, the outbox of responses, statistics.
 *
 * Life of an executor: open (device, engine file, runner, cache, loop thread) -> requests and responses ->
 * stopping: new requests are refused, those under way end, or are cut when the time is up -> stopped: the
 * loop has ended, what is in the outbox can still be taken -> close. When a step fails the engine is lost:
 * all requests are answered with an error and new ones refused until it is closed. */
#include "nereid/executor.h"

#include "base/clock.h"
#include "base/dtype.h"
#include "base/file.h"
#include "base/log.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/str.h"
#include "device/device.h"
#include "executor/draft_model.h"
#include "executor/eagle_model.h"
#include "executor/medusa_model.h"
#include "executor/redrafter_model.h"
#include "executor/internal.h"
#include "model/spec_recurrent.h"
#include "text/prompt_limit.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void nrd_exec_config_init(nrd_exec_config *c)
{
    *c = (nrd_exec_config){
        .size = sizeof *c,
        .normalize_log_probs = true,
        .cuda_graph_mode = true,
        .iter_stats_max_iterations = 1000,
        .gpu_weights_percent = 1,
        .scheduler_record_bytes = NRD_RECORD_DEFAULT_BYTES,
        .picture_cache_bytes = NRD_LIMIT_PICTURE_ROWS,
    };
}

void nrd_exec_log(const nrd_exec *x, int level, const char *fmt, ...)
{
    char line[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    if (x->cfg.log) {
        x->cfg.log(x->cfg.log_user, level, line);
    } else if (level == 0) {
        NRD_LOG_ERROR("%s", line);
    } else if (level == 1) {
        NRD_LOG_WARN("%s", line);
    } else {
        NRD_LOG_VERBOSE(level - 1, "%s", line);
    }
}

/* ---- opening ---- */

static nrd_error *check_config(const nrd_exec_config *c)
{
    if (c->decoding_mode < NRD_DECODING_AUTO || c->decoding_mode > NRD_DECODING_EAGLE) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "unknown decoding mode %d", (int)c->decoding_mode);
    }
    if (c->guided_decoding_backend && c->guided_decoding_backend[0] &&
        strcmp(c->guided_decoding_backend, "xgrammar") != 0) { /* the name that configurations have */
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "guided_decoding_backend '%.40s' is not supported; known: "
                                               "xgrammar", c->guided_decoding_backend);
    }
    if (!(c->kv_cache_free_mem_fraction >= 0 && c->kv_cache_free_mem_fraction <= 1)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "kv_cache_free_gpu_mem_fraction must be in [0, 1]");
    }
    if (c->gpu_weights_percent < 1) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "gpu_weights_percent below 1 is not supported yet");
    }
    if (c->lora_cache_max_adapter_size < 0 || c->lora_cache_max_adapter_size > NRD_LORA_MAX_RANK ||
        c->lora_cache_optimal_adapter_size < 0 || c->lora_cache_optimal_adapter_size > NRD_LORA_MAX_RANK) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "lora_cache_max_adapter_size and lora_cache_optimal_adapter_size must be in [0, %d]",
                          NRD_LORA_MAX_RANK);
    }
    if (!(c->lora_cache_gpu_memory_fraction >= 0 && c->lora_cache_gpu_memory_fraction <= 1)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "lora_cache_gpu_memory_fraction must be in [0, 1]");
    }
    if (c->max_beam_width < 0 || c->max_batch_size < 0 || c->max_num_tokens < 0 ||
        c->max_queue_size < 0 || c->max_tokens_in_paged_kv_cache < 0 || c->sink_token_length < 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "limits must not be negative");
    }
    if (c->compute_dtype != NRD_DTYPE_NONE && c->compute_dtype != NRD_DTYPE_F32) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "compute_dtype must be float32 or native");
    }
    return NULL;
}

static int32_t min_limit(int32_t asked, int32_t built)
{
    return asked > 0 && asked < built ? asked : built;
}

/* The encoder's input takes places of the cache before the decoder's prompt, all in one step. Nothing may be forgotten or
 * taken from another sequence there. */
static void settle_encoder(nrd_exec *x)
{
    const nrd_build_limits *b = nrd_engine_limits(x->engine), *e = nrd_engine_limits(x->encoder);
    const int32_t bt = b->tokens_per_block > 0 ? b->tokens_per_block : 64;
    nrd_exec_limits *l = &x->lim;
    int32_t room = (l->max_num_tokens - 1) / bt * bt;

    l->max_encoder_input = e->max_input_len < room ? e->max_input_len : room;
    room = (l->max_encoder_input + bt - 1) / bt * bt;
    l->max_seq_len += room;
    l->max_input_len += room;
    l->chunked_context = false;
    x->cfg.max_attention_window = NULL;
    x->cfg.n_max_attention_window = x->cfg.sink_token_length = 0;
    x->cfg.enable_kv_cache_reuse = false;
    x->info.max_encoder_input_len = l->max_encoder_input;
    x->info.n_begin = x->spec->first_id >= 0 ? 2 : 1;
    x->info.encoder_feature_size = nrd_engine_spec(x->encoder)->n_mels;
}

/* What the caller asked for, within what the engine was built for. */
static void settle_limits(nrd_exec *x)
{
    const nrd_build_limits *b = nrd_engine_limits(x->engine);
    const nrd_exec_config *c = &x->cfg;
    nrd_exec_limits *l = &x->lim;

    l->max_batch_size = min_limit(c->max_batch_size, b->max_batch_size > 0 ? b->max_batch_size : 1);
    l->max_beam_width = min_limit(c->max_beam_width, b->max_beam_width > 0 ? b->max_beam_width : 1);
    l->max_seq_len = b->max_seq_len;
    if (x->spec->learned_positions && l->max_seq_len > x->spec->max_positions) {
        l->max_seq_len = x->spec->max_positions;
    }
    l->max_num_tokens = c->max_num_tokens > 0 ? c->max_num_tokens : b->max_num_tokens;
    if (b->max_num_tokens > 0 && l->max_num_tokens > b->max_num_tokens) {
        l->max_num_tokens = b->max_num_tokens;
    }
    if (l->max_num_tokens < l->max_batch_size * l->max_beam_width) {
        nrd_exec_log(x, 1, "max_num_tokens %d raised to %d: one token for each sequence and beam",
                     l->max_num_tokens, l->max_batch_size * l->max_beam_width);
        l->max_num_tokens = l->max_batch_size * l->max_beam_width;
    }
    l->max_input_len = b->max_input_len > 0 && b->max_input_len < l->max_seq_len
                           ? b->max_input_len
                           : l->max_seq_len - !x->spec->encoder; /* room for what is generated */
    l->chunked_context = c->enable_chunked_context && !x->spec->encoder; /* its tokens see those behind them */
    if (x->spec->cross_attention) {
        settle_encoder(x);
    }
    if (!l->chunked_context && l->max_input_len > l->max_num_tokens) {
        nrd_exec_log(x, 2, "maximum input length is max_num_tokens (%d) without chunked context",
                     l->max_num_tokens);
        l->max_input_len = l->max_num_tokens;
    }
    l->max_seq_len = x->spec->encoder ? l->max_input_len : l->max_seq_len;
    nrd_exec_log(x, 2,
                 "maximum input length %d (max_input_len %d, max_seq_len %d, max_num_tokens %d)",
                 l->max_input_len, b->max_input_len, b->max_seq_len, l->max_num_tokens);
    l->max_queue_size = c->max_queue_size;
}

static void warn_of_runner(void *user, const char *message)
{
    nrd_exec_log(user, 1, "steps are not recorded as graphs any more: %s", message);
}

/* Each is a row of logits: all sequences' drafts at once are worth it only while they are few. */
enum { MAX_DRAFT_ROWS = 128 };

int32_t nrd_exec_draft_rows(const nrd_exec *x)
{
    const nrd_build_limits *b = nrd_engine_limits(x->engine);
    const int32_t brought = nrd_spec_is_recurrent(x->spec) ? 0 : b->max_draft_len; /* by requests */
    const int32_t longest = brought > x->speculative.max_draft ? brought : x->speculative.max_draft;
    const int64_t all = (int64_t)x->lim.max_batch_size * longest;
    const int32_t most = longest > MAX_DRAFT_ROWS ? longest : MAX_DRAFT_ROWS;
    return all < most ? (int32_t)all : most;
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

static nrd_error *open_runner(nrd_exec *x, const char *engine_dir)
{
    const nrd_build_limits *b = nrd_engine_limits(x->engine);
    int32_t n_slots = x->lim.max_batch_size * x->lim.max_beam_width;
    int32_t top = x->lim.max_beam_width > 1 ? 2 * x->lim.max_beam_width : 1;
    nrd_runner_config rc = {
        .kv_dtype = x->cfg.kv_dtype,
        .compute_f32 = x->cfg.compute_dtype == NRD_DTYPE_F32,
        .deterministic = x->cfg.deterministic,
        .normalize_log_probs = x->cfg.normalize_log_probs,
        .keep_choice_logits = b->gather_generation_logits || b->max_draft_len > 0 || x->speculative.posterior_threshold > 0,
        .max_draft_rows = nrd_exec_draft_rows(x),
        .max_tokens = x->lim.max_num_tokens,
        .max_entries = n_slots,
        .state_cache_bytes = state_cache_bytes(x),
        .max_top = top > NRD_MAX_TOP_LOGPROBS ? top : NRD_MAX_TOP_LOGPROBS,
        .max_context = x->lim.max_seq_len,
        .encoder = x->encoder,
        .max_encoder_input = x->lim.max_encoder_input,
        .block_tokens = b->tokens_per_block > 0 ? b->tokens_per_block : 64,
        .windows = x->cfg.n_max_attention_window > 0 ? x->cfg.max_attention_window : NULL,
        .n_windows = x->cfg.n_max_attention_window,
        .n_sink = x->cfg.sink_token_length,
        .on_context_rows = nrd_exec_loop_on_context_rows,
        .on_states = nrd_exec_loop_on_states,
        .no_graphs = !x->cfg.cuda_graph_mode,
        .no_overlap = x->cfg.no_overlap,
        .max_graphs = x->cfg.cuda_graph_cache_size,
        .profile_every = x->cfg.profile_every,
        .profile_spans = x->cfg.profile_spans,
        .on_warning = warn_of_runner,
        .on_choice_row = nrd_exec_loop_on_choice_row,
        .on_mask_ready = nrd_exec_loop_on_mask_ready,
        .user = x,
        .on_input = x->cfg.on_product_input ? nrd_exec_loop_on_input : NULL,
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

/* What a GPU may be asked for after the start: counts of tokens for penalties, masks, recorded steps,
 * kernels that the driver loads when they are first used. Never given to the cache, whatever its share. */
static double run_time_bytes(const nrd_exec *x)
{
    const double slots = (double)x->lim.max_batch_size * (double)x->lim.max_beam_width + (double)x->sched_lim.max_draft_rows;
    return 256e6 + slots * (double)x->spec->vocab * (sizeof(uint16_t) + 0.25 /* two masks, a bit each */);
}

/* Without attention a block takes no memory of the device, but about 60 bytes to know of it: so many, or those of the
 * longest sequence. */
#define EMPTY_BLOCKS (1 << 20)

/* How many blocks: a share of the free memory, capped by max_tokens_in_paged_kv_cache and by what
 * all sequences together could use. */
static nrd_error *size_kv(nrd_exec *x)
{
    nrd_device_info di;
    int32_t bt = x->info.tokens_per_block;
    uint64_t block_bytes = nrd_runner_kv_block_bytes(x->runner);
    const uint64_t with_draft = block_bytes + nrd_exec_draft_block_bytes(x) + nrd_exec_eagle_block_bytes(x);

    x->dev->ops->get_info(x->dev, &di);
    NRD_TRY(nrd_exec_free_bytes(x, &di));
    double share = x->cfg.kv_cache_free_mem_fraction > 0 ? x->cfg.kv_cache_free_mem_fraction
                   : di.host_is_device                   ? 0.5
                                                         : 0.9;
    if (di.host_is_device) { /* states are taken as they are touched: not all of them is missing yet */
        const uint64_t states = nrd_runner_state_bytes(x->runner);
        di.mem_free_bytes -= states < di.mem_free_bytes ? states : di.mem_free_bytes;
    }
    double room = share * (double)di.mem_free_bytes;
    double most = (double)di.mem_free_bytes - (di.host_is_device ? 0 : run_time_bytes(x));
    room = room > most ? most > 0 ? most : 0 : room;
    const int32_t need = nrd_sched_worst_blocks(&x->sched_lim, bt, x->lim.max_input_len, x->lim.max_seq_len, 1);
    double n = with_draft > 0 ? room / (double)with_draft : need > EMPTY_BLOCKS ? need : EMPTY_BLOCKS;
    double by_tokens = x->cfg.max_tokens_in_paged_kv_cache > 0
                           ? (double)((x->cfg.max_tokens_in_paged_kv_cache + bt - 1) / bt)
                           : n;
    double useful = ((double)((x->lim.max_seq_len + bt - 1) / bt) + 1) *
                    (double)x->lim.max_batch_size * (double)x->lim.max_beam_width;
    if (x->spec->encoder) { /* one step at a time, whose sequences end with it */
        useful = (double)x->lim.max_num_tokens / bt + 2.0 * x->lim.max_batch_size;
    }
    n = by_tokens < n ? by_tokens : n;
    if (x->cfg.max_tokens_in_paged_kv_cache == 0) {
        /* With reuse, room for the prefixes of those who have left. */
        double cap = x->cfg.enable_kv_cache_reuse && !x->spec->encoder ? useful * 4 : useful;
        n = n > cap ? cap : n;
    }
    n = n > 1e9 ? 1e9 : n;
    if (n < (double)need) {
        return nrd_errorf(
            NRD_ERR_INVALID_ARG,
            "the KV cache would hold %d tokens (%d blocks of %d; %.0f MB free, share "
            "%.2f, max_tokens_in_paged_kv_cache %lld), but one sequence of max_seq_len "
            "%d needs %d blocks; %s or build with a smaller max_seq_len",
            (int32_t)n * bt, (int32_t)n, bt, (double)di.mem_free_bytes / 1e6, share,
            (long long)x->cfg.max_tokens_in_paged_kv_cache, x->lim.max_seq_len, need,
            di.host_is_device ? "give it more memory"
                              : "take others off this device, raise kv_cache_free_gpu_mem_fraction, use the "
                                "device \"cpu\"");
    }
    nrd_kv_config kc = {
        .n_blocks = (int32_t)n, .block_tokens = bt, .reuse = x->cfg.enable_kv_cache_reuse,
        .n_states = nrd_runner_n_states(x->runner)};
    if (kc.reuse) {
        /* without attention there is nothing in a block that could be kept */
        double n_host = block_bytes > 0 ? (double)(x->cfg.kv_cache_host_memory_bytes / block_bytes) : 0;
        kc.n_host_blocks = (int32_t)(n_host < 5e8 ? n_host : 5e8);
    } else if (x->cfg.kv_cache_host_memory_bytes > 0) {
        nrd_exec_log(x, 1, "kv_cache_host_memory_bytes has no effect without KV cache reuse");
    }
    NRD_TRY(nrd_kv_new(&x->kv, &kc));
    x->kv_config = kc;
    x->info.n_kv_blocks = kc.n_blocks;
    x->info.n_kv_host_blocks = kc.n_host_blocks;
    x->info.kv_cache_bytes = (uint64_t)kc.n_blocks * block_bytes;
    x->info.state_bytes = nrd_runner_state_bytes(x->runner);
    if (kc.n_host_blocks > 0) {
        nrd_exec_log(x, 2, "KV cache: %d blocks in host memory (%.0f MB)", kc.n_host_blocks,
                     (double)kc.n_host_blocks * (double)block_bytes / 1e6);
    }
    NRD_TRY(nrd_exec_alloc_kv(x, kc.n_blocks, kc.n_host_blocks));
    return nrd_runner_record_ahead(x->runner);
}

static void fill_info(nrd_exec *x)
{
    const nrd_build_limits *b = nrd_engine_limits(x->engine);
    nrd_device_info di;
    nrd_exec_info *o = &x->info;

    x->dev->ops->get_info(x->dev, &di);
    snprintf(o->architecture, sizeof o->architecture, "%s", x->spec->architecture);
    snprintf(o->device, sizeof o->device, "%s", di.name);
    o->vocab = x->spec->vocab;
    o->n_layers = x->spec->n_layers;
    o->hidden = x->spec->hidden;
    o->max_batch_size = x->lim.max_batch_size;
    o->max_input_len = x->lim.max_input_len;
    o->max_seq_len = x->lim.max_seq_len;
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
}

static nrd_error *open_device(nrd_exec *x, const char *engine_dir)
{
    nrd_error *err = NULL;
    char *timing_cache = NULL;
    NRD_TRY(nrd_path_make(&timing_cache, engine_dir, NRD_TIMING_CACHE));
    nrd_device_config dc = {
        .device_id = x->cfg.n_device_ids > 0 ? x->cfg.device_ids[0] : 0,
        .n_threads = x->cfg.n_threads,
        .n_shares = x->spec->tp_size * x->spec->pp_size,
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

static nrd_error *open_all(nrd_exec *x, const char *engine_dir)
{
    nrd_error *err = NULL;
    NRD_TRY(check_config(&x->cfg));
    NRD_TRY(nrd_exec_speculative_read(x->cfg.speculative_config, &x->speculative));
    NRD_TRY(nrd_exec_speculative_of_mode(&x->cfg, &x->speculative));
    NRD_TRY(nrd_engine_open(&x->engine, engine_dir, 0, x->cfg.verify_checksums));
    x->spec = nrd_engine_spec(x->engine);
    NRD_TRY(open_encoder(x, engine_dir));
    settle_limits(x);
    NRD_TRY(check_recurrent(x));
    NRD_TRY(nrd_exec_redrafter_read(x, engine_dir));
    NRD_TRY(open_device(x, engine_dir));
    nrd_device_info di;
    x->dev->ops->get_info(x->dev, &di);
    if (di.host_is_device && nrd_engine_settle(x->engine, di.mem_free_bytes)) {
        nrd_exec_log(x, 2, "weights are in memory of large pages");
    }
    NRD_TRY(open_runner(x, engine_dir));
    NRD_TRY(nrd_classifier_new(&x->classifier, x->engine));
    NRD_TRY(nrd_projection_new(&x->projection, x->engine));
    NRD_TRY(nrd_exec_draft_open(x, engine_dir));
    NRD_TRY(nrd_exec_medusa_open(x, engine_dir));
    NRD_TRY(nrd_exec_eagle_open(x));
    NRD_TRY(nrd_exec_redrafter_open(x));
    NRD_TRY(nrd_exec_vision_open(x, engine_dir));
    settle_recurrent(x);
    int32_t window = nrd_runner_common_window(x->runner);
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
        .choices_at_once = choices_at_once(x),
        .max_draft_rows = nrd_exec_draft_rows(x),
        .n_micro = x->spec->pp_size > 1 ? nrd_runner_n_buffers(x->spec) : 0,
    };
    NRD_TRY(size_kv(x));
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
    NRD_TRY(nrd_exec_pool_new(&x->pool));
    x->iter_cap = x->cfg.iter_stats_max_iterations > 0 ? x->cfg.iter_stats_max_iterations : 0;
    NRD_NEW_GOTO(x->iter_ring, x->iter_cap, err, fail);
    NRD_NEW_GOTO(x->events, x->plans[0].cap_entries, err, fail);
    NRD_TRY_GOTO(nrd_exec_lora_open(x), err, fail);
    fill_info(x);
    x->overlap = !di.host_is_device;
    x->computes_here = di.host_is_device;
    NRD_TRY_GOTO(nrd_exec_stall_start(x), err, fail);
    if (pthread_create(&x->thread, NULL, nrd_exec_loop_main, x) != 0) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "cannot start the engine thread");
    }
    x->thread_started = true;
    err = x->cfg.lora_prefetch_dir ? nrd_exec_lora_prefetch(x, x->cfg.lora_prefetch_dir) : NULL;
fail:
    return err;
}

/* The loop thread's end; it runs only once all of an executor is there. */
static void join(nrd_exec *x)
{
    if (x->thread_started) {
        nrd_error_free(nrd_exec_shutdown(x, 0));
        nrd_exec_stall_stop(x);
        if (!x->is_abandoned) {
            pthread_join(x->thread, NULL);
        }
    }
}

static void destroy(nrd_exec *x)
{
    if (x->lists_prompts) {
        nrd_prompt_limit_remove(x->lim.max_input_len);
    }
    nrd_exec_stall_stop(x);
    if (x->is_abandoned) {
        nrd_exec_abandon(x);
        return;
    }
    nrd_exec_lora_close(x);
    nrd_ranks_stop(x->ranks);
    nrd_exec_draft_close(x);
    nrd_exec_medusa_close(x);
    nrd_exec_eagle_close(x);
    nrd_exec_redrafter_close(x);
    nrd_exec_vision_close(x);
    nrd_exec_speculative_fini(&x->speculative);
    nrd_runner_free(x->runner);
    nrd_ranks_free(x->ranks); /* the runner used its memory */
    nrd_sched_free(x->sched);
    nrd_record_free(x->record);
    nrd_kv_free(x->kv);
    for (int i = 0; i < NRD_SCHED_MAX_MICRO; i++) {
        nrd_plan_fini(&x->plans[i]);
    }
    if (x->dev) {
        x->dev->ops->close(x->dev);
    }
    nrd_classifier_free(x->classifier);
    nrd_projection_free(x->projection);
    nrd_engine_close(x->engine);
    nrd_engine_close(x->encoder);
    while (x->out_head) {
        nrd_exec_response_state *o = x->out_head;
        x->out_head = o->next;
        nrd_exec_response_put(o);
    }
    nrd_exec_pool_unref(x->pool);
    nrd_guides_free(x->guides);
    free(x->iter_ring);
    free(x->events);
    pthread_cond_destroy(&x->in_cv);
    pthread_cond_destroy(&x->out_cv);
    pthread_cond_destroy(&x->stall_cv);
    pthread_mutex_destroy(&x->mu);
    free(x);
}

nrd_error *nrd_exec_open(nrd_exec **out, const char *engine_dir, const nrd_exec_config *config)
{
    nrd_error *err = NULL;
    nrd_exec *x = NULL;
    pthread_condattr_t attr;

    *out = NULL;
    if (!engine_dir || !engine_dir[0]) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "no engine folder given");
    }
    NRD_NEW_GOTO(x, 1, err, fail);
    nrd_exec_config_init(&x->cfg);
    if (config) {
        size_t n = config->size < sizeof x->cfg ? config->size : sizeof x->cfg;
        memcpy(&x->cfg, config, n);
    }
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&x->mu, NULL);
    pthread_cond_init(&x->in_cv, &attr);
    pthread_cond_init(&x->out_cv, &attr);
    pthread_cond_init(&x->stall_cv, &attr);
    pthread_condattr_destroy(&attr);
    x->next_id = 1;
    x->inflight = -1;
    x->info.size = sizeof x->info;
    err = nrd_exec_stall_limit(&x->stall_ms);
    err = err ? err : open_all(x, engine_dir);
    if (!err && x->cfg.tokenizer_dir && x->cfg.tokenizer_dir[0]) {
        x->guides = nrd_guides_new(x->cfg.tokenizer_dir);
        err = x->guides ? NULL : nrd_error_no_memory();
    }
    if (err) {
        join(x);
        destroy(x);
        return err;
    }
    nrd_prompt_limit_add(x->lim.max_input_len); /* of an encoder, too: its blocks are counted in */
    x->lists_prompts = true;
    /* Strings and arrays of the config belong to the caller: not kept. */
    x->cfg.max_attention_window = x->cfg.device_ids = x->cfg.participant_ids = NULL;
    x->cfg.device = x->cfg.cpu_isa = x->cfg.guided_decoding_backend = x->cfg.tokenizer_dir = NULL;
    x->cfg.lora_prefetch_dir = x->cfg.scheduler_record = x->cfg.speculative_config = NULL;
    *out = x;
fail:
    return err;
}

void nrd_exec_get_info(const nrd_exec *x, nrd_exec_info *info)
{
    uint32_t size = info->size;
    memcpy(info, &x->info, size < sizeof x->info ? size : sizeof x->info);
    info->size = size;
}

static nrd_error *lost_error_locked(const nrd_exec *x)
{
    return nrd_errorf(NRD_ERR_UNAVAILABLE, "the engine was lost: %s", x->lost);
}

nrd_error *nrd_exec_health(nrd_exec *x)
{
    pthread_mutex_lock(&x->mu);
    nrd_error *err = x->lost ? lost_error_locked(x) : NULL;
    pthread_mutex_unlock(&x->mu);
    return err;
}

/* ---- tables, with mu held ---- */

static nrd_exec_request_state **bucket(nrd_exec *x, uint64_t id)
{
    return &x->active[id % ACTIVE_BUCKETS];
}

void nrd_exec_active_add(nrd_exec *x, nrd_exec_request_state *r)
{
    nrd_exec_request_state **b = bucket(x, r->id);
    r->hash_next = *b;
    *b = r;
    x->n_active++;
    x->n_waiting++;
}

static void leave_cancels(nrd_exec_request_state **list, const nrd_exec_request_state *r)
{
    for (; *list; list = &(*list)->cancel_next) {
        if (*list == r) {
            *list = r->cancel_next;
            return;
        }
    }
}

void nrd_exec_active_remove(nrd_exec *x, nrd_exec_request_state *r)
{
    if (r->cancel_asked) {
        leave_cancels(&x->cancels, r);
        leave_cancels(&x->cancels_taken, r);
    }
    for (nrd_exec_request_state **at = bucket(x, r->id); *at; at = &(*at)->hash_next) {
        if (*at == r) {
            *at = r->hash_next;
            x->n_active--;
            x->n_waiting -= r->perf.first_scheduled_ns == 0;
            return;
        }
    }
}

nrd_exec_request_state *nrd_exec_active_find(nrd_exec *x, uint64_t id)
{
    nrd_exec_request_state *r = *bucket(x, id);
    while (r && r->id != id) {
        r = r->hash_next;
    }
    return r;
}

void nrd_exec_out_push(nrd_exec *x, nrd_exec_response_state *o)
{
    o->next = NULL;
    *(x->out_tail ? &x->out_tail->next : &x->out_head) = o;
    x->out_tail = o;
    if (o->pub.is_final) {
        nrd_exec_request_state *r = nrd_exec_active_find(x, o->pub.id);
        if (r) {
            nrd_exec_active_remove(x, r);
        }
    }
    pthread_cond_broadcast(&x->out_cv);
}

static void out_unlink(nrd_exec *x, nrd_exec_response_state *prev, nrd_exec_response_state *o)
{
    *(prev ? &prev->next : &x->out_head) = o->next;
    if (x->out_tail == o) {
        x->out_tail = prev;
    }
    o->next = NULL;
}

/* ---- requests ---- */

/* With mu held. */
static void push_inbox(nrd_exec *x, nrd_exec_request_state *r)
{
    r->next = NULL;
    *(x->inbox_tail ? &x->inbox_tail->next : &x->inbox_head) = r;
    x->inbox_tail = r;
    pthread_cond_signal(&x->in_cv);
}

/* The guide, or why there is none: the loop takes the request. */
static void on_guide(void *user, nrd_guide *guide, nrd_error *err)
{
    nrd_exec_request_state *r = user;
    nrd_exec *x = r->exec;

    r->guide = guide;
    r->guide_err = err;
    pthread_mutex_lock(&x->mu);
    x->n_compiling--;
    push_inbox(x, r);
    pthread_mutex_unlock(&x->mu);
}

static nrd_error *admit(nrd_exec *x, nrd_exec_request_state *r)
{
    if (x->lost) {
        return lost_error_locked(x);
    }
    if (x->stopping) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "the executor is shutting down");
    }
    if (x->lim.max_queue_size > 0 && x->n_waiting >= x->lim.max_queue_size) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE,
                          "Maximum queue size of %d has been reached, please try again later",
                          x->lim.max_queue_size);
    }
    r->id = x->next_id++;
    nrd_exec_active_add(x, r);
    return NULL;
}

/* Takes the request always. Once it is admitted the loop may end it at any moment. */
static nrd_error *submit(nrd_exec *x, nrd_exec_request_state *r, uint64_t *out_id)
{
    const bool guided = r->is_guided;
    char *type = r->guide_type, *text = r->guide_text;
    nrd_guide *guide = NULL;

    r->guide_type = r->guide_text = NULL;
    r->guide_wait = (nrd_guide_waiter){.done = on_guide, .user = r};
    pthread_mutex_lock(&x->mu);
    nrd_error *err = admit(x, r);
    if (!err) {
        *out_id = r->id;
        if (guided) {
            x->n_compiling++;
        } else {
            push_inbox(x, r);
        }
    }
    pthread_mutex_unlock(&x->mu);
    if (err) {
        nrd_exec_request_free(r);
    } else if (guided) { /* what goes wrong now is an answer, not an error of this call */
        nrd_error *wrong = nrd_guides_want(x->guides, type, text, &r->guide_wait, &guide);
        if (wrong || guide) {
            on_guide(r, guide, wrong);
        }
    }
    free(type);
    free(text);
    return err;
}

nrd_error *nrd_exec_enqueue(nrd_exec *x, const nrd_exec_request *in, uint64_t *out_id)
{
    nrd_exec_request_state *r = NULL;
    *out_id = 0;
    NRD_TRY(nrd_exec_request_new(&r, x, in));
    return submit(x, r, out_id);
}

void nrd_exec_cancel(nrd_exec *x, uint64_t id)
{
    pthread_mutex_lock(&x->mu);
    nrd_exec_request_state *r = nrd_exec_active_find(x, id);
    if (r && !r->cancel_asked) {
        r->cancel_asked = true;
        r->cancel_next = x->cancels;
        x->cancels = r;
        pthread_cond_signal(&x->in_cv);
    }
    pthread_mutex_unlock(&x->mu);
}

/* ---- responses ---- */

static void deadline_in(struct timespec *t, int64_t timeout_us)
{
    clock_gettime(CLOCK_MONOTONIC, t);
    t->tv_sec += timeout_us / 1000000;
    t->tv_nsec += timeout_us % 1000000 * 1000;
    if (t->tv_nsec >= 1000000000) {
        t->tv_sec++;
        t->tv_nsec -= 1000000000;
    }
}

/* Waits for a change of the outbox; false: time is up. With mu held. */
static bool wait_out(nrd_exec *x, int64_t timeout_us, const struct timespec *deadline)
{
    if (timeout_us == 0) {
        return false;
    }
    if (timeout_us < 0) {
        pthread_cond_wait(&x->out_cv, &x->mu);
        return true;
    }
    return pthread_cond_timedwait(&x->out_cv, &x->mu, deadline) != ETIMEDOUT;
}

nrd_error *nrd_exec_await(nrd_exec *x, nrd_exec_response **out, int32_t max, int64_t timeout_us,
                          int32_t *out_n)
{
    struct timespec deadline;
    int32_t n = 0;

    deadline_in(&deadline, timeout_us > 0 ? timeout_us : 0);
    pthread_mutex_lock(&x->mu);
    do {
        nrd_exec_response_state *prev = NULL, *o = x->out_head;
        while (o && n < max) {
            nrd_exec_response_state *next = o->next;
            if (o->is_private) { /* somebody waits for it by its id */
                prev = o;
            } else {
                out_unlink(x, prev, o);
                out[n++] = &o->pub;
            }
            o = next;
        }
    } while (n == 0 && !x->stopped && wait_out(x, timeout_us, &deadline));
    if (!x->out_head) {
        pthread_cond_broadcast(&x->out_cv); /* threads that wait for "done" */
    }
    pthread_mutex_unlock(&x->mu);
    *out_n = n;
    return NULL;
}

nrd_error *nrd_exec_await_id(nrd_exec *x, uint64_t id, nrd_exec_response **out, int64_t timeout_us)
{
    struct timespec deadline;
    nrd_error *err = NULL;

    *out = NULL;
    deadline_in(&deadline, timeout_us > 0 ? timeout_us : 0);
    pthread_mutex_lock(&x->mu);
    for (;;) {
        nrd_exec_response_state *prev = NULL, *o = x->out_head;
        while (o && o->pub.id != id) {
            prev = o;
            o = o->next;
        }
        if (o) {
            out_unlink(x, prev, o);
            *out = &o->pub;
            break;
        }
        if (!nrd_exec_active_find(x, id)) {
            err = nrd_errorf(NRD_ERR_NOT_FOUND, "no request %llu is under way",
                             (unsigned long long)id);
            break;
        }
        if (!wait_out(x, timeout_us, &deadline)) {
            break;
        }
    }
    pthread_mutex_unlock(&x->mu);
    return err;
}

void nrd_exec_response_free(nrd_exec_response *r)
{
    if (r) {
        nrd_exec_response_put((nrd_exec_response_state *)(void *)r);
    }
}

bool nrd_exec_is_done(nrd_exec *x)
{
    pthread_mutex_lock(&x->mu);
    bool done = x->stopped && !x->out_head;
    pthread_mutex_unlock(&x->mu);
    return done;
}

/* ---- statistics ---- */

int32_t nrd_exec_take_iter_stats(nrd_exec *x, nrd_iter_stats *out, int32_t max)
{
    int32_t n = 0;
    pthread_mutex_lock(&x->mu);
    for (; n < max && x->iter_n > 0; n++) {
        out[n] = x->iter_ring[x->iter_first];
        x->iter_first = (x->iter_first + 1) % x->iter_cap;
        x->iter_n--;
    }
    pthread_mutex_unlock(&x->mu);
    return n;
}

nrd_error *nrd_exec_profile(nrd_exec *x, nrd_profile_row *out, int32_t max, int32_t *out_n,
                            bool reset)
{
    nrd_profile_sums sums;
    int32_t n = 0;

    *out_n = 0;
    if (x->cfg.profile_every <= 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "the engine was opened without profile_every");
    }
    nrd_runner_profile(x->runner, &sums, reset);
    for (int kind = 0; kind < 2; kind++) {
        for (int op = 0; op < NRD_PROFILE_N && n < max; op++) {
            const nrd_profile_sum *s = &sums.of[kind][op];
            if (s->calls == 0) {
                continue;
            }
            out[n++] = (nrd_profile_row){
                .size = sizeof *out,
                .operation = nrd_profile_name((nrd_profile_op)op),
                .has_prompts = kind == 1,
                .n_steps = op < NRD_PROFILE_UPLOAD ? s->calls : sums.steps_by_op[kind],
                .n_calls = s->calls,
                .seconds = s->seconds,
                .bytes = s->bytes,
                .flops = s->flops,
                .eight_bit = s->eight_bit,
            };
        }
    }
    *out_n = n;
    return NULL;
}

int32_t nrd_exec_spans(nrd_exec *x, nrd_exec_span *out, int32_t first, int32_t max)
{
    nrd_profile_span some[64];
    int32_t n = 0, got;

    while (n < max && (got = nrd_runner_spans(x->runner, some, first + n,
                                              max - n < 64 ? max - n : 64)) > 0) {
        for (int32_t i = 0; i < got; i++, n++) {
            out[n] = (nrd_exec_span){
                .size = sizeof *out,
                .operation = nrd_profile_name(some[i].op),
                .is_host = some[i].op == NRD_PROFILE_ENQUEUE,
                .is_part = some[i].op >= NRD_PROFILE_UPLOAD,
                .n_sequences = some[i].n_sequences,
                .n_tokens = some[i].n_tokens,
                .start_s = some[i].start,
                .seconds = some[i].seconds,
            };
        }
    }
    return n;
}

/* ---- ending ---- */

nrd_error *nrd_exec_shutdown(nrd_exec *x, int64_t timeout_us)
{
    struct timespec deadline;
    deadline_in(&deadline, timeout_us > 0 ? timeout_us : 0);
    pthread_mutex_lock(&x->mu);
    x->stopping = true;
    pthread_cond_signal(&x->in_cv);
    while (!x->stopped && x->thread_started) {
        if (x->is_given_up) {
            nrd_exec_await_given_up(x);
        } else if (!wait_out(x, x->cut ? -1 : timeout_us, &deadline)) {
            x->cut = true;
            pthread_cond_signal(&x->in_cv);
        }
    }
    pthread_mutex_unlock(&x->mu);
    return NULL;
}

void nrd_exec_close(nrd_exec *x)
{
    if (!x) {
        return;
    }
    join(x);
    destroy(x);
}

/* ---- errors, version ---- */

int nrd_exec_error_code(const nrd_error *err)
{
    return nrd_error_triton_code(err);
}

const char *nrd_exec_error_message(const nrd_error *err)
{
    return nrd_error_message(err);
}

const char *nrd_exec_error_reason(const nrd_error *err)
{
    return nrd_error_reason(err);
}

void nrd_exec_error_free(nrd_error *err)
{
    nrd_error_free(err);
}

/* ---- scoring ---- */

nrd_error *nrd_exec_score(nrd_exec *x, const int32_t *ids, int32_t n, int32_t top_k,
                          float *out_logprobs, int32_t *out_top_ids, float *out_top_logprobs)
{
    return nrd_exec_score_lora(x, 0, ids, n, top_k, out_logprobs, out_top_ids, out_top_logprobs);
}

static nrd_error *check_scored(const int32_t *ids, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        if (ids[i] < 0) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "score: token %d is negative", i);
        }
    }
    return NULL;
}

static nrd_error *run_score(nrd_exec *x, uint64_t lora_task_id, const int32_t *ids, int32_t n, nrd_exec_scores *job)
{
    nrd_exec_request_state *r = NULL;
    nrd_exec_response *o = NULL;
    uint64_t id = 0;

    NRD_TRY(nrd_exec_request_new_score(&r, x, lora_task_id, ids, n, job));
    NRD_TRY(submit(x, r, &id));
    NRD_TRY(nrd_exec_await_id(x, id, &o, -1));
    nrd_exec_response_state *own = (nrd_exec_response_state *)(void *)o;
    nrd_error *err = own->pub.error;
    own->pub.error = NULL;
    nrd_exec_response_free(o);
    return err;
}

nrd_error *nrd_exec_score_rows(nrd_exec *x, const int32_t *ids, int32_t n,
                               void (*on_row)(void *user, int32_t position, const float *logits), void *user)
{
    nrd_exec_scores job = {.on_row = on_row, .user = user};
    if (!ids || n < 1 || !on_row) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "score: needs at least one token and somebody to tell");
    }
    NRD_TRY(check_scored(ids, n));
    return run_score(x, 0, ids, n, &job);
}

nrd_error *nrd_exec_score_lora(nrd_exec *x, uint64_t lora_task_id, const int32_t *ids, int32_t n,
                               int32_t top_k, float *out_logprobs, int32_t *out_top_ids,
                               float *out_top_logprobs)
{
    nrd_exec_scores job = {.log_probs = out_logprobs, .top_ids = out_top_ids, .top_log_probs = out_top_logprobs,
                              .top_k = top_k};

    if (!ids || n < 1 || !out_logprobs || top_k < 0 || top_k > x->spec->vocab ||
        (top_k > 0 && (!out_top_ids || !out_top_logprobs))) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "score: needs at least one token and room for results");
    }
    NRD_TRY(check_scored(ids, n));
    out_logprobs[0] = 0;
    for (int32_t k = 0; k < top_k; k++) {
        out_top_ids[k] = -1;
        out_top_logprobs[k] = 0;
    }
    return run_score(x, lora_task_id, ids, n, &job);
}
