/* SPDX-License-Identifier: Apache-2.0
 * The stream of tokens that a template is parsed from, names that are kept once, and nodes. */
#include "text/template/parse_internal.h"

#include "base/siphash.h"

#include <stdarg.h>
#include <stdio.h>

void nrd_template_fail_parse(nrd_template_parser *p, nrd_error_code code, int line, const char *fmt,
                             ...)
{
    va_list ap;
    va_start(ap, fmt);
    p->err = nrd_error_wrap(nrd_errorv(code, fmt, ap), "template line %d", line);
    va_end(ap);
    longjmp(p->jmp, 1);
}

void *nrd_template_parse_alloc(nrd_template_parser *p, size_t n)
{
    void *m = nrd_arena_alloc(&p->t->arena, n);
    if (!m) {
        p->err = nrd_error_no_memory();
        longjmp(p->jmp, 1);
    }
    memset(m, 0, n);
    return m;
}

const char *nrd_template_intern(nrd_template_parser *p, const char *s, size_t n)
{
    nrd_template *t = p->t;
    if (2 * (t->n_names + 1) > t->cap_names) {
        size_t cap = t->cap_names ? 2 * t->cap_names : 128;
        nrd_template_name_entry *grown = nrd_template_parse_alloc(p, cap * sizeof *grown);
        for (size_t i = 0; i < t->cap_names; i++) {
            if (t->names[i].s) {
                size_t k = nrd_siphash_bytes(t->names[i].s, t->names[i].n) & (cap - 1);
                while (grown[k].s) {
                    k = (k + 1) & (cap - 1);
                }
                grown[k] = t->names[i];
            }
        }
        t->names = grown;
        t->cap_names = cap;
    }
    size_t k = nrd_siphash_bytes(s, n) & (t->cap_names - 1);
    while (t->names[k].s) {
        if (t->names[k].n == n && memcmp(t->names[k].s, s, n) == 0) {
            return t->names[k].s;
        }
        k = (k + 1) & (t->cap_names - 1);
    }
    char *copy = nrd_template_parse_alloc(p, n + 1);
    memcpy(copy, s, n);
    t->names[k] = (nrd_template_name_entry){copy, n};
    t->n_names++;
    return copy;
}

static const char *token_text(const nrd_template_token *t, char out[64])
{
    static const char *const names[] = {
        "end of template",
        "text",
        "{{",
        "}}",
        "{%",
        "%}",
        "",
        "a string",
        "a number",
        "a number",
        "+",
        "-",
        "*",
        "/",
        "//",
        "%",
        "**",
        "~",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "==",
        "!=",
        "<",
        "<=",
        ">",
        ">=",
        "=",
        ".",
        ":",
        "|",
        ",",
        ";",
    };
    snprintf(out, 64, "%s", t->kind == T_NAME ? t->s : names[t->kind]);
    return out;
}

void nrd_template_unexpected(nrd_template_parser *p, const char *wanted)
{
    char text[64];
    nrd_template_fail_parse(p, NRD_ERR_INVALID_ARG, nrd_template_cur(p)->line,
                            "expected %s, got '%s'", wanted, token_text(nrd_template_cur(p), text));
}

const nrd_template_token *nrd_template_expect(nrd_template_parser *p, nrd_template_token_kind kind,
                                              const char *wanted)
{
    if (nrd_template_cur(p)->kind != kind) {
        nrd_template_unexpected(p, wanted);
    }
    return nrd_template_take(p);
}

void nrd_template_enter(nrd_template_parser *p)
{
    if (++p->depth > TPL_MAX_NESTING) {
        nrd_template_fail_parse(p, NRD_ERR_INVALID_ARG, nrd_template_cur(p)->line,
                                "nested deeper than %d", TPL_MAX_NESTING);
    }
}

nrd_template_node *nrd_template_new_node(nrd_template_parser *p, nrd_template_node_kind kind)
{
    nrd_template_node *n = nrd_template_parse_alloc(p, sizeof *n);
    n->kind = (uint8_t)kind;
    n->line = nrd_template_cur(p)->line;
    return n;
}

void nrd_template_append(nrd_template_node **head, nrd_template_node **tail, nrd_template_node *n)
{
    if (*tail) {
        (*tail)->next = n;
    } else {
        *head = n;
    }
    *tail = n;
}
