/* SPDX-License-Identifier: Apache-2.0
 * The TRITONBACKEND entry points of the model "disaggregated_serving_bls". */
#include "backends/disaggregated/flow.h"

#include <stdlib.h>

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
    NRD_TB_TRY(nrd_tb_inflight_start(&m->inflight));
    return TRITONBACKEND_ModelSetState(model, m);
}

TRITONSERVER_Error *TRITONBACKEND_Initialize(TRITONBACKEND_Backend *backend)
{
    (void)backend;
    nrd_tb_use_server_log();
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model *model)
{
    nrd_disagg_model *m = calloc(1, sizeof *m);
    TRITONSERVER_Error *err = m ? model_init(m, model) : nrd_tb_error(nrd_error_no_memory());

    if (err && m) {
        model_free(m);
    }
    return err;
}

TRITONSERVER_Error *TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model *model)
{
    nrd_disagg_model *m = NULL;
    NRD_TB_TRY(TRITONBACKEND_ModelState(model, (void **)&m));
    if (m) {
        model_free(m);
    }
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance *instance)
{
    return nrd_tb_instance_share(instance);
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request **requests,
                                                       const uint32_t request_count)
{
    nrd_disagg_model *m = NULL;
    NRD_TB_TRY(TRITONBACKEND_ModelInstanceState(instance, (void **)&m));
    for (uint32_t i = 0; i < request_count; i++) {
        nrd_disagg_start(m, instance, requests[i]);
    }
    return NULL;
}
