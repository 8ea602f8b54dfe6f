/* SPDX-License-Identifier: Apache-2.0
 * Tokens of a template as a syntax tree: expressions by descent, one function for each strength of
 * operators; statements with the blocks that belong to them. Names are kept once, so that the evaluator
 * compares pointers. */
#include "text/template/internal.h"

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

/* ---- the stream of tokens ---- */

static const nrd_template_token *cur(const nrd_template_parser *p)
{
    return &p->tokens[p->pos];
}

static const nrd_template_token *look(const nrd_template_parser *p)
{
    return &p->tokens[p->pos + (p->pos + 1 < p->n_tokens)];
}

static const nrd_template_token *take(nrd_template_parser *p)
{
    const nrd_template_token *t = cur(p);
    p->pos += p->pos + 1 < p->n_tokens;
    return t;
}

static bool is_word(const nrd_template_token *t, const char *word)
{
    return t->kind == T_NAME && strcmp(t->s, word) == 0;
}

static bool skip(nrd_template_parser *p, nrd_template_token_kind kind)
{
    bool is = cur(p)->kind == kind;
    if (is) {
        take(p);
    }
    return is;
}

static bool skip_word(nrd_template_parser *p, const char *word)
{
    bool is = is_word(cur(p), word);
    if (is) {
        take(p);
    }
    return is;
}

static const char *token_text(const nrd_template_token *t, char out[64])
{
    static const char *const names[] = {
        "end of template", "text", "{{", "}}", "{%", "%}", "", "a string", "a number", "a number",
        "+", "-", "*", "/", "//", "%", "**", "~", "(", ")", "[", "]", "{", "}", "==", "!=", "<", "<=",
        ">", ">=", "=", ".", ":", "|", ",", ";",
    };
    snprintf(out, 64, "%s", t->kind == T_NAME ? t->s : names[t->kind]);
    return out;
}

static void __attribute__((noreturn)) unexpected(nrd_template_parser *p, const char *wanted)
{
    char text[64];
    nrd_template_fail_parse(p, NRD_ERR_INVALID_ARG, cur(p)->line, "expected %s, got '%s'", wanted,
                            token_text(cur(p), text));
}

static const nrd_template_token *expect(nrd_template_parser *p, nrd_template_token_kind kind,
                                        const char *wanted)
{
    if (cur(p)->kind != kind) {
        unexpected(p, wanted);
    }
    return take(p);
}

static void enter(nrd_template_parser *p)
{
    if (++p->depth > TPL_MAX_NESTING) {
        nrd_template_fail_parse(p, NRD_ERR_INVALID_ARG, cur(p)->line, "nested deeper than %d",
                                TPL_MAX_NESTING);
    }
}

static nrd_template_node *new_node(nrd_template_parser *p, nrd_template_node_kind kind)
{
    nrd_template_node *n = nrd_template_parse_alloc(p, sizeof *n);
    n->kind = (uint8_t)kind;
    n->line = cur(p)->line;
    return n;
}

static void append(nrd_template_node **head, nrd_template_node **tail, nrd_template_node *n)
{
    if (*tail) {
        (*tail)->next = n;
    } else {
        *head = n;
    }
    *tail = n;
}

/* ---- expressions, weakest first ---- */

static nrd_template_node *parse_expr(nrd_template_parser *p);
static nrd_template_node *parse_or(nrd_template_parser *p);
static nrd_template_node *parse_unary(nrd_template_parser *p, bool with_filter);

static nrd_template_node *const_node(nrd_template_parser *p, nrd_template_val v)
{
    nrd_template_node *n = new_node(p, N_CONST);
    n->value = v;
    return n;
}

static nrd_template_node *binary(nrd_template_parser *p, nrd_template_node_kind kind, int op,
                                 nrd_template_node *a, nrd_template_node *b)
{
    nrd_template_node *n = new_node(p, kind);
    n->op = (uint8_t)op;
    n->line = a->line;
    n->a = a;
    n->b = b;
    return n;
}

static bool ends_tuple(const nrd_template_parser *p, const char *end_word)
{
    nrd_template_token_kind k = cur(p)->kind;
    return k == T_VAR_END || k == T_BLOCK_END || k == T_RPAREN ||
           (end_word && is_word(cur(p), end_word));
}

typedef enum { TUPLE_FULL, TUPLE_NO_COND, TUPLE_TARGET, TUPLE_TARGET_NS } tuple_mode;

static nrd_template_node *parse_target_item(nrd_template_parser *p, tuple_mode mode);

static nrd_template_node *parse_tuple(nrd_template_parser *p, tuple_mode mode, const char *end_word,
                                      bool parens)
{
    nrd_template_node *head = NULL, *tail = NULL;
    bool is_tuple = false;
    nrd_template_node *t = new_node(p, N_TUPLE);

    while (!(ends_tuple(p, end_word) && (head || parens))) {
        append(&head, &tail,
               mode == TUPLE_FULL      ? parse_expr(p)
               : mode == TUPLE_NO_COND ? parse_or(p)
                                       : parse_target_item(p, mode));
        if (!skip(p, T_COMMA)) {
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

    expect(p, T_LPAREN, "'('");
    while (cur(p)->kind != T_RPAREN) {
        nrd_template_node *a = new_node(p, N_ARG);
        int now = 0;
        if (skip(p, T_MUL)) {
            a->op = '*';
            now = 2;
        } else if (skip(p, T_POW)) {
            a->op = 'p';
            now = 3;
        } else if (cur(p)->kind == T_NAME && look(p)->kind == T_ASSIGN) {
            a->name = take(p)->s;
            take(p);
            now = 1;
        }
        if ((now == 0 && stage > 0) || (now > 1 && stage >= now) || (now == 1 && stage == 3)) {
            nrd_template_fail_parse(p, NRD_ERR_INVALID_ARG, a->line, "wrong order of arguments");
        }
        stage = now > stage ? now : stage;
        a->a = parse_expr(p);
        append(&head, &tail, a);
        if (!skip(p, T_COMMA)) {
            break;
        }
    }
    expect(p, T_RPAREN, "')'");
    return head;
}

static nrd_template_node *parse_subscript(nrd_template_parser *p, nrd_template_node *obj)
{
    nrd_template_node *n = new_node(p, N_ITEM), *s;
    n->a = obj;
    if (skip(p, T_DOT)) {
        if (cur(p)->kind == T_INT) {
            n->b = const_node(p, nrd_template_val_int(take(p)->i));
            return n;
        }
        n->kind = N_ATTR;
        n->name = expect(p, T_NAME, "a name or a number after '.'")->s;
        return n;
    }
    take(p); /* [ */
    if (cur(p)->kind != T_COLON) {
        n->b = parse_expr(p);
    }
    if (cur(p)->kind == T_COLON) {
        s = new_node(p, N_SLICE);
        s->a = n->b;
        n->b = s;
        take(p);
        if (cur(p)->kind != T_COLON && cur(p)->kind != T_RBRACKET) {
            s->b = parse_expr(p);
        }
        if (skip(p, T_COLON) && cur(p)->kind != T_RBRACKET) {
            s->c = parse_expr(p);
        }
    }
    expect(p, T_RBRACKET, "']'");
    return n;
}

static nrd_template_node *parse_call(nrd_template_parser *p, nrd_template_node *f)
{
    nrd_template_node *n = new_node(p, N_CALL);
    n->a = f;
    n->list = parse_args(p);
    return n;
}

static nrd_template_node *parse_postfix(nrd_template_parser *p, nrd_template_node *n)
{
    while (true) {
        nrd_template_token_kind k = cur(p)->kind;
        if (k == T_DOT || k == T_LBRACKET) {
            n = parse_subscript(p, n);
        } else if (k == T_LPAREN) {
            n = parse_call(p, n);
        } else {
            return n;
        }
    }
}

/* `inner` NULL: the filter of a block. */
static nrd_template_node *parse_filter(nrd_template_parser *p, nrd_template_node *inner, bool begun)
{
    while (begun || skip(p, T_PIPE)) {
        nrd_template_node *f = new_node(p, N_FILTER);
        begun = false;
        f->name = expect(p, T_NAME, "the name of a filter")->s;
        f->ref = nrd_template_find_filter(f->name);
        f->a = inner;
        if (cur(p)->kind == T_LPAREN) {
            f->list = parse_args(p);
        }
        inner = f;
    }
    return inner;
}

static nrd_template_node *parse_primary(nrd_template_parser *p);

static nrd_template_node *parse_test(nrd_template_parser *p, nrd_template_node *value)
{
    nrd_template_node *n = new_node(p, N_TEST);
    take(p); /* is */
    bool negated = skip_word(p, "not");
    n->a = value;
    n->name = expect(p, T_NAME, "the name of a test")->s;
    n->ref = nrd_template_find_test(n->name);
    const nrd_template_token *t = cur(p);
    if (t->kind == T_LPAREN) {
        n->list = parse_args(p);
    } else if ((t->kind == T_NAME && !is_word(t, "else") && !is_word(t, "or") &&
                !is_word(t, "and")) ||
               t->kind == T_STR || t->kind == T_INT || t->kind == T_FLOAT || t->kind == T_LBRACKET ||
               t->kind == T_LBRACE) {
        if (is_word(t, "is")) {
            nrd_template_fail_parse(p, NRD_ERR_INVALID_ARG, t->line,
                                    "tests cannot be chained with 'is'");
        }
        nrd_template_node *a = new_node(p, N_ARG);
        a->a = parse_postfix(p, parse_primary(p));
        n->list = a;
    }
    if (negated) {
        nrd_template_node *not = new_node(p, N_NOT);
        not->a = n;
        return not;
    }
    return n;
}

static nrd_template_node *parse_list(nrd_template_parser *p)
{
    nrd_template_node *n = new_node(p, N_LIST), *tail = NULL;
    take(p);
    while (cur(p)->kind != T_RBRACKET) {
        append(&n->list, &tail, parse_expr(p));
        if (!skip(p, T_COMMA)) {
            break;
        }
    }
    expect(p, T_RBRACKET, "']'");
    return n;
}

static nrd_template_node *parse_dict(nrd_template_parser *p)
{
    nrd_template_node *n = new_node(p, N_DICT), *tail = NULL;
    take(p);
    while (cur(p)->kind != T_RBRACE) {
        nrd_template_node *pair = new_node(p, N_PAIR);
        pair->a = parse_expr(p);
        expect(p, T_COLON, "':'");
        pair->b = parse_expr(p);
        append(&n->list, &tail, pair);
        if (!skip(p, T_COMMA)) {
            break;
        }
    }
    expect(p, T_RBRACE, "'}'");
    return n;
}

static nrd_template_node *parse_name(nrd_template_parser *p)
{
    const nrd_template_token *t = take(p);
    if (!strcmp(t->s, "true") || !strcmp(t->s, "True")) {
        return const_node(p, nrd_template_val_bool(true));
    }
    if (!strcmp(t->s, "false") || !strcmp(t->s, "False")) {
        return const_node(p, nrd_template_val_bool(false));
    }
    if (!strcmp(t->s, "none") || !strcmp(t->s, "None")) {
        return const_node(p, nrd_template_val_none());
    }
    nrd_template_node *n = new_node(p, N_NAME);
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
    const nrd_template_token *first = take(p);
    size_t n = first->n;
    if (cur(p)->kind != T_STR) {
        return const_node(p, nrd_template_val_str(first->s, n));
    }
    size_t from = p->pos;
    while (cur(p)->kind == T_STR) { /* neighbours are one string */
        n += take(p)->n;
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
    switch (cur(p)->kind) {
    case T_NAME:
        return parse_name(p);
    case T_STR:
        return parse_string(p);
    case T_INT:
        return const_node(p, nrd_template_val_int(take(p)->i));
    case T_FLOAT:
        return const_node(p, nrd_template_val_float(take(p)->f));
    case T_LPAREN:
        take(p);
        n = parse_tuple(p, TUPLE_FULL, NULL, true);
        expect(p, T_RPAREN, "')'");
        return n;
    case T_LBRACKET:
        return parse_list(p);
    case T_LBRACE:
        return parse_dict(p);
    default:
        unexpected(p, "an expression");
    }
}

static nrd_template_node *parse_unary(nrd_template_parser *p, bool with_filter)
{
    nrd_template_node *n;
    enter(p);
    if (cur(p)->kind == T_SUB || cur(p)->kind == T_ADD) {
        n = new_node(p, cur(p)->kind == T_SUB ? N_NEG : N_POS);
        take(p);
        n->a = parse_unary(p, false);
    } else {
        n = parse_primary(p);
    }
    n = parse_postfix(p, n);
    while (with_filter) {
        if (cur(p)->kind == T_PIPE) {
            n = parse_filter(p, n, false);
        } else if (is_word(cur(p), "is")) {
            n = parse_test(p, n);
        } else if (cur(p)->kind == T_LPAREN) {
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
    while (skip(p, T_POW)) {
        left = binary(p, N_BINARY, T_POW, left, parse_unary(p, true));
    }
    return left;
}

static nrd_template_node *parse_product(nrd_template_parser *p)
{
    nrd_template_node *left = parse_pow(p);
    nrd_template_token_kind k;
    while ((k = cur(p)->kind) == T_MUL || k == T_DIV || k == T_FLOORDIV || k == T_MOD) {
        take(p);
        left = binary(p, N_BINARY, (int)k, left, parse_pow(p));
    }
    return left;
}

static nrd_template_node *parse_concat(nrd_template_parser *p)
{
    nrd_template_node *first = parse_product(p);
    if (cur(p)->kind != T_TILDE) {
        return first;
    }
    nrd_template_node *n = new_node(p, N_CONCAT), *tail = NULL;
    append(&n->list, &tail, first);
    while (skip(p, T_TILDE)) {
        append(&n->list, &tail, parse_product(p));
    }
    return n;
}

static nrd_template_node *parse_sum(nrd_template_parser *p)
{
    nrd_template_node *left = parse_concat(p);
    nrd_template_token_kind k;
    while ((k = cur(p)->kind) == T_ADD || k == T_SUB) {
        take(p);
        left = binary(p, N_BINARY, (int)k, left, parse_concat(p));
    }
    return left;
}

static nrd_template_node *parse_compare(nrd_template_parser *p)
{
    nrd_template_node *first = parse_sum(p), *n = NULL, *tail = NULL;
    while (true) {
        const nrd_template_token *t = cur(p);
        int op = 0;
        if (t->kind >= T_EQ && t->kind <= T_GE) {
            op = (int)t->kind;
            take(p);
        } else if (skip_word(p, "in")) {
            op = 'i';
        } else if (is_word(t, "not") && is_word(look(p), "in")) {
            op = 'n';
            take(p);
            take(p);
        } else {
            return n ? n : first;
        }
        if (!n) {
            n = new_node(p, N_COMPARE);
            n->a = first;
        }
        nrd_template_node *operand = new_node(p, N_OPERAND);
        operand->op = (uint8_t)op;
        operand->a = parse_sum(p);
        append(&n->list, &tail, operand);
    }
}

static nrd_template_node *parse_not(nrd_template_parser *p)
{
    if (!is_word(cur(p), "not")) {
        return parse_compare(p);
    }
    nrd_template_node *n = new_node(p, N_NOT);
    enter(p);
    take(p);
    n->a = parse_not(p);
    p->depth--;
    return n;
}

static nrd_template_node *parse_and(nrd_template_parser *p)
{
    nrd_template_node *left = parse_not(p);
    while (skip_word(p, "and")) {
        left = binary(p, N_AND, 0, left, parse_not(p));
    }
    return left;
}

static nrd_template_node *parse_or(nrd_template_parser *p)
{
    nrd_template_node *left = parse_and(p);
    while (skip_word(p, "or")) {
        left = binary(p, N_OR, 0, left, parse_and(p));
    }
    return left;
}

static nrd_template_node *parse_expr(nrd_template_parser *p)
{
    enter(p);
    nrd_template_node *n = parse_or(p);
    while (skip_word(p, "if")) {
        nrd_template_node *c = new_node(p, N_COND);
        c->b = n;
        c->a = parse_or(p);
        if (skip_word(p, "else")) {
            c->c = parse_expr(p);
        }
        n = c;
    }
    p->depth--;
    return n;
}

/* ---- statements ---- */

static nrd_template_node *parse_body(nrd_template_parser *p, const char *const *ends);

static nrd_template_node *parse_target_item(nrd_template_parser *p, tuple_mode mode)
{
    enter(p);
    nrd_template_node *n;
    if (skip(p, T_LPAREN)) {
        n = parse_tuple(p, mode, NULL, true);
        expect(p, T_RPAREN, "')'");
    } else {
        n = new_node(p, N_NAME);
        n->name = expect(p, T_NAME, "a name to assign to")->s;
        static const char *const fixed[] = {"true", "false", "none", "True", "False", "None"};
        for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++) {
            if (!strcmp(n->name, fixed[i])) {
                nrd_template_fail_parse(p, NRD_ERR_INVALID_ARG, n->line, "can't assign to '%s'",
                                        n->name);
            }
        }
        if (mode == TUPLE_TARGET_NS && skip(p, T_DOT)) {
            nrd_template_node *obj = n;
            n = new_node(p, N_NSREF);
            n->a = obj;
            n->name = expect(p, T_NAME, "a name after '.'")->s;
        }
    }
    p->depth--;
    return n;
}

/* The body up to one of `ends` ("endif"), which is taken. *out_end: which one. */
static nrd_template_node *parse_block(nrd_template_parser *p, const char *const *ends,
                                      const char **out_end)
{
    skip(p, T_COLON);
    expect(p, T_BLOCK_END, "'%}'");
    nrd_template_node *body = parse_body(p, ends);
    if (cur(p)->kind == T_EOF) {
        size_t last = 0;
        while (ends[last + 1]) {
            last++;
        }
        nrd_template_fail_parse(p, NRD_ERR_INVALID_ARG, cur(p)->line, "{%% %s %%} is missing",
                                ends[last]);
    }
    const char *end = take(p)->s;
    if (out_end) {
        *out_end = end;
    }
    return body;
}

static nrd_template_node *parse_for(nrd_template_parser *p)
{
    static const char *const ends[] = {"else", "endfor", NULL}, *const end_else[] = {"endfor", NULL};
    const char *end;
    nrd_template_node *n = new_node(p, N_FOR);

    n->a = parse_tuple(p, TUPLE_TARGET, "in", false);
    if (!skip_word(p, "in")) {
        unexpected(p, "'in'");
    }
    n->b = parse_tuple(p, TUPLE_NO_COND, "recursive", false);
    if (skip_word(p, "if")) {
        n->c = parse_expr(p);
    }
    if (is_word(cur(p), "recursive")) {
        nrd_template_fail_parse(p, NRD_ERR_UNSUPPORTED, n->line,
                                "recursive loops are not supported");
    }
    p->loop_depth++;
    n->list = parse_block(p, ends, &end);
    p->loop_depth--;
    if (!strcmp(end, "else")) {
        n->list2 = parse_block(p, end_else, NULL);
    }
    return n;
}

static nrd_template_node *parse_if(nrd_template_parser *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL},
                             *const end_else[] = {"endif", NULL};
    const char *end;
    nrd_template_node *n = new_node(p, N_IF), *last = n;

    while (true) {
        last->a = parse_tuple(p, TUPLE_NO_COND, NULL, false);
        last->list = parse_block(p, ends, &end);
        if (strcmp(end, "elif") != 0) {
            break;
        }
        last->b = new_node(p, N_IF); /* the next branch, walked without recursion */
        last = last->b;
    }
    if (!strcmp(end, "else")) {
        last->list2 = parse_block(p, end_else, NULL);
    }
    return n;
}

static nrd_template_node *parse_set(nrd_template_parser *p)
{
    static const char *const ends[] = {"endset", NULL};
    nrd_template_node *n = new_node(p, N_SET);
    n->a = parse_tuple(p, TUPLE_TARGET_NS, NULL, false);
    if (skip(p, T_ASSIGN)) {
        n->b = parse_tuple(p, TUPLE_FULL, NULL, false);
        return n;
    }
    n->kind = N_SET_BLOCK;
    n->b = parse_filter(p, NULL, false);
    n->list = parse_block(p, ends, NULL);
    return n;
}

static nrd_template_node *parse_with(nrd_template_parser *p)
{
    static const char *const ends[] = {"endwith", NULL};
    nrd_template_node *n = new_node(p, N_WITH), *tail = NULL;
    while (cur(p)->kind != T_BLOCK_END && cur(p)->kind != T_EOF) {
        nrd_template_node *pair = new_node(p, N_PAIR);
        pair->a = parse_target_item(p, TUPLE_TARGET);
        expect(p, T_ASSIGN, "'='");
        pair->b = parse_expr(p);
        append(&n->list2, &tail, pair);
        if (!skip(p, T_COMMA)) {
            break;
        }
    }
    n->list = parse_block(p, ends, NULL);
    return n;
}

/* Parameters into list2: N_ARG with name and default. */
static void parse_signature(nrd_template_parser *p, nrd_template_node *n)
{
    nrd_template_node *tail = NULL;
    bool defaults = false;
    expect(p, T_LPAREN, "'('");
    while (cur(p)->kind != T_RPAREN) {
        nrd_template_node *a = new_node(p, N_ARG);
        a->name = expect(p, T_NAME, "the name of a parameter")->s;
        if (skip(p, T_ASSIGN)) {
            a->a = parse_expr(p);
            defaults = true;
        } else if (defaults) {
            nrd_template_fail_parse(p, NRD_ERR_INVALID_ARG, a->line,
                                    "a parameter without a default follows one with a default");
        }
        append(&n->list2, &tail, a);
        if (!skip(p, T_COMMA)) {
            break;
        }
    }
    expect(p, T_RPAREN, "')'");
}

/* The body of something that is called later: no loop around it, names of its own. */
static void parse_callable_body(nrd_template_parser *p, nrd_template_node *n,
                                const char *const *ends)
{
    nrd_template_node *outer = p->macro;
    int loops = p->loop_depth;
    p->macro = n;
    p->loop_depth = 0;
    n->list = parse_block(p, ends, NULL);
    p->macro = outer;
    p->loop_depth = loops;
    if (outer && n->kind == N_CALL_BLOCK) {
        outer->flags |= n->flags; /* its names are looked up in the macro around it */
    }
}

static nrd_template_node *parse_statement(nrd_template_parser *p)
{
    static const char *const end_macro[] = {"endmacro", NULL}, *const end_call[] = {"endcall", NULL},
                             *const end_filter[] = {"endfilter", NULL},
                             *const end_generation[] = {"endgeneration", NULL};
    const nrd_template_token *t = expect(p, T_NAME, "the name of a tag");
    nrd_template_node *n;

    if (!strcmp(t->s, "for")) {
        return parse_for(p);
    }
    if (!strcmp(t->s, "if")) {
        return parse_if(p);
    }
    if (!strcmp(t->s, "set")) {
        return parse_set(p);
    }
    if (!strcmp(t->s, "with")) {
        return parse_with(p);
    }
    if (!strcmp(t->s, "macro")) {
        n = new_node(p, N_MACRO);
        n->name = expect(p, T_NAME, "the name of the macro")->s;
        parse_signature(p, n);
        parse_callable_body(p, n, end_macro);
        return n;
    }
    if (!strcmp(t->s, "call")) {
        n = new_node(p, N_CALL_BLOCK);
        if (cur(p)->kind == T_LPAREN) {
            parse_signature(p, n);
        }
        n->a = parse_expr(p);
        if (n->a->kind != N_CALL) {
            nrd_template_fail_parse(p, NRD_ERR_INVALID_ARG, n->line, "expected a call");
        }
        parse_callable_body(p, n, end_call);
        return n;
    }
    if (!strcmp(t->s, "filter")) {
        n = new_node(p, N_FILTER_BLOCK);
        n->b = parse_filter(p, NULL, true);
        n->list = parse_block(p, end_filter, NULL);
        return n;
    }
    if (!strcmp(t->s, "generation")) { /* marks what the model said; the text is that of the body */
        int loops = p->loop_depth;
        n = new_node(p, N_SCOPE);
        p->loop_depth = 0;
        n->list = parse_block(p, end_generation, NULL);
        p->loop_depth = loops;
        return n;
    }
    if (!strcmp(t->s, "break") || !strcmp(t->s, "continue")) {
        if (p->loop_depth == 0) {
            nrd_template_fail_parse(p, NRD_ERR_INVALID_ARG, t->line, "'%s' outside of a loop",
                                    t->s);
        }
        return new_node(p, t->s[0] == 'b' ? N_BREAK : N_CONTINUE);
    }
    if (!strcmp(t->s, "print")) {
        n = new_node(p, N_PRINT);
        n->a = parse_expr(p);
        return n;
    }
    static const char *const unsupported[] = {"block", "extends", "include", "import", "from",
                                              "autoescape"};
    for (size_t i = 0; i < sizeof unsupported / sizeof unsupported[0]; i++) {
        if (!strcmp(t->s, unsupported[i])) {
            nrd_template_fail_parse(p, NRD_ERR_UNSUPPORTED, t->line,
                                    "the tag '%s' is not supported", t->s);
        }
    }
    nrd_template_fail_parse(p, NRD_ERR_INVALID_ARG, t->line, "unknown tag '%s'", t->s);
}

static nrd_template_node *parse_body(nrd_template_parser *p, const char *const *ends)
{
    nrd_template_node *head = NULL, *tail = NULL, *n;

    enter(p);
    while (cur(p)->kind != T_EOF) {
        const nrd_template_token *t = take(p);
        if (t->kind == T_DATA) {
            n = new_node(p, N_DATA);
            n->value = nrd_template_val_str(t->s, t->n);
        } else if (t->kind == T_VAR_BEGIN) {
            n = new_node(p, N_PRINT);
            n->a = parse_tuple(p, TUPLE_FULL, NULL, false);
            expect(p, T_VAR_END, "'}}'");
        } else {
            bool is_end = false;
            for (size_t i = 0; ends && ends[i]; i++) {
                is_end = is_end || is_word(cur(p), ends[i]);
            }
            if (is_end) {
                break;
            }
            n = parse_statement(p);
            expect(p, T_BLOCK_END, "'%}'");
        }
        append(&head, &tail, n);
    }
    p->depth--;
    return head;
}

void nrd_template_parse(nrd_template_parser *p)
{
    p->t->n_loop = nrd_template_intern(p, "loop", 4);
    p->t->n_varargs = nrd_template_intern(p, "varargs", 7);
    p->t->n_kwargs = nrd_template_intern(p, "kwargs", 6);
    p->t->n_caller = nrd_template_intern(p, "caller", 6);
    p->t->body = parse_body(p, NULL);
}
