/* SPDX-License-Identifier: Apache-2.0
 * The TRITONBACKEND entry points of the model "tensorrt_llm_bls". */
#include "backends/bls/flow.h"

#include "backends/util/entry.h"
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

static TRITONSERVER_Error *copy_param(const bls_model *m, const char *key, const char *otherwise, char **out)
{
    const char *v = nrd_tb_config_param(&m->config, key);

    v = v ? v : otherwise;
    *out = v ? strdup(v) : NULL;
    return v && !*out ? nrd_tb_error(nrd_error_no_memory()) : NULL;
}

static TRITONSERVER_Error *model_init(bls_model *m, TRITONBACKEND_Model *model)
{
    NRD_TB_TRY(nrd_tb_config_load(&m->config, model));
    NRD_TB_TRY(copy_param(m, "tensorrt_llm_draft_model_name", NULL, &m->draft_name));
    NRD_TB_TRY(copy_param(m, "multimodal_encoders_name", NULL, &m->encoders_name));
    NRD_TB_TRY(copy_param(m, "tensorrt_llm_model_name", "tensorrt_llm", &m->llm_name));
    nrd_bls_steps_init(&m->steps, m->config.server, m->llm_name, m->draft_name, m->encoders_name);
    m->accumulate_tokens = is_yes(nrd_tb_config_param(&m->config, "accumulate_tokens"));
    NRD_TB_TRY(nrd_tb_inner_allocator(&m->allocator));
    return nrd_tb_inflight_start(&m->inflight);
}

NRD_TB_MODEL_ENTRIES(bls_model, model_init, model_free)
NRD_TB_EXECUTE_EACH(bls_model, nrd_bls_flow_start)
