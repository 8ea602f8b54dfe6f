/* SPDX-License-Identifier: Apache-2.0
 * POST /v1/files: a form with a file, which is written to disk as it comes.
 *
 * The loop reads a piece, a worker takes it apart and writes it, then the loop reads the next. Nobody holds more than
 * a piece, and a client that is gone leaves nothing. */
#include "frontends/openai/internal.h"

#include "frontends/openai/multipart.h"

#include <stdio.h>
#include <string.h>

enum { HELD = 64 << 10, MAX_FIELD = 256, MIN_EXPIRY = 3600, MAX_EXPIRY = 2592000 };

typedef enum { NONE, PURPOSE, FILE_DATA, ANCHOR, SECONDS, OTHER } field;

typedef struct upload {
    nrd_openai *o;
    nrd_http_request *req; /* shares */
    char *extra;
    nrd_multipart form;
    nrd_file_draft *draft;
    nrd_file_info info;
    char owner[NRD_FILE_OWNER], name[NRD_FILE_NAME];
    char purpose[MAX_FIELD], anchor[MAX_FIELD], seconds[MAX_FIELD];
    field now;
    bool seen[OTHER + 1];
    /* of the piece that a worker has */
    const char *data;
    size_t n;
    bool last;
    nrd_error *err;
    size_t n_held;
    char held[HELD]; /* of the file, before it is written: a form's bytes come in parts as short as a line */
} upload;

static void release(upload *u)
{
    nrd_error_free(u->err);
    nrd_file_draft_abort(u->draft);
    nrd_http_request_unref(u->req);
    free(u->extra);
    free(u);
}

static nrd_error *field_error(const char *name, const char *text)
{
    return nrd_oai_errorf(NRD_ERR_INVALID_ARG, name, "%s", text);
}

/* ---- parts of the form, on a worker ---- */

static const char *const names[] = {[PURPOSE] = "purpose", [FILE_DATA] = "file", [ANCHOR] = "expires_after[anchor]",
                                    [SECONDS] = "expires_after[seconds]"};

static nrd_error *on_begin(void *arg, const char *name, const char *filename)
{
    upload *u = arg;

    u->now = OTHER;
    for (int i = PURPOSE; i < OTHER; i++) {
        u->now = !strcmp(name, names[i]) ? (field)i : u->now;
    }
    if (u->now == OTHER) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, name, "a file has no such field");
    }
    if (u->seen[u->now]) {
        return field_error(name, "is given twice");
    }
    u->seen[u->now] = true;
    if (u->now != FILE_DATA) {
        return NULL;
    }
    if (!filename) {
        return field_error("file", "must be a file: a part with a filename");
    }
    snprintf(u->name, sizeof u->name, "%s", filename[0] ? filename : "file");
    return nrd_file_draft_new(&u->draft, u->o->files, true);
}

static nrd_error *write_held(upload *u)
{
    const size_t n = u->n_held;
    u->n_held = 0;
    return n > 0 ? nrd_file_draft_write(u->draft, u->held, n) : NULL;
}

static nrd_error *hold(upload *u, const char *data, size_t n)
{
    if (n > HELD - u->n_held) {
        NRD_TRY(write_held(u));
    }
    if (n > HELD) {
        return nrd_file_draft_write(u->draft, data, n);
    }
    memcpy(u->held + u->n_held, data, n);
    u->n_held += n;
    return NULL;
}

static nrd_error *on_data(void *arg, const char *data, size_t n)
{
    upload *u = arg;
    char *to = u->now == PURPOSE ? u->purpose : u->now == ANCHOR ? u->anchor : u->seconds;

    if (u->now == FILE_DATA) {
        return hold(u, data, n);
    }
    const size_t have = strlen(to);
    if (n >= MAX_FIELD - have || memchr(data, '\0', n)) {
        return field_error(names[u->now], "is longer than 255 bytes, or has a zero in it");
    }
    memcpy(to + have, data, n);
    to[have + n] = '\0';
    return NULL;
}

static nrd_error *on_end(void *arg)
{
    upload *u = arg;
    if (u->now == PURPOSE && strcmp(u->purpose, "batch") != 0) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "purpose", "must be batch, got '%.64s'", u->purpose);
    }
    const bool is_file = u->now == FILE_DATA;
    u->now = NONE;
    return is_file ? write_held(u) : NULL;
}

static nrd_error *finish(upload *u)
{
    long long secs = 0;

    NRD_TRY(nrd_multipart_end(&u->form));
    if (!u->seen[PURPOSE]) {
        return field_error("purpose", "is missing; it must be batch");
    }
    if (!u->draft) {
        return field_error("file", "is missing");
    }
    if (u->seen[ANCHOR] != u->seen[SECONDS] || (u->seen[ANCHOR] && strcmp(u->anchor, "created_at") != 0)) {
        return field_error("expires_after", "must have the anchor created_at and seconds");
    }
    if (u->seen[SECONDS] && (!nrd_parse_i64(u->seconds, &secs) || secs < MIN_EXPIRY || secs > MAX_EXPIRY)) {
        return field_error("expires_after", "seconds must be a whole number from 3600 to 2592000");
    }
    nrd_file_draft *d = u->draft;
    u->draft = NULL;
    return nrd_file_draft_commit(d, u->owner, u->name, u->purpose, secs, &u->info);
}

static void work(void *arg)
{
    upload *u = arg;
    u->err = nrd_multipart_feed(&u->form, u->data, u->n);
    if (!u->err && u->last) {
        u->err = finish(u);
    }
}

/* ---- on the loop ---- */

static void on_piece(nrd_http_request *req, void *arg, const char *data, size_t n, bool last);

static void on_gone(nrd_http_request *req, void *arg)
{
    (void)req;
    release(arg);
}

/* The upload is the request's until a piece comes or the client is gone. */
static void read_more(upload *u)
{
    if (nrd_http_is_gone(u->req)) {
        release(u);
        return;
    }
    u->req->on_gone = on_gone;
    u->req->gone_arg = u;
    nrd_http_read_body(u->req, on_piece, u);
}

static void fail(upload *u, nrd_error *err)
{
    nrd_oai_fail(u->req, err, u->extra);
    release(u);
}

static void worked(void *arg, bool ran)
{
    upload *u = arg;
    nrd_error *err = u->err;

    u->err = NULL;
    if (!ran && !err) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "the server is shutting down");
    }
    if (err) {
        fail(u, err);
    } else if (u->last) {
        nrd_str out = {0};
        nrd_oai_put_file(&out, &u->info);
        nrd_http_reply_str(u->req, 200, "application/json", u->extra, &out);
        nrd_str_fini(&out);
        release(u);
    } else {
        read_more(u);
    }
}

static void on_piece(nrd_http_request *req, void *arg, const char *data, size_t n, bool last)
{
    upload *u = arg;

    req->on_gone = NULL;
    u->data = data;
    u->n = n;
    u->last = last;
    nrd_error *err = nrd_http_work(u->o->api->front->workers, req, work, worked, u);
    if (err) {
        fail(u, err);
    }
}

static void upload_file(nrd_openai *o, nrd_http_request *req)
{
    const nrd_view *type = nrd_http_find_field(&req->head, "Content-Type");
    const uint64_t most = nrd_file_store_limits(o->files)->max_file_bytes;
    char *extra = NULL;

    if (!nrd_oai_admit(o, req, false, &extra)) {
        return;
    }
    if (nrd_oai_refuse_foreign(o, req, extra)) {
        free(extra);
        return;
    }
    upload *u = calloc(1, sizeof *u);
    if (!u) {
        nrd_oai_fail(req, nrd_error_no_memory(), extra);
        free(extra);
        return;
    }
    u->o = o;
    u->req = req;
    u->extra = extra;
    nrd_http_request_ref(req);
    nrd_oai_owner(o, req, u->owner);
    const nrd_multipart_reader reader = {on_begin, on_data, on_end, u};
    nrd_error *err = nrd_multipart_init(&u->form, type ? type->p : "", type ? type->n : 0, &reader);
    if (!err && !req->in_pieces) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "the form: it has no body");
    }
    /* What cannot fit is refused before it is sent: a form around the file has less than this. */
    if (!err && !req->head.chunked && req->head.content_length > most + (1 << 20)) {
        err = nrd_error_because(nrd_errorf(NRD_ERR_INVALID_ARG, "the file has more than %llu bytes, which is the limit "
                                           "(--openai-file-mb)", (unsigned long long)most), NRD_FILE_TOO_LARGE);
    }
    if (err) {
        fail(u, err);
    } else {
        read_more(u);
    }
}

void nrd_oai_on_files(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    if (req->head.method == NRD_HTTP_POST) {
        upload_file(user, req);
    } else {
        nrd_oai_ask(user, req, NULL, nrd_oai_put_files);
    }
}
