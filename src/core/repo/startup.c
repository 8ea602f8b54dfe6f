/* SPDX-License-Identifier: Apache-2.0
 * The models that are loaded without being asked for: at the start, and by polling. */
#include "core/context.h"
#include "core/options.h"
#include "core/repo/internal.h"
#include "core/repo/place.h"
#include "core/repo/repository.h"

#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "triton/core/tritonserver.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static bool load_location(nrd_repo *r, const nrd_location *p)
{
    nrd_repo_entry *e;
    nrd_error *err = nrd_repo_find_or_add(&e, r, p->namespace, p->name);

    if (err) {
        NRD_LOG_ERROR("failed to load model '%s': %s", p->name, nrd_error_message(err));
        nrd_error_free(err);
        return false;
    }
    (void)nrd_repo_wait_idle(r, e); /* at the start no thread waits for this one */
    pthread_mutex_lock(&r->mu);
    bool done = nrd_repo_entry_is_ready_locked(e) || e->error; /* as part of an ensemble */
    bool failed = e->error && !nrd_repo_entry_is_ready_locked(e);
    e->by_name = true;
    pthread_mutex_unlock(&r->mu);
    if (done) {
        return !failed;
    }
    err = nrd_repo_load_entry(r, e, p->dir, NULL);
    if (err) {
        nrd_error_free(err); /* logged, and kept with the entry */
        return false;
    }
    return true;
}

typedef struct startup {
    nrd_repo *repo;
    const nrd_locations *list;
    size_t next; /* guarded by control_mu, as the rest */
    bool ok;
} startup;

static void *load_some(void *arg)
{
    startup *st = arg;

    pthread_mutex_lock(&st->repo->control_mu);
    while (st->next < st->list->n) {
        const nrd_location *p = &st->list->items[st->next++];
        st->ok = load_location(st->repo, p) && st->ok;
    }
    pthread_mutex_unlock(&st->repo->control_mu);
    return NULL;
}

/* Loads the models with as many threads as the options say. */
static bool load_all(nrd_repo *r, const nrd_locations *list)
{
    startup st = {.repo = r, .list = list, .ok = true};
    const size_t wish = r->ctx->opt.load_threads ? r->ctx->opt.load_threads : 1;
    const size_t n = wish < list->n ? wish : list->n;
    pthread_t *threads = nrd_xcalloc(n + 1, sizeof *threads);
    size_t started = 0;

    while (started + 1 < n && pthread_create(&threads[started], NULL, load_some, &st) == 0) {
        pthread_setname_np(threads[started], "load");
        started++;
    }
    load_some(&st); /* this thread is one of them */
    for (size_t i = 0; i < started; i++) {
        pthread_join(threads[i], NULL);
    }
    free(threads);
    return st.ok;
}

/* Why a model could not be loaded, if possible one that was tried itself: others need it. Told where no table tells it. */
static nrd_error *first_failure(nrd_repo *r)
{
    const nrd_repo_entry *found = NULL;

    pthread_mutex_lock(&r->mu);
    for (size_t i = 0; i < r->n_entries; i++) {
        const nrd_repo_entry *e = r->entries[i];
        found = e->error && (!found || (e->tried && !found->tried)) ? e : found;
    }
    const char *why = found ? found->error : "not found in any model repository";
    for (size_t i = 0; found && found->tried && i < found->n_versions; i++) {
        const char *reason = found->versions[i].reason;
        why = reason && strcmp(reason, "unloaded") != 0 ? reason : why;
    }
    nrd_error *err = nrd_errorf(NRD_ERR_INTERNAL, "failed to load '%s': %s", found ? found->title : "a model", why);
    pthread_mutex_unlock(&r->mu);
    return err;
}

nrd_error *nrd_repo_check_paths(nrd_repo *r)
{
    nrd_error *err = NULL;
    pthread_mutex_lock(&r->control_mu);
    for (size_t i = 0; i < r->paths.n && !err; i++) {
        err = nrd_place_check(r->paths.items[i]);
    }
    pthread_mutex_unlock(&r->control_mu);
    return err;
}

nrd_error *nrd_repo_load_startup(nrd_repo *r)
{
    const nrd_server_options *opt = &r->ctx->opt;
    nrd_locations list = {0};
    bool all = opt->control_mode != TRITONSERVER_MODEL_CONTROL_EXPLICIT, ok = true;
    nrd_error *err = NULL;

    for (size_t i = 0; i < opt->startup_models.n; i++) {
        if (strcmp(opt->startup_models.items[i], "*") == 0) {
            if (opt->startup_models.n > 1) {
                return nrd_errorf(NRD_ERR_INVALID_ARG,
                                  "Wildcard model name '*' must be the ONLY startup model if "
                                  "specified at all.");
            }
            all = true;
        }
    }
    pthread_mutex_lock(&r->control_mu);
    if (all) {
        err = nrd_locations_scan(r, &list, &ok);
    }
    for (size_t i = 0; i < opt->startup_models.n && !err && !all; i++) {
        const char *name = opt->startup_models.items[i];
        nrd_locations found;
        nrd_repo_entry *e;
        err = nrd_locations_find(r, name, &found);
        if (!err && found.n == 0) {
            NRD_LOG_ERROR("failed to load model '%s': not found in any model repository", name);
            err = nrd_repo_find_or_add(&e, r, "", name); /* shown in the table of models */
            ok = false;
        }
        for (size_t k = 0; k < found.n && !err; k++) {
            err = nrd_locations_add(r, &list, name, strdup(found.items[k].dir), found.items[k].namespace);
        }
        nrd_locations_fini(&found);
    }
    r->starting = true;
    pthread_mutex_unlock(&r->control_mu);
    if (!err) {
        ok = load_all(r, &list) && ok;
    }
    pthread_mutex_lock(&r->control_mu);
    r->starting = false;
    pthread_mutex_unlock(&r->control_mu);
    nrd_locations_fini(&list);
    if (!err && !ok) {
        err = opt->hides_tables ? first_failure(r) : nrd_errorf(NRD_ERR_INTERNAL, "failed to load all models");
    }
    return err;
}

nrd_error *nrd_repo_poll(nrd_repo *r)
{
    nrd_locations list = {0};
    nrd_error *err;
    bool unique;

    if (r->ctx->opt.control_mode != TRITONSERVER_MODEL_CONTROL_POLL) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "polling is disabled");
    }
    pthread_mutex_lock(&r->control_mu);
    err = nrd_locations_scan(r, &list, &unique);
    for (size_t i = 0; i < list.n && !err; i++) {
        const nrd_location *p = &list.items[i];
        nrd_repo_entry *e;
        err = nrd_repo_find_or_add(&e, r, p->namespace, p->name);
        if (err) {
            break;
        }
        uint64_t signature = 0;
        nrd_error *look_err = nrd_place_signature(&signature, p->dir);
        pthread_mutex_lock(&r->mu);
        /* What cannot be looked at stays as it is. */
        bool same = e->wanted && (look_err || e->signature == signature);
        pthread_mutex_unlock(&r->mu);
        if (look_err && same) {
            NRD_LOG_ERROR("failed to poll model '%s': %s", p->name, nrd_error_message(look_err));
        }
        nrd_error_free(look_err);
        if (!same) {
            nrd_error *load_err = nrd_repo_load_entry(r, e, p->dir, NULL);
            if (load_err) {
                NRD_LOG_ERROR("failed to load model '%s': %s", p->name,
                              nrd_error_message(load_err));
                nrd_error_free(load_err);
            }
            nrd_repo_update_dependents(r, e);
        }
    }
    for (size_t i = 0; !err && i < r->n_entries; i++) {
        nrd_repo_entry *e = r->entries[i];
        bool there = false;
        for (size_t k = 0; k < list.n; k++) {
            there = there || (strcmp(list.items[k].name, e->name) == 0 &&
                              strcmp(list.items[k].namespace, e->namespace) == 0);
        }
        if (!there && e->wanted) {
            pthread_mutex_lock(&r->mu);
            e->wanted = false;
            pthread_mutex_unlock(&r->mu);
            nrd_repo_retire(r, e, NULL, 0, NULL, false);
            nrd_repo_update_dependents(r, e);
        }
    }
    pthread_mutex_unlock(&r->control_mu);
    nrd_locations_fini(&list);
    return err;
}
