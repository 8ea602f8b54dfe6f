/* SPDX-License-Identifier: Apache-2.0
 * A template from its source to its syntax tree. */
#include "text/template/internal.h"

static nrd_error *compile(nrd_template_parser *p, const char *text, size_t n)
{
    if (setjmp(p->jmp) == 0) {
        nrd_template_lex(p, text, n);
        nrd_template_parse(p);
    }
    return p->err;
}

nrd_error *nrd_template_compile(nrd_template **out, const char *text, size_t n)
{
    nrd_template_parser p = {0};
    *out = NULL;
    if (n > TPL_MAX_SOURCE) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "a template of %zu bytes; at most %d", n,
                          TPL_MAX_SOURCE);
    }
    nrd_template *t = calloc(1, sizeof *t);
    if (!t) {
        return nrd_error_no_memory();
    }
    nrd_arena_init(&t->arena);
    p.t = t;
    nrd_error *err = compile(&p, text, n);
    if (err) {
        nrd_template_free(t);
        return err;
    }
    *out = t;
    return NULL;
}

void nrd_template_free(nrd_template *t)
{
    if (t) {
        nrd_arena_fini(&t->arena);
        free(t);
    }
}

bool nrd_template_mentions(const nrd_template *t, const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < t->cap_names; i++) {
        if (t->names[i].s && t->names[i].n == n && memcmp(t->names[i].s, name, n) == 0) {
            return true;
        }
    }
    return false;
}
