/* SPDX-License-Identifier: Apache-2.0
 * GET /v1/models and /v1/models/NAME. */
#include "frontends/openai/internal.h"

static void put_sampling(nrd_str *out, const nrd_oai_model *m)
{
    nrd_str_printf(out,
                   ",\"sampling\":{\"temperature\":%.7g,\"top_p\":%.7g,\"min_p\":%.7g,\"top_k\":%d,"
                   "\"repetition_penalty\":%.7g}",
                   m->sampling.temperature, m->sampling.top_p, m->sampling.min_p, m->sampling.top_k,
                   m->sampling.repetition_penalty);
}

/* Context length as vLLM's list has it, modalities as llama.cpp's and OpenRouter's; then what the file would say. */
static void put_facts(nrd_str *out, const nrd_oai_model *m)
{
    nrd_str_printf(out, ",\"architecture\":{\"input_modalities\":[\"text\"%s%s],\"output_modalities\":[\"text\"]",
                   nrd_oai_takes_pictures(m) ? ",\"image\"" : "", nrd_oai_takes_videos(m) ? ",\"video\"" : "");
    if (m->family[0]) {
        nrd_str_puts(out, ",\"family\":");
        nrd_json_put_cstr(out, m->family);
    }
    if (m->type[0]) {
        nrd_str_puts(out, ",\"type\":");
        nrd_json_put_cstr(out, m->type);
    }
    if (m->n_parameters > 0) {
        nrd_str_printf(out, ",\"parameters\":%lld", (long long)m->n_parameters);
    }
    nrd_str_putc(out, '}');
    if (m->context_length > 0) {
        nrd_str_printf(out, ",\"max_model_len\":%lld", (long long)m->context_length);
    }
    nrd_str_printf(out, ",\"chat\":%s", nrd_tokenizer_chat_template(m->tokenizer) ? "true" : "false");
}

static void put_head(const nrd_openai *o, nrd_str *out, const char *name)
{
    nrd_str_puts(out, "{\"id\":");
    nrd_json_put_cstr(out, name);
    nrd_str_printf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"nereid\"", (long long)o->created);
}

static void put_model(const nrd_openai *o, nrd_str *out, const nrd_oai_model *m)
{
    put_head(o, out, m->name);
    put_sampling(out, m);
    put_facts(out, m);
    if (m->adapter) {
        nrd_str_puts(out, ",\"parent\":");
        nrd_json_put_cstr(out, m->parent);
        nrd_str_puts(out, ",\"root\":");
        nrd_json_put_cstr(out, m->adapter_dir);
    }
    nrd_str_putc(out, '}');
}

/* One of several, which may not be loaded; "status" as llama.cpp's router has it. */
static void put_switched(nrd_openai *o, nrd_str *out, nrd_switch_model *m)
{
    nrd_switcher *s = o->api->front->switcher;
    nrd_oai_model *known = NULL;
    nrd_switch_info info;
    nrd_puller *puller = o->api->front->puller;
    const bool is_pulled = puller && nrd_puller_has(puller, nrd_switch_name(m));

    nrd_switcher_info(s, m, &info);
    put_head(o, out, nrd_switch_name(m));
    if (info.state == NRD_SWITCH_READY) {
        nrd_error_free(nrd_oai_find_model(o, nrd_switch_name(m), &known)); /* it may have gone since */
    }
    if (known) {
        put_sampling(out, known);
        put_facts(out, known);
        nrd_oai_model_unref(known);
    }
    nrd_str_printf(out, ",\"status\":{\"value\":\"%s\",\"pinned\":%s,\"pulled\":%s,\"memory_bytes\":%llu,\"requests\":%u,\"loads\":%llu}}",
                   info.asleep                          ? "sleeping"
                   : info.state == NRD_SWITCH_READY     ? "loaded"
                   : info.state == NRD_SWITCH_LOADING   ? "loading"
                                                        : "unloaded",
                   info.pinned ? "true" : "false", is_pulled ? "true" : "false", (unsigned long long)info.bytes, info.n_leases,
                   (unsigned long long)info.n_loads);
}

static nrd_error *put_models(nrd_oai_question *q)
{
    nrd_switcher *s = q->o->api->front->switcher;
    nrd_switch_model *next = NULL;
    nrd_oai_names list = {.n = 0};

    nrd_str_puts(&q->out, "{\"object\":\"list\",\"data\":[");
    for (nrd_switch_model *m = s ? nrd_switcher_next(s, NULL) : NULL; m; m = next) {
        next = nrd_switcher_next(s, m);
        put_switched(q->o, &q->out, m);
        nrd_str_puts(&q->out, next ? "," : "");
    }
    if (!s) {
        NRD_TRY(nrd_oai_offered(q->o, &list));
    }
    for (size_t i = 0; i < list.n; i++) {
        nrd_str_puts(&q->out, i ? "," : "");
        put_model(q->o, &q->out, list.v[i]);
    }
    nrd_str_puts(&q->out, "]}");
    nrd_oai_names_fini(&list);
    return NULL;
}

void nrd_oai_on_models(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    nrd_oai_ask(user, req, NULL, put_models);
}

static nrd_error *put_one(nrd_oai_question *q)
{
    nrd_switch_model *several = nrd_oai_switch_model(q->o, q->model);
    nrd_oai_model *m = NULL;

    if (several) {
        put_switched(q->o, &q->out, several);
        return NULL;
    }
    NRD_TRY(nrd_oai_find_model(q->o, q->model, &m));
    put_model(q->o, &q->out, m);
    nrd_oai_model_unref(m);
    return NULL;
}

void nrd_oai_on_model(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_oai_ask(user, req, route->model, put_one);
}
