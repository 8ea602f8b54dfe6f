/* SPDX-License-Identifier: Apache-2.0
 * The service of /v1: its routes, and a port of its own where one is asked for.
 * Handlers are in the other files of this folder. Set up by main.c before HTTP listens. */
#include "frontends/openai/openai.h"

#include "base/clock.h"
#include "base/log.h"
#include "frontends/openai/batch_file.h"
#include "frontends/openai/responses.h"

#include <string.h>
#include <time.h>

static const nrd_http_route_row routes[] = {
    {"v1/models", NRD_HTTP_ON_GET | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_models, nrd_oai_on_method},
    {"models", NRD_HTTP_ON_GET | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_models, nrd_oai_on_method},
    {"v1/models/{m*}", NRD_HTTP_ON_GET | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_model, nrd_oai_on_method},
    {"v1/chat/completions", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_chat, nrd_oai_on_method},
    {"chat/completions", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_chat, nrd_oai_on_method},
    {"v1/chat/completions/input_tokens", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_count_chat, nrd_oai_on_method},
    {"v1/completions", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_completions, nrd_oai_on_method},
    {"v1/load_lora_adapter", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_load_adapter, nrd_oai_on_method},
    {"v1/unload_lora_adapter", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_unload_adapter, nrd_oai_on_method},
    {"v1/embeddings", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_embeddings, nrd_oai_on_method},
    {"v1/rerank", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_rerank, nrd_oai_on_method},
    {"v2/rerank", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_rerank, nrd_oai_on_method},
    {"rerank", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_rerank, nrd_oai_on_method},
    {"reranking", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_rerank, nrd_oai_on_method},
    {"v1/score", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_score, nrd_oai_on_method},
    {"score", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_score, nrd_oai_on_method},
    {"classify", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_classify, nrd_oai_on_method},
    {"v1/messages", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_messages, nrd_oai_on_method},
    {"v1/messages/count_tokens", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_count_tokens, nrd_oai_on_method},
    {"v1/responses", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_responses, nrd_oai_on_method},
    {"v1/responses/input_tokens", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_count_responses, nrd_oai_on_method},
    {"v1/responses/{m}", NRD_HTTP_ON_GET | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_response, nrd_oai_on_method},
    {"v1/responses/{m}/input_items", NRD_HTTP_ON_GET | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_response_items, nrd_oai_on_method},
    {"v1/responses/{m}/cancel", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_response_cancel, nrd_oai_on_method},
    {"v1/files", NRD_HTTP_ON_GET | NRD_HTTP_ON_POST | NRD_HTTP_IN_PIECES | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_files, nrd_oai_on_method},
    {"v1/files/{m}", NRD_HTTP_ON_GET | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_file, nrd_oai_on_method},
    {"v1/files/{m}/content", NRD_HTTP_ON_GET | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_file_content, nrd_oai_on_method},
    {"v1/audio/transcriptions", NRD_HTTP_ON_POST | NRD_HTTP_IN_PIECES | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_transcriptions, nrd_oai_on_method},
    {"v1/audio/translations", NRD_HTTP_ON_POST | NRD_HTTP_IN_PIECES | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_translations, nrd_oai_on_method},
    {"v1/batches", NRD_HTTP_ON_GET | NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_batches, nrd_oai_on_method},
    {"v1/batches/{m}", NRD_HTTP_ON_GET | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_batch, nrd_oai_on_method},
    {"v1/batches/{m}/cancel", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_batch_cancel, nrd_oai_on_method},
    {"api/chat", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_ollama_chat, nrd_oai_on_method},
    {"api/generate", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_ollama_generate, nrd_oai_on_method},
    {"api/embed", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_embeddings, nrd_oai_on_method},
    {"api/embeddings", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_ollama_embeddings, nrd_oai_on_method},
    {"api/tags", NRD_HTTP_ON_GET | NRD_HTTP_ON_HEAD | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_ollama_tags, nrd_oai_on_method},
    {"api/ps", NRD_HTTP_ON_GET | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_ollama_ps, nrd_oai_on_method},
    {"api/show", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_ollama_show, nrd_oai_on_method},
    {"api/version", NRD_HTTP_ON_GET | NRD_HTTP_ON_HEAD | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_ollama_version, nrd_oai_on_method},
    {"api/pull", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "model-repository", nrd_oai_on_pull, nrd_oai_on_method},
    {"api/push", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_ollama_order, nrd_oai_on_method},
    {"api/create", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_ollama_order, nrd_oai_on_method},
    {"api/copy", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_ollama_order, nrd_oai_on_method},
    {"api/delete", NRD_HTTP_ON_OTHER, "model-repository", nrd_oai_on_delete, nrd_oai_on_method},
    {"completion", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_llama_completion, nrd_oai_on_method},
    {"completions", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_llama_completion, nrd_oai_on_method},
    {"infill", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_llama_infill, nrd_oai_on_method},
    {"props", NRD_HTTP_ON_GET | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_llama_props, nrd_oai_on_method},
    {"slots", NRD_HTTP_ON_GET | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_llama_slots, nrd_oai_on_method},
    {"apply-template", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_apply_template, nrd_oai_on_method},
    {"health", NRD_HTTP_ON_GET | NRD_HTTP_ON_HEAD, "health", nrd_oai_on_health, nrd_oai_on_method},
    {"v1/health", NRD_HTTP_ON_GET | NRD_HTTP_ON_HEAD, "health", nrd_oai_on_health, nrd_oai_on_method},
    {"ping", NRD_HTTP_ON_GET | NRD_HTTP_ON_POST | NRD_HTTP_ON_HEAD, "health", nrd_oai_on_health, nrd_oai_on_method},
    {"version", NRD_HTTP_ON_GET | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_ollama_version, nrd_oai_on_method},
    {"metrics", NRD_HTTP_ON_GET | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_metrics, nrd_oai_on_method},
    {"load", NRD_HTTP_ON_GET | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_load, nrd_oai_on_method},
    {"reset_prefix_cache", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_reset_prefix_cache, nrd_oai_on_method},
    {"sleep", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "model-repository", nrd_oai_on_sleep, nrd_oai_on_method},
    {"wake_up", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "model-repository", nrd_oai_on_wake_up, nrd_oai_on_method},
    {"is_sleeping", NRD_HTTP_ON_GET | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_is_sleeping, nrd_oai_on_method},
    {"models/load", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "model-repository", nrd_oai_on_models_load, nrd_oai_on_method},
    {"models/unload", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "model-repository", nrd_oai_on_models_unload, nrd_oai_on_method},
    {"openapi.json", NRD_HTTP_ON_GET | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_openapi, nrd_oai_on_method},
    {"tokenize", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_tokenize, nrd_oai_on_method},
    {"detokenize", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_detokenize, nrd_oai_on_method},
};

enum { N_ROUTES = sizeof routes / sizeof routes[0] };

static void on_unknown(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    const nrd_view path = req->head.path;
    (void)user;
    (void)route;
    nrd_oai_fail(req, nrd_error_because(nrd_errorf(NRD_ERR_NOT_FOUND, "There is no endpoint %.*s; GET /openapi.json lists those of this server.",
                                                   (int)(path.n < 200 ? path.n : 200), path.p), "unknown_url"), NULL);
}

/* What is left below /v1 is not found in the form that its clients read. */
static const nrd_http_route_row rest[] = {
    {.pattern = "v1/{m*}", .methods = NRD_HTTP_ON_GET | NRD_HTTP_ON_POST | NRD_HTTP_ON_HEAD | NRD_HTTP_ON_OTHER, .handle = on_unknown},
};

static nrd_error *add_routes(nrd_http_router *router, nrd_openai *o)
{
    NRD_TRY(nrd_http_router_add(router, routes, N_ROUTES, o, nrd_oai_reply_error));
    return nrd_http_router_add(router, rest, 1, o, nrd_oai_reply_error);
}

static nrd_error *new_files(nrd_openai *o)
{
    const nrd_options *opt = o->api->options;
    const nrd_file_limits limits = {
        .dir = opt->openai_files_dir,
        .max_files = (size_t)opt->openai_files_kept,
        .max_bytes = (uint64_t)opt->openai_files_mb << 20,
        .max_file_bytes = (uint64_t)opt->openai_file_mb << 20,
        .keep_secs = opt->openai_files_days * 86400,
    };
    NRD_TRY(nrd_error_wrap(nrd_file_store_new(&o->files, &limits), "--openai-files-dir"));
    return nrd_batches_new(&o->batches, o->files, o->api->front->keys, (int)opt->openai_batch_requests);
}

nrd_error *nrd_openai_new(nrd_openai **out, nrd_http_api *api)
{
    nrd_error *err = NULL;
    nrd_openai *o = NULL;

    *out = NULL;
    NRD_NEW_GOTO(o, 1, err, fail);
    o->api = api;
    o->created = (int64_t)time(NULL);
    pthread_mutex_init(&o->mu, NULL);
    NRD_TRY_GOTO(nrd_response_store_new(&o->kept, (size_t)api->options->openai_responses_kept,
                                        (size_t)api->options->openai_responses_kept_mb << 20), err, fail);
    NRD_TRY_GOTO(nrd_background_new(&o->background, o->kept, (size_t)api->options->openai_background,
                                    (size_t)api->options->openai_background_mb << 20, nrd_resp_cancel_run), err, fail);
    NRD_TRY_GOTO(new_files(o), err, fail);
    NRD_TRY_GOTO(add_routes(nrd_http_api_router(api), o), err, fail);
    *out = o;
    return NULL;

fail:
    nrd_openai_free(o);
    return err;
}

nrd_error *nrd_openai_listen(nrd_openai *o)
{
    const nrd_options *opt = o->api->options;
    if (opt->openai_port < 0 && !opt->batch_file[0]) {
        return NULL;
    }
    NRD_TRY(nrd_http_router_new(&o->router, opt, o->api->front->keys));
    NRD_TRY(add_routes(o->router, o));
    const nrd_http_config cfg = {
        .name = "OpenAI",
        .address = opt->http_address,
        .port = opt->openai_port < 0 ? 0 : (int)opt->openai_port,
        .no_port = opt->openai_port < 0,
        .reuse_port = opt->reuse_http_port,
        .tls = o->api->front->tls,
        .trusted = &opt->trusted_proxies,
        .n_threads = (int)opt->http_threads,
        .max_connections = (size_t)opt->http_max_connections,
        .idle_secs = (unsigned)opt->http_idle_secs,
        .max_body_bytes = (size_t)opt->http_max_input_bytes,
        .handle = nrd_http_router_handle,
        .in_pieces = nrd_http_router_in_pieces,
        .fail = nrd_http_router_fail,
        .user = o->router,
    };
    return nrd_http_server_start(&o->http, &cfg);
}

nrd_error *nrd_openai_start(nrd_openai *o)
{
    const nrd_batch_asks asks = nrd_oai_asks(o, o->api->http ? o->api->http : o->http);
    return nrd_batches_start(o->batches, &asks);
}

/* Of a batch file, where one model is served: lines may name whatever they were written for. */
typedef struct file_run {
    nrd_openai *o;
    bool (*interrupted)(void *arg);
    void *arg;
    char *only; /* owns */
} file_run;

static const char *model_of(void *arg, const char *asked)
{
    const file_run *r = arg;
    nrd_oai_model *m = NULL;

    if (r->only && asked) { /* an adapter, maybe */
        nrd_error *err = nrd_oai_find_model(r->o, asked, &m);
        nrd_oai_model_unref(m);
        nrd_error_free(err);
        return m ? asked : r->only;
    }
    return r->only ? r->only : asked ? asked : "";
}

static bool is_interrupted(void *arg)
{
    const file_run *r = arg;
    return r->interrupted(r->arg);
}

nrd_error *nrd_openai_run_file(nrd_openai *o, bool (*interrupted)(void *arg), void *arg, int *out_status)
{
    static const int statuses[] = {[NRD_BATCH_FILE_ALL_ANSWERED] = 0, [NRD_BATCH_FILE_SOME_FAILED] = 3,
                                   [NRD_BATCH_FILE_INTERRUPTED] = 1};
    const nrd_options *opt = o->api->options;
    const nrd_batch_asks asks = nrd_oai_asks(o, o->http);
    file_run r = {.o = o, .interrupted = interrupted, .arg = arg};
    nrd_batch_file_end end;
    nrd_oai_model *m = NULL;

    *out_status = 1;
    nrd_error_free(nrd_oai_find_only(o, NULL, NULL, &m)); /* several: lines say which */
    if (m) {
        r.only = strdup(m->name);
        nrd_oai_model_unref(m);
        if (!r.only) {
            return nrd_error_no_memory();
        }
    }
    const nrd_batch_file f = {.input = opt->batch_file, .output = opt->batch_output, .json = opt->batch_json, .max_flying = (int)opt->openai_batch_requests,
                              .model_of = model_of, .interrupted = is_interrupted, .arg = &r};
    nrd_error *err = nrd_batch_file_run(&f, &asks, &end);
    free(r.only);
    if (!err) {
        *out_status = statuses[end];
    }
    return err;
}

int nrd_openai_port(const nrd_openai *o)
{
    return o->http && o->api->options->openai_port >= 0 ? nrd_http_server_port(o->http) : 0;
}

void nrd_openai_drain(nrd_openai *o)
{
    if (o) {
        nrd_batches_drain(o->batches);
        nrd_background_stop(o->background); /* nobody could get their answers from the next server */
    }
    if (o && o->http) {
        nrd_http_server_drain(o->http);
    }
}

size_t nrd_openai_batch_requests(const nrd_openai *o)
{
    return o ? (size_t)nrd_batches_flying(o->batches) + nrd_background_running(o->background) : 0;
}

void nrd_openai_stop_batches(nrd_openai *o)
{
    if (o) {
        nrd_batches_stop(o->batches);
    }
}

size_t nrd_openai_connections(const nrd_openai *o)
{
    return o && o->http ? nrd_http_server_connections(o->http) : 0;
}

void nrd_openai_close(nrd_openai *o)
{
    if (o) {
        nrd_http_server_free(o->http);
        o->http = NULL;
    }
}

void nrd_openai_free(nrd_openai *o)
{
    if (!o) {
        return;
    }
    nrd_batches_free(o->batches);
    nrd_file_store_free(o->files);
    nrd_openai_close(o);
    nrd_http_router_free(o->router);
    nrd_oai_free_models(o);
    nrd_oai_free_adapters(o);
    nrd_background_free(o->background);
    nrd_response_store_free(o->kept);
    pthread_mutex_destroy(&o->mu);
    free(o);
}
