#include "core/config/pbtext.h"
#include "core/core.h"
#include "core/repo/agent.h"

#include "base/file.h"
#include "nereid/server.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A version of a model is made whole or not at all: nrd_model_new either returns it ready to serve
 * or undoes everything. Afterwards its configuration does not change. It ends when the last share
 * is given back (repository, requests, response factories); the reaper thread then stops the
 * queue, joins the instance threads, finalizes instances and model, in this order. */

static nrd_error *load_backend(nrd_model *m)
{
    nrd_server *s = m->server;
    const char *name = m->config->backend[0] ? m->config->backend : m->config->platform;

    NRD_TRY(nrd_backend_get(&m->backend, s, name, m->dir, m->version));
    m->config_open = true;
    m->auto_complete = !s->opt.strict_config;
    NRD_TRY(nrd_config_normalize_groups(m->config, m->backend->groups, m->backend->n_groups));
    NRD_TRY(nrd_config_validate_groups(m->config));
    m->initialized = true; /* finalized also when this call refuses: backends count on it */
    if (m->backend->model_initialize) {
        NRD_TRY(from_api(m->backend->model_initialize((TRITONBACKEND_Model *)(void *)m)));
    }
    m->config_open = false;
    return NULL;
}

static void read_config(nrd_model *m)
{
    m->decoupled =
        m->config->model_transaction_policy && m->config->model_transaction_policy->decoupled;
    m->n_required = 0;
    for (size_t i = 0; i < m->config->n_input; i++) {
        m->n_required += !m->config->input[i]->optional;
    }
}

/* An output of an ensemble has the class names of the step that makes it; steps are ready first. */
static void take_step_labels(nrd_model *m, size_t output)
{
    const bool is_ensemble = m->config->scheduling_choice_case ==
                             INFERENCE__MODEL_CONFIG__SCHEDULING_CHOICE_ENSEMBLE_SCHEDULING;
    const Inference__ModelEnsembling *en = is_ensemble ? m->config->ensemble_scheduling : NULL;

    for (size_t i = 0; en && i < en->n_step; i++) {
        const Inference__ModelEnsembling__Step *step = en->step[i];
        nrd_model *from = NULL;
        for (size_t k = 0; k < step->n_output_map && m->labels[output].n == 0; k++) {
            if (strcmp(step->output_map[k]->value, m->config->output[output]->name) != 0) {
                continue;
            }
            nrd_error_free(nrd_repo_get_step(&from, m->server->repo, step->model_namespace,
                                             step->model_name, step->model_version));
            for (size_t o = 0; from && o < from->n_labels; o++) {
                const bool same =
                    strcmp(from->config->output[o]->name, step->output_map[k]->key) == 0;
                for (size_t l = 0; same && l < from->labels[o].n; l++) {
                    nrd_strings_add(&m->labels[output], from->labels[o].items[l]);
                }
            }
            nrd_model_unref(from);
        }
    }
}

nrd_error *nrd_model_read_file(char **out, size_t *out_len, const char *path)
{
    enum { MAX_BYTES = 1 << 30 };

    if (access(path, R_OK) != 0) {
        return nrd_errorf(NRD_ERR_INTERNAL, "failed to open text file for read %s: %s", path,
                          strerror(errno));
    }
    return nrd_file_read(out, out_len, path, MAX_BYTES);
}

/* One class name a line; the file lies in the model's folder. */
static nrd_error *read_labels(nrd_model *m)
{
    m->labels = nrd_xcalloc(m->config->n_output + 1, sizeof *m->labels);
    m->n_labels = m->config->n_output;
    for (size_t i = 0; i < m->n_labels; i++) {
        const char *file = m->config->output[i]->label_filename;
        char *path, *text = NULL, *rest, *line;
        size_t len;
        nrd_error *err;
        if (file[0] == '\0') {
            take_step_labels(m, i);
            continue;
        }
        path = nrd_path_join(m->dir, file);
        err = nrd_model_read_file(&text, &len, path);
        free(path);
        if (err) {
            return err;
        }
        rest = text;
        while ((line = strsep(&rest, "\n")) != NULL) {
            if (line[0] || rest) { /* the last line break ends a line, it does not start one */
                nrd_strings_add(&m->labels[i], line);
            }
        }
        free(text);
    }
    return NULL;
}

static nrd_error *build(nrd_model *m)
{
    if (nrd_config_is_ensemble(m->config)) {
        NRD_TRY(nrd_config_validate_io(m->config));
        NRD_TRY(nrd_ensemble_check(m->server, m->config));
        read_config(m);
        NRD_TRY(nrd_ensemble_new(&m->ensemble, m));
    } else {
        NRD_TRY(load_backend(m)); /* may complete the configuration */
        NRD_TRY(nrd_config_validate(m->config));
        NRD_TRY(nrd_config_validate_io(m->config));
        read_config(m);
    }
    NRD_TRY(read_labels(m));
    m->cached = m->server->cache && m->config->response_cache &&
                m->config->response_cache->enable && !m->decoupled;
    if (m->server->opt.metrics) {
        NRD_TRY(nrd_model_metrics_new(&m->metrics, m->server, m));
    }
    if (m->backend) {
        if (m->config->scheduling_choice_case !=
            INFERENCE__MODEL_CONFIG__SCHEDULING_CHOICE_SEQUENCE_BATCHING) {
            NRD_TRY(nrd_strategy_new(&m->strategy, m));
        }
        NRD_TRY(nrd_instances_new(m));
        if (m->config->scheduling_choice_case ==
            INFERENCE__MODEL_CONFIG__SCHEDULING_CHOICE_SEQUENCE_BATCHING) {
            NRD_TRY(nrd_seq_new(&m->seq, m));
        } else {
            NRD_TRY(nrd_sched_new(&m->sched, m));
        }
        NRD_TRY(nrd_model_warm_up(m)); /* before any other thread may use an instance */
        NRD_TRY(nrd_workers_start(m));
    }
    return NULL;
}

nrd_error *nrd_model_new(nrd_model **out, nrd_server *s, const char *space, const char *name,
                         int64_t version, const char *dir, nrd_config *cfg)
{
    nrd_model *m = nrd_xcalloc(1, sizeof *m);
    uint64_t start = nrd_now_ns();
    nrd_error *err;

    *out = NULL;
    atomic_init(&m->refs, 1);
    m->server = s;
    m->name = nrd_xstrdup(name);
    m->space = nrd_xstrdup(space);
    m->version = version;
    m->dir = nrd_xstrdup(dir);
    m->config = cfg;
    pthread_mutex_init(&m->mu, NULL);
    nrd_stats_init(&m->stats);
    atomic_fetch_add(&s->n_live_models, 1);
    err = build(m);
    if (err) {
        nrd_model_destroy(m);
        return err;
    }
    nrd_model_metrics_load_time(m->metrics, (double)(nrd_now_ns() - start) / 1e9);
    *out = m;
    return NULL;
}

nrd_model *nrd_model_ref(nrd_model *m)
{
    atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed);
    return m;
}

void nrd_model_unref(nrd_model *m)
{
    if (atomic_fetch_sub(&m->refs, 1) == 1) {
        bool queued = nrd_queue_push(m->server->dead_models, m);
        NRD_ASSERT(queued, "the reaper outlives every model");
    }
}

void nrd_model_retire(nrd_model *m)
{
    nrd_agents_unloading(m->agents);
    if (m->seq) {
        nrd_seq_abandon(m->seq);
    }
    nrd_model_unref(m);
}

void nrd_model_destroy(nrd_model *m)
{
    nrd_server *s = m->server;

    if (m->sched) {
        nrd_sched_stop(m->sched);
    }
    if (m->seq) {
        nrd_seq_stop(m->seq);
    }
    nrd_workers_join(m);
    nrd_sched_unref(m->sched);
    nrd_seq_free(m->seq);
    if (m->backend) {
        nrd_instances_free(m);
    }
    nrd_ensemble_free(m->ensemble);
    nrd_strategy_free(m->strategy);
    if (m->initialized && m->backend->model_finalize) {
        nrd_error *err = from_api(m->backend->model_finalize((TRITONBACKEND_Model *)(void *)m));
        if (err) {
            NRD_LOG_ERROR("failed finalizing model: %s", nrd_error_message(err));
            nrd_error_free(err);
        }
    }
    nrd_agents_unref(m->agents);
    if (m->on_destroy) {
        m->on_destroy(m->on_destroy_user, m);
    }
    if (m->backend) {
        nrd_backend_put(s, m->backend);
    }
    nrd_model_metrics_free(m->metrics);
    nrd_stats_fini(&m->stats);
    for (uint32_t i = 0; i < m->n_usage; i++) {
        free(m->usage[i]);
    }
    free(m->usage);
    for (size_t i = 0; i < m->n_labels; i++) {
        nrd_strings_fini(&m->labels[i]);
    }
    free(m->labels);
    pthread_mutex_destroy(&m->mu);
    if (m->config) {
        inference__model_config__free_unpacked(m->config, NULL);
    }
    free(m->dir);
    free(m->name);
    free(m->space);
    free(m);
    atomic_fetch_sub(&s->n_live_models, 1);
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
    nrd_attr **fresh = nrd_xcalloc(n_usage + 1u, sizeof *fresh);

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
                   nrd_tdtype_name(nrd_tdtype_from_config(type)));
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

/* ---- door 2: model ---- */

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
    *model_config = (TRITONSERVER_Message *)(void *)nrd_message_new(&j);
    return NULL;
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
    *server = (TRITONSERVER_Server *)(void *)of_api(model)->server;
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

void nrd_backend_model_failed(TRITONBACKEND_Model *model, const char *reason)
{
    nrd_repo_fail(of_api(model)->server->repo, of_api(model), reason);
}
