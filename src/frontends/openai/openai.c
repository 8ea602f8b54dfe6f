/* SPDX-License-Identifier: Apache-2.0
 * The service of /v1: its API keys, its routes, and a port of its own where one is asked for.
 * Handlers are in the other files of this folder. Set up by main.c before HTTP listens. */
#include "frontends/openai/internal.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"

#include <string.h>
#include <time.h>

enum { MAX_KEY_FILE = 1 << 20 };

static const nrd_http_route_row routes[] = {
    {"v1/models", NRD_HTTP_ON_GET | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_models, false},
    {"v1/models/{m*}", NRD_HTTP_ON_GET | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_model, false},
    {"v1/chat/completions", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_chat, false},
    {"v1/completions", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_completions, false},
    {"v1/embeddings", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_embeddings, false},
    {"openapi.json", NRD_HTTP_ON_GET | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_openapi, false},
    {"tokenize", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_tokenize, false},
    {"detokenize", NRD_HTTP_ON_POST | NRD_HTTP_ON_OTHER, "openai", nrd_oai_on_detokenize, false},
};

enum { N_ROUTES = sizeof routes / sizeof routes[0] };

static void add_key(nrd_openai *o, const char *text, size_t n)
{
    if (n > 0) {
        o->keys = nrd_xrealloc(o->keys, (o->n_keys + 1) * sizeof *o->keys);
        o->keys[o->n_keys++] = (nrd_oai_key){.text = nrd_xstrndup(text, n)};
        o->has_keys = true;
    }
}

static nrd_error *read_keys(nrd_openai *o)
{
    const nrd_options *opt = o->api->options;
    char *text = NULL;
    size_t n = 0;

    for (size_t i = 0; i < opt->api_keys.n; i++) {
        add_key(o, opt->api_keys.items[i].name, strlen(opt->api_keys.items[i].name));
    }
    if (opt->api_key_file[0]) { /* one a line; # begins a remark */
        NRD_TRY(nrd_error_wrap(nrd_file_read(&text, &n, opt->api_key_file, MAX_KEY_FILE),
                               "--api-key-file"));
        for (char *line = text; line < text + n;) {
            size_t len = strcspn(line, "\r\n");
            if (line[0] != '#') {
                add_key(o, line, len);
            }
            line += len + 1;
        }
        free(text);
        if (!o->has_keys) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "--api-key-file '%s' holds no key",
                              opt->api_key_file);
        }
    }
    if (!o->has_keys) {
        o->keys = nrd_xcalloc(1, sizeof *o->keys);
        o->n_keys = 1;
    }
    return NULL;
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
    NRD_TRY_GOTO(read_keys(o), err, fail);
    NRD_TRY_GOTO(nrd_http_router_add(nrd_http_api_router(api), routes, N_ROUTES, o), err, fail);
    *out = o;
    return NULL;

fail:
    nrd_openai_free(o);
    return err;
}

nrd_error *nrd_openai_listen(nrd_openai *o)
{
    const nrd_options *opt = o->api->options;
    if (opt->openai_port < 0) {
        return NULL;
    }
    NRD_TRY(nrd_http_router_new(&o->router, opt));
    NRD_TRY(nrd_http_router_add(o->router, routes, N_ROUTES, o));
    const nrd_http_config cfg = {
        .name = "OpenAI",
        .address = opt->http_address,
        .port = (int)opt->openai_port,
        .reuse_port = opt->reuse_http_port,
        .n_threads = (int)opt->http_threads,
        .max_connections = (size_t)opt->http_max_connections,
        .idle_secs = (unsigned)opt->http_idle_secs,
        .max_body_bytes = (size_t)opt->http_max_input_bytes,
        .handle = nrd_http_router_handle,
        .user = o->router,
    };
    return nrd_http_server_start(&o->http, &cfg);
}

int nrd_openai_port(const nrd_openai *o)
{
    return o->http ? nrd_http_server_port(o->http) : 0;
}

void nrd_openai_drain(nrd_openai *o)
{
    if (o && o->http) {
        nrd_http_server_drain(o->http);
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
    nrd_openai_close(o);
    nrd_http_router_free(o->router);
    nrd_oai_free_models(o);
    for (size_t i = 0; i < o->n_keys; i++) {
        free(o->keys[i].text);
    }
    free(o->keys);
    pthread_mutex_destroy(&o->mu);
    free(o);
}
