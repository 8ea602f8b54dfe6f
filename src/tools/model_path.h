/* SPDX-License-Identifier: Apache-2.0
 * tools/model_path.h - options of the verbs that open an engine.
 *
 * Purpose   One table of options and what it does to the executor's configuration; the engine's folder
 *           comes from executor/model_path.h.
 * Owner     The main thread.
 * Errors    INVALID_ARG names the option.
 */
#ifndef NRD_TOOLS_MODEL_PATH_H
#define NRD_TOOLS_MODEL_PATH_H

#include "base/error.h"
#include "base/options.h"
#include "executor/model_path.h"
#include "nereid/executor.h"

#include <stdbool.h>

/* --device --tp-size --pp-size --moe-ep-size --threads --isa --compute-dtype --kv-dtype
 * --max-num-tokens --max-batch-size --kv-cache-free-mem-fraction --gpu-weights-percent --mmproj --lora-dir --speculative-config. */
typedef struct nrd_exec_options {
    const char *device, *isa, *compute_dtype, *kv_dtype, *lora_dir, *speculative, *mmproj, *gpu_weights;
    int32_t threads, max_num_tokens, max_batch_size, device_id, tp_size, pp_size, moe_ep_size;
    double kv_fraction;
    const char *tokenizer_dir; /* both of nrd_engine_asked; rows of the verbs that have text */
    bool needs_tokenizer;
    bool no_cuda_graphs, no_overlap, two_step_head;
} nrd_exec_options;

/* Rows of a struct `type` whose field `field` is an nrd_exec_options. */
#define NRD_EXEC_OPTION_ROWS(type, field)                                                          \
    NRD_OPT_ROW(type, STR, "device", NULL, field.device, "NAME", "auto", "auto, cpu or cuda"),     \
    NRD_OPT_ROW(type, INT, "device_id", NULL, field.device_id, "N", "0", "which GPU"),             \
    NRD_OPT_ROW(type, INT, "tp_size", "--tensor_parallel_size", field.tp_size, "N", "1",           \
                "ranks that share each layer: so many processes"),                                 \
    NRD_OPT_ROW(type, INT, "pp_size", "--pipeline_parallel_size", field.pp_size, "N", "1",         \
                "pipeline stages, each of some layers: so many processes, times tp_size"),         \
    NRD_OPT_ROW(type, INT, "moe_ep_size", "--ep_size", field.moe_ep_size, "N", "1",                \
                "of the tp_size ranks, how many share the list of experts instead of dividing each"), \
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
    NRD_OPT_ROW(type, STR, "gpu_weights_percent", NULL, field.gpu_weights, "X", "1",               \
                "share of the weights that is on the GPU, 0 to 1; each step copies the others there"), \
    NRD_OPT_ROW(type, FLAG, "two_step_head", NULL, field.two_step_head, NULL, NULL,                \
                "the LM head finds candidates in 8 bits, then multiplies only these: same choices"), \
    NRD_OPT_ROW(type, STR, "mmproj", NULL, field.mmproj, "FILE", "one beside MODEL",               \
                "the vision tower of a GGUF model; none: text alone"),                             \
    NRD_OPT_ROW(type, STR, "lora_dir", NULL, field.lora_dir, "DIR", NULL,                          \
                "a LoRA adapter for every request: a PEFT folder, or what hf_lora_convert wrote"),   \
    NRD_OPT_ROW(type, STR, "speculative_config", NULL, field.speculative, "JSON", "off",           \
                "several tokens a step, the same ones: {\"method\": \"ngram\"}, lookahead, medusa, eagle, eagle3, mtp, redrafter or a draft model"),                  \
    NRD_OPT_ROW(type, FLAG, "no_cuda_graphs", NULL, field.no_cuda_graphs, NULL, NULL,              \
                "enqueue every operation of every step"),                                          \
    NRD_OPT_ROW(type, FLAG, "no_overlap", NULL, field.no_overlap, NULL, NULL,                      \
                "never run two operations side by side")

/* As nrd_model_path_open, of a path or the name of a model, which is pulled where it is not in the cache. */
nrd_error *nrd_exec_options_open(const nrd_exec_options *o, const char *name, nrd_model_path *out) NRD_MUST_USE;
nrd_error *nrd_exec_options_apply(const nrd_exec_options *o, nrd_exec_config *config) NRD_MUST_USE;
/* Loads the adapter that was named. *out_id: what requests say in lora_task_id; 0: none was. */
nrd_error *nrd_exec_options_adapter(const nrd_exec_options *o, nrd_exec *x, uint64_t *out_id) NRD_MUST_USE;

#endif
