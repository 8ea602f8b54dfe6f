/* SPDX-License-Identifier: Apache-2.0
 * What clients ask for: load, with files of their own, and unload. */
#include "core/agent.h"
#include "core/repo/internal.h"
#include "core/repo/repository.h"
#include "core/strings.h"
#include "core/types.h"

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/str.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static nrd_error *write_file(const char *dir, const char *name, const void *data, size_t n)
{
    char *path = NULL, *folder = NULL;
    nrd_error *err = nrd_path_make(&path, dir, name);

    err = err ? err : nrd_path_make_dir(&folder, path);
    err = err ? err : nrd_mkdirs(folder);
    err = err ? err : nrd_file_write(path, data, n);
    free(folder);
    free(path);
    return err;
}

/* Puts the files given with a load request into a fresh folder, which takes the model's place. */
static nrd_error *write_files(char **out_dir, const nrd_param *const *params, size_t n)
{
    char tmpl[] = "/tmp/folderXXXXXX";
    nrd_error *err = NULL;

    if (!mkdtemp(tmpl)) {
        return nrd_errorf(NRD_ERR_INTERNAL, "cannot make a folder for overriding model files");
    }
    for (size_t i = 0; i < n && !err; i++) {
        const nrd_param *p = params[i];
        if (!nrd_str_has_prefix(p->name, "file:")) {
            continue;
        }
        const char *rel = p->name + 5 + strspn(p->name + 5, "/"); /* of the model's folder */
        if (p->type != TRITONSERVER_PARAMETER_BYTES) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG,
                             "File parameter '%s' must have bytes type for its value", p->name);
        } else if (!nrd_path_stays_inside(rel)) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG,
                             "Invalid file parameter '%s', the path must stay within model "
                             "directory.",
                             p->name);
        } else {
            err = write_file(tmpl, rel, p->bytes, p->n_bytes);
        }
    }
    *out_dir = err ? NULL : strdup(tmpl);
    err = !err && !*out_dir ? nrd_error_no_memory() : err;
    if (err) {
        nrd_remove_tree(tmpl);
    }
    return err;
}

/* Takes the folder's name, and removes the old one from the disk. Control. */
static void set_override_dir(nrd_repo *r, nrd_repo_entry *e, char *dir)
{
    pthread_mutex_lock(&r->mu);
    char *old = e->override_dir;
    e->override_dir = dir;
    pthread_mutex_unlock(&r->mu);
    if (old) {
        nrd_remove_tree(old);
        free(old);
    }
}

/* One model of a load request. `override_dir`: the folder made for it, or NULL. */
static nrd_error *load_requested(nrd_repo *r, const nrd_location *p, const char *json,
                                 const char *override_dir)
{
    nrd_repo_entry *e;
    char *own_dir = override_dir ? strdup(override_dir) : NULL;
    nrd_error *err = override_dir && !own_dir ? nrd_error_no_memory()
                                              : nrd_repo_find_or_add(&e, r, p->namespace, p->name);

    if (err) {
        if (override_dir) {
            nrd_remove_tree(override_dir);
        }
        free(own_dir);
        return err;
    }
    err = nrd_repo_load_entry(r, e, p->dir, json);
    pthread_mutex_lock(&r->mu);
    e->by_name = true;
    pthread_mutex_unlock(&r->mu);
    if (own_dir && !err) {
        set_override_dir(r, e, own_dir);
        own_dir = NULL;
    }
    free(own_dir);
    if (err) {
        nrd_error *full = nrd_errorf(nrd_repo_load_code(err), "load failed for model '%s': %s", p->name,
                                     nrd_error_message(err));
        nrd_error_free(err);
        err = full;
        if (override_dir) {
            nrd_remove_tree(override_dir);
        }
    }
    nrd_repo_update_dependents(r, e);
    return err;
}

nrd_error *nrd_repo_load(nrd_repo *r, const char *name, const nrd_param *const *params,
                         size_t n_params)
{
    const char *json = NULL;
    bool has_files = false;
    nrd_error *err = NULL;

    /* What failed may come back in every mode, as it was: other files and another configuration are
     * for those who may load models. */
    if (n_params > 0 || !nrd_repo_has_failed(r, name)) {
        NRD_TRY(nrd_repo_check_explicit(r));
    }
    NRD_TRY(nrd_repo_check_name(name));
    for (size_t i = 0; i < n_params; i++) {
        if (strcmp(params[i]->name, "config") == 0) {
            if (params[i]->type != TRITONSERVER_PARAMETER_STRING) {
                return nrd_errorf(NRD_ERR_INVALID_ARG,
                                  "Config parameter 'config' must have string type for its value");
            }
            json = params[i]->str;
        } else if (nrd_str_has_prefix(params[i]->name, "file:")) {
            has_files = true;
        } else {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "Unrecognized load parameter '%s'",
                              params[i]->name);
        }
    }
    if (has_files && !json) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "Load parameter 'config' must be specified for model file override");
    }
    pthread_mutex_lock(&r->control_mu);
    nrd_locations found = {0};
    char *override_dir = NULL;
    if (has_files) {
        err = write_files(&override_dir, params, n_params);
        if (!err) {
            err = nrd_locations_add(r, &found, name, strdup(override_dir), "");
        }
        if (err && override_dir) {
            nrd_remove_tree(override_dir);
        }
    } else {
        err = nrd_locations_find(r, name, &found);
        if (!err && found.n == 0) {
            err = nrd_errorf(NRD_ERR_INTERNAL,
                             "failed to load '%s', failed to poll from model repository", name);
        }
    }
    for (size_t i = 0; i < found.n; i++) { /* several: with namespacing all of that name */
        nrd_error *one = load_requested(r, &found.items[i], json, override_dir);
        if (err) {
            nrd_error_free(one);
        } else {
            err = one;
        }
    }
    pthread_mutex_unlock(&r->control_mu);
    nrd_locations_fini(&found);
    free(override_dir);
    return err;
}

/* Steps of an ensemble go with it, except those that were loaded under their own names. */
static nrd_error *unload_entry(nrd_repo *r, nrd_repo_entry *e, bool dependents, bool as_step)
{
    nrd_strings steps = {0}, namespaces = {0};

    if (!nrd_repo_wait_idle(r, e)) {
        NRD_LOG_ERROR("model '%s' is being loaded by the one that unloads it", e->name);
        return NULL;
    }
    pthread_mutex_lock(&r->mu);
    if (as_step && e->by_name) {
        pthread_mutex_unlock(&r->mu);
        return NULL;
    }
    for (size_t i = 0; dependents && i < e->steps.n; i++) {
        nrd_strings_add(&steps, e->steps.names[i]);
        nrd_strings_add(&namespaces, e->steps.namespaces[i]);
    }
    nrd_error *err = nrd_strings_error(&steps);
    err = err ? err : nrd_strings_error(&namespaces);
    if (!err) {
        e->wanted = false;
        e->by_name = false;
    }
    pthread_mutex_unlock(&r->mu);
    if (err) { /* nothing has changed */
        nrd_strings_fini(&steps);
        nrd_strings_fini(&namespaces);
        return err;
    }
    set_override_dir(r, e, NULL);
    nrd_repo_retire(r, e, NULL, 0, NULL, false);
    nrd_repo_update_dependents(r, e);
    for (size_t i = 0; i < steps.n; i++) {
        pthread_mutex_lock(&r->mu);
        nrd_repo_entry *step = nrd_repo_find_locked(r, namespaces.items[i], steps.items[i]);
        pthread_mutex_unlock(&r->mu);
        nrd_error *step_err = step ? unload_entry(r, step, true, true) : NULL;
        if (err) {
            nrd_error_free(step_err);
        } else {
            err = step_err;
        }
    }
    nrd_strings_fini(&steps);
    nrd_strings_fini(&namespaces);
    return err;
}

nrd_error *nrd_repo_unload(nrd_repo *r, const char *name, bool dependents)
{
    NRD_TRY(nrd_repo_check_explicit(r));
    nrd_error *err = NULL;
    NRD_TRY(nrd_repo_check_name(name));
    pthread_mutex_lock(&r->control_mu);
    for (size_t i = 0; i < r->n_entries && !err; i++) {
        if (strcmp(r->entries[i]->name, name) == 0) {
            err = unload_entry(r, r->entries[i], dependents, false);
        }
    }
    pthread_mutex_unlock(&r->control_mu);
    return err;
}

void nrd_repo_unload_all(nrd_repo *r)
{
    pthread_mutex_lock(&r->control_mu);
    r->closing = true;
    for (size_t i = 0; i < r->n_entries; i++) {
        (void)nrd_repo_wait_idle(r, r->entries[i]); /* this thread loads nothing */
    }
    for (size_t i = 0; i < r->n_entries; i++) {
        pthread_mutex_lock(&r->mu);
        r->entries[i]->wanted = false;
        pthread_mutex_unlock(&r->mu);
        set_override_dir(r, r->entries[i], NULL);
        nrd_repo_retire(r, r->entries[i], NULL, 0, NULL, false);
    }
    pthread_mutex_unlock(&r->control_mu);
}
