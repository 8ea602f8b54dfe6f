/* SPDX-License-Identifier: Apache-2.0
 * Adapters that are known by names: those of the configuration, and those that a front end brings. */
#include "backends/tensorrtllm/llm.h"
#include "backends/tensorrtllm/trt_log.h"


#include <string.h>

static TRITONSERVER_Error *refuse(const nrd_llm_instance *inst, const char *why, const char *what)
{
    return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "model '%s': " NRD_LLM_ADAPTERS ": %s '%.200s'",
                         inst->model->config.name, why, what);
}

/* "NAME=FOLDER" of n bytes, which are not ended by a zero. */
static TRITONSERVER_Error *load_one(nrd_llm_instance *inst, const char *text, size_t n)
{
    char *pair = strndup(text, n), *equals = pair ? strchr(pair, '=') : NULL;
    TRITONSERVER_Error *err = NULL;

    if (!pair) {
        err = nrd_tb_error(nrd_error_no_memory());
    } else if (!equals || equals == pair || !equals[1]) {
        err = refuse(inst, "expected NAME=FOLDER, got", pair);
    } else {
        nrd_error *e = nrd_exec_lora_load(inst->exec, nrd_llm_adapter_number(pair, (size_t)(equals - pair)), equals + 1);
        if (e) {
            err = nrd_tb_errorf((TRITONSERVER_Error_Code)nrd_exec_error_code(e), "model '%s': LoRA adapter '%.*s': %s",
                                inst->model->config.name, (int)(equals - pair), pair, nrd_exec_error_message(e));
            nrd_exec_error_free(e);
        } else {
            TRT_LOG(INFO, "LoRA adapter '%.*s' is loaded", (int)(equals - pair), pair);
        }
    }
    free(pair);
    return err;
}

TRITONSERVER_Error *nrd_llm_adapters_load(nrd_llm_instance *inst)
{
    const char *p = nrd_tb_config_param(&inst->model->config, NRD_LLM_ADAPTERS);
    for (; p && *p; p += *p == ';') {
        size_t n = strcspn(p, ";");
        if (n > 0) {
            NRD_TB_TRY(load_one(inst, p, n));
        }
        p += n;
    }
    return NULL;
}

nrd_error *nrd_llm_adapter_ensure(nrd_llm_instance *inst, uint64_t number, const char *dir)
{
    return nrd_exec_lora_has(inst->exec, number) ? NULL : nrd_exec_lora_load(inst->exec, number, dir);
}
