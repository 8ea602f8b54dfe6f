/* SPDX-License-Identifier: Apache-2.0
 * Where a server has several models: a request waits until the one that its body names is loaded, before
 * anything else looks at it. No worker waits with it. Ollama's requests may say how long their model stays,
 * and one without a prompt only loads it, or lets it go.
 * Source: Ollama's API reference (load and unload a model, keep_alive). */
#include "frontends/openai/internal.h"

#include "base/duration.h"
#include "frontends/http/lease.h"

#include <string.h>
#include <time.h>

typedef struct gate {
    nrd_openai *o;
    nrd_http_request *req; /* shares */
    char *extra;           /* owned until it goes on, as doc */
    nrd_json_doc *doc;
    nrd_oai_what what;
    nrd_oai_go *go;
    nrd_error *err; /* of reading the body */
    nrd_switch_model *model;
    bool only_loads;
} gate;

static void gate_free(gate *g)
{
    nrd_json_doc_free(g->doc);
    nrd_http_request_unref(g->req);
    free(g->extra);
    free(g);
}

/* Takes err, and g. */
static void refuse(gate *g, nrd_error *err)
{
    nrd_oai_fail(g->req, err, g->extra);
    gate_free(g);
}

/* Takes g. */
static void go_on(gate *g)
{
    g->go(g->o, g->req, g->extra, g->doc, &g->what);
    g->extra = NULL;
    g->doc = NULL;
    gate_free(g);
}

static bool is_ollama(const nrd_http_request *req)
{
    return nrd_oai_form_of(req) == &nrd_oai_form_ollama_chat; /* all of /api */
}

/* ---- Ollama ---- */

/* "5m", 300, -1; absent: the server's. */
static nrd_error *read_keep(const nrd_json *root, uint64_t *out)
{
    const nrd_json *v = nrd_json_get(root, "keep_alive");
    *out = NRD_SWITCH_DEFAULT;
    if (!nrd_oai_given(v)) {
        return NULL;
    }
    if (nrd_json_is_number(v)) {
        *out = nrd_duration_of(nrd_json_num(v, 0));
        return NULL;
    }
    return v->type == NRD_JSON_STRING && nrd_parse_duration(v->str, out)
               ? NULL
               : nrd_oai_errorf(NRD_ERR_INVALID_ARG, "keep_alive", "must be a number of seconds or a time such as \"5m\"; "
                                "0 lets the model go at once, -1 keeps it");
}

static bool is_empty(const nrd_json *v)
{
    return !nrd_oai_given(v) || ((v->type == NRD_JSON_STRING || v->type == NRD_JSON_ARRAY) && v->n == 0);
}

/* Nothing is to be said. */
static bool only_loads(const gate *g)
{
    const nrd_json *root = nrd_json_root(g->doc);
    const nrd_oai_form *form = g->what.form;
    return (form == &nrd_oai_form_ollama_chat && is_empty(nrd_json_get(root, "messages"))) ||
           (form == &nrd_oai_form_ollama_generate && is_empty(nrd_json_get(root, "prompt")) &&
            is_empty(nrd_json_get(root, "suffix")) && is_empty(nrd_json_get(root, "images")));
}

/* Takes g. */
static void reply_loaded(gate *g, const char *reason)
{
    const char *said = g->what.form == &nrd_oai_form_ollama_chat ? "\"message\":{\"role\":\"assistant\",\"content\":\"\"}"
                                                                  : "\"response\":\"\"";
    nrd_str out = {0};
    nrd_str_puts(&out, "{\"model\":");
    nrd_json_put_cstr(&out, nrd_switch_name(g->model));
    nrd_str_puts(&out, ",\"created_at\":");
    nrd_oai_ollama_put_time(&out, (int64_t)time(NULL));
    nrd_str_printf(&out, ",%s,\"done\":true,\"done_reason\":\"%s\"}\n", said, reason);
    nrd_http_reply_str(g->req, 200, "application/json", g->extra, &out);
    nrd_str_fini(&out);
    gate_free(g);
}

/* ---- the way through ---- */

static void leased(void *user, nrd_http_request *req, nrd_error *err)
{
    gate *g = user;
    (void)req;
    if (err) {
        refuse(g, err);
    } else if (g->only_loads) {
        reply_loaded(g, "load");
    } else {
        go_on(g);
    }
}

static nrd_switch_model *wanted(const gate *g)
{
    const nrd_json *name = nrd_json_get(nrd_json_root(g->doc), "model");
    nrd_switcher *s = g->o->api->front->switcher;
    if (!nrd_oai_given(name)) {
        return nrd_switcher_only(s);
    }
    return nrd_json_is(name, NRD_JSON_STRING) ? nrd_oai_switch_asked(g->o, g->req, name->str) : NULL;
}

/* Takes g. */
static void ask(gate *g)
{
    nrd_switcher *s = g->o->api->front->switcher;
    uint64_t keep = NRD_SWITCH_DEFAULT;
    nrd_error *err = g->err;

    g->err = NULL;
    g->model = err ? NULL : wanted(g);
    if (!err && !g->model) {
        go_on(g); /* whoever reads it says what is wrong */
        return;
    }
    if (!err && is_ollama(g->req)) {
        err = read_keep(nrd_json_root(g->doc), &keep);
        g->only_loads = only_loads(g);
    }
    if (err) {
        refuse(g, err);
    } else if (g->only_loads && keep == 0) {
        err = nrd_switcher_drop(s, g->model);
        if (err) {
            refuse(g, err);
        } else {
            reply_loaded(g, "unload");
        }
    } else {
        nrd_http_lease(s, g->req, g->model, keep, leased, g);
    }
}

/* On the loop or on a worker. */
static void read_gate(void *arg)
{
    gate *g = arg;
    g->err = nrd_oai_body(g->req, &g->doc);
}

/* Back on the loop. */
static void have_read(void *arg, bool ran)
{
    gate *g = arg;
    if (!ran && !g->err) {
        g->err = nrd_errorf(NRD_ERR_UNAVAILABLE, "the server is shutting down");
    }
    ask(g);
}

void nrd_oai_pass(nrd_openai *o, nrd_http_request *req, char *extra, nrd_oai_what what, nrd_oai_go *go)
{
    if (!o->api->front->switcher || nrd_oai_only_reads(req)) {
        go(o, req, extra, NULL, &what);
        return;
    }
    gate *g = calloc(1, sizeof *g);
    if (!g) {
        nrd_oai_fail(req, nrd_error_no_memory(), extra);
        free(extra);
        return;
    }
    *g = (gate){.o = o, .req = req, .extra = extra, .what = what, .go = go};
    nrd_http_request_ref(req);
    if (req->body_n <= OAI_SHORT_BODY) {
        read_gate(g);
        ask(g);
        return;
    }
    nrd_error *err = nrd_http_work(o->api->front->workers, req, read_gate, have_read, g);
    if (err) { /* else it is the worker's */
        refuse(g, err);
    }
}
