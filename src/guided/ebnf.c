/* SPDX-License-Identifier: Apache-2.0
 * Grammars: name ::= "text" [a-z] other (a | b)* x{2,5}, # a remark. The text is what `root` gives. */
#include "guided/internal.h"

#include "base/utf8.h"

#include <string.h>

typedef struct reader {
    builder *b;
    const char *s;
    size_t n, i;
    int line;
} reader;

static void bad(reader *r, const char *why)
{
    nrd_guided_fail(r->b, NRD_ERR_INVALID_ARG, "grammar line %d: %s", r->line, why);
}

static char peek(const reader *r)
{
    return r->i < r->n ? r->s[r->i] : '\0';
}

static void skip_space(reader *r)
{
    while (r->i < r->n) {
        char c = r->s[r->i];
        if (c == '#') {
            while (r->i < r->n && r->s[r->i] != '\n') {
                r->i++;
            }
        } else if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
            r->line += c == '\n';
            r->i++;
        } else {
            return;
        }
    }
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
}

static size_t name_at(const reader *r)
{
    size_t i = r->i;
    while (i < r->n && is_name(r->s[i])) {
        i++;
    }
    return i - r->i;
}

/* Does a new rule begin here? */
static bool at_rule(reader *r)
{
    reader ahead = *r;
    size_t n = name_at(r);
    ahead.i += n;
    skip_space(&ahead);
    return n > 0 && ahead.i + 3 <= ahead.n && memcmp(ahead.s + ahead.i, "::=", 3) == 0;
}

static uint32_t take_char(reader *r)
{
    uint32_t cp;
    if (peek(r) != '\\') {
        r->i += nrd_utf8_next(r->s + r->i, r->n - r->i, &cp);
        if (cp == NRD_UTF8_BAD) {
            bad(r, "broken UTF-8");
            return 0;
        }
        return cp;
    }
    r->i++;
    char c = peek(r);
    r->i++;
    int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits > 0) {
        cp = 0;
        for (int k = 0; k < digits; k++, r->i++) {
            char h = peek(r);
            int d = h >= '0' && h <= '9' ? h - '0' : h >= 'a' && h <= 'f' ? h - 'a' + 10
                    : h >= 'A' && h <= 'F' ? h - 'A' + 10 : -1;
            if (d < 0) {
                bad(r, "a hexadecimal digit is missing");
                return 0;
            }
            cp = cp << 4 | (uint32_t)d;
        }
        if (cp > 0x10ffff) {
            bad(r, "no such character");
        }
        return cp;
    }
    return c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : (uint8_t)c;
}

static expr *take_string(reader *r)
{
    expr *seq = nrd_guided_seq(r->b);
    char quote = r->s[r->i++];
    while (r->i < r->n && peek(r) != quote && !r->b->err) {
        nrd_guided_add(r->b, seq, nrd_guided_char(r->b, take_char(r)));
    }
    if (peek(r) != quote) {
        bad(r, "a string is not closed");
    }
    r->i++;
    return seq;
}

static expr *take_set(reader *r)
{
    cp_set s = {0};
    r->i++;
    bool invert = peek(r) == '^';
    r->i += invert;
    while (r->i < r->n && peek(r) != ']' && !r->b->err) {
        uint32_t lo = take_char(r), hi = lo;
        if (peek(r) == '-' && r->i + 1 < r->n && r->s[r->i + 1] != ']') {
            r->i++;
            hi = take_char(r);
        }
        if (hi < lo) {
            bad(r, "a range runs backwards");
        }
        nrd_guided_cp_add(r->b, &s, lo, hi);
    }
    if (peek(r) != ']') {
        bad(r, "']' is missing");
    }
    r->i++;
    if (invert) {
        nrd_guided_cp_invert(r->b, &s);
    }
    return nrd_guided_chars(r->b, &s);
}

static expr *take_alternatives(reader *r);

static expr *take_atom(reader *r)
{
    char c = peek(r);
    if (c == '"' || c == '\'') {
        return take_string(r);
    }
    if (c == '[') {
        return take_set(r);
    }
    if (c == '.') {
        cp_set s = {0};
        r->i++;
        nrd_guided_cp_add(r->b, &s, 0, 0x10ffff);
        return nrd_guided_chars(r->b, &s);
    }
    if (c == '(') {
        r->i++;
        expr *e = take_alternatives(r);
        if (peek(r) != ')') {
            bad(r, "')' is missing");
        }
        r->i++;
        return e;
    }
    size_t n = name_at(r);
    if (n == 0) {
        bad(r, "expected a string, a set, a group or the name of a rule");
        return NULL;
    }
    uint32_t made = nrd_guided_rule(r->b, r->s + r->i, n);
    r->i += n;
    return nrd_guided_rule_ref(r->b, made);
}

static int32_t take_number(reader *r)
{
    int32_t v = -1;
    while (peek(r) >= '0' && peek(r) <= '9' && v <= G_MAX_REPEAT) {
        v = (v < 0 ? 0 : v) * 10 + (peek(r) - '0');
        r->i++;
    }
    return v;
}

static expr *take_repeated(reader *r)
{
    expr *e = take_atom(r);
    while (!r->b->err) {
        char c = peek(r);
        int32_t min, max;
        if (c == '*' || c == '+' || c == '?') {
            r->i++;
            e = nrd_guided_repeat(r->b, e, c == '+', c == '?' ? 1 : -1);
        } else if (c == '{') {
            r->i++;
            min = take_number(r);
            max = min;
            if (peek(r) == ',') {
                r->i++;
                max = take_number(r);
            }
            if (peek(r) != '}' || min < 0 || (max >= 0 && max < min)) {
                bad(r, "expected {count}, {from,} or {from,to}");
            }
            r->i++;
            e = nrd_guided_repeat(r->b, e, min, max);
        } else {
            break;
        }
    }
    return e;
}

static expr *take_alternatives(reader *r)
{
    expr *alt = nrd_guided_alt(r->b), *seq = nrd_guided_seq(r->b);
    if (++r->b->depth > G_MAX_NESTING) {
        bad(r, "groups nest too deep");
    }
    skip_space(r);
    while (r->i < r->n && !r->b->err && peek(r) != ')' && !at_rule(r)) {
        if (peek(r) == '|') {
            r->i++;
            nrd_guided_add(r->b, alt, seq);
            seq = nrd_guided_seq(r->b);
        } else {
            nrd_guided_add(r->b, seq, take_repeated(r));
        }
        skip_space(r);
    }
    r->b->depth--;
    nrd_guided_add(r->b, alt, seq);
    return alt;
}

expr *nrd_guided_ebnf(builder *b, const char *s, size_t n)
{
    reader r = {.b = b, .s = s, .n = n, .line = 1};
    nrd_guided_forget_names(b);
    skip_space(&r);
    while (r.i < r.n && !b->err) {
        if (!at_rule(&r)) {
            bad(&r, "expected name ::= ...");
            break;
        }
        size_t len = name_at(&r);
        uint32_t made = nrd_guided_rule(b, r.s + r.i, len);
        if (!b->err && b->rules[made].body) {
            nrd_guided_fail(b, NRD_ERR_INVALID_ARG, "grammar line %d: rule '%s' is defined twice",
                            r.line, b->rules[made].name);
        }
        r.i += len;
        skip_space(&r);
        r.i += 3;
        nrd_guided_define(b, made, take_alternatives(&r));
        if (peek(&r) == ')') {
            bad(&r, "')' without '('");
        }
    }
    uint32_t root = nrd_guided_rule(b, "root", 4);
    if (!b->err && !b->rules[root].body) {
        nrd_guided_fail(b, NRD_ERR_INVALID_ARG, "grammar: there is no rule 'root'");
    }
    return nrd_guided_rule_ref(b, root);
}
