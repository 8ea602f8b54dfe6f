/* SPDX-License-Identifier: Apache-2.0
 * The growing byte buffer, and reading numbers from whole strings. Capacity doubles; the bytes
 * always end with a NUL. Used everywhere. */
#include "base/str.h"

#include "base/mem.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

void nrd_str_fini(nrd_str *s)
{
    free(s->data);
    memset(s, 0, sizeof *s);
}

void nrd_str_clear(nrd_str *s)
{
    s->len = 0;
    if (s->data) {
        s->data[0] = '\0';
    }
}

void nrd_str_reserve(nrd_str *s, size_t more_bytes)
{
    size_t need;
    NRD_ASSERT(nrd_size_add(s->len, more_bytes, &need) && nrd_size_add(need, 1, &need),
               "buffer sizes are bounded by their callers");
    if (need > s->cap) {
        size_t cap = s->cap ? s->cap : 64;
        while (cap < need) {
            cap = cap > SIZE_MAX / 2 ? need : cap * 2; /* doubling: appends stay cheap */
        }
        s->data = nrd_xrealloc(s->data, cap);
        s->cap = cap;
    }
}

void nrd_str_append(nrd_str *s, const void *data, size_t n)
{
    if (n >= s->cap - s->len) { /* the zero at the end needs a byte, too */
        nrd_str_reserve(s, n);
    }
    if (n) {
        memcpy(s->data + s->len, data, n);
    }
    s->len += n;
    s->data[s->len] = '\0';
}

void nrd_str_puts(nrd_str *s, const char *text)
{
    nrd_str_append(s, text, strlen(text));
}

void nrd_str_putc(nrd_str *s, char c)
{
    if (s->cap - s->len < 2) {
        nrd_str_reserve(s, 1);
    }
    s->data[s->len++] = c;
    s->data[s->len] = '\0';
}

void nrd_str_put_i64(nrd_str *s, int64_t v)
{
    char digits[20]; /* of 2^63, and a sign */
    size_t at = sizeof digits;
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;

    do {
        digits[--at] = (char)('0' + u % 10u);
        u /= 10u;
    } while (u);
    if (v < 0) {
        digits[--at] = '-';
    }
    nrd_str_append(s, digits + at, sizeof digits - at);
}

void nrd_str_printf(nrd_str *s, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    const size_t room = s->cap - s->len;
    int n = vsnprintf(s->data ? s->data + s->len : NULL, room, fmt, args);
    va_end(args);
    NRD_ASSERT(n >= 0, "format strings are ours and valid");
    if ((size_t)n >= room) {
        nrd_str_reserve(s, (size_t)n);
        vsnprintf(s->data + s->len, (size_t)n + 1, fmt, again);
    }
    va_end(again);
    s->len += (size_t)n;
}

const char *nrd_str_cstr(const nrd_str *s)
{
    return s->data ? s->data : "";
}

char *nrd_str_steal(nrd_str *s)
{
    char *data = s->data ? s->data : nrd_xstrdup("");
    memset(s, 0, sizeof *s);
    return data;
}

bool nrd_str_has_prefix(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

bool nrd_str_has_suffix(const char *s, const char *suffix)
{
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && memcmp(s + n - m, suffix, m) == 0;
}

static bool parsed_whole(const char *text, const char *end)
{
    return end != text && *end == '\0' && errno == 0 && !isspace((unsigned char)text[0]);
}

bool nrd_parse_i64(const char *text, long long *out)
{
    char *end = NULL;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (!parsed_whole(text, end)) {
        return false;
    }
    *out = v;
    return true;
}

bool nrd_parse_u64(const char *text, unsigned long long *out)
{
    char *end = NULL;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (!parsed_whole(text, end) || text[0] == '-') {
        return false;
    }
    *out = v;
    return true;
}

bool nrd_parse_f64(const char *text, double *out)
{
    char *end = NULL;
    errno = 0;
    double v = strtod(text, &end);
    if (!parsed_whole(text, end)) {
        return false;
    }
    *out = v;
    return true;
}
