/* Which models of the repository can be talked to, and their tokenizers. */
#include "frontends/openai/internal.h"

#include "base/clock.h"

#include <string.h>

#define RECHECK_NS 1000000000ull /* a reloaded model may have another tokenizer */

static nrd_error *from_message(TRITONSERVER_Error *e, TRITONSERVER_Message *m, nrd_json_doc **out)
{
    const char *text;
    size_t n;
    NRD_TRY(nrd_from_triton(e));
    nrd_error *err = nrd_from_triton(TRITONSERVER_MessageSerializeToJson(m, &text, &n));
    if (!err) {
        err = nrd_json_parse(out, text, n, NULL);
    }
    nrd_error_free(nrd_from_triton(TRITONSERVER_MessageDelete(m)));
    return err;
}

static nrd_error *get_config(nrd_openai *o, const char *name, nrd_json_doc **out)
{
    TRITONSERVER_Message *m = NULL;
    *out = NULL;
    TRITONSERVER_Error *e = TRITONSERVER_ServerModelConfig(o->api->server, name, -1, 1, &m);
    return from_message(e, m, out);
}

/* A parameter of a configuration; NULL when it is not set or still a ${placeholder}. */
static const char *parameter(const nrd_json *config, const char *name)
{
    const nrd_json *p = nrd_json_get(nrd_json_get(config, "parameters"), name);
    const char *s = nrd_json_get_str(p, "string_value", "");
    return s[0] && strncmp(s, "${", 2) != 0 ? s : NULL;
}

static bool is_llm(const nrd_json *config)
{
    return !strcmp(nrd_json_get_str(config, "backend", ""), "tensorrtllm");
}

static void set(char **field, const char *value)
{
    if (value) {
        free(*field);
        *field = nrd_xstrdup(value);
    }
}

/* How prompts become vectors: the parameter embedding_pooling, else as decoders usually do. */
static nrd_error *read_pooling(oai_model *m, const nrd_json *config)
{
    const char *s = parameter(config, "embedding_pooling");
    m->pooling = !s || !strcmp(s, "last") ? "last" : !strcmp(s, "mean") ? "mean" : NULL;
    if (s && !m->pooling && strcmp(s, "none") != 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "The parameter embedding_pooling of the model `%s` is '%.40s'; expected last, "
                          "mean or none.", m->llm, s);
    }
    return NULL;
}

/* The model that generates and the tokenizer's folder behind a name: the model itself, or an
 * ensemble's steps. */
static nrd_error *look_up(nrd_openai *o, const char *name, oai_model *m)
{
    nrd_json_doc *doc = NULL, *step_doc = NULL;
    nrd_error *err = get_config(o, name, &doc);
    if (err && nrd_error_get_code(err) != NRD_ERR_UNAVAILABLE) {
        nrd_error_free(err);
        return nrd_errorf(NRD_ERR_NOT_FOUND, "The model `%s` does not exist.", name);
    }
    NRD_TRY(err);
    const nrd_json *config = nrd_json_root(doc);
    const nrd_json *steps = nrd_json_get(nrd_json_get(config, "ensemble_scheduling"), "step");
    if (is_llm(config)) {
        set(&m->llm, name);
        set(&m->tokenizer_dir, parameter(config, "tokenizer_dir"));
        err = read_pooling(m, config);
        m->decoupled = nrd_json_get_bool(nrd_json_get(config, "model_transaction_policy"), "decoupled",
                                         false);
    }
    for (size_t i = 0; i < nrd_json_len(steps) && !err; i++) {
        const char *step = nrd_json_get_str(&steps->child[i], "model_name", "");
        err = get_config(o, step, &step_doc);
        const nrd_json *c = nrd_json_root(step_doc);
        if (!err && is_llm(c)) {
            set(&m->llm, step);
            err = read_pooling(m, c);
            m->decoupled = nrd_json_get_bool(nrd_json_get(c, "model_transaction_policy"), "decoupled",
                                             false);
        }
        if (!err) {
            set(&m->tokenizer_dir, parameter(c, "tokenizer_dir"));
        }
        nrd_json_doc_free(step_doc);
        step_doc = NULL;
    }
    if (!err && m->llm && !m->tokenizer_dir) { /* the model that the templates pair it with */
        nrd_error_free(get_config(o, "preprocessing", &step_doc));
        set(&m->tokenizer_dir, step_doc ? parameter(nrd_json_root(step_doc), "tokenizer_dir") : NULL);
        nrd_json_doc_free(step_doc);
    }
    nrd_json_doc_free(doc);
    if (!err && (!m->llm || !m->tokenizer_dir)) {
        err = nrd_errorf(NRD_ERR_NOT_FOUND, "The model `%s` is no language model with a tokenizer.",
                         name);
    }
    return err;
}

void nrd_oai_model_unref(oai_model *m)
{
    if (m && atomic_fetch_sub(&m->refs, 1) == 1) {
        nrd_text_close(m->text);
        free(m->chat_error);
        free(m->name);
        free(m->llm);
        free(m->tokenizer_dir);
        free(m);
    }
}

static nrd_error *open_model(const nrd_openai *o, oai_model *m)
{
    NRD_TRY(nrd_text_open(&m->text, m->tokenizer_dir));
    m->tokenizer = nrd_text_tokenizer(m->text);
    m->sampling = !strcmp(o->api->options->generation_config, "none")
                      ? NRD_SAMPLING_BARE
                      : nrd_tokenizer_sampling(m->tokenizer);
    nrd_error *err = nrd_text_chat(m->text, &m->chat);
    if (err) { /* completions still work */
        m->chat_error = nrd_xstrdup(nrd_error_message(err));
        nrd_error_free(err);
    }
    return NULL;
}

static nrd_error *check_ready(nrd_openai *o, const char *llm)
{
    bool ready = false;
    NRD_TRY(nrd_from_triton(TRITONSERVER_ServerModelIsReady(o->api->server, llm, -1, &ready)));
    return ready ? NULL : nrd_errorf(NRD_ERR_UNAVAILABLE, "The model `%s` is not ready.", llm);
}

static void forget(nrd_openai *o, oai_model *m)
{
    oai_model **p = &o->models;
    while (*p != m) {
        p = &(*p)->next;
    }
    *p = m->next;
    nrd_oai_model_unref(m);
}

static bool is_same(const oai_model *a, const oai_model *b)
{
    return a->text == b->text && !strcmp(a->llm, b->llm) && !strcmp(a->tokenizer_dir, b->tokenizer_dir);
}

/* Under the lock; the list's reference. */
static nrd_error *find(nrd_openai *o, const char *name, oai_model **out)
{
    oai_model *old = o->models, *m = NULL;
    nrd_error *err = NULL;
    uint64_t now = nrd_now_ns();

    while (old && strcmp(old->name, name) != 0) {
        old = old->next;
    }
    if (old && now - old->checked_ns < RECHECK_NS) {
        *out = old;
        return NULL;
    }
    NRD_NEW_GOTO(m, 1, err, fail);
    atomic_init(&m->refs, 1);
    m->name = nrd_xstrdup(name);
    NRD_TRY_GOTO(look_up(o, name, m), err, fail);
    NRD_TRY_GOTO(check_ready(o, m->llm), err, fail);
    NRD_TRY_GOTO(open_model(o, m), err, fail);
    if (old && is_same(old, m)) {
        old->checked_ns = now;
        old->decoupled = m->decoupled;
        old->pooling = m->pooling;
        nrd_oai_model_unref(m);
        *out = old;
        return NULL;
    }
    if (old) {
        forget(o, old);
    }
    m->checked_ns = now;
    m->next = o->models;
    o->models = m;
    *out = m;
    return NULL;

fail:
    nrd_oai_model_unref(m);
    return err;
}

nrd_error *nrd_oai_find_model(nrd_openai *o, const char *name, oai_model **out)
{
    pthread_mutex_lock(&o->mu);
    nrd_error *err = find(o, name, out);
    if (!err) {
        atomic_fetch_add(&(*out)->refs, 1);
    }
    pthread_mutex_unlock(&o->mu);
    return err;
}

void nrd_oai_free_models(nrd_openai *o)
{
    while (o->models) {
        forget(o, o->models);
    }
}

/* ---- /v1/models ---- */

static void put_model(const nrd_openai *o, nrd_str *out, const oai_model *m)
{
    nrd_str_puts(out, "{\"id\":");
    nrd_json_put_cstr(out, m->name);
    nrd_str_printf(out,
                   ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"nereid\",\"sampling\":"
                   "{\"temperature\":%.7g,\"top_p\":%.7g,\"min_p\":%.7g,\"top_k\":%d,"
                   "\"repetition_penalty\":%.7g}}",
                   (long long)o->created, m->sampling.temperature, m->sampling.top_p,
                   m->sampling.min_p, m->sampling.top_k, m->sampling.repetition_penalty);
}

void nrd_oai_on_models(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_openai *o = user;
    nrd_json_doc *doc = NULL;
    nrd_str out = {0};
    char *extra = NULL;
    TRITONSERVER_Message *message = NULL;
    bool first = true;

    (void)route;
    if (!nrd_oai_admit(o, req, false, &extra)) {
        return;
    }
    TRITONSERVER_Error *e =
        TRITONSERVER_ServerModelIndex(o->api->server, TRITONSERVER_INDEX_FLAG_READY, &message);
    nrd_error *err = from_message(e, message, &doc);
    if (err) {
        nrd_oai_fail(req, err, extra);
        free(extra);
        return;
    }
    nrd_str_puts(&out, "{\"object\":\"list\",\"data\":[");
    const nrd_json *list = nrd_json_root(doc);
    for (size_t i = 0; i < nrd_json_len(list); i++) {
        oai_model *m = NULL;
        err = nrd_oai_find_model(o, nrd_json_get_str(&list->child[i], "name", ""), &m);
        if (!err) {
            nrd_str_puts(&out, first ? "" : ",");
            put_model(o, &out, m);
            nrd_oai_model_unref(m);
            first = false;
        }
        nrd_error_free(err); /* not a model to talk to */
    }
    nrd_str_puts(&out, "]}");
    nrd_http_reply(req, 200, "application/json", extra, out.data, out.len);
    nrd_json_doc_free(doc);
    nrd_str_fini(&out);
    free(extra);
}

void nrd_oai_on_model(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_openai *o = user;
    oai_model *m = NULL;
    char *extra = NULL;
    nrd_str out = {0};

    if (!nrd_oai_admit(o, req, false, &extra)) {
        return;
    }
    nrd_error *err = nrd_oai_find_model(o, route->model, &m);
    if (err) {
        nrd_oai_fail(req, err, extra);
    } else {
        put_model(o, &out, m);
        nrd_oai_model_unref(m);
        nrd_http_reply(req, 200, "application/json", extra, out.data, out.len);
    }
    nrd_str_fini(&out);
    free(extra);
}
