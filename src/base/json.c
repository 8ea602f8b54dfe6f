/* SPDX-License-Identifier: Apache-2.0
 * The JSON reader: one pass over a private copy of the text, strings decoded in place, nodes in
 * arrays of their container; depth and size are limited. Then questions about a node, and the
 * writer with the shortest text of each number. Used by every part that reads requests,
 * configurations or tokenizers. */
#include "base/json.h"

#include "base/file.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/number.h"
#include "base/pool.h"
#include "base/utf8.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* How a document lives: the text is copied once, strings are unescaped inside that copy (an
 * unescaped string is never longer than its source, and its NUL takes the place of the closing
 * quote), and the members of a container wait on a stack until it closes, so that they can be laid
 * out side by side in the arena. */

enum {
    DEFAULT_MAX_DEPTH = NRD_LIMIT_JSON_DEPTH,
    HARD_MAX_DEPTH = 1024, /* about 200 bytes of stack a level */
    TEXT_PAD = 32,         /* zeros after the text: scanning may look past the end */
};

struct nrd_json_doc {
    nrd_arena arena;
    char *text;
    size_t text_bytes;
    nrd_json root;
};

struct parser {
    nrd_json_doc *doc;
    char *begin, *p, *end;
    nrd_json *stack; /* members of the open containers */
    size_t n_stack, cap_stack;
    nrd_json few[32]; /* enough for most; a larger stack is allocated */
    size_t n_nodes, max_nodes;
    int max_depth;
    bool special;
};

static nrd_error *fault(const struct parser *ps, const char *reason, const char *at)
{
    return nrd_errorf(NRD_ERR_INVALID_ARG, "%s at %zu", reason, (size_t)(at - ps->begin));
}

static void skip_space(struct parser *ps)
{
    while (*ps->p == ' ' || *ps->p == '\n' || *ps->p == '\r' || *ps->p == '\t') {
        ps->p++;
    }
}

/* First byte from p that is a quote, a backslash, a control character, or above 0x7f. The zeros
 * after the text end every scan. */
static char *scan_plain(char *p)
{
#ifdef __SSE2__
    const __m128i quote = _mm_set1_epi8('"'), slash = _mm_set1_epi8('\\');
    const __m128i space = _mm_set1_epi8(0x20);
    for (;;) {
        __m128i v = _mm_loadu_si128((const __m128i *)(const void *)p);
        /* signed compare: controls and bytes >= 0x80 are both "less than a space" */
        __m128i hit = _mm_or_si128(_mm_or_si128(_mm_cmpeq_epi8(v, quote), _mm_cmpeq_epi8(v, slash)),
                                   _mm_cmplt_epi8(v, space));
        int mask = _mm_movemask_epi8(hit);
        if (mask) {
            return p + __builtin_ctz((unsigned)mask);
        }
        p += 16;
    }
#else
    while (*p != '"' && *p != '\\' && (signed char)*p >= 0x20) {
        p++;
    }
    return p;
#endif
}

static bool hex4(const char *p, uint32_t *out)
{
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        uint32_t d;
        if (c >= '0' && c <= '9') {
            d = (uint32_t)(c - '0');
        } else if (c >= 'a' && c <= 'f') {
            d = (uint32_t)(c - 'a' + 10);
        } else if (c >= 'A' && c <= 'F') {
            d = (uint32_t)(c - 'A' + 10);
        } else {
            return false; /* also ends at the NUL after the text */
        }
        v = v << 4 | d;
    }
    *out = v;
    return true;
}

/* p is at a backslash; *io_out receives the character. Moves ps->p behind the escape. */
static nrd_error *parse_escape(struct parser *ps, char **io_out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char *at = ps->p, c = at[1];
    const char *hit = c ? memchr(from, c, sizeof from - 1) : NULL;
    uint32_t cp, low;

    if (hit) {
        *(*io_out)++ = to[hit - from];
        ps->p = at + 2;
        return NULL;
    }
    if (c != 'u') {
        return fault(ps, "Invalid escape character in string.", at);
    }
    if (!hex4(at + 2, &cp)) {
        return fault(ps, "Incorrect hex digit after \\u escape in string.", at);
    }
    ps->p = at + 6;
    if (cp >= 0xd800 && cp <= 0xdfff) {
        if (cp >= 0xdc00 || ps->p[0] != '\\' || ps->p[1] != 'u') {
            return fault(ps, "The surrogate pair in string is invalid.", at);
        }
        if (!hex4(ps->p + 2, &low)) {
            return fault(ps, "Incorrect hex digit after \\u escape in string.", at);
        }
        if (low < 0xdc00 || low > 0xdfff) {
            return fault(ps, "The surrogate pair in string is invalid.", at);
        }
        cp = 0x10000 + ((cp - 0xd800) << 10 | (low - 0xdc00));
        ps->p += 6;
    }
    *io_out += nrd_utf8_put(*io_out, cp);
    return NULL;
}

/* ps->p is behind the opening quote. */
static nrd_error *parse_string(struct parser *ps, const char **out, size_t *out_n)
{
    char *start = ps->p, *w = start;

    for (;;) {
        char *q = scan_plain(ps->p);
        if (w != ps->p) {
            memmove(w, ps->p, (size_t)(q - ps->p));
        }
        w += q - ps->p;
        ps->p = q;
        unsigned char c = (unsigned char)*q;
        if (c == '"') {
            break;
        }
        if (c == '\\') {
            NRD_TRY(parse_escape(ps, &w));
        } else if (c >= 0x80) {
            uint32_t cp;
            size_t n = nrd_utf8_next(q, (size_t)(ps->end - q), &cp);
            if (cp == NRD_UTF8_BAD) {
                return fault(ps, "Invalid encoding in string.", q);
            }
            memmove(w, q, n);
            w += n;
            ps->p += n;
        } else if (c == 0) {
            return fault(ps, "Missing a closing quotation mark in string.", q);
        } else {
            return fault(ps, "Invalid escape character in string.", q);
        }
    }
    ps->p++;
    *w = '\0';
    *out = start;
    *out_n = (size_t)(w - start);
    return NULL;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

const char *nrd_json_special(const char *p, const char *end, double *out)
{
    static const struct {
        const char *text;
        size_t n;
        double value;
    } words[] = {{"NaN", 3, NAN}, {"Infinity", 8, INFINITY}, {"Inf", 3, INFINITY}};
    const bool negative = p < end && *p == '-';

    p += negative;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if ((size_t)(end - p) >= words[i].n && memcmp(p, words[i].text, words[i].n) == 0) {
            *out = negative ? -words[i].value : words[i].value;
            return p + words[i].n;
        }
    }
    return NULL;
}

static nrd_error *parse_number(struct parser *ps, nrd_json *node)
{
    static const double pow10[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                   1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                   1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    char *start = ps->p, *p = start;
    bool negative = *p == '-', fits = true, real = false, exp_negative = false;
    uint64_t m = 0;
    int64_t scale = 0, exponent = 0;

    p += negative;
    if (!is_digit(*p)) {
        const char *behind =
            ps->special ? nrd_json_special(start, ps->end, &node->real) : NULL;
        if (!behind) {
            return fault(ps, "Invalid value.", p);
        }
        node->type = NRD_JSON_REAL;
        ps->p = start + (behind - start);
        return NULL;
    }
    if (*p == '0') {
        p++;
    } else {
        for (; is_digit(*p); p++) {
            fits = fits && !__builtin_mul_overflow(m, 10, &m) &&
                   !__builtin_add_overflow(m, (uint64_t)(*p - '0'), &m);
        }
    }
    if (*p == '.') {
        real = true;
        p++;
        if (!is_digit(*p)) {
            return fault(ps, "Miss fraction part in number.", p);
        }
        for (; is_digit(*p); p++) {
            fits = fits && !__builtin_mul_overflow(m, 10, &m) &&
                   !__builtin_add_overflow(m, (uint64_t)(*p - '0'), &m);
            scale--;
        }
    }
    if (*p == 'e' || *p == 'E') {
        real = true;
        p++;
        exp_negative = *p == '-';
        p += *p == '-' || *p == '+';
        if (!is_digit(*p)) {
            return fault(ps, "Miss exponent in number.", p);
        }
        for (; is_digit(*p); p++) {
            exponent = exponent < 100000 ? exponent * 10 + (*p - '0') : exponent;
        }
        scale += exp_negative ? -exponent : exponent;
    }
    ps->p = p;
    if (!real && fits && m <= (uint64_t)INT64_MAX + negative) {
        node->type = NRD_JSON_INT;
        node->i = negative ? (int64_t)(0 - m) : (int64_t)m;
        return NULL;
    }
    if (!real && fits && !negative) {
        node->type = NRD_JSON_UINT;
        node->u = m;
        return NULL;
    }
    node->type = NRD_JSON_REAL;
    if (fits && m <= (UINT64_C(1) << 53) && scale >= -22 && scale <= 22) {
        /* both factors are exact, so one correctly rounded operation gives the nearest double */
        double v = scale < 0 ? (double)m / pow10[-scale] : (double)m * pow10[scale];
        node->real = negative ? -v : v;
        return NULL;
    }
    node->real = nrd_number_read(start, NULL);
    if (isinf(node->real)) {
        return fault(ps, "Number too big to be stored in double.", start);
    }
    return NULL;
}

static nrd_error *push_node(struct parser *ps, const nrd_json *node)
{
    if (++ps->n_nodes > ps->max_nodes) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the JSON text holds more than %zu values",
                          ps->max_nodes);
    }
    if (ps->n_stack == ps->cap_stack) {
        size_t cap = ps->cap_stack ? ps->cap_stack * 2 : 64, bytes;
        bool is_few = ps->stack == ps->few;
        nrd_json *grown = nrd_size_mul(cap, sizeof *grown, &bytes)
                              ? realloc(is_few ? NULL : ps->stack, bytes)
                              : NULL;
        if (!grown) {
            return nrd_error_no_memory();
        }
        if (is_few) {
            memcpy(grown, ps->few, sizeof ps->few);
        }
        ps->stack = grown;
        ps->cap_stack = cap;
    }
    ps->stack[ps->n_stack++] = *node;
    return NULL;
}

/* Moves the nodes above `base` from the stack into the arena, as the children of `node`. */
static nrd_error *close_container(struct parser *ps, size_t base, nrd_json *node)
{
    node->n = ps->n_stack - base;
    node->child = NULL;
    if (node->n) {
        node->child = nrd_arena_alloc(&ps->doc->arena, node->n * sizeof *node);
        if (!node->child) {
            return nrd_error_no_memory();
        }
        memcpy(node->child, ps->stack + base, node->n * sizeof *node);
    }
    ps->n_stack = base;
    return NULL;
}

static nrd_error *parse_value(struct parser *ps, nrd_json *node, int depth);

/* ps->p is behind the opening bracket. */
static nrd_error *parse_container(struct parser *ps, nrd_json *node, int depth)
{
    bool object = node->type == NRD_JSON_OBJECT;
    char close = object ? '}' : ']';
    size_t base = ps->n_stack, key_len = 0;

    if (depth >= ps->max_depth) {
        return fault(ps, "Nesting is deeper than the limit.", ps->p - 1);
    }
    skip_space(ps);
    if (*ps->p == close) {
        ps->p++;
        return close_container(ps, base, node);
    }
    for (;;) {
        nrd_json member = {0};
        if (object) {
            if (*ps->p != '"') {
                return fault(ps, "Missing a name for object member.", ps->p);
            }
            ps->p++;
            NRD_TRY(parse_string(ps, &member.key, &key_len));
            if (key_len > UINT32_MAX) {
                return fault(ps, "The name of an object member is too long.", ps->p);
            }
            member.key_len = (uint32_t)key_len;
            skip_space(ps);
            if (*ps->p != ':') {
                return fault(ps, "Missing a colon after a name of object member.", ps->p);
            }
            ps->p++;
            skip_space(ps);
        }
        NRD_TRY(parse_value(ps, &member, depth + 1));
        NRD_TRY(push_node(ps, &member));
        skip_space(ps);
        if (*ps->p == close) {
            ps->p++;
            return close_container(ps, base, node);
        }
        if (*ps->p != ',') {
            return fault(ps,
                         object ? "Missing a comma or '}' after an object member."
                                : "Missing a comma or ']' after an array element.",
                         ps->p);
        }
        ps->p++;
        skip_space(ps);
    }
}

static nrd_error *parse_word(struct parser *ps, const char *word)
{
    for (; *word; word++, ps->p++) {
        if (*ps->p != *word) {
            return fault(ps, "Invalid value.", ps->p);
        }
    }
    return NULL;
}

static nrd_error *parse_value(struct parser *ps, nrd_json *node, int depth)
{
    switch (*ps->p) {
    case '"':
        ps->p++;
        node->type = NRD_JSON_STRING;
        return parse_string(ps, &node->str, &node->n);
    case '{':
        ps->p++;
        node->type = NRD_JSON_OBJECT;
        return parse_container(ps, node, depth);
    case '[':
        ps->p++;
        node->type = NRD_JSON_ARRAY;
        return parse_container(ps, node, depth);
    case 't':
        node->type = NRD_JSON_BOOL;
        node->boolean = true;
        return parse_word(ps, "true");
    case 'f':
        node->type = NRD_JSON_BOOL;
        return parse_word(ps, "false");
    case 'n':
        node->type = NRD_JSON_NULL;
        return parse_word(ps, "null");
    default:
        return parse_number(ps, node);
    }
}

nrd_error *nrd_json_parse(nrd_json_doc **out, const char *text, size_t len,
                          const nrd_json_limits *limits)
{
    nrd_error *err = NULL;
    struct parser ps;
    size_t max_bytes = limits && limits->max_bytes ? limits->max_bytes : (size_t)1 << 30;
    int max_depth = limits && limits->max_depth > 0 ? limits->max_depth : DEFAULT_MAX_DEPTH;

    *out = NULL;
    if (len > max_bytes) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the JSON text has %zu bytes, the limit is %zu", len,
                          max_bytes);
    }
    ps.doc = nrd_pool_zget(sizeof *ps.doc);
    if (!ps.doc) {
        return nrd_error_no_memory();
    }
    ps.stack = ps.few;
    ps.n_stack = ps.n_nodes = 0;
    ps.cap_stack = sizeof ps.few / sizeof ps.few[0];
    ps.doc->text_bytes = len + TEXT_PAD;
    ps.doc->text = ps.doc->text_bytes <= NRD_POOL_MAX ? nrd_pool_get(ps.doc->text_bytes)
                                                      : malloc(ps.doc->text_bytes);
    if (!ps.doc->text) {
        err = nrd_error_no_memory();
        goto fail;
    }
    if (len) {
        memcpy(ps.doc->text, text, len);
    }
    memset(ps.doc->text + len, 0, TEXT_PAD);
    ps.begin = ps.p = ps.doc->text;
    ps.end = ps.begin + len;
    ps.special = limits && limits->special;
    ps.max_nodes = limits && limits->max_nodes ? limits->max_nodes : SIZE_MAX;
    ps.max_depth = max_depth < HARD_MAX_DEPTH ? max_depth : HARD_MAX_DEPTH;
    skip_space(&ps);
    if (ps.p >= ps.end) {
        err = fault(&ps, "The document is empty.", ps.p);
        goto fail;
    }
    NRD_TRY_GOTO(parse_value(&ps, &ps.doc->root, 0), err, fail);
    skip_space(&ps);
    if (ps.p != ps.end) {
        err = fault(&ps, "The document root must not be followed by other values.", ps.p);
        goto fail;
    }
    if (ps.stack != ps.few) {
        free(ps.stack);
    }
    *out = ps.doc;
    return NULL;

fail:
    if (ps.stack != ps.few) {
        free(ps.stack);
    }
    nrd_json_doc_free(ps.doc);
    return err;
}

nrd_error *nrd_json_parse_file(nrd_json_doc **out, const char *path, const nrd_json_limits *limits)
{
    nrd_map map = {0};
    *out = NULL;
    NRD_TRY(nrd_map_open(&map, path));
    nrd_error *err = nrd_json_parse(out, (const char *)map.data, map.size_bytes, limits);
    if (!err && nrd_map_is_lost(&map)) {
        nrd_json_doc_free(*out);
        *out = NULL;
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "made shorter while it was read");
    }
    nrd_map_close(&map);
    return nrd_error_wrap(err, "%s", path);
}

nrd_error *nrd_json_parse_in(nrd_json_doc **out, const char *dir, const char *name, const nrd_json_limits *limits)
{
    char *path = NULL;

    *out = NULL;
    NRD_TRY(nrd_path_make(&path, dir, name));
    nrd_error *err = nrd_path_exists(path) ? nrd_json_parse_file(out, path, limits) : NULL;
    free(path);
    return err;
}

const nrd_json *nrd_json_root(const nrd_json_doc *doc)
{
    return doc ? &doc->root : NULL;
}

void nrd_json_doc_free(nrd_json_doc *doc)
{
    if (doc) {
        nrd_arena_fini(&doc->arena);
        nrd_pool_put(doc->text, doc->text_bytes);
        nrd_pool_put(doc, sizeof *doc);
    }
}

/* ---- looking ---- */

bool nrd_json_is(const nrd_json *node, nrd_json_type type)
{
    return node && node->type == type;
}

bool nrd_json_is_number(const nrd_json *node)
{
    return node && (node->type == NRD_JSON_INT || node->type == NRD_JSON_UINT ||
                    node->type == NRD_JSON_REAL);
}

const nrd_json *nrd_json_get(const nrd_json *object, const char *key)
{
    if (!nrd_json_is(object, NRD_JSON_OBJECT)) {
        return NULL;
    }
    size_t len = strlen(key);
    for (size_t i = object->n; i-- > 0;) { /* backwards: the last of equal names counts */
        const nrd_json *m = &object->child[i];
        if (m->key_len == len && memcmp(m->key, key, len) == 0) {
            return m;
        }
    }
    return NULL;
}

const nrd_json *nrd_json_at(const nrd_json *array, size_t i)
{
    return i < nrd_json_len(array) ? &array->child[i] : NULL;
}

size_t nrd_json_len(const nrd_json *node)
{
    return nrd_json_is(node, NRD_JSON_ARRAY) || nrd_json_is(node, NRD_JSON_OBJECT) ? node->n : 0;
}

const char *nrd_json_str(const nrd_json *node, const char *fallback)
{
    return nrd_json_is(node, NRD_JSON_STRING) ? node->str : fallback;
}

int64_t nrd_json_int(const nrd_json *node, int64_t fallback)
{
    if (nrd_json_is(node, NRD_JSON_INT)) {
        return node->i;
    }
    if (nrd_json_is(node, NRD_JSON_REAL) && node->real >= -0x1p63 && node->real < 0x1p63 &&
        node->real == trunc(node->real)) {
        return (int64_t)node->real;
    }
    return fallback;
}

double nrd_json_num(const nrd_json *node, double fallback)
{
    if (!nrd_json_is_number(node)) {
        return fallback;
    }
    return node->type == NRD_JSON_INT    ? (double)node->i
           : node->type == NRD_JSON_UINT ? (double)node->u
                                         : node->real;
}

bool nrd_json_bool(const nrd_json *node, bool fallback)
{
    return nrd_json_is(node, NRD_JSON_BOOL) ? node->boolean : fallback;
}

const char *nrd_json_type_name(const nrd_json *node)
{
    static const char *const names[] = {"null", "boolean", "integer", "integer",
                                        "number", "string", "array", "object"};
    return node ? names[node->type] : "nothing";
}

const char *nrd_json_get_str(const nrd_json *object, const char *key, const char *fallback)
{
    return nrd_json_str(nrd_json_get(object, key), fallback);
}

int64_t nrd_json_get_int(const nrd_json *object, const char *key, int64_t fallback)
{
    return nrd_json_int(nrd_json_get(object, key), fallback);
}

double nrd_json_get_num(const nrd_json *object, const char *key, double fallback)
{
    return nrd_json_num(nrd_json_get(object, key), fallback);
}

bool nrd_json_get_bool(const nrd_json *object, const char *key, bool fallback)
{
    return nrd_json_bool(nrd_json_get(object, key), fallback);
}

/* ---- writing ---- */

static bool needs_care(unsigned char c)
{
    return c < 0x20 || c == '"' || c == '\\' || c >= 0x80;
}

static void put_escaped(nrd_str *out, unsigned char c)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    const char *hit = c ? memchr(from, c, sizeof from - 1) : NULL;
    if (hit) {
        const char two[2] = {'\\', to[hit - from]};
        nrd_str_append(out, two, 2);
    } else {
        nrd_str_printf(out, "\\u%04X", c); /* RapidJSON writes upper-case digits */
    }
}

void nrd_json_put_string(nrd_str *out, const char *s, size_t n)
{
    size_t i = 0;
    nrd_str_reserve(out, n + 2);
    nrd_str_putc(out, '"');
    while (i < n) {
        size_t start = i;
        uint32_t cp;
        while (i < n && !needs_care((unsigned char)s[i])) {
            i++;
        }
        if (i > start) {
            nrd_str_append(out, s + start, i - start);
        }
        if (i == n) {
            break;
        }
        if ((unsigned char)s[i] < 0x80) {
            put_escaped(out, (unsigned char)s[i++]);
            continue;
        }
        size_t len = nrd_utf8_next(s + i, n - i, &cp);
        if (cp == NRD_UTF8_BAD) {
            nrd_str_append(out, "\xef\xbf\xbd", 3);
        } else {
            nrd_str_append(out, s + i, len);
        }
        i += len;
    }
    nrd_str_putc(out, '"');
}

void nrd_json_put_cstr(nrd_str *out, const char *s)
{
    nrd_json_put_string(out, s, strlen(s));
}

/* Lays out `digits` times 10^(exponent - n_digits + 1): plain from 1e-6 up to 1e21, as RapidJSON
 * does, else with an exponent. */
static void put_decimal(nrd_str *out, bool negative, const char *digits, int n_digits, int exponent)
{
    if (negative) {
        nrd_str_putc(out, '-');
    }
    if (exponent >= 0 && exponent < 21) {
        int whole = exponent + 1;
        for (int i = 0; i < whole; i++) {
            nrd_str_putc(out, i < n_digits ? digits[i] : '0');
        }
        nrd_str_putc(out, '.');
        if (n_digits > whole) {
            nrd_str_append(out, digits + whole, (size_t)(n_digits - whole));
        } else {
            nrd_str_putc(out, '0');
        }
    } else if (exponent < 0 && exponent >= -6) {
        nrd_str_puts(out, "0.");
        for (int i = -1; i > exponent; i--) {
            nrd_str_putc(out, '0');
        }
        nrd_str_append(out, digits, (size_t)n_digits);
    } else {
        nrd_str_putc(out, digits[0]);
        if (n_digits > 1) {
            nrd_str_putc(out, '.');
            nrd_str_append(out, digits + 1, (size_t)n_digits - 1);
        }
        nrd_str_printf(out, "e%d", exponent);
    }
}

/* The first precision of [lo, hi] whose decimal reads back equal; fewer digits than lo are found by
 * dropping zeros, because every decimal of that length survives the trip through the type. */
static void put_shortest(nrd_str *out, double v, bool single, int lo, int hi)
{
    char text[40], digits[20];
    int n = 0, exponent = 0;

    if (!isfinite(v)) {
        nrd_str_puts(out, "null");
        return;
    }
    for (int precision = lo; precision <= hi; precision++) {
        nrd_number_print(text, sizeof text, "%.*e", precision - 1, v);
        double back = nrd_number_read(text, NULL);
        if (single ? (float)back == (float)v : back == v) {
            break;
        }
    }
    const char *p = text + (text[0] == '-');
    for (; *p && *p != 'e'; p++) {
        if (is_digit(*p) && n < (int)sizeof digits) {
            digits[n++] = *p;
        }
    }
    if (*p == 'e') {
        exponent = (int)strtol(p + 1, NULL, 10);
    }
    while (n > 1 && digits[n - 1] == '0') {
        n--;
    }
    put_decimal(out, text[0] == '-', digits, n, exponent);
}

void nrd_json_put_double(nrd_str *out, double v)
{
    if (v == trunc(v) && fabs(v) < 1e15 && !(v == 0 && signbit(v))) {
        nrd_str_put_i64(out, (int64_t)v);
        nrd_str_append(out, ".0", 2);
        return;
    }
    /* subnormals hold fewer digits than the 15 that normal numbers keep */
    put_shortest(out, v, false, fabs(v) < 0x1p-1022 ? 1 : 15, 17);
}

void nrd_json_put_float(nrd_str *out, float v)
{
    if (v == truncf(v) && fabsf(v) < 1e6f && !(v == 0 && signbit(v))) {
        nrd_str_put_i64(out, (int64_t)v);
        nrd_str_append(out, ".0", 2);
        return;
    }
    put_shortest(out, (double)v, true, fabsf(v) < 0x1p-126f ? 1 : 6, 9);
}

static void new_line(nrd_str *out, int indent, int level)
{
    if (indent >= 0) {
        nrd_str_printf(out, "\n%*s", indent * level, "");
    }
}

/* Depth is that of the document, at most HARD_MAX_DEPTH. */
static void put_node(nrd_str *out, const nrd_json *node, int indent, int level)
{
    bool object = node->type == NRD_JSON_OBJECT;
    switch (node->type) {
    case NRD_JSON_NULL:
        nrd_str_puts(out, "null");
        return;
    case NRD_JSON_BOOL:
        nrd_str_puts(out, node->boolean ? "true" : "false");
        return;
    case NRD_JSON_INT:
        nrd_str_put_i64(out, node->i);
        return;
    case NRD_JSON_UINT:
        nrd_str_printf(out, "%llu", (unsigned long long)node->u);
        return;
    case NRD_JSON_REAL:
        nrd_json_put_double(out, node->real);
        return;
    case NRD_JSON_STRING:
        nrd_json_put_string(out, node->str, node->n);
        return;
    case NRD_JSON_ARRAY:
    case NRD_JSON_OBJECT:
        break;
    }
    nrd_str_putc(out, object ? '{' : '[');
    for (size_t i = 0; i < node->n; i++) {
        if (i) {
            nrd_str_putc(out, ',');
        }
        new_line(out, indent, level + 1);
        if (object) {
            nrd_json_put_string(out, node->child[i].key, node->child[i].key_len);
            nrd_str_puts(out, indent >= 0 ? ": " : ":");
        }
        put_node(out, &node->child[i], indent, level + 1);
    }
    if (node->n) {
        new_line(out, indent, level);
    }
    nrd_str_putc(out, object ? '}' : ']');
}

void nrd_json_put(nrd_str *out, const nrd_json *node, int indent)
{
    if (node) {
        put_node(out, node, indent, 0);
    } else {
        nrd_str_puts(out, "null");
    }
}
