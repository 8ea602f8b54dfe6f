/* SPDX-License-Identifier: Apache-2.0
 * text/template/parse_internal.h - what makes a syntax tree of tokens: the stream of them and nodes (parse_tokens.c), expressions
 * (parse_expr.c), statements (parse.c).
 *
 * Errors    What fails leaves by nrd_template_fail_parse and does not return.
 */
#ifndef NRD_TEXT_TEMPLATE_PARSE_INTERNAL_H
#define NRD_TEXT_TEMPLATE_PARSE_INTERNAL_H

#include "text/template/internal.h"

static inline const nrd_template_token *nrd_template_cur(const nrd_template_parser *p)
{
    return &p->tokens[p->pos];
}

static inline const nrd_template_token *nrd_template_look(const nrd_template_parser *p)
{
    return &p->tokens[p->pos + (p->pos + 1 < p->n_tokens)];
}

static inline const nrd_template_token *nrd_template_take(nrd_template_parser *p)
{
    const nrd_template_token *t = nrd_template_cur(p);
    p->pos += p->pos + 1 < p->n_tokens;
    return t;
}

static inline bool nrd_template_is_word(const nrd_template_token *t, const char *word)
{
    return t->kind == T_NAME && strcmp(t->s, word) == 0;
}

static inline bool nrd_template_skip(nrd_template_parser *p, nrd_template_token_kind kind)
{
    bool is = nrd_template_cur(p)->kind == kind;
    if (is) {
        nrd_template_take(p);
    }
    return is;
}

static inline bool nrd_template_skip_word(nrd_template_parser *p, const char *word)
{
    bool is = nrd_template_is_word(nrd_template_cur(p), word);
    if (is) {
        nrd_template_take(p);
    }
    return is;
}

/* ---- parse_tokens.c ---- */

void __attribute__((noreturn)) nrd_template_unexpected(nrd_template_parser *p, const char *wanted);
/* Takes a token of this kind; wanted: what it is called where there is another. */
const nrd_template_token *nrd_template_expect(nrd_template_parser *p, nrd_template_token_kind kind,
                                              const char *wanted);
/* One level deeper; the caller leaves by p->depth--. */
void nrd_template_enter(nrd_template_parser *p);
/* Of the line of the token that comes next. */
nrd_template_node *nrd_template_new_node(nrd_template_parser *p, nrd_template_node_kind kind);
void nrd_template_append(nrd_template_node **head, nrd_template_node **tail, nrd_template_node *n);

/* ---- parse_expr.c ---- */

typedef enum { TUPLE_FULL, TUPLE_NO_COND, TUPLE_TARGET, TUPLE_TARGET_NS } nrd_template_tuple_mode;

nrd_template_node *nrd_template_parse_expr(nrd_template_parser *p);
/* One expression, or several with ',' between; end_word: a word that ends them too, or NULL; parens: there may be none. */
nrd_template_node *nrd_template_parse_tuple(nrd_template_parser *p, nrd_template_tuple_mode mode,
                                            const char *end_word, bool parens);
/* `inner` NULL: the filter of a block. begun: its '|' was taken. */
nrd_template_node *nrd_template_parse_filter(nrd_template_parser *p, nrd_template_node *inner,
                                             bool begun);
/* What is assigned to. */
nrd_template_node *nrd_template_parse_target(nrd_template_parser *p, nrd_template_tuple_mode mode);

#endif
