/* SPDX-License-Identifier: Apache-2.0
 * HTTP answers: see http_reader.h. Bytes are taken line by line in the head, between chunks and in
 * streams of events, and as they are in other bodies. */
#include "tools/load/http_reader.h"

#include <string.h>
#include <strings.h>

enum { MAX_HEAD = 64 << 10, MAX_BODY = 64 << 20 };

void nrd_http_reader_begin(nrd_http_reader *r)
{
    r->state = NRD_HTTP_HEAD;
    r->status = 0;
    r->in_body = r->is_events = r->closes = false;
    r->left = 0;
    r->error = NULL;
    nrd_str_clear(&r->line);
    nrd_str_clear(&r->body);
}

void nrd_http_reader_fini(nrd_http_reader *r)
{
    nrd_str_fini(&r->line);
    nrd_str_fini(&r->body);
}

static bool fail(nrd_http_reader *r, const char *why)
{
    r->error = why;
    return false;
}

/* ---- lines ---- */

/* Takes up to the end of a line. True: *line[0..*n_line) is one, without its end; it borrows from data
 * or, where it came in parts, from r->line, which the caller clears. */
static bool take_line(nrd_http_reader *r, const char **data, size_t *n, const char **line,
                      size_t *n_line)
{
    const char *end = memchr(*data, '\n', *n);
    const size_t took = end ? (size_t)(end - *data) + 1 : *n;

    if (r->line.len > 0 || !end) {
        nrd_str_append(&r->line, *data, took);
        *line = nrd_str_cstr(&r->line);
        *n_line = r->line.len;
    } else {
        *line = *data;
        *n_line = took;
    }
    *data += took;
    *n -= took;
    if (!end) {
        return false;
    }
    *n_line -= 1;
    *n_line -= *n_line > 0 && (*line)[*n_line - 1] == '\r';
    return true;
}

static bool has_name(const char *line, size_t n, const char *name, const char **value,
                     size_t *n_value)
{
    const size_t k = strlen(name);
    if (n <= k || line[k] != ':' || strncasecmp(line, name, k) != 0) {
        return false;
    }
    *value = line + k + 1;
    *n_value = n - k - 1;
    while (*n_value > 0 && (**value == ' ' || **value == '\t')) {
        (*value)++;
        (*n_value)--;
    }
    return true;
}

static bool read_size(const char *text, size_t n, unsigned base, size_t *out)
{
    size_t v = 0, i = 0;
    for (; i < n; i++) {
        const char c = (char)(text[i] | 0x20);
        const unsigned digit = text[i] >= '0' && text[i] <= '9' ? (unsigned)(text[i] - '0')
                               : c >= 'a' && c <= 'f'           ? (unsigned)(c - 'a') + 10
                                                                : base;
        if (digit >= base) {
            break;
        }
        v = v * base + digit;
        if (v > MAX_BODY) {
            return false;
        }
    }
    *out = v;
    return i > 0 && (i == n || text[i] == ';' || text[i] == ' ' || text[i] == '\t');
}

/* ---- the head ---- */

static bool head_line(nrd_http_reader *r, const char *line, size_t n)
{
    const char *value;
    size_t k;
    if (r->status == 0) {
        size_t status = 0;
        if (n < 12 || memcmp(line, "HTTP/1.", 7) != 0 || !read_size(line + 9, 3, 10, &status) ||
            status < 100) {
            return fail(r, "the answer is not HTTP/1.1");
        }
        r->status = (int)status;
        r->closes = line[7] == '0';
    } else if (has_name(line, n, "content-length", &value, &k)) {
        if (!read_size(value, k, 10, &r->left)) {
            return fail(r, "Content-Length is no number up to 64 MiB");
        }
        r->state = NRD_HTTP_BODY;
    } else if (has_name(line, n, "transfer-encoding", &value, &k)) {
        r->state = NRD_HTTP_CHUNK_SIZE;
    } else if (has_name(line, n, "content-type", &value, &k)) {
        r->is_events = k >= 17 && strncasecmp(value, "text/event-stream", 17) == 0;
    } else if (has_name(line, n, "connection", &value, &k)) {
        r->closes = k >= 5 && strncasecmp(value, "close", 5) == 0;
    }
    return true;
}

static void done(nrd_http_reader *r)
{
    r->state = NRD_HTTP_DONE;
    if (!r->is_events && r->piece) {
        r->piece(r->arg, nrd_str_cstr(&r->body), r->body.len);
    }
}

/* Lines up to the empty one. */
static bool feed_head(nrd_http_reader *r, const char **data, size_t *n, bool *out_ended)
{
    const char *line;
    size_t n_line;

    *out_ended = false;
    while (*n > 0 && take_line(r, data, n, &line, &n_line)) {
        const bool is_last = n_line == 0 && r->status > 0;
        const bool is_fine = n_line == 0 || head_line(r, line, n_line);
        nrd_str_clear(&r->line);
        if (!is_fine || is_last) {
            *out_ended = is_last;
            return is_fine;
        }
    }
    return r->line.len <= MAX_HEAD || fail(r, "a line of the head is longer than 64 KiB");
}

/* ---- the body ---- */

/* Is the next line the empty one? Bytes that have not come yet are not it. */
static bool ends_event(const char *data, size_t n)
{
    return n > 0 && (data[0] == '\n' || (n > 1 && data[0] == '\r' && data[1] == '\n'));
}

static bool feed_events(nrd_http_reader *r, const char *data, size_t n)
{
    const char *line;
    size_t n_line;

    while (n > 0 && take_line(r, &data, &n, &line, &n_line)) {
        if (n_line >= 5 && !memcmp(line, "data:", 5)) {
            line += 5;
            n_line -= 5;
            if (n_line > 0 && *line == ' ') {
                line++;
                n_line--;
            }
            if (r->body.len > 0) { /* further lines of the same event */
                nrd_str_putc(&r->body, '\n');
                nrd_str_append(&r->body, line, n_line);
            } else if (n_line > 0 && ends_event(data, n)) {
                r->piece(r->arg, line, n_line); /* the event ends here: nothing to join */
            } else {
                nrd_str_append(&r->body, line, n_line);
            }
        } else if (n_line == 0 && r->body.len > 0) {
            r->piece(r->arg, nrd_str_cstr(&r->body), r->body.len);
            nrd_str_clear(&r->body);
        }
        nrd_str_clear(&r->line);
    }
    return r->line.len + r->body.len <= MAX_BODY || fail(r, "an event is longer than 64 MiB");
}

static bool feed_body(nrd_http_reader *r, const char *data, size_t n)
{
    if (r->is_events && r->piece) {
        return feed_events(r, data, n);
    }
    nrd_str_append(&r->body, data, n);
    return r->body.len <= MAX_BODY || fail(r, "the body is longer than 64 MiB");
}

/* Between chunks events may have left a part of a line in r->line: the lines of chunks have their own
 * way, digit by digit, so that both can be under way. */
static bool feed_chunk_size(nrd_http_reader *r, const char **data, size_t *n)
{
    while (*n > 0) {
        const char c = **data;
        size_t digit = 0;
        (*data)++;
        (*n)--;
        if (c == '\n') {
            r->state = r->left > 0 ? NRD_HTTP_CHUNK : NRD_HTTP_TRAILER;
            return true;
        }
        if (read_size(&c, 1, 16, &digit)) {
            r->left = r->left * 16 + digit;
            if (r->left > MAX_BODY) {
                return fail(r, "a chunk is larger than 64 MiB");
            }
        } else if (c != '\r') { /* extensions mean nothing to us, and nobody sends them */
            return fail(r, "the size of a chunk is no number");
        }
    }
    return true;
}

static bool step(nrd_http_reader *r, const char **data, size_t *n)
{
    size_t take = *n;
    switch (r->state) {
    case NRD_HTTP_BODY:
    case NRD_HTTP_CHUNK:
        take = r->left < *n ? r->left : *n;
        if (!feed_body(r, *data, take)) {
            return false;
        }
        r->left -= take;
        if (r->left == 0 && r->state == NRD_HTTP_BODY) {
            done(r);
        } else if (r->left == 0) {
            r->state = NRD_HTTP_CHUNK_END;
        }
        break;
    case NRD_HTTP_TO_CLOSE:
        if (!feed_body(r, *data, take)) {
            return false;
        }
        break;
    case NRD_HTTP_CHUNK_SIZE:
        return feed_chunk_size(r, data, n);
    case NRD_HTTP_CHUNK_END:
    case NRD_HTTP_TRAILER:
        take = 1;
        if (**data == '\n' && r->state == NRD_HTTP_CHUNK_END) {
            r->state = NRD_HTTP_CHUNK_SIZE;
        } else if (**data == '\n' && r->left == 0) {
            done(r);
        } else if (**data == '\n') {
            r->left = 0; /* a trailer's line ends: the next may be the empty one */
        } else if (**data != '\r') {
            r->left = 1;
        }
        break;
    default:
        break;
    }
    *data += take;
    *n -= take;
    return true;
}

/* The head has ended: what follows? */
static void begin_body(nrd_http_reader *r)
{
    if (r->status < 200) { /* 100 Continue: the answer itself is still to come */
        r->status = 0;
        r->left = 0;
        r->state = NRD_HTTP_HEAD;
        return;
    }
    if (r->state == NRD_HTTP_HEAD) { /* no length was announced */
        r->state = NRD_HTTP_TO_CLOSE;
    }
    if (r->status == 204 || r->status == 304 || (r->state == NRD_HTTP_BODY && r->left == 0)) {
        done(r);
    } else if (r->state == NRD_HTTP_CHUNK_SIZE) {
        r->left = 0; /* whatever Content-Length said */
    }
}

bool nrd_http_reader_feed(nrd_http_reader *r, const char *data, size_t n, size_t *out_used)
{
    const size_t all = n;
    bool is_fine = true;

    while (n > 0 && is_fine && r->state != NRD_HTTP_DONE) {
        if (!r->in_body) {
            bool ended = false;
            is_fine = feed_head(r, &data, &n, &ended);
            if (ended && is_fine) {
                r->in_body = r->status >= 200;
                begin_body(r);
            }
        } else {
            is_fine = step(r, &data, &n);
        }
    }
    *out_used = all - n;
    return is_fine;
}

bool nrd_http_reader_close(nrd_http_reader *r)
{
    if (r->state != NRD_HTTP_TO_CLOSE) {
        return r->state == NRD_HTTP_DONE;
    }
    done(r);
    return true;
}
