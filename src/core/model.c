/* SPDX-License-Identifier: Apache-2.0
 * A loaded version of a model: its share count, its inputs and outputs by name, whether it is
 * ready, its metadata. The last share is given back to the server's finalizer thread, which ends
 * the model (model_load.c makes it). The functions of TRITONBACKEND that concern a model are here
 * too. */
#include "core/model.h"

#include "core/api.h"
#include "core/backend_internal.h"
#include "core/catalog.h"
#include "core/config/config.h"
#include "core/config/pbjson.h"
#include "core/context.h"
#include "core/memory.h"
#include "core/model_internal.h"
#include "core/types.h"

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/queue.h"
#include "base/str.h"
#include "nereid/server.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

nrd_error *nrd_model_read_file(char **out, size_t *out_len, const char *path)
{
    enum { MAX_BYTES = 1 << 30 };

    if (access(path, R_OK) != 0) {
        return nrd_errorf(NRD_ERR_INTERNAL, "failed to open text file for read %s: %s", path,
                          strerror(errno));
    }
    return nrd_file_read(out, out_len, path, MAX_BYTES);
}

nrd_model *nrd_model_ref(nrd_model *m)
{
    atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed);
    return m;
}

void nrd_model_unref(nrd_model *m)
{
    if (atomic_fetch_sub(&m->refs, 1) == 1) {
        bool queued = nrd_queue_push(m->ctx->to_finalize, m);
        NRD_ASSERT(queued, "the finalizer outlives every model");
    }
}

const Inference__ModelInput *nrd_model_input(const nrd_model *m, const char *name)
{
    for (size_t i = 0; i < m->config->n_input; i++) {
        if (strcmp(m->config->input[i]->name, name) == 0) {
            return m->config->input[i];
        }
    }
    return NULL;
}

const Inference__ModelOutput *nrd_model_output(const nrd_model *m, const char *name)
{
    for (size_t i = 0; i < m->config->n_output; i++) {
        if (strcmp(m->config->output[i]->name, name) == 0) {
            return m->config->output[i];
        }
    }
    return NULL;
}

nrd_error *nrd_model_ready(nrd_model *m)
{
    for (uint32_t i = 0; m->backend && m->backend->instance_ready && i < m->n_instances; i++) {
        NRD_TRY(from_api(
            m->backend->instance_ready((TRITONBACKEND_ModelInstance *)(void *)m->instances[i])));
    }
    return NULL;
}

void nrd_usage_replace(pthread_mutex_t *mu, nrd_attr ***list, uint32_t *n,
                       TRITONSERVER_BufferAttributes **usage, uint32_t n_usage)
{
    nrd_attr **fresh = calloc(n_usage + 1u, sizeof *fresh);

    if (!fresh) { /* the figures stay as they were */
        for (uint32_t i = 0; i < n_usage; i++) {
            free(usage[i]);
        }
        return;
    }
    for (uint32_t i = 0; i < n_usage; i++) {
        fresh[i] = (nrd_attr *)(void *)usage[i];
    }
    pthread_mutex_lock(mu);
    nrd_attr **old = *list;
    uint32_t n_old = *n;
    *list = fresh;
    *n = n_usage;
    pthread_mutex_unlock(mu);
    for (uint32_t i = 0; i < n_old; i++) {
        free(old[i]);
    }
    free(old);
}

static void put_io(nrd_str *out, const char *name, Inference__DataType type, const int64_t *dims,
                   size_t n, bool batched, bool comma)
{
    nrd_str_puts(out, comma ? ",{\"name\":" : "{\"name\":");
    nrd_json_put_cstr(out, name);
    nrd_str_printf(out, ",\"datatype\":\"%s\",\"shape\":[",
                   nrd_datatype_name(nrd_datatype_from_config(type)));
    if (batched) {
        nrd_str_puts(out, n ? "-1," : "-1");
    }
    for (size_t i = 0; i < n; i++) {
        nrd_str_printf(out, "%s%" PRId64, i ? "," : "", dims[i]);
    }
    nrd_str_puts(out, "]}");
}

void nrd_model_metadata_json(nrd_model *m, const int64_t *versions, size_t n, nrd_str *out)
{
    const nrd_config *cfg = m->config;
    bool batched = cfg->max_batch_size >= 1;

    nrd_str_puts(out, "{\"name\":");
    nrd_json_put_cstr(out, m->name);
    nrd_str_puts(out, ",\"versions\":[");
    for (size_t i = 0; i < n; i++) {
        nrd_str_printf(out, "%s\"%" PRId64 "\"", i ? "," : "", versions[i]);
    }
    nrd_str_puts(out, "],\"platform\":");
    nrd_json_put_cstr(out, cfg->platform[0] ? cfg->platform : cfg->backend);
    nrd_str_puts(out, ",\"inputs\":[");
    for (size_t i = 0; i < cfg->n_input; i++) {
        const Inference__ModelInput *in = cfg->input[i];
        put_io(out, in->name, in->data_type, in->dims, in->n_dims, batched && !in->is_shape_tensor,
               i > 0);
    }
    nrd_str_puts(out, "],\"outputs\":[");
    for (size_t i = 0; i < cfg->n_output; i++) {
        const Inference__ModelOutput *o = cfg->output[i];
        put_io(out, o->name, o->data_type, o->dims, o->n_dims, batched && !o->is_shape_tensor,
               i > 0);
    }
    nrd_str_puts(out, "]}");
}

/* ---- TRITONBACKEND: model ---- */

static nrd_model *of_api(TRITONBACKEND_Model *m)
{
    return (nrd_model *)(void *)m;
}

TRITONSERVER_Error *TRITONBACKEND_ModelName(TRITONBACKEND_Model *model, const char **name)
{
    *name = of_api(model)->name;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelVersion(TRITONBACKEND_Model *model, uint64_t *version)
{
    *version = (uint64_t)of_api(model)->version;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelRepository(TRITONBACKEND_Model *model,
                                                  TRITONBACKEND_ArtifactType *artifact_type,
                                                  const char **location)
{
    *artifact_type = TRITONBACKEND_ARTIFACT_FILESYSTEM;
    *location = of_api(model)->dir;
    return NULL;
}

static nrd_error *check_config_version(uint32_t version)
{
    return version == 1 ? NULL
                        : nrd_errorf(NRD_ERR_INVALID_ARG,
                                     "model configuration version %u not supported, supported "
                                     "versions are: 1",
                                     version);
}

TRITONSERVER_Error *TRITONBACKEND_ModelConfig(TRITONBACKEND_Model *model,
                                              const uint32_t config_version,
                                              TRITONSERVER_Message **model_config)
{
    nrd_str j = {0};

    *model_config = NULL;
    NRD_API_TRY(check_config_version(config_version));
    nrd_pbjson_put(&j, &of_api(model)->config->base);
    return as_api(nrd_message_new((nrd_message **)(void *)model_config, &j));
}

TRITONSERVER_Error *TRITONBACKEND_ModelAutoCompleteConfig(TRITONBACKEND_Model *model,
                                                          bool *auto_complete_config)
{
    *auto_complete_config = of_api(model)->auto_complete;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelSetConfig(TRITONBACKEND_Model *model,
                                                 const uint32_t config_version,
                                                 TRITONSERVER_Message *model_config)
{
    nrd_model *m = of_api(model);
    const nrd_message *msg = (const nrd_message *)(void *)model_config;
    nrd_config *cfg = NULL;
    nrd_error *err = NULL;

    NRD_API_TRY(check_config_version(config_version));
    if (!m->config_open) {
        return as_api(nrd_errorf(NRD_ERR_INVALID_ARG,
                                 "model '%s': the configuration can be set during "
                                 "TRITONBACKEND_ModelInitialize only",
                                 m->name));
    }
    NRD_API_TRY(nrd_config_from_json(&cfg, msg->text, msg->len));
    NRD_TRY_GOTO(nrd_config_normalize(cfg), err, fail);
    NRD_TRY_GOTO(nrd_config_normalize_groups(cfg, m->backend->groups, m->backend->n_groups), err,
                 fail);
    NRD_TRY_GOTO(nrd_config_validate(cfg), err, fail);
    NRD_TRY_GOTO(nrd_config_validate_groups(cfg), err, fail);
    inference__model_config__free_unpacked(m->config, NULL);
    m->config = cfg;
    return NULL;

fail:
    inference__model_config__free_unpacked(cfg, NULL);
    return as_api(err);
}

TRITONSERVER_Error *TRITONBACKEND_ModelServer(TRITONBACKEND_Model *model,
                                              TRITONSERVER_Server **server)
{
    *server = (TRITONSERVER_Server *)(void *)of_api(model)->ctx->server;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelBackend(TRITONBACKEND_Model *model,
                                               TRITONBACKEND_Backend **backend)
{
    *backend = (TRITONBACKEND_Backend *)(void *)of_api(model)->backend;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelState(TRITONBACKEND_Model *model, void **state)
{
    *state = of_api(model)->state;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelSetState(TRITONBACKEND_Model *model, void *state)
{
    of_api(model)->state = state;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelReportMemoryUsage(TRITONBACKEND_Model *model,
                                                         TRITONSERVER_BufferAttributes **usage,
                                                         uint32_t usage_size)
{
    nrd_model *m = of_api(model);
    nrd_usage_replace(&m->mu, &m->usage, &m->n_usage, usage, usage_size);
    return NULL;
}

TRITONSERVER_Error *nrd_backend_ignore_input(TRITONBACKEND_Model *model, const char *name,
                                             TRITONSERVER_DataType datatype)
{
    nrd_model *m = of_api(model);

    if (!m->config_open) {
        return as_api(nrd_errorf(NRD_ERR_INVALID_ARG,
                                 "model '%s': inputs to ignore can be named during "
                                 "TRITONBACKEND_ModelInitialize only",
                                 m->name));
    }
    nrd_ignored_input *list = realloc(m->ignored, (m->n_ignored + 1) * sizeof *list);
    m->ignored = list ? list : m->ignored;
    char *copy = list ? strdup(name) : NULL;
    if (!copy) {
        return as_api(nrd_error_no_memory());
    }
    list[m->n_ignored++] = (nrd_ignored_input){copy, datatype};
    return NULL;
}

void nrd_backend_model_failed(TRITONBACKEND_Model *model, const char *reason)
{
    const nrd_catalog *c = &of_api(model)->ctx->catalog;
    c->fail(c->repo, of_api(model), reason);
}
