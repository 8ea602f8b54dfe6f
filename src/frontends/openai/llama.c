/* SPDX-License-Identifier: Apache-2.0
 * llama.cpp's questions: what is served, how busy it is, what a template makes of messages.
 * Source: the reference of llama.cpp's server (props, slots, apply-template). */
#include "frontends/openai/internal.h"

#include <string.h>

void nrd_oai_on_llama_completion(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    nrd_oai_generate(user, req, &nrd_oai_form_llama);
}

void nrd_oai_on_llama_infill(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    nrd_oai_generate(user, req, &nrd_oai_form_infill);
}

static void put_token(nrd_str *o, const nrd_oai_model *m, const char *name, int32_t id)
{
    size_t n = 0;
    const char *s = id >= 0 ? nrd_tokenizer_token(m->tokenizer, id, &n) : NULL;
    nrd_str_printf(o, ",\"%s\":", name);
    nrd_json_put_string(o, s ? s : "", s ? n : 0);
}

static nrd_error *put_props(nrd_oai_question *q)
{
    nrd_oai_model *m = NULL;
    nrd_str *o = &q->out;

    NRD_TRY(nrd_oai_find_only(q->o, q->req, NULL, &m));
    const char *template = nrd_tokenizer_chat_template(m->tokenizer);
    nrd_str_puts(o, "{\"default_generation_settings\":{\"params\":{");
    nrd_oai_llama_put_settings(o, &m->sampling);
    nrd_str_puts(o, ",\"n_predict\":-1}");
    if (m->context_length > 0) {
        nrd_str_printf(o, ",\"n_ctx\":%lld", (long long)m->context_length);
    }
    nrd_str_printf(o, "},\"total_slots\":%lld,\"model_alias\":", (long long)m->max_batch);
    nrd_json_put_cstr(o, m->name);
    nrd_str_puts(o, ",\"chat_template\":");
    nrd_json_put_cstr(o, template ? template : "");
    nrd_str_printf(o, ",\"chat_template_caps\":{\"supports_tools\":%s},\"modalities\":{\"vision\":%s,\"audio\":false}",
                   m->chat && nrd_chat_takes_tools(m->chat) ? "true" : "false", nrd_oai_takes_pictures(m) ? "true" : "false");
    put_token(o, m, "bos_token", nrd_tokenizer_bos_id(m->tokenizer));
    put_token(o, m, "eos_token", nrd_tokenizer_eos_id(m->tokenizer));
    nrd_str_puts(o, ",\"build_info\":\"nereid-" NRD_VERSION "\",\"is_sleeping\":false}");
    nrd_oai_model_unref(m);
    return NULL;
}

/* Places of the batch: a request takes any, so the first ones stand for those in use. */
static nrd_error *put_slots(nrd_oai_question *q)
{
    const int running = atomic_load(&q->o->n_running);
    nrd_oai_model *m = NULL;

    NRD_TRY(nrd_oai_find_only(q->o, q->req, NULL, &m));
    const int64_t n = m->max_batch;
    nrd_oai_model_unref(m);
    nrd_str_putc(&q->out, '[');
    for (int64_t i = 0; i < n; i++) {
        nrd_str_printf(&q->out, "%s{\"id\":%lld,\"is_processing\":%s}", i ? "," : "", (long long)i, i < running ? "true" : "false");
    }
    nrd_str_putc(&q->out, ']');
    return NULL;
}

void nrd_oai_on_llama_props(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    nrd_oai_ask(user, req, NULL, put_props);
}

void nrd_oai_on_llama_slots(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    nrd_oai_ask(user, req, NULL, put_slots);
}

nrd_error *nrd_oai_question_prompt(nrd_oai_question *q, nrd_oai_model *m, nrd_str *out)
{
    nrd_oai_request *r = calloc(1, sizeof *r);
    if (!r) {
        return nrd_error_no_memory();
    }
    r->o = q->o;
    r->form = &nrd_oai_form_llama;
    r->chat = r->only_counts = true;
    r->model = m;
    nrd_error *err = nrd_oai_render(r, nrd_json_root(q->doc), out);
    r->model = NULL;
    nrd_oai_request_free(r);
    return err;
}

static nrd_error *apply(nrd_oai_question *q)
{
    nrd_oai_model *m = NULL;
    nrd_str text = {0};

    NRD_TRY(nrd_oai_find_only(q->o, q->req, nrd_json_get(nrd_json_root(q->doc), "model"), &m));
    nrd_error *err = nrd_oai_question_prompt(q, m, &text);
    nrd_str_puts(&q->out, "{\"prompt\":");
    nrd_json_put_string(&q->out, nrd_str_cstr(&text), text.len);
    nrd_str_putc(&q->out, '}');
    nrd_str_fini(&text);
    nrd_oai_model_unref(m);
    return err;
}

void nrd_oai_on_apply_template(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    nrd_oai_ask(user, req, NULL, apply);
}
