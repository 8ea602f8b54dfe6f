/* SPDX-License-Identifier: Apache-2.0
 * What an executor may do at most: what its caller asked for, within what the engine was built for. */
#include "executor/internal.h"

#include "model/spec_recurrent.h"

#include <stdio.h>
#include <string.h>

enum { MAX_TRANSFER_MS = 24 * 3600 * 1000 };

nrd_error *nrd_exec_check_config(const nrd_exec_config *c)
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
    if (!(c->gpu_weights_percent >= 0 && c->gpu_weights_percent <= 1)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "gpu_weights_percent must be in [0, 1]: a share, not percent; got %g",
                          c->gpu_weights_percent);
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
    const struct {
        const char *name;
        int64_t value;
    } counts[] = {{"max_beam_width", c->max_beam_width},
                  {"max_batch_size", c->max_batch_size},
                  {"max_num_tokens", c->max_num_tokens},
                  {"max_queue_size", c->max_queue_size},
                  {"max_tokens_in_paged_kv_cache", c->max_tokens_in_paged_kv_cache},
                  {"sink_token_length", c->sink_token_length},
                  {"max_tokens_in_buffer", c->max_tokens_in_buffer}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        if (counts[i].value < 0) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s must not be negative, got %lld", counts[i].name, (long long)counts[i].value);
        }
    }
    if (c->kv_transfer_timeout_ms < 0 || c->kv_transfer_timeout_ms > MAX_TRANSFER_MS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "kv_transfer_timeout_ms is %lld, expected 0 to %d", (long long)c->kv_transfer_timeout_ms,
                          MAX_TRANSFER_MS);
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

/* Pictures' states take places of the cache before the prompt, all in one step: as many as it has room for. */
static void settle_pictures(nrd_exec *x)
{
    const int32_t bt = nrd_engine_limits(x->engine)->tokens_per_block > 0 ? nrd_engine_limits(x->engine)->tokens_per_block : 64;
    const int32_t states = nrd_vision_n_rows(nrd_vision_get_spec(x->vision)) - 1, least = (states + bt - 1) / bt * bt;
    nrd_exec_limits *l = &x->lim;
    const int32_t room = (l->max_num_tokens - 1) / bt * bt;

    if (least > room) {
        snprintf(x->no_pictures, sizeof x->no_pictures, "its states take %d places, and max_num_tokens is %d: build the engine with more than %d",
                 least, l->max_num_tokens, least);
        return;
    }
    l->max_picture_states = room;
    l->max_seq_len += room;
    l->max_input_len += room;
}

void nrd_exec_settle_limits(nrd_exec *x)
{
    const nrd_build_limits *b = nrd_engine_limits(x->engine);
    const nrd_exec_config *c = &x->cfg;
    nrd_exec_limits *l = &x->lim;

    l->max_batch_size = min_limit(c->max_batch_size, b->max_batch_size > 0 ? b->max_batch_size : 1);
    l->max_beam_width = min_limit(c->max_beam_width, b->max_beam_width > 0 ? b->max_beam_width : 1);
    if (c->max_beam_width > l->max_beam_width) {
        nrd_exec_log(x, 1, "max_beam_width %d is above what the engine was built for: %d applies", c->max_beam_width,
                     l->max_beam_width);
    }
    if (c->sink_token_length > 0 && c->n_max_attention_window == 0 && x->spec->sliding_window == 0) {
        nrd_exec_log(x, 1, "sink_token_length has no effect without max_attention_window_size: no token is forgotten");
    }
    if (c->choices_at_once != 0 && !c->enable_kv_cache_reuse) {
        nrd_exec_log(x, 1, "choices_at_once has no effect without KV cache reuse");
    }
    l->max_seq_len = min_limit(c->max_seq_len, b->max_seq_len);
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
    if (x->vision && nrd_vision_get_spec(x->vision)->read_by_layers && !x->no_pictures[0]) {
        settle_pictures(x);
    }
    nrd_exec_log(x, 2,
                 "maximum input length %d (max_input_len %d, max_seq_len %d, max_num_tokens %d)",
                 l->max_input_len, b->max_input_len, b->max_seq_len, l->max_num_tokens);
    l->max_queue_size = c->max_queue_size;
}

/* Each is a row of logits: all sequences' drafts at once are worth it only while they are few. */
enum { MAX_DRAFT_ROWS = 128 };

int32_t nrd_exec_longest_chain(const nrd_exec *x)
{
    const nrd_exec_speculative *s = &x->speculative;
    const bool heads = s->method == NRD_EXEC_EAGLE || s->method == NRD_EXEC_EAGLE3 || s->method == NRD_EXEC_MTP;
    const bool chains = s->method == NRD_EXEC_NGRAM || s->method == NRD_EXEC_DRAFT_MODEL || (heads && s->top_k == 0 && !s->choices);
    return chains ? s->max_draft : 0;
}

int32_t nrd_exec_draft_rows(const nrd_exec *x)
{
    const nrd_build_limits *b = nrd_engine_limits(x->engine);
    const int32_t brought = nrd_spec_is_recurrent(x->spec) ? 0 : b->max_draft_len; /* by requests */
    const int32_t longest = brought > x->speculative.max_draft ? brought : x->speculative.max_draft;
    const int64_t all = (int64_t)x->lim.max_batch_size * longest;
    const int32_t most = longest > MAX_DRAFT_ROWS ? longest : MAX_DRAFT_ROWS;
    return all < most ? (int32_t)all : most;
}

int32_t nrd_exec_draft_outputs(const nrd_exec *x)
{
    const int32_t drafted = nrd_exec_draft_rows(x), entries = nrd_exec_max_entries(x);
    return drafted > entries ? drafted : entries;
}
