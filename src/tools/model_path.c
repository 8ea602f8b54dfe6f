/* SPDX-License-Identifier: Apache-2.0
 * The options that open the executor, for run, chat, eval and bench. */
#include "tools/model_path.h"

#include "base/dtype.h"
#include "base/number.h"
#include "hub/pull.h"
#include "model/engine_file.h"
#include "tools/tools.h"

#include <stdlib.h>
#include <string.h>

/* text NULL: as it is */
static nrd_error *parse_gpu_weights(const char *text, double *out)
{
    char *end = NULL;

    if (!text) {
        return NULL;
    }
    *out = nrd_number_read(text, &end);
    return end != text && *end == '\0' && *out >= 0 && *out <= 1
               ? NULL
               : nrd_errorf(NRD_ERR_INVALID_ARG, "--gpu_weights_percent: '%s' is no number from 0 to 1 (a share, not percent)", text);
}

nrd_error *nrd_exec_options_open(const nrd_exec_options *o, const char *name, nrd_model_path *out)
{
    char *path = NULL;
    NRD_TRY(nrd_hub_resolve(name, &path));
    nrd_error *err = nrd_model_path_open(out, path, o->device, (nrd_engine_asked){
                                                    .tp_size = o->tp_size,
                                                    .pp_size = o->pp_size,
                                                    .moe_ep_size = o->moe_ep_size,
                                                    .mmproj = o->mmproj,
                                                    .needs_tokenizer = o->needs_tokenizer,
                                                    .tokenizer_dir = o->tokenizer_dir});
    free(path);
    return err;
}

nrd_error *nrd_exec_options_apply(const nrd_exec_options *o, nrd_exec_config *c)
{
    c->device = o->device;
    c->cpu_isa = o->isa;
    c->n_threads = o->threads;
    c->max_num_tokens = o->max_num_tokens;
    c->max_batch_size = o->max_batch_size;
    c->kv_cache_free_mem_fraction = o->kv_fraction;
    c->cuda_graph_mode = !o->no_cuda_graphs;
    c->no_overlap = o->no_overlap;
    c->two_step_head = o->two_step_head;
    c->speculative_config = o->speculative;
    if (o->lora_dir) { /* one adapter, of any rank */
        c->enable_lora = true;
        c->lora_cache_max_adapter_size = NRD_LORA_MAX_RANK;
        c->lora_cache_host_memory_bytes = UINT64_MAX / 2;
    }
    if (o->device_id > 0) {
        c->device_ids = &o->device_id;
        c->n_device_ids = 1;
    }
    NRD_TRY(parse_gpu_weights(o->gpu_weights, &c->gpu_weights_percent));
    NRD_TRY(nrd_tool_parse_dtype("compute_dtype", o->compute_dtype, &c->compute_dtype));
    return nrd_tool_parse_dtype("kv_dtype", o->kv_dtype, &c->kv_dtype);
}

nrd_error *nrd_exec_options_adapter(const nrd_exec_options *o, nrd_exec *x, uint64_t *out_id)
{
    *out_id = 0;
    if (!o->lora_dir) {
        return NULL;
    }
    nrd_error *err = nrd_exec_lora_load(x, 1, o->lora_dir);
    *out_id = err ? 0 : 1;
    return err;
}
