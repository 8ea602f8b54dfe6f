/* SPDX-License-Identifier: Apache-2.0
 * Loading: from a folder to versions that serve. */
#include "core/agent.h"
#include "core/config/config.h"
#include "core/config/pbfield.h"
#include "core/context.h"
#include "core/model.h"
#include "core/model_internal.h"
#include "core/model_load.h"
#include "core/repo/internal.h"
#include "core/repo/place.h"
#include "core/repo/repository.h"
#include "core/repo/scan.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "triton/core/tritonserver.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A thread that loads models, and the model that it waits for. */
typedef struct nrd_repo_loader {
    nrd_repo_entry *waits_for; /* guarded by control_mu */
} loader;

static _Thread_local loader this_thread;

bool nrd_repo_wait_idle(nrd_repo *r, nrd_repo_entry *e)
{
    while (e->loader) {
        for (const loader *l = e->loader; l; l = l->waits_for ? l->waits_for->loader : NULL) {
            if (l == &this_thread) {
                return false;
            }
        }
        this_thread.waits_for = e;
        pthread_cond_wait(&r->control_cond, &r->control_mu);
        this_thread.waits_for = NULL;
    }
    return true;
}

/* "Invalid argument: text", the form in which reasons are shown. */
static char *with_code(const nrd_error *err)
{
    return nrd_repo_reason_new("%s: %s",
                               TRITONSERVER_ErrorCodeString((TRITONSERVER_Error *)(uintptr_t)err),
                               nrd_error_message(err));
}

nrd_error_code nrd_repo_load_code(const nrd_error *why)
{
    return nrd_error_get_code(why) == NRD_ERR_NO_MEMORY ? NRD_ERR_NO_MEMORY : NRD_ERR_INVALID_ARG;
}

static nrd_error *read_steps(nrd_repo_steps *out, const nrd_repo_entry *e, const nrd_config *cfg)
{
    const Inference__ModelEnsembling *en = nrd_config_is_ensemble(cfg) ? cfg->ensemble_scheduling : NULL;
    nrd_error *err = NULL;

    *out = (nrd_repo_steps){0};
    if (!en) {
        return NULL;
    }
    NRD_NEW_GOTO(out->names, en->n_step, err, fail);
    NRD_NEW_GOTO(out->namespaces, en->n_step, err, fail);
    while (out->n < en->n_step) {
        const size_t i = out->n++;
        NRD_DUP_GOTO(out->names[i], en->step[i]->model_name, err, fail);
        NRD_DUP_GOTO(out->namespaces[i], e->namespace, err, fail);
    }
    return NULL;

fail:
    nrd_repo_steps_fini(out);
    return err;
}

/* Exchanges what the entry remembers for *steps. */
static void swap_steps(nrd_repo *r, nrd_repo_entry *e, nrd_repo_steps *steps)
{
    pthread_mutex_lock(&r->mu);
    const nrd_repo_steps old = e->steps;
    e->steps = *steps;
    *steps = old;
    pthread_mutex_unlock(&r->mu);
}

/* Why the entry's model could not be loaded; NULL: nobody has tried. */
static nrd_error *failed_before(nrd_repo *r, const nrd_repo_entry *e)
{
    pthread_mutex_lock(&r->mu);
    const char *code_end = e->error ? strstr(e->error, ": ") : NULL;
    nrd_error *err = code_end ? nrd_errorf(NRD_ERR_INVALID_ARG, "%s", code_end + 2) : NULL;
    pthread_mutex_unlock(&r->mu);
    return err;
}

/* Loads the model that a step names, if it is not there yet. */
static nrd_error *load_step(nrd_repo *r, const nrd_repo_entry *e, const char *step,
                            const char *namespace, const char *dir)
{
    nrd_repo_entry *other;

    if (nrd_repo_is_ready(r, namespace, step)) {
        return NULL;
    }
    NRD_TRY(nrd_repo_find_or_add(&other, r, namespace, step));
    if (!nrd_repo_wait_idle(r, other)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "circular dependency between ensembles: %s -> %s",
                          e->name, step);
    }
    nrd_error *err = NULL;
    if (!nrd_repo_is_ready(r, namespace, step)) {
        err = r->starting ? failed_before(r, other) : NULL;
        err = err ? err : nrd_repo_load_entry(r, other, dir, NULL);
    }
    if (err) {
        nrd_error *full = nrd_errorf(nrd_repo_load_code(err),
                                     "ensemble '%s' depends on '%s' which has no loaded version. "
                                     "Model '%s' loading failed with error: %s",
                                     e->name, step, step, nrd_error_message(err));
        nrd_error_free(err);
        return full;
    }
    return NULL;
}

static nrd_error *set_step_namespace(nrd_repo *r, nrd_repo_entry *e, size_t i, const char *namespace,
                                     nrd_config *cfg)
{
    char *copy = strdup(namespace);
    if (!copy) {
        return nrd_error_no_memory();
    }
    pthread_mutex_lock(&r->mu);
    free(e->steps.namespaces[i]);
    e->steps.namespaces[i] = copy;
    pthread_mutex_unlock(&r->mu);
    return nrd_pb_set_string(&cfg->ensemble_scheduling->step[i]->model_namespace, namespace);
}

/* Finds and loads what an ensemble names; writes the namespaces into its configuration. */
static nrd_error *load_steps(nrd_repo *r, nrd_repo_entry *e, nrd_config *cfg)
{
    for (size_t i = 0; i < e->steps.n; i++) {
        const char *step = e->steps.names[i];
        nrd_error *err = NULL;
        if (!r->ctx->opt.namespacing && nrd_repo_is_ready(r, "", step)) {
            continue; /* it may have come with a load request and lie in no repository */
        }
        nrd_locations found;
        NRD_TRY(nrd_locations_find(r, step, &found));
        const nrd_location *p = nrd_locations_pick(&found, e->namespace);
        if (!p) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG,
                             "ensemble %s contains models that are not available or ambiguous: %s",
                             e->name, step);
        } else {
            err = set_step_namespace(r, e, i, p->namespace, cfg);
            err = err ? err : load_step(r, e, step, p->namespace, p->dir);
        }
        nrd_locations_fini(&found);
        if (err) {
            return err;
        }
    }
    return NULL;
}

static nrd_error *read_config(nrd_repo *r, const char *name, const char *dir,
                              const char *override_json, nrd_config **out, nrd_agents **out_agents)
{
    nrd_config *cfg = NULL;
    nrd_error *err = NULL;

    *out = NULL;
    *out_agents = NULL;
    NRD_TRY(nrd_config_load(&cfg, r->ctx, name, dir, override_json));
    NRD_TRY_GOTO(nrd_agents_load(out_agents, r->ctx, cfg, dir), err, fail);
    dir = *out_agents ? nrd_agents_dir(*out_agents) : dir;
    NRD_TRY_GOTO(nrd_config_autofill(r->ctx, cfg, dir), err, fail);
    NRD_TRY_GOTO(nrd_config_normalize(cfg), err, fail);
    NRD_TRY_GOTO(nrd_config_validate(cfg), err, fail);
    *out = cfg;
    return NULL;

fail:
    nrd_agents_unref(*out_agents);
    *out_agents = NULL;
    inference__model_config__free_unpacked(cfg, NULL);
    return err;
}

static nrd_error *load_version(nrd_repo *r, nrd_repo_entry *e, int64_t number, const char *dir,
                               const nrd_config *cfg, nrd_model **out)
{
    nrd_error *err = NULL;

    for (uint32_t attempt = 0;; attempt++) {
        nrd_config *copy = (nrd_config *)(void *)nrd_pb_copy(&cfg->base);
        if (!copy) {
            return nrd_error_no_memory();
        }
        pthread_mutex_unlock(&r->control_mu); /* others may load other models meanwhile */
        err = nrd_model_new(out, r->ctx, e->namespace, e->name, number, dir, copy);
        pthread_mutex_lock(&r->control_mu);
        if (!err || attempt >= r->ctx->opt.load_retries) {
            break;
        }
        NRD_LOG_WARN("loading '%s' version %" PRId64 " again after: %s", e->title, number,
                     nrd_error_message(err));
        nrd_error_free(err);
    }
    if (!err) {
        (*out)->on_destroy = nrd_repo_model_gone;
        (*out)->on_destroy_user = r;
    }
    return err;
}

/* A version that failed first gives back its memory, of which a GPU has too little for two. Its
 * requests have been answered, so that this takes moments; the limit is for a device that hangs. */
static void wait_failed_gone(nrd_repo *r, nrd_repo_entry *e)
{
    enum { MAX_SECONDS = 30 };
    const struct timespec until = nrd_steady_in(MAX_SECONDS * 1000000000ull);
    bool left = true;

    pthread_mutex_unlock(&r->control_mu); /* the finalizer takes it */
    pthread_mutex_lock(&r->mu);
    while (left) {
        left = false;
        for (size_t i = 0; i < e->n_versions; i++) {
            left = left || (e->versions[i].failed && e->versions[i].leaving);
        }
        left = left && pthread_cond_timedwait(&r->gone, &r->mu, &until) == 0;
    }
    pthread_mutex_unlock(&r->mu);
    pthread_mutex_lock(&r->control_mu);
}

/* Version `bad` of those that were to be loaded could not be: the reason for the table and, which
 * takes `err`, for who asked for it. */
static nrd_error *note_failed(nrd_repo *r, nrd_repo_entry *e, const int64_t *numbers, size_t n,
                              size_t bad, nrd_error *err)
{
    char *reason = with_code(err);

    NRD_LOG_ERROR("failed to load '%s' version %" PRId64 ": %s", e->title, numbers[bad], reason);
    pthread_mutex_lock(&r->mu);
    for (size_t i = 0; i < n; i++) {
        nrd_repo_version *v = nrd_repo_version_locked(e, numbers[i]);
        if (!v->model) {
            nrd_repo_set_state_locked(v, NRD_MODEL_UNAVAILABLE, i == bad ? reason : "unloaded");
        }
    }
    pthread_mutex_unlock(&r->mu);
    nrd_error *full =
        nrd_errorf(nrd_error_get_code(err), "version %" PRId64 " is at UNAVAILABLE state: %s;\n",
                   numbers[bad], reason);
    nrd_error_free(err);
    nrd_repo_reason_free(reason);
    return full;
}

/* All that are to be loaded stand in the table, as loading where they do not serve. */
static nrd_error *note_loading(nrd_repo *r, nrd_repo_entry *e, const int64_t *numbers, size_t n)
{
    nrd_error *err = NULL;

    pthread_mutex_lock(&r->mu);
    for (size_t i = 0; i < n && !err; i++) {
        const bool is_new = !nrd_repo_version_locked(e, numbers[i]);
        err = nrd_repo_add_version_locked(e, numbers[i]);
        if (is_new && !err) {
            nrd_repo_set_state_locked(nrd_repo_version_locked(e, numbers[i]), NRD_MODEL_UNAVAILABLE, "unloaded");
        }
    }
    for (size_t i = 0; i < n && !err; i++) {
        nrd_repo_version *v = nrd_repo_version_locked(e, numbers[i]);
        if (!v->model) {
            nrd_repo_set_state_locked(v, NRD_MODEL_LOADING, NULL);
        }
    }
    pthread_mutex_unlock(&r->mu);
    for (size_t i = 0; i < n && !err; i++) {
        NRD_LOG_INFO("loading: %s:%" PRId64, e->title, numbers[i]);
    }
    return err;
}

/* All versions of the policy or none; on error the versions that served before still do. */
static nrd_error *load_versions(nrd_repo *r, nrd_repo_entry *e, const char *dir,
                                const nrd_config *cfg, nrd_agents *agents, nrd_files *files)
{
    int64_t *numbers = NULL;
    size_t n = 0;
    nrd_model **fresh = NULL;
    nrd_error *err = NULL;

    NRD_TRY(nrd_scan_versions(&numbers, &n, e->name, dir, cfg->version_policy));
    if (n == 0) {
        free(numbers);
        err = nrd_errorf(NRD_ERR_INVALID_ARG,
                         "at least one version must be available under the version policy of "
                         "model '%s'",
                         e->title);
        NRD_LOG_ERROR("failed to load model '%s': %s", e->title, nrd_error_message(err));
        return err;
    }
    wait_failed_gone(r, e);
    fresh = calloc(n, sizeof *fresh);
    err = fresh ? note_loading(r, e, numbers, n) : nrd_error_no_memory();
    if (err) {
        free(fresh);
        free(numbers);
        return err;
    }
    for (size_t i = 0; i < n && !err; i++) {
        err = load_version(r, e, numbers[i], dir, cfg, &fresh[i]);
        err = err ? note_failed(r, e, numbers, n, i, err) : NULL;
    }
    for (size_t i = 0; i < n; i++) {
        if (fresh[i]) {
            fresh[i]->agents = nrd_agents_ref(agents);
            fresh[i]->files = nrd_files_ref(files);
            fresh[i]->files_unref = nrd_files_unref;
        }
    }
    err = err ? err : nrd_agents_loaded(agents);
    if (err) {
        for (size_t i = 0; i < n; i++) {
            if (fresh[i]) {
                fresh[i]->on_destroy = NULL; /* never served: no note in the table */
                nrd_model_unref(fresh[i]);
            }
        }
    } else {
        pthread_mutex_lock(&r->mu);
        for (size_t i = 0; i < n; i++) {
            nrd_repo_version *v = nrd_repo_version_locked(e, numbers[i]);
            nrd_model *old = v->model;
            v->model = fresh[i];
            nrd_repo_set_state_locked(v, NRD_MODEL_READY, NULL);
            fresh[i] = old; /* given back below, outside the lock */
        }
        pthread_mutex_unlock(&r->mu);
        for (size_t i = 0; i < n; i++) {
            if (fresh[i]) {
                nrd_model_retire(fresh[i]);
            }
        }
        nrd_repo_retire(r, e, numbers, n, NULL, false);
        NRD_LOG_INFO("successfully loaded '%s'", e->title);
    }
    free(fresh);
    free(numbers);
    return err;
}

/* The model's files on this machine. A copy takes long, and others may load other models meanwhile. */
static nrd_error *get_files(nrd_repo *r, nrd_repo_entry *e, const char *dir, nrd_files **out)
{
    uint64_t signature = 0;
    char *own = strdup(dir); /* the caller's may be the entry's */
    if (!own) {
        return nrd_error_no_memory();
    }
    const bool is_remote = nrd_place_is_remote(own);

    if (is_remote) {
        pthread_mutex_unlock(&r->control_mu);
    }
    nrd_error *err = nrd_files_get(out, &signature, own);
    if (is_remote) {
        pthread_mutex_lock(&r->control_mu);
    }
    free(own);
    pthread_mutex_lock(&r->mu);
    e->signature = signature;
    pthread_mutex_unlock(&r->mu);
    return err;
}

nrd_error *nrd_repo_load_entry(nrd_repo *r, nrd_repo_entry *e, const char *dir,
                               const char *override_json)
{
    nrd_config *cfg = NULL;
    nrd_agents *agents = NULL;
    nrd_files *files = NULL;
    nrd_repo_steps steps = {0}; /* the new ones, then those that were remembered before */
    bool has_new_steps = false;
    nrd_error *err;
    const char *name = e->name;

    if (!nrd_repo_wait_idle(r, e)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "model '%s' is being loaded by the one that asks for it", name);
    }
    if (r->closing) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "Server is stopping, no model is loaded any more");
    }
    char *own_dir = e->dir == dir ? NULL : strdup(dir);
    if (e->dir != dir && !own_dir) {
        return nrd_error_no_memory();
    }
    e->loader = &this_thread;
    pthread_mutex_lock(&r->mu);
    e->wanted = true;
    if (own_dir) {
        free(e->dir);
        e->dir = own_dir;
    }
    pthread_mutex_unlock(&r->mu);
    err = get_files(r, e, dir, &files);
    dir = files ? nrd_files_dir(files) : NULL;
    if (!err) {
        err = read_config(r, name, dir, override_json, &cfg, &agents);
    }
    err = err ? err : read_steps(&steps, e, cfg);
    if (!err) {
        swap_steps(r, e, &steps);
        has_new_steps = true;
        err = load_steps(r, e, cfg);
    }
    bool polled = err != NULL; /* failed before any version was tried */
    if (!err) {
        pthread_mutex_lock(&r->mu);
        e->tried = true;
        pthread_mutex_unlock(&r->mu);
        err = load_versions(r, e, agents ? nrd_agents_dir(agents) : dir, cfg, agents, files);
    }
    if (err && has_new_steps && nrd_repo_is_ready(r, e->namespace, name)) {
        swap_steps(r, e, &steps); /* what serves is made of the old ones */
    }
    nrd_repo_steps_fini(&steps);
    nrd_agents_unref(agents); /* the versions have shares */
    nrd_files_unref(files);
    if (cfg) {
        inference__model_config__free_unpacked(cfg, NULL);
    }
    e->loader = NULL;
    pthread_cond_broadcast(&r->control_cond);
    pthread_mutex_lock(&r->mu);
    nrd_repo_reason_free(e->error);
    e->error = err ? with_code(err) : NULL;
    pthread_mutex_unlock(&r->mu);
    if (polled) {
        NRD_LOG_ERROR("Poll failed for model directory '%s': %s", e->title, nrd_error_message(err));
    }
    return err;
}
