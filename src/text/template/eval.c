/* SPDX-License-Identifier: Apache-2.0
 * Walks the syntax tree of a template with the variables of one rendering, and writes the text. Each node costs a step
 * (budget.c). */
#include "text/template/internal.h"
#include "base/limits.h"

typedef enum { GO_ON, GO_BREAK, GO_CONTINUE } flow;

static void enter(nrd_template_run *r)
{
    nrd_template_step(r, 1);
    if (++r->depth > TPL_MAX_DEPTH) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "calls and expressions nest deeper than %d",
                          TPL_MAX_DEPTH);
    }
}

/* ---- variables ---- */

static nrd_template_scope *push_scope(nrd_template_run *r, nrd_template_scope *parent)
{
    nrd_template_scope *s = nrd_template_alloc(r, sizeof *s);
    *s = (nrd_template_scope){.parent = parent};
    return s;
}

static void set_var(nrd_template_run *r, nrd_template_scope *s, const char *name,
                    nrd_template_val v)
{
    for (size_t i = 0; i < s->n; i++) {
        if (s->vars[i].name == name) {
            s->vars[i].v = v;
            return;
        }
    }
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 4;
        nrd_template_var *grown = nrd_template_alloc(r, cap * sizeof *grown);
        if (s->n > 0) {
            memcpy(grown, s->vars, s->n * sizeof *grown);
        }
        s->vars = grown;
        s->cap = cap;
    }
    s->vars[s->n++] = (nrd_template_var){name, v};
}

static nrd_template_val get_var(nrd_template_run *r, const char *name)
{
    static const char *const functions[] = {"range", "dict", "namespace", "raise_exception",
                                            "strftime_now"};
    for (const nrd_template_scope *s = r->scope; s; s = s->parent) {
        for (size_t i = 0; i < s->n; i++) {
            if (s->vars[i].name == name) {
                return s->vars[i].v;
            }
        }
    }
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        if (!strcmp(name, functions[i])) {
            return (nrd_template_val){.type = V_FUNC, .flag = (uint8_t)i};
        }
    }
    if (!strcmp(name, "lipsum") || !strcmp(name, "cycler") || !strcmp(name, "joiner")) {
        nrd_template_fail(r, NRD_ERR_UNSUPPORTED, "the function '%s' is not supported", name);
    }
    return nrd_template_val_undef(UNDEF_NAME, name);
}

static nrd_template_val eval(nrd_template_run *r, const nrd_template_node *n);
static flow exec(nrd_template_run *r, const nrd_template_node *n);
static nrd_template_val attr(nrd_template_run *r, nrd_template_val obj, const char *name);

static void assign(nrd_template_run *r, const nrd_template_node *target, nrd_template_val v)
{
    if (target->kind == N_NAME) {
        set_var(r, r->scope, target->name, v);
        return;
    }
    if (target->kind == N_NSREF) {
        nrd_template_val ns = get_var(r, target->a->name);
        if (ns.type != V_NS) {
            nrd_template_fail(r, NRD_ERR_INVALID_ARG,
                              "cannot assign attribute on non-namespace object");
        }
        if (target->name[0] == '_') {
            nrd_template_fail(r, NRD_ERR_INVALID_ARG, "'%s': a namespace takes no such name",
                              target->name);
        }
        nrd_template_dict_put(r, ns.dict, nrd_template_val_text(target->name), v);
        return;
    }
    size_t n, i = 0;
    nrd_template_val *items = nrd_template_iterate(r, v, &n);
    for (const nrd_template_node *t = target->list; t; t = t->next, i++) {
        if (i >= n) {
            nrd_template_fail(r, NRD_ERR_INVALID_ARG, "not enough values to unpack: there are %zu",
                              n);
        }
        assign(r, t, items[i]);
    }
    if (i != n) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "too many values to unpack: there are %zu", n);
    }
}

/* ---- output ---- */

/* Runs a body in its own scope and gives its text. */
static nrd_template_val capture(nrd_template_run *r, const nrd_template_node *body,
                                nrd_template_scope *s)
{
    nrd_template_text text = {0}, *out = r->out;
    nrd_template_scope *outer = r->scope;
    r->out = &text;
    r->scope = s;
    exec(r, body);
    r->out = out;
    r->scope = outer;
    return nrd_template_text_val(&text);
}

/* ---- calls ---- */

static void eval_args(nrd_template_run *r, const nrd_template_node *given, nrd_template_args *a)
{
    size_t n = 0, n_kw = 0, n_items;

    for (const nrd_template_node *i = given; i; i = i->next) {
        n += !i->name;
        n_kw += i->name != NULL;
    }
    a->v = nrd_template_alloc(r, (n + 1) * sizeof *a->v);
    a->kw = nrd_template_alloc(r, (n_kw + 1) * sizeof *a->kw);
    for (const nrd_template_node *i = given; i; i = i->next) {
        nrd_template_val v = eval(r, i->a);
        if (i->op == '*') {
            nrd_template_val *items = nrd_template_iterate(r, v, &n_items);
            nrd_template_val *grown = nrd_template_alloc(r, (a->n + n_items + 1) * sizeof *grown);
            memcpy(grown, a->v, a->n * sizeof *grown);
            if (n_items > 0) {
                memcpy(grown + a->n, items, n_items * sizeof *grown);
            }
            a->v = grown;
            a->n += n_items;
        } else if (i->op == 'p') {
            if (v.type != V_DICT) {
                nrd_template_fail(r, NRD_ERR_INVALID_ARG, "** needs a mapping, not %s",
                                  nrd_template_type_name(v));
            }
            nrd_template_kwarg *grown =
                nrd_template_alloc(r, (a->n_kw + v.dict->n + 1) * sizeof *grown);
            memcpy(grown, a->kw, a->n_kw * sizeof *grown);
            a->kw = grown;
            for (size_t k = 0; k < v.dict->n; k++) {
                nrd_template_val key = v.dict->e[k].key;
                if (key.type != V_STR) {
                    nrd_template_fail(r, NRD_ERR_INVALID_ARG, "keywords must be strings");
                }
                char *name = nrd_template_alloc(r, (size_t)key.n + 1);
                memcpy(name, key.s, key.n);
                name[key.n] = '\0';
                a->kw[a->n_kw++] = (nrd_template_kwarg){name, v.dict->e[k].value};
            }
        } else if (i->name) {
            a->kw[a->n_kw++] = (nrd_template_kwarg){i->name, v};
        } else {
            a->v[a->n++] = v;
        }
    }
}

static nrd_template_val call_macro(nrd_template_run *r, const nrd_template_macro *m,
                                   const nrd_template_args *a)
{
    const nrd_template_node *def = m->def;
    const char *name = def->name ? def->name : "caller";
    nrd_template_scope *s = push_scope(r, m->closure), *outer = r->scope;
    size_t i = 0, n_params = 0, used = 0;

    enter(r);
    for (const nrd_template_node *p = def->list2; p; p = p->next, i++) {
        nrd_template_val v = nrd_template_val_undef(UNDEF_OTHER, "a parameter was not provided");
        bool given = i < a->n;
        n_params++;
        if (given) {
            v = a->v[i];
        }
        for (size_t k = 0; k < a->n_kw; k++) {
            if (!strcmp(a->kw[k].name, p->name)) {
                if (given) {
                    nrd_template_fail(r, NRD_ERR_INVALID_ARG, "macro '%s' got '%s' twice", name,
                                      p->name);
                }
                v = a->kw[k].v;
                given = true;
                used++;
            }
        }
        if (!given && p->a) {
            r->scope = s; /* a default may use the parameters before it */
            v = eval(r, p->a);
            r->scope = outer;
        }
        set_var(r, s, p->name, v);
    }
    if (a->n > n_params && !(def->flags & F_VARARGS)) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "macro '%s' takes not more than %zu argument(s)",
                          name, n_params);
    }
    nrd_template_list *rest = nrd_template_list_new(r, L_TUPLE, 0);
    for (i = n_params; i < a->n; i++) {
        nrd_template_push(r, rest, a->v[i]);
    }
    nrd_template_dict *more = nrd_template_dict_new(r, 0);
    bool has_caller = false;
    for (size_t k = 0; k < a->n_kw && used < a->n_kw; k++) {
        bool is_param = false;
        for (const nrd_template_node *p = def->list2; p && !is_param; p = p->next) {
            is_param = !strcmp(p->name, a->kw[k].name);
        }
        if (is_param) {
            continue;
        }
        if (!strcmp(a->kw[k].name, "caller") && def->flags & F_CALLER && def->kind == N_MACRO) {
            set_var(r, s, r->t->n_caller, a->kw[k].v);
            has_caller = true;
        } else if (def->flags & F_KWARGS) {
            nrd_template_dict_put(r, more, nrd_template_val_text(a->kw[k].name), a->kw[k].v);
        } else {
            nrd_template_fail(r, NRD_ERR_INVALID_ARG, "macro '%s' takes no keyword argument '%s'",
                              name, a->kw[k].name);
        }
    }
    if (def->kind == N_MACRO) {
        if (def->flags & F_CALLER && !has_caller) {
            set_var(r, s, r->t->n_caller, nrd_template_val_undef(UNDEF_OTHER, "No caller defined"));
        }
        if (def->flags & F_VARARGS) {
            set_var(r, s, r->t->n_varargs, nrd_template_val_list(rest));
        }
        if (def->flags & F_KWARGS) {
            set_var(r, s, r->t->n_kwargs, (nrd_template_val){.type = V_DICT, .dict = more});
        }
    }
    nrd_template_val text = capture(r, def->list, s);
    r->depth--;
    return text;
}

static nrd_template_val call(nrd_template_run *r, nrd_template_val f,
                                   const nrd_template_args *a)
{
    switch ((nrd_template_val_type)f.type) {
    case V_MACRO:
        return call_macro(r, f.macro, a);
    case V_METHOD:
        return nrd_template_call_row(r, f.method->row, f.method->self, a, "method");
    case V_FUNC:
        return nrd_template_call_builtin(r, f, a);
    case V_UNDEF:
        nrd_template_fail_undef(r, f);
    default:
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "a value of type %s cannot be called",
                          nrd_template_type_name(f));
    }
}

/* ---- expressions ---- */

static nrd_template_val call_filter(nrd_template_run *r, const nrd_template_node *n,
                                    nrd_template_val input)
{
    nrd_template_args a = {0};
    eval_args(r, n->list, &a);
    r->line = n->line;
    if (!n->ref) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "no filter named '%s'", n->name);
    }
    return nrd_template_call_row(r, n->ref, input, &a, "filter");
}

/* A chain of filters around the text of a block; the innermost has no input of its own. */
static nrd_template_val filter_block(nrd_template_run *r, const nrd_template_node *n,
                                     nrd_template_val text)
{
    if (!n) {
        return text;
    }
    return call_filter(r, n, filter_block(r, n->a, text));
}

static bool compare_op(nrd_template_run *r, int op, nrd_template_val a, nrd_template_val b)
{
    switch (op) {
    case T_EQ:
        return nrd_template_equal(r, a, b);
    case T_NE:
        return !nrd_template_equal(r, a, b);
    case T_LT:
        return nrd_template_compare(r, a, b, "<") == -1;
    case T_LE: {
        int c = nrd_template_compare(r, a, b, "<=");
        return c == -1 || c == 0;
    }
    case T_GT:
        return nrd_template_compare(r, a, b, ">") == 1;
    case T_GE: {
        int c = nrd_template_compare(r, a, b, ">=");
        return c == 1 || c == 0;
    }
    case 'i':
        return nrd_template_contains(r, b, a);
    default:
        return !nrd_template_contains(r, b, a);
    }
}

static nrd_template_val eval_compare(nrd_template_run *r, const nrd_template_node *n)
{
    nrd_template_val a = eval(r, n->a);
    for (const nrd_template_node *o = n->list; o; o = o->next) {
        nrd_template_val b = eval(r, o->a);
        r->line = n->line;
        if (!compare_op(r, o->op, a, b)) {
            return nrd_template_val_bool(false);
        }
        a = b;
    }
    return nrd_template_val_bool(true);
}

static nrd_template_val eval_container(nrd_template_run *r, const nrd_template_node *n)
{
    if (n->kind == N_DICT) {
        nrd_template_dict *d = nrd_template_dict_new(r, 0);
        for (const nrd_template_node *i = n->list; i; i = i->next) {
            nrd_template_val key = eval(r, i->a);
            nrd_template_dict_put(r, d, key, eval(r, i->b));
        }
        return (nrd_template_val){.type = V_DICT, .dict = d};
    }
    nrd_template_list *l = nrd_template_list_new(r, n->kind == N_LIST ? L_LIST : L_TUPLE, 0);
    for (const nrd_template_node *i = n->list; i; i = i->next) {
        nrd_template_push(r, l, eval(r, i));
    }
    return nrd_template_val_list(l);
}

static nrd_template_val eval_sign(nrd_template_run *r, const nrd_template_node *n)
{
    nrd_template_val v = eval(r, n->a);
    r->line = n->line;
    if (v.type == V_UNDEF) {
        nrd_template_fail_undef(r, v);
    }
    if (!nrd_template_is_number(v)) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "bad operand type for unary %c: %s",
                          n->kind == N_NEG ? '-' : '+', nrd_template_type_name(v));
    }
    if (v.type == V_FLOAT) {
        return nrd_template_val_float(n->kind == N_NEG ? -v.f : v.f);
    }
    return nrd_template_binary(r, n->kind == N_NEG ? T_SUB : T_ADD, nrd_template_val_int(0), v);
}

static nrd_template_val eval_item(nrd_template_run *r, const nrd_template_node *n)
{
    nrd_template_val obj = eval(r, n->a), none = nrd_template_val_none();
    if (n->b->kind != N_SLICE) {
        nrd_template_val key = eval(r, n->b);
        r->line = n->line;
        return nrd_template_item(r, obj, key);
    }
    nrd_template_val from = n->b->a ? eval(r, n->b->a) : none,
                     to = n->b->b ? eval(r, n->b->b) : none,
                     step = n->b->c ? eval(r, n->b->c) : none;
    r->line = n->line;
    return nrd_template_slice(r, obj, from, to, step);
}

static nrd_template_val eval_call(nrd_template_run *r, const nrd_template_node *n)
{
    nrd_template_val f = eval(r, n->a);
    nrd_template_args a = {0};
    eval_args(r, n->list, &a);
    r->line = n->line;
    return call(r, f, &a);
}

static nrd_template_val eval_concat(nrd_template_run *r, const nrd_template_node *n)
{
    nrd_template_text text = {0};
    for (const nrd_template_node *i = n->list; i; i = i->next) {
        nrd_template_val v = eval(r, i);
        nrd_template_put(r, &text, v);
    }
    return nrd_template_text_val(&text);
}

static nrd_template_val eval_kind(nrd_template_run *r, const nrd_template_node *n)
{
    nrd_template_val v;
    nrd_template_args a = {0};
    switch ((nrd_template_node_kind)n->kind) {
    case N_CONST:
        return n->value;
    case N_NAME:
        r->line = n->line;
        return get_var(r, n->name);
    case N_LIST:
    case N_TUPLE:
    case N_DICT:
        return eval_container(r, n);
    case N_ATTR:
        v = eval(r, n->a);
        r->line = n->line;
        return attr(r, v, n->name);
    case N_ITEM:
        return eval_item(r, n);
    case N_CALL:
        return eval_call(r, n);
    case N_FILTER:
        return call_filter(r, n, eval(r, n->a));
    case N_TEST:
        v = eval(r, n->a);
        eval_args(r, n->list, &a);
        r->line = n->line;
        if (!n->ref) {
            nrd_template_fail(r, NRD_ERR_INVALID_ARG, "no test named '%s'", n->name);
        }
        return nrd_template_call_row(r, n->ref, v, &a, "test");
    case N_COND:
        if (nrd_template_truthy(eval(r, n->a))) {
            return eval(r, n->b);
        }
        return n->c ? eval(r, n->c)
                    : nrd_template_val_undef(UNDEF_OTHER, "an inline if was false and has no else");
    case N_AND:
        v = eval(r, n->a);
        return nrd_template_truthy(v) ? eval(r, n->b) : v;
    case N_OR:
        v = eval(r, n->a);
        return nrd_template_truthy(v) ? v : eval(r, n->b);
    case N_NOT:
        return nrd_template_val_bool(!nrd_template_truthy(eval(r, n->a)));
    case N_NEG:
    case N_POS:
        return eval_sign(r, n);
    case N_BINARY:
        v = eval(r, n->a);
        {
            nrd_template_val b = eval(r, n->b);
            r->line = n->line;
            return nrd_template_binary(r, n->op, v, b);
        }
    case N_CONCAT:
        return eval_concat(r, n);
    case N_COMPARE:
        return eval_compare(r, n);
    default:
        NRD_ASSERT(false, "the parser puts only expressions here");
    }
}

static nrd_template_val eval(nrd_template_run *r, const nrd_template_node *n)
{
    enter(r);
    nrd_template_val v = eval_kind(r, n);
    r->depth--;
    return v;
}

/* ---- loops ---- */

/* Evaluates the filter of a loop up to the next element that passes. */
static bool loop_advance(nrd_template_run *r, nrd_template_loop *l, nrd_template_val *out)
{
    while (l->pos < l->n) {
        nrd_template_val v = l->items[l->pos++];
        nrd_template_step(r, 1);
        if (!l->node->c) {
            *out = v;
            return true;
        }
        nrd_template_scope *outer = r->scope;
        r->scope = push_scope(r, l->outer);
        assign(r, l->node->a, v);
        bool pass = nrd_template_truthy(eval(r, l->node->c));
        r->scope = outer;
        if (pass) {
            *out = v;
            return true;
        }
    }
    return false;
}

/* Makes element `ahead` of those to come known; false: there is none. */
static bool loop_peek(nrd_template_run *r, nrd_template_loop *l, size_t ahead)
{
    nrd_template_val v;
    while (l->n_ready - l->at_ready <= ahead) {
        if (!loop_advance(r, l, &v)) {
            return false;
        }
        if (!l->ready) {
            l->ready = nrd_template_alloc(r, (l->n + 1) * sizeof *l->ready);
        }
        l->ready[l->n_ready++] = v;
    }
    return true;
}

static size_t loop_length(nrd_template_run *r, nrd_template_loop *l)
{
    while (loop_peek(r, l, l->n_ready - l->at_ready)) {
    }
    return l->index0 + 1 + (l->n_ready - l->at_ready);
}

static nrd_template_val loop_cycle(nrd_template_run *r, nrd_template_val self,
                                   const nrd_template_bound *b)
{
    if (b->all->n == 0) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "no items for cycling given");
    }
    return b->all->v[self.loop->index0 % b->all->n];
}

static nrd_template_val loop_changed(nrd_template_run *r, nrd_template_val self,
                                     const nrd_template_bound *b)
{
    nrd_template_list *now = nrd_template_list_new(r, L_TUPLE, b->all->n);
    for (size_t i = 0; i < b->all->n; i++) {
        nrd_template_push(r, now, b->all->v[i]);
    }
    nrd_template_loop *l = self.loop;
    bool changed =
        !l->has_changed || !nrd_template_equal(r, l->changed, nrd_template_val_list(now));
    l->changed = nrd_template_val_list(now);
    l->has_changed = true;
    return nrd_template_val_bool(changed);
}

static nrd_template_val loop_attr(nrd_template_run *r, nrd_template_loop *l, const char *name)
{
    static const nrd_template_method_row cycle = {"cycle", NULL, loop_cycle},
                                         changed = {"changed", NULL, loop_changed};
    if (!strcmp(name, "index0")) {
        return nrd_template_val_int((int64_t)l->index0);
    }
    if (!strcmp(name, "index")) {
        return nrd_template_val_int((int64_t)l->index0 + 1);
    }
    if (!strcmp(name, "first")) {
        return nrd_template_val_bool(l->index0 == 0);
    }
    if (!strcmp(name, "last")) {
        return nrd_template_val_bool(!loop_peek(r, l, 0));
    }
    if (!strcmp(name, "length")) {
        return nrd_template_val_int((int64_t)loop_length(r, l));
    }
    if (!strcmp(name, "revindex")) {
        return nrd_template_val_int((int64_t)(loop_length(r, l) - l->index0));
    }
    if (!strcmp(name, "revindex0")) {
        return nrd_template_val_int((int64_t)(loop_length(r, l) - l->index0) - 1);
    }
    if (!strcmp(name, "previtem")) {
        return l->has_prev ? l->prev
                           : nrd_template_val_undef(UNDEF_OTHER, "there is no previous item");
    }
    if (!strcmp(name, "nextitem")) {
        return loop_peek(r, l, 0) ? l->ready[l->at_ready]
                                  : nrd_template_val_undef(UNDEF_OTHER, "there is no next item");
    }
    if (!strcmp(name, "depth") || !strcmp(name, "depth0")) {
        return nrd_template_val_int(l->depth0 + (name[5] ? 0 : 1));
    }
    if (!strcmp(name, "cycle") || !strcmp(name, "changed")) {
        nrd_template_method *m = nrd_template_alloc(r, sizeof *m);
        *m = (nrd_template_method){{.type = V_LOOP, .loop = l}, name[1] == 'y' ? &cycle : &changed};
        return (nrd_template_val){.type = V_METHOD, .method = m};
    }
    return nrd_template_val_undef(UNDEF_ATTR, name);
}

static void exec_for(nrd_template_run *r, const nrd_template_node *n)
{
    nrd_template_loop l = {.node = n, .outer = r->scope};
    nrd_template_val v = eval(r, n->b), item;
    nrd_template_scope *outer = r->scope;
    flow f = GO_ON;
    bool any = false;

    r->line = n->line;
    l.items = nrd_template_iterate(r, v, &l.n);
    nrd_template_loop *heap =
        nrd_template_alloc(r, sizeof *heap); /* a macro made inside may keep it */
    *heap = l;
    while (f != GO_BREAK) {
        if (heap->at_ready < heap->n_ready) {
            item = heap->ready[heap->at_ready++];
        } else if (!loop_advance(r, heap, &item)) {
            break;
        }
        if (any) {
            heap->index0++;
            heap->prev = heap->current;
            heap->has_prev = true;
        }
        any = true;
        heap->current = item;
        r->scope = push_scope(r, outer);
        set_var(r, r->scope, r->t->n_loop, (nrd_template_val){.type = V_LOOP, .loop = heap});
        assign(r, n->a, item);
        f = exec(r, n->list);
        r->scope = outer;
    }
    if (!any && n->list2) {
        r->scope = push_scope(r, outer);
        exec(r, n->list2);
        r->scope = outer;
    }
}

/* ---- statements ---- */

static flow exec_if(nrd_template_run *r, const nrd_template_node *n)
{
    for (; n; n = n->b) {
        if (nrd_template_truthy(eval(r, n->a))) {
            return exec(r, n->list);
        }
        if (!n->b) {
            return exec(r, n->list2);
        }
    }
    return GO_ON;
}

static flow exec_with(nrd_template_run *r, const nrd_template_node *n)
{
    nrd_template_scope *outer = r->scope, *s = push_scope(r, outer);
    for (const nrd_template_node *p = n->list2; p; p = p->next) { /* values see the names outside */
        nrd_template_val v = eval(r, p->b);
        r->scope = s;
        assign(r, p->a, v);
        r->scope = outer;
    }
    r->scope = s;
    flow f = exec(r, n->list);
    r->scope = outer;
    return f;
}

static void exec_call_block(nrd_template_run *r, const nrd_template_node *n)
{
    nrd_template_val f = eval(r, n->a->a);
    nrd_template_args a = {0};
    eval_args(r, n->a->list, &a);
    nrd_template_kwarg *grown = nrd_template_alloc(r, (a.n_kw + 1) * sizeof *grown);
    memcpy(grown, a.kw, a.n_kw * sizeof *grown);
    nrd_template_macro *m = nrd_template_alloc(r, sizeof *m);
    *m = (nrd_template_macro){n, r->scope};
    grown[a.n_kw++] = (nrd_template_kwarg){r->t->n_caller, {.type = V_MACRO, .macro = m}};
    a.kw = grown;
    r->line = n->line;
    nrd_template_put(r, r->out, call(r, f, &a));
}

static flow exec_one(nrd_template_run *r, const nrd_template_node *n)
{
    nrd_template_macro *m;
    flow f;
    switch ((nrd_template_node_kind)n->kind) {
    case N_DATA:
        nrd_template_text_put(r, r->out, n->value.s, n->value.n);
        return GO_ON;
    case N_PRINT: {
        nrd_template_val v = eval(r, n->a);
        r->line = n->line;
        nrd_template_put(r, r->out, v);
        return GO_ON;
    }
    case N_IF:
        return exec_if(r, n);
    case N_FOR:
        exec_for(r, n);
        return GO_ON;
    case N_SET: {
        nrd_template_val v = eval(r, n->b);
        r->line = n->line;
        assign(r, n->a, v);
        return GO_ON;
    }
    case N_SET_BLOCK: {
        nrd_template_val v = filter_block(r, n->b, capture(r, n->list, push_scope(r, r->scope)));
        assign(r, n->a, v);
        return GO_ON;
    }
    case N_FILTER_BLOCK:
        nrd_template_put(r, r->out,
                         filter_block(r, n->b, capture(r, n->list, push_scope(r, r->scope))));
        return GO_ON;
    case N_WITH:
        return exec_with(r, n);
    case N_SCOPE: {
        nrd_template_scope *outer = r->scope;
        r->scope = push_scope(r, outer);
        f = exec(r, n->list);
        r->scope = outer;
        return f;
    }
    case N_MACRO:
        m = nrd_template_alloc(r, sizeof *m);
        *m = (nrd_template_macro){n, r->scope};
        set_var(r, r->scope, n->name, (nrd_template_val){.type = V_MACRO, .macro = m});
        return GO_ON;
    case N_CALL_BLOCK:
        exec_call_block(r, n);
        return GO_ON;
    case N_BREAK:
        return GO_BREAK;
    case N_CONTINUE:
        return GO_CONTINUE;
    default:
        NRD_ASSERT(false, "the parser puts only statements here");
    }
}

static flow exec(nrd_template_run *r, const nrd_template_node *n)
{
    flow f = GO_ON;
    enter(r);
    for (; n && f == GO_ON; n = n->next) {
        nrd_template_step(r, 1);
        r->line = n->line;
        f = exec_one(r, n);
        if (r->out->n > r->max_output) {
            nrd_template_fail(r, NRD_ERR_INVALID_ARG, "the template writes more than %zu bytes",
                              r->max_output);
        }
    }
    r->depth--;
    return f;
}

/* ---- attributes that belong to the evaluator ---- */

static nrd_template_val attr(nrd_template_run *r, nrd_template_val obj, const char *name)
{
    bool unsafe = false;
    if (obj.type == V_UNDEF) {
        nrd_template_fail_undef(r, obj);
    }
    if (obj.type == V_LOOP) {
        return loop_attr(r, obj.loop, name);
    }
    const nrd_template_method_row *row = nrd_template_find_method(obj, name, &unsafe);
    if (unsafe || (name[0] == '_' && name[1] == '_')) {
        return nrd_template_val_undef(UNDEF_UNSAFE, name);
    }
    if (row) {
        nrd_template_method *m = nrd_template_alloc(r, sizeof *m);
        *m = (nrd_template_method){obj, row};
        return (nrd_template_val){.type = V_METHOD, .method = m};
    }
    if (obj.type == V_DICT || obj.type == V_NS) {
        nrd_template_val *v = nrd_template_dict_find(r, obj.dict, nrd_template_val_text(name));
        if (v) {
            return *v;
        }
    }
    return nrd_template_val_undef(UNDEF_ATTR, name);
}

/* ---- a rendering ---- */

/* Variables that the template never names need not be converted. */
static void set_vars(nrd_template_run *r, const nrd_json *vars)
{
    for (size_t i = 0; vars && i < vars->n; i++) {
        const nrd_json *v = &vars->child[i];
        for (size_t k = 0; k < r->t->cap_names; k++) {
            if (r->t->names[k].s && r->t->names[k].n == v->key_len &&
                memcmp(r->t->names[k].s, v->key, v->key_len) == 0) {
                set_var(r, &r->root, r->t->names[k].s, nrd_template_from_json(r, v));
                break;
            }
        }
    }
}

static nrd_error *render(nrd_template_run *r, const nrd_json *vars)
{
    if (setjmp(r->jmp) == 0) {
        set_vars(r, vars);
        r->scope = push_scope(r, &r->root);
        exec(r, r->t->body);
    }
    return r->err;
}

nrd_error *nrd_template_render(const nrd_template *t, const nrd_json *vars, time_t now,
                               const nrd_template_limits *limits, nrd_str *out)
{
    static const nrd_template_limits defaults = {0};
    static const nrd_template_names names = {attr, nrd_template_find_method, nrd_template_find_filter, nrd_template_find_test};
    const nrd_template_limits *l = limits ? limits : &defaults;
    nrd_template_text text = {0};
    nrd_template_run r = {
        .names = &names,
        .t = t,
        .max_steps = l->max_steps ? l->max_steps : NRD_LIMIT_TEMPLATE_STEPS,
        .max_memory = l->max_memory_bytes ? l->max_memory_bytes : (size_t)256 << 20,
        .max_output = l->max_output_bytes ? l->max_output_bytes : (size_t)64 << 20,
        .now = now ? now : time(NULL),
        .out = &text};
    if (vars && !nrd_json_is(vars, NRD_JSON_OBJECT)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the variables of a template must be an object");
    }
    nrd_arena_init(&r.arena);
    nrd_error *err = render(&r, vars);
    if (!err && text.n > 0) {
        nrd_str_append(out, text.s, text.n);
        err = nrd_str_error(out);
    }
    nrd_arena_fini(&r.arena);
    return err;
}
