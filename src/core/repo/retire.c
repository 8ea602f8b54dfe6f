/* What goes out of service: unloaded or failed versions, and the ensembles that follow. */
#include "core/model.h"
#include "core/model_load.h"
#include "core/repo/repo.h"
#include "core/repo/repository.h"
#include "core/server.h"

#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/queue.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

void nrd_repo_model_gone(void *user, nrd_model *m)
{
    nrd_repo *r = user;

    pthread_mutex_lock(&r->mu);
    nrd_repo_entry *e = nrd_repo_find_locked(r, m->space, m->name);
    NRD_LOG_INFO("successfully unloaded '%s' version %" PRId64, e ? e->title : m->name, m->version);
    nrd_repo_version *v = e ? nrd_repo_version_locked(e, m->version, false) : NULL;
    if (v && v->leaving == m) {
        v->leaving = NULL;
        pthread_cond_broadcast(&r->gone);
        if (v->state == NRD_MODEL_UNLOADING) {
            nrd_repo_set_state_locked(v, NRD_MODEL_UNAVAILABLE, v->reason ? v->reason : "unloaded");
        }
    }
    pthread_mutex_unlock(&r->mu);
}

void nrd_repo_retire(nrd_repo *r, nrd_repo_entry *e, const int64_t *keep, size_t n_keep,
                     const char *reason, bool failed)
{
    nrd_model **gone = NULL;
    size_t n = 0;

    pthread_mutex_lock(&r->mu);
    gone = nrd_xcalloc(e->n_versions + 1, sizeof *gone);
    for (size_t i = 0; i < e->n_versions; i++) {
        nrd_repo_version *v = &e->versions[i];
        bool kept = false;
        for (size_t k = 0; k < n_keep; k++) {
            kept = kept || keep[k] == v->number;
        }
        if (!kept && v->model) {
            gone[n++] = v->model;
            v->leaving = v->model;
            v->model = NULL;
            v->failed = failed;
            nrd_repo_set_state_locked(v, NRD_MODEL_UNLOADING, reason);
        } else if (!kept && (reason || v->failed) && v->state == NRD_MODEL_UNAVAILABLE) {
            v->failed = failed;
            nrd_repo_set_state_locked(v, NRD_MODEL_UNAVAILABLE, reason ? reason : "unloaded");
        }
    }
    pthread_mutex_unlock(&r->mu);
    for (size_t i = 0; i < n; i++) {
        nrd_model_retire(gone[i]);
    }
    free(gone);
}

/* Whether an ensemble uses the model, or would if it were loaded now. Both locks are held. */
static bool concerns_locked(nrd_repo *r, const nrd_repo_entry *user, const nrd_repo_entry *e)
{
    for (size_t k = 0; k < user->n_steps; k++) {
        if (strcmp(user->steps[k], e->name) != 0) {
            continue;
        }
        if (strcmp(user->step_spaces[k], e->space) == 0) {
            return true;
        }
        nrd_places found = nrd_places_find(r, e->name);
        const nrd_place *p = nrd_places_pick(&found, user->space);
        const bool would = p && strcmp(p->space, e->space) == 0;
        nrd_places_fini(&found);
        return would;
    }
    return false;
}

/* Whether what the ensemble means by `name` is ready. */
static bool is_usable(nrd_repo *r, const nrd_repo_entry *user, const char *name)
{
    if (!r->server->opt.namespacing) {
        return nrd_repo_is_ready(r, "", name);
    }
    nrd_places found = nrd_places_find(r, name);
    const nrd_place *p = nrd_places_pick(&found, user->space);
    const bool usable = p && nrd_repo_is_ready(r, p->space, name);
    nrd_places_fini(&found);
    return usable;
}

static void follow(nrd_repo *r, const nrd_repo_entry *e, int depth)
{
    enum { MAX_NESTING = 32 };
    nrd_repo_entry **users = NULL;
    size_t n = 0;

    if (depth > MAX_NESTING) {
        return;
    }
    pthread_mutex_lock(&r->mu);
    users = nrd_xcalloc(r->n_entries + 1, sizeof(nrd_repo_entry *));
    for (size_t i = 0; i < r->n_entries; i++) {
        if (r->entries[i]->wanted && concerns_locked(r, r->entries[i], e)) {
            users[n++] = r->entries[i];
        }
    }
    pthread_mutex_unlock(&r->mu);
    for (size_t i = 0; i < n; i++) {
        bool usable = is_usable(r, users[i], e->name);
        pthread_mutex_lock(&r->mu);
        bool busy = users[i]->loader != NULL;
        char *dir = users[i]->dir ? nrd_xstrdup(users[i]->dir) : NULL;
        pthread_mutex_unlock(&r->mu);
        if (!busy && usable && dir) {
            nrd_error *err =
                nrd_repo_load_entry(r, users[i], dir, NULL); /* checks the shapes again */
            if (err) {
                NRD_LOG_ERROR("failed to load '%s': %s", users[i]->name, nrd_error_message(err));
                nrd_error_free(err);
            }
            follow(r, users[i], depth + 1);
        } else if (!busy && !usable && nrd_repo_is_ready(r, users[i]->space, users[i]->name)) {
            pthread_mutex_lock(&r->mu);
            const char *why = nrd_repo_failure_locked(e);
            const bool failed = why != NULL;
            char *reason =
                failed ? nrd_xasprintf("ensemble '%s' depends on '%s', which failed: %s",
                                       users[i]->name, e->name, why)
                       : nrd_xasprintf("Invalid argument: ensemble '%s' depends on '%s' which has "
                                       "no loaded version.",
                                       users[i]->name, e->name);
            pthread_mutex_unlock(&r->mu);
            nrd_repo_retire(r, users[i], NULL, 0, reason, failed);
            free(reason);
            follow(r, users[i], depth + 1);
        }
        free(dir);
    }
    free(users);
}

void nrd_repo_follow(nrd_repo *r, const nrd_repo_entry *e)
{
    follow(r, e, 0);
}

void nrd_repo_fail(nrd_repo *r, nrd_model *m, const char *reason)
{
    pthread_mutex_lock(&r->mu);
    nrd_repo_entry *e = nrd_repo_find_locked(r, m->space, m->name);
    nrd_repo_version *v = e ? nrd_repo_version_locked(e, m->version, false) : NULL;
    const bool served = v && v->model == m;
    if (served) {
        v->leaving = m;
        v->model = NULL;
        v->failed = true;
        nrd_repo_set_state_locked(v, NRD_MODEL_UNAVAILABLE, reason);
    }
    pthread_mutex_unlock(&r->mu);
    if (served) {
        NRD_LOG_ERROR("model '%s' version %" PRId64 " failed: %s", m->name, m->version, reason);
        m->failed = true;
        bool queued = nrd_queue_push(r->server->dead_models, m);
        NRD_ASSERT(queued, "the reaper outlives every model");
    }
}

void nrd_repo_bury(nrd_repo *r, nrd_model *m)
{
    pthread_mutex_lock(&r->order_mu);
    pthread_mutex_lock(&r->mu);
    const nrd_repo_entry *e = nrd_repo_find_locked(r, m->space, m->name);
    pthread_mutex_unlock(&r->mu);
    if (e && !r->closing) {
        nrd_repo_follow(r, e);
    }
    pthread_mutex_unlock(&r->order_mu);
    nrd_model_retire(m);
}

bool nrd_repo_has_failed(nrd_repo *r, const char *name)
{
    bool failed = false;

    pthread_mutex_lock(&r->mu);
    for (size_t i = 0; i < r->n_entries; i++) {
        const nrd_repo_entry *e = r->entries[i];
        failed = failed || ((!name || strcmp(e->name, name) == 0) && nrd_repo_failure_locked(e));
    }
    pthread_mutex_unlock(&r->mu);
    return failed;
}
