/* SPDX-License-Identifier: Apache-2.0
 * Backend libraries: finding, opening, sharing. */
#include "core/backend.h"

#include "core/api.h"
#include "core/backend_folder.h"
#include "core/backend_internal.h"
#include "core/context.h"
#include "core/options.h"
#include "core/strings.h"

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/number.h"
#include "base/str.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct nrd_backends {
    pthread_mutex_t open_mu; /* before mu; held while a library is opened */
    pthread_mutex_t mu;
    nrd_backend *first; /* guarded by mu */
};

/* ---- libraries ---- */

static bool settings_have(const nrd_setting *list, const char *scope, const char *key)
{
    for (; list; list = list->next) {
        if (strcmp(list->scope, scope) == 0 && strcmp(list->key, key) == 0) {
            return true;
        }
    }
    return false;
}

/* The backend's cmdline settings with defaults, as JSON. */
static void put_config(nrd_context *ctx, const char *name, nrd_str *out)
{
    char capability[32];
    const struct {
        const char *key, *value;
    } defaults[] = {
        {"auto-complete-config", ctx->opt.strict_config ? "false" : "true"},
        {"backend-directory", ctx->opt.backend_dir},
        {"min-compute-capability", capability},
        {"default-max-batch-size", "4"},
    };
    bool first = true;

    nrd_number_print(capability, sizeof capability, "%f", ctx->opt.min_compute_capability);
    nrd_str_puts(out, "{\"cmdline\":{");
    for (size_t i = 0; i < sizeof defaults / sizeof defaults[0]; i++) {
        if (!settings_have(ctx->opt.backend_config, name, defaults[i].key) &&
            !settings_have(ctx->opt.backend_config, "", defaults[i].key)) {
            nrd_str_puts(out, first ? "" : ",");
            nrd_json_put_cstr(out, defaults[i].key);
            nrd_str_putc(out, ':');
            nrd_json_put_cstr(out, defaults[i].value);
            first = false;
        }
    }
    for (const nrd_setting *p = ctx->opt.backend_config; p; p = p->next) {
        bool own = strcmp(p->scope, name) == 0;
        bool global = p->scope[0] == '\0' && !settings_have(ctx->opt.backend_config, name, p->key);
        if (own || global) {
            nrd_str_puts(out, first ? "" : ",");
            nrd_json_put_cstr(out, p->key);
            nrd_str_putc(out, ':');
            nrd_json_put_cstr(out, p->value);
            first = false;
        }
    }
    nrd_str_puts(out, "}}");
}

static void entry_point(nrd_backend *b, const char *name, void *out_fn)
{
    void *p = dlsym(b->dl, name);
    memcpy(out_fn, &p, sizeof p); /* POSIX: an object pointer that is a function pointer */
}

static void backend_free(nrd_backend *b)
{
    if (!b) {
        return;
    }
    free(b->name);
    free(b->dir);
    free(b->lib_path);
    free(b->config.text);
    for (size_t i = 0; i < b->n_groups; i++) {
        free(b->groups[i].gpus);
    }
    free(b->groups);
    free(b);
}

static nrd_error *backend_open(nrd_backend **out, nrd_context *ctx, const char *name,
                               const char *dir, const char *lib_path)
{
    nrd_backend *b = NULL;
    nrd_str j = {0};
    nrd_error *err = NULL;

    *out = NULL;
    NRD_NEW_GOTO(b, 1, err, fail);
    b->refs = 1;
    NRD_DUP_GOTO(b->name, name, err, fail);
    NRD_DUP_GOTO(b->dir, dir, err, fail);
    NRD_DUP_GOTO(b->lib_path, lib_path, err, fail);
    b->policy = TRITONBACKEND_EXECUTION_BLOCKING;
    put_config(ctx, name, &j);
    b->config.len = j.len;
    b->config.text = nrd_str_steal(&j);
    if (!b->config.text) {
        err = nrd_error_no_memory();
        goto fail;
    }
    b->dl = dlopen(lib_path, RTLD_NOW | RTLD_LOCAL);
    if (!b->dl) {
        err = nrd_errorf(NRD_ERR_NOT_FOUND, "unable to load shared library: %s", dlerror());
        goto fail;
    }
    entry_point(b, "TRITONBACKEND_Initialize", &b->initialize);
    entry_point(b, "TRITONBACKEND_Finalize", &b->finalize);
    entry_point(b, "TRITONBACKEND_GetBackendAttribute", &b->get_attribute);
    entry_point(b, "TRITONBACKEND_ModelInitialize", &b->model_initialize);
    entry_point(b, "TRITONBACKEND_ModelFinalize", &b->model_finalize);
    entry_point(b, "TRITONBACKEND_ModelInstanceInitialize", &b->instance_initialize);
    entry_point(b, "TRITONBACKEND_ModelInstanceFinalize", &b->instance_finalize);
    entry_point(b, "TRITONBACKEND_ModelInstanceExecute", &b->execute);
    entry_point(b, "TRITONBACKEND_ModelInstanceReady", &b->instance_ready);
    entry_point(b, "nrd_backend_never_blocks", &b->never_blocks);
    if (!b->execute) {
        err = nrd_errorf(NRD_ERR_NOT_FOUND,
                         "unable to find required entrypoint 'TRITONBACKEND_ModelInstanceExecute' "
                         "in shared library '%s'",
                         lib_path);
        goto fail;
    }
    if (b->initialize) {
        NRD_TRY_GOTO(from_api(b->initialize((TRITONBACKEND_Backend *)(void *)b)), err, fail);
    }
    if (b->get_attribute) {
        NRD_TRY_GOTO(from_api(b->get_attribute((TRITONBACKEND_Backend *)(void *)b,
                                               (TRITONBACKEND_BackendAttribute *)(void *)b)),
                     err, fail);
    }
    *out = b;
    return NULL;

fail:
    if (b && b->dl) {
        dlclose(b->dl);
    }
    backend_free(b);
    return err;
}

/* DIR/FOLDER/libtriton_NAME.so; folder NULL: in DIR itself. */
static nrd_error *library_in(char **out, const char *dir, const char *folder, const char *name)
{
    const char *slash = folder && !nrd_str_has_suffix(dir, "/") ? "/" : "";
    if (asprintf(out, "%s%s%s/libtriton_%s.so", dir, slash, folder ? folder : "", name) < 0) {
        *out = NULL;
        return nrd_error_no_memory();
    }
    return NULL;
}

/* A backend that is a file in its own folder: another one runs it for all its models. *out NULL: none does. */
static nrd_error *find_runner(char **out, nrd_context *ctx, const char *name, char **out_dir)
{
    char *dir = NULL, *file = NULL, *lib = NULL;
    nrd_backend_folders backends = {0};
    nrd_error *err = NULL;

    NRD_TRY_GOTO(nrd_path_make(&dir, ctx->opt.backend_dir, name), err, done);
    NRD_TRY_GOTO(nrd_backend_folders_read(&backends, ctx->opt.backend_dir), err, done);
    for (size_t i = 0; i < backends.n && !*out; i++) {
        const nrd_backend_folder *b = &backends.v[i];
        NRD_TRY_GOTO(nrd_path_make(&file, dir, b->model_file), err, done);
        NRD_TRY_GOTO(library_in(&lib, ctx->opt.backend_dir, b->name, b->name), err, done);
        if (b->runs_backends && nrd_path_exists(file) && nrd_path_exists(lib)) {
            *out = lib;
            *out_dir = dir;
            lib = dir = NULL;
        }
        free(lib);
        free(file);
        lib = file = NULL;
    }
done:
    nrd_backend_folders_fini(&backends);
    free(lib);
    free(file);
    free(dir);
    return err;
}

/* The first of version folder, model folder, backend folder that has the library. *out NULL: none has. */
static nrd_error *find_library(char **out, nrd_context *ctx, const char *name, const char *model_dir,
                               int64_t version, nrd_str *searched, char **out_dir)
{
    char number[24];
    const struct {
        const char *dir, *folder;
    } places[] = {{model_dir, number}, {model_dir, NULL}, {ctx->opt.backend_dir, name}};

    *out = *out_dir = NULL;
    snprintf(number, sizeof number, "%lld", (long long)version);
    for (int i = 0; i < 3 && !*out; i++) {
        char *path = NULL;
        NRD_TRY(library_in(&path, places[i].dir, places[i].folder, name));
        nrd_str_printf(searched, "'%.*s' ", (int)(nrd_path_base(path) - 1 - path), path);
        const bool is_there = nrd_path_exists(path);
        nrd_error *err = is_there ? nrd_path_make_dir(out_dir, path) : NULL;
        if (is_there && !err) {
            *out = path;
        } else {
            free(path);
        }
        NRD_TRY(err);
    }
    return *out ? NULL : find_runner(out, ctx, name, out_dir);
}

nrd_error *nrd_backend_get(nrd_backend **out, nrd_context *ctx, const char *name,
                           const char *model_dir, int64_t version)
{
    nrd_backends *all = ctx->backends;
    nrd_str searched = {0};
    char *dir = NULL, *path = NULL;
    nrd_error *err = NULL;
    nrd_backend *b;

    *out = NULL;
    if (strchr(name, '/')) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "invalid backend name '%s'", name);
    }
    NRD_TRY_GOTO(find_library(&path, ctx, name, model_dir, version, &searched, &dir), err, done);
    if (!path) {
        NRD_LOG_ERROR("no libtriton_%s.so for model '%s', searched: %s", name,
                      nrd_path_base(model_dir), nrd_str_cstr(&searched));
        err = nrd_errorf(NRD_ERR_INVALID_ARG,
                         "unable to find backend library for backend '%s', try specifying runtime "
                         "on the model configuration.",
                         name);
        goto done;
    }
    pthread_mutex_lock(&all->open_mu); /* two models may ask for a new one at once */
    pthread_mutex_lock(&all->mu);
    for (b = all->first; b && (strcmp(b->lib_path, path) != 0 || strcmp(b->dir, dir) != 0);
         b = b->next) {
    }
    if (b) {
        b->refs++;
        *out = b;
    }
    pthread_mutex_unlock(&all->mu);
    if (!b) {
        err = backend_open(&b, ctx, name, dir, path);
    }
    if (!err && !*out) {
        b->refs = 2; /* one for the server: a backend stays open between its models */
        pthread_mutex_lock(&all->mu);
        b->next = all->first;
        all->first = b;
        pthread_mutex_unlock(&all->mu);
        *out = b;
    }
    pthread_mutex_unlock(&all->open_mu);
done:
    nrd_str_fini(&searched);
    free(dir);
    free(path);
    return err;
}

void nrd_backend_put(nrd_backends *all, nrd_backend *b)
{
    bool last;

    pthread_mutex_lock(&all->mu);
    last = --b->refs == 0;
    if (last) {
        nrd_backend **p = &all->first;
        while (*p && *p != b) {
            p = &(*p)->next;
        }
        if (*p) {
            *p = b->next;
        }
    }
    pthread_mutex_unlock(&all->mu);
    if (!last) {
        return;
    }
    if (b->finalize) {
        nrd_error *err = from_api(b->finalize((TRITONBACKEND_Backend *)(void *)b));
        if (err) {
            NRD_LOG_ERROR("failed finalizing backend: %s", nrd_error_message(err));
            nrd_error_free(err);
        }
    }
    dlclose(b->dl);
    backend_free(b);
}

/* ---- all of them ---- */

nrd_backends *nrd_backends_new(void)
{
    nrd_backends *all = nrd_xcalloc(1, sizeof *all);

    pthread_mutex_init(&all->open_mu, NULL);
    pthread_mutex_init(&all->mu, NULL);
    return all;
}

void nrd_backends_free(nrd_backends *all)
{
    if (!all) {
        return;
    }
    while (all->first) {
        nrd_backend_put(all, all->first);
    }
    pthread_mutex_destroy(&all->mu);
    pthread_mutex_destroy(&all->open_mu);
    free(all);
}

void nrd_backends_list(nrd_backends *all, nrd_strings *cells)
{
    pthread_mutex_lock(&all->mu);
    for (const nrd_backend *b = all->first; b; b = b->next) {
        nrd_strings_add(cells, b->name);
        nrd_strings_add(cells, b->lib_path);
        nrd_strings_add(cells, b->config.text);
    }
    pthread_mutex_unlock(&all->mu);
}
