/* SPDX-License-Identifier: Apache-2.0
 * Asking: which model a request means, what is ready, and the lists of models. */
#include "core/model.h"
#include "core/repo/internal.h"
#include "core/repo/repository.h"
#include "core/strings.h"
#include "core/table.h"

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const state_names[] = {"UNKNOWN", "READY", "UNAVAILABLE", "LOADING",
                                          "UNLOADING"};

/* The entry that a request means by a name alone. With namespacing those count whose models are
 * wanted, or, if none is, the first that ever had a version. */
static nrd_error *find_public_locked(nrd_repo_entry **out, nrd_repo *r, const char *name)
{
    size_t n_wanted = 0;

    *out = NULL;
    for (size_t i = nrd_repo_first_locked(r, name);
         i < r->n_entries && strcmp(r->entries[i]->name, name) == 0; i++) {
        nrd_repo_entry *e = r->entries[i];
        if (e->n_versions == 0) {
            continue;
        }
        if (!*out || (e->wanted && n_wanted == 0)) {
            *out = e;
        }
        n_wanted += e->wanted;
    }
    if (n_wanted > 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "There are %zu identifiers of model '%s' in global map, model namespace "
                          "must be provided to resolve ambiguity.",
                          n_wanted, name);
    }
    return *out ? NULL
                : nrd_errorf(NRD_ERR_NOT_FOUND, "Request for unknown model: '%s' is not found",
                             name);
}

static nrd_error *failed_error(const nrd_repo_entry *e, const char *reason)
{
    return nrd_errorf(NRD_ERR_UNAVAILABLE, "model '%s' is not available: %s", e->name, reason);
}

static nrd_error *take_version_locked(nrd_model **out, nrd_repo_entry *e, int64_t number)
{
    if (number == -1) {
        for (size_t i = e->n_versions; i-- > 0 && !*out;) {
            *out = e->versions[i].model ? nrd_model_ref(e->versions[i].model) : NULL;
        }
        const char *why = nrd_repo_failure_locked(e);
        return *out  ? NULL
               : why ? failed_error(e, why)
                     : nrd_errorf(NRD_ERR_NOT_FOUND,
                                  "Request for unknown model: '%s' has no available versions",
                                  e->name);
    }
    nrd_repo_version *v = nrd_repo_version_locked(e, number);
    if (!v) {
        return nrd_errorf(NRD_ERR_NOT_FOUND,
                          "Request for unknown model: '%s' version %" PRId64 " is not found",
                          e->name, number);
    }
    if (!v->model && v->failed && v->reason) {
        return failed_error(e, v->reason);
    }
    if (!v->model) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE,
                          "Request for unknown model: '%s' version %" PRId64
                          " is not at ready state",
                          e->name, number);
    }
    *out = nrd_model_ref(v->model);
    return NULL;
}

nrd_error *nrd_repo_get(nrd_model **out, nrd_repo *r, const char *name, int64_t number)
{
    nrd_repo_entry *e;

    *out = NULL;
    pthread_mutex_lock(&r->mu);
    nrd_error *err = find_public_locked(&e, r, name);
    err = err ? err : take_version_locked(out, e, number);
    pthread_mutex_unlock(&r->mu);
    return err;
}

nrd_error *nrd_repo_get_step(nrd_model **out, nrd_repo *r, const char *namespace, const char *name,
                             int64_t number)
{
    nrd_error *err;

    *out = NULL;
    pthread_mutex_lock(&r->mu);
    nrd_repo_entry *e = nrd_repo_find_locked(r, namespace, name);
    err = e && e->n_versions > 0
              ? take_version_locked(out, e, number)
              : nrd_errorf(NRD_ERR_NOT_FOUND, "Request for unknown model: '%s' is not found", name);
    pthread_mutex_unlock(&r->mu);
    return err;
}

bool nrd_repo_all_ready(nrd_repo *r)
{
    bool ready = true;

    pthread_mutex_lock(&r->mu);
    for (size_t i = 0; i < r->n_entries && ready; i++) {
        const nrd_repo_entry *e = r->entries[i];
        /* As in Triton a model whose configuration cannot be read holds nothing back. */
        ready = !e->wanted || !e->tried || e->n_versions > 0;
        for (size_t k = 0; e->wanted && k < e->n_versions && ready; k++) {
            const nrd_repo_version *v = &e->versions[k];
            ready = v->state == NRD_MODEL_READY ||
                    (v->reason && strcmp(v->reason, "unloaded") == 0) ||
                    v->state == NRD_MODEL_UNLOADING;
        }
    }
    pthread_mutex_unlock(&r->mu);
    return ready;
}

static void put_index_name(nrd_str *out, const char *name)
{
    nrd_str_puts(out, out->len > 1 ? ",{\"name\":" : "{\"name\":");
    nrd_json_put_cstr(out, name);
}

static void put_index_versions(const nrd_repo_entry *e, bool ready_only, nrd_str *out)
{
    for (size_t k = 0; k < e->n_versions; k++) {
        const nrd_repo_version *v = &e->versions[k];
        if (ready_only && v->state != NRD_MODEL_READY) {
            continue;
        }
        put_index_name(out, e->name);
        nrd_str_printf(out, ",\"version\":\"%" PRId64 "\",\"state\":\"%s\"", v->number,
                       state_names[v->state]);
        if (v->reason) {
            nrd_str_puts(out, ",\"reason\":");
            nrd_json_put_cstr(out, v->reason);
        }
        nrd_str_putc(out, '}');
    }
}

/* Marks what is in the repositories now. A folder that is not there is as one that is empty. */
static nrd_error *mark_present(nrd_repo *r)
{
    nrd_locations list = {0};
    bool unique;

    pthread_mutex_lock(&r->control_mu);
    nrd_error *err = nrd_locations_scan(r, &list, &unique);
    if (err && nrd_error_get_code(err) == NRD_ERR_NOT_FOUND) {
        nrd_error_free(err);
        err = NULL;
    } else if (err && nrd_error_get_code(err) != NRD_ERR_NO_MEMORY) { /* clients see no paths */
        NRD_LOG_ERROR("failed to list the models: %s", nrd_error_message(err));
        nrd_error_free(err);
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "a model repository cannot be read; try again later");
    }
    for (size_t i = 0; i < r->n_entries && !err; i++) {
        r->entries[i]->present = false;
    }
    for (size_t i = 0; i < list.n && !err; i++) {
        nrd_repo_entry *e = NULL;
        err = nrd_repo_find_or_add(&e, r, list.items[i].namespace, list.items[i].name);
        if (e) {
            e->present = true;
        }
    }
    pthread_mutex_unlock(&r->control_mu);
    nrd_locations_fini(&list);
    return err;
}

nrd_error *nrd_repo_index_json(nrd_repo *r, bool ready_only, nrd_str *out)
{
    if (!ready_only) { /* what was never loaded appears with its name alone */
        NRD_TRY(mark_present(r));
    }
    nrd_str_putc(out, '[');
    pthread_mutex_lock(&r->mu);
    for (size_t i = 0; i < r->n_entries; i++) {
        const nrd_repo_entry *e = r->entries[i];
        /* What still serves is shown although its folder is gone. */
        if (e->n_versions > 0 && (ready_only || e->present || e->wanted)) {
            put_index_versions(e, ready_only, out);
        } else if (!ready_only && e->present) {
            put_index_name(out, e->name);
            nrd_str_putc(out, '}');
        }
    }
    pthread_mutex_unlock(&r->mu);
    nrd_str_putc(out, ']');
    return nrd_str_error(out);
}

void nrd_repo_print_models(nrd_repo *r)
{
    nrd_strings cells = {0};
    nrd_str table = {0}, text = {0};

    nrd_strings_add(&cells, "Model");
    nrd_strings_add(&cells, "Version");
    nrd_strings_add(&cells, "Status");
    pthread_mutex_lock(&r->mu);
    for (size_t i = 0; i < r->n_entries; i++) {
        const nrd_repo_entry *e = r->entries[i];
        if (e->n_versions == 0) {
            const bool is_known = e->error && !e->tried;
            nrd_str_clear(&text);
            nrd_str_printf(&text, is_known ? "UNAVAILABLE: %s" : "%s",
                           is_known ? e->error : "Not loaded: No model version was found");
            nrd_strings_add(&cells, e->title);
            nrd_strings_add(&cells, "-");
            nrd_strings_add(&cells, nrd_str_cstr(&text));
        }
        for (size_t k = 0; k < e->n_versions; k++) {
            const nrd_repo_version *v = &e->versions[k];
            char number[24];
            snprintf(number, sizeof number, "%" PRId64, v->number);
            nrd_str_clear(&text);
            nrd_str_printf(&text, "%s%s%s", state_names[v->state], v->reason ? ": " : "",
                           v->reason ? v->reason : "");
            nrd_strings_add(&cells, e->title);
            nrd_strings_add(&cells, number);
            nrd_strings_add(&cells, nrd_str_cstr(&text));
        }
    }
    pthread_mutex_unlock(&r->mu);
    nrd_table_put(&table, (const char *const *)cells.items, cells.n / 3, 3);
    NRD_LOG_INFO_LINES(nrd_str_cstr(&table));
    nrd_str_fini(&table);
    nrd_str_fini(&text);
    nrd_strings_fini(&cells);
}

/* How many models there are of that name (NULL: of any), and a share of each where `to` is not NULL. */
static size_t collect_locked(nrd_repo *r, const char *name_or_null, nrd_model **to)
{
    size_t n = 0;

    for (size_t i = 0; i < r->n_entries; i++) {
        const nrd_repo_entry *e = r->entries[i];
        if (name_or_null && strcmp(e->name, name_or_null) != 0) {
            continue;
        }
        for (size_t k = 0; k < e->n_versions; k++) {
            if (e->versions[k].model && to) {
                to[n] = nrd_model_ref(e->versions[k].model);
            }
            n += e->versions[k].model != NULL;
        }
    }
    return n;
}

nrd_error *nrd_repo_each_in(nrd_repo *r, const char *name_or_null, nrd_repo_room *room,
                            void (*fn)(void *user, nrd_model *m), void *user)
{
    pthread_mutex_lock(&r->mu);
    const size_t n = collect_locked(r, name_or_null, NULL);
    nrd_model **grown = n > room->cap ? realloc(room->models, n * sizeof *room->models) : room->models;
    if (n > 0 && !grown) {
        pthread_mutex_unlock(&r->mu);
        return nrd_error_no_memory();
    }
    room->models = grown;
    room->cap = n > room->cap ? n : room->cap;
    (void)collect_locked(r, name_or_null, room->models);
    pthread_mutex_unlock(&r->mu);
    for (size_t i = 0; i < n; i++) {
        fn(user, room->models[i]);
        nrd_model_unref(room->models[i]);
    }
    return NULL;
}

nrd_error *nrd_repo_each(nrd_repo *r, const char *name_or_null,
                         void (*fn)(void *user, nrd_model *m), void *user)
{
    nrd_repo_room room = {0};
    nrd_error *err = nrd_repo_each_in(r, name_or_null, &room, fn, user);
    free(room.models);
    return err;
}
