/* SPDX-License-Identifier: Apache-2.0
 * A delimiter begins with CR, which no boundary has in it: where the bytes differ from a delimiter that was begun,
 * the next one can begin at that byte at the earliest, so only the number of bytes that fitted is kept. */
#include "frontends/openai/multipart.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

typedef enum {
    PREAMBLE, /* before the first delimiter, as if a line had ended there */
    DATA,
    BEHIND,     /* a delimiter: two dashes, blanks, or the end of the line */
    BEHIND_DASH,
    BEHIND_CR,
    HEAD,
    DONE, /* what follows means nothing */
} state;

static nrd_error *bad(const char *what)
{
    return nrd_errorf(NRD_ERR_INVALID_ARG, "the form: %s", what);
}

/* ---- parameters of a field: ; name=value; name="value" ---- */

typedef struct cursor {
    const char *p, *end;
} cursor;

static void skip_blanks(cursor *c)
{
    while (c->p < c->end && (*c->p == ' ' || *c->p == '\t')) {
        c->p++;
    }
}

/* The value behind '='; false: it is broken or too long. */
static bool read_value(cursor *c, char *out, size_t cap)
{
    size_t n = 0;
    const bool quoted = c->p < c->end && *c->p == '"';

    c->p += quoted ? 1 : 0;
    for (; c->p < c->end && (quoted ? *c->p != '"' : *c->p != ';' && *c->p != ' ' && *c->p != '\t'); c->p++) {
        if (quoted && *c->p == '\\' && c->p + 1 < c->end && (c->p[1] == '"' || c->p[1] == '\\')) {
            c->p++;
        }
        if (n + 1 >= cap || (unsigned char)*c->p < ' ' || *c->p == 0x7f) {
            return false;
        }
        out[n++] = *c->p;
    }
    out[n] = '\0';
    if (quoted && c->p == c->end) {
        return false;
    }
    c->p += quoted ? 1 : 0;
    return true;
}

/* The next parameter; *more false: there is none. */
static bool next_parameter(cursor *c, char name[32], char *value, size_t cap, bool *more)
{
    size_t n = 0;

    skip_blanks(c);
    *more = c->p < c->end;
    if (!*more) {
        return true;
    }
    if (*c->p != ';') {
        return false;
    }
    c->p++;
    skip_blanks(c);
    while (c->p < c->end && *c->p != '=' && *c->p != ';' && *c->p != ' ' && n < 31) {
        name[n++] = *c->p++;
    }
    name[n] = '\0';
    value[0] = '\0';
    if (n == 0 && c->p == c->end) { /* a semicolon at the end */
        return true;
    }
    if (n == 0 || c->p == c->end || *c->p != '=') {
        return false;
    }
    c->p++;
    return read_value(c, value, cap);
}

static bool is_boundary_char(char ch)
{
    return (ch >= '0' && ch <= '9') || (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') ||
           (ch != '\0' && strchr("'()+_,-./:=? ", ch));
}

nrd_error *nrd_multipart_init(nrd_multipart *m, const char *type, size_t n, const nrd_multipart_reader *reader)
{
    static const char form[] = "multipart/form-data";
    char name[32], value[NRD_MULTIPART_BOUNDARY + 2];
    bool more = true, found = false;
    cursor c = {type, type + n};

    memset(m, 0, sizeof *m);
    m->reader = *reader;
    if (n < sizeof form - 1 || strncasecmp(type, form, sizeof form - 1) != 0) {
        return bad("Content-Type must be multipart/form-data");
    }
    c.p += sizeof form - 1;
    while (more) {
        if (!next_parameter(&c, name, value, sizeof value, &more)) {
            return bad("Content-Type cannot be read");
        }
        if (more && !strcasecmp(name, "boundary") && !found) {
            const size_t len = strlen(value);
            found = len > 0 && len <= NRD_MULTIPART_BOUNDARY && value[len - 1] != ' ';
            for (size_t i = 0; i < len && found; i++) {
                found = is_boundary_char(value[i]);
            }
            if (!found) {
                return bad("Content-Type has a boundary that is none (1 to 70 letters, digits or marks)");
            }
            memcpy(m->delimiter, "\r\n--", 4);
            memcpy(m->delimiter + 4, value, len);
            m->n_delimiter = 4 + len;
        }
    }
    if (!found) {
        return bad("Content-Type names no boundary");
    }
    m->state = PREAMBLE;
    m->matched = 2;
    return NULL;
}

/* ---- the head of a part ---- */

static nrd_error *read_disposition(const char *line, size_t n, char *name, bool *has_name, char *filename, bool *has_filename)
{
    static const char kind[] = "form-data";
    char word[32], value[NRD_MULTIPART_NAME];
    bool more = true;
    cursor c = {line, line + n};

    skip_blanks(&c);
    if ((size_t)(c.end - c.p) < sizeof kind - 1 || strncasecmp(c.p, kind, sizeof kind - 1) != 0) {
        return bad("a part's Content-Disposition is not form-data");
    }
    c.p += sizeof kind - 1;
    while (more) {
        if (!next_parameter(&c, word, value, sizeof value, &more)) {
            return bad("a part's Content-Disposition cannot be read (names have at most 511 bytes)");
        }
        if (more && !strcasecmp(word, "name") && !*has_name) {
            *has_name = true;
            memcpy(name, value, sizeof value);
        } else if (more && !strcasecmp(word, "filename") && !*has_filename) {
            *has_filename = true;
            memcpy(filename, value, sizeof value);
        }
    }
    return NULL;
}

static nrd_error *begin_part(nrd_multipart *m)
{
    static const char field[] = "Content-Disposition:";
    char name[NRD_MULTIPART_NAME] = "", filename[NRD_MULTIPART_NAME] = "";
    bool has_name = false, has_filename = false;
    const char *p = m->head, *end = m->head + m->n_head;

    if (++m->n_parts > NRD_MULTIPART_PARTS) {
        return bad("more than 32 parts");
    }
    while (p < end) {
        const char *eol = memmem(p, (size_t)(end - p), "\r\n", 2);
        const size_t n = eol ? (size_t)(eol - p) : (size_t)(end - p);
        if (n >= sizeof field - 1 && !strncasecmp(p, field, sizeof field - 1) && !has_name) {
            NRD_TRY(read_disposition(p + sizeof field - 1, n - (sizeof field - 1), name, &has_name, filename, &has_filename));
        }
        p += n + (eol ? 2 : 0);
    }
    if (!has_name) {
        return bad("a part has no name (Content-Disposition: form-data; name=\"…\")");
    }
    m->in_part = true;
    return m->reader.begin(m->reader.arg, name, has_filename ? filename : NULL);
}

static nrd_error *take_head(nrd_multipart *m, char ch)
{
    if (m->n_head == sizeof m->head) {
        return bad("the head of a part has more than 4096 bytes");
    }
    m->head[m->n_head++] = ch;
    if (m->n_head == 2 && !memcmp(m->head, "\r\n", 2)) {
        m->n_head = 0;
    } else if (m->n_head < 4 || memcmp(m->head + m->n_head - 4, "\r\n\r\n", 4) != 0) {
        return NULL;
    }
    m->state = DATA;
    m->matched = 0;
    nrd_error *err = begin_part(m);
    m->n_head = 0;
    return err;
}

/* ---- bytes ---- */

static nrd_error *give(nrd_multipart *m, const char *data, size_t n)
{
    return m->in_part && n > 0 ? m->reader.data(m->reader.arg, data, n) : NULL;
}

/* One byte behind a delimiter that was begun, or the first of one. */
static nrd_error *match(nrd_multipart *m, char ch)
{
    if (ch != m->delimiter[m->matched]) {
        const size_t held = m->state == PREAMBLE ? 0 : m->matched;
        m->matched = 0;
        NRD_TRY(give(m, m->delimiter, held));
        if (ch == '\r') {
            m->matched = 1;
            return NULL;
        }
        return give(m, &ch, 1);
    }
    if (++m->matched < m->n_delimiter) {
        return NULL;
    }
    m->state = BEHIND;
    m->matched = 0;
    const bool ends = m->in_part;
    m->in_part = false;
    return ends ? m->reader.end(m->reader.arg) : NULL;
}

static nrd_error *behind(nrd_multipart *m, char ch)
{
    if (m->state == BEHIND_CR) {
        m->state = HEAD;
        m->n_head = 0;
        return ch == '\n' ? NULL : bad("a delimiter is not followed by the end of its line");
    }
    if (m->state == BEHIND_DASH) {
        m->state = DONE;
        return ch == '-' ? NULL : bad("a delimiter is not followed by the end of its line");
    }
    if (ch == '-') {
        m->state = BEHIND_DASH;
    } else if (ch == '\r') {
        m->state = BEHIND_CR;
    } else if (ch != ' ' && ch != '\t') {
        return bad("a delimiter is not followed by the end of its line");
    }
    return NULL;
}

nrd_error *nrd_multipart_feed(nrd_multipart *m, const char *data, size_t n)
{
    size_t i = 0;

    while (i < n) {
        if (m->state == DONE) {
            return NULL;
        }
        if (m->state == DATA && m->matched == 0) { /* most bytes: up to the next CR at once */
            const char *cr = memchr(data + i, '\r', n - i);
            const size_t run = cr ? (size_t)(cr - data) - i : n - i;
            NRD_TRY(give(m, data + i, run));
            i += run;
            if (i == n) {
                return NULL;
            }
        }
        const char ch = data[i++];
        if (m->state == PREAMBLE || m->state == DATA) {
            NRD_TRY(match(m, ch));
        } else if (m->state == HEAD) {
            NRD_TRY(take_head(m, ch));
        } else {
            NRD_TRY(behind(m, ch));
        }
    }
    return NULL;
}

nrd_error *nrd_multipart_end(const nrd_multipart *m)
{
    return m->state == DONE ? NULL : bad("it ends before its last delimiter");
}
