/* SPDX-License-Identifier: Apache-2.0
 * The TRITONBACKEND entry points of the model "tensorrt_llm_bls". */
#include "backends/bls/flow.h"

#include "base/log.h"
#include "base/str.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static bool is_yes(const char *v)
{
    return v && (!strcasecmp(v, "true") || !strcasecmp(v, "yes") || !strcasecmp(v, "1") ||
                 !strcasecmp(v, "t"));
}

static void model_free(bls_model *m)
{
    nrd_tb_inflight_stop(&m->inflight);
    if (m->allocator) {
        nrd_tb_log_error(TRITONSERVER_ResponseAllocatorDelete(m->allocator), "response allocator");
    }
    if (m->llm_name) {
        nrd_bls_steps_fini(&m->steps);
    }
    free(m->llm_name);
    free(m->draft_name);
    free(m->encoders_name);
    nrd_tb_config_fini(&m->config);
    free(m);
}

TRITONSERVER_Error *TRITONBACKEND_Initialize(TRITONBACKEND_Backend *backend)
{
    (void)backend;
    nrd_tb_use_server_log();
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model *model)
{
    bls_model *m = calloc(1, sizeof *m);
    if (!m) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    TRITONSERVER_Error *err;

    err = nrd_tb_config_load(&m->config, model);
    if (!err) {
        const char *name = nrd_tb_config_param(&m->config, "tensorrt_llm_model_name");
        m->llm_name = strdup(name ? name : "tensorrt_llm");
        err = m->llm_name ? NULL : nrd_tb_error(nrd_error_no_memory());
        const char *draft = nrd_tb_config_param(&m->config, "tensorrt_llm_draft_model_name");
        m->draft_name = draft ? strdup(draft) : NULL;
        err = err || !draft || m->draft_name ? err : nrd_tb_error(nrd_error_no_memory());
        const char *encoders = nrd_tb_config_param(&m->config, "multimodal_encoders_name");
        m->encoders_name = encoders ? strdup(encoders) : NULL;
        err = err || !encoders || m->encoders_name ? err : nrd_tb_error(nrd_error_no_memory());
        nrd_bls_steps_init(&m->steps, m->config.server, m->llm_name, m->draft_name, m->encoders_name);
        m->accumulate_tokens = is_yes(nrd_tb_config_param(&m->config, "accumulate_tokens"));
    }
    if (!err) {
        err = nrd_tb_inner_allocator(&m->allocator);
    }
    if (!err) {
        err = nrd_tb_inflight_start(&m->inflight);
    }
    if (!err) {
        err = TRITONBACKEND_ModelSetState(model, m);
    }
    if (err) {
        model_free(m);
    }
    return err;
}

TRITONSERVER_Error *TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model *model)
{
    bls_model *m = NULL;
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

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance *instance,
                                                       TRITONBACKEND_Request **requests,
                                                       const uint32_t request_count)
{
    bls_model *m = NULL;
    NRD_TB_TRY(TRITONBACKEND_ModelInstanceState(instance, (void **)&m));
    for (uint32_t i = 0; i < request_count; i++) {
        nrd_bls_flow_start(m, instance, requests[i]);
    }
    return NULL;
}
