/* tools/model_path.h - from what a user names to an engine folder.
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
#include "nereid/executor.h"

#include <stdbool.h>

enum { NRD_SMALL_MODEL_BYTES = 64 << 20 };

typedef struct nrd_model_path {
    char *engine;      /* folder to open */
    char *tokenizer;   /* where a tokenizer should be: PATH as given, or the engine's folder */
    bool is_temporary;
} nrd_model_path;

/* device: the --device option, NULL for auto; a new engine's weights are packed for it. */
nrd_error *nrd_model_path_open(nrd_model_path *out, const char *path,
                               const char *device) NRD_MUST_USE;
void nrd_model_path_close(nrd_model_path *m);

/* Opens and closes a device that is named (not NULL, auto or cpu): is it there, does it work? */
nrd_error *nrd_tool_check_device(const char *name) NRD_MUST_USE;

/* Whose layouts an engine for `device` gets: "cpu" or "rows", which a GPU converts while it loads. */
const char *nrd_build_layouts(const char *device);

/* Options of the verbs that open an engine: --device --threads --isa --compute-dtype --kv-dtype
 * --max-num-tokens --max-batch-size --kv-cache-free-mem-fraction. */
typedef struct nrd_exec_options {
    const char *device, *isa, *compute_dtype, *kv_dtype;
    int32_t threads, max_num_tokens, max_batch_size, device_id;
    double kv_fraction;
    bool no_cuda_graphs, no_overlap;
} nrd_exec_options;

/* Rows for nrd_opts_parse; `o` must live as long as they do. */
#define NRD_EXEC_OPTION_ROWS(o)                                                                    \
    {"--device", NULL, NRD_OPT_STR, &(o).device, "NAME", "auto, cpu or cuda (auto)"},              \
    {"--device_id", NULL, NRD_OPT_INT, &(o).device_id, "N", "which GPU (0)"},                      \
    {"--threads", "-t", NRD_OPT_INT, &(o).threads, "N", "CPU threads (one a core)"},                      \
    {"--isa", NULL, NRD_OPT_STR, &(o).isa, "NAME", "generic, avx2, avx512, avx512vnni, amx (best)"},    \
    {"--compute_dtype", NULL, NRD_OPT_STR, &(o).compute_dtype, "TYPE",                             \
     "float32: dequantize the weights first (native)"},                                            \
    {"--kv_dtype", "--kv_cache_dtype", NRD_OPT_STR, &(o).kv_dtype, "TYPE",                         \
     "element type of the KV cache (the engine's)"},                                               \
    {"--max_num_tokens", NULL, NRD_OPT_INT, &(o).max_num_tokens, "N", "tokens in one step"},       \
    {"--max_batch_size", NULL, NRD_OPT_INT, &(o).max_batch_size, "N", "sequences in one step"},    \
    {"--kv_cache_free_mem_fraction", "--kv_cache_free_gpu_mem_fraction", NRD_OPT_NUM,              \
     &(o).kv_fraction, "X", "share of free memory for the KV cache"},                              \
    {"--no_cuda_graphs", NULL, NRD_OPT_FLAG, &(o).no_cuda_graphs, NULL,                            \
     "enqueue every operation of every step"},                                                     \
    {"--no_overlap", NULL, NRD_OPT_FLAG, &(o).no_overlap, NULL,                                    \
     "never run two operations side by side"}

nrd_error *nrd_exec_options_apply(const nrd_exec_options *o, nrd_exec_config *config) NRD_MUST_USE;

#endif
