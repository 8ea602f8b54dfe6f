/* SPDX-License-Identifier: Apache-2.0
 * base/json.h - reading and writing JSON.
 *
 * Purpose   A strict RFC 8259 reader into an immutable tree, and append-style writing into nrd_str.
 *           Our own and not a library because the engine must build with nothing but a C compiler,
 *           tokenizer files of 30 MB must load in tens of milliseconds, and the error texts must be
 *           those that Triton's clients know.
 * Owner     A document is owned by its creator and may be read by many threads at once.
 * Errors    INVALID_ARG with the reason and the byte offset: "<reason> at <offset>".
 * Limits    nrd_json_limits; depth is bounded, so no input can exhaust the stack.
 * Lifetime  Nodes and strings live as long as their document.
 */
#ifndef NRD_BASE_JSON_H
#define NRD_BASE_JSON_H

#include "base/error.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    NRD_JSON_NULL,
    NRD_JSON_BOOL,
    NRD_JSON_INT,  /* fits int64_t */
    NRD_JSON_UINT, /* an integer above INT64_MAX that fits uint64_t */
    NRD_JSON_REAL,
    NRD_JSON_STRING,
    NRD_JSON_ARRAY,
    NRD_JSON_OBJECT,
} nrd_json_type;

typedef struct nrd_json {
    nrd_json_type type;
    bool boolean;
    uint32_t key_len;      /* length of `key` where the node is an object's member */
    const char *key;       /* NUL-terminated; may hold NULs inside; NULL in arrays and at the root */
    union {
        int64_t i;
        uint64_t u;
        double real;       /* NRD_JSON_REAL */
        const char *str;   /* NUL-terminated, UTF-8, unescaped; `n` bytes */
        struct nrd_json *child; /* first element or member: child[0..n-1], contiguous */
    };
    size_t n;              /* bytes of a string; elements of an array; members of an object */
} nrd_json;

typedef struct nrd_json_doc nrd_json_doc;

typedef struct nrd_json_limits {
    size_t max_bytes; /* 0: 1 GiB */
    int max_depth;    /* 0: 64 */
    size_t max_nodes; /* 0: no limit; a node takes 40 bytes, a number in the text maybe two */
    bool special;     /* NaN, Inf, Infinity, with or without '-', are numbers too: not RFC 8259 */
} nrd_json_limits;

/* Parses text[0..len). `limits` may be NULL. The text is copied as needed; it may be freed after.
 * Duplicate keys are kept (lookups find the last); invalid UTF-8 and lone surrogates are refused. */
nrd_error *nrd_json_parse(nrd_json_doc **out, const char *text, size_t len,
                          const nrd_json_limits *limits) NRD_MUST_USE;
nrd_error *nrd_json_parse_file(nrd_json_doc **out, const char *path,
                               const nrd_json_limits *limits) NRD_MUST_USE;
/* A file of a folder; *out NULL: it is not there. */
nrd_error *nrd_json_parse_in(nrd_json_doc **out, const char *dir, const char *name,
                             const nrd_json_limits *limits) NRD_MUST_USE;
const nrd_json *nrd_json_root(const nrd_json_doc *doc);
void nrd_json_doc_free(nrd_json_doc *doc);

/* All accessors accept NULL nodes and nodes of another type and then give the default. */
const nrd_json *nrd_json_get(const nrd_json *object, const char *key);
const nrd_json *nrd_json_at(const nrd_json *array, size_t i);
size_t nrd_json_len(const nrd_json *array_or_object);
const char *nrd_json_str(const nrd_json *node, const char *fallback);
int64_t nrd_json_int(const nrd_json *node, int64_t fallback);  /* whole REALs count */
double nrd_json_num(const nrd_json *node, double fallback);
bool nrd_json_bool(const nrd_json *node, bool fallback);
bool nrd_json_is(const nrd_json *node, nrd_json_type type);
bool nrd_json_is_number(const nrd_json *node);
const char *nrd_json_type_name(const nrd_json *node); /* "string", "array", … */

/* Reads NaN, Inf or Infinity, with or without '-', at `p`. The end of it, or NULL: something else
 * stands there. Any thread. */
const char *nrd_json_special(const char *p, const char *end, double *out);

/* Same with the object's key in one call. */
const char *nrd_json_get_str(const nrd_json *object, const char *key, const char *fallback);
int64_t nrd_json_get_int(const nrd_json *object, const char *key, int64_t fallback);
double nrd_json_get_num(const nrd_json *object, const char *key, double fallback);
bool nrd_json_get_bool(const nrd_json *object, const char *key, bool fallback);

/* Writing. Strings are escaped; invalid UTF-8 becomes U+FFFD. Doubles are written with the fewest
 * digits that read back equal; NaN and infinities become null. */
void nrd_json_put_string(nrd_str *out, const char *s, size_t n);
void nrd_json_put_cstr(nrd_str *out, const char *s);
void nrd_json_put_double(nrd_str *out, double v);
void nrd_json_put_float(nrd_str *out, float v);
/* Writes a tree. indent < 0: one line, else pretty with that many spaces a level. */
void nrd_json_put(nrd_str *out, const nrd_json *node, int indent);

#endif
