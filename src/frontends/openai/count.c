/* SPDX-License-Identifier: Apache-2.0
 * How many tokens the prompt of a request has, in several APIs' forms.
 * Source: Anthropic's reference (count tokens), OpenAI's (input token counts). */
#include "frontends/openai/internal.h"

/* A picture, and frames of a video that are seen at once, are one token of the prompt, which the model makes as many as it needs. */
static long long tokens_of(const nrd_oai_request *r)
{
    const long long more = r->model->picture_tokens > 1 ? r->model->picture_tokens - 1 : 0;
    const long long at_once = r->model->videos.frames > 0 ? r->model->videos.frames : 1;
    return (long long)r->prompts[0].n + ((long long)r->n_images + (r->n_frames + at_once - 1) / at_once) * more;
}

/* The prompt is made as for an answer, so that the number is what usage would say; it may be more where the sizes of
 * pictures decide how many tokens they become. */
static nrd_error *count(nrd_oai_question *q, const nrd_oai_form *form, const char *before)
{
    nrd_oai_request *r = calloc(1, sizeof *r);
    if (!r) {
        return nrd_error_no_memory();
    }
    r->o = q->o;
    r->form = form;
    r->chat = r->only_counts = true;
    r->key = nrd_oai_key(q->o, q->req);
    r->doc = q->doc;
    q->doc = NULL;
    const nrd_json *name = nrd_json_get(nrd_json_root(r->doc), "model");
    nrd_error *err = nrd_json_is(name, NRD_JSON_STRING) ? nrd_oai_find_asked(q->o, q->req, name->str, &r->model) : NULL;
    err = err ? err : nrd_oai_read_form(r, &q->req->claim);
    if (!err) {
        nrd_str_printf(&q->out, "{%s\"input_tokens\":%lld}", before, tokens_of(r));
    }
    nrd_oai_request_free(r);
    return err;
}

static nrd_error *count_messages(nrd_oai_question *q)
{
    return count(q, &nrd_oai_form_messages, "");
}

static nrd_error *count_chat(nrd_oai_question *q)
{
    return count(q, &nrd_oai_form_chat, "\"object\":\"response.input_tokens\",");
}

static nrd_error *count_responses(nrd_oai_question *q)
{
    return count(q, &nrd_oai_form_responses, "\"object\":\"response.input_tokens\",");
}

void nrd_oai_on_count_tokens(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    nrd_oai_ask(user, req, NULL, count_messages);
}

void nrd_oai_on_count_chat(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    nrd_oai_ask(user, req, NULL, count_chat);
}

void nrd_oai_on_count_responses(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    nrd_oai_ask(user, req, NULL, count_responses);
}
