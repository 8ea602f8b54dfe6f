/* SPDX-License-Identifier: Apache-2.0
 * POST /classify {model, input, use_activation}, in the form of vLLM: for each text, or pair of texts, how likely each
 * of the model's labels is. */
#include "frontends/openai/pooled.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

typedef struct classify_request {
    nrd_pooled base;
    bool plain; /* numbers as they are, without the model's function */
} classify_request;

static classify_request *of(nrd_pooled *r)
{
    return (classify_request *)(void *)r;
}

/* ---- the body ---- */

static nrd_error *bad_input(void)
{
    return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "input", "must be a string, {text, text_pair}, or a list of token ids, or a "
                                                   "list of any of these");
}

static bool is_pair(const nrd_json *v)
{
    return nrd_json_is(nrd_json_get(v, "text"), NRD_JSON_STRING) &&
           (nrd_json_is(nrd_json_get(v, "text_pair"), NRD_JSON_STRING) || !nrd_oai_given(nrd_json_get(v, "text_pair")));
}

static nrd_error *add_texts(nrd_pooled *r, const nrd_json *text, const nrd_json *pair, size_t limit, nrd_pooled_input *in)
{
    nrd_ids a = {0}, b = {0};
    nrd_error *err = nrd_pooled_encode(r, text, "input", &a);
    if (!err && pair) {
        err = nrd_pooled_encode(r, pair, "input", &b);
    }
    err = err ? err : nrd_pooled_frame(r, &a, pair ? &b : NULL, limit, in);
    nrd_ids_fini(&a);
    nrd_ids_fini(&b);
    return err;
}

static nrd_error *add_input(nrd_pooled *r, const nrd_json *v, size_t limit, size_t i)
{
    nrd_pooled_input *in = &r->inputs[i];
    if (v->type == NRD_JSON_STRING) {
        NRD_TRY(add_texts(r, v, NULL, limit, in));
    } else if (v->type == NRD_JSON_OBJECT && is_pair(v)) {
        const nrd_json *pair = nrd_json_get(v, "text_pair");
        NRD_TRY(add_texts(r, nrd_json_get(v, "text"), nrd_oai_given(pair) ? pair : NULL, limit, in));
    } else if (v->type == NRD_JSON_ARRAY) {
        NRD_TRY(nrd_pooled_take_ids(r, v, "input", &in->ids));
        in->ids.n = limit > 0 && in->ids.n > limit ? limit : in->ids.n;
    } else {
        return bad_input();
    }
    return in->ids.n > 0 ? NULL : nrd_oai_errorf(NRD_ERR_INVALID_ARG, "input", "element %zu has no token", i);
}

static nrd_error *read_body(nrd_pooled *r, const nrd_json *root)
{
    static const char *const known[] = {"model", "input", "user", "truncate_prompt_tokens", "use_activation", NULL};
    const nrd_json *v = nrd_json_get(root, "input");
    bool use = true, list = nrd_json_is(v, NRD_JSON_ARRAY) && v->n > 0 && !nrd_json_is_number(&v->child[0]);
    size_t limit = 0;

    NRD_TRY(nrd_oai_find_only(r->o, r->req, nrd_json_get(root, "model"), &r->model));
    if (!r->model->labels) {
        return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "model", "'%.80s' has no labels: it is no classifier", r->model->name);
    }
    r->pooling = "labels";
    NRD_TRY(nrd_oai_get_bool(root, "use_activation", &use));
    of(r)->plain = !use;
    NRD_TRY(nrd_pooled_limit(r, root, &limit));
    nrd_pooled_note_unknown(r, root, known);
    if (!v || (!list && v->type == NRD_JSON_ARRAY && v->n == 0)) {
        return bad_input();
    }
    NRD_TRY(nrd_pooled_reserve(r, list ? v->n : 1, "input"));
    for (size_t i = 0; i < r->n_inputs; i++) {
        NRD_TRY(add_input(r, list ? &v->child[i] : v, limit, i));
    }
    return NULL;
}

/* ---- the answer ---- */

static nrd_error *keep(nrd_pooled_input *in)
{
    const nrd_pooled *r = in->r;
    if (in->n != nrd_json_len(r->model->labels)) {
        return nrd_errorf(NRD_ERR_INTERNAL, "The model gave %zu numbers for %zu labels.", in->n,
                          nrd_json_len(r->model->labels));
    }
    if (!of(in->r)->plain) {
        nrd_pooled_apply(r->model->function, in->vector, in->n);
    }
    return NULL;
}

static void put_one(const nrd_pooled *r, nrd_str *o, size_t i)
{
    const nrd_pooled_input *in = &r->inputs[i];
    size_t best = 0;

    for (size_t k = 1; k < in->n; k++) {
        best = in->vector[k] > in->vector[best] ? k : best;
    }
    nrd_str_printf(o, "%s{\"index\":%zu,\"label\":", i ? "," : "", i);
    nrd_json_put_cstr(o, nrd_json_str(nrd_json_at(r->model->labels, best), ""));
    nrd_str_puts(o, ",\"probs\":[");
    for (size_t k = 0; k < in->n; k++) {
        nrd_str_puts(o, k ? "," : "");
        nrd_json_put_float(o, in->vector[k]);
    }
    nrd_str_printf(o, "],\"num_classes\":%zu}", in->n);
}

static void put(nrd_pooled *r)
{
    nrd_str *o = &r->out;
    nrd_str_printf(o, "{\"id\":\"classify-%" PRIx64 "\",\"object\":\"list\",\"created\":%lld,\"model\":", r->begun_ns,
                   (long long)time(NULL));
    nrd_json_put_cstr(o, r->model->name);
    nrd_str_puts(o, ",\"data\":[");
    for (size_t i = 0; i < r->n_inputs; i++) {
        put_one(r, o, i);
    }
    nrd_str_puts(o, "],");
    nrd_pooled_put_usage(r, o);
    nrd_str_putc(o, '}');
}

static size_t answer_bytes(const nrd_pooled *r)
{
    size_t bytes = 0;
    for (size_t i = 0; i < r->n_inputs; i++) {
        bytes += 64 + r->inputs[i].n * 12;
    }
    return bytes;
}

const nrd_pooled_kind nrd_pooled_labels = {sizeof(classify_request), read_body, keep, answer_bytes, put, NULL};

void nrd_oai_on_classify(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    nrd_pooled_run(user, req, &nrd_pooled_labels);
}
