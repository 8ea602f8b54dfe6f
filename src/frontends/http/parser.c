/* SPDX-License-Identifier: Apache-2.0
 * Parses the head of a request and the chunks of a body. The head is parsed once it is there as a
 * whole: the request line, then the fields, of which those that decide the body's length are
 * checked strictly. Called by read.c. */
#include "frontends/http/parser.h"

#include <string.h>
#include <strings.h>

#define MAX_CHUNK_EXTRA (8u << 10) /* extensions and trailers are read and dropped */

/* RFC 9110 5.6.2: characters of a token. */
static bool is_token_char(unsigned char c)
{
    static const char extra[] = "!#$%&'*+-.^_`|~";
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c != 0 && strchr(extra, c) != NULL);
}

static bool is_token(nrd_view v)
{
    for (size_t i = 0; i < v.n; i++) {
        if (!is_token_char((unsigned char)v.p[i])) {
            return false;
        }
    }
    return v.n > 0;
}

bool nrd_view_is(nrd_view v, const char *text)
{
    return v.n == strlen(text) && memcmp(v.p, text, v.n) == 0;
}

bool nrd_view_is_nocase(nrd_view v, const char *text)
{
    return v.n == strlen(text) && strncasecmp(v.p, text, v.n) == 0;
}

bool nrd_view_u64(nrd_view v, uint64_t *out)
{
    uint64_t r = 0;
    if (v.n == 0 || v.n > 20) {
        return false;
    }
    for (size_t i = 0; i < v.n; i++) {
        if (v.p[i] < '0' || v.p[i] > '9' || __builtin_mul_overflow(r, 10u, &r) ||
            __builtin_add_overflow(r, (uint64_t)(v.p[i] - '0'), &r)) {
            return false;
        }
    }
    *out = r;
    return true;
}

size_t nrd_http_find_head(const char *data, size_t n, size_t *scanned)
{
    size_t from = *scanned > 3 ? *scanned - 3 : 0;
    const char *end = n > from ? memmem(data + from, n - from, "\r\n\r\n", 4) : NULL;
    *scanned = n;
    return end ? (size_t)(end - data) + 4 : 0;
}

bool nrd_http_has_bare_lf(const char *data, size_t from, size_t n)
{
    const char *end = data + n, *p = data + from;

    while (p < end && (p = memchr(p, '\n', (size_t)(end - p))) != NULL) {
        if (p == data || p[-1] != '\r') {
            return true;
        }
        p++;
    }
    return false;
}

const nrd_view *nrd_http_find_field(const nrd_http_head *h, const char *name)
{
    for (size_t i = 0; i < h->n_fields; i++) {
        if (nrd_view_is_nocase(h->fields[i].name, name)) {
            return &h->fields[i].value;
        }
    }
    return NULL;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

bool nrd_http_unescape(nrd_view v, char *out, size_t cap)
{
    size_t o = 0;
    for (size_t i = 0; i < v.n; i++) {
        char c = v.p[i];
        if (c == '%') {
            int hi = v.n - i > 2 ? hex_digit(v.p[i + 1]) : -1;
            int lo = hi >= 0 ? hex_digit(v.p[i + 2]) : -1;
            if (lo < 0) {
                return false;
            }
            c = (char)(hi * 16 + lo);
            i += 2;
        }
        if (c == '\0' || o + 1 >= cap) {
            return false;
        }
        out[o++] = c;
    }
    if (cap == 0) {
        return false;
    }
    out[o] = '\0';
    return true;
}

/* ---- head ---- */

typedef struct head_seen {
    int hosts, lengths, encodings;
    bool close, keep_alive;
} head_seen;

static int parse_request_line(nrd_http_head *h, nrd_view line, const char **why)
{
    const char *sp1 = memchr(line.p, ' ', line.n);
    const char *sp2 = sp1 ? memchr(sp1 + 1, ' ', line.n - (size_t)(sp1 + 1 - line.p)) : NULL;
    if (!sp2) {
        *why = "malformed request line";
        return 400;
    }
    h->method_name = (nrd_view){line.p, (size_t)(sp1 - line.p)};
    nrd_view target = {sp1 + 1, (size_t)(sp2 - sp1 - 1)};
    nrd_view version = {sp2 + 1, line.n - (size_t)(sp2 + 1 - line.p)};
    if (!is_token(h->method_name)) {
        *why = "malformed method";
        return 400;
    }
    h->method = nrd_view_is(h->method_name, "POST")   ? NRD_HTTP_POST
                : nrd_view_is(h->method_name, "GET")  ? NRD_HTTP_GET
                : nrd_view_is(h->method_name, "HEAD") ? NRD_HTTP_HEAD
                                                      : NRD_HTTP_OTHER;
    if (version.n != 8 || memcmp(version.p, "HTTP/", 5) != 0 || version.p[6] != '.') {
        *why = "malformed protocol version";
        return 400;
    }
    if (version.p[5] != '1' || (version.p[7] != '0' && version.p[7] != '1')) {
        *why = "only HTTP/1.0 and HTTP/1.1 are served";
        return 505;
    }
    h->http_1_0 = version.p[7] == '0';
    for (size_t i = 0; i < target.n; i++) {
        if ((unsigned char)target.p[i] <= ' ' || target.p[i] == 0x7f) {
            *why = "malformed request target";
            return 400;
        }
    }
    /* Absolute form, which a server must accept: the authority is not looked at. */
    if (target.n > 7 && strncasecmp(target.p, "http://", 7) == 0) {
        const char *slash = memchr(target.p + 7, '/', target.n - 7);
        if (!slash) {
            *why = "malformed request target";
            return 400;
        }
        target.n -= (size_t)(slash - target.p);
        target.p = slash;
    }
    if (target.n == 0 || target.p[0] != '/') {
        *why = "malformed request target";
        return 400;
    }
    const char *hash = memchr(target.p, '#', target.n);
    if (hash) {
        *why = "malformed request target";
        return 400;
    }
    const char *q = memchr(target.p, '?', target.n);
    h->path = (nrd_view){target.p, q ? (size_t)(q - target.p) : target.n};
    h->query = q ? (nrd_view){q + 1, target.n - h->path.n - 1} : (nrd_view){"", 0};
    return 0;
}

/* A comma list contains the word. */
static bool list_has(nrd_view v, const char *word)
{
    size_t i = 0;
    while (i < v.n) {
        const char *comma = memchr(v.p + i, ',', v.n - i);
        size_t end = comma ? (size_t)(comma - v.p) : v.n;
        size_t a = i, b = end;
        while (a < b && (v.p[a] == ' ' || v.p[a] == '\t')) {
            a++;
        }
        while (b > a && (v.p[b - 1] == ' ' || v.p[b - 1] == '\t')) {
            b--;
        }
        if (nrd_view_is_nocase((nrd_view){v.p + a, b - a}, word)) {
            return true;
        }
        i = end + 1;
    }
    return false;
}

static int note_field(nrd_http_head *h, const nrd_http_field *f, head_seen *seen, const char **why)
{
    switch (f->name.n) { /* the length picks the few names that matter */
    case 4:
        if (nrd_view_is_nocase(f->name, "Host")) {
            seen->hosts++;
        }
        break;
    case 6:
        if (nrd_view_is_nocase(f->name, "Expect")) {
            if (!nrd_view_is_nocase(f->value, "100-continue")) {
                *why = "unknown expectation";
                return 417;
            }
            h->expect_continue = true;
        }
        break;
    case 10:
        if (nrd_view_is_nocase(f->name, "Connection")) {
            seen->close = seen->close || list_has(f->value, "close");
            seen->keep_alive = seen->keep_alive || list_has(f->value, "keep-alive");
        }
        break;
    case 14:
        if (nrd_view_is_nocase(f->name, "Content-Length")) {
            seen->lengths++;
            h->has_length = true;
            if (!nrd_view_u64(f->value, &h->content_length)) {
                *why = "malformed Content-Length";
                return 400;
            }
        }
        break;
    case 17:
        if (nrd_view_is_nocase(f->name, "Transfer-Encoding")) {
            seen->encodings++;
            if (!nrd_view_is_nocase(f->value, "chunked")) {
                *why = "only the transfer encoding 'chunked' is served";
                return 501;
            }
            h->chunked = true;
        }
        break;
    default:
        break;
    }
    return 0;
}

static int parse_field(nrd_http_head *h, nrd_view line, head_seen *seen, const char **why)
{
    const char *colon = memchr(line.p, ':', line.n);
    nrd_http_field f;
    /* A token check also refuses folded lines and a blank before the colon. */
    if (!colon || !is_token((nrd_view){line.p, (size_t)(colon - line.p)})) {
        *why = "malformed header field";
        return 400;
    }
    f.name = (nrd_view){line.p, (size_t)(colon - line.p)};
    const char *a = colon + 1, *b = line.p + line.n;
    while (a < b && (*a == ' ' || *a == '\t')) {
        a++;
    }
    while (b > a && (b[-1] == ' ' || b[-1] == '\t')) {
        b--;
    }
    for (const char *p = a; p < b; p++) {
        if (((unsigned char)*p < ' ' && *p != '\t') || *p == 0x7f) {
            *why = "control character in a header field";
            return 400;
        }
    }
    f.value = (nrd_view){a, (size_t)(b - a)};
    if (h->n_fields == NRD_HTTP_MAX_HEADERS) {
        *why = "too many header fields";
        return 431;
    }
    h->fields[h->n_fields++] = f;
    return note_field(h, &f, seen, why);
}

int nrd_http_parse_head(nrd_http_head *h, const char *data, size_t n, const char **out_reason)
{
    head_seen seen = {0};
    const char *p = data, *end = data + n;
    bool first = true;

    /* fields[] is left alone: n_fields says how many are set. */
    memset(h, 0, offsetof(nrd_http_head, fields));
    *out_reason = "malformed request";
    for (;;) {
        const char *nl = p < end ? memchr(p, '\n', (size_t)(end - p)) : NULL;
        if (!nl || nl == p || nl[-1] != '\r') {
            return 400;
        }
        nrd_view line = {p, (size_t)(nl - 1 - p)};
        p = nl + 1;
        if (line.n == 0) {
            break;
        }
        int status = first ? parse_request_line(h, line, out_reason)
                           : parse_field(h, line, &seen, out_reason);
        if (status) {
            return status;
        }
        first = false;
    }
    if (first || p != end) {
        return 400;
    }
    if (seen.hosts > 1 || (seen.hosts == 0 && !h->http_1_0)) {
        *out_reason = "exactly one Host header field is required";
        return 400;
    }
    if (seen.lengths > 1) {
        *out_reason = "repeated Content-Length";
        return 400;
    }
    if (seen.encodings > 1 || (seen.encodings && (seen.lengths || h->http_1_0))) {
        *out_reason = "Transfer-Encoding and Content-Length contradict each other";
        return 400;
    }
    h->keep_alive = !seen.close && (!h->http_1_0 || seen.keep_alive);
    h->expect_continue = h->expect_continue && !h->http_1_0;
    return 0;
}

/* ---- chunked bodies: size [;ext] CRLF data CRLF ... 0 CRLF trailers CRLF ---- */

enum {
    CH_SIZE,
    CH_EXT,
    CH_SIZE_LF,
    CH_DATA,
    CH_DATA_CR,
    CH_DATA_LF,
    CH_TRAILER_START,
    CH_TRAILER,
    CH_TRAILER_LF,
    CH_END_LF,
    CH_DONE,
    CH_BAD,
};

/* One byte outside the data of a chunk; returns the next state. */
static int chunk_byte(nrd_http_chunks *c, char b)
{
    int d;
    switch (c->state) {
    case CH_SIZE:
        d = hex_digit(b);
        if (d >= 0) {
            /* 15 digits hold every size that passes the body limit and cannot overflow. */
            c->left = c->left * 16 + (unsigned)d;
            return ++c->digits > 15 ? CH_BAD : CH_SIZE;
        }
        if (c->digits == 0) {
            return CH_BAD;
        }
        return b == '\r' ? CH_SIZE_LF : b == ';' ? CH_EXT : CH_BAD;
    case CH_EXT:
        if (++c->extra_bytes > MAX_CHUNK_EXTRA || b == '\n') {
            return CH_BAD;
        }
        return b == '\r' ? CH_SIZE_LF : CH_EXT;
    case CH_SIZE_LF:
        c->digits = 0;
        return b != '\n' ? CH_BAD : c->left ? CH_DATA : CH_TRAILER_START;
    case CH_DATA_CR:
        return b == '\r' ? CH_DATA_LF : CH_BAD;
    case CH_DATA_LF:
        return b == '\n' ? CH_SIZE : CH_BAD;
    case CH_TRAILER_START:
        return b == '\r' ? CH_END_LF : b == '\n' ? CH_BAD : CH_TRAILER;
    case CH_TRAILER:
        if (++c->extra_bytes > MAX_CHUNK_EXTRA || b == '\n') {
            return CH_BAD;
        }
        return b == '\r' ? CH_TRAILER_LF : CH_TRAILER;
    case CH_TRAILER_LF:
        return b == '\n' ? CH_TRAILER_START : CH_BAD;
    case CH_END_LF:
        return b == '\n' ? CH_DONE : CH_BAD;
    default:
        return CH_BAD;
    }
}

nrd_http_chunks_result nrd_http_chunks_next(nrd_http_chunks *c, const char **data, size_t *n,
                                            const char **out_data, size_t *out_n)
{
    while (c->state != CH_DONE && c->state != CH_BAD && *n > 0) {
        if (c->state == CH_DATA) {
            size_t take = c->left < *n ? (size_t)c->left : *n;
            *out_data = *data;
            *out_n = take;
            *data += take;
            *n -= take;
            c->left -= take;
            if (c->left == 0) {
                c->state = CH_DATA_CR;
            }
            return NRD_CHUNKS_DATA;
        }
        c->state = chunk_byte(c, **data);
        (*data)++;
        (*n)--;
    }
    return c->state == CH_DONE  ? NRD_CHUNKS_DONE
           : c->state == CH_BAD ? NRD_CHUNKS_ERROR
                                : NRD_CHUNKS_MORE;
}
