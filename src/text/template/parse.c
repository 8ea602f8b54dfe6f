/* SPDX-License-Identifier: Apache-2.0
 * Tokens of a template as a syntax tree: statements with the blocks that belong to them, over expressions (parse_expr.c). Names
 * are kept once, so that the evaluator compares pointers. */
#include "text/template/parse_internal.h"

static nrd_template_node *parse_body(nrd_template_parser *p, const char *const *ends);

/* The body up to one of `ends` ("endif"), which is taken. *out_end: which one. */
static nrd_template_node *parse_block(nrd_template_parser *p, const char *const *ends,
                                      const char **out_end)
{
    nrd_template_skip(p, T_COLON);
    nrd_template_expect(p, T_BLOCK_END, "'%}'");
    nrd_template_node *body = parse_body(p, ends);
    if (nrd_template_cur(p)->kind == T_EOF) {
        size_t last = 0;
        while (ends[last + 1]) {
            last++;
        }
        nrd_template_fail_parse(p, NRD_ERR_INVALID_ARG, nrd_template_cur(p)->line,
                                "{%% %s %%} is missing", ends[last]);
    }
    const char *end = nrd_template_take(p)->s;
    if (out_end) {
        *out_end = end;
    }
    return body;
}

static nrd_template_node *parse_for(nrd_template_parser *p)
{
    static const char *const ends[] = {"else", "endfor", NULL}, *const end_else[] = {"endfor",
                                                                                     NULL};
    const char *end;
    nrd_template_node *n = nrd_template_new_node(p, N_FOR);

    n->a = nrd_template_parse_tuple(p, TUPLE_TARGET, "in", false);
    if (!nrd_template_skip_word(p, "in")) {
        nrd_template_unexpected(p, "'in'");
    }
    n->b = nrd_template_parse_tuple(p, TUPLE_NO_COND, "recursive", false);
    if (nrd_template_skip_word(p, "if")) {
        n->c = nrd_template_parse_expr(p);
    }
    if (nrd_template_is_word(nrd_template_cur(p), "recursive")) {
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
    static const char *const ends[] = {"elif", "else", "endif", NULL}, *const end_else[] = {"endif",
                                                                                            NULL};
    const char *end;
    nrd_template_node *n = nrd_template_new_node(p, N_IF), *last = n;

    while (true) {
        last->a = nrd_template_parse_tuple(p, TUPLE_NO_COND, NULL, false);
        last->list = parse_block(p, ends, &end);
        if (strcmp(end, "elif") != 0) {
            break;
        }
        last->b = nrd_template_new_node(p, N_IF); /* the next branch, walked without recursion */
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
    nrd_template_node *n = nrd_template_new_node(p, N_SET);
    n->a = nrd_template_parse_tuple(p, TUPLE_TARGET_NS, NULL, false);
    if (nrd_template_skip(p, T_ASSIGN)) {
        n->b = nrd_template_parse_tuple(p, TUPLE_FULL, NULL, false);
        return n;
    }
    n->kind = N_SET_BLOCK;
    n->b = nrd_template_parse_filter(p, NULL, false);
    n->list = parse_block(p, ends, NULL);
    return n;
}

static nrd_template_node *parse_with(nrd_template_parser *p)
{
    static const char *const ends[] = {"endwith", NULL};
    nrd_template_node *n = nrd_template_new_node(p, N_WITH), *tail = NULL;
    while (nrd_template_cur(p)->kind != T_BLOCK_END && nrd_template_cur(p)->kind != T_EOF) {
        nrd_template_node *pair = nrd_template_new_node(p, N_PAIR);
        pair->a = nrd_template_parse_target(p, TUPLE_TARGET);
        nrd_template_expect(p, T_ASSIGN, "'='");
        pair->b = nrd_template_parse_expr(p);
        nrd_template_append(&n->list2, &tail, pair);
        if (!nrd_template_skip(p, T_COMMA)) {
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
    nrd_template_expect(p, T_LPAREN, "'('");
    while (nrd_template_cur(p)->kind != T_RPAREN) {
        nrd_template_node *a = nrd_template_new_node(p, N_ARG);
        a->name = nrd_template_expect(p, T_NAME, "the name of a parameter")->s;
        if (nrd_template_skip(p, T_ASSIGN)) {
            a->a = nrd_template_parse_expr(p);
            defaults = true;
        } else if (defaults) {
            nrd_template_fail_parse(p, NRD_ERR_INVALID_ARG, a->line,
                                    "a parameter without a default follows one with a default");
        }
        nrd_template_append(&n->list2, &tail, a);
        if (!nrd_template_skip(p, T_COMMA)) {
            break;
        }
    }
    nrd_template_expect(p, T_RPAREN, "')'");
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
    static const char *const end_macro[] = {"endmacro", NULL},
                             *const end_call[] = {"endcall", NULL},
                             *const end_filter[] = {"endfilter", NULL},
                             *const end_generation[] = {"endgeneration", NULL};
    const nrd_template_token *t = nrd_template_expect(p, T_NAME, "the name of a tag");
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
        n = nrd_template_new_node(p, N_MACRO);
        n->name = nrd_template_expect(p, T_NAME, "the name of the macro")->s;
        parse_signature(p, n);
        parse_callable_body(p, n, end_macro);
        return n;
    }
    if (!strcmp(t->s, "call")) {
        n = nrd_template_new_node(p, N_CALL_BLOCK);
        if (nrd_template_cur(p)->kind == T_LPAREN) {
            parse_signature(p, n);
        }
        n->a = nrd_template_parse_expr(p);
        if (n->a->kind != N_CALL) {
            nrd_template_fail_parse(p, NRD_ERR_INVALID_ARG, n->line, "expected a call");
        }
        parse_callable_body(p, n, end_call);
        return n;
    }
    if (!strcmp(t->s, "filter")) {
        n = nrd_template_new_node(p, N_FILTER_BLOCK);
        n->b = nrd_template_parse_filter(p, NULL, true);
        n->list = parse_block(p, end_filter, NULL);
        return n;
    }
    if (!strcmp(t->s, "generation")) { /* marks what the model said; the text is that of the body */
        int loops = p->loop_depth;
        n = nrd_template_new_node(p, N_SCOPE);
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
        return nrd_template_new_node(p, t->s[0] == 'b' ? N_BREAK : N_CONTINUE);
    }
    if (!strcmp(t->s, "print")) {
        n = nrd_template_new_node(p, N_PRINT);
        n->a = nrd_template_parse_expr(p);
        return n;
    }
    static const char *const unsupported[] = {"block",  "extends", "include",
                                              "import", "from",    "autoescape"};
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

    nrd_template_enter(p);
    while (nrd_template_cur(p)->kind != T_EOF) {
        const nrd_template_token *t = nrd_template_take(p);
        if (t->kind == T_DATA) {
            n = nrd_template_new_node(p, N_DATA);
            n->value = nrd_template_val_str(t->s, t->n);
        } else if (t->kind == T_VAR_BEGIN) {
            n = nrd_template_new_node(p, N_PRINT);
            n->a = nrd_template_parse_tuple(p, TUPLE_FULL, NULL, false);
            nrd_template_expect(p, T_VAR_END, "'}}'");
        } else {
            bool is_end = false;
            for (size_t i = 0; ends && ends[i]; i++) {
                is_end = is_end || nrd_template_is_word(nrd_template_cur(p), ends[i]);
            }
            if (is_end) {
                break;
            }
            n = parse_statement(p);
            nrd_template_expect(p, T_BLOCK_END, "'%}'");
        }
        nrd_template_append(&head, &tail, n);
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
