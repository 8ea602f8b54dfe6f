/* SPDX-License-Identifier: Apache-2.0
 * /v1/files: lists, single files, their content and their end. Uploads are in upload.c, which uses this file. */
#include "frontends/openai/internal.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_PAGE = 10000 };

void nrd_oai_owner(const nrd_openai *o, const nrd_http_request *req, char out[NRD_FILE_OWNER])
{
    nrd_batches_owner(o->files, o->api->front->keys, nrd_oai_key(o, req), out);
}

void nrd_oai_put_file(nrd_str *out, const nrd_file_info *f)
{
    nrd_str_printf(out, "{\"id\":\"%s\",\"object\":\"file\",\"bytes\":%llu,\"created_at\":%lld,\"expires_at\":", f->id,
                   (unsigned long long)f->bytes, (long long)f->created);
    nrd_str_printf(out, f->expires ? "%lld" : "null", (long long)f->expires);
    nrd_str_puts(out, ",\"filename\":");
    nrd_json_put_cstr(out, f->name);
    nrd_str_puts(out, ",\"purpose\":");
    nrd_json_put_cstr(out, f->purpose);
    nrd_str_puts(out, ",\"status\":\"processed\",\"status_details\":null}");
}

/* ---- lists and single files ---- */

nrd_error *nrd_oai_put_files(nrd_oai_question *q)
{
    char owner[NRD_FILE_OWNER], after[64] = "", purpose[NRD_FILE_PURPOSE] = "";
    nrd_file_info *v = NULL;
    long long limit;
    size_t n = 0;
    bool ascending, more = false;

    NRD_TRY(nrd_oai_query_limit(q->req, MAX_PAGE, MAX_PAGE, &limit));
    NRD_TRY(nrd_oai_query_order(q->req, &ascending));
    (void)nrd_oai_query(q->req, "after", after, sizeof after);
    (void)nrd_oai_query(q->req, "purpose", purpose, sizeof purpose);
    nrd_oai_owner(q->o, q->req, owner);
    NRD_TRY(nrd_file_store_list(q->o->files, owner, purpose, after, ascending, (size_t)limit, &v, &n, &more));
    nrd_str_puts(&q->out, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < n; i++) {
        nrd_str_puts(&q->out, i ? "," : "");
        nrd_oai_put_file(&q->out, &v[i]);
    }
    if (n > 0) {
        nrd_str_printf(&q->out, "],\"first_id\":\"%s\",\"last_id\":\"%s\"", v[0].id, v[n - 1].id);
    } else {
        nrd_str_puts(&q->out, "],\"first_id\":null,\"last_id\":null");
    }
    nrd_str_printf(&q->out, ",\"has_more\":%s}", more ? "true" : "false");
    free(v);
    return NULL;
}

static nrd_error *put_one(nrd_oai_question *q)
{
    char owner[NRD_FILE_OWNER];
    nrd_file_info f;

    nrd_oai_owner(q->o, q->req, owner);
    NRD_TRY(nrd_file_store_find(q->o->files, owner, q->model, &f));
    nrd_oai_put_file(&q->out, &f);
    return NULL;
}

static void remove_one(nrd_openai *o, nrd_http_request *req, const char *id)
{
    char owner[NRD_FILE_OWNER], *extra = NULL;
    nrd_str out = {0};

    if (!nrd_oai_admit_delete(o, req, &extra)) {
        return;
    }
    if (!nrd_oai_refuse_foreign(o, req, extra)) {
        nrd_oai_owner(o, req, owner);
        nrd_error *err = nrd_file_store_remove(o->files, owner, id);
        if (err) {
            nrd_oai_fail(req, err, extra);
        } else {
            nrd_str_puts(&out, "{\"id\":");
            nrd_json_put_cstr(&out, id);
            nrd_str_puts(&out, ",\"object\":\"file\",\"deleted\":true}");
            nrd_http_reply_str(req, 200, "application/json", extra, &out);
        }
    }
    nrd_str_fini(&out);
    free(extra);
}

void nrd_oai_on_file(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    if (req->head.method == NRD_HTTP_OTHER) {
        remove_one(user, req, route->model);
    } else {
        nrd_oai_ask(user, req, route->model, put_one);
    }
}

/* ---- content: the file's pages, not a copy ---- */

typedef struct content {
    nrd_openai *o;
    nrd_http_request *req; /* shares */
    char *extra, *id;
    char owner[NRD_FILE_OWNER];
    void *data; /* mapped */
    size_t n;
    nrd_error *err;
} content;

static void release(void *arg)
{
    content *c = arg;
    if (c->data) {
        munmap(c->data, c->n);
    }
    nrd_error_free(c->err);
    nrd_http_request_unref(c->req);
    free(c->extra);
    free(c->id);
    free(c);
}

/* On a worker: what the disk takes long for is read here. */
static void map_file(void *arg)
{
    content *c = arg;
    nrd_file_info f;
    int fd;

    c->err = nrd_file_store_open(c->o->files, c->owner, c->id, &fd, &f);
    if (c->err) {
        return;
    }
    c->n = (size_t)f.bytes;
    if (c->n > 0) {
        c->data = mmap(NULL, c->n, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
        if (c->data == MAP_FAILED) {
            c->data = NULL;
            c->err = nrd_errorf(NRD_ERR_INTERNAL, "cannot read the file: %s", strerror(errno));
        }
    }
    close(fd);
}

static void send_file(void *arg, bool ran)
{
    content *c = arg;
    nrd_error *err = c->err;

    c->err = NULL;
    if (!ran && !err) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "the server is shutting down");
    }
    if (err) {
        nrd_oai_fail(c->req, err, c->extra);
        release(c);
        return;
    }
    const struct iovec part = {c->data, c->n};
    nrd_http_replyv(c->req, 200, "application/octet-stream", c->extra, &part, c->n > 0 ? 1 : 0, release, c);
}

void nrd_oai_on_file_content(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_openai *o = user;
    char *extra = NULL;

    if (!nrd_oai_admit(o, req, false, &extra)) {
        return;
    }
    content *c = calloc(1, sizeof *c);
    char *id = strdup(route->model);
    if (!c || !id) {
        nrd_oai_fail(req, nrd_error_no_memory(), extra);
        free(extra);
        free(id);
        free(c);
        return;
    }
    c->o = o;
    c->req = req;
    c->extra = extra;
    c->id = id;
    nrd_http_request_ref(req);
    nrd_oai_owner(o, req, c->owner);
    nrd_error *err = nrd_http_work(o->api->front->workers, req, map_file, send_file, c);
    if (err) {
        c->err = err;
        send_file(c, true);
    }
}
