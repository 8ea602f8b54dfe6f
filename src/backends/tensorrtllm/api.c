/* SPDX-License-Identifier: Apache-2.0
 * The TRITONBACKEND entry points of the model "tensorrt_llm". */
#include "backends/tensorrtllm/llm.h"
#include "backends/tensorrtllm/metric_table.h"
#include "backends/tensorrtllm/places.h"

#include "nereid/server.h"

#pragma weak nrd_backend_ignore_input /* in this server only */

TRITONSERVER_Error *TRITONBACKEND_Initialize(TRITONBACKEND_Backend *backend)
{
    (void)backend;
    nrd_tb_use_server_log();
    return NULL;
}

static void model_free(nrd_llm_model *m)
{
    if (m) {
        nrd_llm_params_fini(m);
        nrd_tb_config_fini(&m->config);
        free(m);
    }
}

TRITONSERVER_Error *TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model *model)
{
    nrd_llm_model *m = calloc(1, sizeof *m);
    if (!m) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    TRITONSERVER_Error *err = nrd_tb_config_load(&m->config, model);
    if (!err) {
        err = nrd_llm_params_read(m);
    }
    if (!err && nrd_backend_ignore_input) { /* published clients send it; nothing depends on it */
        err = nrd_backend_ignore_input(model, "output_log_probs", TRITONSERVER_TYPE_BOOL);
    }
    if (!err) {
        nrd_llm_describe(m, model);
        err = TRITONBACKEND_ModelSetState(model, m);
    }
    if (err) {
        model_free(m);
    }
    return err;
}

TRITONSERVER_Error *TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model *model)
{
    void *m = NULL;
    NRD_TB_TRY(TRITONBACKEND_ModelState(model, &m));
    model_free(m);
    return NULL;
}

static void instance_free(nrd_llm_instance *inst)
{
    nrd_llm_pictures_stop(inst); /* they use the engine */
    nrd_llm_responder_stop(inst);
    if (inst->exec) {
        nrd_exec_close(inst->exec);
    }
    nrd_llm_metrics_free(inst->metrics);
    nrd_llm_rank_metrics_free(inst->rank_metrics);
    nrd_llm_metric_set_free(inst->lora_metrics);
    nrd_llm_metric_set_free(inst->draft_metrics);
    nrd_llm_metric_set_free(inst->picture_metrics);
    nrd_llm_metric_set_free(inst->handover_metrics);
    pthread_mutex_destroy(&inst->mu);
    free(inst);
}

/* Where this instance's ranks are. */
static TRITONSERVER_Error *find_places(const nrd_llm_instance *inst, nrd_llm_places *out)
{
    const nrd_tb_config *c = &inst->model->config;
    const char *name = "";
    TRITONSERVER_InstanceGroupKind kind;

    NRD_TB_TRY(TRITONBACKEND_ModelInstanceName(inst->triton, &name));
    const int32_t number = nrd_llm_instance_number(name);
    NRD_TB_TRY(nrd_llm_place_list("gpu_device_ids", nrd_tb_config_param(c, "gpu_device_ids"), number, out->device_ids,
                                  &out->n_device_ids));
    NRD_TB_TRY(nrd_llm_place_list("participant_ids", nrd_tb_config_param(c, "participant_ids"), number,
                                  out->participant_ids, &out->n_participant_ids));
    NRD_TB_TRY(TRITONBACKEND_ModelInstanceKind(inst->triton, &kind));
    if (out->n_device_ids == 0 && kind == TRITONSERVER_INSTANCEGROUPKIND_GPU) {
        out->n_device_ids = 1;
        return TRITONBACKEND_ModelInstanceDeviceId(inst->triton, &out->device_ids[0]);
    }
    return NULL;
}

static TRITONSERVER_Error *open_engine(nrd_llm_instance *inst)
{
    nrd_exec_config c = inst->model->exec_config;
    nrd_llm_places places = {0};

    NRD_TB_TRY(find_places(inst, &places));
    c.device_ids = places.device_ids;
    c.n_device_ids = places.n_device_ids;
    c.participant_ids = places.participant_ids;
    c.n_participant_ids = places.n_participant_ids;
    return nrd_llm_error(nrd_exec_open(&inst->exec, inst->model->engine_dir, &c));
}

static TRITONSERVER_Error *open_metrics(nrd_llm_instance *inst)
{
    const nrd_exec_info *i = &inst->info;
    const nrd_iter_stats start = {.size = sizeof start,
                                  .max_active = i->max_batch_size,
                                  .kv_max_blocks = i->n_kv_blocks,
                                  .kv_free_blocks = i->n_kv_blocks,
                                  .kv_tokens_per_block = i->tokens_per_block,
                                  .mem_reserved_bytes = i->weight_bytes + i->kv_cache_bytes + i->state_bytes};

    NRD_TB_TRY(nrd_llm_metrics_new(&inst->metrics, inst));
    NRD_TB_TRY(nrd_llm_rank_metrics_new(&inst->rank_metrics, inst));
    NRD_TB_TRY(nrd_llm_lora_metrics_new(&inst->lora_metrics, inst));
    NRD_TB_TRY(nrd_llm_draft_metrics_new(&inst->draft_metrics, inst));
    NRD_TB_TRY(nrd_llm_picture_metrics_new(&inst->picture_metrics, inst));
    NRD_TB_TRY(nrd_llm_handover_metrics_new(&inst->handover_metrics, inst));
    nrd_llm_metrics_iteration(inst->metrics, &start, inst->model->exec_config.batching == NRD_BATCHING_STATIC);
    return NULL;
}

/* What was opened before an error is closed by instance_free. */
static TRITONSERVER_Error *instance_open(nrd_llm_instance *inst)
{
    TRITONBACKEND_Model *model = NULL;

    NRD_TB_TRY(TRITONBACKEND_ModelInstanceModel(inst->triton, &model));
    NRD_TB_TRY(TRITONBACKEND_ModelState(model, (void **)&inst->model));
    NRD_TB_TRY(open_engine(inst));
    NRD_TB_TRY(nrd_llm_pictures_start(inst));
    inst->info.size = sizeof inst->info;
    nrd_exec_get_info(inst->exec, &inst->info);
    NRD_TB_TRY(nrd_llm_adapters_load(inst));
    NRD_TB_TRY(open_metrics(inst));
    NRD_TB_TRY(nrd_llm_responder_start(inst));
    return TRITONBACKEND_ModelInstanceSetState(inst->triton, inst);
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance *instance)
{
    nrd_llm_instance *inst = calloc(1, sizeof *inst);
    if (!inst) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    pthread_mutex_init(&inst->mu, NULL);
    inst->triton = instance;
    TRITONSERVER_Error *err = instance_open(inst);
    if (err) {
        instance_free(inst);
    }
    return err;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance *instance)
{
    nrd_llm_instance *inst = NULL;
    NRD_TB_TRY(TRITONBACKEND_ModelInstanceState(instance, (void **)&inst));
    if (inst) {
        instance_free(inst);
    }
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance *instance,
                                                       TRITONBACKEND_Request **requests,
                                                       const uint32_t request_count)
{
    nrd_llm_instance *inst = NULL;
    NRD_TB_TRY(TRITONBACKEND_ModelInstanceState(instance, (void **)&inst));
    for (uint32_t i = 0; i < request_count; i++) {
        nrd_llm_run(inst, requests[i]);
    }
    return NULL;
}

/* Asked for by the readiness endpoints, of servers of Triton too. */
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReady(TRITONBACKEND_ModelInstance *instance)
{
    nrd_llm_instance *inst = NULL;
    NRD_TB_TRY(TRITONBACKEND_ModelInstanceState(instance, (void **)&inst));
    return nrd_llm_error(nrd_exec_health(inst->exec));
}
