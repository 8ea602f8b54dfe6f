/* SPDX-License-Identifier: Apache-2.0
 * Ollama's API: its questions about models, and what it can order that this server does not do
 * (what it does is in pull.c). Answers to conversations are in ollama_in.c and ollama_out.c, vectors in embeddings.c.
 * Source: Ollama's API reference. */
#include "frontends/openai/internal.h"

#include "base/clock.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

void nrd_oai_on_ollama_chat(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    nrd_oai_generate(user, req, &nrd_oai_form_ollama_chat);
}

void nrd_oai_on_ollama_generate(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    nrd_oai_generate(user, req, &nrd_oai_form_ollama_generate);
}

/* What is not known is empty; so is all of a model that is not loaded (NULL). */
static void put_details(nrd_str *out, const nrd_oai_model *m)
{
    char count[32] = "", type[32] = "";

    if (m && m->n_parameters > 0) {
        const double n = (double)m->n_parameters;
        snprintf(count, sizeof count, n < 1e9 ? "%.1fM" : "%.1fB", n < 1e9 ? n / 1e6 : n / 1e9);
    }
    for (size_t i = 0; m && m->type[i] && i + 1 < sizeof type; i++) {
        type[i] = (char)toupper((unsigned char)m->type[i]);
    }
    nrd_str_puts(out, "{\"parent_model\":\"\",\"format\":\"\",\"family\":");
    nrd_json_put_cstr(out, m ? m->family : "");
    nrd_str_puts(out, ",\"families\":[");
    if (m && m->family[0]) {
        nrd_json_put_cstr(out, m->family);
    }
    nrd_str_puts(out, "],\"parameter_size\":");
    nrd_json_put_cstr(out, count);
    nrd_str_puts(out, ",\"quantization_level\":");
    nrd_json_put_cstr(out, type);
    nrd_str_putc(out, '}');
}

static void put_entry(nrd_oai_question *q, const char *name, uint64_t size, const nrd_oai_model *m, size_t *n)
{
    nrd_str_puts(&q->out, (*n)++ ? ",{\"name\":" : "{\"name\":");
    nrd_json_put_cstr(&q->out, name);
    nrd_str_puts(&q->out, ",\"model\":");
    nrd_json_put_cstr(&q->out, name);
    nrd_str_printf(&q->out, ",\"size\":%llu,\"digest\":\"\",\"details\":", (unsigned long long)size);
    put_details(&q->out, m);
}

/* Of several models. Running ones: those in memory, with what they take of it. */
static nrd_error *put_switched(nrd_oai_question *q, bool running)
{
    nrd_switcher *s = q->o->api->front->switcher;
    size_t n = 0;

    nrd_str_puts(&q->out, "{\"models\":[");
    for (const nrd_switch_model *m = nrd_switcher_next(s, NULL); m; m = nrd_switcher_next(s, m)) {
        nrd_switch_info info;
        nrd_oai_model *known = NULL;
        nrd_switcher_info(s, m, &info);
        if (info.state == NRD_SWITCH_READY) {
            nrd_error_free(nrd_oai_find_model(q->o, nrd_switch_name(m), &known)); /* it may have gone since */
        }
        if (running && info.state == NRD_SWITCH_READY) {
            put_entry(q, nrd_switch_name(m), info.bytes, known, &n);
            nrd_str_puts(&q->out, ",\"expires_at\":");
            if (info.left_ns == NRD_SWITCH_FOREVER) {
                nrd_str_puts(&q->out, "\"9999-12-31T23:59:59Z\"");
            } else {
                nrd_oai_ollama_put_time(&q->out, (int64_t)(nrd_wall_ns() / 1000000000u + info.left_ns / 1000000000u));
            }
            nrd_str_puts(&q->out, ",\"size_vram\":0}");
        } else if (!running) {
            put_entry(q, nrd_switch_name(m), info.file_bytes, known, &n);
            nrd_str_puts(&q->out, ",\"modified_at\":");
            nrd_oai_ollama_put_time(&q->out, q->o->created);
            nrd_str_putc(&q->out, '}');
        }
        nrd_oai_model_unref(known);
    }
    nrd_str_puts(&q->out, "]}");
    return NULL;
}

static nrd_error *put_list(nrd_oai_question *q, bool running)
{
    nrd_oai_names list = {.n = 0};
    if (q->o->api->front->switcher) {
        return put_switched(q, running);
    }
    NRD_TRY(nrd_oai_offered(q->o, &list));
    nrd_str_puts(&q->out, "{\"models\":[");
    for (size_t i = 0; i < list.n; i++) {
        nrd_str_puts(&q->out, i ? ",{\"name\":" : "{\"name\":");
        nrd_json_put_cstr(&q->out, list.v[i]->name);
        nrd_str_puts(&q->out, ",\"model\":");
        nrd_json_put_cstr(&q->out, list.v[i]->name);
        nrd_str_puts(&q->out, ",\"size\":0,\"digest\":\"\",\"details\":");
        put_details(&q->out, list.v[i]);
        if (running) { /* until the server ends */
            nrd_str_puts(&q->out, ",\"expires_at\":\"9999-12-31T23:59:59Z\",\"size_vram\":0}");
        } else {
            nrd_str_puts(&q->out, ",\"modified_at\":");
            nrd_oai_ollama_put_time(&q->out, q->o->created);
            nrd_str_putc(&q->out, '}');
        }
    }
    nrd_str_puts(&q->out, "]}");
    nrd_oai_names_fini(&list);
    return NULL;
}

static nrd_error *put_tags(nrd_oai_question *q)
{
    return put_list(q, false);
}

static nrd_error *put_running(nrd_oai_question *q)
{
    return put_list(q, true);
}

static nrd_error *put_version(nrd_oai_question *q)
{
    nrd_str_puts(&q->out, "{\"version\":\"" NRD_VERSION "\"}");
    return NULL;
}

/* Named as in a GGUF file, where clients look for the context's length. */
static void put_model_info(nrd_str *o, const nrd_oai_model *m)
{
    nrd_str_printf(o, ",\"model_info\":{\"tokenizer.vocab_size\":%d", (int)nrd_tokenizer_vocab_size(m->tokenizer));
    if (m->family[0]) {
        nrd_str_puts(o, ",\"general.architecture\":");
        nrd_json_put_cstr(o, m->family);
        nrd_str_printf(o, ",\"%s.context_length\":%lld", m->family, (long long)m->context_length);
    }
    if (m->n_parameters > 0) {
        nrd_str_printf(o, ",\"general.parameter_count\":%lld", (long long)m->n_parameters);
    }
    nrd_str_putc(o, '}');
}

/* Its template writes reasoning, or leaves it to the model. */
static bool thinks(const nrd_oai_model *m)
{
    const char *template = m->chat ? nrd_tokenizer_chat_template(m->tokenizer) : NULL;
    return m->is_harmony || m->has_channels || (template && (strstr(template, "<think>") || strstr(template, "enable_thinking") ||
                                          strstr(template, "reasoning_content")));
}

static nrd_error *put_model(nrd_oai_question *q)
{
    const nrd_json *root = nrd_json_root(q->doc), *name = nrd_json_get(root, "model");
    nrd_oai_model *m = NULL;
    nrd_fim_tokens marks;
    nrd_str *o = &q->out;

    NRD_TRY(nrd_oai_ollama_find(q->o, NULL, name ? name : nrd_json_get(root, "name"), &m));
    nrd_str_puts(o, "{\"modelfile\":\"\",\"template\":\"\",\"license\":\"\",\"parameters\":");
    nrd_str text = {0};
    nrd_str_printf(&text, "temperature %.7g\ntop_k %d\ntop_p %.7g\nmin_p %.7g\nrepeat_penalty %.7g", m->sampling.temperature,
                   m->sampling.top_k, m->sampling.top_p, m->sampling.min_p, m->sampling.repetition_penalty);
    nrd_json_put_string(o, nrd_str_cstr(&text), text.len);
    nrd_error *err = nrd_str_error(&text);
    nrd_str_fini(&text);
    nrd_str_puts(o, ",\"modified_at\":");
    nrd_oai_ollama_put_time(o, q->o->created);
    nrd_str_puts(o, ",\"details\":");
    put_details(o, m);
    put_model_info(o, m);
    nrd_str_printf(o, ",\"capabilities\":[\"completion\"%s%s%s%s%s]}", m->chat && nrd_chat_takes_tools(m->chat) ? ",\"tools\"" : "",
                   thinks(m) ? ",\"thinking\"" : "", nrd_oai_takes_pictures(m) ? ",\"vision\"" : "",
                   nrd_tokenizer_fim(m->tokenizer, &marks) ? ",\"insert\"" : "", m->pooling ? ",\"embedding\"" : "");
    nrd_oai_model_unref(m);
    return err;
}

void nrd_oai_on_ollama_tags(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    nrd_oai_ask(user, req, NULL, put_tags);
}

void nrd_oai_on_ollama_ps(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    nrd_oai_ask(user, req, NULL, put_running);
}

void nrd_oai_on_ollama_version(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    nrd_oai_ask(user, req, NULL, put_version);
}

void nrd_oai_on_ollama_show(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    nrd_oai_ask(user, req, NULL, put_model);
}

void nrd_oai_on_ollama_order(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    char *extra = NULL;
    (void)route;
    if (nrd_oai_admit(user, req, false, &extra)) {
        nrd_oai_fail(req,
                     nrd_errorf(NRD_ERR_UNSUPPORTED, "Models of this server are not made, copied or sent on by its clients; /api/pull "
                                                     "brings one from the hub"),
                     extra);
        free(extra);
    }
}
