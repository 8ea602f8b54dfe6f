/* SPDX-License-Identifier: Apache-2.0
 * GET /v1/models and /v1/models/NAME. */
#include "frontends/openai/internal.h"

static void put_model(const nrd_openai *o, nrd_str *out, const nrd_oai_model *m)
{
    nrd_str_puts(out, "{\"id\":");
    nrd_json_put_cstr(out, m->name);
    nrd_str_printf(out,
                   ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"nereid\",\"sampling\":"
                   "{\"temperature\":%.7g,\"top_p\":%.7g,\"min_p\":%.7g,\"top_k\":%d,"
                   "\"repetition_penalty\":%.7g}",
                   (long long)o->created, m->sampling.temperature, m->sampling.top_p,
                   m->sampling.min_p, m->sampling.top_k, m->sampling.repetition_penalty);
    if (m->adapter) {
        nrd_str_puts(out, ",\"parent\":");
        nrd_json_put_cstr(out, m->parent);
        nrd_str_puts(out, ",\"root\":");
        nrd_json_put_cstr(out, m->adapter_dir);
    }
    nrd_str_putc(out, '}');
}

static nrd_error *put_models(nrd_oai_question *q)
{
    nrd_oai_names list = {.n = 0};
    NRD_TRY(nrd_oai_offered(q->o, &list));
    nrd_str_puts(&q->out, "{\"object\":\"list\",\"data\":[");
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
    nrd_oai_model *m = NULL;
    NRD_TRY(nrd_oai_find_model(q->o, q->model, &m));
    put_model(q->o, &q->out, m);
    nrd_oai_model_unref(m);
    return NULL;
}

void nrd_oai_on_model(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_oai_ask(user, req, route->model, put_one);
}
