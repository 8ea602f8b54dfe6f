/* SPDX-License-Identifier: Apache-2.0
 * Repository agents. A library is opened once and shared by count. For one load of a model the
 * named agents form a row: each is told LOAD in order, then LOAD_COMPLETE or LOAD_FAIL, and at the
 * end UNLOAD and UNLOAD_COMPLETE. Called by the loader; the functions of TRITONREPOAGENT are at the
 * end. */
#include "core/agent.h"

#include "core/api.h"
#include "core/config/pbjson.h"
#include "core/context.h"
#include "core/strings.h"
#include "core/types.h"

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "triton/core/tritonrepoagent.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef TRITONSERVER_Error *(*agent_fn)(TRITONREPOAGENT_Agent *);
typedef TRITONSERVER_Error *(*model_fn)(TRITONREPOAGENT_Agent *, TRITONREPOAGENT_AgentModel *);
typedef TRITONSERVER_Error *(*action_fn)(TRITONREPOAGENT_Agent *, TRITONREPOAGENT_AgentModel *,
                                         const TRITONREPOAGENT_ActionType);

typedef struct library { /* TRITONREPOAGENT_Agent */
    struct library *next;
    int refs; /* guarded by libraries_mu */
    char *name, *path;
    void *dl, *state;
    agent_fn finalize;
    model_fn model_initialize, model_finalize;
    action_fn action;
} library;

typedef struct agent_model { /* TRITONREPOAGENT_AgentModel */
    library *lib;            /* shared */
    char *dir;               /* where the model lies after this agent */
    TRITONREPOAGENT_ArtifactType kind;
    char *acquired; /* folder made for the agent; NULL: none */
    char *config_json;
    size_t n_params;
    char **keys, **values;
    bool is_known; /* to the agent, by its model_initialize */
    bool told;     /* any action */
    TRITONREPOAGENT_ActionType last;
    void *state;
} agent_model;

struct nrd_agents {
    atomic_int refs;
    pthread_mutex_t mu; /* one thread at a time tells them */
    size_t n;
    agent_model *items[];
};

/* Agents are the process's, as their libraries are. */
static pthread_mutex_t libraries_mu = PTHREAD_MUTEX_INITIALIZER;
static library *libraries;

void nrd_remove_tree(const char *dir)
{
    char **names = NULL;
    size_t n = 0;
    nrd_error *err = nrd_dir_list(&names, &n, dir);

    if (err) {
        nrd_error_free(err);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        char *p = NULL;
        struct stat st;
        nrd_error_free(nrd_path_make(&p, dir, names[i])); /* without memory it stays */
        if (p && lstat(p, &st) == 0 && S_ISDIR(st.st_mode)) {
            nrd_remove_tree(p);
        } else if (p) {
            (void)unlink(p);
        }
        free(p);
    }
    nrd_names_free(names, n);
    (void)rmdir(dir);
}

/* ---- libraries ---- */

static void log_and_drop(nrd_error *err, const char *what)
{
    if (err) {
        NRD_LOG_ERROR("%s: %s", what, nrd_error_message(err));
        nrd_error_free(err);
    }
}

static TRITONREPOAGENT_Agent *as_agent(library *l)
{
    return (TRITONREPOAGENT_Agent *)(void *)l;
}

static TRITONREPOAGENT_AgentModel *as_model(agent_model *m)
{
    return (TRITONREPOAGENT_AgentModel *)(void *)m;
}

static void entry_point(const library *l, const char *name, void *out_fn)
{
    void *p = dlsym(l->dl, name);
    memcpy(out_fn, &p, sizeof p); /* POSIX: an object pointer that is a function pointer */
}

static void library_close(library *l)
{
    if (l->finalize) {
        log_and_drop(from_api(l->finalize(as_agent(l))), "~TritonRepoAgent");
    }
    if (l->dl) {
        dlclose(l->dl);
    }
    free(l->name);
    free(l->path);
    free(l);
}

static nrd_error *library_open(library **out, const char *name, const char *path)
{
    library *l = calloc(1, sizeof *l);
    agent_fn initialize = NULL, finalize = NULL;
    nrd_error *err = NULL;

    if (!l) {
        return nrd_error_no_memory();
    }
    l->refs = 1;
    NRD_DUP_GOTO(l->name, name, err, fail);
    NRD_DUP_GOTO(l->path, path, err, fail);
    l->dl = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!l->dl) {
        err = nrd_errorf(NRD_ERR_NOT_FOUND, "unable to load shared library: %s", dlerror());
        goto fail;
    }
    entry_point(l, "TRITONREPOAGENT_Initialize", &initialize);
    entry_point(l, "TRITONREPOAGENT_Finalize", &finalize);
    entry_point(l, "TRITONREPOAGENT_ModelInitialize", &l->model_initialize);
    entry_point(l, "TRITONREPOAGENT_ModelFinalize", &l->model_finalize);
    entry_point(l, "TRITONREPOAGENT_ModelAction", &l->action);
    if (!l->action) {
        err = nrd_errorf(NRD_ERR_NOT_FOUND,
                         "unable to find required entrypoint 'TRITONREPOAGENT_ModelAction' in "
                         "shared library '%s'",
                         path);
        goto fail;
    }
    if (initialize) {
        NRD_TRY_GOTO(from_api(initialize(as_agent(l))), err, fail);
    }
    l->finalize = finalize;
    *out = l;
    return NULL;

fail:
    library_close(l);
    return err;
}

static nrd_error *library_get(library **out, nrd_context *ctx, const char *name)
{
    char *path;
    library *l;
    nrd_error *err = NULL;

    *out = NULL;
    if (strchr(name, '/')) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "invalid repo agent name '%s'", name);
    }
    if (asprintf(&path, "%s/%s/libtritonrepoagent_%s.so", ctx->opt.agent_dir, name, name) < 0) {
        return nrd_error_no_memory();
    }
    pthread_mutex_lock(&libraries_mu);
    for (l = libraries; l && strcmp(l->path, path) != 0; l = l->next) {
    }
    if (l) {
        l->refs++;
    } else if (!nrd_path_exists(path)) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG,
                         "unable to find 'libtritonrepoagent_%s.so' for repo agent '%s', searched: "
                         "%s",
                         name, name, ctx->opt.agent_dir);
    } else {
        err = library_open(&l, name, path);
        if (!err) {
            l->next = libraries;
            libraries = l;
        }
    }
    pthread_mutex_unlock(&libraries_mu);
    free(path);
    *out = err ? NULL : l;
    return err;
}

static void library_put(library *l)
{
    pthread_mutex_lock(&libraries_mu);
    bool last = --l->refs == 0;
    if (last) {
        library **p = &libraries;
        while (*p != l) {
            p = &(*p)->next;
        }
        *p = l->next;
    }
    pthread_mutex_unlock(&libraries_mu);
    if (last) {
        library_close(l);
    }
}

void nrd_agents_list(nrd_strings *cells)
{
    pthread_mutex_lock(&libraries_mu);
    for (const library *l = libraries; l; l = l->next) {
        nrd_strings_add(cells, l->name);
        nrd_strings_add(cells, l->path);
    }
    pthread_mutex_unlock(&libraries_mu);
}

/* ---- one agent and one model ---- */

static nrd_error *tell(agent_model *m, TRITONREPOAGENT_ActionType action)
{
    m->last = action;
    m->told = true;
    return from_api(m->lib->action(as_agent(m->lib), as_model(m), action));
}

static void agent_model_free(agent_model *m)
{
    if (m->told && m->last == TRITONREPOAGENT_ACTION_LOAD) {
        log_and_drop(tell(m, TRITONREPOAGENT_ACTION_LOAD_FAIL),
                     "Inform TRITONREPOAGENT_ACTION_LOAD_FAIL");
    }
    if (m->told && m->last == TRITONREPOAGENT_ACTION_LOAD_COMPLETE) {
        log_and_drop(tell(m, TRITONREPOAGENT_ACTION_UNLOAD),
                     "Inform TRITONREPOAGENT_ACTION_UNLOAD");
    }
    if (m->told && m->last == TRITONREPOAGENT_ACTION_UNLOAD) {
        log_and_drop(tell(m, TRITONREPOAGENT_ACTION_UNLOAD_COMPLETE),
                     "Inform TRITONREPOAGENT_ACTION_UNLOAD_COMPLETE");
    }
    if (m->is_known && m->lib->model_finalize) {
        log_and_drop(from_api(m->lib->model_finalize(as_agent(m->lib), as_model(m))),
                     "~TritonRepoAgentModel");
    }
    if (m->acquired) {
        nrd_remove_tree(m->acquired);
        free(m->acquired);
    }
    for (size_t i = 0; i < m->n_params; i++) {
        free(m->keys[i]);
        free(m->values[i]);
    }
    free(m->keys);
    free(m->values);
    free(m->config_json);
    free(m->dir);
    library_put(m->lib);
    free(m);
}

static nrd_error *agent_model_new(agent_model **out, nrd_context *ctx, const nrd_config *cfg,
                                  const Inference__ModelRepositoryAgents__Agent *c, const char *dir)
{
    agent_model *m = calloc(1, sizeof *m);
    nrd_str json = {0};
    nrd_error *err = m ? library_get(&m->lib, ctx, c->name) : nrd_error_no_memory();

    *out = NULL;
    if (err) {
        free(m);
        return err;
    }
    m->kind = TRITONREPOAGENT_ARTIFACT_FILESYSTEM;
    NRD_DUP_GOTO(m->dir, dir, err, fail);
    nrd_pbjson_put(&json, &cfg->base);
    m->config_json = nrd_str_steal(&json);
    if (!m->config_json) {
        err = nrd_error_no_memory();
        goto fail;
    }
    NRD_NEW_GOTO(m->keys, c->n_parameters, err, fail);
    NRD_NEW_GOTO(m->values, c->n_parameters, err, fail);
    while (m->n_params < c->n_parameters) {
        const size_t i = m->n_params++;
        NRD_DUP_GOTO(m->keys[i], c->parameters[i]->key, err, fail);
        NRD_DUP_GOTO(m->values[i], c->parameters[i]->value, err, fail);
    }
    m->is_known = true;
    if (m->lib->model_initialize) {
        NRD_TRY_GOTO(from_api(m->lib->model_initialize(as_agent(m->lib), as_model(m))), err, fail);
    }
    NRD_TRY_GOTO(tell(m, TRITONREPOAGENT_ACTION_LOAD), err, fail);
    *out = m;
    return NULL;

fail:
    agent_model_free(m);
    return err;
}

/* ---- the row ---- */

nrd_error *nrd_agents_load(nrd_agents **out, nrd_context *ctx, const nrd_config *cfg,
                           const char *dir)
{
    const size_t n = cfg->model_repository_agents ? cfg->model_repository_agents->n_agents : 0;
    nrd_agents *a;

    *out = NULL;
    if (n == 0) {
        return NULL;
    }
    a = calloc(1, sizeof *a + n * sizeof a->items[0]);
    if (!a) {
        return nrd_error_no_memory();
    }
    atomic_init(&a->refs, 1);
    pthread_mutex_init(&a->mu, NULL);
    while (a->n < n) {
        nrd_error *err =
            agent_model_new(&a->items[a->n], ctx, cfg, cfg->model_repository_agents->agents[a->n],
                            a->n ? a->items[a->n - 1]->dir : dir);
        if (!err && a->items[a->n]->kind != TRITONREPOAGENT_ARTIFACT_FILESYSTEM) {
            err = nrd_errorf(NRD_ERR_UNSUPPORTED,
                             "repo agent '%s' names a remote location, which is not supported",
                             a->items[a->n]->lib->name);
            a->n++;
        }
        if (err) {
            nrd_agents_unref(a);
            return err;
        }
        a->n++;
    }
    *out = a;
    return NULL;
}

const char *nrd_agents_dir(const nrd_agents *a)
{
    return a->items[a->n - 1]->dir;
}

nrd_error *nrd_agents_loaded(nrd_agents *a)
{
    nrd_error *err = NULL;

    if (!a) {
        return NULL;
    }
    pthread_mutex_lock(&a->mu);
    for (size_t i = 0; i < a->n && !err; i++) {
        err = tell(a->items[i], TRITONREPOAGENT_ACTION_LOAD_COMPLETE);
    }
    pthread_mutex_unlock(&a->mu);
    return err;
}

void nrd_agents_unloading(nrd_agents *a)
{
    if (!a) {
        return;
    }
    pthread_mutex_lock(&a->mu);
    for (size_t i = 0; i < a->n; i++) {
        if (a->items[i]->last == TRITONREPOAGENT_ACTION_LOAD_COMPLETE) {
            log_and_drop(tell(a->items[i], TRITONREPOAGENT_ACTION_UNLOAD),
                         "Agent model returns error on TRITONREPOAGENT_ACTION_UNLOAD");
        }
    }
    pthread_mutex_unlock(&a->mu);
}

nrd_agents *nrd_agents_ref(nrd_agents *a)
{
    if (a) {
        atomic_fetch_add(&a->refs, 1);
    }
    return a;
}

void nrd_agents_unref(nrd_agents *a)
{
    if (a && atomic_fetch_sub(&a->refs, 1) == 1) {
        for (size_t i = 0; i < a->n; i++) {
            agent_model_free(a->items[i]);
        }
        pthread_mutex_destroy(&a->mu);
        free(a);
    }
}

/* ---- what agents call ---- */

static agent_model *m_of(TRITONREPOAGENT_AgentModel *m)
{
    return (agent_model *)(void *)m;
}

static const char *action_name(const agent_model *m)
{
    static const char *const names[] = {
        "TRITONREPOAGENT_ACTION_LOAD", "TRITONREPOAGENT_ACTION_LOAD_COMPLETE",
        "TRITONREPOAGENT_ACTION_LOAD_FAIL", "TRITONREPOAGENT_ACTION_UNLOAD",
        "TRITONREPOAGENT_ACTION_UNLOAD_COMPLETE"};
    return m->told ? names[m->last] : "not set";
}

TRITONSERVER_Error *TRITONREPOAGENT_ModelRepositoryLocation(
    TRITONREPOAGENT_Agent *agent, TRITONREPOAGENT_AgentModel *model,
    TRITONREPOAGENT_ArtifactType *artifact_type, const char **location)
{
    (void)agent;
    *artifact_type = m_of(model)->kind;
    *location = m_of(model)->dir;
    return NULL;
}

TRITONSERVER_Error *TRITONREPOAGENT_ModelRepositoryLocationAcquire(
    TRITONREPOAGENT_Agent *agent, TRITONREPOAGENT_AgentModel *model,
    const TRITONREPOAGENT_ArtifactType artifact_type, const char **location)
{
    agent_model *m = m_of(model);
    char tmpl[] = "/tmp/folderXXXXXX";

    (void)agent;
    if (artifact_type != TRITONREPOAGENT_ARTIFACT_FILESYSTEM) {
        return as_api(nrd_errorf(NRD_ERR_INVALID_ARG, "Unexpected artifact type, expects "
                                                      "'TRITONREPOAGENT_ARTIFACT_FILESYSTEM'"));
    }
    if (!m->acquired) {
        if (!mkdtemp(tmpl)) {
            return as_api(
                nrd_errorf(NRD_ERR_INTERNAL, "Failed to create local temp folder: %s", tmpl));
        }
        m->acquired = strdup(tmpl);
        if (!m->acquired) {
            (void)rmdir(tmpl);
            return as_api(nrd_error_no_memory());
        }
    }
    *location = m->acquired;
    return NULL;
}

TRITONSERVER_Error *TRITONREPOAGENT_ModelRepositoryLocationRelease(
    TRITONREPOAGENT_Agent *agent, TRITONREPOAGENT_AgentModel *model, const char *location)
{
    agent_model *m = m_of(model);

    (void)agent, (void)location; /* there is one */
    if (!m->acquired) {
        return as_api(nrd_errorf(NRD_ERR_UNAVAILABLE, "No mutable location to be deleted"));
    }
    nrd_remove_tree(m->acquired);
    free(m->acquired);
    m->acquired = NULL;
    return NULL;
}

TRITONSERVER_Error *TRITONREPOAGENT_ModelRepositoryUpdate(
    TRITONREPOAGENT_Agent *agent, TRITONREPOAGENT_AgentModel *model,
    const TRITONREPOAGENT_ArtifactType artifact_type, const char *location)
{
    agent_model *m = m_of(model);

    (void)agent;
    if (!m->told || m->last != TRITONREPOAGENT_ACTION_LOAD) {
        return as_api(nrd_errorf(NRD_ERR_INVALID_ARG,
                                 "location can only be updated during TRITONREPOAGENT_ACTION_LOAD, "
                                 "current action type is %s",
                                 action_name(m)));
    }
    char *dir = strdup(location);
    if (!dir) {
        return as_api(nrd_error_no_memory());
    }
    free(m->dir);
    m->dir = dir;
    m->kind = artifact_type;
    return NULL;
}

TRITONSERVER_Error *TRITONREPOAGENT_ModelParameterCount(TRITONREPOAGENT_Agent *agent,
                                                        TRITONREPOAGENT_AgentModel *model,
                                                        uint32_t *count)
{
    (void)agent;
    *count = (uint32_t)m_of(model)->n_params;
    return NULL;
}

TRITONSERVER_Error *TRITONREPOAGENT_ModelParameter(TRITONREPOAGENT_Agent *agent,
                                                   TRITONREPOAGENT_AgentModel *model,
                                                   const uint32_t index,
                                                   const char **parameter_name,
                                                   const char **parameter_value)
{
    const agent_model *m = m_of(model);

    (void)agent;
    if (index >= m->n_params) {
        return as_api(nrd_errorf(NRD_ERR_INVALID_ARG, "index out of range for model parameters"));
    }
    *parameter_name = m->keys[index];
    *parameter_value = m->values[index];
    return NULL;
}

TRITONSERVER_Error *TRITONREPOAGENT_ModelConfig(TRITONREPOAGENT_Agent *agent,
                                                TRITONREPOAGENT_AgentModel *model,
                                                const uint32_t config_version,
                                                TRITONSERVER_Message **model_config)
{
    nrd_str text = {0};

    (void)agent;
    *model_config = NULL;
    if (config_version != 1) {
        return as_api(nrd_errorf(NRD_ERR_INVALID_ARG,
                                 "model configuration version %u not supported, supported versions "
                                 "are: 1",
                                 config_version));
    }
    nrd_str_puts(&text, m_of(model)->config_json);
    return as_api(nrd_message_new((nrd_message **)(void *)model_config, &text));
}

TRITONSERVER_Error *TRITONREPOAGENT_ModelState(TRITONREPOAGENT_AgentModel *model, void **state)
{
    *state = m_of(model)->state;
    return NULL;
}

TRITONSERVER_Error *TRITONREPOAGENT_ModelSetState(TRITONREPOAGENT_AgentModel *model, void *state)
{
    m_of(model)->state = state;
    return NULL;
}

TRITONSERVER_Error *TRITONREPOAGENT_State(TRITONREPOAGENT_Agent *agent, void **state)
{
    *state = ((library *)(void *)agent)->state;
    return NULL;
}

TRITONSERVER_Error *TRITONREPOAGENT_SetState(TRITONREPOAGENT_Agent *agent, void *state)
{
    ((library *)(void *)agent)->state = state;
    return NULL;
}
