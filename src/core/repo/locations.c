/* SPDX-License-Identifier: Apache-2.0
 * Where models lie: repositories, folders mapped to names, and what is in them. */
#include "core/context.h"
#include "core/repo/internal.h"
#include "core/repo/place.h"
#include "core/repo/repository.h"
#include "core/strings.h"
#include "core/types.h"

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct nrd_repo_mapped {
    struct nrd_repo_mapped *next;
    char *name, *dir, *repository;
} mapped;

static void location_fini(nrd_location *p)
{
    free(p->name);
    free(p->dir);
    free(p->namespace);
}

nrd_error *nrd_locations_add(nrd_repo *r, nrd_locations *list, const char *name, char *dir,
                             const char *repository)
{
    nrd_location *grown = realloc(list->items, (list->n + 1) * sizeof *list->items);
    nrd_location p = {.name = strdup(name),
                      .dir = dir,
                      .namespace = strdup(r->ctx->opt.namespacing ? repository : "")};

    list->items = grown ? grown : list->items;
    if (!grown || !p.name || !p.dir || !p.namespace) {
        location_fini(&p);
        return nrd_error_no_memory();
    }
    list->items[list->n++] = p;
    return NULL;
}

void nrd_locations_fini(nrd_locations *list)
{
    for (size_t i = 0; i < list->n; i++) {
        location_fini(&list->items[i]);
    }
    free(list->items);
    *list = (nrd_locations){0};
}

static void log_ambiguous(const char *name)
{
    NRD_LOG_ERROR("failed to poll model '%s': not unique across all model repositories", name);
}

nrd_error *nrd_locations_find(nrd_repo *r, const char *name, nrd_locations *out)
{
    nrd_error *err = NULL;

    *out = (nrd_locations){0};
    for (mapped *m = r->mapping; m && !err; m = m->next) {
        if (strcmp(m->name, name) == 0) {
            err = nrd_locations_add(r, out, name, strdup(m->dir), m->repository);
        }
    }
    for (size_t i = 0; i < r->paths.n && !err; i++) {
        char *dir = NULL;
        bool is_there = false;
        nrd_error *look_err = NULL;
        err = nrd_path_make(&dir, r->paths.items[i], name);
        if (!err) {
            look_err = nrd_place_has_folder(&is_there, dir);
        }
        if (is_there) {
            err = nrd_locations_add(r, out, name, dir, r->paths.items[i]);
        } else {
            free(dir);
        }
        if (look_err && !err && nrd_error_get_code(look_err) == NRD_ERR_NO_MEMORY) {
            err = look_err;
        } else if (look_err) { /* other repositories may have it */
            NRD_LOG_ERROR("failed to look for model '%s': %s", name, nrd_error_message(look_err));
            nrd_error_free(look_err);
        }
    }
    if (!err && out->n > 1 && !r->ctx->opt.namespacing) {
        log_ambiguous(name);
        nrd_locations_fini(out);
    }
    if (err) {
        nrd_locations_fini(out);
    }
    return err;
}

const nrd_location *nrd_locations_pick(const nrd_locations *found, const char *namespace)
{
    for (size_t i = 0; i < found->n; i++) {
        if (strcmp(found->items[i].namespace, namespace) == 0) {
            return &found->items[i];
        }
    }
    return found->n == 1 ? &found->items[0] : NULL;
}

static nrd_error *add_models_of(nrd_repo *r, const char *repository, nrd_locations *out)
{
    char **names = NULL;
    size_t n = 0;
    nrd_error *err = nrd_place_models(&names, &n, repository);

    for (size_t k = 0; k < n && !err; k++) {
        char *dir;
        err = nrd_path_make(&dir, repository, names[k]);
        err = err ? err : nrd_locations_add(r, out, names[k], dir, repository);
    }
    nrd_names_free(names, n);
    return err;
}

nrd_error *nrd_locations_scan(nrd_repo *r, nrd_locations *out, bool *out_unique)
{
    *out_unique = true;
    for (mapped *m = r->mapping; m; m = m->next) {
        NRD_TRY(nrd_locations_add(r, out, m->name, strdup(m->dir), m->repository));
    }
    for (size_t i = 0; i < r->paths.n; i++) {
        NRD_TRY(add_models_of(r, r->paths.items[i], out));
    }
    bool *twice = calloc(out->n + 1, sizeof *twice);
    if (!twice) {
        return nrd_error_no_memory();
    }
    for (size_t i = 0; i < out->n; i++) {
        for (size_t k = 0; k < i; k++) {
            if (strcmp(out->items[i].name, out->items[k].name) == 0 &&
                strcmp(out->items[i].namespace, out->items[k].namespace) == 0) {
                twice[i] = twice[k] = true;
            }
        }
    }
    size_t kept = 0;
    for (size_t i = 0; i < out->n; i++) {
        nrd_location p = out->items[i];
        if (!twice[i]) {
            out->items[kept++] = p;
            continue;
        }
        log_ambiguous(p.name);
        *out_unique = false;
        location_fini(&p);
    }
    out->n = kept;
    free(twice);
    return NULL;
}

static void mapped_free(mapped *m)
{
    free(m->name);
    free(m->dir);
    free(m->repository);
    free(m);
}

bool nrd_locations_unmap(nrd_repo *r, const char *path)
{
    bool found = false;

    for (mapped **p = &r->mapping; *p;) {
        mapped *m = *p;
        if (!path || strcmp(m->repository, path) == 0) {
            *p = m->next;
            mapped_free(m);
            found = true;
        } else {
            p = &m->next;
        }
    }
    return found;
}

static nrd_error *map_folder(nrd_repo *r, const char *path, const nrd_param *mapping)
{
    nrd_error *err = NULL;
    mapped *m = calloc(1, sizeof *m);

    if (!m) {
        return nrd_error_no_memory();
    }
    NRD_DUP_GOTO(m->name, mapping->str, err, fail);
    NRD_TRY_GOTO(nrd_path_make(&m->dir, path, mapping->name), err, fail);
    NRD_DUP_GOTO(m->repository, path, err, fail);
    m->next = r->mapping;
    r->mapping = m;
    return NULL;

fail:
    mapped_free(m);
    return err;
}

nrd_error *nrd_repo_register(nrd_repo *r, const char *path, const nrd_param *const *mapping,
                             size_t n)
{
    nrd_error *err = NULL;

    NRD_TRY(nrd_repo_check_explicit(r));
    if (nrd_place_is_remote(path)) {
        NRD_TRY(nrd_place_check(path));
    } else if (!nrd_path_is_dir(path)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "failed to register '%s', repository not found",
                          path);
    }
    pthread_mutex_lock(&r->control_mu);
    for (size_t i = 0; i < r->paths.n && !err; i++) {
        if (strcmp(r->paths.items[i], path) == 0) {
            err = nrd_errorf(NRD_ERR_ALREADY_EXISTS,
                             "model repository '%s' has already been registered", path);
        }
    }
    for (size_t i = 0; i < n && !err; i++) {
        const bool is_text = mapping[i]->type == TRITONSERVER_PARAMETER_STRING;
        nrd_error *bad = is_text ? nrd_repo_check_name(mapping[i]->str) : NULL;
        if (!is_text || bad) {
            nrd_error_free(bad);
            err = nrd_errorf(NRD_ERR_INVALID_ARG,
                             "failed to register '%s', invalid mapping of folder '%s'", path,
                             mapping[i]->name);
        }
    }
    /* With a mapping only the mapped folders are models. */
    for (size_t i = 0; i < n && !err; i++) {
        err = map_folder(r, path, mapping[i]);
        if (err) {
            (void)nrd_locations_unmap(r, path); /* it has only those of this call */
        }
    }
    if (n == 0 && !err) {
        err = nrd_strings_push(&r->paths, path);
    }
    if (!err) {
        NRD_LOG_INFO("Model repository registered: %s", path);
    }
    pthread_mutex_unlock(&r->control_mu);
    return err;
}

nrd_error *nrd_repo_unregister(nrd_repo *r, const char *path)
{
    bool found = false;

    NRD_TRY(nrd_repo_check_explicit(r));
    pthread_mutex_lock(&r->control_mu);
    for (size_t i = 0; i < r->paths.n; i++) {
        if (strcmp(r->paths.items[i], path) == 0) {
            free(r->paths.items[i]);
            r->paths.items[i] = r->paths.items[--r->paths.n];
            found = true;
            break;
        }
    }
    found = nrd_locations_unmap(r, path) || found;
    pthread_mutex_unlock(&r->control_mu);
    if (!found) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "failed to unregister '%s', repository not found",
                          path);
    }
    NRD_LOG_INFO("Model repository unregistered: %s", path);
    return NULL;
}
