/* SPDX-License-Identifier: Apache-2.0
 * Regular expressions in the notation that ECMA 262, Python and PCRE share. */
#include "guided/internal.h"

#include "base/utf8.h"

#include <string.h>

typedef struct reader {
    builder *b;
    const char *s;
    size_t n, i;
} reader;

static void bad(reader *r, nrd_error_code code, const char *why)
{
    nrd_guided_fail(r->b, code, "regex at %zu: %s", r->i, why);
}

static bool more(const reader *r)
{
    return r->i < r->n && !r->b->err;
}

static char peek(const reader *r)
{
    return r->i < r->n ? r->s[r->i] : '\0';
}

static uint32_t take_cp(reader *r)
{
    uint32_t cp;
    r->i += nrd_utf8_next(r->s + r->i, r->n - r->i, &cp);
    if (cp == NRD_UTF8_BAD) {
        bad(r, NRD_ERR_INVALID_ARG, "broken UTF-8");
        return 0;
    }
    return cp;
}

static uint32_t take_hex(reader *r, int digits)
{
    uint32_t v = 0;
    for (int k = 0; k < digits; k++, r->i++) {
        char c = peek(r);
        int d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (d < 0) {
            bad(r, NRD_ERR_INVALID_ARG, "a hexadecimal digit is missing");
            return 0;
        }
        v = v << 4 | (uint32_t)d;
    }
    return v;
}

/* \d \w \s and their opposites. */
static bool add_class(reader *r, cp_set *out, char kind)
{
    cp_set s = {0};
    builder *b = r->b;
    switch (kind | 32) {
    case 'd':
        nrd_guided_cp_add(b, &s, '0', '9');
        break;
    case 'w':
        nrd_guided_cp_add(b, &s, '0', '9');
        nrd_guided_cp_add(b, &s, 'A', 'Z');
        nrd_guided_cp_add(b, &s, '_', '_');
        nrd_guided_cp_add(b, &s, 'a', 'z');
        break;
    case 's':
        nrd_guided_cp_add(b, &s, '\t', '\r');
        nrd_guided_cp_add(b, &s, ' ', ' ');
        break;
    default:
        return false;
    }
    if (kind >= 'A' && kind <= 'Z') {
        nrd_guided_cp_invert(b, &s);
    }
    for (size_t i = 0; i < s.n; i++) {
        nrd_guided_cp_add(b, out, s.r[i].lo, s.r[i].hi);
    }
    return true;
}

/* Behind a backslash: one character. */
static uint32_t take_escape(reader *r)
{
    char c = peek(r);
    static const char from[] = "nrtfv0", to[] = "\n\r\t\f\v";
    const char *at = c ? strchr(from, c) : NULL;
    if (at) {
        r->i++;
        return (uint8_t)to[at - from];
    }
    if (c == 'x' || c == 'u') {
        r->i++;
        return take_hex(r, c == 'x' ? 2 : 4);
    }
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '1' && c <= '9')) {
        bad(r, NRD_ERR_UNSUPPORTED, "this escape is not supported");
        return 0;
    }
    if (r->i >= r->n) {
        bad(r, NRD_ERR_INVALID_ARG, "a backslash at the end");
        return 0;
    }
    return take_cp(r);
}

static expr *take_set(reader *r)
{
    cp_set s = {0};
    bool invert = peek(r) == '^', first = true;
    r->i += invert;
    while (more(r) && (peek(r) != ']' || first)) {
        uint32_t lo, hi;
        first = false;
        if (peek(r) == '\\') {
            r->i++;
            if (r->i < r->n && add_class(r, &s, r->s[r->i])) {
                r->i++;
                continue;
            }
            lo = peek(r) == 'b' ? (r->i++, 8u) : take_escape(r);
        } else {
            if (peek(r) == '[' && r->i + 1 < r->n && r->s[r->i + 1] == ':') {
                bad(r, NRD_ERR_UNSUPPORTED, "[:name:] is not supported");
                return NULL;
            }
            lo = take_cp(r);
        }
        hi = lo;
        if (peek(r) == '-' && r->i + 1 < r->n && r->s[r->i + 1] != ']') {
            r->i++;
            if (peek(r) == '\\') {
                r->i++;
                hi = take_escape(r);
            } else {
                hi = take_cp(r);
            }
        }
        if (hi < lo) {
            bad(r, NRD_ERR_INVALID_ARG, "a range runs backwards");
            return NULL;
        }
        nrd_guided_cp_add(r->b, &s, lo, hi);
    }
    if (peek(r) != ']') {
        bad(r, NRD_ERR_INVALID_ARG, "']' is missing");
        return NULL;
    }
    r->i++;
    if (invert) {
        nrd_guided_cp_invert(r->b, &s);
    }
    return nrd_guided_chars(r->b, &s);
}

static expr *take_alternatives(reader *r);

static expr *take_group(reader *r)
{
    if (peek(r) == '?') {
        char kind = r->i + 1 < r->n ? r->s[r->i + 1] : '\0';
        if (kind == ':') {
            r->i += 2;
        } else if ((kind == 'P' || kind == '<') && r->i + 2 < r->n && r->s[r->i + 2] != '=' &&
                   r->s[r->i + 2] != '!') {
            const char *end = memchr(r->s + r->i, '>', r->n - r->i);
            if (!end) {
                bad(r, NRD_ERR_INVALID_ARG, "'>' is missing");
                return NULL;
            }
            r->i = (size_t)(end - r->s) + 1;
        } else {
            bad(r, NRD_ERR_UNSUPPORTED, "groups that look around or set flags are not supported");
            return NULL;
        }
    }
    expr *e = take_alternatives(r);
    if (peek(r) != ')') {
        bad(r, NRD_ERR_INVALID_ARG, "')' is missing");
        return NULL;
    }
    r->i++;
    return e;
}

static expr *take_atom(reader *r)
{
    cp_set s = {0};
    char c = peek(r);
    switch (c) {
    case '(':
        r->i++;
        return take_group(r);
    case '[':
        r->i++;
        return take_set(r);
    case '.':
        r->i++;
        nrd_guided_cp_add(r->b, &s, '\n', '\n');
        nrd_guided_cp_invert(r->b, &s);
        return nrd_guided_chars(r->b, &s);
    case '\\':
        r->i++;
        if (r->i < r->n && add_class(r, &s, r->s[r->i])) {
            r->i++;
            return nrd_guided_chars(r->b, &s);
        }
        return nrd_guided_char(r->b, take_escape(r));
    case '^':
    case '$':
        bad(r, NRD_ERR_UNSUPPORTED, "anchors are supported at the two ends only");
        return NULL;
    case '*':
    case '+':
    case '?':
        bad(r, NRD_ERR_INVALID_ARG, "there is nothing to repeat");
        return NULL;
    default:
        return nrd_guided_char(r->b, take_cp(r));
    }
}

static bool take_number(reader *r, int32_t *out)
{
    size_t from = r->i;
    *out = 0;
    while (peek(r) >= '0' && peek(r) <= '9' && *out <= G_MAX_REPEAT) {
        *out = *out * 10 + (peek(r) - '0');
        r->i++;
    }
    return r->i > from;
}

/* {2} {2,} {2,5}; anything else is text. */
static bool take_counts(reader *r, int32_t *min, int32_t *max)
{
    size_t back = r->i++;
    bool fine = take_number(r, min);
    *max = *min;
    if (fine && peek(r) == ',') {
        r->i++;
        if (!take_number(r, max)) {
            *max = -1;
        }
    }
    if (!fine || peek(r) != '}') {
        r->i = back;
        return false;
    }
    r->i++;
    return true;
}

static expr *take_repeated(reader *r)
{
    expr *e = take_atom(r);
    while (more(r)) {
        int32_t min = 0, max = -1;
        char c = peek(r);
        if (c == '{') {
            if (!take_counts(r, &min, &max)) {
                break;
            }
            if (max >= 0 && max < min) {
                bad(r, NRD_ERR_INVALID_ARG, "a repetition runs backwards");
                return NULL;
            }
        } else if (c == '*' || c == '+' || c == '?') {
            r->i++;
            min = c == '+';
            max = c == '?' ? 1 : -1;
        } else {
            break;
        }
        if (peek(r) == '?') { /* lazy: the same texts */
            r->i++;
        } else if (peek(r) == '+') {
            bad(r, NRD_ERR_UNSUPPORTED, "possessive repetitions are not supported");
            return NULL;
        }
        e = nrd_guided_repeat(r->b, e, min, max);
    }
    return e;
}

static expr *take_alternatives(reader *r)
{
    expr *alt = nrd_guided_alt(r->b), *seq = nrd_guided_seq(r->b);
    if (++r->b->depth > G_MAX_NESTING) {
        bad(r, NRD_ERR_INVALID_ARG, "groups nest too deep");
    }
    while (more(r) && peek(r) != ')') {
        if (peek(r) == '|') {
            r->i++;
            nrd_guided_add(r->b, alt, seq);
            seq = nrd_guided_seq(r->b);
        } else {
            nrd_guided_add(r->b, seq, take_repeated(r));
        }
    }
    r->b->depth--;
    nrd_guided_add(r->b, alt, seq);
    return alt;
}

static expr *anything(builder *b)
{
    cp_set s = {0};
    nrd_guided_cp_add(b, &s, 0, 0x10ffff);
    return nrd_guided_repeat(b, nrd_guided_chars(b, &s), 0, -1);
}

/* Is there a '|' outside of groups? Then an anchor holds for one alternative only. */
static bool has_top_alternative(const char *s, size_t n)
{
    int depth = 0;
    bool in_set = false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '\\') {
            i++;
        } else if (in_set) {
            in_set = s[i] != ']';
        } else if (s[i] == '[') {
            in_set = true;
        } else if (s[i] == '(' || s[i] == ')') {
            depth += s[i] == '(' ? 1 : -1;
        } else if (s[i] == '|' && depth == 0) {
            return true;
        }
    }
    return false;
}

expr *nrd_guided_regex(builder *b, const char *s, size_t n, bool search)
{
    bool begin = n > 0 && s[0] == '^', end = false;
    if (n > (size_t)begin && s[n - 1] == '$') {
        size_t slashes = 0;
        while (slashes + 1 < n && s[n - 2 - slashes] == '\\') {
            slashes++;
        }
        end = slashes % 2 == 0;
    }
    if ((begin || end) && has_top_alternative(s, n)) {
        nrd_guided_fail(b, NRD_ERR_UNSUPPORTED, "regex: anchors beside alternatives; put these into a group");
        return NULL;
    }
    reader r = {.b = b, .s = s + begin, .n = n - begin - end};
    expr *e = take_alternatives(&r);
    if (!b->err && r.i < r.n) {
        bad(&r, NRD_ERR_INVALID_ARG, "')' without '('");
    }
    if (!search || (begin && end)) {
        return e;
    }
    expr *seq = nrd_guided_seq(b);
    if (!begin) {
        nrd_guided_add(b, seq, anything(b));
    }
    nrd_guided_add(b, seq, e);
    if (!end) {
        nrd_guided_add(b, seq, anything(b));
    }
    return seq;
}
