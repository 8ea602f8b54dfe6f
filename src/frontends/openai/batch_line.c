/* SPDX-License-Identifier: Apache-2.0 */
#include "frontends/openai/batch_line.h"

#include "base/limits.h"
#include "base/siphash.h"
#include "frontends/openai/file_store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FIRST_BUFFER = 64 << 10, MAX_VALUES = NRD_LIMIT_JSON_VALUES };

/* ---- a file of lines ---- */

/* Moves what is left to the front and reads more behind it. *out_n 0: the file has ended. */
static nrd_error *fill(nrd_batch_reader *r, size_t *out_n)
{
    *out_n = 0;
    if (r->begin > 0) {
        memmove(r->buf, r->buf + r->begin, r->end - r->begin);
        r->end -= r->begin;
        r->begin = 0;
    }
    if (r->end == r->cap) {
        const size_t cap = r->cap ? 2 * r->cap : FIRST_BUFFER;
        char *buf = realloc(r->buf, cap);
        if (!buf) {
            return nrd_error_no_memory();
        }
        r->buf = buf;
        r->cap = cap;
    }
    ssize_t n;
    do {
        n = pread(r->fd, r->buf + r->end, r->cap - r->end, (off_t)r->at);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        return nrd_errorf(NRD_ERR_INTERNAL, "cannot read a file of requests: %s", strerror(errno));
    }
    r->at += (uint64_t)n;
    r->end += (size_t)n;
    *out_n = (size_t)n;
    return NULL;
}

enum { KEPT = 1024 }; /* of a line that is too long */

/* Reads away the rest of the line at the front, whose end is not in the buffer. */
static nrd_error *skip_line(nrd_batch_reader *r)
{
    size_t n = 1;

    memmove(r->buf, r->buf + r->begin, KEPT);
    r->begin = 0;
    while (n > 0) {
        r->end = KEPT;
        NRD_TRY(fill(r, &n));
        const char *eol = n > 0 ? memchr(r->buf + KEPT, '\n', r->end - KEPT) : NULL;
        if (eol) {
            const size_t at = (size_t)(eol - r->buf);
            memmove(r->buf + KEPT, r->buf + at, r->end - at);
            r->end -= at - KEPT;
            return NULL;
        }
    }
    return NULL;
}

/* Brings the line at the front into the buffer. *out_n: its bytes; *out_whole: its end is there too. */
static nrd_error *load_line(nrd_batch_reader *r, size_t *out_n, bool *out_whole, bool *out_too_long)
{
    const size_t max = r->max_line ? r->max_line : NRD_LIMIT_BATCH_LINE;
    size_t looked = 0, more = 1;

    for (;;) {
        const size_t have = r->end - r->begin;
        const char *eol = have > looked ? memchr(r->buf + r->begin + looked, '\n', have - looked) : NULL;
        *out_n = eol ? (size_t)(eol - r->buf) - r->begin : have;
        *out_whole = eol != NULL;
        if (eol || more == 0) {
            *out_too_long = *out_too_long || *out_n > max;
            return NULL;
        }
        looked = have;
        if (have > max && have > KEPT) {
            *out_too_long = true;
            NRD_TRY(skip_line(r));
            looked = KEPT;
        } else {
            NRD_TRY(fill(r, &more));
        }
    }
}

static bool is_blank(const char *p, size_t n)
{
    while (n > 0 && (p[n - 1] == ' ' || p[n - 1] == '\t' || p[n - 1] == '\r')) {
        n--;
    }
    return n == 0;
}

nrd_error *nrd_batch_next(nrd_batch_reader *r, nrd_batch_text *out, uint64_t *n_line, bool *out_more)
{
    *out_more = false;
    for (;;) {
        bool whole = false;
        *out = (nrd_batch_text){.offset = r->at - (r->end - r->begin)};
        NRD_TRY(load_line(r, &out->n, &whole, &out->too_long));
        out->text = r->buf + r->begin;
        r->begin += out->n + (whole ? 1 : 0);
        if (out->n == 0 && !whole) {
            return NULL;
        }
        if (n_line) {
            ++*n_line;
        }
        if (!is_blank(out->text, out->n)) {
            *out_more = true;
            return NULL;
        }
    }
}

void nrd_batch_reader_fini(nrd_batch_reader *r)
{
    free(r->buf);
    memset(r, 0, sizeof *r);
}

/* ---- a request ---- */

static const char *const endpoints[] = {"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"};
enum { N_ENDPOINTS = sizeof endpoints / sizeof *endpoints, MAX_ID = 512 };

int nrd_batch_endpoint_of(const char *path)
{
    for (int i = 0; i < N_ENDPOINTS; i++) {
        if (!strcmp(path, endpoints[i])) {
            return i;
        }
    }
    return -1;
}

const char *nrd_batch_endpoint(int i)
{
    return i >= 0 && i < N_ENDPOINTS ? endpoints[i] : NULL;
}

const char *nrd_batch_endpoints(void)
{
    return "/v1/chat/completions, /v1/completions, /v1/embeddings or /v1/responses";
}

static nrd_error *bad(const char *code, const char *field, const char *message)
{
    nrd_error *err = nrd_errorf(NRD_ERR_INVALID_ARG, "%s%s%s", field ? field : "", field ? ": " : "", message);
    return nrd_error_because(field ? nrd_error_at(err, field) : err, code);
}

nrd_error *nrd_batch_line_read(nrd_batch_line *out, const nrd_batch_text *text, int endpoint)
{
    const nrd_json_limits limits = {.max_depth = 64, .max_nodes = MAX_VALUES};

    memset(out, 0, sizeof *out);
    if (text->too_long) {
        return nrd_error_because(nrd_errorf(NRD_ERR_INVALID_ARG, "This line is longer than %d bytes", NRD_LIMIT_BATCH_LINE),
                                 "line_too_long");
    }
    nrd_error *err = nrd_json_parse(&out->doc, text->text, text->n, &limits);
    if (err) {
        return nrd_error_because(nrd_error_wrap(err, "This line is not parseable as valid JSON"), "invalid_json_line");
    }
    const nrd_json *root = nrd_json_root(out->doc), *id = nrd_json_get(root, "custom_id"), *url = nrd_json_get(root, "url");
    if (!nrd_json_is(root, NRD_JSON_OBJECT)) {
        return bad("invalid_json_line", NULL, "This line is not a JSON object");
    }
    if (!nrd_json_is(id, NRD_JSON_STRING) || id->n == 0 || id->n > MAX_ID || strlen(id->str) != id->n) {
        return bad("invalid_custom_id", "custom_id", "must be a string of 1 to 512 bytes");
    }
    out->custom_id = id->str;
    if (strcmp(nrd_json_get_str(root, "method", ""), "POST") != 0) {
        return bad("invalid_method", "method", "must be POST");
    }
    out->endpoint = nrd_batch_endpoint_of(nrd_json_str(url, ""));
    if (out->endpoint < 0) {
        return nrd_error_because(nrd_error_at(nrd_errorf(NRD_ERR_INVALID_ARG, "url: must be %s", nrd_batch_endpoints()), "url"),
                                 "invalid_url");
    }
    if (endpoint >= 0 && out->endpoint != endpoint) {
        return nrd_error_because(nrd_error_at(nrd_errorf(NRD_ERR_INVALID_ARG, "url: must be the batch's endpoint, %s",
                                                         endpoints[endpoint]), "url"), "mismatched_url");
    }
    out->body = nrd_json_get(root, "body");
    if (!nrd_json_is(out->body, NRD_JSON_OBJECT)) {
        return bad("invalid_body", "body", "must be an object");
    }
    const nrd_json *stream = nrd_json_get(out->body, "stream");
    if (stream && !nrd_json_is(stream, NRD_JSON_NULL) && nrd_json_bool(stream, true)) {
        return bad("invalid_body", "body.stream", "a batch has no streams: false, or leave it out");
    }
    return NULL;
}

void nrd_batch_line_fini(nrd_batch_line *l)
{
    nrd_json_doc_free(l->doc);
    memset(l, 0, sizeof *l);
}

/* ---- an answer ---- */

static const char id_prefix[] = "batch_req_";
enum { HASH_DIGITS = 32 }; /* random ids have 24 */

void nrd_batch_id_of(char out[NRD_BATCH_ID], const nrd_batch_text *text)
{
    static const uint64_t key[2] = {0x6e65726569640001u, 0x6261746368000001u}; /* any, always the same */
    nrd_siphash h;
    uint64_t sum[2];

    nrd_siphash_init(&h, key);
    nrd_siphash_add(&h, text->text, text->n);
    nrd_siphash_end(&h, sum);
    snprintf(out, NRD_BATCH_ID, "%s%016llx%016llx", id_prefix, (unsigned long long)sum[0], (unsigned long long)sum[1]);
}

bool nrd_batch_id_is_of_a_line(const char *id)
{
    return nrd_str_has_prefix(id, id_prefix) && strlen(id) == sizeof id_prefix - 1 + HASH_DIGITS;
}

static nrd_error *put_begin(nrd_str *out, const char *id, const char *custom_id)
{
    char random[NRD_FILE_ID];

    if (!id) {
        NRD_TRY(nrd_file_new_id(random, id_prefix));
        id = random;
    }
    nrd_str_printf(out, "{\"id\":\"%s\",\"custom_id\":", id);
    if (custom_id) {
        nrd_json_put_cstr(out, custom_id);
    } else {
        nrd_str_puts(out, "null");
    }
    return NULL;
}

nrd_error *nrd_batch_put_answer(nrd_str *out, const char *id, const char *custom_id, int status, const nrd_str *body)
{
    char request[NRD_FILE_ID];

    NRD_TRY(nrd_file_new_id(request, "req_"));
    NRD_TRY(put_begin(out, id, custom_id));
    nrd_str_printf(out, ",\"response\":{\"status_code\":%d,\"request_id\":\"%s\",\"body\":", status, request);
    const size_t from = out->len;
    if (body->len > 0) {
        nrd_str_put(out, body);
    } else {
        nrd_str_puts(out, "null");
    }
    for (size_t i = from; i < out->len; i++) { /* in strings they are escaped: between values they are blanks */
        out->data[i] = out->data[i] == '\n' || out->data[i] == '\r' ? ' ' : out->data[i];
    }
    nrd_str_puts(out, "},\"error\":null}\n");
    return nrd_str_error(out);
}

nrd_error *nrd_batch_put_error(nrd_str *out, const char *id, const char *custom_id, const char *code, const char *message)
{
    NRD_TRY(put_begin(out, id, custom_id));
    nrd_str_puts(out, ",\"response\":null,\"error\":{\"code\":");
    nrd_json_put_cstr(out, code);
    nrd_str_puts(out, ",\"message\":");
    nrd_json_put_cstr(out, message);
    nrd_str_puts(out, "}}\n");
    return nrd_str_error(out);
}

/* ---- ids ---- */

/* With the process's secret: nobody makes two ids with one hash. Two of 50,000 have one by chance once in 10^10 batches. */
static uint64_t hash_of(const char *id)
{
    const uint64_t h = nrd_siphash_bytes(id, strlen(id));
    return h ? h : 1;
}

/* Where the hash stands, or could. There is a free place. */
static size_t place_of(const nrd_batch_ids *s, uint64_t h)
{
    size_t i = h & (s->cap - 1);
    while (s->v[i] && s->v[i] != h) {
        i = (i + 1) & (s->cap - 1);
    }
    return i;
}

bool nrd_batch_ids_have(const nrd_batch_ids *s, const char *id)
{
    return s->cap > 0 && s->v[place_of(s, hash_of(id))] != 0;
}

static nrd_error *grow(nrd_batch_ids *s)
{
    nrd_batch_ids more = {.cap = s->cap ? 2 * s->cap : 256, .n = s->n};
    more.v = calloc(more.cap, sizeof *more.v);
    if (!more.v) {
        return nrd_error_no_memory();
    }
    for (size_t i = 0; i < s->cap; i++) {
        if (s->v[i]) {
            more.v[place_of(&more, s->v[i])] = s->v[i];
        }
    }
    free(s->v);
    *s = more;
    return NULL;
}

nrd_error *nrd_batch_ids_add(nrd_batch_ids *s, const char *id, bool *out_new)
{
    const uint64_t h = hash_of(id);

    if (2 * (s->n + 1) > s->cap) {
        NRD_TRY(grow(s));
    }
    uint64_t *at = &s->v[place_of(s, h)];
    *out_new = *at == 0;
    s->n += *at == 0;
    *at = h;
    return NULL;
}

static uint64_t tokens(const nrd_json *o, const char *name, const char *other)
{
    const int64_t n = nrd_json_get_int(o, name, nrd_json_get_int(o, other, 0));
    return n > 0 ? (uint64_t)n : 0;
}

void nrd_batch_add_usage(nrd_batch_usage *u, const nrd_json *body)
{
    const nrd_json *usage = nrd_json_get(body, "usage");
    const nrd_json *in = nrd_json_get(usage, "prompt_tokens_details"), *out = nrd_json_get(usage, "output_tokens_details");
    u->input += tokens(usage, "prompt_tokens", "input_tokens");
    u->output += tokens(usage, "completion_tokens", "output_tokens");
    u->cached += tokens(in ? in : nrd_json_get(usage, "input_tokens_details"), "cached_tokens", "");
    u->reasoning += tokens(out, "reasoning_tokens", "");
}

nrd_error *nrd_batch_ids_read(nrd_batch_ids *s, int fd, nrd_batch_counts *counts, nrd_batch_check check, void *arg)
{
    nrd_batch_reader r = {.fd = fd, .max_line = SIZE_MAX / 4};
    nrd_error *err = NULL;
    bool more = true;

    while (!err) {
        nrd_batch_text t;
        nrd_json_doc *doc = NULL;
        err = nrd_batch_next(&r, &t, NULL, &more);
        if (err || !more) {
            break;
        }
        nrd_error *broken = nrd_json_parse(&doc, t.text, t.n, NULL);
        const nrd_json *root = nrd_json_root(doc);
        const char *id = nrd_json_get_str(root, "custom_id", NULL);
        if (!broken && nrd_json_is(root, NRD_JSON_OBJECT)) {
            const bool ok = nrd_json_get_int(nrd_json_get(root, "response"), "status_code", 0) == 200;
            bool fresh = true;
            err = id && check ? check(arg, nrd_json_get_str(root, "id", ""), id) : NULL;
            err = err || !id ? err : nrd_batch_ids_add(s, id, &fresh);
            counts->ok += fresh && ok;
            counts->failed += fresh && !ok;
            counts->nameless += !id && !ok;
            if (fresh && ok) {
                nrd_batch_add_usage(&counts->usage, nrd_json_get(nrd_json_get(root, "response"), "body"));
            }
        }
        nrd_error_free(broken);
        nrd_json_doc_free(doc);
    }
    nrd_batch_reader_fini(&r);
    return err;
}

void nrd_batch_ids_fini(nrd_batch_ids *s)
{
    free(s->v);
    memset(s, 0, sizeof *s);
}
