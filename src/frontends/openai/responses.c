/* SPDX-License-Identifier: Apache-2.0
 * /v1/responses: making an answer, and questions about those that are kept. */
#include "frontends/openai/responses.h"

#include <string.h>

enum { MAX_PAGE = 100, USUAL_PAGE = 20 }; /* items in one list */

void nrd_oai_on_responses(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    nrd_oai_generate(user, req, &nrd_oai_form_responses);
}

static nrd_error *not_kept(const char *id)
{
    return nrd_error_because(nrd_errorf(NRD_ERR_NOT_FOUND, NRD_RESP_NOT_KEPT, id), "response_not_found");
}

/* The kept answer that the path names, for the key that asks; it is given back by the caller. */
static nrd_error *find(nrd_openai *o, const nrd_http_request *req, const char *id, nrd_kept_response **out)
{
    *out = nrd_response_store_find(o->kept, nrd_oai_key(o, req), id);
    return *out ? NULL : not_kept(id);
}

static void remove_one(nrd_openai *o, nrd_http_request *req, const char *id)
{
    char *extra = NULL;
    nrd_str out = {0};

    if (!nrd_oai_admit_delete(o, req, &extra)) {
        return;
    }
    const bool made = nrd_background_remove(o->background, nrd_oai_key(o, req), id);
    if (nrd_response_store_remove(o->kept, nrd_oai_key(o, req), id) || made) {
        nrd_str_puts(&out, "{\"id\":");
        nrd_json_put_cstr(&out, id);
        nrd_str_puts(&out, ",\"object\":\"response\",\"deleted\":true}");
        nrd_http_reply_str(req, 200, "application/json", extra, &out);
    } else {
        nrd_oai_fail(req, not_kept(id), extra);
    }
    nrd_str_fini(&out);
    free(extra);
}

/* ---- what the query asks for ---- */

static nrd_error *put_kept(nrd_oai_question *q)
{
    nrd_kept_response *r = NULL;
    nrd_error *err = find(q->o, q->req, q->model, &r);
    if (err && nrd_background_show(q->o->background, nrd_oai_key(q->o, q->req), q->model, &q->out)) {
        nrd_error_free(err);
        return NULL;
    }
    if (err) { /* it may have been completed between the two looks */
        nrd_error_free(err);
        NRD_TRY(find(q->o, q->req, q->model, &r));
    }
    nrd_str_put(&q->out, &r->answer);
    nrd_response_store_give_back(q->o->kept, r);
    return NULL;
}

void nrd_oai_on_response(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    if (req->head.method == NRD_HTTP_OTHER) {
        remove_one(user, req, route->model);
    } else if (nrd_resp_is_streamed(req)) {
        nrd_resp_follow(user, req, route->model);
    } else {
        nrd_oai_ask(user, req, route->model, put_kept);
    }
}

typedef struct page {
    long long limit;
    bool ascending;
    char after[128]; /* an item's id; "" without */
} page;

static nrd_error *read_page(const nrd_http_request *req, page *p)
{
    *p = (page){.limit = USUAL_PAGE};
    NRD_TRY(nrd_oai_query_limit(req, USUAL_PAGE, MAX_PAGE, &p->limit));
    NRD_TRY(nrd_oai_query_order(req, &p->ascending));
    (void)nrd_oai_query(req, "after", p->after, sizeof p->after);
    return NULL;
}

/* Those of `items` that the page asks for; the newest first unless it says otherwise. */
static nrd_error *put_page(nrd_str *out, const nrd_json *items, const page *p)
{
    const char *first = NULL, *last = NULL;
    size_t from = 0, n = 0;

    if (p->after[0]) {
        while (from < items->n && strcmp(nrd_json_get_str(nrd_json_at(items, p->ascending ? from : items->n - 1 - from), "id",
                                                          ""), p->after) != 0) {
            from++;
        }
        if (from == items->n) {
            return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "after", "there is no item '%s'", p->after);
        }
        from++;
    }
    nrd_str_puts(out, "{\"object\":\"list\",\"data\":[");
    for (; from + n < items->n && n < (size_t)p->limit; n++) {
        const nrd_json *item = nrd_json_at(items, p->ascending ? from + n : items->n - 1 - from - n);
        nrd_str_puts(out, n ? "," : "");
        nrd_json_put(out, item, -1);
        last = nrd_json_get_str(item, "id", "");
        first = first ? first : last;
    }
    nrd_str_puts(out, "],\"first_id\":");
    nrd_json_put_cstr(out, first ? first : "");
    nrd_str_puts(out, ",\"last_id\":");
    nrd_json_put_cstr(out, last ? last : "");
    nrd_str_printf(out, ",\"has_more\":%s}", from + n < items->n ? "true" : "false");
    return NULL;
}

static nrd_error *put_items(nrd_oai_question *q)
{
    const nrd_json_limits limits = {.max_depth = 64, .max_nodes = OAI_MAX_VALUES};
    nrd_kept_response *r = NULL;
    nrd_json_doc *doc = NULL;
    nrd_str input = {0};
    nrd_error *err = NULL;
    page p;

    NRD_TRY(read_page(q->req, &p));
    if (!nrd_background_input(q->o->background, nrd_oai_key(q->o, q->req), q->model, &input)) {
        NRD_TRY(find(q->o, q->req, q->model, &r));
        nrd_str_put(&input, &r->input);
        nrd_response_store_give_back(q->o->kept, r);
    }
    err = nrd_str_error(&input);
    err = err ? err : nrd_json_parse(&doc, nrd_str_cstr(&input), input.len, &limits);
    err = err ? err : put_page(&q->out, nrd_json_root(doc), &p);
    nrd_json_doc_free(doc);
    nrd_str_fini(&input);
    return err;
}

void nrd_oai_on_response_items(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_oai_ask(user, req, route->model, put_items);
}

void nrd_oai_on_response_cancel(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_openai *o = user;
    nrd_kept_response *r = NULL;
    nrd_str out = {0};
    char *extra = NULL;

    if (!nrd_oai_admit(o, req, false, &extra)) {
        return;
    }
    if (nrd_background_cancel(o->background, nrd_oai_key(o, req), route->model, &out)) {
        nrd_http_reply_str(req, 200, "application/json", extra, &out);
    } else {
        nrd_error *err = find(o, req, route->model, &r);
        if (!err || nrd_background_show(o->background, nrd_oai_key(o, req), route->model, &out)) {
            nrd_error_free(err);
            err = nrd_errorf(NRD_ERR_INVALID_ARG, "This response has ended. One without background is cancelled when its "
                                                  "client closes the connection");
        }
        nrd_oai_fail(req, err, extra);
        nrd_response_store_give_back(o->kept, r);
    }
    nrd_str_fini(&out);
    free(extra);
}
