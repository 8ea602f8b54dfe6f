/* SPDX-License-Identifier: Apache-2.0
 * The file of `--extra_llm_api_options FILE`: arguments of TensorRT-LLM's LLM API, in YAML. What has another name here becomes that
 * option, what tunes the original's kernels is named as without effect, and what would change answers or memory unseen is refused.
 *
 * Source: the reference of TorchLlmArgs and KvCacheConfig of TensorRT-LLM 1.0. */
#include "tools/llm_api.h"

#include "base/mem.h"
#include "formats/yaml.h"
#include "tools/serve_internal.h"

#include <stdio.h>
#include <string.h>

typedef struct row {
    const char *name, *word, *bench; /* what stands before the value, of nereid serve and of nereid bench; NULL: without effect */
    const char *refused;             /* what to use instead */
} row;

static const char cache_name[] = "kv_cache_config", drafts_name[] = "speculative_config"; /* have rows of their own */

static const row whole[] = {
    {cache_name, NULL, NULL, NULL},
    {"max_batch_size", "--max_batch_size=", "--max_batch_size=", NULL},
    {"max_num_tokens", "--max_num_tokens=", "--max_num_tokens=", NULL},
    {"max_seq_len", "--max_seq_len=", NULL, NULL},
    {"max_beam_width", "--max_beam_width=", NULL, NULL},
    {"tensor_parallel_size", "--tp_size=", "--tp_size=", NULL},
    {"pipeline_parallel_size", "--pp_size=", "--pp_size=", NULL},
    {"moe_expert_parallel_size", "--moe_ep_size=", "--moe_ep_size=", NULL},
    {"tokenizer", "--tokenizer=", "--tokenizer=", NULL},
    {"dtype", "--dtype=", NULL, NULL},
    {"enable_chunked_prefill", "--set=enable_chunked_context:", NULL, NULL},
    {"gpu_weights_percent", "--set=gpu_weights_percent:", "--gpu_weights_percent=", NULL},
    {drafts_name, NULL, NULL, NULL},
    {"decoding_config", NULL, NULL, "--speculative-config (docs/speculation.md)"},
    {"lora_config", NULL, NULL, "--lora NAME=FOLDER"},
    {"quant_config", NULL, NULL, "--quantize TYPE"},
    {"sparse_attention_config", NULL, NULL, "a model that has it"},
    {"cache_transceiver_config", NULL, NULL, "docs/disaggregated.md"},
    {"allreduce_strategy", NULL, NULL, NULL},
    {"attention_dp_config", NULL, NULL, NULL},
    {"attn_backend", NULL, NULL, NULL},
    {"backend", NULL, NULL, NULL},
    {"batching_type", NULL, NULL, NULL},
    {"build_config", NULL, NULL, NULL},
    {"context_parallel_size", NULL, NULL, NULL},
    {"cuda_graph_config", NULL, NULL, NULL},
    {"disable_overlap_scheduler", NULL, NULL, NULL},
    {"enable_attention_dp", NULL, NULL, NULL},
    {"enable_autotuner", NULL, NULL, NULL},
    {"enable_iter_perf_stats", NULL, NULL, NULL},
    {"enable_iter_req_stats", NULL, NULL, NULL},
    {"enable_layerwise_nvtx_marker", NULL, NULL, NULL},
    {"enable_min_latency", NULL, NULL, NULL},
    {"garbage_collection_gen0_threshold", NULL, NULL, NULL},
    {"gpus_per_node", NULL, NULL, NULL},
    {"guided_decoding_backend", NULL, NULL, NULL},
    {"iter_stats_max_iterations", NULL, NULL, NULL},
    {"load_format", NULL, NULL, NULL},
    {"max_input_len", NULL, NULL, NULL},
    {"moe_backend", NULL, NULL, NULL},
    {"moe_config", NULL, NULL, NULL},
    {"moe_max_num_tokens", NULL, NULL, NULL},
    {"nvfp4_gemm_config", NULL, NULL, NULL},
    {"num_postprocess_workers", NULL, NULL, NULL},
    {"peft_cache_config", NULL, NULL, NULL},
    {"perf_metrics_max_requests", NULL, NULL, NULL},
    {"print_iter_log", NULL, NULL, NULL},
    {"return_perf_metrics", NULL, NULL, NULL},
    {"scheduler_config", NULL, NULL, NULL},
    {"skip_tokenizer_init", NULL, NULL, NULL},
    {"stream_interval", NULL, NULL, NULL},
    {"torch_compile_config", NULL, NULL, NULL},
    {"trust_remote_code", NULL, NULL, NULL},
    {"use_cuda_graph", NULL, NULL, NULL},
};

static const row cache[] = {
    {"free_gpu_memory_fraction", "--gpu_memory_utilization=", "--kv_cache_free_mem_fraction=", NULL},
    {"dtype", "--kv_cache_dtype=", "--kv_cache_dtype=", NULL},
    {"enable_block_reuse", "--set=enable_kv_cache_reuse:", NULL, NULL},
    {"max_tokens", "--set=max_tokens_in_paged_kv_cache:", NULL, NULL},
    {"host_cache_size", "--set=kv_cache_host_memory_bytes:", NULL, NULL},
    {"sink_token_length", "--set=sink_token_length:", NULL, NULL},
    {"tokens_per_block", "--build=--tokens_per_block=", NULL, NULL},
    {"max_attention_window", NULL, NULL, "--set max_attention_window_size:N"},
    {"copy_on_partial_reuse", NULL, NULL, NULL},
    {"cross_kv_cache_fraction", NULL, NULL, NULL},
    {"enable_partial_reuse", NULL, NULL, NULL},
    {"event_buffer_max_size", NULL, NULL, NULL},
    {"mamba_ssm_cache_dtype", NULL, NULL, NULL},
    {"max_gpu_total_bytes", NULL, NULL, NULL},
    {"max_util_for_resume", NULL, NULL, NULL},
    {"onboard_blocks", NULL, NULL, NULL},
    {"secondary_offload_min_priority", NULL, NULL, NULL},
    {"use_kv_cache_manager_v2", NULL, NULL, NULL},
    {"use_uvm", NULL, NULL, NULL},
};

static const row *find(const row *rows, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++) {
        if (!strcmp(rows[i].name, name)) {
            return &rows[i];
        }
    }
    return NULL;
}

static bool is_left_open(const nrd_json *value)
{
    return nrd_json_is(value, NRD_JSON_NULL) || !strcmp(nrd_json_str(value, ""), "auto");
}

/* "true" and "false" of YAML; a switch stands alone or not at all. */
static nrd_error *take_reuse(nrd_serve_words *out, const nrd_json *value)
{
    nrd_error *err = NULL;
    char *word = NULL;

    if (nrd_json_bool(value, false)) {
        NRD_DUP_GOTO(word, "--enable_kv_cache_reuse", err, fail);
        err = nrd_serve_add_word(out, word);
    }
fail:
    return err;
}

static nrd_error *take_value(nrd_serve_words *out, const nrd_llm_api_reader *r, const row *at, const nrd_json *value)
{
    const char *before = r->is_bench ? at->bench : at->word;
    nrd_str word = {0};

    if (at->refused) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'%s' is not supported: use %s", at->name, at->refused);
    }
    if (r->is_bench && !strcmp(at->name, "enable_block_reuse")) {
        return take_reuse(out, value);
    }
    if (!before) {
        fprintf(stderr, "%s: --extra_llm_api_options: '%s' has no effect\n", r->program, at->name);
        return NULL;
    }
    if (is_left_open(value)) {
        return NULL;
    }
    const char *text = nrd_json_str(value, NULL);
    if (nrd_json_is(value, NRD_JSON_OBJECT) || nrd_json_is(value, NRD_JSON_ARRAY) || (text && strcspn(text, ",\r\n") < value->n)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s': expected one value on one line", at->name);
    }
    nrd_str_puts(&word, before);
    if (text) {
        nrd_str_puts(&word, text);
    } else {
        nrd_json_put(&word, value, 0);
    }
    NRD_TRY(nrd_str_error(&word));
    return nrd_serve_add_word(out, nrd_str_steal(&word));
}

static nrd_error *take_drafts(nrd_serve_words *out, const nrd_json *config)
{
    nrd_str word = {0};

    nrd_str_puts(&word, "--speculative_config=");
    nrd_error *err = nrd_llm_api_put_drafts(&word, config);
    if (err) {
        nrd_str_fini(&word);
        return err;
    }
    return nrd_serve_add_word(out, nrd_str_steal(&word));
}

static nrd_error *take_all(nrd_serve_words *out, const nrd_llm_api_reader *r, const row *rows, size_t n, const nrd_json *values)
{
    for (size_t i = 0; i < nrd_json_len(values); i++) {
        const nrd_json *value = nrd_json_at(values, i);
        const row *at = find(rows, n, value->key);
        if (!at) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "'%.80s' is not known", value->key);
        }
        const bool has_rows = at->name == cache_name || at->name == drafts_name;
        if (!has_rows) {
            NRD_TRY(take_value(out, r, at, value));
        } else if (nrd_json_is(value, NRD_JSON_OBJECT)) {
            NRD_TRY(nrd_error_wrap(at->name == drafts_name ? take_drafts(out, value) : take_all(out, r, cache, sizeof cache / sizeof *cache, value),
                                   "%s", at->name));
        } else if (!is_left_open(value)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s': expected names and values", at->name);
        }
    }
    return NULL;
}

nrd_error *nrd_llm_api_read(nrd_serve_words *out, const nrd_llm_api_reader *r, const char *text)
{
    nrd_json_doc *doc = NULL;
    nrd_str json = {0};
    nrd_error *err = nrd_yaml_to_json(&json, text, strlen(text));

    err = err ? err : nrd_json_parse(&doc, json.data, json.len, NULL);
    if (!err) {
        const nrd_json *root = nrd_json_root(doc);
        err = nrd_json_is(root, NRD_JSON_OBJECT) ? take_all(out, r, whole, sizeof whole / sizeof *whole, root)
              : nrd_json_is(root, NRD_JSON_NULL) ? NULL
                                                 : nrd_errorf(NRD_ERR_INVALID_ARG, "expected names and values");
    }
    nrd_json_doc_free(doc);
    nrd_str_fini(&json);
    return err;
}
