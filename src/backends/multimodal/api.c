/* SPDX-License-Identifier: Apache-2.0
 * The TRITONBACKEND entry points of the model "multimodal_encoders". */
#include "backends/multimodal/encoders.h"

#include "backends/util/entry.h"
#include "base/clock.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

/* ---- the model ---- */

static TRITONSERVER_Error *read_table_type(nrd_mm_model *m)
{
    static const struct {
        const char *name;
        TRITONSERVER_DataType type;
    } types[] = {{"TYPE_FP16", TRITONSERVER_TYPE_FP16}, {"TYPE_BF16", TRITONSERVER_TYPE_BF16}, {"TYPE_FP32", TRITONSERVER_TYPE_FP32}};
    static const char output[] = "OUT_PROMPT_EMBEDDING_TABLE";
    const nrd_json *outputs = nrd_json_get(m->config.root, "output");
    const char *name = "";

    for (size_t i = 0; i < nrd_json_len(outputs); i++) {
        const nrd_json *o = nrd_json_at(outputs, i);
        name = strcmp(nrd_json_get_str(o, "name", ""), output) == 0 ? nrd_json_get_str(o, "data_type", "") : name;
    }
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (!strcmp(name, types[i].name)) {
            m->table_type = types[i].type;
            return NULL;
        }
    }
    return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "model '%s': the output %s has the type '%s', expected TYPE_FP16, TYPE_BF16 or "
                         "TYPE_FP32", m->config.name, output, name);
}

static TRITONSERVER_Error *open_encoder(nrd_mm_model *m)
{
    /* The newer name first. */
    const char *dir = nrd_tb_config_param(&m->config, "multimodal_model_path");
    nrd_vision_encoder_config c;

    dir = dir ? dir : nrd_tb_config_param(&m->config, "visual_model_path");
    if (!dir) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "model '%s': parameter multimodal_model_path (or visual_model_path) is not "
                             "set: the folder that build_multimodal_engine.py wrote", m->config.name);
    }
    nrd_vision_encoder_config_init(&c);
    c.device = nrd_tb_config_param(&m->config, "device");
    NRD_TB_TRY(nrd_tb_error(nrd_error_wrap(nrd_vision_encoder_open(&m->encoder, dir, &c), "model '%s'", m->config.name)));
    m->info.size = sizeof m->info;
    nrd_vision_encoder_get_info(m->encoder, &m->info);
    NRD_LOG_INFO("model '%s': the tower of %s, %.0f MB of weights, on %s", m->config.name, m->info.model_type,
                 (double)m->info.weight_bytes / 1e6, m->info.device);
    return NULL;
}

static void model_free(nrd_mm_model *m)
{
    nrd_vision_encoder_close(m->encoder);
    nrd_tb_config_fini(&m->config);
    free(m);
}

static TRITONSERVER_Error *model_init(nrd_mm_model *m, TRITONBACKEND_Model *model)
{
    NRD_TB_TRY(nrd_tb_config_load(&m->config, model));
    NRD_TB_TRY(read_table_type(m));
    return open_encoder(m);
}

NRD_TB_MODEL_ENTRIES(nrd_mm_model, model_init, model_free)

/* ---- requests ---- */

static bool run_one(const nrd_mm_model *m, TRITONBACKEND_Request *request)
{
    nrd_tb_inputs in = {0};
    TRITONBACKEND_Response *response = NULL;
    TRITONSERVER_Error *err = nrd_tb_inputs_read(&in, request);

    err = err ? err : TRITONBACKEND_ResponseNew(&response, request);
    err = err ? err : nrd_mm_answer(m, request, &in, response);
    const bool ok = !err;
    if (response) {
        nrd_tb_log_error(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, err), "cannot send a response");
        TRITONSERVER_ErrorDelete(err);
    } else {
        nrd_tb_send_error(request, err);
    }
    nrd_tb_inputs_fini(&in);
    return ok;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request **requests,
                                                       const uint32_t request_count)
{
    nrd_mm_model *m = NULL;
    const uint64_t start = nrd_now_ns();

    NRD_TB_TRY(TRITONBACKEND_ModelInstanceState(instance, (void **)&m));
    for (uint32_t i = 0; i < request_count; i++) {
        const uint64_t from = nrd_now_ns();
        const bool ok = run_one(m, requests[i]);
        const uint64_t to = nrd_now_ns();
        nrd_tb_log_error(TRITONBACKEND_ModelInstanceReportStatistics(instance, requests[i], ok, from, from, to, to), "statistics");
    }
    const uint64_t end = nrd_now_ns();
    nrd_tb_log_error(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, request_count, start, start, end, end), "statistics");
    for (uint32_t i = 0; i < request_count; i++) {
        nrd_tb_release(requests[i]);
    }
    return NULL;
}
