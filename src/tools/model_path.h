/* SPDX-License-Identifier: Apache-2.0
 * tools/model_path.h - from what a user names to an engine folder.
 *
 * Purpose   PATH may be an engine folder, a GGUF file, a Hugging Face or a checkpoint folder. What
 *           is no engine yet is built once into $NEREID_CACHE/engines; small models (under
 *           NRD_SMALL_MODEL_BYTES) into a temporary folder that goes with the nrd_model_path.
 * Owner     The main thread.
 * Errors    NOT_FOUND, and what building says.
 */
#ifndef NRD_TOOLS_MODEL_PATH_H
#define NRD_TOOLS_MODEL_PATH_H

#include "base/error.h"
#include "base/options.h"
#include "nereid/executor.h"

#include <stdbool.h>

enum { NRD_SMALL_MODEL_BYTES = 64 << 20 };

typedef struct nrd_model_path {
    char *engine;      /* folder to open */
    char *tokenizer;   /* where a tokenizer should be: PATH as given, or the engine's folder */
    bool is_temporary;
    int32_t tp_size; /* of a temporary one */
} nrd_model_path;

/* device: the --device option, NULL for auto; a new engine's weights are packed for it. tp_size: ranks of a
 * new engine, 0 for one; INVALID_ARG where PATH is an engine of another number. */
nrd_error *nrd_model_path_open(nrd_model_path *out, const char *path, const char *device,
                               int32_t tp_size) NRD_MUST_USE;
void nrd_model_path_close(nrd_model_path *m);

/* Opens and closes a device that is named (not NULL, auto or cpu): is it there, does it work? */
nrd_error *nrd_tool_check_device(const char *name) NRD_MUST_USE;

/* Whose layouts an engine for `device` gets: "cpu" or "rows", which a GPU converts while it loads. */
const char *nrd_build_layouts(const char *device);

/* Options of the verbs that open an engine: --device --tp-size --threads --isa --compute-dtype --kv-dtype
 * --max-num-tokens --max-batch-size --kv-cache-free-mem-fraction --lora-dir. */
typedef struct nrd_exec_options {
    const char *device, *isa, *compute_dtype, *kv_dtype, *lora_dir;
    int32_t threads, max_num_tokens, max_batch_size, device_id, tp_size;
    double kv_fraction;
    bool no_cuda_graphs, no_overlap;
} nrd_exec_options;

/* Rows of a struct `type` whose field `field` is an nrd_exec_options. */
#define NRD_EXEC_OPTION_ROWS(type, field)                                                          \
    NRD_OPT_ROW(type, STR, "device", NULL, field.device, "NAME", "auto", "auto, cpu or cuda"),     \
    NRD_OPT_ROW(type, INT, "device_id", NULL, field.device_id, "N", "0", "which GPU"),             \
    NRD_OPT_ROW(type, INT, "tp_size", "--tensor_parallel_size", field.tp_size, "N", "1",           \
                "ranks that share the model: so many processes"),                                  \
    NRD_OPT_ROW(type, INT, "threads", "-t", field.threads, "N", "one a core", "CPU threads of a rank"),      \
    NRD_OPT_ROW(type, STR, "isa", NULL, field.isa, "NAME", "best",                                 \
                "generic, avx2, avx512, avx512vnni, amx"),                                         \
    NRD_OPT_ROW(type, STR, "compute_dtype", NULL, field.compute_dtype, "TYPE", "native",           \
                "float32: dequantize the weights first"),                                          \
    NRD_OPT_ROW(type, STR, "kv_dtype", "--kv_cache_dtype", field.kv_dtype, "TYPE", "the engine's", \
                "element type of the KV cache"),                                                   \
    NRD_OPT_ROW(type, INT, "max_num_tokens", NULL, field.max_num_tokens, "N", NULL,                \
                "tokens in one step"),                                                             \
    NRD_OPT_ROW(type, INT, "max_batch_size", NULL, field.max_batch_size, "N", NULL,                \
                "sequences in one step"),                                                          \
    NRD_OPT_ROW(type, NUM, "kv_cache_free_mem_fraction", "--kv_cache_free_gpu_mem_fraction",       \
                field.kv_fraction, "X", NULL, "share of free memory for the KV cache"),            \
    NRD_OPT_ROW(type, STR, "lora_dir", NULL, field.lora_dir, "DIR", NULL,                          \
                "a LoRA adapter for every request: a PEFT folder, or what hf_lora_convert wrote"),   \
    NRD_OPT_ROW(type, FLAG, "no_cuda_graphs", NULL, field.no_cuda_graphs, NULL, NULL,              \
                "enqueue every operation of every step"),                                          \
    NRD_OPT_ROW(type, FLAG, "no_overlap", NULL, field.no_overlap, NULL, NULL,                      \
                "never run two operations side by side")

nrd_error *nrd_exec_options_apply(const nrd_exec_options *o, nrd_exec_config *config) NRD_MUST_USE;
/* Loads the adapter that was named. *out_id: what requests say in lora_task_id; 0: none was. */
nrd_error *nrd_exec_options_adapter(const nrd_exec_options *o, nrd_exec *x, uint64_t *out_id) NRD_MUST_USE;

#endif
