/* SPDX-License-Identifier: Apache-2.0
 * The TRITONBACKEND entry points of the model "disaggregated_serving_bls". */
#include "backends/disaggregated/flow.h"

#include "backends/util/entry.h"

static void model_free(nrd_disagg_model *m)
{
    nrd_tb_inflight_stop(&m->inflight);
    if (m->allocator) {
        nrd_tb_log_error(TRITONSERVER_ResponseAllocatorDelete(m->allocator), "response allocator");
    }
    nrd_tb_config_fini(&m->config);
    free(m);
}

static TRITONSERVER_Error *name_of(const nrd_disagg_model *m, const char *key, const char **out)
{
    *out = nrd_tb_config_param(&m->config, key);
    return *out ? NULL
                : nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "model '%s' needs the parameter %s, the name of a model of the backend "
                                "tensorrtllm", m->config.name, key);
}

static TRITONSERVER_Error *model_init(nrd_disagg_model *m, TRITONBACKEND_Model *model)
{
    NRD_TB_TRY(nrd_tb_config_load(&m->config, model));
    NRD_TB_TRY(name_of(m, "context_model_name", &m->context));
    NRD_TB_TRY(name_of(m, "generation_model_name", &m->generation));
    NRD_TB_TRY(nrd_tb_inner_allocator(&m->allocator));
    return nrd_tb_inflight_start(&m->inflight);
}

NRD_TB_MODEL_ENTRIES(nrd_disagg_model, model_init, model_free)
NRD_TB_EXECUTE_EACH(nrd_disagg_model, nrd_disagg_start)
