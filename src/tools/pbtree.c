/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/pbtree.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"

#include <ctype.h>
#include <string.h>

typedef struct {
    const char *path, *p, *end;
    int line; /* of *p */
} reader;

/* What stands at *p, for an error message. */
static char *found(const reader *r)
{
    size_t n = 0, rest = (size_t)(r->end - r->p);
    while (n < rest && n < 40 && isgraph((unsigned char)r->p[n])) {
        n++;
    }
    return n      ? nrd_xasprintf("'%.*s'", (int)n, r->p)
           : rest ? nrd_xasprintf("byte 0x%02x", (unsigned char)*r->p)
                  : nrd_xstrdup("the end of the file");
}

static nrd_error *expected(const reader *r, const char *what)
{
    char *have = found(r);
    nrd_error *err = nrd_errorf(NRD_ERR_INVALID_ARG, "%s:%d: expected %s, found %s", r->path,
                                r->line, what, have);
    free(have);
    return err;
}

static void skip_space(reader *r)
{
    for (; r->p < r->end && (isspace((unsigned char)*r->p) || *r->p == '#'); r->p++) {
        if (*r->p == '#') {
            const char *eol = memchr(r->p, '\n', (size_t)(r->end - r->p));
            r->p = eol ? eol : r->end - 1;
        }
        r->line += *r->p == '\n';
    }
}

static bool at(const reader *r, char c)
{
    return r->p < r->end && *r->p == c;
}

static bool take(reader *r, char c)
{
    if (!at(r, c)) {
        return false;
    }
    r->p++;
    skip_space(r);
    return true;
}

/* Up to `max` digits of the base. */
static char take_code(reader *r, const char *end, unsigned base, int max)
{
    static const char digits[] = "0123456789abcdef";
    unsigned code = 0;
    for (; max > 0 && r->p < end && *r->p; max--, r->p++) {
        const char *d = strchr(digits, tolower((unsigned char)*r->p));
        if (!d || (unsigned)(d - digits) >= base) {
            break;
        }
        code = code * base + (unsigned)(d - digits);
    }
    return (char)code;
}

static nrd_error *read_escape(reader *r, nrd_str *out)
{
    static const char from[] = "abfnrtv\\'\"?", to[] = "\a\b\f\n\r\t\v\\'\"?";
    const char c = (char)(r->p < r->end ? *r->p : 0);
    const char *hit = c ? strchr(from, c) : NULL;

    if (hit) {
        r->p++;
        nrd_str_putc(out, to[hit - from]);
    } else if (c >= '0' && c <= '7') {
        nrd_str_putc(out, take_code(r, r->end, 8, 3));
    } else if ((c == 'x' || c == 'X') && r->p + 1 < r->end && isxdigit((unsigned char)r->p[1])) {
        r->p++;
        nrd_str_putc(out, take_code(r, r->end, 16, 2));
    } else {
        return expected(r, "an escape like \\n or \\\"");
    }
    return NULL;
}

/* Strings that follow each other are one. */
static nrd_error *read_strings(reader *r, nrd_str *out)
{
    while (at(r, '"') || at(r, '\'')) {
        const char quote = *r->p++;
        while (!at(r, quote)) {
            if (r->p == r->end || *r->p == '\n') {
                return nrd_errorf(NRD_ERR_INVALID_ARG, "%s:%d: a string is not closed", r->path,
                                  r->line);
            }
            if (*r->p != '\\') {
                nrd_str_putc(out, *r->p++);
                continue;
            }
            r->p++;
            NRD_TRY(read_escape(r, out));
        }
        take(r, quote);
    }
    return NULL;
}

static bool is_name_char(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* A number, a word or ${NAME}, which a template may have in the place of either. */
static nrd_error *read_word(reader *r, nrd_str *out)
{
    const char *start = r->p;
    if (r->end - r->p > 2 && r->p[0] == '$' && r->p[1] == '{') {
        const char *close = memchr(r->p, '}', (size_t)(r->end - r->p));
        const char *eol = memchr(r->p, '\n', (size_t)(r->end - r->p));
        if (!close || (eol && eol < close)) {
            return expected(r, "${NAME}");
        }
        r->p = close + 1;
    } else {
        while (r->p < r->end && (is_name_char(*r->p) || strchr("+-.", *r->p)) && *r->p) {
            r->p++;
        }
    }
    if (r->p == start) {
        return expected(r, "a value");
    }
    nrd_str_append(out, start, (size_t)(r->p - start));
    skip_space(r);
    return NULL;
}

static nrd_error *read_fields(reader *r, nrd_pbtree *message, char close, int depth);

static nrd_error *read_value(reader *r, nrd_pbtree *field, int depth)
{
    const int line = r->line;
    const bool angle = at(r, '<');
    nrd_str text = {0};
    nrd_error *err;

    if (take(r, '{') || take(r, '<')) {
        if (depth == NRD_PBTREE_MAX_DEPTH) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s:%d: messages are nested more than %d deep",
                              r->path, line, NRD_PBTREE_MAX_DEPTH);
        }
        NRD_TRY(read_fields(r, field, angle ? '>' : '}', depth + 1));
        if (!take(r, angle ? '>' : '}')) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s:%d: '%c' is not closed", r->path, line,
                              angle ? '<' : '{');
        }
        return NULL;
    }
    err = at(r, '"') || at(r, '\'') ? read_strings(r, &text) : read_word(r, &text);
    field->value = err ? NULL : nrd_xstrdup(nrd_str_cstr(&text));
    nrd_str_fini(&text);
    return err;
}

static nrd_pbtree *add_field(nrd_pbtree *message, const char *name, size_t n, int line)
{
    const size_t i = message->n_fields++;
    if ((i & (i - 1)) == 0) { /* full at each power of two */
        message->fields = nrd_xrealloc(message->fields, (i ? 2 * i : 1) * sizeof *message->fields);
    }
    message->fields[i] = (nrd_pbtree){.name = nrd_xstrndup(name, n), .line = line};
    return &message->fields[i];
}

/* "name: value", "name { … }", "name: [ value, … ]". */
static nrd_error *read_field(reader *r, nrd_pbtree *message, int depth)
{
    const char *name = r->p;
    const int line = r->line;

    while (r->p < r->end && is_name_char(*r->p)) {
        r->p++;
    }
    const size_t n = (size_t)(r->p - name);
    if (!n || isdigit((unsigned char)*name)) {
        r->p = name;
        return expected(r, "the name of a field");
    }
    skip_space(r);
    const bool colon = take(r, ':');
    if (!colon && !at(r, '{') && !at(r, '<') && !at(r, '[')) {
        return expected(r, "':' or '{'");
    }
    if (!take(r, '[')) {
        return read_value(r, add_field(message, name, n, line), depth);
    }
    for (bool first = true; !take(r, ']'); first = false) {
        if (!first && !take(r, ',')) {
            return expected(r, "',' or ']'");
        }
        NRD_TRY(read_value(r, add_field(message, name, n, r->line), depth));
    }
    return NULL;
}

static nrd_error *read_fields(reader *r, nrd_pbtree *message, char close, int depth)
{
    while (r->p < r->end && !(close && at(r, close))) {
        NRD_TRY(read_field(r, message, depth));
        if (!take(r, ',')) {
            take(r, ';');
        }
    }
    return NULL;
}

static nrd_error *read_text(nrd_pbtree *out, const char *path, const char *text, size_t n)
{
    reader r = {.path = path, .p = text, .end = text + n, .line = 1};
    skip_space(&r);
    return read_fields(&r, out, '\0', 0);
}

nrd_error *nrd_pbtree_read(nrd_pbtree *out, const char *path)
{
    char *text = NULL;
    size_t n = 0;

    *out = (nrd_pbtree){0};
    NRD_TRY(nrd_file_read(&text, &n, path, NRD_PBTREE_MAX_BYTES));
    nrd_error *err = read_text(out, path, text, n);
    free(text);
    return err;
}

void nrd_pbtree_fini(nrd_pbtree *message)
{
    for (size_t i = 0; i < message->n_fields; i++) {
        nrd_pbtree_fini(&message->fields[i]);
    }
    free(message->fields);
    free(message->name);
    free(message->value);
    *message = (nrd_pbtree){0};
}

const nrd_pbtree *nrd_pbtree_next(const nrd_pbtree *message, const char *name,
                                  const nrd_pbtree *last)
{
    if (!message) {
        return NULL;
    }
    for (size_t i = last ? (size_t)(last - message->fields) + 1 : 0; i < message->n_fields; i++) {
        if (!strcmp(message->fields[i].name, name)) {
            return &message->fields[i];
        }
    }
    return NULL;
}

const char *nrd_pbtree_value(const nrd_pbtree *message, const char *name)
{
    const nrd_pbtree *f = nrd_pbtree_next(message, name, NULL);
    return f ? f->value : NULL;
}

size_t nrd_pbtree_count(const nrd_pbtree *message, const char *name)
{
    size_t n = 0;
    for (const nrd_pbtree *f = NULL; (f = nrd_pbtree_next(message, name, f));) {
        n++;
    }
    return n;
}
