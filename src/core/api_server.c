/* SPDX-License-Identifier: Apache-2.0
 * TRITONSERVER API: the server and questions about it. */
#include "core/api.h"
#include "core/config/pbjson.h"
#include "core/model.h"
#include "core/model_internal.h"
#include "core/options.h"
#include "core/repo/repository.h"
#include "core/server.h"
#include "core/server_internal.h"
#include "core/statistics.h"
#include "core/types.h"

#include "base/error.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "nereid/server.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static nrd_server *of_api(TRITONSERVER_Server *s)
{
    return (nrd_server *)(void *)s;
}

static TRITONSERVER_Error *message(TRITONSERVER_Message **out, nrd_str *json)
{
    return as_api(nrd_message_new((nrd_message **)(void *)out, json));
}

TRITONSERVER_Error *TRITONSERVER_ServerNew(TRITONSERVER_Server **server,
                                           TRITONSERVER_ServerOptions *options)
{
    nrd_server *s = NULL;
    *server = NULL;
    NRD_API_TRY(nrd_server_new(&s, (const nrd_server_options *)(void *)options));
    *server = (TRITONSERVER_Server *)(void *)s;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ServerDelete(TRITONSERVER_Server *server)
{
    nrd_server_free(of_api(server));
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ServerStop(TRITONSERVER_Server *server)
{
    return as_api(nrd_server_stop(of_api(server)));
}

TRITONSERVER_Error *TRITONSERVER_ServerSetExitTimeout(TRITONSERVER_Server *server,
                                                      unsigned int timeout)
{
    atomic_store(&of_api(server)->exit_timeout_s, timeout);
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_ServerRegisterModelRepository(TRITONSERVER_Server *server, const char *repository_path,
                                           const TRITONSERVER_Parameter **name_mapping,
                                           const uint32_t mapping_count)
{
    NRD_API_TRY(nrd_params_check((const nrd_param *const *)(const void *)name_mapping, mapping_count));
    return as_api(nrd_repo_register(of_api(server)->repo, repository_path,
                                    (const nrd_param *const *)(const void *)name_mapping,
                                    mapping_count));
}

TRITONSERVER_Error *TRITONSERVER_ServerUnregisterModelRepository(TRITONSERVER_Server *server,
                                                                 const char *repository_path)
{
    return as_api(nrd_repo_unregister(of_api(server)->repo, repository_path));
}

TRITONSERVER_Error *TRITONSERVER_ServerPollModelRepository(TRITONSERVER_Server *server)
{
    nrd_server *s = of_api(server);
    return atomic_load(&s->state) == NRD_SERVER_READY ? as_api(nrd_repo_poll(s->repo)) : NULL;
}

bool nrd_server_has_failed(TRITONSERVER_Server *server)
{
    return nrd_repo_has_failed(of_api(server)->repo, NULL);
}

bool nrd_server_wait_unloaded(TRITONSERVER_Server *server, const char *model, uint64_t timeout_ns)
{
    return nrd_repo_wait_gone(of_api(server)->repo, model, timeout_ns);
}

TRITONSERVER_Error *TRITONSERVER_ServerIsLive(TRITONSERVER_Server *server, bool *live)
{
    int state = atomic_load(&of_api(server)->state);
    *live = false;
    if (state == NRD_SERVER_EXITING || state == NRD_SERVER_STOPPED) {
        return as_api(nrd_errorf(NRD_ERR_UNAVAILABLE, "Server exiting"));
    }
    *live = state == NRD_SERVER_READY;
    return NULL;
}

static void check_ready(void *user, nrd_model *m)
{
    bool *ready = user;
    nrd_error *err = nrd_model_ready(m);
    *ready = *ready && !err;
    nrd_error_free(err);
}

TRITONSERVER_Error *TRITONSERVER_ServerIsReady(TRITONSERVER_Server *server, bool *ready)
{
    nrd_server *s = of_api(server);
    int state = atomic_load(&s->state);

    *ready = false;
    if (state == NRD_SERVER_EXITING || state == NRD_SERVER_STOPPED) {
        return as_api(nrd_errorf(NRD_ERR_UNAVAILABLE, "Server exiting"));
    }
    *ready = state == NRD_SERVER_READY;
    if (*ready && s->ctx.opt.strict_readiness) {
        *ready = nrd_repo_all_ready(s->repo);
        if (*ready) {
            NRD_API_TRY(nrd_repo_each(s->repo, NULL, check_ready, ready));
        }
    }
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ServerModelIsReady(TRITONSERVER_Server *server,
                                                    const char *model_name,
                                                    const int64_t model_version, bool *ready)
{
    nrd_server *s = of_api(server);
    nrd_model *m = NULL;

    *ready = false;
    NRD_API_TRY(nrd_server_require_ready(s));
    nrd_error *err = nrd_repo_get(&m, s->repo, model_name, model_version);
    if (err) { /* not there is not ready */
        nrd_error_free(err);
        return NULL;
    }
    *ready = true;
    check_ready(ready, m);
    nrd_model_unref(m);
    return NULL;
}

static nrd_error *get_model(nrd_model **out, nrd_server *s, const char *name, int64_t version)
{
    *out = NULL;
    NRD_TRY(nrd_server_require_ready(s));
    return nrd_repo_get(out, s->repo, name, version);
}

uint64_t nrd_server_load_number(TRITONSERVER_Server *server, const char *model, int64_t version)
{
    nrd_model *m;
    nrd_error *err = get_model(&m, of_api(server), model, version);
    if (err) {
        nrd_error_free(err);
        return 0;
    }
    const uint64_t number = m->load_number;
    nrd_model_unref(m);
    return number;
}

TRITONSERVER_Error *TRITONSERVER_ServerModelBatchProperties(TRITONSERVER_Server *server,
                                                            const char *model_name,
                                                            const int64_t model_version,
                                                            uint32_t *flags, void **voidp)
{
    nrd_model *m;
    if (voidp) {
        *voidp = NULL;
    }
    NRD_API_TRY(get_model(&m, of_api(server), model_name, model_version));
    *flags =
        m->config->max_batch_size > 0 ? TRITONSERVER_BATCH_FIRST_DIM : TRITONSERVER_BATCH_UNKNOWN;
    nrd_model_unref(m);
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ServerModelTransactionProperties(TRITONSERVER_Server *server,
                                                                  const char *model_name,
                                                                  const int64_t model_version,
                                                                  uint32_t *txn_flags, void **voidp)
{
    nrd_model *m;
    if (voidp) {
        *voidp = NULL;
    }
    NRD_API_TRY(get_model(&m, of_api(server), model_name, model_version));
    *txn_flags = m->decoupled ? TRITONSERVER_TXN_DECOUPLED : TRITONSERVER_TXN_ONE_TO_ONE;
    nrd_model_unref(m);
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ServerMetadata(TRITONSERVER_Server *server,
                                                TRITONSERVER_Message **server_metadata)
{
    nrd_str j = {0};

    nrd_str_puts(&j, "{\"name\":");
    nrd_json_put_cstr(&j, of_api(server)->ctx.opt.server_id);
    nrd_str_puts(&j, ",\"version\":\"" NRD_TRITON_VERSION "\",\"extensions\":[");
    for (size_t i = 0; nrd_server_extensions[i]; i++) {
        nrd_str_puts(&j, i ? "," : "");
        nrd_json_put_cstr(&j, nrd_server_extensions[i]);
    }
    nrd_str_puts(&j, "]}");
    return message(server_metadata, &j);
}

typedef struct version_list {
    int64_t *items;
    size_t n;
    bool no_memory;
} version_list;

static void add_version(void *user, nrd_model *m)
{
    version_list *l = user;
    int64_t *items = realloc(l->items, (l->n + 1) * sizeof *items);
    if (!items) {
        l->no_memory = true;
        return;
    }
    l->items = items;
    l->items[l->n++] = m->version;
}

TRITONSERVER_Error *TRITONSERVER_ServerModelMetadata(TRITONSERVER_Server *server,
                                                     const char *model_name,
                                                     const int64_t model_version,
                                                     TRITONSERVER_Message **model_metadata)
{
    nrd_server *s = of_api(server);
    version_list versions = {0};
    nrd_str j = {0};
    nrd_model *m;

    *model_metadata = NULL;
    NRD_API_TRY(get_model(&m, s, model_name, model_version));
    if (model_version == -1) {
        nrd_error *err = nrd_repo_each(s->repo, model_name, add_version, &versions);
        versions.no_memory = versions.no_memory || err;
        nrd_error_free(err);
    } else {
        add_version(&versions, m);
    }
    nrd_model_metadata_json(m, versions.items, versions.n, &j);
    if (versions.no_memory) {
        nrd_str_spoil(&j);
    }
    nrd_model_unref(m);
    free(versions.items);
    return message(model_metadata, &j);
}

typedef struct stats_query {
    nrd_str json;
    int64_t version; /* -1: all */
    size_t n_models, n_matches;
} stats_query;

static void add_stats(void *user, nrd_model *m)
{
    stats_query *q = user;
    q->n_models++;
    if (q->version == -1 || q->version == m->version) {
        nrd_str_puts(&q->json, q->n_matches++ ? "," : "");
        nrd_stats_json(m, &q->json);
    }
}

TRITONSERVER_Error *TRITONSERVER_ServerModelStatistics(TRITONSERVER_Server *server,
                                                       const char *model_name,
                                                       const int64_t model_version,
                                                       TRITONSERVER_Message **model_stats)
{
    nrd_server *s = of_api(server);
    bool all = !model_name || model_name[0] == '\0';
    stats_query q = {.version = all ? -1 : model_version};

    *model_stats = NULL;
    NRD_API_TRY(nrd_server_require_ready(s));
    nrd_str_puts(&q.json, "{\"model_stats\":[");
    nrd_error *err = nrd_repo_each(s->repo, all ? NULL : model_name, add_stats, &q);
    if (err) {
        nrd_str_fini(&q.json);
        return as_api(err);
    }
    nrd_str_puts(&q.json, "]}");
    if (!all && q.n_matches == 0) {
        nrd_str_fini(&q.json);
        return as_api(q.n_models == 0
                          ? nrd_errorf(NRD_ERR_INVALID_ARG, "requested model '%s' is not available",
                                       model_name)
                          : nrd_errorf(NRD_ERR_INVALID_ARG,
                                       "requested model version is not available for model '%s'",
                                       model_name));
    }
    return message(model_stats, &q.json);
}

TRITONSERVER_Error *TRITONSERVER_ServerModelConfig(TRITONSERVER_Server *server,
                                                   const char *model_name,
                                                   const int64_t model_version,
                                                   const uint32_t config_version,
                                                   TRITONSERVER_Message **model_config)
{
    nrd_str j = {0};
    nrd_model *m;

    *model_config = NULL;
    if (config_version != 1) {
        return as_api(nrd_errorf(NRD_ERR_INVALID_ARG,
                                 "model configuration version %u not supported, supported versions "
                                 "are: 1",
                                 config_version));
    }
    NRD_API_TRY(get_model(&m, of_api(server), model_name, model_version));
    nrd_pbjson_put(&j, &m->config->base);
    nrd_model_unref(m);
    return message(model_config, &j);
}

TRITONSERVER_Error *TRITONSERVER_ServerModelIndex(TRITONSERVER_Server *server, uint32_t flags,
                                                  TRITONSERVER_Message **model_index)
{
    nrd_server *s = of_api(server);
    nrd_str j = {0};

    *model_index = NULL;
    NRD_API_TRY(nrd_server_require_ready(s));
    nrd_error *err = nrd_repo_index_json(s->repo, (flags & TRITONSERVER_INDEX_FLAG_READY) != 0, &j);
    if (err) {
        nrd_str_fini(&j);
        return as_api(err);
    }
    return message(model_index, &j);
}

TRITONSERVER_Error *TRITONSERVER_ServerLoadModel(TRITONSERVER_Server *server,
                                                 const char *model_name)
{
    return TRITONSERVER_ServerLoadModelWithParameters(server, model_name, NULL, 0);
}

TRITONSERVER_Error *
TRITONSERVER_ServerLoadModelWithParameters(TRITONSERVER_Server *server, const char *model_name,
                                           const TRITONSERVER_Parameter **parameters,
                                           const uint64_t parameter_count)
{
    nrd_server *s = of_api(server);
    NRD_API_TRY(nrd_server_require_ready(s));
    NRD_API_TRY(nrd_params_check((const nrd_param *const *)(const void *)parameters, (size_t)parameter_count));
    return as_api(nrd_repo_load(s->repo, model_name,
                                (const nrd_param *const *)(const void *)parameters,
                                (size_t)parameter_count));
}

TRITONSERVER_Error *TRITONSERVER_ServerUnloadModel(TRITONSERVER_Server *server,
                                                   const char *model_name)
{
    nrd_server *s = of_api(server);
    NRD_API_TRY(nrd_server_require_ready(s));
    return as_api(nrd_repo_unload(s->repo, model_name, false));
}

TRITONSERVER_Error *TRITONSERVER_ServerUnloadModelAndDependents(TRITONSERVER_Server *server,
                                                                const char *model_name)
{
    nrd_server *s = of_api(server);
    NRD_API_TRY(nrd_server_require_ready(s));
    return as_api(nrd_repo_unload(s->repo, model_name, true));
}
