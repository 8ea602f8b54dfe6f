/* SPDX-License-Identifier: Apache-2.0
 * Expressions of a template by descent, weakest first: one function for each strength of operators. */
#include "text/template/parse_internal.h"

static nrd_template_node *parse_or(nrd_template_parser *p);
static nrd_template_node *parse_unary(nrd_template_parser *p, bool with_filter);

static nrd_template_node *const_node(nrd_template_parser *p, nrd_template_val v)
{
    nrd_template_node *n = nrd_template_new_node(p, N_CONST);
    n->value = v;
    return n;
}

static nrd_template_node *binary(nrd_template_parser *p, nrd_template_node_kind kind, int op,
                                 nrd_template_node *a, nrd_template_node *b)
{
    nrd_template_node *n = nrd_template_new_node(p, kind);
    n->op = (uint8_t)op;
    n->line = a->line;
    n->a = a;
    n->b = b;
    return n;
}

static bool ends_tuple(const nrd_template_parser *p, const char *end_word)
{
    nrd_template_token_kind k = nrd_template_cur(p)->kind;
    return k == T_VAR_END || k == T_BLOCK_END || k == T_RPAREN ||
           (end_word && nrd_template_is_word(nrd_template_cur(p), end_word));
}

nrd_template_node *nrd_template_parse_tuple(nrd_template_parser *p, nrd_template_tuple_mode mode,
                                            const char *end_word, bool parens)
{
    nrd_template_node *head = NULL, *tail = NULL;
    bool is_tuple = false;
    nrd_template_node *t = nrd_template_new_node(p, N_TUPLE);

    while (!(ends_tuple(p, end_word) && (head || parens))) {
        nrd_template_append(&head, &tail,
                            mode == TUPLE_FULL      ? nrd_template_parse_expr(p)
                            : mode == TUPLE_NO_COND ? parse_or(p)
                                                    : nrd_template_parse_target(p, mode));
        if (!nrd_template_skip(p, T_COMMA)) {
            break;
        }
        is_tuple = true;
    }
    if (!is_tuple && head) {
        return head;
    }
    t->list = head;
    return t;
}

static nrd_template_node *parse_args(nrd_template_parser *p)
{
    nrd_template_node *head = NULL, *tail = NULL;
    int stage = 0; /* positional, keywords, *, ** */

    nrd_template_expect(p, T_LPAREN, "'('");
    while (nrd_template_cur(p)->kind != T_RPAREN) {
        nrd_template_node *a = nrd_template_new_node(p, N_ARG);
        int now = 0;
        if (nrd_template_skip(p, T_MUL)) {
            a->op = '*';
            now = 2;
        } else if (nrd_template_skip(p, T_POW)) {
            a->op = 'p';
            now = 3;
        } else if (nrd_template_cur(p)->kind == T_NAME && nrd_template_look(p)->kind == T_ASSIGN) {
            a->name = nrd_template_take(p)->s;
            nrd_template_take(p);
            now = 1;
        }
        if ((now == 0 && stage > 0) || (now > 1 && stage >= now) || (now == 1 && stage == 3)) {
            nrd_template_fail_parse(p, NRD_ERR_INVALID_ARG, a->line, "wrong order of arguments");
        }
        stage = now > stage ? now : stage;
        a->a = nrd_template_parse_expr(p);
        nrd_template_append(&head, &tail, a);
        if (!nrd_template_skip(p, T_COMMA)) {
            break;
        }
    }
    nrd_template_expect(p, T_RPAREN, "')'");
    return head;
}

static nrd_template_node *parse_subscript(nrd_template_parser *p, nrd_template_node *obj)
{
    nrd_template_node *n = nrd_template_new_node(p, N_ITEM), *s;
    n->a = obj;
    if (nrd_template_skip(p, T_DOT)) {
        if (nrd_template_cur(p)->kind == T_INT) {
            n->b = const_node(p, nrd_template_val_int(nrd_template_take(p)->i));
            return n;
        }
        n->kind = N_ATTR;
        n->name = nrd_template_expect(p, T_NAME, "a name or a number after '.'")->s;
        return n;
    }
    nrd_template_take(p); /* [ */
    if (nrd_template_cur(p)->kind != T_COLON) {
        n->b = nrd_template_parse_expr(p);
    }
    if (nrd_template_cur(p)->kind == T_COLON) {
        s = nrd_template_new_node(p, N_SLICE);
        s->a = n->b;
        n->b = s;
        nrd_template_take(p);
        if (nrd_template_cur(p)->kind != T_COLON && nrd_template_cur(p)->kind != T_RBRACKET) {
            s->b = nrd_template_parse_expr(p);
        }
        if (nrd_template_skip(p, T_COLON) && nrd_template_cur(p)->kind != T_RBRACKET) {
            s->c = nrd_template_parse_expr(p);
        }
    }
    nrd_template_expect(p, T_RBRACKET, "']'");
    return n;
}

static nrd_template_node *parse_call(nrd_template_parser *p, nrd_template_node *f)
{
    nrd_template_node *n = nrd_template_new_node(p, N_CALL);
    n->a = f;
    n->list = parse_args(p);
    return n;
}

static nrd_template_node *parse_postfix(nrd_template_parser *p, nrd_template_node *n)
{
    while (true) {
        nrd_template_token_kind k = nrd_template_cur(p)->kind;
        if (k == T_DOT || k == T_LBRACKET) {
            n = parse_subscript(p, n);
        } else if (k == T_LPAREN) {
            n = parse_call(p, n);
        } else {
            return n;
        }
    }
}

nrd_template_node *nrd_template_parse_filter(nrd_template_parser *p, nrd_template_node *inner,
                                             bool begun)
{
    while (begun || nrd_template_skip(p, T_PIPE)) {
        nrd_template_node *f = nrd_template_new_node(p, N_FILTER);
        begun = false;
        f->name = nrd_template_expect(p, T_NAME, "the name of a filter")->s;
        f->ref = nrd_template_find_filter(f->name);
        f->a = inner;
        if (nrd_template_cur(p)->kind == T_LPAREN) {
            f->list = parse_args(p);
        }
        inner = f;
    }
    return inner;
}

static nrd_template_node *parse_primary(nrd_template_parser *p);

static nrd_template_node *parse_test(nrd_template_parser *p, nrd_template_node *value)
{
    nrd_template_node *n = nrd_template_new_node(p, N_TEST);
    nrd_template_take(p); /* is */
    bool negated = nrd_template_skip_word(p, "not");
    n->a = value;
    n->name = nrd_template_expect(p, T_NAME, "the name of a test")->s;
    n->ref = nrd_template_find_test(n->name);
    const nrd_template_token *t = nrd_template_cur(p);
    if (t->kind == T_LPAREN) {
        n->list = parse_args(p);
    } else if ((t->kind == T_NAME && !nrd_template_is_word(t, "else") &&
                !nrd_template_is_word(t, "or") && !nrd_template_is_word(t, "and")) ||
               t->kind == T_STR || t->kind == T_INT || t->kind == T_FLOAT ||
               t->kind == T_LBRACKET || t->kind == T_LBRACE) {
        if (nrd_template_is_word(t, "is")) {
            nrd_template_fail_parse(p, NRD_ERR_INVALID_ARG, t->line,
                                    "tests cannot be chained with 'is'");
        }
        nrd_template_node *a = nrd_template_new_node(p, N_ARG);
        a->a = parse_postfix(p, parse_primary(p));
        n->list = a;
    }
    if (negated) {
        nrd_template_node *not = nrd_template_new_node(p, N_NOT);
        not ->a = n;
        return not ;
    }
    return n;
}

static nrd_template_node *parse_list(nrd_template_parser *p)
{
    nrd_template_node *n = nrd_template_new_node(p, N_LIST), *tail = NULL;
    nrd_template_take(p);
    while (nrd_template_cur(p)->kind != T_RBRACKET) {
        nrd_template_append(&n->list, &tail, nrd_template_parse_expr(p));
        if (!nrd_template_skip(p, T_COMMA)) {
            break;
        }
    }
    nrd_template_expect(p, T_RBRACKET, "']'");
    return n;
}

static nrd_template_node *parse_dict(nrd_template_parser *p)
{
    nrd_template_node *n = nrd_template_new_node(p, N_DICT), *tail = NULL;
    nrd_template_take(p);
    while (nrd_template_cur(p)->kind != T_RBRACE) {
        nrd_template_node *pair = nrd_template_new_node(p, N_PAIR);
        pair->a = nrd_template_parse_expr(p);
        nrd_template_expect(p, T_COLON, "':'");
        pair->b = nrd_template_parse_expr(p);
        nrd_template_append(&n->list, &tail, pair);
        if (!nrd_template_skip(p, T_COMMA)) {
            break;
        }
    }
    nrd_template_expect(p, T_RBRACE, "'}'");
    return n;
}

static nrd_template_node *parse_name(nrd_template_parser *p)
{
    const nrd_template_token *t = nrd_template_take(p);
    if (!strcmp(t->s, "true") || !strcmp(t->s, "True")) {
        return const_node(p, nrd_template_val_bool(true));
    }
    if (!strcmp(t->s, "false") || !strcmp(t->s, "False")) {
        return const_node(p, nrd_template_val_bool(false));
    }
    if (!strcmp(t->s, "none") || !strcmp(t->s, "None")) {
        return const_node(p, nrd_template_val_none());
    }
    nrd_template_node *n = nrd_template_new_node(p, N_NAME);
    n->line = t->line;
    n->name = t->s;
    if (p->macro) {
        p->macro->flags |= (uint8_t)(t->s == p->t->n_varargs  ? F_VARARGS
                                     : t->s == p->t->n_kwargs ? F_KWARGS
                                     : t->s == p->t->n_caller ? F_CALLER
                                                              : 0);
    }
    return n;
}

static nrd_template_node *parse_string(nrd_template_parser *p)
{
    const nrd_template_token *first = nrd_template_take(p);
    size_t n = first->n;
    if (nrd_template_cur(p)->kind != T_STR) {
        return const_node(p, nrd_template_val_str(first->s, n));
    }
    size_t from = p->pos;
    while (nrd_template_cur(p)->kind == T_STR) { /* neighbours are one string */
        n += nrd_template_take(p)->n;
    }
    char *all = nrd_template_parse_alloc(p, n + 1);
    memcpy(all, first->s, first->n);
    size_t at = first->n;
    for (size_t i = from; i < p->pos; i++) {
        memcpy(all + at, p->tokens[i].s, p->tokens[i].n);
        at += p->tokens[i].n;
    }
    return const_node(p, nrd_template_val_str(all, n));
}

static nrd_template_node *parse_primary(nrd_template_parser *p)
{
    nrd_template_node *n;
    switch (nrd_template_cur(p)->kind) {
    case T_NAME:
        return parse_name(p);
    case T_STR:
        return parse_string(p);
    case T_INT:
        return const_node(p, nrd_template_val_int(nrd_template_take(p)->i));
    case T_FLOAT:
        return const_node(p, nrd_template_val_float(nrd_template_take(p)->f));
    case T_LPAREN:
        nrd_template_take(p);
        n = nrd_template_parse_tuple(p, TUPLE_FULL, NULL, true);
        nrd_template_expect(p, T_RPAREN, "')'");
        return n;
    case T_LBRACKET:
        return parse_list(p);
    case T_LBRACE:
        return parse_dict(p);
    default:
        nrd_template_unexpected(p, "an expression");
    }
}

static nrd_template_node *parse_unary(nrd_template_parser *p, bool with_filter)
{
    nrd_template_node *n;
    nrd_template_enter(p);
    if (nrd_template_cur(p)->kind == T_SUB || nrd_template_cur(p)->kind == T_ADD) {
        n = nrd_template_new_node(p, nrd_template_cur(p)->kind == T_SUB ? N_NEG : N_POS);
        nrd_template_take(p);
        n->a = parse_unary(p, false);
    } else {
        n = parse_primary(p);
    }
    n = parse_postfix(p, n);
    while (with_filter) {
        if (nrd_template_cur(p)->kind == T_PIPE) {
            n = nrd_template_parse_filter(p, n, false);
        } else if (nrd_template_is_word(nrd_template_cur(p), "is")) {
            n = parse_test(p, n);
        } else if (nrd_template_cur(p)->kind == T_LPAREN) {
            n = parse_call(p, n);
        } else {
            break;
        }
    }
    p->depth--;
    return n;
}

static nrd_template_node *parse_pow(nrd_template_parser *p)
{
    nrd_template_node *left = parse_unary(p, true);
    while (nrd_template_skip(p, T_POW)) {
        left = binary(p, N_BINARY, T_POW, left, parse_unary(p, true));
    }
    return left;
}

static nrd_template_node *parse_product(nrd_template_parser *p)
{
    nrd_template_node *left = parse_pow(p);
    nrd_template_token_kind k;
    while ((k = nrd_template_cur(p)->kind) == T_MUL || k == T_DIV || k == T_FLOORDIV ||
           k == T_MOD) {
        nrd_template_take(p);
        left = binary(p, N_BINARY, (int)k, left, parse_pow(p));
    }
    return left;
}

static nrd_template_node *parse_concat(nrd_template_parser *p)
{
    nrd_template_node *first = parse_product(p);
    if (nrd_template_cur(p)->kind != T_TILDE) {
        return first;
    }
    nrd_template_node *n = nrd_template_new_node(p, N_CONCAT), *tail = NULL;
    nrd_template_append(&n->list, &tail, first);
    while (nrd_template_skip(p, T_TILDE)) {
        nrd_template_append(&n->list, &tail, parse_product(p));
    }
    return n;
}

static nrd_template_node *parse_sum(nrd_template_parser *p)
{
    nrd_template_node *left = parse_concat(p);
    nrd_template_token_kind k;
    while ((k = nrd_template_cur(p)->kind) == T_ADD || k == T_SUB) {
        nrd_template_take(p);
        left = binary(p, N_BINARY, (int)k, left, parse_concat(p));
    }
    return left;
}

static nrd_template_node *parse_compare(nrd_template_parser *p)
{
    nrd_template_node *first = parse_sum(p), *n = NULL, *tail = NULL;
    while (true) {
        const nrd_template_token *t = nrd_template_cur(p);
        int op = 0;
        if (t->kind >= T_EQ && t->kind <= T_GE) {
            op = (int)t->kind;
            nrd_template_take(p);
        } else if (nrd_template_skip_word(p, "in")) {
            op = 'i';
        } else if (nrd_template_is_word(t, "not") &&
                   nrd_template_is_word(nrd_template_look(p), "in")) {
            op = 'n';
            nrd_template_take(p);
            nrd_template_take(p);
        } else {
            return n ? n : first;
        }
        if (!n) {
            n = nrd_template_new_node(p, N_COMPARE);
            n->a = first;
        }
        nrd_template_node *operand = nrd_template_new_node(p, N_OPERAND);
        operand->op = (uint8_t)op;
        operand->a = parse_sum(p);
        nrd_template_append(&n->list, &tail, operand);
    }
}

static nrd_template_node *parse_not(nrd_template_parser *p)
{
    if (!nrd_template_is_word(nrd_template_cur(p), "not")) {
        return parse_compare(p);
    }
    nrd_template_node *n = nrd_template_new_node(p, N_NOT);
    nrd_template_enter(p);
    nrd_template_take(p);
    n->a = parse_not(p);
    p->depth--;
    return n;
}

static nrd_template_node *parse_and(nrd_template_parser *p)
{
    nrd_template_node *left = parse_not(p);
    while (nrd_template_skip_word(p, "and")) {
        left = binary(p, N_AND, 0, left, parse_not(p));
    }
    return left;
}

static nrd_template_node *parse_or(nrd_template_parser *p)
{
    nrd_template_node *left = parse_and(p);
    while (nrd_template_skip_word(p, "or")) {
        left = binary(p, N_OR, 0, left, parse_and(p));
    }
    return left;
}

nrd_template_node *nrd_template_parse_expr(nrd_template_parser *p)
{
    nrd_template_enter(p);
    nrd_template_node *n = parse_or(p);
    while (nrd_template_skip_word(p, "if")) {
        nrd_template_node *c = nrd_template_new_node(p, N_COND);
        c->b = n;
        c->a = parse_or(p);
        if (nrd_template_skip_word(p, "else")) {
            c->c = nrd_template_parse_expr(p);
        }
        n = c;
    }
    p->depth--;
    return n;
}

nrd_template_node *nrd_template_parse_target(nrd_template_parser *p, nrd_template_tuple_mode mode)
{
    nrd_template_enter(p);
    nrd_template_node *n;
    if (nrd_template_skip(p, T_LPAREN)) {
        n = nrd_template_parse_tuple(p, mode, NULL, true);
        nrd_template_expect(p, T_RPAREN, "')'");
    } else {
        n = nrd_template_new_node(p, N_NAME);
        n->name = nrd_template_expect(p, T_NAME, "a name to assign to")->s;
        static const char *const fixed[] = {"true", "false", "none", "True", "False", "None"};
        for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++) {
            if (!strcmp(n->name, fixed[i])) {
                nrd_template_fail_parse(p, NRD_ERR_INVALID_ARG, n->line, "can't assign to '%s'",
                                        n->name);
            }
        }
        if (mode == TUPLE_TARGET_NS && nrd_template_skip(p, T_DOT)) {
            nrd_template_node *obj = n;
            n = nrd_template_new_node(p, N_NSREF);
            n->a = obj;
            n->name = nrd_template_expect(p, T_NAME, "a name after '.'")->s;
        }
    }
    p->depth--;
    return n;
}
