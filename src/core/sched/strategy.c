/* SPDX-License-Identifier: Apache-2.0
 * Custom batching: a library that decides which requests may share a batch. Named by the parameter
 * TRITON_BATCH_STRATEGY_PATH, or lying as batchstrategy.so with the version, the model or the
 * backend.
 */
#include "core/sched/strategy.h"

#include "core/api.h"
#include "core/backend_internal.h"
#include "core/model_internal.h"
#include "core/request_internal.h"

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct nrd_strategy {
    void *dl;
    TRITONBACKEND_Batcher *batcher;
    bool initialized;
    TRITONSERVER_Error *(*include)(TRITONBACKEND_Request *, void *, bool *);
    TRITONSERVER_Error *(*begin)(const TRITONBACKEND_Batcher *, void **);
    TRITONSERVER_Error *(*end)(void *);
    TRITONSERVER_Error *(*batcher_new)(TRITONBACKEND_Batcher **, TRITONBACKEND_Model *);
    TRITONSERVER_Error *(*batcher_free)(TRITONBACKEND_Batcher *);
};

static const char *parameter(const nrd_config *cfg)
{
    for (size_t i = 0; i < cfg->n_parameters; i++) {
        if (strcmp(cfg->parameters[i]->key, "TRITON_BATCH_STRATEGY_PATH") == 0) {
            return cfg->parameters[i]->value->string_value;
        }
    }
    return NULL;
}

static nrd_error *find(const nrd_model *m, char **out)
{
    const char *given = parameter(m->config);
    const char *const dirs[] = {m->dir, m->dir, m->backend->dir};
    char file[64];

    *out = NULL;
    if (given) {
        if (!nrd_path_exists(given)) {
            return nrd_errorf(NRD_ERR_NOT_FOUND, "Batching library path not found: %s", given);
        }
        *out = strdup(given);
        return *out ? NULL : nrd_error_no_memory();
    }
    snprintf(file, sizeof file, "%lld/batchstrategy.so", (long long)m->version);
    for (int i = 0; i < 3 && !*out; i++) {
        char *path = NULL;
        NRD_TRY(nrd_path_make(&path, dirs[i], i == 0 ? file : "batchstrategy.so"));
        if (nrd_path_exists(path)) {
            *out = path;
        } else {
            free(path);
        }
    }
    return NULL;
}

static int entry_point(nrd_strategy *s, const char *name, void *out_fn)
{
    void *p = dlsym(s->dl, name);
    memcpy(out_fn, &p, sizeof p); /* POSIX: an object pointer that is a function pointer */
    return p != NULL;
}

nrd_error *nrd_strategy_new(nrd_strategy **out, nrd_model *m)
{
    char *path = NULL;
    nrd_error *err = NULL;
    int n;

    *out = NULL;
    NRD_TRY(find(m, &path));
    if (!path) {
        return NULL;
    }
    nrd_strategy *s = NULL;
    NRD_NEW_GOTO(s, 1, err, fail);
    NRD_LOG_INFO("Loading custom batching strategy library %s for model %s", path, m->name);
    s->dl = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!s->dl) {
        err = nrd_errorf(NRD_ERR_NOT_FOUND, "unable to load shared library: %s", dlerror());
        goto fail;
    }
    n = entry_point(s, "TRITONBACKEND_ModelBatchIncludeRequest", &s->include) +
        entry_point(s, "TRITONBACKEND_ModelBatchInitialize", &s->begin) +
        entry_point(s, "TRITONBACKEND_ModelBatchFinalize", &s->end) +
        entry_point(s, "TRITONBACKEND_ModelBatcherInitialize", &s->batcher_new) +
        entry_point(s, "TRITONBACKEND_ModelBatcherFinalize", &s->batcher_free);
    if (n > 0 && n < 5) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG,
                         "%s does not define all required custom batching functions for model %s",
                         path, m->name);
        goto fail;
    }
    if (n == 5) {
        NRD_TRY_GOTO(from_api(s->batcher_new(&s->batcher, (TRITONBACKEND_Model *)(void *)m)), err,
                     fail);
        s->initialized = true;
    }
    free(path);
    *out = s;
    return NULL;

fail:
    free(path);
    nrd_strategy_free(s);
    return err;
}

static void log_and_drop(TRITONSERVER_Error *e, const char *what, const char *model)
{
    nrd_error *err = from_api(e);
    if (err) {
        NRD_LOG_ERROR("Custom batching %s function failed for model %s: %s", what, model,
                      nrd_error_message(err));
        nrd_error_free(err);
    }
}

void nrd_strategy_free(nrd_strategy *s)
{
    if (!s) {
        return;
    }
    if (s->initialized) {
        log_and_drop(s->batcher_free(s->batcher), "batcher finalization", "");
    }
    if (s->dl) {
        dlclose(s->dl);
    }
    free(s);
}

void *nrd_strategy_begin(nrd_strategy *s, const nrd_model *m)
{
    void *userp = NULL;
    if (s->initialized) {
        log_and_drop(s->begin(s->batcher, &userp), "initialization", m->name);
    }
    return userp;
}

bool nrd_strategy_includes(nrd_strategy *s, const nrd_request *r, void *userp)
{
    bool include = true;
    if (s->initialized) {
        include = false;
        log_and_drop(s->include((TRITONBACKEND_Request *)(uintptr_t)r, userp, &include), "include",
                     r->model_name);
    }
    return include;
}

void nrd_strategy_end(nrd_strategy *s, const nrd_model *m, void *userp)
{
    if (s->initialized && userp) {
        log_and_drop(s->end(userp), "finalization", m->name);
    }
}
