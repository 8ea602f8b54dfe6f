/* SPDX-License-Identifier: Apache-2.0
 * What nereid serve tells when its server is ready. */
#include "tools/repo.h"
#include "tools/serve_internal.h"
#include "tools/tools.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "model/engine.h"
#include "nereid/executor.h"
#include "text/shared.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int64_t context_of(const char *engine)
{
    nrd_json_doc *doc = NULL;
    char *file = nrd_path_join(engine, "config.json");
    nrd_error_free(nrd_json_parse_file(&doc, file, NULL));
    int64_t n = nrd_json_get_int(nrd_json_get(nrd_json_root(doc), "build_config"), "max_seq_len", 0);
    nrd_json_doc_free(doc);
    free(file);
    return n;
}

static uint64_t bytes_of(const char *engine)
{
    struct stat st = {0};
    char *file = NULL;
    nrd_error *err = nrd_engine_path(&file, engine, 0);
    uint64_t n = !err && stat(file, &st) == 0 ? (uint64_t)st.st_size : 0;
    nrd_error_free(err);
    free(file);
    return n;
}

static void put_engine(nrd_str *out, const nrd_serve_options *o, const char *engine, const nrd_device_info *info)
{
    char *own = nrd_repo_model_name(o->path), weights[32], free_bytes[32];
    nrd_str_printf(out, "  model     %s\n  context   %lld tokens\n  device    %s\n  memory    %s of weights; %s are free\n",
                   o->served_names ? o->served_names : own, (long long)context_of(engine), info->name,
                   nrd_human_bytes(bytes_of(engine), weights),
                   nrd_human_bytes(info->mem_free_bytes, free_bytes));
    free(own);
}

/* What a model is first asked for. */
typedef enum { UNKNOWN, ANSWERS, CONTINUES, MAKES_VECTORS } kind;

/* tokenizer: its folder or file. What is wrong with a file, the server says. */
static kind kind_of(const char *engine, const char *tokenizer)
{
    nrd_text *text = NULL;
    nrd_json_doc *doc = NULL;
    char *json = NULL;
    nrd_error *err = nrd_exec_describe(engine, &json);

    err = err ? err : nrd_json_parse(&doc, json, strlen(json), NULL);
    const bool encodes = !err && nrd_json_get_bool(nrd_json_root(doc), "encoder", false);
    err = err || encodes ? err : nrd_text_open(&text, tokenizer);
    const kind found = encodes ? MAKES_VECTORS : !err && !nrd_tokenizer_chat_template(nrd_text_tokenizer(text)) ? CONTINUES : ANSWERS;
    nrd_error_free(err);
    nrd_text_close(text);
    nrd_json_doc_free(doc);
    free(json);
    return found;
}

static void put_example(nrd_str *out, kind k, const char *name)
{
    const int n = (int)strcspn(name, ",");
    if (k == ANSWERS) {
        nrd_str_printf(out, "chat/completions -d '{\"model\": \"%.*s\", \"messages\": "
                            "[{\"role\": \"user\", \"content\": \"What is the capital of France?\"}]}'\n", n, name);
    } else if (k == CONTINUES) {
        nrd_str_printf(out, "completions -d '{\"model\": \"%.*s\", \"prompt\": \"The capital of France is\"}'\n", n, name);
    } else {
        nrd_str_printf(out, "embeddings -d '{\"model\": \"%.*s\", \"input\": \"The capital of France\"}'\n", n, name);
    }
}

static bool wants_key(const nrd_options *s)
{
    return s->api_keys.n > 0 || s->api_key_file[0];
}

/* k UNKNOWN: without an example. A key is not shown: the log may be anybody's. */
static void put_addresses(nrd_str *out, const nrd_serve_options *o, const nrd_options *s, const char *first, kind k)
{
    const bool any = !strcmp(s->http_address, "0.0.0.0") || !strcmp(s->http_address, "::");
    nrd_str at = {0};
    char *own = nrd_repo_model_name(o->path);
    const char *name = first ? first : o->served_names ? o->served_names : own;
    const char *scheme = s->http_use_ssl || s->http_use_ssl_mutual ? "https" : "http";
    const bool is_open = s->allow_http && s->http_port > 0;

    nrd_str_printf(&at, "%s://", scheme);
    nrd_str_put_host(&at, any ? "localhost" : s->http_address);
    nrd_str_printf(&at, ":%lld", (long long)s->http_port);
    if (is_open) {
        if (s->ui) {
            nrd_str_printf(out, "  chat      %s/\n", nrd_str_cstr(&at));
        }
        if (s->allow_openai) {
            nrd_str_printf(out, "  OpenAI    %s/v1\n", nrd_str_cstr(&at));
        }
        nrd_str_printf(out, "  Triton    %s/v2\n", nrd_str_cstr(&at));
    }
    if (is_open && s->allow_openai && k != UNKNOWN) {
        nrd_str_printf(out, "\n  curl %s%s/v1/", wants_key(s) ? "-H 'Authorization: Bearer KEY' " : "", nrd_str_cstr(&at));
        put_example(out, k, name);
    }
    nrd_str_fini(&at);
    free(own);
}

void nrd_serve_put_summary(nrd_str *out, const nrd_serve_options *o, const nrd_options *s, const char *engine,
                        const char *tokenizer, const nrd_device_info *info)
{
    const kind k = engine ? kind_of(engine, tokenizer) : UNKNOWN;

    nrd_str_printf(out, "\nReady: %s\n", o->path);
    if (engine) {
        put_engine(out, o, engine, info);
    }
    if (k == CONTINUES) {
        nrd_str_puts(out, "  template  none: the model continues text, and does not answer (--chat-template)\n");
    }
    put_addresses(out, o, s, NULL, k);
}

void nrd_serve_put_summary_of_several(nrd_str *out, const nrd_serve_options *o, const nrd_options *s, const nrd_several *models,
                                   const nrd_several *pulled, const nrd_device_info *info)
{
    char weights[32], cache[32], memory[32];

    nrd_str_printf(out, "\nReady: %zu %s, in memory when asked for\n", models->n, models->n == 1 ? "model" : "models");
    for (size_t i = 0; i < models->n; i++) {
        const nrd_several_model *m = &models->models[i];
        nrd_str_printf(out, "  model     %s: %s of weights, %s of cache\n", m->name, nrd_human_bytes(m->weight_bytes, weights),
                       nrd_human_bytes(m->cache_bytes, cache));
    }
    for (size_t i = 0; i < pulled->n; i++) {
        nrd_str_printf(out, "  pulled    %s\n", pulled->models[i].name);
    }
    nrd_str_printf(out, "  device    %s\n  memory    %s for models\n", info->name, nrd_human_bytes(models->memory_bytes, memory));
    put_addresses(out, o, s, models->models[0].name, ANSWERS);
}
