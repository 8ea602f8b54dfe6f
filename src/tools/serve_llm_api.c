/* SPDX-License-Identifier: Apache-2.0
 * The file of `trtllm-serve --extra_llm_api_options FILE`: arguments of TensorRT-LLM's LLM API. Of YAML it has what serve_file.c
 * reads, and mappings by indentation. What has another name here becomes that option, what tunes the original's kernels is named
 * as without effect, and what would change answers or memory unseen is refused.
 *
 * Source: the reference of TorchLlmArgs and KvCacheConfig of TensorRT-LLM 1.0. */
#include "tools/serve_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct row {
    const char *name, *word; /* word: what stands before the value; NULL: without effect */
    const char *refused;     /* what to use instead */
} row;

static const char cache_name[] = "kv_cache_config"; /* has the rows of its own */

static const row whole[] = {
    {cache_name, NULL, NULL},
    {"max_batch_size", "--max_batch_size=", NULL},
    {"max_num_tokens", "--max_num_tokens=", NULL},
    {"max_seq_len", "--max_seq_len=", NULL},
    {"max_beam_width", "--max_beam_width=", NULL},
    {"tensor_parallel_size", "--tp_size=", NULL},
    {"pipeline_parallel_size", "--pp_size=", NULL},
    {"moe_expert_parallel_size", "--moe_ep_size=", NULL},
    {"tokenizer", "--tokenizer=", NULL},
    {"dtype", "--dtype=", NULL},
    {"enable_chunked_prefill", "--set=enable_chunked_context:", NULL},
    {"gpu_weights_percent", "--set=gpu_weights_percent:", NULL},
    {"speculative_config", NULL, "--speculative-config (docs/speculation.md)"},
    {"decoding_config", NULL, "--speculative-config (docs/speculation.md)"},
    {"lora_config", NULL, "--lora NAME=FOLDER"},
    {"quant_config", NULL, "--quantize TYPE"},
    {"sparse_attention_config", NULL, "a model that has it"},
    {"cache_transceiver_config", NULL, "docs/disaggregated.md"},
    {"allreduce_strategy", NULL, NULL},
    {"attention_dp_config", NULL, NULL},
    {"attn_backend", NULL, NULL},
    {"backend", NULL, NULL},
    {"batching_type", NULL, NULL},
    {"build_config", NULL, NULL},
    {"context_parallel_size", NULL, NULL},
    {"cuda_graph_config", NULL, NULL},
    {"disable_overlap_scheduler", NULL, NULL},
    {"enable_attention_dp", NULL, NULL},
    {"enable_autotuner", NULL, NULL},
    {"enable_iter_perf_stats", NULL, NULL},
    {"enable_iter_req_stats", NULL, NULL},
    {"enable_layerwise_nvtx_marker", NULL, NULL},
    {"enable_min_latency", NULL, NULL},
    {"garbage_collection_gen0_threshold", NULL, NULL},
    {"gpus_per_node", NULL, NULL},
    {"guided_decoding_backend", NULL, NULL},
    {"iter_stats_max_iterations", NULL, NULL},
    {"load_format", NULL, NULL},
    {"max_input_len", NULL, NULL},
    {"moe_backend", NULL, NULL},
    {"moe_config", NULL, NULL},
    {"moe_max_num_tokens", NULL, NULL},
    {"nvfp4_gemm_config", NULL, NULL},
    {"num_postprocess_workers", NULL, NULL},
    {"peft_cache_config", NULL, NULL},
    {"perf_metrics_max_requests", NULL, NULL},
    {"print_iter_log", NULL, NULL},
    {"return_perf_metrics", NULL, NULL},
    {"scheduler_config", NULL, NULL},
    {"skip_tokenizer_init", NULL, NULL},
    {"stream_interval", NULL, NULL},
    {"torch_compile_config", NULL, NULL},
    {"trust_remote_code", NULL, NULL},
    {"use_cuda_graph", NULL, NULL},
};

static const row cache[] = {
    {"free_gpu_memory_fraction", "--gpu_memory_utilization=", NULL},
    {"dtype", "--kv_cache_dtype=", NULL},
    {"enable_block_reuse", "--set=enable_kv_cache_reuse:", NULL},
    {"max_tokens", "--set=max_tokens_in_paged_kv_cache:", NULL},
    {"host_cache_size", "--set=kv_cache_host_memory_bytes:", NULL},
    {"sink_token_length", "--set=sink_token_length:", NULL},
    {"tokens_per_block", "--build=--tokens_per_block=", NULL},
    {"max_attention_window", NULL, "--set max_attention_window_size:N"},
    {"copy_on_partial_reuse", NULL, NULL},
    {"cross_kv_cache_fraction", NULL, NULL},
    {"enable_partial_reuse", NULL, NULL},
    {"event_buffer_max_size", NULL, NULL},
    {"mamba_ssm_cache_dtype", NULL, NULL},
    {"max_gpu_total_bytes", NULL, NULL},
    {"max_util_for_resume", NULL, NULL},
    {"onboard_blocks", NULL, NULL},
    {"secondary_offload_min_priority", NULL, NULL},
    {"use_kv_cache_manager_v2", NULL, NULL},
    {"use_uvm", NULL, NULL},
};

static const row *find(const row *rows, size_t n_rows, const char *s, size_t n)
{
    for (size_t i = 0; i < n_rows; i++) {
        if (strlen(rows[i].name) == n && !memcmp(rows[i].name, s, n)) {
            return &rows[i];
        }
    }
    return NULL;
}

typedef enum { WHOLE, CACHE, SKIPPED } where; /* which mapping deeper lines belong to */

typedef struct api_reader {
    nrd_serve_words *out;
    where in;
    size_t cache_indent; /* of kv_cache_config's lines; 0: none was read */
} api_reader;

static bool is_left_open(const char *value)
{
    return !*value || !strcmp(value, "null") || !strcmp(value, "~") || !strcmp(value, "auto");
}

static nrd_error *take(api_reader *r, const row *at, const char *value)
{
    const bool is_cache = at->name == cache_name;

    if (at->refused) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'%s' is not supported: use %s", at->name, at->refused);
    }
    if (is_cache && *value) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' has its values on lines of their own", at->name);
    }
    if (!at->word && !is_cache) {
        fprintf(stderr, "nereid serve: --extra_llm_api_options: '%s' has no effect\n", at->name);
        return NULL;
    }
    if (is_cache || is_left_open(value)) {
        return NULL;
    }
    if (strpbrk(value, "[]{},")) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s': expected one value, got '%.80s'", at->name, value);
    }
    nrd_str word = {0};
    nrd_str_printf(&word, "%s%s", at->word, value);
    NRD_TRY(nrd_str_error(&word));
    return nrd_serve_add_word(r->out, nrd_str_steal(&word));
}

static nrd_error *read_api_line(api_reader *r, const char *s)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    const size_t indent = strspn(s, " ");
    const char *name = s + indent;
    const size_t n = strspn(name, letters);

    if ((indent > 0 || *name == '-') && r->in == SKIPPED) {
        return NULL;
    }
    if (n == 0 || name[n] != ':' || (name[n + 1] != ' ' && name[n + 1] != '\0') || (indent > 0 && r->in != CACHE)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "expected 'name: value', got '%.80s'", s);
    }
    if (indent > 0 && r->cache_indent > 0 && indent != r->cache_indent) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "expected an indentation of %zu, got %zu", r->cache_indent, indent);
    }
    const row *at = indent > 0 ? find(cache, sizeof cache / sizeof *cache, name, n) : find(whole, sizeof whole / sizeof *whole, name, n);
    if (!at) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%.*s' is not known", (int)n, name);
    }
    if (indent == 0) {
        r->in = at->name == cache_name ? CACHE : at->word ? WHOLE : SKIPPED;
    }
    r->cache_indent = indent;
    char *value = nrd_serve_yaml_value(name + n + 1 + strspn(name + n + 1, " "));
    nrd_error *err = value ? take(r, at, value) : nrd_errorf(NRD_ERR_INVALID_ARG, "a quote is not closed");
    free(value);
    return err;
}

nrd_error *nrd_serve_read_llm_api(nrd_serve_words *out, char *text)
{
    api_reader r = {.out = out, .in = WHOLE};
    size_t line = 0;
    nrd_error *err = NULL;

    for (char *s = text; !err && s; line++) {
        char *s_line = strsep(&s, "\n");
        size_t n = strlen(s_line);
        while (n > 0 && strchr(" \t\r", s_line[n - 1])) {
            s_line[--n] = '\0';
        }
        const char *first = s_line + strspn(s_line, " \t");
        if (*first && *first != '#' && strcmp(s_line, "---") != 0) {
            err = nrd_error_wrap(read_api_line(&r, s_line), "line %zu", line + 1);
        }
    }
    return err;
}
