/* SPDX-License-Identifier: Apache-2.0
 * Finds the handler of a request: splits the path, compares it with the patterns of all tables,
 * checks the method, the header of a restricted group and the API key, and answers 404, 405, 403 or 401
 * itself.
 * Tables are added before the server listens; afterwards the loop threads only read them. */
#include "frontends/http/router.h"

#include "frontends/http/local.h"
#include "frontends/http/origin.h"

#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MAX_TABLES 8

struct nrd_http_router {
    const nrd_options *options;
    nrd_keys *keys;
    struct {
        const nrd_http_route_row *rows;
        size_t n;
        void *user;
        nrd_http_failer *fail;
    } tables[MAX_TABLES];
    size_t n_tables;
};

nrd_error *nrd_http_router_new(nrd_http_router **out, const nrd_options *options,
                               nrd_keys *keys)
{
    *out = calloc(1, sizeof **out);
    if (!*out) {
        return nrd_error_no_memory();
    }
    (*out)->options = options;
    (*out)->keys = keys;
    return NULL;
}

void nrd_http_router_free(nrd_http_router *r)
{
    free(r);
}

nrd_error *nrd_http_router_add(nrd_http_router *r, const nrd_http_route_row *rows, size_t n, void *user,
                               nrd_http_failer *fail)
{
    if (r->n_tables == MAX_TABLES) {
        return nrd_errorf(NRD_ERR_INTERNAL, "more than %d tables of routes", MAX_TABLES);
    }
    r->tables[r->n_tables].rows = rows;
    r->tables[r->n_tables].n = n;
    r->tables[r->n_tables].fail = fail ? fail : nrd_http_reply_error;
    r->tables[r->n_tables++].user = user;
    return NULL;
}

/* Next part of a path, without slashes. false at the end. */
static bool next_part(nrd_view *rest, nrd_view *part)
{
    if (!rest->p) {
        return false;
    }
    const char *slash = memchr(rest->p, '/', rest->n);
    part->p = rest->p;
    part->n = slash ? (size_t)(slash - rest->p) : rest->n;
    rest->p = slash ? slash + 1 : NULL;
    rest->n = slash ? rest->n - part->n - 1 : 0;
    return true;
}

static bool all_digits(const char *text)
{
    return text[strspn(text, "0123456789")] == '\0';
}

static bool matches(const char *pattern, nrd_view path, nrd_http_route *out)
{
    nrd_view want = {pattern, strlen(pattern)}, p, w;
    size_t used = 0;
    out->model = out->version = out->region = NULL;
    if (want.n == 0) {
        return path.n == 0;
    }
    while (next_part(&want, &w)) {
        if (w.n == 4 && w.p[0] == '{' && w.p[2] == '*') {
            p = path; /* all of the rest */
            path.p = NULL;
        } else if (!next_part(&path, &p)) {
            return false;
        }
        if (!p.p || p.n == 0) {
            return false;
        }
        if (w.p[0] != '{') {
            if (w.n != p.n || memcmp(w.p, p.p, w.n) != 0) {
                return false;
            }
            continue;
        }
        char *text = out->text + used;
        if (!nrd_http_unescape(p, text, sizeof out->text - used)) {
            return false;
        }
        used += strlen(text) + 1;
        *(w.p[1] == 'm' ? &out->model : w.p[1] == 'v' ? &out->version : &out->region) = text;
        if (w.p[1] == 'v' && !all_digits(text)) {
            return false; /* Triton's route takes digits only */
        }
    }
    return path.p == NULL;
}

/* NULL: allowed, else the header that the group asks for. */
static const char *restriction(const nrd_http_router *r, const char *group,
                               const nrd_http_request *req)
{
    const nrd_option_list *list = &r->options->http_restricted;
    for (size_t i = 0; group && i < list->n; i++) {
        const nrd_option_entry *e = &list->items[i];
        if (strcmp(e->name, group) == 0) {
            const nrd_view *v = nrd_http_find_field(&req->head, e->setting);
            const bool fits = v && nrd_same_secret(v->p, v->n, e->value, strlen(e->value));
            return fits ? NULL : e->setting;
        }
    }
    return NULL;
}

int nrd_http_key(nrd_keys *keys, const nrd_http_request *req)
{
    int of_local;
    if (nrd_http_is_local(req, &of_local)) {
        return of_local;
    }
    const nrd_view *v = nrd_http_find_field(&req->head, "Authorization");
    const int i = v ? nrd_keys_find(keys, v->p, v->n) : -1;
    const nrd_view *bare = i < 0 ? nrd_http_find_field(&req->head, "x-api-key") : NULL;
    return bare ? nrd_keys_find_bare(keys, bare->p, bare->n) : i;
}

static bool has_key(const nrd_http_router *r, const char *group, const nrd_http_request *req)
{
    if (nrd_keys_count(r->keys) == 0 || !nrd_keys_guard(group)) {
        return true;
    }
    return nrd_http_key(r->keys, req) >= 0;
}

static void ask_for_key(nrd_http_request *req)
{
    static const char text[] = "{\"error\":\"" NRD_KEYS_REFUSAL "\"}";
    nrd_http_reply(req, 401, "application/json", "WWW-Authenticate: Bearer\r\n", text, sizeof text - 1);
}

/* A POST there changes the server, or what it shares with others. */
static bool is_control(const nrd_http_route_row *row, const nrd_http_request *req)
{
    static const char *const groups[] = {"model-repository", "trace", "logging", "shared-memory"};
    bool found = false;

    for (size_t i = 0; row->group && i < sizeof groups / sizeof *groups; i++) {
        found = found || strcmp(row->group, groups[i]) == 0;
    }
    return found && req->head.method == NRD_HTTP_POST;
}

/* NULL: it may go on, else why not. Health is asked by machines under any name. */
static const char *foreign(const nrd_http_router *r, const nrd_http_route_row *row,
                           const nrd_http_request *req)
{
    const nrd_options *o = r->options;

    if (row->group && strcmp(row->group, "health") == 0) {
        return NULL;
    }
    if (!nrd_http_host_is_ours(&req->head, o->http_address, &o->allowed_hosts)) {
        return "The request's Host is not a name of this server; --allowed-host=NAME allows one";
    }
    if (is_control(row, req) && !nrd_http_origin_may_change(&req->head, nrd_http_proto(req), &o->cors_origins)) {
        return "Pages of another origin may not change this server; --cors-origin=ORIGIN allows one";
    }
    return NULL;
}

void nrd_http_refuse_method(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)user;
    (void)route;
    nrd_http_reply_plain_error(req, 405, "Method Not Allowed");
}

static void run_row(const nrd_http_router *r, const nrd_http_route_row *row, void *user, nrd_http_failer *fail,
                    nrd_http_request *req, const nrd_http_route *route)
{
    const char *header = restriction(r, row->group, req), *why = foreign(r, row, req);
    if (why) {
        fail(req, 403, why);
    } else if (header) {
        nrd_str text = {0};
        nrd_str_printf(&text, "This API is restricted, expecting header '%s'", header);
        fail(req, 403, text.no_memory ? "This API is restricted" : nrd_str_cstr(&text));
        nrd_str_fini(&text);
    } else if (is_control(row, req) && req->body_n > 0 && !nrd_http_type_is_json(&req->head)) {
        fail(req, 415, "A page must send this with Content-Type: application/json");
    } else if (!has_key(r, row->group, req)) {
        ask_for_key(req);
    } else if (row->methods & 1u << req->head.method) {
        row->handle(user, req, route);
    } else if (row->refuse) {
        row->refuse(user, req, route);
    } else {
        fail(req, 405, "Method Not Allowed");
    }
}

/* The row for this path, which begins with a slash, and its table; NULL: there is none. */
static const nrd_http_route_row *find_row(const nrd_http_router *r, nrd_view path, nrd_http_route *route, size_t *out_table)
{
    const nrd_view rest = {path.p + 1, path.n - 1};

    for (size_t t = 0; t < r->n_tables; t++) {
        for (size_t i = 0; i < r->tables[t].n; i++) {
            if (matches(r->tables[t].rows[i].pattern, rest, route)) {
                *out_table = t;
                return &r->tables[t].rows[i];
            }
        }
    }
    return NULL;
}

static unsigned methods_of(const nrd_http_router *r, nrd_view path)
{
    nrd_http_route route;
    size_t t;
    const nrd_http_route_row *row = find_row(r, path, &route, &t);
    return row ? row->methods : 0;
}

void nrd_http_router_fail(nrd_http_request *req, int status, const char *message, void *router)
{
    const nrd_http_router *r = router;
    nrd_http_route route;
    size_t t;

    if (req->head.path.n > 0 && find_row(r, req->head.path, &route, &t)) {
        r->tables[t].fail(req, status, message);
    } else {
        nrd_http_reply_error(req, status, message);
    }
}

bool nrd_http_router_takes(const nrd_http_router *r, nrd_view path, nrd_http_method method)
{
    return (methods_of(r, path) & 1u << method) != 0;
}

bool nrd_http_router_in_pieces(const nrd_http_request *req, void *router)
{
    static const char form[] = "multipart/form-data";
    const nrd_view *type = req->head.method == NRD_HTTP_POST ? nrd_http_find_field(&req->head, "Content-Type") : NULL;

    return type && type->n >= sizeof form - 1 && strncasecmp(type->p, form, sizeof form - 1) == 0 &&
           (methods_of(router, req->head.path) & NRD_HTTP_IN_PIECES) != 0;
}

/* Triton's line, with the client where proxies are trusted to tell it. */
static void log_request(const nrd_http_router *r, const nrd_http_request *req)
{
    const nrd_http_head *h = &req->head;
    char client[NRD_ADDRESS_TEXT] = "";

    if (r->options->trusted_proxies.n > 0) {
        const nrd_address a = nrd_http_client(req);
        nrd_address_put(&a, client);
    }
    NRD_LOG_VERBOSE(1, "HTTP request: %.*s %.*s%s%s", (int)h->method_name.n, h->method_name.p, (int)h->path.n, h->path.p,
                    client[0] ? " of " : "", client);
}

void nrd_http_router_handle(nrd_http_request *req, void *router)
{
    const nrd_http_router *r = router;
    nrd_http_route route;
    size_t t;

    if (nrd_log_verbose() >= 1) {
        log_request(r, req);
    }
    const nrd_http_route_row *row = find_row(r, req->head.path, &route, &t);
    if (row) {
        run_row(r, row, r->tables[t].user, r->tables[t].fail, req, &route);
    } else {
        nrd_http_reply_plain_error(req, 404, "Not Found");
    }
}
