/* SPDX-License-Identifier: Apache-2.0
 * frontends/http/parser.h - HTTP/1.1 request heads and chunked bodies, strictly.
 *
 * Purpose   Turns bytes into a request line, header views and the framing of the body. Anything
 *           that two parsers could read differently (request smuggling) is refused, not guessed.
 * Owner     Stateless functions and plain structs; no I/O, no allocation, no server types.
 * Errors    An HTTP status (400, 413, 431, 501, 505) and one sentence.
 * Limits    NRD_HTTP_MAX_HEAD bytes of head, NRD_HTTP_MAX_HEADERS fields.
 * Lifetime  Views point into the caller's buffer.
 * Sources   RFC 9110, RFC 9112 (sections 3, 5, 6, 7).
 */
#ifndef NRD_FRONTENDS_HTTP_PARSER_H
#define NRD_FRONTENDS_HTTP_PARSER_H

#include "base/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NRD_HTTP_MAX_HEAD ((size_t)NRD_LIMIT_HTTP_HEAD)
#define NRD_HTTP_MAX_HEADERS NRD_LIMIT_HTTP_HEADERS

typedef enum {
    NRD_HTTP_GET,
    NRD_HTTP_POST,
    NRD_HTTP_HEAD,
    NRD_HTTP_OTHER, /* any other method; nothing here serves it */
} nrd_http_method;

typedef struct nrd_view {
    const char *p;
    size_t n;
} nrd_view;

typedef struct nrd_http_field {
    nrd_view name, value; /* value without surrounding blanks */
} nrd_http_field;

typedef struct nrd_http_head {
    nrd_http_method method;
    nrd_view method_name;
    nrd_view path;  /* begins with '/', still percent-encoded, without query */
    nrd_view query; /* behind '?', maybe empty */
    bool http_1_0;
    bool keep_alive;
    bool chunked;
    bool expect_continue;
    bool has_length;
    uint64_t content_length;
    size_t n_fields;
    nrd_http_field fields[NRD_HTTP_MAX_HEADERS];
} nrd_http_head;

/* Length of the head including its empty line, 0 when it is not complete yet. `scanned` remembers
 * how far earlier calls looked; set it to 0 for a new request. */
size_t nrd_http_find_head(const char *data, size_t n, size_t *scanned);
/* Whether a line in data[from..n) ends without a carriage return: no head that does is accepted. */
bool nrd_http_has_bare_lf(const char *data, size_t from, size_t n);

/* Parses a complete head of n bytes. Returns 0, or the status to answer with *out_reason. */
int nrd_http_parse_head(nrd_http_head *h, const char *data, size_t n, const char **out_reason);

/* Value of the first field of that name (any case), NULL when there is none. */
const nrd_view *nrd_http_find_field(const nrd_http_head *h, const char *name);
bool nrd_view_is(nrd_view v, const char *text); /* exact */
bool nrd_view_is_nocase(nrd_view v, const char *text);
/* Decimal digits only; false on anything else or above UINT64_MAX. */
bool nrd_view_u64(nrd_view v, uint64_t *out);

/* Undoes percent-encoding into out[0..cap); false on a bad escape, a NUL or lack of room. */
bool nrd_http_unescape(nrd_view v, char *out, size_t cap);

/* ---- chunked bodies ---- */
typedef struct nrd_http_chunks {
    int state;
    uint64_t left;      /* of the current chunk */
    unsigned digits;    /* of the chunk size */
    size_t extra_bytes; /* of chunk extensions and trailers */
} nrd_http_chunks;

typedef enum {
    NRD_CHUNKS_MORE, /* all of the input is used; give more */
    NRD_CHUNKS_DATA, /* *out_data, *out_n hold body bytes; call again */
    NRD_CHUNKS_DONE, /* the body is complete */
    NRD_CHUNKS_ERROR,
} nrd_http_chunks_result;

/* Consumes from (*data)[0..*n) and moves both on. Start with a zeroed struct. */
nrd_http_chunks_result nrd_http_chunks_next(nrd_http_chunks *c, const char **data, size_t *n,
                                            const char **out_data, size_t *out_n);

#endif
