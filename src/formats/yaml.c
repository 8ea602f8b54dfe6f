/* SPDX-License-Identifier: Apache-2.0
 * A reader of YAML by recursive descent: blocks by their indentation, values by their first character. Called by formats/nemo.c. */
#include "formats/yaml.h"

#include "base/json.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { MAX_DEPTH = 32, MAX_NUMBER = 64 };

typedef struct {
    const char *p, *end; /* p: at the start of a line, or inside one */
    const char *text;
    nrd_str *out;
    int depth;
} reader;

static nrd_error *refuse(const reader *r, nrd_error_code code, const char *what)
{
    size_t line = 1;

    for (const char *c = r->text; c < r->p; c++) {
        line += *c == '\n';
    }
    return nrd_errorf(code, "line %zu: %s", line, what);
}

static nrd_error *wrong(const reader *r, const char *what)
{
    return refuse(r, NRD_ERR_INVALID_ARG, what);
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static const char *end_of_line(const reader *r, const char *p)
{
    const char *e = memchr(p, '\n', (size_t)(r->end - p));
    return e ? e : r->end;
}

static void skip_blanks(reader *r)
{
    while (r->p < r->end && is_blank(*r->p)) {
        r->p++;
    }
}

/* Whether nothing but a comment is left of the line; the blanks in front of it are skipped. */
static bool at_end_of_line(reader *r)
{
    skip_blanks(r);
    return r->p == r->end || *r->p == '\n' || *r->p == '#';
}

/* Goes to the next line that has a value, from the start of a line. The number of spaces in front of it; -1: the text ends. */
static int next_line(reader *r)
{
    while (r->p < r->end) {
        const char *end = end_of_line(r, r->p), *c = r->p;
        while (c < end && *c == ' ') {
            c++;
        }
        const char *word = c;
        while (word < end && is_blank(*word)) {
            word++;
        }
        if (end - r->p >= 3 && !memcmp(r->p, "...", 3)) {
            r->p = r->end;
        } else if (word == end || *word == '#' || (end - r->p >= 3 && !memcmp(r->p, "---", 3))) {
            r->p = end < r->end ? end + 1 : end;
        } else {
            return (int)(c - r->p);
        }
    }
    return -1;
}

static nrd_error *close_line(reader *r)
{
    if (!at_end_of_line(r)) {
        return wrong(r, "a value has something behind it");
    }
    r->p = end_of_line(r, r->p);
    r->p += r->p < r->end;
    return NULL;
}

/* ---- values ---- */

static bool is_word(const char *s, size_t n, const char *const *words, size_t n_words)
{
    for (size_t i = 0; i < n_words; i++) {
        if (strlen(words[i]) == n && !memcmp(words[i], s, n)) {
            return true;
        }
    }
    return false;
}

/* A number of JSON; false: it is none. */
static bool put_number(nrd_str *out, const char *s, size_t n)
{
    char text[MAX_NUMBER];
    long long whole;
    double real;

    if (n == 0 || n >= sizeof text || strspn(s, "0123456789+-.eE") < n || !memchr("0123456789+-.", *s, 13)) {
        return false;
    }
    snprintf(text, sizeof text, "%.*s", (int)n, s);
    if (nrd_parse_i64(text, &whole)) {
        nrd_str_put_i64(out, whole);
        return true;
    }
    if (!nrd_parse_f64(text, &real)) {
        return false;
    }
    nrd_json_put_double(out, real);
    return true;
}

static void put_plain(nrd_str *out, const char *s, size_t n)
{
    static const char *const nothing[] = {"", "~", "null", "Null", "NULL"};
    static const char *const yes[] = {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"};
    static const char *const no[] = {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"};

    if (is_word(s, n, nothing, sizeof nothing / sizeof *nothing)) {
        nrd_str_puts(out, "null");
    } else if (is_word(s, n, yes, sizeof yes / sizeof *yes)) {
        nrd_str_puts(out, "true");
    } else if (is_word(s, n, no, sizeof no / sizeof *no)) {
        nrd_str_puts(out, "false");
    } else if (!put_number(out, s, n)) {
        nrd_json_put_string(out, s, n);
    }
}

/* A line break inside a value is a space, one more each is a line break. r->p stands at the first break. */
static void fold(reader *r, nrd_str *text)
{
    size_t n = 0;

    while (text->len > 0 && is_blank(text->data[text->len - 1])) {
        text->data[--text->len] = '\0';
    }
    while (r->p < r->end && (*r->p == '\n' || is_blank(*r->p))) {
        n += *r->p == '\n';
        r->p++;
    }
    for (size_t i = 1; i < n; i++) {
        nrd_str_putc(text, '\n');
    }
    if (n == 1) {
        nrd_str_putc(text, ' ');
    }
}

static void put_utf8(nrd_str *out, uint32_t c)
{
    if (c < 0x80) {
        nrd_str_putc(out, (char)c);
    } else if (c < 0x800) {
        nrd_str_putc(out, (char)(0xc0 | c >> 6));
    } else if (c < 0x10000) {
        nrd_str_putc(out, (char)(0xe0 | c >> 12));
        nrd_str_putc(out, (char)(0x80 | (c >> 6 & 0x3f)));
    } else {
        nrd_str_putc(out, (char)(0xf0 | (c >> 18 & 7)));
        nrd_str_putc(out, (char)(0x80 | (c >> 12 & 0x3f)));
        nrd_str_putc(out, (char)(0x80 | (c >> 6 & 0x3f)));
    }
    if (c >= 0x80) {
        nrd_str_putc(out, (char)(0x80 | (c & 0x3f)));
    }
}

/* Behind a backslash of a "text". */
static nrd_error *put_escape(reader *r, nrd_str *text)
{
    static const char names[] = "0abtnvfre\"/\\ N_LP", chars[] = "\0\a\b\t\n\v\f\r\x1b\"/\\ ";
    const char c = *r->p++;
    const int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    uint32_t code = 0;

    if (c == '\n') { /* the text goes on behind the next line's blanks */
        skip_blanks(r);
        return NULL;
    }
    for (int i = 0; i < digits; i++) {
        const char d = r->p < r->end ? *r->p++ : ' ';
        const char low = (char)(d | 0x20);
        if (!((d >= '0' && d <= '9') || (low >= 'a' && low <= 'f'))) {
            return wrong(r, "an escape of too few digits");
        }
        code = code << 4 | (uint32_t)(d <= '9' ? d - '0' : low - 'a' + 10);
    }
    if (digits) {
        if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
            return wrong(r, "an escape that is no character");
        }
        put_utf8(text, code);
        return NULL;
    }
    const char *at = c ? strchr(names, c) : NULL;
    if (!at) {
        return wrong(r, "an unknown escape");
    }
    static const uint32_t others[] = {0x85, 0xa0, 0x2028, 0x2029};
    const size_t i = (size_t)(at - names);
    if (i < sizeof chars - 1) {
        nrd_str_putc(text, chars[i]);
    } else {
        put_utf8(text, others[i - (sizeof chars - 1)]);
    }
    return NULL;
}

/* A quoted text, over several lines or not, without its quotes. */
static nrd_error *read_quoted(reader *r, nrd_str *text)
{
    const char quote = *r->p++;

    while (r->p < r->end) {
        const char c = *r->p;
        if (c == '\n') {
            fold(r, text);
            continue;
        }
        r->p++;
        if (c == quote && !(quote == '\'' && r->p < r->end && *r->p == quote)) {
            return NULL;
        }
        r->p += c == quote; /* '' is one */
        if (c == '\\' && quote == '"') {
            if (r->p == r->end) {
                break;
            }
            NRD_TRY(put_escape(r, text));
        } else {
            nrd_str_putc(text, c);
        }
    }
    return wrong(r, "a quote is not closed");
}

static nrd_error *put_quoted(reader *r)
{
    nrd_str text = {0};
    nrd_error *err = read_quoted(r, &text);

    err = err ? err : nrd_str_error(&text);
    if (!err) {
        nrd_json_put_string(r->out, text.data ? text.data : "", text.len);
    }
    nrd_str_fini(&text);
    return err;
}

/* The end of a plain value that begins at p, in its line: where a comment, or in brackets what ends an entry, begins. */
static const char *plain_end(const reader *r, const char *p, bool in_brackets)
{
    const char *end = end_of_line(r, p), *c = p;

    for (; c < end; c++) {
        const bool ends = (*c == '#' && c > p && is_blank(c[-1])) || (in_brackets && strchr(",[]{}", *c)) ||
                          (in_brackets && *c == ':' && (c + 1 == end || is_blank(c[1])));
        if (ends && *c) {
            break;
        }
    }
    while (c > p && is_blank(c[-1])) {
        c--;
    }
    return c;
}

/* A plain value, which goes on in lines that stand further in than `indent`. */
static nrd_error *put_plain_lines(reader *r, int indent)
{
    nrd_str text = {0};

    for (;;) {
        const char *end = plain_end(r, r->p, false);
        for (const char *c = r->p; c < end; c++) {
            if (*c == ':' && (c + 1 == end || is_blank(c[1]))) {
                nrd_str_fini(&text);
                return wrong(r, "a key where a value goes on; expected it in a line of its own, as far in as the others");
            }
        }
        nrd_str_append(&text, r->p, (size_t)(end - r->p));
        r->p = end;
        const bool has_comment = at_end_of_line(r) && r->p < r->end && *r->p == '#';
        r->p = end_of_line(r, r->p);
        r->p += r->p < r->end;
        const char *line = r->p;
        if (has_comment || next_line(r) <= indent) {
            r->p = line;
            break;
        }
        skip_blanks(r);
        nrd_str_putc(&text, ' ');
    }
    nrd_error *err = nrd_str_error(&text);
    if (!err) {
        put_plain(r->out, nrd_str_cstr(&text), text.len);
    }
    nrd_str_fini(&text);
    return err;
}

/* | and >: the lines that stand further in than `indent`, less what stands in front of the first. */
static nrd_error *put_lines(reader *r, int indent)
{
    const char sep = *r->p == '|' ? '\n' : ' ';
    nrd_str text = {0};
    int first = -1;

    r->p = end_of_line(r, r->p);
    while (r->p < r->end) {
        const char *line = r->p + 1, *end = line < r->end ? end_of_line(r, line) : r->end, *c = line;
        while (c < end && *c == ' ') {
            c++;
        }
        const int in = (int)(c - line);
        if (c < end && in <= indent) {
            break;
        }
        first = first < 0 && c < end ? in : first;
        if (text.len > 0) {
            nrd_str_putc(&text, sep);
        }
        if (c < end) {
            c = in > first ? line + first : c;
            nrd_str_append(&text, c, (size_t)(end - c));
        }
        r->p = end;
    }
    r->p += r->p < r->end;
    nrd_error *err = nrd_str_error(&text);
    if (!err) {
        nrd_json_put_string(r->out, nrd_str_cstr(&text), text.len);
    }
    nrd_str_fini(&text);
    return err;
}

/* ---- in brackets ---- */

static void skip_space(reader *r)
{
    while (r->p < r->end && (at_end_of_line(r) && r->p < r->end)) {
        r->p = end_of_line(r, r->p);
        r->p += r->p < r->end;
    }
}

static nrd_error *put_bracketed(reader *r);

static nrd_error *put_entry_value(reader *r)
{
    if (r->p < r->end && (*r->p == '[' || *r->p == '{')) {
        return put_bracketed(r);
    }
    if (r->p < r->end && (*r->p == '"' || *r->p == '\'')) {
        return put_quoted(r);
    }
    const char *end = plain_end(r, r->p, true);
    put_plain(r->out, r->p, (size_t)(end - r->p));
    r->p = end;
    return NULL;
}

static nrd_error *put_entry_key(reader *r)
{
    if (*r->p == '"' || *r->p == '\'') {
        NRD_TRY(put_quoted(r));
    } else {
        const char *end = plain_end(r, r->p, true);
        nrd_json_put_string(r->out, r->p, (size_t)(end - r->p));
        r->p = end;
    }
    skip_space(r);
    if (r->p == r->end || *r->p != ':') {
        return wrong(r, "a key without a value");
    }
    r->p++;
    nrd_str_putc(r->out, ':');
    skip_space(r);
    return NULL;
}

static nrd_error *put_bracketed(reader *r)
{
    const bool is_map = *r->p++ == '{';
    const char close = is_map ? '}' : ']';

    if (++r->depth > MAX_DEPTH) {
        return wrong(r, "maps and lists are too deep in each other");
    }
    nrd_str_putc(r->out, is_map ? '{' : '[');
    for (bool first = true;; first = false) {
        skip_space(r);
        if (r->p == r->end) {
            return wrong(r, "a bracket is not closed");
        }
        if (*r->p == close) {
            break;
        }
        if (!first) {
            nrd_str_putc(r->out, ',');
        }
        NRD_TRY(is_map ? put_entry_key(r) : NULL);
        NRD_TRY(put_entry_value(r));
        skip_space(r);
        if (r->p < r->end && *r->p == ',') {
            r->p++;
        } else if (r->p == r->end || *r->p != close) {
            return wrong(r, "expected ',' or the end of the brackets");
        }
    }
    r->p++;
    r->depth--;
    nrd_str_putc(r->out, close);
    return NULL;
}

/* ---- blocks ---- */

static nrd_error *put_block(reader *r, int indent);

/* A value behind its key, or behind '-': in this line, or below and further in than `indent`. A map's list may stand as far in as
 * its key. */
static nrd_error *put_value(reader *r, int indent, bool is_map)
{
    if (at_end_of_line(r)) {
        r->p = end_of_line(r, r->p);
        r->p += r->p < r->end;
        const int in = next_line(r);
        const char *c = r->p + (in > 0 ? in : 0);
        const bool is_list = in >= 0 && *c == '-' && (c + 1 == r->end || is_blank(c[1]) || c[1] == '\n');
        if (in > indent || (is_map && is_list && in == indent)) {
            return put_block(r, in);
        }
        nrd_str_puts(r->out, "null");
        return NULL;
    }
    switch (*r->p) {
    case '"':
    case '\'':
        NRD_TRY(put_quoted(r));
        return close_line(r);
    case '[':
    case '{':
        NRD_TRY(put_bracketed(r));
        return close_line(r);
    case '|':
    case '>':
        return put_lines(r, indent);
    case '&':
    case '*':
    case '!':
        return refuse(r, NRD_ERR_UNSUPPORTED, "anchors, aliases and tags are not supported");
    default:
        return put_plain_lines(r, indent);
    }
}

/* A key and its ':'. */
static nrd_error *put_key(reader *r)
{
    const char *end = end_of_line(r, r->p), *c = r->p;

    if (*c == '"' || *c == '\'') {
        NRD_TRY(put_quoted(r));
        skip_blanks(r);
        c = r->p;
    } else {
        if (strchr("?&*![{|>%@`", *c)) {
            return refuse(r, NRD_ERR_UNSUPPORTED, "a key that is no plain text is not supported");
        }
        while (c < end && !(*c == ':' && (c + 1 == end || is_blank(c[1])))) {
            c++;
        }
        const char *last = c;
        while (last > r->p && is_blank(last[-1])) {
            last--;
        }
        nrd_json_put_string(r->out, r->p, (size_t)(last - r->p));
    }
    if (c >= end || *c != ':') {
        return wrong(r, "expected 'key: value'");
    }
    r->p = c + 1;
    nrd_str_putc(r->out, ':');
    return NULL;
}

/* What stands behind "- ": a map's first key may stand there, and its others below it. */
static nrd_error *put_item(reader *r, int indent)
{
    const char *dash = r->p++;

    skip_blanks(r);
    const char *end = plain_end(r, r->p, false), *colon = r->p;
    while (colon < end && !(*colon == ':' && (colon + 1 == end || is_blank(colon[1])))) {
        colon++;
    }
    const bool is_list = r->p < end && *r->p == '-' && (r->p + 1 == end || is_blank(r->p[1]));
    if (r->p < end && !strchr("\"'[{|>&*!#", *r->p) && (colon < end || is_list)) {
        return put_block(r, indent + (int)(r->p - dash));
    }
    return put_value(r, indent, false);
}

/* A map or a list whose lines stand `indent` in. r->p: at the start of its first line, or, in a list's line, at its first key. */
static nrd_error *put_block(reader *r, int indent)
{
    const char *c = r->p;
    bool first = true;

    if (++r->depth > MAX_DEPTH) {
        return wrong(r, "maps and lists are too deep in each other");
    }
    while (c < r->end && *c == ' ') {
        c++;
    }
    const bool is_list = c < r->end && *c == '-' && (c + 1 == r->end || is_blank(c[1]) || c[1] == '\n');
    nrd_str_putc(r->out, is_list ? '[' : '{');
    for (int in = indent;; first = false) {
        if (in != indent) {
            break;
        }
        skip_blanks(r);
        const bool item = r->p < r->end && *r->p == '-' && (r->p + 1 == r->end || is_blank(r->p[1]) || r->p[1] == '\n');
        if (item != is_list) { /* the next key of the map that the list is a value of */
            while (r->p > r->text && r->p[-1] != '\n') {
                r->p--;
            }
            if (!is_list) {
                return wrong(r, "an item of a list between the keys of a map");
            }
            break;
        }
        if (!first) {
            nrd_str_putc(r->out, ',');
        }
        if (is_list) {
            NRD_TRY(put_item(r, indent));
        } else {
            NRD_TRY(put_key(r));
            NRD_TRY(put_value(r, indent, true));
        }
        in = next_line(r);
        if (in > indent) {
            return wrong(r, "a line stands further in than those before it");
        }
    }
    r->depth--;
    nrd_str_putc(r->out, is_list ? ']' : '}');
    return nrd_str_error(r->out);
}

nrd_error *nrd_yaml_to_json(nrd_str *out, const char *text, size_t n)
{
    reader r = {.p = text, .end = text + n, .text = text, .out = out};
    const int in = next_line(&r);

    if (in < 0) {
        nrd_str_puts(out, "null");
        return nrd_str_error(out);
    }
    NRD_TRY(put_block(&r, in));
    return next_line(&r) < 0 ? nrd_str_error(out) : wrong(&r, "a line stands less far in than the first");
}
