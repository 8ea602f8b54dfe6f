/* SPDX-License-Identifier: Apache-2.0
 * What goes out of service: unloaded or failed versions. */
#include "core/context.h"
#include "core/model_internal.h"
#include "core/model_load.h"
#include "core/repo/internal.h"
#include "core/repo/repository.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/queue.h"

#include <inttypes.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

void nrd_repo_model_gone(void *user, nrd_model *m)
{
    nrd_repo *r = user;

    pthread_mutex_lock(&r->mu);
    nrd_repo_entry *e = nrd_repo_find_locked(r, m->namespace, m->name);
    pthread_mutex_unlock(&r->mu);
    NRD_LOG_INFO("successfully unloaded '%s' version %" PRId64, e ? e->title : m->name, m->version);
    pthread_mutex_lock(&r->mu);
    nrd_repo_version *v = e ? nrd_repo_version_locked(e, m->version) : NULL;
    if (v && v->leaving == m) {
        v->leaving = NULL;
        pthread_cond_broadcast(&r->gone);
        if (v->state == NRD_MODEL_UNLOADING) {
            nrd_repo_set_state_locked(v, NRD_MODEL_UNAVAILABLE, v->reason ? v->reason : "unloaded");
        }
    }
    pthread_mutex_unlock(&r->mu);
#ifdef __GLIBC__
    /* What the loads' threads have freed stays in their arenas otherwise, several megabytes in each. */
    malloc_trim(0);
#endif
}

/* NULL: no more. Its share is the caller's. */
static nrd_model *next_to_retire(nrd_repo *r, nrd_repo_entry *e)
{
    nrd_model *m = NULL;

    pthread_mutex_lock(&r->mu);
    for (size_t i = 0; i < e->n_versions && !m; i++) {
        nrd_repo_version *v = &e->versions[i];
        m = v->is_to_retire ? v->leaving : NULL;
        v->is_to_retire = v->is_to_retire && !m;
    }
    pthread_mutex_unlock(&r->mu);
    return m;
}

void nrd_repo_retire(nrd_repo *r, nrd_repo_entry *e, const int64_t *keep, size_t n_keep,
                     const char *reason, bool failed)
{
    pthread_mutex_lock(&r->mu);
    for (size_t i = 0; i < e->n_versions; i++) {
        nrd_repo_version *v = &e->versions[i];
        bool kept = false;
        for (size_t k = 0; k < n_keep; k++) {
            kept = kept || keep[k] == v->number;
        }
        if (!kept && v->model) {
            v->leaving = v->model;
            v->is_to_retire = true;
            v->model = NULL;
            v->failed = failed;
            nrd_repo_set_state_locked(v, NRD_MODEL_UNLOADING, reason);
        } else if (!kept && (reason || v->failed) && v->state == NRD_MODEL_UNAVAILABLE) {
            v->failed = failed;
            nrd_repo_set_state_locked(v, NRD_MODEL_UNAVAILABLE, reason ? reason : "unloaded");
        }
    }
    pthread_mutex_unlock(&r->mu);
    for (nrd_model *m; (m = next_to_retire(r, e)) != NULL;) {
        nrd_model_retire(m); /* outside the lock */
    }
}

void nrd_repo_fail(nrd_repo *r, nrd_model *m, const char *reason)
{
    pthread_mutex_lock(&r->mu);
    nrd_repo_entry *e = nrd_repo_find_locked(r, m->namespace, m->name);
    nrd_repo_version *v = e ? nrd_repo_version_locked(e, m->version) : NULL;
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
        bool queued = nrd_queue_push(r->ctx->to_finalize, m);
        NRD_ASSERT(queued, "the finalizer outlives every model");
    }
}

static bool is_leaving_locked(const nrd_repo *r, const char *name)
{
    bool leaving = false;
    for (size_t i = nrd_repo_first_locked(r, name); i < r->n_entries && strcmp(r->entries[i]->name, name) == 0; i++) {
        for (size_t k = 0; k < r->entries[i]->n_versions; k++) {
            leaving = leaving || r->entries[i]->versions[k].leaving;
        }
    }
    return leaving;
}

bool nrd_repo_wait_gone(nrd_repo *r, const char *name, uint64_t timeout_ns)
{
    const struct timespec until = nrd_steady_in(timeout_ns);
    bool leaving;

    pthread_mutex_lock(&r->mu);
    while ((leaving = is_leaving_locked(r, name)) && pthread_cond_timedwait(&r->gone, &r->mu, &until) == 0) {
    }
    pthread_mutex_unlock(&r->mu);
    return !leaving;
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
