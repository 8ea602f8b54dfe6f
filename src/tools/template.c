/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/template.h"

#include "base/mem.h"

#include <string.h>

void nrd_template_set(nrd_template_values *v, const char *name, const char *value)
{
    for (size_t i = 0; i < v->n; i++) {
        if (!strcmp(v->names[i], name)) {
            free(v->values[i]);
            v->values[i] = nrd_xstrdup(value);
            return;
        }
    }
    if (v->n == v->cap) {
        v->cap = v->cap ? v->cap * 2 : 32;
        v->names = nrd_xrealloc(v->names, v->cap * sizeof *v->names);
        v->values = nrd_xrealloc(v->values, v->cap * sizeof *v->values);
    }
    v->names[v->n] = nrd_xstrdup(name);
    v->values[v->n++] = nrd_xstrdup(value);
}

const char *nrd_template_get(const nrd_template_values *v, const char *name)
{
    for (size_t i = 0; i < v->n; i++) {
        if (!strcmp(v->names[i], name)) {
            return v->values[i];
        }
    }
    return NULL;
}

/* Copies up to the next unescaped `stop`, consuming one level of backslashes. */
static const char *split(const char *p, char stop, nrd_str *out)
{
    for (; *p && *p != stop; p++) {
        if (*p == '\\' && p[1]) {
            p++;
        }
        nrd_str_putc(out, *p);
    }
    return p;
}

nrd_error *nrd_template_set_list(nrd_template_values *v, const char *list)
{
    nrd_error *err = NULL;
    while (*list && !err) {
        nrd_str piece = {0}, name = {0}, value = {0};
        list = split(list, ',', &piece);
        list += *list == ',';
        const char *rest = split(nrd_str_cstr(&piece), ':', &name);
        const char *end = *rest ? split(rest + 1, ':', &value) : rest;
        if (*rest != ':' || *end || !name.len) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG,
                             "'%s': expected name:value (a colon inside a value needs two "
                             "backslashes, a comma one)",
                             nrd_str_cstr(&piece));
        } else {
            nrd_template_set(v, nrd_str_cstr(&name), nrd_str_cstr(&value));
        }
        nrd_str_fini(&piece);
        nrd_str_fini(&name);
        nrd_str_fini(&value);
    }
    return err;
}

void nrd_template_fill(const nrd_template_values *v, const char *text, size_t n, nrd_str *out)
{
    const char *end = text + n;
    while (text < end) {
        const char *dollar = memchr(text, '$', (size_t)(end - text));
        if (!dollar) {
            break;
        }
        nrd_str_append(out, text, (size_t)(dollar - text));
        const char *close = end - dollar > 2 && dollar[1] == '{'
                                ? memchr(dollar, '}', (size_t)(end - dollar))
                                : NULL;
        char *name = close ? nrd_xstrndup(dollar + 2, (size_t)(close - dollar - 2)) : NULL;
        const char *value = name ? nrd_template_get(v, name) : NULL;
        text = value ? close + 1 : dollar + 1;
        nrd_str_puts(out, value ? value : "$");
        free(name);
    }
    nrd_str_append(out, text, (size_t)(end - text));
}

void nrd_template_fini(nrd_template_values *v)
{
    for (size_t i = 0; i < v->n; i++) {
        free(v->names[i]);
        free(v->values[i]);
    }
    free(v->names);
    free(v->values);
    memset(v, 0, sizeof *v);
}
