/* SPDX-License-Identifier: Apache-2.0
 * The parameters of the model "tensorrt_llm". A value that is empty or still "${…}" counts as not
 * given: the default applies and one warning line says so, as users of TensorRT-LLM know it. */
#include "backends/tensorrtllm/llm.h"
#include "backends/tensorrtllm/trt_log.h"

#include "base/file.h"
#include "base/number.h"
#include "base/str.h"

#include <string.h>

static bool param_bool(const nrd_llm_model *m, const char *key, bool fallback)
{
    static const char *const yes[] = {"true", "True", "TRUE", "1"};
    static const char *const no[] = {"false", "False", "FALSE", "0"};
    const char *v = nrd_tb_config_param(&m->config, key);
    for (size_t i = 0; v && i < 4; i++) {
        if (!strcmp(v, yes[i])) {
            return true;
        }
        if (!strcmp(v, no[i])) {
            return false;
        }
    }
    if (v) {
        TRT_LOG(WARNING, "%s '%s' is not a boolean, will be set to %s", key, v, fallback ? "true" : "false");
    }
    return fallback;
}

/* A leading decimal number, as the original accepts; false: not given. */
static bool param_num(const nrd_llm_model *m, const char *key, double *out)
{
    const char *v = nrd_tb_config_param(&m->config, key);
    char *end = NULL;
    double d = v ? nrd_number_read(v, &end) : 0;
    if (!v || end == v) {
        if (v) {
            TRT_LOG(WARNING, "%s '%s' is not a number, will use default value", key, v);
        }
        return false;
    }
    *out = d;
    return true;
}

/* Whole numbers: which there are, where they go and from what on they are taken. What is not given stays as it is. */
static TRITONSERVER_Error *read_numbers(nrd_llm_model *m)
{
#define ROW(key, field, low) {key, offsetof(nrd_llm_model, field), sizeof m->field, low}
#define CONFIG_ROW(key, low) ROW(#key, exec_config.key, low)
    static const int64_t any = INT32_MIN, widest = (int64_t)1 << 53; /* which a double still tells apart */
    const struct {
        const char *key;
        size_t at, size;
        int64_t low;
    } rows[] = {
        CONFIG_ROW(max_beam_width, 0),
        CONFIG_ROW(lookahead_window_size, 0),
        CONFIG_ROW(lookahead_ngram_size, 0),
        CONFIG_ROW(lookahead_verification_set_size, 0),
        CONFIG_ROW(max_tokens_in_paged_kv_cache, 0),
        CONFIG_ROW(sink_token_length, 0),
        CONFIG_ROW(kv_cache_host_memory_bytes, 0),
        CONFIG_ROW(state_cache_bytes, 0),
        CONFIG_ROW(lora_cache_max_adapter_size, 0),
        CONFIG_ROW(lora_cache_optimal_adapter_size, 0),
        CONFIG_ROW(lora_cache_host_memory_bytes, 0),
        CONFIG_ROW(scheduler_record_bytes, 0),
        CONFIG_ROW(picture_cache_bytes, 0),
        CONFIG_ROW(kv_transfer_timeout_ms, 1),
        CONFIG_ROW(max_tokens_in_buffer, 1),
        CONFIG_ROW(mixed_context_tokens, any),
        CONFIG_ROW(choices_at_once, any),
        CONFIG_ROW(cuda_graph_cache_size, 0),
        CONFIG_ROW(iter_stats_max_iterations, 0),
        CONFIG_ROW(n_threads, 0),
        ROW("max_num_sequences", exec_config.max_batch_size, 0), /* up to v0.7 */
        ROW("cancellation_check_period_ms", cancellation_check_period_ms, 1),
        ROW("stats_check_period_ms", stats_check_period_ms, 1),
    };
#undef CONFIG_ROW
#undef ROW

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const bool narrow = rows[i].size == sizeof(int32_t);
        const int64_t high = narrow ? INT32_MAX : widest;
        double d;
        if (!param_num(m, rows[i].key, &d)) {
            continue;
        }
        if (!(d >= (double)rows[i].low && d <= (double)high)) {
            return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "%s is %.17g, expected %lld to %lld", rows[i].key, d,
                                 (long long)rows[i].low, (long long)high);
        }
        const int64_t wide = (int64_t)d;
        const int32_t value = (int32_t)wide;
        memcpy((char *)m + rows[i].at, narrow ? (const void *)&value : &wide, rows[i].size);
    }
    return NULL;
}

/* "8,8, 16", each 0 or more; owned result or NULL. *out_n -1: no memory. */
static int32_t *param_int_list(const nrd_llm_model *m, const char *key, int32_t *out_n)
{
    const char *p = nrd_tb_config_param(&m->config, key);
    int32_t *list = NULL;
    *out_n = 0;
    while (p && *p && *p != ';') {
        char *end = NULL;
        long v = strtol(p, &end, 10);
        if (end == p || *out_n >= 4096 || v < 0 || v > INT32_MAX) {
            TRT_LOG(WARNING, "%s '%s' is not a list of integers from 0 on, ignored", key,
                     nrd_tb_config_param(&m->config, key));
            free(list);
            *out_n = 0;
            return NULL;
        }
        int32_t *grown = realloc(list, (size_t)(*out_n + 1) * sizeof *list);
        if (!grown) {
            free(list);
            *out_n = -1;
            return NULL;
        }
        list = grown;
        list[(*out_n)++] = (int32_t)v;
        p = end + strspn(end, " ");
        p += *p == ',';
        p += strspn(p, " ");
    }
    return list;
}

static TRITONSERVER_Error *read_batching(nrd_llm_model *m)
{
    const char *type = nrd_tb_config_param(&m->config, "gpt_model_type");
    const char *policy = nrd_tb_config_param(&m->config, "batch_scheduler_policy");

    if (type && (!strcmp(type, "V1") || !strcmp(type, "v1"))) {
        m->exec_config.batching = NRD_BATCHING_STATIC;
    } else if (type && (!strcmp(type, "inflight_batching") ||
                        !strcmp(type, "inflight_fused_batching"))) {
        m->exec_config.batching = NRD_BATCHING_INFLIGHT;
    } else {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "Invalid gpt_model_type '%s'. Must be V1, inflight_batching or "
                             "inflight_fused_batching.",
                             type ? type : "");
    }
    m->exec_config.policy = NRD_POLICY_GUARANTEED_NO_EVICT;
    if (policy && !strcmp(policy, "max_utilization")) {
        m->exec_config.policy = NRD_POLICY_MAX_UTILIZATION;
    } else if (!policy || strcmp(policy, "guaranteed_no_evict")) {
        TRT_LOG(WARNING, "batch_scheduler_policy parameter was not found or is invalid (must be "
                 "max_utilization or guaranteed_no_evict), using guaranteed_no_evict");
    }
    return NULL;
}

static nrd_decoding_mode read_decoding_mode(const nrd_llm_model *m)
{
    static const struct {
        const char *name;
        nrd_decoding_mode mode;
    } modes[] = {
        {"top_k", NRD_DECODING_TOP_K},
        {"top_p", NRD_DECODING_TOP_P},
        {"top_k_top_p", NRD_DECODING_TOP_K_TOP_P},
        {"beam_search", NRD_DECODING_BEAM_SEARCH},
        {"medusa", NRD_DECODING_MEDUSA},
        {"lookahead", NRD_DECODING_LOOKAHEAD},
        {"redrafter", NRD_DECODING_EXPLICIT_DRAFT},
        {"eagle", NRD_DECODING_EAGLE},
        {"auto", NRD_DECODING_AUTO},
    };
    const char *v = nrd_tb_config_param(&m->config, "decoding_mode");
    for (size_t i = 0; v && i < sizeof modes / sizeof *modes; i++) {
        if (!strcmp(v, modes[i].name)) {
            return modes[i].mode;
        }
    }
    TRT_LOG(WARNING, "decoding_mode parameter is invalid or not specified (must be one of the {top_k, top_p, "
             "top_k_top_p, beam_search, medusa, redrafter, lookahead, eagle}). Using default: "
             "top_k_top_p if max_beam_width == 1, beam_search otherwise");
    return NRD_DECODING_AUTO;
}

/* The published backend does not load a model whose three sizes are left open. A file that has no such parameters, as releases before
 * them, gets the executor's defaults. */
static TRITONSERVER_Error *check_lookahead(const nrd_llm_model *m)
{
    static const char *const sizes[] = {"lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size"};

    if (m->exec_config.decoding_mode != NRD_DECODING_LOOKAHEAD || m->exec_config.speculative_config) {
        return NULL;
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (nrd_llm_param_is_open(m, sizes[i])) {
            return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "Decoding mode is set to lookahead but lookahead parameters are not "
                                 "specified. Please set parameters lookahead_window_size, lookahead_ngram_size, and "
                                 "lookahead_verification_set_size. (%s is open)", sizes[i]);
        }
    }
    return NULL;
}

/* Where an instance runs: the instance group's kind, or the parameter `device`. */
static const char *find_device(const nrd_llm_model *m)
{
    const char *device = nrd_tb_config_param(&m->config, "device");
    const nrd_json *group = nrd_json_at(nrd_json_get(m->config.root, "instance_group"), 0);
    if (device) {
        return device;
    }
    /* The published configurations say KIND_CPU also for GPU engines: only KIND_GPU is a wish. */
    return !strcmp(nrd_json_get_str(group, "kind", ""), "KIND_GPU") ? "cuda" : "auto";
}

static void forward_log(void *user, int level, const char *message)
{
    (void)user;
    switch (level) {
    case TRT_ERROR:
        TRT_LOG(ERROR, "%s", message);
        break;
    case TRT_WARNING:
        TRT_LOG(WARNING, "%s", message);
        break;
    case TRT_INFO:
        TRT_LOG(INFO, "%s", message);
        break;
    default:
        TRT_LOG(DEBUG, "%s", message);
        break;
    }
}

/* Whose vocabulary guides run over. The published backend reads the file of xgrammar_tokenizer_info_path and
 * nothing else; here it is one of two ways to name the tokenizer. */
static TRITONSERVER_Error *read_guides(nrd_llm_model *m)
{
    nrd_exec_config *c = &m->exec_config;
    const char *info = nrd_tb_config_param(&m->config, "xgrammar_tokenizer_info_path");

    c->guided_decoding_backend = nrd_tb_config_param(&m->config, "guided_decoding_backend");
    c->tokenizer_dir = info ? info : nrd_tb_config_param(&m->config, "tokenizer_dir");
    if (info && !nrd_path_exists(info)) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_NOT_FOUND, "model '%s': xgrammar_tokenizer_info_path '%s' does not exist",
                             m->config.name, info);
    }
    return NULL;
}

/* Whether the configuration declares logits as TYPE_FP16 (the template's logits_datatype). */
static bool has_f16_logits(const nrd_llm_model *m)
{
    const nrd_json *outputs = nrd_json_get(m->config.root, "output");
    for (size_t i = 0; i < nrd_json_len(outputs); i++) {
        const nrd_json *o = nrd_json_at(outputs, i);
        if (!strcmp(nrd_json_get_str(o, "name", ""), "context_logits")) {
            return !strcmp(nrd_json_get_str(o, "data_type", ""), "TYPE_FP16");
        }
    }
    return false;
}

/* A share of something: above 0 and at most 1. What is not given stays as it is. */
static TRITONSERVER_Error *read_share(const nrd_llm_model *m, const char *key, double *out)
{
    if (param_num(m, key, out) && !(*out > 0 && *out <= 1)) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "%s is %g, expected above 0 and at most 1", key, *out);
    }
    return NULL;
}

/* The server's limit of waiting requests holds for those that wait for the engine too. */
static int32_t max_queue_size(const nrd_llm_model *m)
{
    const nrd_json *batching = nrd_json_get(m->config.root, "dynamic_batching");
    const int64_t n = nrd_json_get_int(nrd_json_get(batching, "default_queue_policy"), "max_queue_size", 0);
    return n < INT32_MAX ? (int32_t)n : INT32_MAX;
}

TRITONSERVER_Error *nrd_llm_params_read(nrd_llm_model *m)
{
    nrd_exec_config *c = &m->exec_config;
    const char *dir = nrd_tb_config_param(&m->config, "gpt_model_path");

    c->size = sizeof *c;
    nrd_exec_config_init(c);
    m->rules = nrd_llm_rules_of(&m->config);
    m->has_stream_state = nrd_tb_config_has_output(&m->config, "stream_state");
    if (!dir) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "model '%s': parameter gpt_model_path (the engine folder) is not set",
                             m->config.name);
    }
    if (!nrd_path_is_dir(dir)) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_NOT_FOUND,
                             "model '%s': gpt_model_path '%s' is not a folder", m->config.name, dir);
    }
    m->engine_dir = strdup(dir);
    if (!m->engine_dir) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    c->encoder_dir = nrd_tb_config_param(&m->config, "encoder_model_path");
    NRD_TB_TRY(read_guides(m));
    NRD_TB_TRY(read_batching(m));

    c->max_beam_width = 1;
    m->cancellation_check_period_ms = m->stats_check_period_ms = 100;
    NRD_TB_TRY(read_numbers(m));
    NRD_TB_TRY(read_share(m, "kv_cache_free_gpu_mem_fraction", &c->kv_cache_free_mem_fraction));
    NRD_TB_TRY(read_share(m, "lora_cache_gpu_memory_fraction", &c->lora_cache_gpu_memory_fraction));
    (void)param_num(m, "gpu_weights_percent", &c->gpu_weights_percent);
    c->decoding_mode = read_decoding_mode(m);
    c->medusa_choices = nrd_tb_config_param(&m->config, "medusa_choices");
    c->eagle_choices = nrd_tb_config_param(&m->config, "eagle_choices");
    c->speculative_config = nrd_tb_config_param(&m->config, "speculative_config");
    NRD_TB_TRY(check_lookahead(m));
    c->lora_prefetch_dir = nrd_tb_config_param(&m->config, "lora_prefetch_dir");
    c->scheduler_record = nrd_tb_config_param(&m->config, "scheduler_record");
    const bool has_window = nrd_tb_config_param(&m->config, "max_attention_window_size") != NULL;
    m->windows = param_int_list(m, has_window ? "max_attention_window_size" : "max_kv_cache_length" /* of v0.6 */,
                                &c->n_max_attention_window);
    c->max_attention_window = m->windows;
    c->enable_kv_cache_reuse = param_bool(m, "enable_kv_cache_reuse", m->rules.has_reuse_by_default);
    c->normalize_log_probs = param_bool(m, "normalize_log_probs", true);
    c->deterministic = param_bool(m, "deterministic", false);
    c->two_step_head = param_bool(m, "two_step_head", false);
    c->enable_chunked_context = param_bool(m, "enable_chunked_context", false);
    if (c->enable_chunked_context) {
        TRT_LOG(INFO, "enable_chunked_context is set to true, will use context chunking.");
    }
    c->cuda_graph_mode = param_bool(m, "cuda_graph_mode", true);
    c->max_queue_size = max_queue_size(m);
    m->exclude_input_in_output = param_bool(m, "exclude_input_in_output", false);
    m->f16_logits = has_f16_logits(m);
    m->device = strdup(find_device(m));
    if (!m->device || c->n_max_attention_window < 0) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    c->device = m->device;
    c->log = forward_log;
    nrd_llm_warn_of_open(m);
    nrd_llm_warn_of_no_effect(m);
    nrd_llm_warn_of_misspelled(m);
    return NULL;
}

void nrd_llm_params_fini(nrd_llm_model *m)
{
    free(m->engine_dir);
    free(m->windows);
    free(m->device);
}
