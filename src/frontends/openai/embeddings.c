/* SPDX-License-Identifier: Apache-2.0
 * POST /v1/embeddings {model, input, encoding_format, dimensions}, and Ollama's /api/embed and older /api/embeddings: one request to the model for
 * each input, whose answer is a vector; vectors leave with length 1. */
#include "frontends/openai/pooled.h"

#include "base/base64.h"
#include "base/clock.h"

#include <math.h>
#include <string.h>

typedef struct embed_request {
    nrd_pooled base;
    bool base64, ollama;
    const char *field;  /* where the texts are in the body */
    int64_t dimensions; /* 0: not said */
} embed_request;

static embed_request *of(nrd_pooled *r)
{
    return (embed_request *)(void *)r;
}

/* ---- the body ---- */

static nrd_error *bad_input(const char *field)
{
    return nrd_oai_errorf(NRD_ERR_INVALID_ARG, field, "must be a string, a list of strings, a list of token "
                                           "ids or a list of such lists");
}

static nrd_error *add_text(nrd_pooled *r, const nrd_json *v, size_t limit, nrd_pooled_input *in)
{
    nrd_ids ids = {0};
    nrd_error *err = nrd_pooled_encode(r, v, of(r)->field, &ids);
    err = err ? err : nrd_pooled_frame(r, &ids, NULL, limit, in);
    nrd_ids_fini(&ids);
    return err;
}

static nrd_error *add_input(nrd_pooled *r, const nrd_json *v, size_t limit, size_t i)
{
    nrd_pooled_input *in = &r->inputs[i];
    if (v->type == NRD_JSON_STRING) {
        NRD_TRY(add_text(r, v, limit, in));
    } else if (v->type == NRD_JSON_ARRAY) {
        NRD_TRY(nrd_pooled_take_ids(r, v, of(r)->field, &in->ids));
        in->ids.n = limit > 0 && in->ids.n > limit ? limit : in->ids.n;
    } else {
        return bad_input(of(r)->field);
    }
    return in->ids.n > 0 ? NULL : nrd_oai_errorf(NRD_ERR_INVALID_ARG, of(r)->field, "element %zu has no token", i);
}

static nrd_error *read_inputs(nrd_pooled *r, const nrd_json *v, size_t limit)
{
    bool list = nrd_json_is(v, NRD_JSON_ARRAY) && v->n > 0 && !nrd_json_is_number(&v->child[0]);
    size_t n = list ? v->n : 1;
    if (!v || (v->type != NRD_JSON_STRING && v->type != NRD_JSON_ARRAY)) {
        return bad_input(of(r)->field);
    }
    if (v->type == NRD_JSON_ARRAY && v->n == 0) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, of(r)->field, "is an empty list");
    }
    NRD_TRY(nrd_pooled_reserve(r, n, of(r)->field));
    for (size_t i = 0; i < n; i++) {
        NRD_TRY(add_input(r, list ? &v->child[i] : v, limit, i));
    }
    return NULL;
}

static const char *const known[] = {"model", "input", "encoding_format", "dimensions", "user", "truncate_prompt_tokens",
                                    NULL};
/* without effect: nothing is cut, and models stay */
static const char *const known_ollama[] = {"model", "input", "prompt", "encoding_format", "dimensions", "user",
                                           "truncate", "options", "keep_alive", NULL};

static nrd_error *read_body(nrd_pooled *base, const nrd_json *root)
{
    embed_request *r = of(base);
    const nrd_json *name = nrd_json_get(root, "model"), *d = nrd_json_get(root, "dimensions");
    const nrd_json *format = nrd_json_get(root, "encoding_format");
    size_t limit = 0;

    r->field = r->field ? r->field : "input";
    NRD_TRY(r->ollama ? nrd_oai_ollama_find(base->o, base->req, name, &base->model)
                      : nrd_oai_find_only(base->o, base->req, name, &base->model));
    base->pooling = base->model->pooling;
    if (!base->pooling) {
        return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "model", "'%.80s' gives no embeddings (embedding_pooling "
                          "is none)", base->model->name);
    }
    if (format && format->type != NRD_JSON_NULL) {
        const char *s = nrd_json_str(format, "");
        r->base64 = !strcmp(s, "base64");
        if (!r->base64 && strcmp(s, "float") != 0) {
            return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "encoding_format", "must be float or base64");
        }
    }
    if (d && d->type != NRD_JSON_NULL) {
        r->dimensions = nrd_json_int(d, 0);
        if (d->type != NRD_JSON_INT || r->dimensions < 1) {
            return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "dimensions", "must be a whole number from 1");
        }
    }
    NRD_TRY(r->ollama ? NULL : nrd_pooled_limit(base, root, &limit));
    nrd_pooled_note_unknown(base, root, r->ollama ? known_ollama : known);
    return read_inputs(base, nrd_json_get(root, r->field), limit);
}

static nrd_error *read_ollama(nrd_pooled *r, const nrd_json *root)
{
    of(r)->ollama = true;
    return read_body(r, root);
}

static nrd_error *read_ollama_one(nrd_pooled *r, const nrd_json *root)
{
    of(r)->field = "prompt";
    if (!nrd_json_is(nrd_json_get(root, "prompt"), NRD_JSON_STRING)) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "prompt", "must be a string");
    }
    return read_ollama(r, root);
}

/* ---- the answer ---- */

static void put_vector(bool base64, nrd_str *out, const nrd_pooled_input *in)
{
    if (base64) {
        nrd_str_putc(out, '"');
        nrd_base64_encode((const char *)in->vector, in->n * sizeof *in->vector, out);
        nrd_str_putc(out, '"');
        return;
    }
    for (size_t i = 0; i < in->n; i++) {
        nrd_str_putc(out, i ? ',' : '[');
        nrd_json_put_float(out, in->vector[i]);
    }
    nrd_str_putc(out, ']');
}

/* As Ollama's /api/embed has it. */
static void put_ollama(nrd_pooled *r)
{
    nrd_str *out = &r->out;
    nrd_str_puts(out, "{\"model\":");
    nrd_json_put_cstr(out, r->model->name);
    nrd_str_puts(out, ",\"embeddings\":[");
    for (size_t i = 0; i < r->n_inputs; i++) {
        nrd_str_puts(out, i ? "," : "");
        put_vector(of(r)->base64, out, &r->inputs[i]);
    }
    nrd_str_printf(out, "],\"total_duration\":%llu,\"load_duration\":0,\"prompt_eval_count\":%zu}",
                   (unsigned long long)(nrd_now_ns() - r->begun_ns), nrd_pooled_n_tokens(r));
}

/* … and /api/embeddings. */
static void put_ollama_one(nrd_pooled *r)
{
    nrd_str_puts(&r->out, "{\"embedding\":");
    put_vector(false, &r->out, &r->inputs[0]);
    nrd_str_putc(&r->out, '}');
}

static void put(nrd_pooled *r)
{
    nrd_str *out = &r->out;
    nrd_str_puts(out, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < r->n_inputs; i++) {
        nrd_str_printf(out, "%s{\"object\":\"embedding\",\"index\":%zu,\"embedding\":", i ? "," : "", i);
        put_vector(of(r)->base64, out, &r->inputs[i]);
        nrd_str_putc(out, '}');
    }
    nrd_str_puts(out, "],\"model\":");
    nrd_json_put_cstr(out, r->model->name);
    nrd_str_putc(out, ',');
    nrd_pooled_put_usage(r, out);
    nrd_str_putc(out, '}');
}

static size_t answer_bytes(const nrd_pooled *r)
{
    size_t bytes = 0;
    for (size_t i = 0; i < r->n_inputs; i++) {
        bytes += r->inputs[i].n * 12; /* a number's digits; less in base64 */
    }
    return bytes;
}

/* ---- the model ---- */

/* Length 1 (a vector of zeros stays). */
static nrd_error *keep(nrd_pooled_input *in)
{
    const embed_request *r = of(in->r);
    double sum = 0;
    if (r->dimensions > 0 && (size_t)r->dimensions != in->n) {
        return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "dimensions", "this model's embeddings have %zu and were not "
                          "trained to be cut", in->n);
    }
    for (size_t i = 0; i < in->n; i++) {
        sum += (double)in->vector[i] * (double)in->vector[i];
    }
    for (size_t i = 0; i < in->n && sum > 0; i++) {
        in->vector[i] = (float)((double)in->vector[i] / sqrt(sum));
    }
    return NULL;
}

const nrd_pooled_kind nrd_pooled_embeddings = {sizeof(embed_request), read_body, keep, answer_bytes, put, NULL};
const nrd_pooled_kind nrd_pooled_ollama = {sizeof(embed_request), read_ollama, keep, answer_bytes, put_ollama, NULL};

static const nrd_pooled_kind ollama_one = {sizeof(embed_request), read_ollama_one, keep, answer_bytes, put_ollama_one, NULL};

void nrd_oai_on_ollama_embeddings(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    nrd_pooled_run(user, req, &ollama_one);
}

void nrd_oai_on_embeddings(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    nrd_pooled_run(user, req,
                   nrd_oai_form_of(req) == &nrd_oai_form_ollama_chat ? &nrd_pooled_ollama : &nrd_pooled_embeddings);
}
