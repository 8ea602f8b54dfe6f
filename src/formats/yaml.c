/* SPDX-License-Identifier: Apache-2.0
 * libyaml's events become JSON; plain texts get PyYAML's types. Called by formats/nemo.c. */
#include "formats/yaml.h"

#ifndef NRD_HAVE_YAML
nrd_error *nrd_yaml_to_json(nrd_str *out, const char *text, size_t n)
{
    (void)out;
    (void)text;
    (void)n;
    return nrd_errorf(NRD_ERR_UNSUPPORTED, "this build has no libyaml");
}
#else

#include "base/json.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <yaml.h>

enum { MAX_DEPTH = 32, MAX_NUMBER = 64 };

typedef struct {
    bool is_map;
    size_t n; /* nodes so far; of a map keys and values */
} level;

typedef struct {
    nrd_str *out;
    level levels[MAX_DEPTH];
    int depth;
    bool had_document;
} writer;

static nrd_error *wrong(nrd_error_code code, yaml_mark_t at, const char *what)
{
    return nrd_errorf(code, "line %zu: %s", at.line + 1, what);
}

static bool is_word(const char *s, const char *const *words, size_t n_words)
{
    for (size_t i = 0; i < n_words; i++) {
        if (!strcmp(words[i], s)) {
            return true;
        }
    }
    return false;
}

/* A number of JSON; false: it is none. */
static bool put_number(nrd_str *out, const char *s, size_t n)
{
    long long whole;
    double real;

    if (n == 0 || n >= MAX_NUMBER || strspn(s, "0123456789+-.eE") < n) {
        return false;
    }
    if (nrd_parse_i64(s, &whole)) {
        nrd_str_put_i64(out, whole);
        return true;
    }
    if (!nrd_parse_f64(s, &real)) {
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

    if (is_word(s, nothing, sizeof nothing / sizeof *nothing)) {
        nrd_str_puts(out, "null");
    } else if (is_word(s, yes, sizeof yes / sizeof *yes)) {
        nrd_str_puts(out, "true");
    } else if (is_word(s, no, sizeof no / sizeof *no)) {
        nrd_str_puts(out, "false");
    } else if (!put_number(out, s, n)) {
        nrd_json_put_string(out, s, n);
    }
}

/* What stands in front of a node. *out_is_key: it is a map's key. */
static void begin_node(writer *w, bool *out_is_key)
{
    level *l = w->depth > 0 ? &w->levels[w->depth - 1] : NULL;

    *out_is_key = l && l->is_map && l->n % 2 == 0;
    if (l && l->n > 0) {
        nrd_str_putc(w->out, l->is_map && l->n % 2 ? ':' : ',');
    }
    if (l) {
        l->n++;
    }
}

static nrd_error *begin_level(writer *w, yaml_mark_t at, bool is_map, bool is_key)
{
    if (is_key) {
        return wrong(NRD_ERR_UNSUPPORTED, at, "a key that is no plain text is not supported");
    }
    if (w->depth == MAX_DEPTH) {
        return wrong(NRD_ERR_INVALID_ARG, at, "maps and lists are too deep in each other");
    }
    w->levels[w->depth++] = (level){.is_map = is_map};
    nrd_str_putc(w->out, is_map ? '{' : '[');
    return NULL;
}

static void end_level(writer *w)
{
    nrd_str_putc(w->out, w->levels[--w->depth].is_map ? '}' : ']');
}

/* Whether it has an anchor or a tag, or is an alias. */
static bool is_marked(const yaml_event_t *e)
{
    switch (e->type) {
    case YAML_ALIAS_EVENT:
        return true;
    case YAML_SCALAR_EVENT:
        return e->data.scalar.anchor || e->data.scalar.tag;
    case YAML_SEQUENCE_START_EVENT:
        return e->data.sequence_start.anchor || e->data.sequence_start.tag;
    case YAML_MAPPING_START_EVENT:
        return e->data.mapping_start.anchor || e->data.mapping_start.tag;
    default:
        return false;
    }
}

static nrd_error *put_event(writer *w, const yaml_event_t *e)
{
    bool is_key = false;

    if (is_marked(e)) {
        return wrong(NRD_ERR_UNSUPPORTED, e->start_mark, "anchors, aliases and tags are not supported");
    }
    switch (e->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (w->had_document) {
            return wrong(NRD_ERR_UNSUPPORTED, e->start_mark, "more than one document is not supported");
        }
        w->had_document = true;
        break;
    case YAML_SCALAR_EVENT: {
        const char *s = (const char *)e->data.scalar.value;
        const size_t n = e->data.scalar.length;
        begin_node(w, &is_key);
        if (is_key || e->data.scalar.style != YAML_PLAIN_SCALAR_STYLE) {
            nrd_json_put_string(w->out, s, n);
        } else {
            put_plain(w->out, s, n);
        }
        break;
    }
    case YAML_SEQUENCE_START_EVENT:
    case YAML_MAPPING_START_EVENT:
        begin_node(w, &is_key);
        return begin_level(w, e->start_mark, e->type == YAML_MAPPING_START_EVENT, is_key);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        end_level(w);
        break;
    default:
        break;
    }
    return NULL;
}

static nrd_error *error_of(const yaml_parser_t *p)
{
    if (p->error == YAML_MEMORY_ERROR) {
        return nrd_error_no_memory();
    }
    if (p->error == YAML_READER_ERROR) { /* it has no line */
        return nrd_errorf(NRD_ERR_INVALID_ARG, "byte %zu: %s", p->problem_offset, p->problem);
    }
    return nrd_errorf(NRD_ERR_INVALID_ARG, "line %zu: %s%s%s", p->problem_mark.line + 1, p->context ? p->context : "",
                      p->context ? ", " : "", p->problem);
}

nrd_error *nrd_yaml_to_json(nrd_str *out, const char *text, size_t n)
{
    yaml_parser_t parser;
    yaml_event_t event;
    writer w = {.out = out};
    nrd_error *err = NULL;
    bool is_end = false;

    if (!yaml_parser_initialize(&parser)) {
        return nrd_error_no_memory();
    }
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, n);
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    while (!err && !is_end) {
        if (!yaml_parser_parse(&parser, &event)) {
            err = error_of(&parser);
            break;
        }
        err = put_event(&w, &event);
        is_end = event.type == YAML_STREAM_END_EVENT;
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    if (!err && !w.had_document) {
        nrd_str_puts(out, "null");
    }
    return err ? err : nrd_str_error(out);
}
#endif
