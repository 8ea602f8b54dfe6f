/* SPDX-License-Identifier: Apache-2.0
 * What is said about parameters at the load of a model: which were left open and what applies then,
 * which are set but change nothing here, and which are probably misspelled. */
#include "backends/tensorrtllm/llm.h"
#include "backends/tensorrtllm/trt_log.h"
#include "base/options.h"

#include <string.h>

bool nrd_llm_param_is_open(const nrd_llm_model *m, const char *key)
{
    return nrd_json_get(nrd_json_get(m->config.root, "parameters"), key) &&
           !nrd_tb_config_param(&m->config, key);
}

/* In the words of the published backend, which users look for in the log. Repositories that `nereid
 * repo` wrote leave open on purpose what they do not set. */
void nrd_llm_warn_of_open(const nrd_llm_model *m)
{
    static const struct {
        const char *key, *text;
    } rows[] = {
        {"max_beam_width", "is not specified, will use default value of 1"},
        {"max_tokens_in_paged_kv_cache", "is not specified, will use default value"},
        {"kv_cache_free_gpu_mem_fraction",
         "is not specified, will use default value of 0.9 or max_tokens_in_paged_kv_cache"},
        {"cross_kv_cache_fraction", "is not specified, error if it's encoder-decoder model, otherwise ok"},
        {"kv_cache_host_memory_bytes", "not set, defaulting to 0"},
        {"kv_cache_onboard_blocks", "not set, defaulting to true"},
        {"max_num_sequences", "is not specified, will be set to the TRT engine max_batch_size"},
        {"max_kv_cache_length", "is not specified, will use default value (i.e. max_sequence_length)"},
        {"max_attention_window_size",
         "is not specified, will use default value (i.e. max_sequence_length)"},
        {"sink_token_length", "is not specified, will use default value"},
        {"multi_block_mode", "is not specified, will be set to true"},
        {"enable_context_fmha_fp32_acc", "is not specified, will be set to false"},
        {"cuda_graph_mode", "is not specified, will be set to true"},
        {"cuda_graph_cache_size", "is not specified, will be set to 0"},
        {"speculative_decoding_fast_logits", "is not specified, will be set to false"},
        {"num_nodes", "is not specified, will be set to 1"},
        {"lora_cache_max_adapter_size", "not set, defaulting to 64"},
        {"lora_cache_optimal_adapter_size", "not set, defaulting to 8"},
        {"lora_cache_gpu_memory_fraction", "not set, defaulting to 0.05"},
        {"lora_cache_host_memory_bytes", "not set, defaulting to 1GB"},
        {"lora_prefetch_dir", "not set, no adapter is loaded at the start"},
        {"normalize_log_probs", "is not specified, will be set to true"},
        {"exclude_input_in_output", "is not specified, will be set to false"},
        {"enable_chunked_context", "is not specified, will be set to false."},
        {"enable_trt_overlap", "is not specified, will be set to false"},
        {"gpu_device_ids", "is not specified, will be automatically set"},
        {"participant_ids", "is not specified, will be automatically set"},
        {"medusa_choices",
         "parameter is not specified. Will be using default mc_sim_7b_63 choices instead."},
        {"eagle_choices", "parameter is not specified. Will be using default mc_sim_7b_63 choices instead "
                          "or choices specified per-request."},
        {"gpu_weights_percent", "parameter is not specified, will use default value of 1.0"},
        {"encoder_model_path", "is not specified, will be left empty"},
        {"cancellation_check_period_ms", "is not specified, will be set to 100 (ms)"},
        {"stats_check_period_ms", "is not specified, will be set to 100 (ms)"},
        {"iter_stats_max_iterations", "is not specified, will use default value of 1000"},
        {"request_stats_max_iterations", "is not specified, will use default value of 0"},
        {"tokenizer_dir", "is not specified, guided decoding is off"},
        {"guided_decoding_backend", "is not specified, will be left empty"},
        {"xgrammar_tokenizer_info_path", "is not specified, will be left empty"},
        {"lookahead_window_size", "is not specified, will be left empty"},
        {"lookahead_ngram_size", "is not specified, will be left empty"},
        {"lookahead_verification_set_size", "is not specified, will be left empty"},
        {"executor_worker_path", "is not specified, will use default value"},
        {"worker_path", "is not specified, will use default value"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows && !m->has_stream_state; i++) {
        if (nrd_llm_param_is_open(m, rows[i].key)) {
            TRT_LOG(WARNING, "%s %s", rows[i].key, rows[i].text);
        }
    }
    if (!m->has_stream_state && nrd_llm_param_is_open(m, "enable_kv_cache_reuse")) {
        TRT_LOG(WARNING, "enable_kv_cache_reuse is not specified, will be set to %s",
                 m->rules.has_reuse_by_default ? "true" : "false");
    }
}

static void warn_of_no_effect(const nrd_llm_model *m, const char *key, const char *why)
{
    const char *v = nrd_tb_config_param(&m->config, key);
    if (v && why) {
        TRT_LOG(WARNING, "model '%s': %s '%s' has no effect: %s", m->config.name, key, v, why);
    }
}

/* Parameters that are known and have no effect here: setting one is logged with the reason, once a
 * load. executor_worker_path is not among them: it stands in every published file as a constant. */
void nrd_llm_warn_of_no_effect(const nrd_llm_model *m)
{
    static const char no_orchestrator[] = "the engine runs in this process";
    const char *no_lookahead = m->exec_config.decoding_mode == NRD_DECODING_LOOKAHEAD ? NULL : "decoding_mode is not lookahead";
    const char *no_medusa = m->exec_config.decoding_mode == NRD_DECODING_MEDUSA ? NULL : "decoding_mode is not medusa";
    const char *no_eagle = m->exec_config.decoding_mode == NRD_DECODING_EAGLE ? NULL : "decoding_mode is not eagle";
    const struct {
        const char *key, *why, *common; /* common: the value that published files hold */
    } rows[] = {
        {"cross_kv_cache_fraction", "what a decoder keeps of its encoder lies in the same cache", NULL},
        {"kv_cache_onboard_blocks", "blocks in host memory are always copied back before use", NULL},
        {"request_stats_max_iterations", "statistics of single requests are not kept", "0"},
        {"worker_path", no_orchestrator, NULL},
        {"num_nodes", no_orchestrator, NULL},
        {"medusa_choices", no_medusa, NULL},
        {"eagle_choices", no_eagle, NULL},
        {"speculative_decoding_fast_logits", "logits of a draft go from model to model as tensors", NULL},
        {"lookahead_window_size", no_lookahead, NULL},
        {"lookahead_ngram_size", no_lookahead, NULL},
        {"lookahead_verification_set_size", no_lookahead, NULL},
        {"enable_context_fmha_fp32_acc", "sums are always kept in FP32", NULL},
        {"multi_block_mode", "the kernels decide it by themselves", NULL},
        {"enable_trt_overlap", "steps are prepared the same way with and without it", NULL},
    };

    warn_of_no_effect(m, "participant_ids", nrd_exec_is_launched() ? NULL : "the server starts the ranks itself");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *v = nrd_tb_config_param(&m->config, rows[i].key);
        if (v && !(rows[i].common && !strcmp(v, rows[i].common))) {
            warn_of_no_effect(m, rows[i].key, rows[i].why);
        }
    }
}

/* Every parameter that is read here, by /v1 or by the BLS model, and those that have no effect. */
static const char *const known[] = {
    "FORCE_CPU_ONLY_INPUT_TENSORS", "batch_scheduler_policy", "cancellation_check_period_ms", "choices_at_once",
    "cross_kv_cache_fraction", "cuda_graph_cache_size", "cuda_graph_mode", "decoding_mode", "deterministic", "device",
    "eagle_choices", "embedding_pooling", "enable_chunked_context", "enable_context_fmha_fp32_acc",
    "enable_kv_cache_reuse", "enable_trt_overlap", "encoder_model_path", "exclude_input_in_output",
    "executor_worker_path", "gpt_model_path", "gpt_model_type", "gpu_device_ids", "gpu_weights_percent",
    "guided_decoding_backend", "iter_stats_max_iterations", "kv_cache_free_gpu_mem_fraction",
    "kv_cache_host_memory_bytes", "kv_cache_onboard_blocks", "kv_transfer_timeout_ms", "lookahead_ngram_size",
    "lookahead_verification_set_size", "lookahead_window_size", "lora_adapters", "lora_cache_gpu_memory_fraction",
    "lora_cache_host_memory_bytes", "lora_cache_max_adapter_size", "lora_cache_optimal_adapter_size",
    "lora_prefetch_dir", "max_attention_window_size", "max_beam_width", "max_kv_cache_length", "max_num_sequences",
    "max_tokens_in_buffer", "max_tokens_in_paged_kv_cache", "medusa_choices", "mixed_context_tokens", "multi_block_mode", "n_threads",
    "normalize_log_probs", "num_nodes", "participant_ids", "picture_cache_bytes", "request_stats_max_iterations",
    "scheduler_record", "scheduler_record_bytes", "served_model_name", "sink_token_length", "speculative_config",
    "speculative_decoding_fast_logits", "state_cache_bytes", "stats_check_period_ms", "tokenizer_dir", "two_step_head", "worker_path",
    "xgrammar_tokenizer_info_path",
};

/* The known name that one with this spelling stands for, or NULL: it is known itself, or unlike all of them. A
 * configuration may have parameters of its own, so that only what looks like a slip is told. */
static const char *meant(const char *key)
{
    enum { SLIPS = 3 }; /* kv_cache_free_gpu_memory_fraction is so far from its name */
    const size_t n = strlen(key);
    const char *nearest = NULL;
    int least = n / 4 < SLIPS ? (int)(n / 4) + 1 : SLIPS + 1;

    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const int d = nrd_opts_distance(key, n, known[i]);
        if (!strcmp(key, known[i])) {
            return NULL;
        }
        if (d < least) {
            least = d;
            nearest = known[i];
        }
    }
    return nearest;
}

void nrd_llm_warn_of_misspelled(const nrd_llm_model *m)
{
    const nrd_json *all = nrd_json_get(m->config.root, "parameters");

    for (size_t i = 0; i < nrd_json_len(all); i++) {
        const char *key = nrd_json_at(all, i)->key, *name = meant(key);
        if (name) {
            TRT_LOG(WARNING, "model '%s': parameter '%s' is not known and has no effect; did you mean '%s'?",
                    m->config.name, key, name);
        }
    }
}
