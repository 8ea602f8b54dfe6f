/* SPDX-License-Identifier: Apache-2.0
 * Ensembles follow the models that they are made of. */
#include "core/context.h"
#include "core/model_internal.h"
#include "core/model_load.h"
#include "core/repo/internal.h"
#include "core/repo/repository.h"

#include "base/error.h"
#include "base/log.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Without memory there is nothing of that name, and the log says why. */
static nrd_locations find(nrd_repo *r, const char *name)
{
    nrd_locations found;
    nrd_error *err = nrd_locations_find(r, name, &found);
    if (err) {
        NRD_LOG_ERROR("cannot look for model '%s': %s", name, nrd_error_message(err));
        nrd_error_free(err);
    }
    return found;
}

/* Whether an ensemble uses the model, or would if it were loaded now. Control; looks at folders. */
static bool concerns(nrd_repo *r, const nrd_repo_entry *user, const nrd_repo_entry *e)
{
    for (size_t k = 0; k < user->steps.n; k++) {
        if (strcmp(user->steps.names[k], e->name) != 0) {
            continue;
        }
        if (strcmp(user->steps.namespaces[k], e->namespace) == 0) {
            return true;
        }
        nrd_locations found = find(r, e->name);
        const nrd_location *p = nrd_locations_pick(&found, user->namespace);
        const bool would = p && strcmp(p->namespace, e->namespace) == 0;
        nrd_locations_fini(&found);
        return would;
    }
    return false;
}

/* Whether what the ensemble means by `name` is ready. */
static bool is_usable(nrd_repo *r, const nrd_repo_entry *user, const char *name)
{
    if (!r->ctx->opt.namespacing) {
        return nrd_repo_is_ready(r, "", name);
    }
    nrd_locations found = find(r, name);
    const nrd_location *p = nrd_locations_pick(&found, user->namespace);
    const bool usable = p && nrd_repo_is_ready(r, p->namespace, name);
    nrd_locations_fini(&found);
    return usable;
}

static void update(nrd_repo *r, const nrd_repo_entry *e, int depth)
{
    enum { MAX_NESTING = 32 };
    nrd_repo_entry **users = NULL;
    size_t n = 0;

    if (depth > MAX_NESTING) {
        return;
    }
    users = calloc(r->n_entries + 1, sizeof(nrd_repo_entry *));
    if (!users) {
        NRD_LOG_ERROR("ensembles that use model '%s' do not follow it: out of memory", e->title);
        return;
    }
    for (size_t i = 0; i < r->n_entries; i++) { /* written with control_mu held alone */
        if (r->entries[i]->wanted && concerns(r, r->entries[i], e)) {
            users[n++] = r->entries[i];
        }
    }
    for (size_t i = 0; i < n; i++) {
        bool usable = is_usable(r, users[i], e->name);
        pthread_mutex_lock(&r->mu);
        bool busy = users[i]->loader != NULL;
        char *dir = users[i]->dir ? strdup(users[i]->dir) : NULL;
        const bool is_lost = users[i]->dir && !dir;
        pthread_mutex_unlock(&r->mu);
        if (!busy && usable && is_lost) {
            NRD_LOG_ERROR("failed to load '%s': out of memory", users[i]->name);
        } else if (!busy && usable && dir) {
            nrd_error *err =
                nrd_repo_load_entry(r, users[i], dir, NULL); /* checks the shapes again */
            if (err) {
                NRD_LOG_ERROR("failed to load '%s': %s", users[i]->name, nrd_error_message(err));
                nrd_error_free(err);
            }
            update(r, users[i], depth + 1);
        } else if (!busy && !usable && nrd_repo_is_ready(r, users[i]->namespace, users[i]->name)) {
            pthread_mutex_lock(&r->mu);
            const char *why = nrd_repo_failure_locked(e);
            const bool failed = why != NULL;
            char *reason =
                failed ? nrd_repo_reason_new("ensemble '%s' depends on '%s', which failed: %s",
                                             users[i]->name, e->name, why)
                       : nrd_repo_reason_new("Invalid argument: ensemble '%s' depends on '%s' which has "
                                             "no loaded version.",
                                             users[i]->name, e->name);
            pthread_mutex_unlock(&r->mu);
            nrd_repo_retire(r, users[i], NULL, 0, reason, failed);
            nrd_repo_reason_free(reason);
            update(r, users[i], depth + 1);
        }
        free(dir);
    }
    free(users);
}

void nrd_repo_update_dependents(nrd_repo *r, const nrd_repo_entry *e)
{
    update(r, e, 0);
}

void nrd_repo_remove_failed(nrd_repo *r, nrd_model *m)
{
    pthread_mutex_lock(&r->control_mu);
    pthread_mutex_lock(&r->mu);
    const nrd_repo_entry *e = nrd_repo_find_locked(r, m->namespace, m->name);
    pthread_mutex_unlock(&r->mu);
    if (e && !r->closing) {
        nrd_repo_update_dependents(r, e);
    }
    pthread_mutex_unlock(&r->control_mu);
    nrd_model_retire(m);
}
