/* SPDX-License-Identifier: Apache-2.0
 * Instances: made from the instance groups of a configuration, with their device and host policy;
 * executed with a batch by a worker; freed with the model. Then the functions of TRITONBACKEND that
 * backends call about an instance, with the statistics of requests, batches and responses. */
#include "core/instance.h"

#include "core/api.h"
#include "core/backend_internal.h"
#include "core/context.h"
#include "core/instance_internal.h"
#include "core/model.h"
#include "core/model_internal.h"
#include "core/model_metrics.h"
#include "core/options.h"
#include "core/request.h"
#include "core/request_internal.h"
#include "core/response_internal.h"
#include "core/sched/rate_limiter.h"
#include "core/sched/sequence.h"
#include "core/statistics.h"
#include "core/trace.h"
#include "core/types.h"

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- making instances ---- */

static nrd_error *host_policy_json(nrd_context *ctx, const char *policy, nrd_message *out)
{
    nrd_str j = {0};
    bool first = true;

    nrd_str_putc(&j, '{');
    nrd_json_put_cstr(&j, policy);
    nrd_str_puts(&j, ":{");
    for (const nrd_setting *p = ctx->opt.host_policy; p; p = p->next) {
        if (strcmp(p->scope, policy) == 0) {
            nrd_str_puts(&j, first ? "" : ",");
            nrd_json_put_cstr(&j, p->key);
            nrd_str_putc(&j, ':');
            nrd_json_put_cstr(&j, p->value);
            first = false;
        }
    }
    nrd_str_puts(&j, "}}");
    out->len = j.len;
    out->text = nrd_str_steal(&j);
    return out->text ? NULL : nrd_error_no_memory();
}

/* An empty one, as the last of the model. */
static nrd_error *grow(nrd_model *m, nrd_instance **out)
{
    nrd_instance **list = realloc(m->instances, (m->n_instances + 1) * sizeof *list);

    m->instances = list ? list : m->instances;
    *out = list ? calloc(1, sizeof **out) : NULL;
    if (!*out) {
        return nrd_error_no_memory();
    }
    m->instances[m->n_instances++] = *out;
    return NULL;
}

static nrd_error *add_instance(nrd_model *m, const Inference__ModelInstanceGroup *g, int count_id,
                         TRITONSERVER_InstanceGroupKind kind, int32_t device)
{
    nrd_instance *i = NULL;
    char policy[64];

    NRD_TRY(grow(m, &i));
    i->model = m;
    if (asprintf(&i->name, "%s_%d", g->name, count_id) < 0) {
        i->name = NULL;
        return nrd_error_no_memory();
    }
    i->kind = kind;
    i->device_id = device;
    i->passive = g->passive;
    i->group = g;
    if (g->host_policy[0]) {
        snprintf(policy, sizeof policy, "%s", g->host_policy);
    } else if (kind == TRITONSERVER_INSTANCEGROUPKIND_GPU) {
        snprintf(policy, sizeof policy, "gpu_%d", device);
    } else {
        snprintf(policy, sizeof policy, "%s",
                 kind == TRITONSERVER_INSTANCEGROUPKIND_CPU ? "cpu" : "model");
    }
    NRD_TRY(host_policy_json(m->ctx, policy, &i->host_policy));
    return nrd_host_policy_read(&i->place, m->ctx->opt.host_policy, policy);
}

/* Threads that the backend starts in this call are the instance's, and run where it does. */
static nrd_error *initialize(nrd_instance *i)
{
    const nrd_backend *b = i->model->backend;
    nrd_host_home home = {0};

    i->initialized = true; /* finalized also when this call refuses: backends count on it */
    if (!b->instance_initialize) {
        return NULL;
    }
    NRD_TRY(nrd_host_policy_enter(&i->place, &home));
    nrd_error *err = from_api(b->instance_initialize((TRITONBACKEND_ModelInstance *)(void *)i));
    nrd_host_policy_leave(&home);
    return err;
}

bool nrd_instances_have_place(const nrd_model *m)
{
    for (uint32_t k = 0; k < m->n_instances; k++) {
        if (m->instances[k]->place.is_set) {
            return true;
        }
    }
    return false;
}

nrd_error *nrd_instances_new(nrd_model *m)
{
    const nrd_config *cfg = m->config;

    for (size_t k = 0; k < cfg->n_instance_group; k++) {
        const Inference__ModelInstanceGroup *g = cfg->instance_group[k];
        for (int c = 0; c < g->count; c++) {
            switch (g->kind) {
            case INFERENCE__MODEL_INSTANCE_GROUP__KIND__KIND_CPU:
                NRD_TRY(add_instance(m, g, c, TRITONSERVER_INSTANCEGROUPKIND_CPU, 0));
                break;
            case INFERENCE__MODEL_INSTANCE_GROUP__KIND__KIND_MODEL:
                NRD_TRY(add_instance(m, g, c, TRITONSERVER_INSTANCEGROUPKIND_MODEL, 0));
                break;
            case INFERENCE__MODEL_INSTANCE_GROUP__KIND__KIND_GPU:
                for (size_t d = 0; d < g->n_gpus; d++) {
                    NRD_TRY(add_instance(m, g, c, TRITONSERVER_INSTANCEGROUPKIND_GPU, g->gpus[d]));
                }
                break;
            default:
                return nrd_errorf(NRD_ERR_INVALID_ARG, "instance_group kind %d not supported",
                                  (int)g->kind);
            }
        }
    }
    for (uint32_t k = 0; k < m->n_instances; k++) {
        nrd_instance *i = m->instances[k];
        NRD_TRY(nrd_limiter_add(m->ctx->limiter, i));
        NRD_TRY(initialize(i));
    }
    return NULL;
}

void nrd_instances_free(nrd_model *m)
{
    for (uint32_t k = 0; k < m->n_instances; k++) {
        nrd_instance *i = m->instances[k];
        if (i->initialized && m->backend->instance_finalize) {
            nrd_error *err =
                from_api(m->backend->instance_finalize((TRITONBACKEND_ModelInstance *)(void *)i));
            if (err) {
                NRD_LOG_ERROR("failed finalizing model instance: %s", nrd_error_message(err));
                nrd_error_free(err);
            }
        }
        nrd_limiter_remove(m->ctx->limiter, i);
        for (uint32_t u = 0; u < i->n_usage; u++) {
            free(i->usage[u]);
        }
        free(i->usage);
        free(i->host_policy.text);
        free(i->name);
        free(i);
    }
    free(m->instances);
    m->instances = NULL;
    m->n_instances = 0;
}

/* ---- executing ---- */

/* Answers all of them without running. */
static void refuse(nrd_request **requests, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        nrd_request_set_running(requests[i]);
        nrd_request_fail(requests[i], nrd_error_no_memory(), NRD_FAIL_OTHER);
    }
}

bool nrd_instance_execute(nrd_instance *inst, nrd_request **requests, uint32_t n)
{
    enum { USUAL_BATCH = 64 };
    nrd_request *room[USUAL_BATCH];
    nrd_request **kept = n <= USUAL_BATCH ? room : calloc(n, sizeof(nrd_request *));
    bool lacks = !kept, all_released = true;

    if (!kept) {
        refuse(requests, n);
        return true;
    }
    for (uint32_t i = 0; i < n; i++) {
        kept[i] = nrd_request_keep(requests[i]); /* the list is the backend's to change */
        nrd_request_set_running(requests[i]);
        nrd_sequence_states_apply(requests[i]);
        lacks = lacks || requests[i]->no_memory;
        if (requests[i]->trace) {
            nrd_trace_inputs(requests[i]->trace, requests[i],
                             TRITONSERVER_TRACE_TENSOR_BACKEND_INPUT);
        }
    }
    /* Rows of a batch belong to sequences by their place, so none is taken out. */
    nrd_error *err = lacks ? nrd_error_no_memory() :
        from_api(inst->model->backend->execute((TRITONBACKEND_ModelInstance *)(void *)inst,
                                               (TRITONBACKEND_Request **)(void *)requests, n));
    for (uint32_t i = 0; i < n; i++) {
        if (err) { /* the backend took none of them */
            nrd_request_fail(kept[i],
                             nrd_errorf(nrd_error_get_code(err), "%s", nrd_error_message(err)),
                             NRD_FAIL_BACKEND);
        }
        all_released = all_released && atomic_load(&kept[i]->state) == NRD_REQ_NEW;
        nrd_request_free(kept[i]);
    }
    if (kept != room) {
        free(kept);
    }
    nrd_error_free(err);
    return all_released;
}

/* ---- TRITONBACKEND: instance functions ---- */

static nrd_instance *of_api(TRITONBACKEND_ModelInstance *i)
{
    return (nrd_instance *)(void *)i;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceName(TRITONBACKEND_ModelInstance *instance,
                                                    const char **name)
{
    *name = of_api(instance)->name;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceKind(TRITONBACKEND_ModelInstance *instance,
                                                    TRITONSERVER_InstanceGroupKind *kind)
{
    *kind = of_api(instance)->kind;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceDeviceId(TRITONBACKEND_ModelInstance *instance,
                                                        int32_t *device_id)
{
    *device_id = of_api(instance)->device_id;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceHostPolicy(TRITONBACKEND_ModelInstance *instance,
                                                          TRITONSERVER_Message **host_policy)
{
    *host_policy = (TRITONSERVER_Message *)(void *)&of_api(instance)->host_policy;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceIsPassive(TRITONBACKEND_ModelInstance *instance,
                                                         bool *is_passive)
{
    *is_passive = of_api(instance)->passive;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceProfileCount(TRITONBACKEND_ModelInstance *instance,
                                                            uint32_t *count)
{
    *count = (uint32_t)of_api(instance)->group->n_profile;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceProfileName(TRITONBACKEND_ModelInstance *instance,
                                                           const uint32_t index,
                                                           const char **profile_name)
{
    const Inference__ModelInstanceGroup *g = of_api(instance)->group;
    *profile_name = NULL;
    if (index >= g->n_profile) {
        return as_api(nrd_errorf(NRD_ERR_INVALID_ARG,
                                 "out of bounds index %u: instance is configured with %zu profiles",
                                 index, g->n_profile));
    }
    *profile_name = g->profile[index];
    return NULL;
}

TRITONSERVER_Error *
TRITONBACKEND_ModelInstanceSecondaryDeviceCount(TRITONBACKEND_ModelInstance *instance,
                                                uint32_t *count)
{
    *count = (uint32_t)of_api(instance)->group->n_secondary_devices;
    return NULL;
}

TRITONSERVER_Error *
TRITONBACKEND_ModelInstanceSecondaryDeviceProperties(TRITONBACKEND_ModelInstance *instance,
                                                     uint32_t index, const char **kind, int64_t *id)
{
    const Inference__ModelInstanceGroup *g = of_api(instance)->group;
    if (index >= g->n_secondary_devices) {
        return as_api(
            nrd_errorf(NRD_ERR_INVALID_ARG,
                       "out of bounds index %u: instance is configured with %zu secondary devices",
                       index, g->n_secondary_devices));
    }
    *kind = "KIND_NVDLA"; /* the only kind there is */
    *id = g->secondary_devices[index]->device_id;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceModel(TRITONBACKEND_ModelInstance *instance,
                                                     TRITONBACKEND_Model **model)
{
    *model = (TRITONBACKEND_Model *)(void *)of_api(instance)->model;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceState(TRITONBACKEND_ModelInstance *instance,
                                                     void **state)
{
    *state = of_api(instance)->state;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceSetState(TRITONBACKEND_ModelInstance *instance,
                                                        void *state)
{
    of_api(instance)->state = state;
    return NULL;
}

TRITONSERVER_Error *
TRITONBACKEND_ModelInstanceReportMemoryUsage(TRITONBACKEND_ModelInstance *instance,
                                             TRITONSERVER_BufferAttributes **usage,
                                             uint32_t usage_size)
{
    nrd_instance *i = of_api(instance);
    nrd_usage_replace(&i->model->mu, &i->usage, &i->n_usage, usage, usage_size);
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReportStatistics(
    TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request *request, const bool success,
    const uint64_t exec_start_ns, const uint64_t compute_start_ns, const uint64_t compute_end_ns,
    const uint64_t exec_end_ns)
{
    nrd_stats_request(of_api(instance)->model, (nrd_request *)(void *)request, success,
                      exec_start_ns, compute_start_ns, compute_end_ns, exec_end_ns);
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReportBatchStatistics(
    TRITONBACKEND_ModelInstance *instance, const uint64_t batch_size, const uint64_t exec_start_ns,
    const uint64_t compute_start_ns, const uint64_t compute_end_ns, const uint64_t exec_end_ns)
{
    nrd_stats_batch(of_api(instance)->model, batch_size, compute_start_ns - exec_start_ns,
                    compute_end_ns - compute_start_ns, exec_end_ns - compute_end_ns);
    return NULL;
}

/* ---- TRITONBACKEND: statistics of single responses ---- */

typedef struct response_statistics {
    nrd_model *model;     /* borrowed */
    nrd_factory *factory; /* borrowed */
    uint64_t start_ns, output_start_ns, end_ns;
    nrd_error *error; /* borrowed */
} response_statistics;

static response_statistics *stat_of_api(TRITONBACKEND_ModelInstanceResponseStatistics *s)
{
    return (response_statistics *)(void *)s;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceResponseStatisticsNew(
    TRITONBACKEND_ModelInstanceResponseStatistics **response_statistics_out)
{
    response_statistics *s = calloc(1, sizeof *s);
    if (!s) {
        return as_api(nrd_error_no_memory());
    }
    *response_statistics_out = (TRITONBACKEND_ModelInstanceResponseStatistics *)(void *)s;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceResponseStatisticsDelete(
    TRITONBACKEND_ModelInstanceResponseStatistics *statistics)
{
    free(stat_of_api(statistics));
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(
    TRITONBACKEND_ModelInstanceResponseStatistics *statistics,
    TRITONBACKEND_ModelInstance *model_instance)
{
    stat_of_api(statistics)->model = of_api(model_instance)->model;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(
    TRITONBACKEND_ModelInstanceResponseStatistics *statistics,
    TRITONBACKEND_ResponseFactory *response_factory)
{
    stat_of_api(statistics)->factory = (nrd_factory *)(void *)response_factory;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(
    TRITONBACKEND_ModelInstanceResponseStatistics *statistics, uint64_t response_start)
{
    stat_of_api(statistics)->start_ns = response_start;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(
    TRITONBACKEND_ModelInstanceResponseStatistics *statistics, uint64_t compute_output_start)
{
    stat_of_api(statistics)->output_start_ns = compute_output_start;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(
    TRITONBACKEND_ModelInstanceResponseStatistics *statistics, uint64_t response_end)
{
    stat_of_api(statistics)->end_ns = response_end;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceResponseStatisticsSetError(
    TRITONBACKEND_ModelInstanceResponseStatistics *statistics, TRITONSERVER_Error *error)
{
    stat_of_api(statistics)->error = from_api(error);
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReportResponseStatistics(
    TRITONBACKEND_ModelInstanceResponseStatistics *statistics)
{
    response_statistics *s = stat_of_api(statistics);
    nrd_resp_outcome outcome = NRD_RESP_OK;

    if (!s->model || !s->factory) {
        return as_api(
            nrd_errorf(NRD_ERR_INVALID_ARG,
                       "response statistics need a model instance and a response factory"));
    }
    if (s->error) {
        outcome =
            nrd_error_get_code(s->error) == NRD_ERR_CANCELLED ? NRD_RESP_CANCEL : NRD_RESP_FAIL;
    } else if (s->output_start_ns == 0) {
        outcome = NRD_RESP_EMPTY;
    }
    uint64_t index = atomic_fetch_add(&s->factory->n_reported, 1);
    return as_api(
        nrd_stats_response(s->model, index, outcome, s->start_ns, s->output_start_ns, s->end_ns));
}
