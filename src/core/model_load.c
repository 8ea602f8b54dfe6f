/* SPDX-License-Identifier: Apache-2.0
 * A version of a model is made whole or not at all: nrd_model_new either returns it ready to serve
 * or undoes everything. Afterwards its configuration does not change. It ends when the last share
 * is given back (repository, requests, response factories); the finalizer thread then stops the
 * queue, joins the instance threads, finalizes instances and model, in this order. */
#include "core/model_load.h"

#include "core/agent.h"
#include "core/api.h"
#include "core/backend.h"
#include "core/backend_internal.h"
#include "core/cache.h"
#include "core/config/config.h"
#include "core/context.h"
#include "core/instance.h"
#include "core/model.h"
#include "core/model_internal.h"
#include "core/model_metrics.h"
#include "core/sched/create.h"
#include "core/sched/ensemble_check.h"
#include "core/sched/scheduler.h"
#include "core/sched/strategy.h"
#include "core/sched/workers.h"
#include "core/statistics.h"
#include "core/strings.h"
#include "core/warmup.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/queue.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static nrd_error *load_backend(nrd_model *m)
{
    nrd_context *ctx = m->ctx;
    const char *name = m->config->backend[0] ? m->config->backend : m->config->platform;

    NRD_TRY(nrd_backend_get(&m->backend, ctx, name, m->dir, m->version));
    m->config_open = true;
    m->auto_complete = !ctx->opt.strict_config;
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
static nrd_error *take_step_labels(nrd_model *m, size_t output)
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
            nrd_error *err = m->ctx->catalog.get_step(&from, m->ctx->catalog.repo, step->model_namespace,
                                                      step->model_name, step->model_version);
            if (err && nrd_error_get_code(err) == NRD_ERR_NO_MEMORY) {
                return err;
            }
            nrd_error_free(err);
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
    return nrd_strings_error(&m->labels[output]);
}

/* One class name a line; the file lies in the model's folder. */
static nrd_error *read_labels(nrd_model *m)
{
    m->labels = calloc(m->config->n_output + 1, sizeof *m->labels);
    if (!m->labels) {
        return nrd_error_no_memory();
    }
    m->n_labels = m->config->n_output;
    for (size_t i = 0; i < m->n_labels; i++) {
        const char *file = m->config->output[i]->label_filename;
        char *path, *text = NULL, *rest, *line;
        size_t len;
        nrd_error *err;
        if (file[0] == '\0') {
            NRD_TRY(take_step_labels(m, i));
            continue;
        }
        NRD_TRY(nrd_path_make(&path, m->dir, file));
        err = nrd_model_read_file(&text, &len, path);
        free(path);
        NRD_TRY(err);
        rest = text;
        while ((line = strsep(&rest, "\n")) != NULL) {
            if (line[0] || rest) { /* the last line break ends a line, it does not start one */
                nrd_strings_add(&m->labels[i], line);
            }
        }
        free(text);
        NRD_TRY(nrd_strings_error(&m->labels[i]));
    }
    return NULL;
}

static nrd_error *build(nrd_model *m)
{
    if (nrd_config_is_ensemble(m->config)) {
        NRD_TRY(nrd_config_validate_io(m->config));
        NRD_TRY(nrd_ensemble_check(m->ctx, m->config));
        read_config(m);
        NRD_TRY(nrd_scheduler_new(&m->scheduler, m));
    } else {
        NRD_TRY(load_backend(m)); /* may complete the configuration */
        NRD_TRY(nrd_config_validate(m->config));
        NRD_TRY(nrd_config_validate_io(m->config));
        read_config(m);
    }
    NRD_TRY(read_labels(m));
    m->cached = m->ctx->cache && m->config->response_cache && m->config->response_cache->enable &&
                !m->decoupled;
    if (m->cached) {
        NRD_TRY(nrd_cache_hash_config(m));
    }
    if (m->ctx->opt.metrics) {
        NRD_TRY(nrd_model_metrics_new(&m->metrics, m->ctx, m));
    }
    if (m->backend) {
        if (m->config->scheduling_choice_case !=
            INFERENCE__MODEL_CONFIG__SCHEDULING_CHOICE_SEQUENCE_BATCHING) {
            NRD_TRY(nrd_strategy_new(&m->strategy, m));
        }
        m->never_blocks = m->backend->never_blocks &&
                          m->backend->never_blocks((TRITONBACKEND_Model *)(void *)m);
        NRD_TRY(nrd_instances_new(m));
        /* Run by a thread that happens to be there, it would not run where its policy says. */
        m->never_blocks = m->never_blocks && !nrd_instances_have_place(m);
        NRD_TRY(nrd_scheduler_new(&m->scheduler, m));
        NRD_TRY(nrd_model_warm_up(m)); /* before any other thread may use an instance */
        NRD_TRY(nrd_workers_start(m));
    }
    return NULL;
}

/* The end of a model that has nothing else any more. */
static void free_texts(nrd_model *m)
{
    if (m) {
        free(m->dir);
        free(m->name);
        free(m->namespace);
    }
    free(m);
}

nrd_error *nrd_model_new(nrd_model **out, nrd_context *ctx, const char *namespace, const char *name,
                         int64_t version, const char *dir, nrd_config *cfg)
{
    static _Atomic uint64_t n_loads;
    nrd_model *m = calloc(1, sizeof *m);
    uint64_t start = nrd_now_ns();
    nrd_error *err;

    *out = NULL;
    if (m) {
        m->name = strdup(name);
        m->namespace = strdup(namespace);
        m->dir = strdup(dir);
    }
    if (!m || !m->name || !m->namespace || !m->dir) {
        inference__model_config__free_unpacked(cfg, NULL);
        free_texts(m);
        return nrd_error_no_memory();
    }
    atomic_init(&m->refs, 1);
    m->ctx = ctx;
    m->version = version;
    m->load_number = atomic_fetch_add(&n_loads, 1) + 1;
    m->config = cfg;
    pthread_mutex_init(&m->mu, NULL);
    nrd_stats_init(&m->stats);
    const int64_t n_live = atomic_fetch_add(&ctx->n_live_models, 1) + 1;
    err = nrd_queue_reserve(ctx->to_finalize, 2 * (size_t)n_live); /* when it fails, and when it ends */
    err = err ? err : build(m);
    if (err) {
        nrd_model_destroy(m);
        return err;
    }
    nrd_model_metrics_load_time(m->metrics, (double)(nrd_now_ns() - start) / 1e9);
    *out = m;
    return NULL;
}

void nrd_model_retire(nrd_model *m)
{
    nrd_agents_unloading(m->agents);
    nrd_scheduler_abandon(m->scheduler);
    nrd_model_unref(m);
}

void nrd_model_destroy(nrd_model *m)
{
    nrd_context *ctx = m->ctx;

    nrd_scheduler_stop(m->scheduler);
    nrd_workers_join(m);
    nrd_scheduler_free(m->scheduler);
    if (m->backend) {
        nrd_instances_free(m);
    }
    nrd_strategy_free(m->strategy);
    if (m->initialized && m->backend->model_finalize) {
        nrd_error *err = from_api(m->backend->model_finalize((TRITONBACKEND_Model *)(void *)m));
        if (err) {
            NRD_LOG_ERROR("failed finalizing model: %s", nrd_error_message(err));
            nrd_error_free(err);
        }
    }
    nrd_agents_unref(m->agents);
    if (m->files) {
        m->files_unref(m->files);
    }
    if (m->on_destroy) {
        m->on_destroy(m->on_destroy_user, m);
    }
    if (m->backend) {
        nrd_backend_put(ctx->backends, m->backend);
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
    for (size_t i = 0; i < m->n_ignored; i++) {
        free(m->ignored[i].name);
    }
    free(m->ignored);
    pthread_mutex_destroy(&m->mu);
    if (m->config) {
        inference__model_config__free_unpacked(m->config, NULL);
    }
    free_texts(m);
    atomic_fetch_sub(&ctx->n_live_models, 1);
}
