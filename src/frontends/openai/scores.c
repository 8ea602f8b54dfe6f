/* SPDX-License-Identifier: Apache-2.0
 * How well texts go together. POST /v1/rerank, /rerank and /v2/rerank {query, documents, top_n}, as Jina's and Cohere's
 * clients ask and vLLM answers; {query, texts} there, as Hugging Face's text-embeddings-inference has it; /v1/score and
 * /score {text_1, text_2}, as vLLM has it.
 *
 * A reranker reads each pair as one input. Any other model gives each text a vector, and the score is the cosine. */
#include "frontends/openai/pooled.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef enum { FORM_SCORE, FORM_RERANK, FORM_TEXTS } score_form;

typedef struct score_request {
    nrd_pooled base;
    score_form form;
    const nrd_json *first, *second; /* one or more texts; borrow from the body */
    const char *first_field, *second_field; /* where they stand in the body; constants */
    size_t n_first, n_second;
    const nrd_json *task;  /* what documents are searched for, in words; NULL: not said */
    bool by_cosine, plain; /* plain: without the model's function */
    bool with_text;        /* the answer repeats the documents */
    size_t top;            /* how many the answer has */
    float *scores;         /* [n_second] */
    size_t *order;         /* [n_second], the best first */
} score_request;

static score_request *of(nrd_pooled *r)
{
    return (score_request *)(void *)r;
}

/* ---- the body ---- */

/* A document's text: itself, or the member of an object; NULL: neither. */
static const nrd_json *text_of(const nrd_json *v)
{
    const nrd_json *t = nrd_json_is(v, NRD_JSON_OBJECT) ? nrd_json_get(v, "text") : v;
    return nrd_json_is(t, NRD_JSON_STRING) ? t : NULL;
}

/* One text, or a list of them. */
static nrd_error *read_texts(const nrd_json *v, const char *field, size_t *n)
{
    const bool list = nrd_json_is(v, NRD_JSON_ARRAY);

    *n = list ? v->n : 1;
    if (!v || *n == 0 || *n > OAI_MAX_INPUTS) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, field, "must be a text or a list of 1 to %d texts", OAI_MAX_INPUTS);
    }
    for (size_t i = 0; i < *n; i++) {
        if (!text_of(list ? &v->child[i] : v)) {
            return nrd_oai_errorf(NRD_ERR_INVALID_ARG, field, "element %zu must be a text, or an object whose \"text\" is "
                                  "one", i);
        }
    }
    return NULL;
}

static const nrd_json *element(const nrd_json *v, size_t i)
{
    return text_of(v->type == NRD_JSON_ARRAY ? &v->child[v->n == 1 ? 0 : i] : v);
}

/* The two sides of a score, under any of the names that vLLM takes. */
static nrd_error *read_sides(score_request *r, const nrd_json *root)
{
    static const char *const names[][2] = {
        {"text_1", "text_2"}, {"queries", "documents"}, {"queries", "items"}, {"data_1", "data_2"}};
    size_t k = 0;

    while (k < 3 && !(nrd_oai_given(nrd_json_get(root, names[k][0])) && nrd_oai_given(nrd_json_get(root, names[k][1])))) {
        k++;
    }
    k = nrd_oai_given(nrd_json_get(root, names[k][0])) ? k : 0; /* errors name the usual fields */
    r->first = nrd_json_get(root, r->first_field = names[k][0]);
    r->second = nrd_json_get(root, r->second_field = names[k][1]);
    NRD_TRY(read_texts(r->first, names[k][0], &r->n_first));
    NRD_TRY(read_texts(r->second, names[k][1], &r->n_second));
    if (r->n_first != 1 && r->n_first != r->n_second) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, names[k][0], "has %zu texts, and %s %zu: must be one text, or as many",
                              r->n_first, names[k][1], r->n_second);
    }
    r->top = r->n_second;
    return NULL;
}

static nrd_error *read_query(score_request *r, const nrd_json *root, const char *documents)
{
    r->first = nrd_json_get(root, r->first_field = "query");
    r->second = nrd_json_get(root, r->second_field = documents);
    if (!text_of(r->first)) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "query", "must be a text");
    }
    r->n_first = 1;
    return read_texts(r->second, documents, &r->n_second);
}

static nrd_error *read_rerank(score_request *r, const nrd_json *root)
{
    const nrd_json *top = nrd_json_get(root, "top_n");

    NRD_TRY(read_query(r, root, "documents"));
    r->with_text = true;
    NRD_TRY(nrd_oai_get_bool(root, "return_documents", &r->with_text));
    const int64_t n = nrd_oai_given(top) ? nrd_json_int(top, -1) : 0;
    if (n < 0 || (nrd_oai_given(top) && top->type != NRD_JSON_INT)) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "top_n", "must be a whole number from 0 (all)");
    }
    r->top = n > 0 && (uint64_t)n < r->n_second ? (size_t)n : r->n_second;
    return NULL;
}

/* text-embeddings-inference: sigmoid unless raw_scores. */
static nrd_error *read_text_list(score_request *r, const nrd_json *root)
{
    NRD_TRY(read_query(r, root, "texts"));
    r->form = FORM_TEXTS;
    r->top = r->n_second;
    NRD_TRY(nrd_oai_get_bool(root, "return_text", &r->with_text));
    return nrd_oai_get_bool(root, "raw_scores", &r->plain);
}

static nrd_error *read_form(score_request *r, const nrd_json *root)
{
    bool use = true;

    if (r->form == FORM_RERANK && nrd_oai_given(nrd_json_get(root, "texts")) &&
        !nrd_oai_given(nrd_json_get(root, "documents"))) {
        return read_text_list(r, root);
    }
    NRD_TRY(nrd_oai_get_bool(root, "use_activation", &use));
    r->plain = !use;
    return r->form == FORM_RERANK ? read_rerank(r, root) : read_sides(r, root);
}

static nrd_error *read_task(score_request *r, const nrd_json *root)
{
    const nrd_json *v = nrd_json_get(root, "instruction");

    r->task = nrd_oai_given(v) ? v : NULL;
    return !r->task || v->type == NRD_JSON_STRING ? NULL
                                                  : nrd_oai_errorf(NRD_ERR_INVALID_ARG, "instruction", "must be a text");
}

static nrd_error *check_model(score_request *r)
{
    nrd_pooled *p = &r->base;
    const nrd_oai_model *m = p->model;
    const size_t n_labels = nrd_json_len(m->labels);

    r->by_cosine = !m->labels;
    p->pooling = r->by_cosine ? m->pooling : "labels";
    if (m->labels && n_labels != 1) {
        return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "model", "'%.80s' has %zu labels, and a score is of one; ask /classify",
                              m->name, n_labels);
    }
    if (!p->pooling) {
        return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "model", "'%.80s' gives no embeddings (embedding_pooling is none)",
                              m->name);
    }
    return NULL;
}

/* How many tokens of a document count; 0: all. */
static nrd_error *read_document_limit(const nrd_json *root, const char *field, size_t *out)
{
    const nrd_json *v = nrd_json_get(root, field);

    *out = 0;
    if (!nrd_oai_given(v)) {
        return NULL;
    }
    if (v->type != NRD_JSON_INT || v->i < 0 || v->i > INT32_MAX) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, field, "must be a number of tokens from 0 (all)");
    }
    *out = (size_t)v->i;
    return NULL;
}

typedef struct limits {
    size_t input, query, document; /* tokens, 0: all */
} limits;

/* truncate of text-embeddings-inference is truncate_prompt_tokens -1. */
static nrd_error *read_limits(score_request *r, const nrd_json *root, limits *l)
{
    bool cut = false;

    NRD_TRY(nrd_pooled_limit(&r->base, root, &l->input));
    NRD_TRY(read_document_limit(root, "max_tokens_per_query", &l->query));
    NRD_TRY(read_document_limit(root, "max_tokens_per_doc", &l->document));
    if (r->form == FORM_TEXTS) {
        NRD_TRY(nrd_oai_get_bool(root, "truncate", &cut));
        l->input = cut && l->input == 0 ? (size_t)r->base.model->max_tokens : l->input;
    }
    return NULL;
}

static nrd_error *encode(const nrd_pooled *r, const nrd_json *text, const char *field, size_t limit, nrd_ids *out)
{
    NRD_TRY(nrd_pooled_encode(r, text, field, out));
    out->n = limit > 0 && out->n > limit ? limit : out->n;
    return NULL;
}

/* Each pair as the prompt of a reranker that says yes or no. */
static nrd_error *add_prompts(score_request *r, const limits *l)
{
    nrd_pooled *p = &r->base;

    if (l->query > 0 || l->document > 0) {
        return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, l->query > 0 ? "max_tokens_per_query" : "max_tokens_per_doc",
                              "this model is asked with a prompt; truncate_prompt_tokens cuts its document");
    }
    NRD_TRY(nrd_pooled_reserve(p, r->n_second, r->second_field));
    for (size_t i = 0; i < r->n_second; i++) {
        const nrd_rerank_texts t = {element(r->first, i), element(r->second, i), r->task};
        NRD_TRY(nrd_pooled_frame_prompt(p, &t, l->input, &p->inputs[i]));
    }
    return NULL;
}

/* Each pair as one input. A query that meets many documents is tokenized once. */
static nrd_error *add_pairs(score_request *r, const limits *l)
{
    nrd_pooled *p = &r->base;
    nrd_ids a = {0}, b = {0};
    nrd_error *err = nrd_pooled_reserve(p, r->n_second, r->second_field);

    for (size_t i = 0; i < r->n_second && !err; i++) {
        if (i == 0 || r->n_first > 1) {
            a.n = 0;
            err = encode(p, element(r->first, i), r->first_field, l->query, &a);
        }
        b.n = 0;
        err = err ? err : encode(p, element(r->second, i), r->second_field, l->document, &b);
        err = err ? err : nrd_pooled_frame(p, &a, &b, l->input, &p->inputs[i]);
    }
    nrd_ids_fini(&a);
    nrd_ids_fini(&b);
    return err;
}

/* Each text as an input: the first side's, then the second's. */
static nrd_error *add_apart(score_request *r, const limits *l)
{
    nrd_pooled *p = &r->base;
    nrd_ids ids = {0};
    nrd_error *err = nrd_pooled_reserve(p, r->n_first + r->n_second, r->second_field);

    for (size_t i = 0; i < r->n_first + r->n_second && !err; i++) {
        const bool first = i < r->n_first;
        ids.n = 0;
        err = first ? encode(p, element(r->first, i), r->first_field, l->query, &ids)
                    : encode(p, element(r->second, i - r->n_first), r->second_field, l->document, &ids);
        err = err ? err : nrd_pooled_frame(p, &ids, NULL, l->input, &p->inputs[i]);
        if (!err && p->inputs[i].ids.n == 0) {
            err = nrd_oai_errorf(NRD_ERR_INVALID_ARG, first ? r->first_field : r->second_field, "a text without a token");
        }
    }
    nrd_ids_fini(&ids);
    return err;
}

static nrd_error *read_body(nrd_pooled *p, const nrd_json *root)
{
    static const char *const known_score[] = {"model", "text_1", "text_2", "queries", "documents", "items", "data_1",
                                              "data_2", "user", "truncate_prompt_tokens", "max_tokens_per_query",
                                              "max_tokens_per_doc", "use_activation", "instruction", NULL};
    static const char *const known_rerank[] = {"model", "query", "documents", "top_n", "return_documents", "user",
                                               "truncate_prompt_tokens", "max_tokens_per_query", "max_tokens_per_doc",
                                               "use_activation", "instruction", NULL};
    static const char *const known_texts[] = {"model", "query", "texts", "raw_scores", "return_text", "truncate",
                                              "truncate_prompt_tokens", "max_tokens_per_query", "max_tokens_per_doc", "instruction", NULL};
    score_request *r = of(p);
    limits l = {0};

    NRD_TRY(read_form(r, root));
    NRD_TRY(read_task(r, root));
    NRD_TRY(nrd_oai_find_only(p->o, p->req, nrd_json_get(root, "model"), &p->model));
    NRD_TRY(check_model(r));
    NRD_TRY(read_limits(r, root, &l));
    nrd_pooled_note_unknown(p, root, r->form == FORM_SCORE    ? known_score
                                     : r->form == FORM_RERANK ? known_rerank
                                                              : known_texts);
    r->scores = calloc(r->n_second, sizeof *r->scores);
    r->order = calloc(r->n_second, sizeof *r->order);
    if (!r->scores || !r->order) {
        return nrd_error_no_memory();
    }
    return r->by_cosine            ? add_apart(r, &l)
           : *p->model->prompt     ? add_prompts(r, &l)
                                   : add_pairs(r, &l);
}

static nrd_error *read_score(nrd_pooled *p, const nrd_json *root)
{
    of(p)->form = FORM_SCORE;
    return read_body(p, root);
}

static nrd_error *read_ranking(nrd_pooled *p, const nrd_json *root)
{
    of(p)->form = FORM_RERANK;
    return read_body(p, root);
}

/* ---- the answer ---- */

static nrd_error *keep(nrd_pooled_input *in)
{
    const score_request *r = of(in->r);

    if (r->by_cosine) {
        return NULL;
    }
    if (in->n != 1) {
        return nrd_errorf(NRD_ERR_INTERNAL, "The model gave %zu numbers for a score.", in->n);
    }
    if (!r->plain) {
        nrd_pooled_apply(r->form == FORM_TEXTS ? "sigmoid" : in->r->model->pair_function, in->vector, 1);
    }
    return NULL;
}

static float cosine(const nrd_pooled_input *a, const nrd_pooled_input *b)
{
    double dot = 0, aa = 0, bb = 0;

    for (size_t i = 0; i < a->n && i < b->n; i++) {
        dot += (double)a->vector[i] * (double)b->vector[i];
        aa += (double)a->vector[i] * (double)a->vector[i];
        bb += (double)b->vector[i] * (double)b->vector[i];
    }
    return aa > 0 && bb > 0 ? (float)(dot / sqrt(aa * bb)) : 0;
}

static int by_score(const void *a, const void *b, void *scores)
{
    const size_t i = *(const size_t *)a, k = *(const size_t *)b;
    const float x = ((const float *)scores)[i], y = ((const float *)scores)[k];
    return x > y ? -1 : x < y ? 1 : (i > k) - (i < k);
}

static void find_scores(score_request *r)
{
    const nrd_pooled_input *in = r->base.inputs;

    for (size_t i = 0; i < r->n_second; i++) {
        r->scores[i] = r->by_cosine ? cosine(&in[r->n_first > 1 ? i : 0], &in[r->n_first + i]) : in[i].vector[0];
        r->order[i] = i;
    }
    if (r->form != FORM_SCORE) {
        qsort_r(r->order, r->n_second, sizeof *r->order, by_score, r->scores);
    }
}

static void put_text(const score_request *r, nrd_str *o, size_t i)
{
    const nrd_json *text = element(r->second, i);
    nrd_json_put_string(o, text->str, text->n);
}

static void put_result(const score_request *r, nrd_str *o, size_t i)
{
    nrd_str_printf(o, "{\"index\":%zu", i);
    if (r->form == FORM_SCORE) {
        nrd_str_puts(o, ",\"object\":\"score\"");
    }
    if (r->with_text) {
        nrd_str_puts(o, r->form == FORM_TEXTS ? ",\"text\":" : ",\"document\":{\"text\":");
        put_text(r, o, i);
        nrd_str_puts(o, r->form == FORM_TEXTS ? "" : "}");
    }
    nrd_str_puts(o, r->form == FORM_RERANK ? ",\"relevance_score\":" : ",\"score\":");
    nrd_json_put_float(o, r->scores[i]);
    nrd_str_putc(o, '}');
}

static void put(nrd_pooled *p)
{
    score_request *r = of(p);
    nrd_str *o = &p->out;

    find_scores(r);
    if (r->form != FORM_TEXTS) {
        nrd_str_printf(o, "{\"id\":\"%s-%" PRIx64 "\",\"model\":", r->form == FORM_SCORE ? "score" : "rerank", p->begun_ns);
        nrd_json_put_cstr(o, p->model->name);
        nrd_str_putc(o, ',');
        nrd_pooled_put_usage(p, o);
    }
    if (r->form == FORM_SCORE) {
        nrd_str_printf(o, ",\"object\":\"list\",\"created\":%lld,\"data\":[", (long long)time(NULL));
    } else {
        nrd_str_puts(o, r->form == FORM_RERANK ? ",\"results\":[" : "[");
    }
    for (size_t i = 0; i < r->top; i++) {
        nrd_str_puts(o, i ? "," : "");
        put_result(r, o, r->order[i]);
    }
    nrd_str_puts(o, r->form == FORM_TEXTS ? "]" : "]}");
}

static size_t answer_bytes(const nrd_pooled *p)
{
    const score_request *r = (const score_request *)(const void *)p;
    size_t bytes = r->n_second * 96;

    for (size_t i = 0; i < r->n_second && r->with_text; i++) {
        bytes += element(r->second, i)->n * 6; /* as escaped as can be */
    }
    return bytes;
}

static void fini(nrd_pooled *p)
{
    free(of(p)->scores);
    free(of(p)->order);
}

const nrd_pooled_kind nrd_pooled_rerank = {sizeof(score_request), read_ranking, keep, answer_bytes, put, fini};
const nrd_pooled_kind nrd_pooled_score = {sizeof(score_request), read_score, keep, answer_bytes, put, fini};

void nrd_oai_on_rerank(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    nrd_pooled_run(user, req, &nrd_pooled_rerank);
}

void nrd_oai_on_score(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    nrd_pooled_run(user, req, &nrd_pooled_score);
}
