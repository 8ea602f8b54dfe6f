/* SPDX-License-Identifier: Apache-2.0
 * How an executor is opened. */
#include "python/module.h"

#include <stdio.h>

#define ROW(kind, field)                                                                           \
    {                                                                                              \
#field, NRD_PY_##kind, offsetof(nrd_exec_config, field)                                    \
    }
static const nrd_py_field rows[] = {
    ROW(I32, batching),
    ROW(I32, policy),
    ROW(I32, decoding_mode),
    ROW(I32, max_beam_width),
    ROW(I32, max_batch_size),
    ROW(I32, max_num_tokens),
    ROW(I32, max_queue_size),
    ROW(I64, max_tokens_in_paged_kv_cache),
    ROW(F64, kv_cache_free_mem_fraction),
    ROW(U64, kv_cache_host_memory_bytes),
    ROW(U64, state_cache_bytes),
    ROW(BOOL, enable_kv_cache_reuse),
    ROW(BOOL, enable_chunked_context),
    ROW(BOOL, normalize_log_probs),
    ROW(BOOL, deterministic),
    ROW(BOOL, two_step_head),
    ROW(I32, sink_token_length),
    ROW(DTYPE, kv_dtype),
    ROW(DTYPE, compute_dtype),
    ROW(STR, device),
    ROW(I32, n_threads),
    ROW(STR, cpu_isa),
    ROW(I32, iter_stats_max_iterations),
    ROW(BOOL, cuda_graph_mode),
    ROW(I32, cuda_graph_cache_size),
    ROW(F64, gpu_weights_percent),
    ROW(STR, guided_decoding_backend),
    ROW(STR, tokenizer_dir),
    ROW(I32, lookahead_window_size),
    ROW(I32, lookahead_ngram_size),
    ROW(I32, lookahead_verification_set_size),
    ROW(BOOL, verify_checksums),
    ROW(I32, mixed_context_tokens),
    ROW(I32, choices_at_once),
    ROW(BOOL, no_overlap),
    ROW(BOOL, enable_lora),
    ROW(I32, lora_cache_max_adapter_size),
    ROW(I32, lora_cache_optimal_adapter_size),
    ROW(F64, lora_cache_gpu_memory_fraction),
    ROW(U64, lora_cache_host_memory_bytes),
    ROW(STR, lora_prefetch_dir),
    ROW(U64, picture_cache_bytes),
    ROW(STR, speculative_config),
    ROW(STR, medusa_choices),
    ROW(STR, eagle_choices),
    ROW(I32, eagle_top_k),
    ROW(F64, eagle_posterior_threshold),
    {"max_attention_window", NRD_PY_OTHER, 0},
    {"device_ids", NRD_PY_OTHER, 0},
};

/* Engine threads may not wait for Python's lock, so warnings go to the error stream as they are. */
static void print(void *user, int level, const char *message)
{
    (void)user;
    if (level <= 1) {
        fprintf(stderr, "nereid: %s%s\n", level == 1 ? "warning: " : "", message);
    }
}

static bool read_ints(PyObject *dict, const char *name, const int32_t **out, int32_t *out_n)
{
    const void *data;
    size_t n;
    if (!nrd_py_bytes(dict, name, sizeof(int32_t), &data, &n)) {
        return false;
    }
    if (n > 4096) {
        PyErr_Format(PyExc_ValueError, "%s has %zu entries, at most 4096 are possible", name, n);
        return false;
    }
    if (n > 0) {
        *out = data;
        *out_n = (int32_t)n;
    }
    return true;
}

bool nrd_py_config(PyObject *dict, nrd_exec_config *out)
{
    nrd_exec_config_init(out);
    out->log = print;
    return nrd_py_fill(dict, rows, sizeof rows / sizeof *rows, out) &&
           read_ints(dict, "max_attention_window", &out->max_attention_window,
                     &out->n_max_attention_window) &&
           read_ints(dict, "device_ids", &out->device_ids, &out->n_device_ids);
}
