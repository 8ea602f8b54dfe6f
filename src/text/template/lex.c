/* SPDX-License-Identifier: Apache-2.0
 * The text of a template as tokens: literal text, and what stands in {{ }}, {% %} and {# #}; blanks and
 * line ends beside them are kept or cut as Jinja's trim_blocks and lstrip_blocks do. */
#include "text/template/internal.h"

#include "base/number.h"
#include "base/utf8.h"

#include <errno.h>

typedef struct lexer {
    nrd_template_parser *p;
    const char *s;
    size_t n, pos;
    int line;
    bool line_starting; /* the last match ended with a newline */
} lexer;

static nrd_template_token *push(lexer *l, nrd_template_token_kind kind)
{
    nrd_template_parser *p = l->p;
    if (p->n_tokens == p->cap_tokens) {
        size_t cap = p->cap_tokens ? 2 * p->cap_tokens : 256;
        nrd_template_token *grown = nrd_template_parse_alloc(p, cap * sizeof *grown);
        if (p->n_tokens > 0) {
            memcpy(grown, p->tokens, p->n_tokens * sizeof *grown);
        }
        p->tokens = grown;
        p->cap_tokens = cap;
    }
    nrd_template_token *t = &p->tokens[p->n_tokens++];
    *t = (nrd_template_token){.kind = kind, .line = l->line};
    return t;
}

/* Moves on, counting lines. */
static void advance(lexer *l, size_t to)
{
    for (size_t i = l->pos; i < to; i++) {
        l->line += l->s[i] == '\n';
    }
    if (to > l->pos) {
        l->line_starting = l->s[to - 1] == '\n';
    }
    l->pos = to;
}

static size_t skip_space(const lexer *l, size_t i)
{
    return i + nrd_template_lstrip(l->s + i, l->n - i);
}

static bool at(const lexer *l, size_t i, const char *text)
{
    size_t n = strlen(text);
    return i + n <= l->n && memcmp(l->s + i, text, n) == 0;
}

/* The end of a tag at i: its length with the white space that it eats, 0 if there is none. */
static size_t tag_end(const lexer *l, size_t i, const char *end, bool trims)
{
    if (l->s[i] == '-' && at(l, i + 1, end)) {
        return skip_space(l, i + 3) - i;
    }
    if (trims && l->s[i] == '+' && at(l, i + 1, end)) {
        return 3;
    }
    if (at(l, i, end)) {
        return trims && i + 2 < l->n && l->s[i + 2] == '\n' ? 3 : 2;
    }
    return 0;
}

/* Text before a tag: '-' eats all white space, else a block's indentation goes (lstrip_blocks). */
static size_t strip_before(const lexer *l, size_t from, size_t to, char sign, bool is_block)
{
    if (sign == '-') {
        return from + nrd_template_rstrip(l->s + from, to - from);
    }
    if (is_block && sign != '+') {
        size_t line = to;
        while (line > from && l->s[line - 1] != '\n') {
            line--;
        }
        bool starts_line = line > from || l->line_starting;
        if (starts_line && nrd_template_lstrip(l->s + line, to - line) == to - line) {
            return line;
        }
    }
    return to;
}

static void push_data(lexer *l, size_t from, size_t to)
{
    if (to > from) {
        nrd_template_token *t = push(l, T_DATA);
        t->s = l->s + from;
        t->n = to - from;
    }
}

/* ---- inside tags ---- */

static uint32_t hex_digits(lexer *l, const char *s, size_t n, size_t want)
{
    uint32_t v = 0;
    for (size_t i = 0; i < want; i++) {
        char c = i < n ? s[i] : 0;
        int d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (d < 0) {
            nrd_template_fail_parse(l->p, NRD_ERR_INVALID_ARG, l->line,
                                    "truncated escape in a string");
        }
        v = v << 4 | (uint32_t)d;
    }
    return v;
}

static void lex_string(lexer *l)
{
    char quote = l->s[l->pos];
    size_t i = l->pos + 1, n = 0;
    while (i < l->n && l->s[i] != quote) {
        i += l->s[i] == '\\' ? 2 : 1;
    }
    if (i >= l->n) {
        nrd_template_fail_parse(l->p, NRD_ERR_INVALID_ARG, l->line, "a string is not closed");
    }
    char *out = nrd_template_parse_alloc(l->p, i - l->pos + 1);
    for (size_t k = l->pos + 1; k < i;) {
        char c = l->s[k++];
        if (c != '\\') {
            out[n++] = c;
            continue;
        }
        static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
        c = l->s[k++];
        const char *known = c ? strchr(from, c) : NULL;
        uint32_t cp = NRD_UTF8_BAD;
        if (known) {
            out[n++] = to[known - from];
        } else if (c == 'x' || c == 'u' || c == 'U') {
            size_t want = c == 'x' ? 2 : c == 'u' ? 4 : 8;
            cp = hex_digits(l, l->s + k, i - k, want);
            k += want;
        } else if (c >= '0' && c <= '7') {
            cp = (uint32_t)(c - '0');
            for (int d = 0; d < 2 && k < i && l->s[k] >= '0' && l->s[k] <= '7'; d++) {
                cp = cp * 8 + (uint32_t)(l->s[k++] - '0');
            }
        } else if (c == '\n') {
            continue; /* a line that goes on */
        } else if (c == 'N') {
            nrd_template_fail_parse(l->p, NRD_ERR_UNSUPPORTED, l->line, "\\N{...} in a string");
        } else {
            out[n++] = '\\';
            out[n++] = c;
        }
        if (cp != NRD_UTF8_BAD) {
            if (cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000)) {
                nrd_template_fail_parse(l->p, NRD_ERR_INVALID_ARG, l->line, "U+%X is no character",
                                        cp);
            }
            n += nrd_utf8_put(out + n, cp);
        }
    }
    nrd_template_token *t = push(l, T_STR);
    t->s = out;
    t->n = n;
    advance(l, i + 1);
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static size_t digits(const lexer *l, size_t i)
{
    while (i < l->n && (is_digit(l->s[i]) ||
                        (l->s[i] == '_' && i + 1 < l->n && is_digit(l->s[i + 1]) && i > 0 &&
                         is_digit(l->s[i - 1])))) {
        i++;
    }
    return i;
}

static void lex_number(lexer *l)
{
    char text[64];
    size_t n = 0, i = l->pos, end = digits(l, i), whole = end;
    bool after_dot = i > 0 && l->s[i - 1] == '.', real = false;
    int base = 10;

    if (!after_dot && end + 1 < l->n && l->s[end] == '.' && is_digit(l->s[end + 1])) {
        end = digits(l, end + 1);
        real = true;
    }
    if (!after_dot && end < l->n && (l->s[end] | 32) == 'e') {
        size_t k = end + 1;
        k += k < l->n && (l->s[k] == '+' || l->s[k] == '-');
        if (k < l->n && is_digit(l->s[k])) {
            end = digits(l, k);
            real = true;
        }
    }
    if (!real) {
        end = whole;
        char kind = end == i + 1 && l->s[i] == '0' && end < l->n ? (char)(l->s[end] | 32) : 0;
        if (kind == 'x' || kind == 'o' || kind == 'b') {
            base = kind == 'x' ? 16 : kind == 'o' ? 8 : 2;
            i = ++end;
            while (end < l->n && ((l->s[end] >= '0' && l->s[end] <= '9') || l->s[end] == '_' ||
                                  ((l->s[end] | 32) >= 'a' && (l->s[end] | 32) <= 'f'))) {
                end++;
            }
        }
    }
    for (; i < end; i++) {
        if (l->s[i] != '_' && n + 1 < sizeof text) {
            text[n++] = l->s[i];
        }
    }
    text[n] = '\0';
    nrd_template_token *t = push(l, real ? T_FLOAT : T_INT);
    if (real) {
        t->f = nrd_number_read(text, NULL);
    } else {
        char *stop;
        errno = 0;
        t->i = strtoll(text, &stop, base);
        if (errno != 0 || *stop || n == 0 || n + 1 == sizeof text) {
            nrd_template_fail_parse(l->p, NRD_ERR_INVALID_ARG, l->line,
                                    "the number %.40s cannot be held", text);
        }
    }
    advance(l, end);
}

static bool is_name_byte(char c)
{
    return c == '_' || is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (unsigned char)c >= 0x80;
}

static nrd_template_token_kind operator_at(const lexer *l, size_t *out_n)
{
    static const struct {
        const char *s;
        nrd_template_token_kind kind;
    } ops[] = {
        {"**", T_POW}, {"//", T_FLOORDIV}, {"==", T_EQ}, {"!=", T_NE}, {">=", T_GE}, {"<=", T_LE},
        {"+", T_ADD}, {"-", T_SUB}, {"*", T_MUL}, {"/", T_DIV}, {"%", T_MOD}, {"~", T_TILDE},
        {"(", T_LPAREN}, {")", T_RPAREN}, {"[", T_LBRACKET}, {"]", T_RBRACKET}, {"{", T_LBRACE},
        {"}", T_RBRACE}, {">", T_GT}, {"<", T_LT}, {"=", T_ASSIGN}, {".", T_DOT}, {":", T_COLON},
        {"|", T_PIPE}, {",", T_COMMA}, {";", T_SEMICOLON},
    };
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        if (at(l, l->pos, ops[i].s)) {
            *out_n = strlen(ops[i].s);
            return ops[i].kind;
        }
    }
    return T_EOF;
}

/* Tokens up to and with the end of the tag. */
static void lex_tag(lexer *l, bool is_block)
{
    char open[TPL_MAX_NESTING];
    size_t n_open = 0;
    const char *end = is_block ? "%}" : "}}";
    int begin = l->line;

    while (true) {
        if (l->pos >= l->n) {
            nrd_template_fail_parse(l->p, NRD_ERR_INVALID_ARG, begin, "the tag is not closed by %s",
                                    end);
        }
        size_t n = n_open == 0 ? tag_end(l, l->pos, end, is_block) : 0;
        if (n > 0) {
            push(l, is_block ? T_BLOCK_END : T_VAR_END);
            advance(l, l->pos + n);
            return;
        }
        size_t space = skip_space(l, l->pos);
        if (space > l->pos) {
            advance(l, space);
            continue;
        }
        char c = l->s[l->pos];
        if (is_digit(c)) {
            lex_number(l);
        } else if (is_name_byte(c)) {
            size_t e = l->pos;
            while (e < l->n && is_name_byte(l->s[e])) {
                e++;
            }
            nrd_template_token *t = push(l, T_NAME);
            t->s = nrd_template_intern(l->p, l->s + l->pos, e - l->pos);
            t->n = e - l->pos;
            advance(l, e);
        } else if (c == '\'' || c == '"') {
            lex_string(l);
        } else {
            nrd_template_token_kind kind = operator_at(l, &n);
            if (kind == T_EOF) {
                nrd_template_fail_parse(l->p, NRD_ERR_INVALID_ARG, l->line, "unexpected '%c'", c);
            }
            if (kind == T_LPAREN || kind == T_LBRACKET || kind == T_LBRACE) {
                if (n_open == sizeof open) {
                    nrd_template_fail_parse(l->p, NRD_ERR_INVALID_ARG, l->line,
                                            "too many open brackets");
                }
                open[n_open++] = c == '(' ? ')' : c == '[' ? ']' : '}';
            } else if (kind == T_RPAREN || kind == T_RBRACKET || kind == T_RBRACE) {
                if (n_open == 0 || open[n_open - 1] != c) {
                    nrd_template_fail_parse(l->p, NRD_ERR_INVALID_ARG, l->line, "unexpected '%c'",
                                            c);
                }
                n_open--;
            }
            push(l, kind);
            advance(l, l->pos + n);
        }
    }
}

/* ---- outside ---- */

static void lex_comment(lexer *l)
{
    for (size_t i = l->pos + 2; i < l->n; i++) {
        size_t n = tag_end(l, i, "#}", true);
        if (n > 0) {
            advance(l, i + n);
            return;
        }
    }
    nrd_template_fail_parse(l->p, NRD_ERR_INVALID_ARG, l->line, "a comment is not closed");
}

/* Is a "raw" tag at i? Its end, else 0. */
static size_t raw_tag(const lexer *l, size_t i, const char *word)
{
    i += 2;
    i += i < l->n && (l->s[i] == '-' || l->s[i] == '+');
    i = skip_space(l, i);
    if (!at(l, i, word)) {
        return 0;
    }
    return skip_space(l, i + strlen(word));
}

static bool lex_raw(lexer *l)
{
    size_t i = raw_tag(l, l->pos, "raw"), end;
    if (i == 0 || i >= l->n) {
        return false;
    }
    if (l->s[i] == '-' && at(l, i + 1, "%}")) {
        end = skip_space(l, i + 3);
    } else if (at(l, i, "%}")) {
        end = i + 2;
    } else {
        return false;
    }
    advance(l, end);
    for (size_t k = l->pos; k + 1 < l->n; k++) {
        size_t close = at(l, k, "{%") ? raw_tag(l, k, "endraw") : 0;
        size_t n = close > 0 && close < l->n ? tag_end(l, close, "%}", true) : 0;
        if (n > 0) {
            push_data(l, l->pos, strip_before(l, l->pos, k, l->s[k + 2], true));
            advance(l, close + n);
            return true;
        }
    }
    nrd_template_fail_parse(l->p, NRD_ERR_INVALID_ARG, l->line, "a raw block is not closed");
}

void nrd_template_lex(nrd_template_parser *p, const char *s, size_t n)
{
    char *text = nrd_template_parse_alloc(p, n + 1);
    size_t len = 0;
    lexer l = {.p = p, .line = 1, .line_starting = true};

    for (size_t i = 0; i < n; i++) { /* one kind of newline, none at the end */
        if (s[i] == '\r') {
            i += i + 1 < n && s[i + 1] == '\n';
            text[len++] = '\n';
        } else {
            text[len++] = s[i];
        }
    }
    len -= len > 0 && text[len - 1] == '\n';
    text[len] = '\0';
    l.s = text;
    l.n = len;
    while (l.pos < l.n) {
        size_t i = l.pos;
        while (i < l.n && !(l.s[i] == '{' && i + 1 < l.n && l.s[i + 1] != '\0' &&
                            strchr("{%#", l.s[i + 1]))) {
            i++;
        }
        if (i >= l.n) {
            push_data(&l, l.pos, l.n);
            break;
        }
        char kind = l.s[i + 1], sign = i + 2 < l.n ? l.s[i + 2] : '\0';
        push_data(&l, l.pos, strip_before(&l, l.pos, i, sign, kind != '{'));
        advance(&l, i);
        if (kind == '#') {
            lex_comment(&l);
        } else if (kind == '{' || !lex_raw(&l)) {
            push(&l, kind == '%' ? T_BLOCK_BEGIN : T_VAR_BEGIN);
            advance(&l, i + 2 + (sign == '-' || sign == '+'));
            lex_tag(&l, kind == '%');
        }
    }
    push(&l, T_EOF);
}
