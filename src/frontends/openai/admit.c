/* SPDX-License-Identifier: Apache-2.0
 * Who may ask and how often, and the answer of those who may not: before any endpoint. */
#include "frontends/openai/internal.h"

#include "frontends/http/origin.h"

#include <stdio.h>
#include <string.h>

/* ---- errors ---- */

int nrd_oai_status(const nrd_error *err)
{
    nrd_error_code code = nrd_error_get_code(err);
    const char *reason = nrd_error_reason(err);
    if (reason && (!strcmp(reason, NRD_FILE_TOO_LARGE) || !strcmp(reason, NRD_FILE_NO_ROOM))) {
        return 413;
    }
    return code == NRD_ERR_UNSUPPORTED ? 400 : nrd_http_status(code);
}

static void reply_error(nrd_http_request *req, int status, const char *message, const char *param,
                        const char *code, const char *extra)
{
    nrd_str out = {0};
    nrd_oai_form_of(req)->put_error(&out, status, message, param, code);
    nrd_http_reply_str(req, status, "application/json", extra, &out);
    nrd_str_fini(&out);
}

void nrd_oai_fail(nrd_http_request *req, nrd_error *err, const char *extra)
{
    const int status = nrd_oai_status(err);
    const char *code = nrd_error_reason(err);
    reply_error(req, status, nrd_error_message(err), status == 400 ? nrd_error_field(err) : NULL,
                code || status != 404 ? code : "model_not_found", extra);
    nrd_error_free(err);
}

char *nrd_oai_warn_unknown(char *extra, const char *names)
{
    char *with = NULL;
    if (asprintf(&with, "%sx-nereid-warning: unknown fields: %s\r\n", extra ? extra : "", names) < 0) {
        return extra; /* without memory the answer comes without the warning */
    }
    free(extra);
    return with;
}

nrd_error *nrd_oai_body(nrd_http_request *req, nrd_json_doc **out)
{
    const nrd_json_limits limits = {.max_depth = 64, .max_nodes = OAI_MAX_VALUES};
    *out = NULL;
    NRD_TRY(nrd_claim_json(&req->claim, req->body, req->body_n, OAI_MAX_VALUES));
    nrd_error *err = nrd_json_parse(out, req->body ? req->body : "", req->body_n, &limits);
    if (!err && !nrd_json_is(nrd_json_root(*out), NRD_JSON_OBJECT)) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "the body must be a JSON object");
    }
    return nrd_error_wrap(err, "the request's body");
}

/* ---- who may ask, and how often ---- */

int nrd_oai_key(const nrd_openai *o, const nrd_http_request *req)
{
    nrd_keys *keys = o->api->front->keys;
    return nrd_keys_count(keys) > 0 ? nrd_http_key(keys, req) : -1;
}

/* extra: header lines, or NULL. */
static void reply_wait(nrd_http_request *req, nrd_refusal r, const char *extra)
{
    nrd_str lines = {0};
    nrd_str_printf(&lines, "%sRetry-After: %d\r\n", extra ? extra : "", r.after_secs);
    reply_error(req, 429, r.why, NULL, "rate_limit_exceeded", lines.no_memory ? extra : lines.data);
    nrd_str_fini(&lines);
}

bool nrd_oai_take_place(nrd_openai *o, nrd_http_request *req, const char *extra, nrd_quota **out)
{
    nrd_quotas *q = o->api->front->quotas;
    int key;

    *out = NULL;
    if (!q || nrd_http_is_local(req, &key)) {
        return true; /* of a batch, which goes behind the others by itself */
    }
    key = nrd_oai_key(o, req);
    if (nrd_quotas_count_tokens(q, key)) {
        nrd_claim_open(&req->claim);
    }
    const nrd_refusal r = nrd_quota_take(q, key, out);
    if (r.why) {
        reply_wait(req, r, extra);
    }
    return !r.why;
}

void nrd_oai_give_place(nrd_openai *o, nrd_http_request *req, nrd_quota *k)
{
    if (k) {
        nrd_quota_give(o->api->front->quotas, k, nrd_claim_tokens(&req->claim));
    }
}

/* Header lines that allow the page of another origin to read the answer. */
static void put_cors(const nrd_openai *o, const nrd_http_request *req, nrd_str *out)
{
    const nrd_option_list *list = &o->api->options->cors_origins;
    const nrd_view *origin = nrd_http_find_field(&req->head, "Origin");
    for (size_t i = 0; origin && i < list->n; i++) {
        const char *allowed = list->items[i].name;
        if (!strcmp(allowed, "*") || nrd_view_is(*origin, allowed)) {
            nrd_str_printf(out, "Access-Control-Allow-Origin: %s\r\nVary: Origin\r\n", allowed);
            return;
        }
    }
}

void nrd_oai_reply_error(nrd_http_request *req, int status, const char *message)
{
    reply_error(req, status, message, NULL, NULL, NULL);
}

void nrd_oai_on_method(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)user;
    (void)route;
    reply_error(req, 405, "This method is not allowed here.", NULL, NULL, NULL);
}

/* What a browser asks before it sends a request with a key. */
static void preflight(const nrd_openai *o, nrd_http_request *req)
{
    nrd_str extra = {0};
    if (!nrd_view_is(req->head.method_name, "OPTIONS")) {
        nrd_oai_on_method(NULL, req, NULL);
        return;
    }
    put_cors(o, req, &extra);
    if (extra.len > 0) {
        nrd_str_puts(&extra, "Access-Control-Allow-Methods: GET, POST, DELETE, OPTIONS\r\n"
                             "Access-Control-Allow-Headers: Authorization, Content-Type, x-api-key, anthropic-version\r\n"
                             "Access-Control-Max-Age: 600\r\n");
    }
    if (extra.no_memory) {
        reply_error(req, 503, "out of memory", NULL, NULL, NULL);
    } else {
        nrd_http_reply(req, 204, NULL, extra.data, NULL, 0);
    }
    nrd_str_fini(&extra);
}

static bool admit(nrd_openai *o, nrd_http_request *req, bool counts, char **out_extra)
{
    nrd_str extra = {0};
    int key;

    if (nrd_http_is_local(req, &key)) {
        return true; /* of a batch, which was admitted */
    }
    put_cors(o, req, &extra);
    const int place = nrd_oai_key(o, req);
    if (place < 0 && nrd_keys_count(o->api->front->keys) > 0) {
        nrd_str_puts(&extra, "WWW-Authenticate: Bearer\r\n");
        reply_error(req, 401, NRD_KEYS_REFUSAL, NULL, "invalid_api_key",
                    extra.no_memory ? NULL : extra.data);
        nrd_str_fini(&extra);
        return false;
    }
    const nrd_refusal r = counts ? nrd_quota_ask(o->api->front->quotas, place) : (nrd_refusal){0};
    if (r.why) {
        reply_wait(req, r, extra.no_memory ? NULL : extra.data);
        nrd_str_fini(&extra);
        return false;
    }
    if (extra.no_memory) {
        nrd_str_fini(&extra);
        reply_error(req, 503, "out of memory", NULL, NULL, NULL);
        return false;
    }
    *out_extra = extra.len > 0 ? nrd_str_steal(&extra) : NULL;
    return true;
}

bool nrd_oai_admit(nrd_openai *o, nrd_http_request *req, bool counts, char **out_extra)
{
    *out_extra = NULL;
    if (req->head.method == NRD_HTTP_OTHER) {
        preflight(o, req);
        return false;
    }
    return admit(o, req, counts, out_extra);
}

bool nrd_oai_refuse_foreign(nrd_openai *o, nrd_http_request *req, const char *extra)
{
    if (nrd_http_origin_may_change(&req->head, nrd_http_proto(req), &o->api->options->cors_origins)) {
        return false;
    }
    reply_error(req, 403, "Pages of another origin may not change this server; --cors-origin=ORIGIN allows one", NULL, NULL, extra);
    return true;
}

bool nrd_oai_admit_delete(nrd_openai *o, nrd_http_request *req, char **out_extra)
{
    *out_extra = NULL;
    if (!nrd_view_is(req->head.method_name, "DELETE")) {
        preflight(o, req);
        return false;
    }
    return admit(o, req, false, out_extra);
}
