/* SPDX-License-Identifier: Apache-2.0
 * POST /v1/load_lora_adapter and /v1/unload_lora_adapter, with the bodies that vLLM's servers take.
 *
 * An adapter is loaded by a request for one token that names it and its folder: the model reads the folder,
 * and refuses what it cannot use. Then the name is in the list (adapter_list.c), and requests for it name the
 * same number and folder. A number is never used again, so that requests under way keep what they began with. */
#include "frontends/openai/internal.h"

#include "base/mem.h"
#include "nereid/llm_tensors.h"

#include <string.h>

enum { MAX_NAME = 256, MAX_PATH = 4096, MAX_ADAPTERS = 10000 };

/* One request to load. */
typedef struct load {
    nrd_openai *o;
    nrd_http_request *req; /* shares */
    nrd_oai_model *base;
    nrd_oai_adapter *adapter; /* until it is in the list */
    char *extra;
    nrd_json_doc *doc;
    nrd_error *err;
} load;

/* ---- loading ---- */

static void release(load *l)
{
    nrd_error_free(l->err);
    nrd_json_doc_free(l->doc);
    nrd_oai_model_unref(l->base);
    nrd_oai_adapter_free(l->adapter);
    nrd_http_request_unref(l->req);
    free(l->extra);
    free(l);
}

static void succeed(const load *l, const char *name)
{
    nrd_str out = {0};
    nrd_str_printf(&out, "Success: LoRA adapter '%s' added successfully.", name);
    if (!nrd_http_is_gone(l->req)) {
        nrd_http_reply(l->req, 200, "text/plain", l->extra, out.data, out.len);
    }
    nrd_str_fini(&out);
}

static void fail(load *l, nrd_error *err)
{
    if (nrd_http_is_gone(l->req)) {
        nrd_error_free(err);
    } else {
        nrd_oai_fail(l->req, err, l->extra);
    }
}

/* What the model says about a folder is about the client's lora_path. */
static nrd_error *about_path(nrd_error *err)
{
    nrd_error_code code = nrd_error_get_code(err);
    nrd_error *out = nrd_oai_errorf(code == NRD_ERR_NOT_FOUND ? NRD_ERR_INVALID_ARG : code, "lora_path", "%s",
                                    nrd_error_message(err));
    nrd_error_free(err);
    return out;
}

static nrd_error *already(const char *name)
{
    return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "lora_name", "The lora adapter '%.200s' has already been loaded.", name);
}

/* Into the list, if the name is still free. */
static nrd_error *keep(load *l)
{
    nrd_openai *o = l->o;
    nrd_error *err = NULL;
    char *name = strdup(l->adapter->name); /* what is in the list may be unloaded at once */

    if (!name) {
        return nrd_error_no_memory();
    }
    if (!nrd_oai_adapter_add(o, l->adapter)) {
        err = already(name);
    } else {
        l->adapter = NULL;
        nrd_oai_forget_model(o, name); /* that it was not found */
        succeed(l, name);
    }
    free(name);
    return err;
}

static void on_response(nrd_http_call *call, TRITONSERVER_InferenceResponse *response, bool final)
{
    load *l = call->user;
    if (response && !l->err) {
        l->err = nrd_from_triton(TRITONSERVER_InferenceResponseError(response));
    }
    nrd_infer_response_delete(response);
    if (!final) {
        return;
    }
    nrd_error *err = l->err ? about_path(l->err) : keep(l);
    l->err = NULL;
    if (err) {
        fail(l, err);
    }
    release(l);
}

/* The shortest request: one token after one token. */
static nrd_error *fill(nrd_http_call *call, const load *l)
{
    static const char *const outputs[] = {"output_ids", "sequence_length"};
    const int64_t shape[] = {1, 1};
    const int32_t id = 0;
    const nrd_oai_model m = {.adapter = l->adapter->number, .adapter_dir = l->adapter->dir, .adapter_loads = true};

    NRD_TRY(nrd_oai_add(call, "input_ids", TRITONSERVER_TYPE_INT32, shape, 2, &id, sizeof id));
    NRD_TRY(nrd_oai_add_i32(call, &m, "input_lengths", 1));
    NRD_TRY(nrd_oai_add_i32(call, &m, "request_output_len", 1));
    NRD_TRY(nrd_oai_add_adapter(call, &m));
    for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; i++) {
        NRD_TRY(nrd_from_triton(
            TRITONSERVER_InferenceRequestAddRequestedOutput(call->infer.request, outputs[i])));
    }
    return nrd_http_forward_headers(call);
}

static nrd_error *start(load *l)
{
    nrd_http_call *call = NULL;
    NRD_TRY(nrd_http_call_new(&call, l->o->api, l->req, l->adapter->llm, -1));
    call->on_response = on_response;
    call->user = l;
    nrd_error *err = fill(call, l);
    err = err ? err : nrd_http_call_submit(call);
    if (err) {
        nrd_http_call_abandon(call);
    }
    return err;
}

/* A name stands in JSON, in URLs and on terminals. */
static nrd_error *check_text(const char *field, const char *s, size_t max)
{
    if (!s || !s[0] || strlen(s) > max) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, field, "Both 'lora_name' and 'lora_path' must be provided, of 1 to %d "
                              "and %d bytes.", MAX_NAME, MAX_PATH);
    }
    for (const char *p = s; *p; p++) {
        if ((unsigned char)*p < ' ' || *p == 0x7f) {
            return nrd_oai_errorf(NRD_ERR_INVALID_ARG, field, "has control characters");
        }
    }
    return NULL;
}

/* The model that the adapter is for: the one that is named, else the only one. */
static nrd_error *find_base(load *l, const char *name)
{
    nrd_oai_names list = {.n = 0};
    nrd_error *err = NULL;

    if (name) {
        return nrd_oai_find_model(l->o, name, &l->base);
    }
    NRD_TRY(nrd_oai_offered(l->o, &list));
    for (size_t i = 0; i < list.n && !err; i++) {
        if (list.v[i]->adapter) {
            continue;
        }
        if (l->base && strcmp(l->base->llm, list.v[i]->llm) != 0) {
            err = nrd_oai_errorf(NRD_ERR_INVALID_ARG, "base_model_name", "must name one of the server's models, which "
                                 "are several");
        } else if (!l->base) {
            l->base = list.v[i];
            atomic_fetch_add(&l->base->refs, 1);
        }
    }
    nrd_oai_names_fini(&list);
    return err || l->base ? err : nrd_errorf(NRD_ERR_UNAVAILABLE, "no language model is ready");
}

/* A name that a model or an adapter has cannot be given again. */
static nrd_error *check_free(load *l, const char *name)
{
    nrd_oai_model *m = NULL;
    nrd_error *err = nrd_oai_find_model(l->o, name, &m);
    bool is_adapter = m && m->adapter;
    nrd_oai_model_unref(m);
    if (!err) {
        return is_adapter ? already(name)
                          : nrd_oai_errorf(NRD_ERR_INVALID_ARG, "lora_name", "'%.200s' is the name of a model", name);
    }
    bool is_free = nrd_error_get_code(err) == NRD_ERR_NOT_FOUND;
    if (is_free) {
        nrd_error_free(err);
    }
    return is_free ? NULL : err;
}

static nrd_error *read_body(load *l)
{
    NRD_TRY(nrd_oai_body(l->req, &l->doc));
    const nrd_json *root = nrd_json_root(l->doc);
    const char *name = nrd_json_get_str(root, "lora_name", NULL), *dir = nrd_json_get_str(root, "lora_path", NULL);
    NRD_TRY(check_text("lora_name", name, MAX_NAME));
    NRD_TRY(check_text("lora_path", dir, MAX_PATH));
    NRD_TRY(check_free(l, name));
    NRD_TRY(find_base(l, nrd_json_get_str(root, "base_model_name", NULL)));
    l->adapter = calloc(1, sizeof *l->adapter);
    if (!l->adapter || !(l->adapter->name = strdup(name)) || !(l->adapter->dir = strdup(dir)) ||
        !(l->adapter->llm = strdup(l->base->llm))) {
        return nrd_error_no_memory();
    }
    size_t n_there = 0;
    uint64_t n = nrd_oai_adapter_turn(l->o, &n_there);
    if (n_there >= MAX_ADAPTERS) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "%d adapters are loaded, which is the most", MAX_ADAPTERS);
    }
    nrd_str key = {0};
    nrd_str_printf(&key, "%s\n%s\n%llu", name, dir, (unsigned long long)n);
    nrd_error *err = nrd_str_error(&key);
    l->adapter->number = nrd_llm_adapter_number(nrd_str_cstr(&key), key.len);
    nrd_str_fini(&key);
    return err;
}

static void work(void *arg)
{
    load *l = arg;
    l->err = read_body(l);
}

/* Back on the loop. */
static void begin(void *arg, bool ran)
{
    load *l = arg;
    nrd_error *err = l->err;
    l->err = NULL;
    if (!ran && !err) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "the server is shutting down");
    }
    err = err ? err : start(l);
    if (err) {
        fail(l, err);
        release(l);
    }
}

static bool allowed(nrd_openai *o, nrd_http_request *req, char **extra)
{
    if (!nrd_oai_admit(o, req, false, extra)) {
        return false;
    }
    if (o->api->front->switcher) {
        nrd_oai_fail(req, nrd_errorf(NRD_ERR_UNSUPPORTED, "Adapters are not loaded into models that come and go; serve "
                                     "the model alone, with --lora."), *extra);
        free(*extra);
        return false;
    }
    if (o->api->options->allow_lora_loading) {
        return true;
    }
    nrd_oai_fail(req, nrd_errorf(NRD_ERR_UNSUPPORTED, "Adapters are not loaded and unloaded while the server runs; "
                                 "--allow-lora-loading=true allows it."), *extra);
    free(*extra);
    return false;
}

void nrd_oai_on_load_adapter(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_openai *o = user;
    char *extra = NULL;

    (void)route;
    if (!allowed(o, req, &extra)) {
        return;
    }
    load *l = calloc(1, sizeof *l);
    if (!l) {
        nrd_oai_fail(req, nrd_error_no_memory(), extra);
        free(extra);
        return;
    }
    l->o = o;
    l->req = req;
    l->extra = extra;
    nrd_http_request_ref(req);
    nrd_error *err = nrd_http_work(o->api->front->workers, req, work, begin, l);
    if (err) {
        fail(l, err);
        release(l);
    }
}

/* ---- unloading ---- */

static nrd_error *unload(nrd_openai *o, const char *name)
{
    if (!nrd_oai_adapter_remove(o, name)) {
        return nrd_errorf(NRD_ERR_NOT_FOUND, "The lora adapter '%.200s' cannot be found.", name);
    }
    nrd_oai_forget_model(o, name);
    return NULL;
}

void nrd_oai_on_unload_adapter(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_openai *o = user;
    char *extra = NULL;
    nrd_json_doc *doc = NULL;
    nrd_str out = {0};

    (void)route;
    if (!allowed(o, req, &extra)) {
        return;
    }
    nrd_error *err = req->body_n > OAI_SHORT_BODY
                         ? nrd_errorf(NRD_ERR_INVALID_ARG, "the body is longer than %d bytes", OAI_SHORT_BODY)
                         : nrd_oai_body(req, &doc);
    const char *name = err ? NULL : nrd_json_get_str(nrd_json_root(doc), "lora_name", NULL);
    if (!err && !name) {
        err = nrd_oai_errorf(NRD_ERR_INVALID_ARG, "lora_name", "'lora_name' must be provided.");
    }
    err = err ? err : unload(o, name);
    if (err) {
        nrd_oai_fail(req, err, extra);
    } else {
        nrd_str_printf(&out, "Success: LoRA adapter '%s' removed successfully.", name);
        nrd_http_reply(req, 200, "text/plain", extra, out.data, out.len);
    }
    nrd_str_fini(&out);
    nrd_json_doc_free(doc);
    free(extra);
}
