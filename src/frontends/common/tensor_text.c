/* SPDX-License-Identifier: Apache-2.0
 * Finds the long arrays of numbers in the text of a request, cuts them out before the rest is
 * parsed, and reads them straight into tensor memory. Errors have the offset in the whole text.
 * Called by http/infer.c. */
#include "frontends/common/tensor_text.h"

#include "base/number.h"

#include "frontends/common/tensor_json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 64

/* ---- finding the arrays ---- */

typedef struct scanner {
    const char *begin, *p, *end;
} scanner;

static void skip_space(scanner *s)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\n' || *s->p == '\r' || *s->p == '\t')) {
        s->p++;
    }
}

static bool take(scanner *s, char c)
{
    skip_space(s);
    if (s->p < s->end && *s->p == c) {
        s->p++;
        return true;
    }
    return false;
}

/* A string; *plain tells that it holds no escape. false: it does not end. */
static bool skip_string(scanner *s, const char **text, size_t *n, bool *plain)
{
    *plain = true;
    *text = ++s->p;
    while (s->p < s->end && *s->p != '"') {
        if (*s->p == '\\') {
            *plain = false;
            s->p++;
        }
        s->p++;
    }
    if (s->p >= s->end) {
        return false;
    }
    *n = (size_t)(s->p - *text);
    s->p++;
    return true;
}

/* Whether a word (a number, true, null) ends here. */
static bool ends_word(char c)
{
    static const char ends[] = " \n\r\t,:]}[{\"";
    return memchr(ends, c, sizeof ends - 1) != NULL; /* a NUL byte does not: it would be stood at for ever */
}

/* Any value, without checking it closely: the JSON parser does that later. */
static bool skip_value(scanner *s)
{
    int depth = 0;
    const char *text;
    size_t n;
    bool plain;
    do {
        skip_space(s);
        if (s->p >= s->end) {
            return false;
        }
        switch (*s->p) {
        case '"':
            if (!skip_string(s, &text, &n, &plain)) {
                return false;
            }
            break;
        case '[':
        case '{':
            depth++;
            s->p++;
            continue;
        case ']':
        case '}':
            if (depth-- == 0) {
                return false;
            }
            s->p++;
            break;
        case ',':
        case ':':
            if (depth == 0) {
                return false;
            }
            s->p++;
            continue;
        default:
            while (s->p < s->end && !ends_word(*s->p)) {
                s->p++;
            }
            break;
        }
    } while (depth > 0);
    return true;
}

/* The end of an array that holds nothing but numbers and literals; NULL when it holds more. */
static const char *end_of_plain_array(const char *p, const char *end)
{
    int depth = 0;
    for (; p < end; p++) {
        if (*p == '[') {
            depth++;
        } else if (*p == ']') {
            if (--depth == 0) {
                return p + 1;
            }
        } else if (*p == '"' || *p == '{') {
            return NULL;
        }
    }
    return NULL;
}

typedef bool member_fn(scanner *s, const char *key, size_t key_n, void *arg);

/* Calls fn at the value of every member; fn moves behind it. */
static bool each_member(scanner *s, member_fn *fn, void *arg)
{
    const char *key;
    size_t n;
    bool plain;
    if (!take(s, '{')) {
        return false;
    }
    if (take(s, '}')) {
        return true;
    }
    do {
        skip_space(s);
        if (s->p >= s->end || *s->p != '"' || !skip_string(s, &key, &n, &plain) || !plain ||
            !take(s, ':')) {
            return false;
        }
        skip_space(s);
        if (!fn(s, key, n, arg)) {
            return false;
        }
    } while (take(s, ','));
    return take(s, '}');
}

typedef struct finder {
    nrd_tensor_slice *slices;
    size_t n;
    size_t input;
    bool seen_inputs, seen_data;
} finder;

static bool in_input(scanner *s, const char *key, size_t key_n, void *arg)
{
    finder *f = arg;
    if (key_n != 4 || memcmp(key, "data", 4) != 0) {
        return skip_value(s);
    }
    if (f->seen_data) {
        return false; /* which of the two counts is the parser's business */
    }
    f->seen_data = true;
    const char *end = *s->p == '[' ? end_of_plain_array(s->p, s->end) : NULL;
    if (!end || (size_t)(end - s->p) < NRD_TENSOR_TEXT_MIN || f->n == NRD_TENSOR_TEXT_MAX) {
        return skip_value(s);
    }
    f->slices[f->n++] =
        (nrd_tensor_slice){f->input, s->p, (size_t)(end - s->p), (size_t)(s->p - s->begin)};
    s->p = end;
    return true;
}

static bool in_root(scanner *s, const char *key, size_t key_n, void *arg)
{
    finder *f = arg;
    if (key_n != 6 || memcmp(key, "inputs", 6) != 0) {
        return skip_value(s);
    }
    if (f->seen_inputs || !take(s, '[')) {
        return false;
    }
    f->seen_inputs = true;
    if (take(s, ']')) {
        return true;
    }
    do {
        skip_space(s);
        f->seen_data = false;
        if (s->p >= s->end || !each_member(s, in_input, f)) {
            return false;
        }
        f->input++;
    } while (take(s, ','));
    return take(s, ']');
}

size_t nrd_tensor_text_cut(const char *text, size_t n, char *copy,
                           nrd_tensor_slice slices[NRD_TENSOR_TEXT_MAX])
{
    scanner s = {text, text, text + n};
    finder f = {.slices = slices};
    if (!each_member(&s, in_root, &f) || f.n == 0) {
        return 0;
    }
    memcpy(copy, text, n);
    for (size_t i = 0; i < f.n; i++) {
        memset(copy + slices[i].offset + 1, ' ', slices[i].n - 2);
    }
    return f.n;
}

/* ---- reading the numbers ---- */

static nrd_error *fault(const nrd_tensor_slice *s, const char *at, const char *reason)
{
    return nrd_errorf(NRD_ERR_INTERNAL, "failed to parse the request JSON buffer: %s at %zu",
                      reason, s->offset + (size_t)(at - s->text));
}

static bool is_digit(const char *p, const char *end)
{
    return p < end && *p >= '0' && *p <= '9';
}

/* One number of JSON's grammar. Integers that fit become INT or UINT, everything else REAL. */
static const char *scan_number(const char *p, const char *end, nrd_json *out)
{
    const char *start = p;
    bool whole = true, fits = true;
    uint64_t u = 0;
    const bool negative = p < end && *p == '-';
    p += negative;
    if (!is_digit(p, end) || (*p == '0' && is_digit(p + 1, end))) {
        return NULL;
    }
    for (; is_digit(p, end); p++) {
        fits = fits && !__builtin_mul_overflow(u, 10u, &u) &&
               !__builtin_add_overflow(u, (uint64_t)(*p - '0'), &u);
    }
    if (p < end && *p == '.') {
        whole = false;
        if (!is_digit(++p, end)) {
            return NULL;
        }
        while (is_digit(p, end)) {
            p++;
        }
    }
    if (p < end && (*p == 'e' || *p == 'E')) {
        whole = false;
        p++;
        p += p < end && (*p == '+' || *p == '-');
        if (!is_digit(p, end)) {
            return NULL;
        }
        while (is_digit(p, end)) {
            p++;
        }
    }
    if (whole && fits && !negative) {
        out->type = u > INT64_MAX ? NRD_JSON_UINT : NRD_JSON_INT;
        out->u = u;
        return p;
    }
    if (whole && fits && u <= (uint64_t)INT64_MAX + 1) {
        out->type = NRD_JSON_INT;
        out->i = (int64_t)(0 - u);
        return p;
    }
    out->type = NRD_JSON_REAL;
    /* A bracket or comma follows inside the same text, so the number ends there. */
    out->real = nrd_number_read(start, NULL);
    return isinf(out->real) ? NULL : p;
}

static const char *scan_literal(const char *p, const char *end, nrd_json *out)
{
    static const struct {
        const char *text;
        size_t n;
        nrd_json_type type;
        bool value;
    } t[] = {{"true", 4, NRD_JSON_BOOL, true},
             {"false", 5, NRD_JSON_BOOL, false},
             {"null", 4, NRD_JSON_NULL, false}};
    for (size_t i = 0; i < 3; i++) {
        if ((size_t)(end - p) >= t[i].n && memcmp(p, t[i].text, t[i].n) == 0) {
            out->type = t[i].type;
            out->boolean = t[i].value;
            return p + t[i].n;
        }
    }
    return NULL;
}

/* Small integers, the common case, without the detour over a node. NULL: take the long way. */
static const char *quick_int32(const char *p, const char *end, char *to)
{
    const bool negative = *p == '-';
    const char *start = p += negative;
    int32_t v = 0;
    while (is_digit(p, end) && p - start < 9) {
        v = v * 10 + (*p++ - '0');
    }
    if (p == start || (*start == '0' && p - start > 1) || p >= end || (*p != ',' && *p != ']')) {
        return NULL;
    }
    v = negative ? -v : v;
    memcpy(to, &v, 4);
    return p;
}

static nrd_error *wrap(nrd_error *err)
{
    return nrd_error_wrap(err, "Unable to parse 'data'");
}

nrd_error *nrd_tensor_text_read(const nrd_tensor_slice *s, const char *name,
                                TRITONSERVER_DataType type, void *out, size_t size_bytes)
{
    const char *p = s->text, *end = s->text + s->n;
    const size_t size = TRITONSERVER_DataTypeByteSize(type);
    char *to = out, *to_end = to + size_bytes;
    int depth = 0;
    bool want_value = true; /* else a comma or the end of an array */
    bool may_close = false; /* behind '[' */

    if (size == 0 || type == TRITONSERVER_TYPE_FP16 || type == TRITONSERVER_TYPE_BF16) {
        nrd_json empty = {.type = NRD_JSON_ARRAY};
        nrd_error *err = nrd_tensor_json_read(&empty, name, type, out, 0);
        return err ? err
                   : nrd_errorf(NRD_ERR_INTERNAL, "Unable to parse 'data': attempt to access "
                                                  "JSON non-string as string");
    }
    while (p < end) {
        const char c = *p, *next;
        nrd_json v = {0};
        if (c == ' ' || c == '\n' || c == '\r' || c == '\t') {
            p++;
            continue;
        }
        if (!want_value || (may_close && c == ']')) {
            if (c == ']') {
                depth--;
            } else if (c != ',') {
                return fault(s, p, "Missing a comma or ']' after an array element.");
            }
            want_value = c == ',';
            may_close = false;
            p++;
            continue;
        }
        if (c == '[') {
            if (++depth > MAX_DEPTH) {
                return fault(s, p, "Too many nested containers");
            }
            may_close = true;
            p++;
            continue;
        }
        want_value = may_close = false;
        if (type == TRITONSERVER_TYPE_INT32 && to < to_end &&
            (next = quick_int32(p, end, to)) != NULL) {
            p = next;
            to += 4;
            continue;
        }
        const char first = c == '-' && p + 1 < end ? p[1] : c;
        if (first == 'N' || first == 'I') {
            v.type = NRD_JSON_REAL;
            next = nrd_json_special(p, end, &v.real);
        } else {
            next = c == '-' || (c >= '0' && c <= '9') ? scan_number(p, end, &v)
                                                      : scan_literal(p, end, &v);
        }
        if (!next) {
            return fault(s, p, "Invalid value.");
        }
        if ((size_t)(to_end - to) < size) {
            return wrap(
                nrd_errorf(NRD_ERR_INTERNAL, "Shape does not match true shape of 'data' field"));
        }
        NRD_TRY(nrd_tensor_json_read(&v, name, type, to, size));
        to += size;
        p = next;
    }
    if (depth != 0 || to != to_end) {
        return wrap(
            nrd_errorf(NRD_ERR_INTERNAL, "Shape does not match true shape of 'data' field"));
    }
    return NULL;
}
