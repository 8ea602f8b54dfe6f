/* SPDX-License-Identifier: Apache-2.0
 * The table of models and their versions: a row for each, sorted by name. */
#include "core/context.h"
#include "core/repo/internal.h"
#include "core/repo/repository.h"
#include "core/strings.h"

#include "base/clock.h"
#include "base/error.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t nrd_repo_first_locked(const nrd_repo *r, const char *name)
{
    size_t low = 0, high = r->n_entries;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (strcmp(r->entries[middle]->name, name) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

nrd_repo_entry *nrd_repo_find_locked(nrd_repo *r, const char *namespace, const char *name)
{
    for (size_t i = nrd_repo_first_locked(r, name);
         i < r->n_entries && strcmp(r->entries[i]->name, name) == 0; i++) {
        if (strcmp(r->entries[i]->namespace, namespace) == 0) {
            return r->entries[i];
        }
    }
    return NULL;
}

static void entry_free(nrd_repo_entry *e)
{
    for (size_t k = 0; e && k < e->n_versions; k++) {
        nrd_repo_reason_free(e->versions[k].reason);
    }
    if (e) {
        nrd_repo_steps_fini(&e->steps);
        free(e->versions);
        nrd_repo_reason_free(e->error);
        free(e->override_dir);
        free(e->dir);
        free(e->namespace);
        free(e->title);
        free(e->name);
    }
    free(e);
}

/* NULL: no memory. */
static nrd_repo_entry *entry_new(const char *namespace, const char *name)
{
    nrd_repo_entry *e = calloc(1, sizeof *e);
    if (!e) {
        return NULL;
    }
    e->name = strdup(name);
    e->namespace = strdup(namespace);
    if (asprintf(&e->title, "%s%s%s", namespace, namespace[0] ? "::" : "", name) < 0) {
        e->title = NULL;
    }
    if (!e->name || !e->namespace || !e->title) {
        entry_free(e);
        return NULL;
    }
    return e;
}

static nrd_repo_entry *add_locked(nrd_repo *r, const char *namespace, const char *name)
{
    const size_t i = nrd_repo_first_locked(r, name);
    nrd_repo_entry **grown = realloc(r->entries, (r->n_entries + 1) * sizeof *r->entries);
    r->entries = grown ? grown : r->entries;
    nrd_repo_entry *e = grown ? entry_new(namespace, name) : NULL;
    if (e) {
        memmove(r->entries + i + 1, r->entries + i, (r->n_entries - i) * sizeof *r->entries);
        r->entries[i] = e;
        r->n_entries++;
    }
    return e;
}

nrd_error *nrd_repo_find_or_add(nrd_repo_entry **out, nrd_repo *r, const char *namespace, const char *name)
{
    pthread_mutex_lock(&r->mu);
    *out = nrd_repo_find_locked(r, namespace, name);
    if (!*out) {
        *out = add_locked(r, namespace, name);
    }
    pthread_mutex_unlock(&r->mu);
    return *out ? NULL : nrd_error_no_memory();
}

/* Index of the version, or of where it would stand. */
static size_t place_of(const nrd_repo_entry *e, int64_t number)
{
    size_t i = 0;
    while (i < e->n_versions && e->versions[i].number < number) {
        i++;
    }
    return i;
}

nrd_repo_version *nrd_repo_version_locked(nrd_repo_entry *e, int64_t number)
{
    const size_t i = place_of(e, number);
    return i < e->n_versions && e->versions[i].number == number ? &e->versions[i] : NULL;
}

nrd_error *nrd_repo_add_version_locked(nrd_repo_entry *e, int64_t number)
{
    const size_t i = place_of(e, number);

    if (i < e->n_versions && e->versions[i].number == number) {
        return NULL;
    }
    nrd_repo_version *grown = realloc(e->versions, (e->n_versions + 1) * sizeof *grown);
    if (!grown) {
        return nrd_error_no_memory();
    }
    e->versions = grown;
    memmove(e->versions + i + 1, e->versions + i, (e->n_versions - i) * sizeof *e->versions);
    e->n_versions++;
    e->versions[i] = (nrd_repo_version){.number = number};
    return NULL;
}

/* What is said although there is no memory to say it with; "unloaded" is also looked for. */
static char unloaded[] = "unloaded", no_memory[] = "Unavailable: out of memory";

char *nrd_repo_reason_new(const char *fmt, ...)
{
    char *reason = NULL;
    va_list args;

    va_start(args, fmt);
    const int n = vasprintf(&reason, fmt, args);
    va_end(args);
    return n < 0 ? no_memory : reason;
}

void nrd_repo_reason_free(char *reason)
{
    if (reason != unloaded && reason != no_memory) {
        free(reason);
    }
}

void nrd_repo_set_state_locked(nrd_repo_version *v, nrd_model_state state, const char *reason)
{
    char *copy = !reason                         ? NULL
                 : strcmp(reason, unloaded) == 0 ? unloaded
                                                 : nrd_repo_reason_new("%s", reason); /* it may be the old one */
    v->state = state;
    v->failed = v->failed && state != NRD_MODEL_READY;
    nrd_repo_reason_free(v->reason);
    v->reason = copy;
}

bool nrd_repo_entry_is_ready_locked(const nrd_repo_entry *e)
{
    for (size_t i = 0; e && i < e->n_versions; i++) {
        if (e->versions[i].state == NRD_MODEL_READY) {
            return true;
        }
    }
    return false;
}

bool nrd_repo_is_ready(nrd_repo *r, const char *namespace, const char *name)
{
    pthread_mutex_lock(&r->mu);
    bool ready = nrd_repo_entry_is_ready_locked(nrd_repo_find_locked(r, namespace, name));
    pthread_mutex_unlock(&r->mu);
    return ready;
}

const char *nrd_repo_failure_locked(const nrd_repo_entry *e)
{
    for (size_t i = e->n_versions; i-- > 0;) {
        if (e->versions[i].failed && e->versions[i].reason) {
            return e->versions[i].reason;
        }
    }
    return NULL;
}

void nrd_repo_steps_fini(nrd_repo_steps *s)
{
    for (size_t i = 0; i < s->n; i++) {
        free(s->names[i]);
        free(s->namespaces[i]);
    }
    free(s->names);
    free(s->namespaces);
    *s = (nrd_repo_steps){0};
}

nrd_error *nrd_repo_new(nrd_repo **out, nrd_context *ctx)
{
    nrd_repo *r = calloc(1, sizeof *r);
    *out = r;
    if (!r) {
        return nrd_error_no_memory();
    }
    r->ctx = ctx;
    pthread_mutex_init(&r->mu, NULL);
    pthread_mutex_init(&r->control_mu, NULL);
    pthread_cond_init(&r->control_cond, NULL);
    nrd_cond_init_steady(&r->gone);
    for (size_t i = 0; i < ctx->opt.repositories.n; i++) {
        nrd_strings_add(&r->paths, ctx->opt.repositories.items[i]);
    }
    nrd_error *err = nrd_strings_error(&r->paths);
    if (err) {
        nrd_repo_free(r);
        *out = NULL;
    }
    return err;
}

void nrd_repo_free(nrd_repo *r)
{
    if (!r) {
        return;
    }
    for (size_t i = 0; i < r->n_entries; i++) {
        entry_free(r->entries[i]);
    }
    free(r->entries);
    (void)nrd_locations_unmap(r, NULL);
    nrd_strings_fini(&r->paths);
    pthread_mutex_destroy(&r->mu);
    pthread_cond_destroy(&r->control_cond);
    pthread_cond_destroy(&r->gone);
    pthread_mutex_destroy(&r->control_mu);
    free(r);
}
