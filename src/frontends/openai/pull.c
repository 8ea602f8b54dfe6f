/* SPDX-License-Identifier: Apache-2.0
 * Ollama's /api/pull and /api/delete: models of the hub come into a server that has several, and go out of it. The work is
 * done by common/puller.h; a request watches it.
 * Source: Ollama's API reference (pull a model, delete a model). */
#include "frontends/openai/internal.h"

#include <string.h>

enum { MAX_PENDING = 1 << 20 }; /* bytes of lines for a loop that does not come to them; more are left out */

typedef struct pull {
    nrd_pull_watcher watcher; /* first: a pointer to it is one to the pull */
    nrd_http_task task;
    nrd_openai *o;
    nrd_http_request *req; /* shares */
    char *extra;           /* owned */
    char *name;            /* of the model, owned; NULL: not known yet */
    bool deletes;          /* else it is a pull */
    bool stream, begun;    /* of the loop's thread */
    pthread_mutex_t mu;
    /* guarded by mu */
    nrd_str lines;
    bool posted, ended;
    nrd_error *err;
} pull;

static void pull_free(pull *p)
{
    nrd_http_request_unref(p->req);
    nrd_str_fini(&p->lines);
    nrd_error_free(p->err);
    pthread_mutex_destroy(&p->mu);
    free(p->extra);
    free(p->name);
    free(p);
}

static void post_locked(pull *p)
{
    if (!p->posted) {
        p->posted = true;
        nrd_http_post(p->req->loop, &p->task);
    }
}

static void on_tell(nrd_pull_watcher *w, const char *line, size_t n)
{
    pull *p = (pull *)(void *)w;
    if (!p->stream) {
        return;
    }
    pthread_mutex_lock(&p->mu);
    if (p->lines.len < MAX_PENDING) {
        nrd_str_append(&p->lines, line, n);
        nrd_str_putc(&p->lines, '\n');
        post_locked(p);
    }
    pthread_mutex_unlock(&p->mu);
}

static void on_end(nrd_pull_watcher *w, nrd_error *err)
{
    pull *p = (pull *)(void *)w;
    pthread_mutex_lock(&p->mu);
    p->err = err;
    p->ended = true;
    post_locked(p);
    pthread_mutex_unlock(&p->mu);
}

/* The client has gone. */
static void on_gone(nrd_http_request *req, void *arg)
{
    pull *p = arg;
    (void)req;
    if (!nrd_puller_leave(p->o->api->front->puller, &p->watcher)) {
        return; /* the end is on its way */
    }
    pthread_mutex_lock(&p->mu); /* nobody but this thread has it now */
    const bool posted = p->posted;
    p->ended = true;
    pthread_mutex_unlock(&p->mu);
    if (!posted) {
        pull_free(p);
    }
}

static void begin_stream(pull *p)
{
    if (!p->begun) {
        p->begun = true;
        nrd_http_stream_begin(p->req, 200, "application/x-ndjson", p->extra);
    }
}

/* What was known of it would be taken for true a while longer. */
static void forget(const pull *p)
{
    nrd_str latest = {0};
    nrd_str_printf(&latest, "%s:latest", p->name);
    nrd_oai_forget_model(p->o, p->name);
    nrd_oai_forget_model(p->o, nrd_str_cstr(&latest));
    nrd_str_fini(&latest);
}

/* Takes err. */
static void finish(pull *p, nrd_error *err)
{
    nrd_str out = {0};
    if (p->name) {
        forget(p);
    }
    if (err && !p->begun) {
        nrd_oai_fail(p->req, err, p->extra);
        return;
    }
    nrd_str_puts(&out, err ? "{\"error\":" : "{\"status\":\"success\"}");
    if (err) {
        nrd_json_put_cstr(&out, nrd_error_message(err));
        nrd_str_putc(&out, '}');
        nrd_error_free(err);
    }
    if (p->stream) {
        begin_stream(p);
        nrd_str_putc(&out, '\n');
        nrd_http_stream_put(p->req, &out);
        nrd_http_stream_end(p->req);
    } else {
        nrd_http_reply_str(p->req, 200, "application/json", p->extra, &out);
    }
    nrd_str_fini(&out);
}

/* On the loop: what came since the last time. */
static void run(nrd_http_task *task)
{
    pull *p = (pull *)(void *)((char *)(void *)task - offsetof(pull, task));

    pthread_mutex_lock(&p->mu);
    nrd_str lines = p->lines;
    nrd_error *err = p->err;
    const bool ended = p->ended;
    p->lines = (nrd_str){0};
    p->err = NULL;
    p->posted = false;
    pthread_mutex_unlock(&p->mu);
    if (lines.len > 0 && !nrd_http_is_gone(p->req)) {
        begin_stream(p);
        nrd_http_stream_put(p->req, &lines);
    }
    nrd_str_fini(&lines);
    if (!ended) {
        nrd_error_free(err);
        return;
    }
    p->req->on_gone = NULL;
    if (nrd_http_is_gone(p->req)) {
        nrd_error_free(err);
    } else {
        finish(p, err);
    }
    pull_free(p);
}

/* ---- what is asked ---- */

/* The hub's name without what its clients put before and behind it. */
static nrd_error *read_name(const nrd_json *root, const char **out, size_t *out_n)
{
    static const char *const before[] = {"hf.co/", "huggingface.co/", "hf:"};
    static const char latest[] = ":latest";
    const nrd_json *v = nrd_json_get(root, "model");

    v = nrd_oai_given(v) ? v : nrd_json_get(root, "name");
    if (!nrd_json_is(v, NRD_JSON_STRING)) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "model", "must be the name of a model");
    }
    const char *name = v->str;
    for (size_t i = 0; i < sizeof before / sizeof *before; i++) {
        name += nrd_str_has_prefix(name, before[i]) ? strlen(before[i]) : 0;
    }
    *out = name;
    *out_n = strlen(name) - (nrd_str_has_suffix(name, latest) ? sizeof latest - 1 : 0);
    return NULL;
}

static nrd_error *check_puller(const nrd_openai *o)
{
    if (!o->api->front->switcher) {
        return nrd_oai_needs_several();
    }
    return o->api->front->puller ? NULL
                                 : nrd_errorf(NRD_ERR_UNSUPPORTED, "Clients of this server may not pull or delete models "
                                                                   "(--allow-pull, or no nereid serve)");
}

/* Of a pull: it begins. *out_now: nothing is to be waited for, as who started the server chose the model. */
static nrd_error *begin_pull(pull *p, const char *name, bool *out_now)
{
    nrd_puller *puller = p->o->api->front->puller;
    const nrd_switch_model *m = nrd_oai_switch_model(p->o, name);

    if (!nrd_puller_is_name(name)) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "model", "`%.200s` is no model of the hub: ORG/NAME[:QUANT], at most 200 "
                              "characters, such as Qwen/Qwen3-0.6B", name);
    }
    p->name = strdup(m ? nrd_switch_name(m) : name);
    if (!p->name) {
        return nrd_error_no_memory();
    }
    *out_now = m && !nrd_puller_has(puller, p->name);
    return *out_now ? NULL : nrd_puller_pull(puller, p->name, &p->watcher);
}

static nrd_error *begin_delete(pull *p, const char *name)
{
    nrd_switch_model *m = nrd_oai_switch_model(p->o, name);
    if (!m) {
        return nrd_oai_no_such_model(p->o, name);
    }
    p->name = strdup(nrd_switch_name(m));
    return p->name ? nrd_puller_remove(p->o->api->front->puller, p->name, &p->watcher) : nrd_error_no_memory();
}

static nrd_error *begin(pull *p, bool *out_now)
{
    const char *name = NULL;
    size_t n = 0;
    nrd_json_doc *doc = NULL;

    NRD_TRY(check_puller(p->o));
    if (p->req->body_n > OAI_SHORT_BODY) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the body is longer than %d bytes", OAI_SHORT_BODY);
    }
    NRD_TRY(nrd_oai_body(p->req, &doc));
    nrd_error *err = read_name(nrd_json_root(doc), &name, &n);
    if (!err && !p->deletes) {
        p->stream = true;
        err = nrd_oai_get_bool(nrd_json_root(doc), "stream", &p->stream);
    }
    char *bare = err ? NULL : strndup(name, n);
    err = err || bare ? err : nrd_error_no_memory();
    err = err ? err : p->deletes ? begin_delete(p, bare) : begin_pull(p, bare, out_now);
    free(bare);
    nrd_json_doc_free(doc);
    return err;
}

/* Takes extra. */
static void order(nrd_openai *o, nrd_http_request *req, char *extra, bool deletes)
{
    pull *p = calloc(1, sizeof *p);
    bool now = false;

    if (!p) {
        nrd_oai_fail(req, nrd_error_no_memory(), extra);
        free(extra);
        return;
    }
    p->watcher.tell = on_tell;
    p->watcher.end = on_end;
    p->task.run = run;
    p->o = o;
    p->req = req;
    p->extra = extra;
    p->deletes = deletes;
    pthread_mutex_init(&p->mu, NULL);
    nrd_http_request_ref(req);
    nrd_error *err = begin(p, &now);
    if (err || now) {
        finish(p, err);
        pull_free(p);
        return;
    }
    req->on_gone = on_gone;
    req->gone_arg = p;
}

void nrd_oai_on_pull(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    char *extra = NULL;
    (void)route;
    if (nrd_oai_admit(user, req, false, &extra)) {
        order(user, req, extra, false);
    }
}

void nrd_oai_on_delete(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    char *extra = NULL;
    (void)route;
    if (nrd_oai_admit_delete(user, req, &extra)) {
        order(user, req, extra, true);
    }
}
