/* SPDX-License-Identifier: Apache-2.0 */
#include "cloud/store.h"

#include "base/mem.h"
#include "cloud/token.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define EMPTY_SHA256 "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
#define AZURE_VERSION "2021-08-06"
enum { MAX_FIELDS = 8 };

struct nrd_cloud_store {
    nrd_cloud_place *place;
    nrd_cloud_token *token; /* GCS without keys; NULL: none; borrowed */
};

nrd_error *nrd_cloud_store_new(nrd_cloud_store **out, const char *address)
{
    nrd_error *err = NULL;
    nrd_cloud_store *s = NULL;

    *out = NULL;
    NRD_NEW_GOTO(s, 1, err, fail);
    NRD_TRY_GOTO(nrd_cloud_place_new(&s->place, address), err, fail);
    if (s->place->kind == NRD_CLOUD_GCS && !s->place->key_id[0]) {
        NRD_TRY_GOTO(nrd_error_wrap(nrd_cloud_token_get(&s->token, s->place->credentials), "model repository '%s'",
                                    address),
                     err, fail);
    }
    *out = s;
    return NULL;

fail:
    nrd_cloud_store_free(s);
    return err;
}

void nrd_cloud_store_free(nrd_cloud_store *s)
{
    if (s) {
        nrd_cloud_place_free(s->place);
        free(s);
    }
}

const nrd_cloud_place *nrd_cloud_store_place(const nrd_cloud_store *s)
{
    return s->place;
}

/* ---- a request ---- */

typedef struct fields { /* of one request, sorted */
    nrd_sign_field items[MAX_FIELDS];
    size_t n;
    char range[64], date[40], etag[300];
} fields;

static void add(fields *f, const char *name, const char *value)
{
    f->items[f->n++] = (nrd_sign_field){name, value};
}

static void fill_fields(fields *f, const nrd_cloud_place *p, const nrd_cloud_request *r)
{
    const time_t now = time(NULL);
    struct tm t;

    gmtime_r(&now, &t);
    if (r->etag && r->etag[0]) { /* Azure lists them without quotes */
        snprintf(f->etag, sizeof f->etag, r->etag[0] == '"' ? "%s" : "\"%s\"", r->etag);
        add(f, "if-match", f->etag);
    }
    if (r->has_range) {
        snprintf(f->range, sizeof f->range, "bytes=%" PRIu64 "-%" PRIu64, r->first, r->last);
        add(f, "range", f->range);
    }
    if (p->kind == NRD_CLOUD_AZURE) {
        strftime(f->date, sizeof f->date, "%a, %d %b %Y %H:%M:%S GMT", &t);
        add(f, "x-ms-date", f->date);
        add(f, "x-ms-version", AZURE_VERSION);
    } else if (p->key_id[0]) {
        strftime(f->date, sizeof f->date, "%Y%m%dT%H%M%SZ", &t);
        add(f, "x-amz-content-sha256", EMPTY_SHA256);
        add(f, "x-amz-date", f->date);
        if (p->session[0]) {
            add(f, "x-amz-security-token", p->session);
        }
    }
}

static nrd_error *put_authorization(nrd_str *out, nrd_cloud_store *s, nrd_http_handle *h, const nrd_sign_request *q,
                                    const fields *f)
{
    const nrd_cloud_place *p = s->place;

    nrd_str_puts(out, "authorization: ");
    if (p->kind == NRD_CLOUD_AZURE && p->secret[0]) {
        return nrd_sign_azure(out, q, p->key_id, p->secret);
    }
    if (p->kind != NRD_CLOUD_AZURE && p->key_id[0]) {
        return nrd_sign_aws(out, q, p->key_id, p->secret, p->region, f->date);
    }
    if (s->token) {
        bool has = false;
        NRD_TRY(nrd_cloud_token_put(s->token, h, out, &has));
        if (has) {
            return nrd_str_error(out);
        }
    }
    nrd_str_clear(out); /* nobody in particular */
    return NULL;
}

/* ---- refusals ---- */

/* What stands between <name> and </name> of an answer, at most n - 1 bytes. */
static void find_word(char *out, size_t n, const char *body, const char *name)
{
    char open[32];
    snprintf(open, sizeof open, "<%s>", name);
    const char *p = strstr(body, open);
    out[0] = '\0';
    if (p) {
        p += strlen(open);
        snprintf(out, n, "%.*s", (int)strcspn(p, "<"), p);
    }
}

/* Of the answer's head. */
typedef struct head {
    char region[64];
} head;

static void take_field(void *user, const char *name, const char *value)
{
    head *f = user;
    if (strcasecmp(name, "x-amz-bucket-region") == 0) {
        snprintf(f->region, sizeof f->region, "%.*s", (int)sizeof f->region - 1, value);
    }
}

static nrd_error *refused(const nrd_cloud_store *s, const nrd_cloud_request *r, const nrd_http_reply *reply,
                          const char *region_of_head)
{
    const nrd_cloud_place *p = s->place;
    const char *body = nrd_str_cstr(&reply->body);
    char code[100], message[300], region[64];
    nrd_error_code kind = NRD_ERR_INTERNAL;

    find_word(code, sizeof code, body, "Code");
    find_word(message, sizeof message, body, "Message");
    find_word(region, sizeof region, body, "Region");
    if (!region[0]) {
        snprintf(region, sizeof region, "%s", region_of_head);
    }
    if (reply->status == 404) {
        kind = NRD_ERR_NOT_FOUND;
    } else if (reply->status == 412 || reply->status >= 500 || reply->status == 429) {
        kind = NRD_ERR_UNAVAILABLE;
    }
    const bool is_elsewhere = p->kind == NRD_CLOUD_S3 && region[0] && strcmp(region, p->region) != 0;
    return nrd_errorf(kind, "%s: '%s' in '%s': HTTP status %ld%s%s%s%s%s%s%s", p->address,
                      r->object ? r->object : p->prefix, p->bucket, reply->status, code[0] ? " " : "", code, message[0] ? ": " : "", message,
                      reply->status == 412 ? "; it was changed while it was copied" : "",
                      is_elsewhere ? "; the bucket is in region " : "", is_elsewhere ? region : "");
}

/* ---- asking ---- */

nrd_error *nrd_cloud_ask_once(nrd_cloud_store *s, nrd_http_handle *h, const nrd_cloud_request *r,
                              nrd_http_reply *reply, bool *out_again)
{
    const nrd_cloud_place *p = s->place;
    nrd_str path = {0}, url = {0}, lines[MAX_FIELDS + 1] = {0};
    const char *list[MAX_FIELDS + 2] = {NULL};
    fields f = {.n = 0};
    head of_head = {.region = ""};
    size_t n = 0;
    nrd_error *err = NULL;

    memset(reply, 0, sizeof *reply);
    *out_again = false;
    fill_fields(&f, p, r);
    nrd_str_printf(&path, "%s/", p->root);
    nrd_sign_escape(&path, p->bucket, true);
    if (r->object) {
        nrd_str_putc(&path, '/');
        nrd_sign_escape(&path, r->object, true);
    }
    const nrd_sign_request q = {.host = p->host, .path = nrd_str_cstr(&path), .query = r->query, .n_query = r->n_query,
                                .fields = f.items, .n_fields = f.n};
    nrd_str_printf(&url, "%s%s%s", p->origin, q.path, r->n_query ? "?" : "");
    nrd_sign_query(&url, &q);
    for (size_t i = 0; i < f.n; i++) {
        nrd_str_printf(&lines[i], "%s: %s", f.items[i].name, f.items[i].value);
    }
    NRD_TRY_GOTO(put_authorization(&lines[f.n], s, h, &q, &f), err, done);
    err = nrd_str_error(&url);
    for (size_t i = 0; i <= f.n; i++) {
        err = err ? err : nrd_str_error(&lines[i]);
        if (lines[i].len) {
            list[n++] = nrd_str_cstr(&lines[i]);
        }
    }
    if (!err) {
        const nrd_http_ask ask = {.url = nrd_str_cstr(&url), .fields = list, .sink = r->sink, .user = r->user,
                                  .field = take_field, .field_user = &of_head, .max_body = r->max_body};
        err = nrd_cloud_http_do(h, ask, reply);
        if (err) {
            *out_again = !reply->is_cut;
            err = nrd_error_wrap(err, "%s: '%s' in '%s'", p->address, r->object ? r->object : p->prefix, p->bucket);
        } else if (reply->status < 200 || reply->status >= 300) {
            *out_again = reply->status >= 500 || reply->status == 429;
            err = refused(s, r, reply, of_head.region);
        }
    }
done:
    for (size_t i = 0; i <= f.n; i++) {
        nrd_str_fini(&lines[i]);
    }
    nrd_str_fini(&url);
    nrd_str_fini(&path);
    return err;
}

nrd_error *nrd_cloud_ask(nrd_cloud_store *s, nrd_http_handle *h, const nrd_cloud_request *r, nrd_http_reply *reply)
{
    for (unsigned attempt = 1;; attempt++) {
        bool again = false;
        nrd_error *err = nrd_cloud_ask_once(s, h, r, reply, &again);
        if (!err || !again || attempt >= NRD_HTTP_ATTEMPTS) {
            return err;
        }
        nrd_error_free(err);
        nrd_http_reply_fini(reply);
        nrd_http_pause(attempt);
    }
}
