/* SPDX-License-Identifier: Apache-2.0
 * The growing byte buffer, and reading numbers from whole strings. Capacity doubles; the bytes
 * always end with a NUL. Used everywhere. */
#include "base/number.h"
#include "base/str.h"

#include "base/mem.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool ends_program;

void nrd_str_end_on_no_memory(void)
{
    ends_program = true;
}

/* What was written stays as it is, so that who looks at it too early reads no foreign memory. */
static bool give_up(nrd_str *s)
{
    if (ends_program) {
        fputs("nereid: out of memory\n", stderr);
        exit(EXIT_FAILURE);
    }
    s->no_memory = true;
    return false;
}

void nrd_str_fini(nrd_str *s)
{
    free(s->data);
    memset(s, 0, sizeof *s);
}

void nrd_str_clear(nrd_str *s)
{
    s->len = 0;
    s->no_memory = false;
    if (s->data) {
        s->data[0] = '\0';
    }
}

void nrd_str_spoil(nrd_str *s)
{
    give_up(s);
}

nrd_error *nrd_str_error(const nrd_str *s)
{
    return s->no_memory ? nrd_error_no_memory() : NULL;
}

bool nrd_str_reserve(nrd_str *s, size_t more_bytes)
{
    size_t need;
    if (s->no_memory) {
        return false;
    }
    if (!nrd_size_add(s->len, more_bytes, &need) || !nrd_size_add(need, 1, &need)) {
        return give_up(s);
    }
    if (need > s->cap) {
        size_t cap = s->cap ? s->cap : 64;
        while (cap < need) {
            cap = cap > SIZE_MAX / 2 ? need : cap * 2; /* doubling: appends stay cheap */
        }
        char *data = realloc(s->data, cap);
        if (!data) {
            return give_up(s);
        }
        s->data = data;
        s->data[s->len] = '\0';
        s->cap = cap;
    }
    return true;
}

void nrd_str_append(nrd_str *s, const void *data, size_t n)
{
    /* the zero at the end needs a byte, too */
    if (s->no_memory || (n >= s->cap - s->len && !nrd_str_reserve(s, n))) {
        return;
    }
    if (n) {
        memcpy(s->data + s->len, data, n);
    }
    s->len += n;
    s->data[s->len] = '\0';
}

void nrd_str_put(nrd_str *s, const nrd_str *part)
{
    if (part->no_memory) {
        give_up(s);
        return;
    }
    nrd_str_append(s, nrd_str_cstr(part), part->len);
}

void nrd_str_puts(nrd_str *s, const char *text)
{
    nrd_str_append(s, text, strlen(text));
}

void nrd_str_put_host(nrd_str *s, const char *host)
{
    const bool is_ipv6 = strchr(host, ':') && host[0] != '[';
    nrd_str_printf(s, is_ipv6 ? "[%s]" : "%s", host);
}

void nrd_str_putc(nrd_str *s, char c)
{
    if (s->no_memory || (s->cap - s->len < 2 && !nrd_str_reserve(s, 1))) {
        return;
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
    if (s->no_memory) {
        return;
    }
    va_start(args, fmt);
    va_copy(again, args);
    const size_t room = s->cap - s->len;
    int n = vsnprintf(s->data ? s->data + s->len : NULL, room, fmt, args);
    va_end(args);
    if (n >= 0 && (size_t)n >= room) {
        n = nrd_str_reserve(s, (size_t)n)
                ? vsnprintf(s->data + s->len, (size_t)n + 1, fmt, again)
                : -1;
    }
    va_end(again);
    if (n >= 0) {
        s->len += (size_t)n;
        return;
    }
    if (s->data) { /* half of it may have been written */
        s->data[s->len] = '\0';
    }
    if (!s->no_memory) {
        give_up(s); /* format strings are ours and valid: printf itself had no memory */
    }
}

const char *nrd_str_cstr(const nrd_str *s)
{
    return s->data ? s->data : "";
}

char *nrd_str_steal(nrd_str *s)
{
    char *data = s->data;
    if (s->no_memory) {
        free(data);
        data = NULL;
    } else if (!data) {
        data = strdup("");
    }
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
    double v = nrd_number_read(text, &end);
    if (!parsed_whole(text, end)) {
        return false;
    }
    *out = v;
    return true;
}
