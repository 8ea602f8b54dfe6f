/* SPDX-License-Identifier: Apache-2.0
 * text/template/internal.h - syntax tree, values and the state of one rendering.
 *
 * Purpose   What lex.c, parse.c, eval.c, value.c, filters.c, filters_list.c, tests.c and methods.c share.
 * Owner     Tree: the compiled template. Values: the arena of one rendering, one thread.
 * Errors    Inside this folder an error leaves by longjmp to the one setjmp of compile or render:
 *           everything allocated on the way lives in an arena, so there is nothing to undo.
 */
#ifndef NRD_TEXT_TEMPLATE_INTERNAL_H
#define NRD_TEXT_TEMPLATE_INTERNAL_H

#include "base/mem.h"
#include "text/template/template.h"

#include <setjmp.h>
#include <stdbool.h>
#include <string.h>

enum {
    TPL_MAX_SOURCE = 1 << 20,
    TPL_MAX_NESTING = 150, /* of the source: brackets and blocks */
    TPL_MAX_DEPTH = 400,   /* of evaluation: below 1 kB of stack each */
    TPL_MAX_VALUE_DEPTH = 64,
    TPL_MAX_RANGE = 100000, /* as in Jinja's sandbox */
};

/* ---- tokens ---- */

typedef enum {
    T_EOF, T_DATA, T_VAR_BEGIN, T_VAR_END, T_BLOCK_BEGIN, T_BLOCK_END, T_NAME, T_STR, T_INT, T_FLOAT,
    T_ADD, T_SUB, T_MUL, T_DIV, T_FLOORDIV, T_MOD, T_POW, T_TILDE, T_LPAREN, T_RPAREN, T_LBRACKET,
    T_RBRACKET, T_LBRACE, T_RBRACE, T_EQ, T_NE, T_LT, T_LE, T_GT, T_GE, T_ASSIGN, T_DOT, T_COLON,
    T_PIPE, T_COMMA, T_SEMICOLON,
} nrd_template_token_kind;

typedef struct nrd_template_token {
    nrd_template_token_kind kind;
    int line;
    const char *s; /* NUL-terminated for names */
    size_t n;
    int64_t i;
    double f;
} nrd_template_token;

/* ---- tree ---- */

typedef enum {
    N_DATA, N_PRINT, N_FOR, N_IF, N_SET, N_SET_BLOCK, N_WITH, N_MACRO, N_CALL_BLOCK, N_FILTER_BLOCK,
    N_SCOPE, N_BREAK, N_CONTINUE, /* statements */
    N_CONST, N_NAME, N_NSREF, N_LIST, N_TUPLE, N_DICT, N_PAIR, N_ATTR, N_ITEM, N_SLICE, N_CALL, N_ARG,
    N_FILTER, N_TEST, N_COND, N_AND, N_OR, N_NOT, N_NEG, N_POS, N_BINARY, N_CONCAT, N_COMPARE,
    N_OPERAND,
} nrd_template_node_kind;

typedef enum { V_UNDEF, V_NONE, V_BOOL, V_INT, V_FLOAT, V_STR, V_LIST, V_DICT, V_NS, V_MACRO,
               V_METHOD, V_FUNC, V_LOOP } nrd_template_val_type;

typedef struct nrd_template_val {
    uint8_t type;
    uint8_t flag; /* V_STR: 1 = markup; V_UNDEF: why, see nrd_template_undef_kind; V_FUNC: which */
    uint32_t n;   /* bytes of V_STR and of V_UNDEF's name */
    union {
        bool b;
        int64_t i;
        double f;
        const char *s;
        struct nrd_template_list *list;
        struct nrd_template_dict *dict; /* V_DICT, V_NS */
        struct nrd_template_macro *macro;
        struct nrd_template_method *method;
        struct nrd_template_loop *loop;
    };
} nrd_template_val;

typedef struct nrd_template_node {
    uint8_t kind;
    uint8_t op; /* token of an operator; 'i' in, 'n' not in; N_ARG: 0, '*', 'p' for ** */
    uint8_t flags;
    int line;
    const char *name; /* interned: equal names are equal pointers */
    struct nrd_template_node *a, *b, *c;
    struct nrd_template_node *list, *list2; /* first of children, linked by next */
    struct nrd_template_node *next;
    nrd_template_val value;
    const void *ref; /* filter or test table row */
} nrd_template_node;

enum { F_VARARGS = 1, F_KWARGS = 2, F_CALLER = 4 }; /* names that a macro's body uses */

typedef struct nrd_template_name_entry {
    const char *s;
    size_t n;
} nrd_template_name_entry;

struct nrd_template {
    nrd_arena arena;
    nrd_template_node *body;
    nrd_template_name_entry *names; /* hash table of interned names */
    size_t n_names, cap_names;
    const char *n_loop, *n_varargs, *n_kwargs, *n_caller;
};

typedef struct nrd_template_parser {
    nrd_template *t;
    jmp_buf jmp;
    nrd_error *err;
    nrd_template_token *tokens;
    size_t n_tokens, cap_tokens, pos;
    int depth, loop_depth;
    nrd_template_node *macro; /* innermost */
} nrd_template_parser;

void nrd_template_fail_parse(nrd_template_parser *p, nrd_error_code code, int line, const char *fmt,
                             ...) NRD_PRINTF(4, 5) __attribute__((noreturn));
void *nrd_template_parse_alloc(nrd_template_parser *p, size_t n);
const char *nrd_template_intern(nrd_template_parser *p, const char *s, size_t n);
void nrd_template_lex(nrd_template_parser *p, const char *s, size_t n);
void nrd_template_parse(nrd_template_parser *p);

/* ---- values ---- */

typedef enum { UNDEF_NAME, UNDEF_ATTR, UNDEF_UNSAFE, UNDEF_OTHER } nrd_template_undef_kind;

typedef enum { L_LIST, L_TUPLE, L_RANGE, L_ITER, L_KEYS, L_VALUES, L_ITEMS } nrd_template_list_kind;

typedef struct nrd_template_list {
    nrd_template_list_kind kind;
    bool spent; /* L_ITER: what it had was taken */
    size_t n, cap;
    nrd_template_val *v;
} nrd_template_list;

typedef struct nrd_template_entry {
    nrd_template_val key, value;
} nrd_template_entry;

typedef struct nrd_template_dict {
    size_t n, cap;
    nrd_template_entry *e;
} nrd_template_dict;

typedef struct nrd_template_var {
    const char *name;
    nrd_template_val v;
} nrd_template_var;

typedef struct nrd_template_scope {
    struct nrd_template_scope *parent;
    size_t n, cap;
    nrd_template_var *vars;
} nrd_template_scope;

typedef struct nrd_template_macro {
    const nrd_template_node *def; /* N_MACRO, or N_CALL_BLOCK for a caller */
    nrd_template_scope *closure;
} nrd_template_macro;

typedef struct nrd_template_method {
    nrd_template_val self;
    const struct nrd_template_method_row *row;
} nrd_template_method;

typedef struct nrd_template_text { /* text under construction, in the arena */
    char *s;
    size_t n, cap;
} nrd_template_text;

struct nrd_template_run;

/* What names mean while a template runs. eval.c says it, so that those below it can look up what stands above them. */
typedef struct nrd_template_names {
    nrd_template_val (*attr)(struct nrd_template_run *r, nrd_template_val obj, const char *name); /* obj.name */
    const struct nrd_template_method_row *(*find_method)(nrd_template_val self, const char *name, bool *out_unsafe);
    const struct nrd_template_method_row *(*find_filter)(const char *name);
    const struct nrd_template_method_row *(*find_test)(const char *name);
} nrd_template_names;

typedef struct nrd_template_run {
    const nrd_template *t;
    const nrd_template_names *names;
    jmp_buf jmp;
    nrd_error *err;
    nrd_arena arena;
    uint64_t steps, max_steps;
    size_t memory, max_memory, max_output;
    int depth, line;
    time_t now;
    nrd_template_scope *scope;
    nrd_template_scope root;
    nrd_template_text *out;
} nrd_template_run;

typedef struct nrd_template_loop {
    nrd_template_val *items; /* of the iterable */
    size_t n, pos;
    const nrd_template_node *node;
    nrd_template_scope *outer;
    nrd_template_val *ready; /* passed the filter, not consumed yet */
    size_t n_ready, at_ready;
    size_t index0; /* of the current turn */
    nrd_template_val prev, current;
    bool has_prev;
    int depth0;
    nrd_template_val changed;
    bool has_changed;
} nrd_template_loop;

typedef struct nrd_template_kwarg {
    const char *name;
    nrd_template_val v;
} nrd_template_kwarg;

typedef struct nrd_template_args {
    nrd_template_val *v;
    size_t n;
    nrd_template_kwarg *kw;
    size_t n_kw;
} nrd_template_args;

/* A function with named parameters: "sep,maxsplit". NULL: takes whatever comes. */
enum { TPL_MAX_PARAMS = 5 };
typedef struct nrd_template_bound {
    nrd_template_val v[TPL_MAX_PARAMS];
    bool has[TPL_MAX_PARAMS];
    const nrd_template_args *all;
} nrd_template_bound;
typedef nrd_template_val (*nrd_template_function)(nrd_template_run *r, nrd_template_val self,
                                                  const nrd_template_bound *b);
typedef struct nrd_template_method_row {
    const char *name;
    const char *params;
    nrd_template_function f; /* NULL: known, not implemented */
} nrd_template_method_row;

void nrd_template_fail(nrd_template_run *r, nrd_error_code code, const char *fmt, ...)
    NRD_PRINTF(3, 4) __attribute__((noreturn));
void nrd_template_fail_undef(nrd_template_run *r, nrd_template_val v) __attribute__((noreturn));
void *nrd_template_alloc(nrd_template_run *r, size_t n);
void nrd_template_step(nrd_template_run *r, uint64_t n);

static inline nrd_template_val nrd_template_val_undef(nrd_template_undef_kind why, const char *name)
{
    return (nrd_template_val){
        .type = V_UNDEF, .flag = (uint8_t)why, .n = (uint32_t)strlen(name), .s = name};
}
static inline nrd_template_val nrd_template_val_none(void)
{
    return (nrd_template_val){.type = V_NONE};
}
static inline nrd_template_val nrd_template_val_bool(bool b)
{
    return (nrd_template_val){.type = V_BOOL, .b = b};
}
static inline nrd_template_val nrd_template_val_int(int64_t i)
{
    return (nrd_template_val){.type = V_INT, .i = i};
}
static inline nrd_template_val nrd_template_val_float(double f)
{
    return (nrd_template_val){.type = V_FLOAT, .f = f};
}
static inline nrd_template_val nrd_template_val_str(const char *s, size_t n)
{
    return (nrd_template_val){.type = V_STR, .n = (uint32_t)n, .s = s};
}
static inline nrd_template_val nrd_template_val_text(const char *s)
{
    return nrd_template_val_str(s, strlen(s));
}
static inline nrd_template_val nrd_template_val_list(nrd_template_list *l)
{
    return (nrd_template_val){.type = V_LIST, .list = l};
}

const char *nrd_template_type_name(nrd_template_val v); /* "str", "dict", … */
nrd_template_list *nrd_template_list_new(nrd_template_run *r, nrd_template_list_kind kind,
                                         size_t cap);
void nrd_template_push(nrd_template_run *r, nrd_template_list *l, nrd_template_val v);
nrd_template_dict *nrd_template_dict_new(nrd_template_run *r, size_t cap);
nrd_template_val *nrd_template_dict_find(nrd_template_run *r, const nrd_template_dict *d,
                                         nrd_template_val key); /* NULL: none */
void nrd_template_dict_put(nrd_template_run *r, nrd_template_dict *d, nrd_template_val key,
                           nrd_template_val value);
bool nrd_template_is_hashable(nrd_template_val v); /* may be a key of a dictionary */
nrd_template_val nrd_template_from_json(nrd_template_run *r, const nrd_json *j);

void nrd_template_text_put(nrd_template_run *r, nrd_template_text *b, const char *s, size_t n);
void nrd_template_text_puts(nrd_template_run *r, nrd_template_text *b, const char *s);
void nrd_template_text_putc(nrd_template_run *r, nrd_template_text *b, char c);
void nrd_template_text_put_cp(nrd_template_run *r, nrd_template_text *b, uint32_t cp);
static inline nrd_template_val nrd_template_text_val(const nrd_template_text *b)
{
    return nrd_template_val_str(b->s ? b->s : "", b->n);
}

bool nrd_template_truthy(nrd_template_val v);
bool nrd_template_equal(nrd_template_run *r, nrd_template_val a, nrd_template_val b);
int nrd_template_compare(nrd_template_run *r, nrd_template_val a, nrd_template_val b,
                         const char *op); /* < 0, 0, > 0; fails without an order */
void nrd_template_put(nrd_template_run *r, nrd_template_text *out, nrd_template_val v); /* str(v) */
void nrd_template_repr(nrd_template_run *r, nrd_template_text *out,
                       nrd_template_val v); /* repr(v) */
nrd_template_val nrd_template_to_str(nrd_template_run *r, nrd_template_val v);
bool nrd_template_is_number(nrd_template_val v); /* bool counts, as in Python */
double nrd_template_as_double(nrd_template_val v);
int64_t nrd_template_as_int(nrd_template_val v); /* of a bool or an int */
void nrd_template_json(nrd_template_run *r, nrd_template_text *out, nrd_template_val v, bool ascii,
                       const char *indent, const char *item_sep, const char *key_sep,
                       bool sort_keys, int level);
nrd_template_val nrd_template_printf(nrd_template_run *r, nrd_template_val format,
                                     nrd_template_val a); /* format % a */

/* Elements of anything iterable; takes what an iterator has. */
nrd_template_val *nrd_template_iterate(nrd_template_run *r, nrd_template_val v, size_t *out_n);
int64_t nrd_template_length(nrd_template_run *r, nrd_template_val v);
bool nrd_template_contains(nrd_template_run *r, nrd_template_val container, nrd_template_val item);
nrd_template_val nrd_template_binary(nrd_template_run *r, int op, nrd_template_val a,
                                     nrd_template_val b);

/* strings */
bool nrd_template_is_space(uint32_t cp);
size_t nrd_template_cp_count(const char *s, size_t n);
size_t nrd_template_cp_offset(const char *s, size_t n, size_t index); /* byte of a code point */
size_t nrd_template_lstrip(const char *s, size_t n); /* bytes of leading white space */
size_t nrd_template_rstrip(const char *s, size_t n); /* length without trailing white space */
nrd_template_val
nrd_template_case(nrd_template_run *r, nrd_template_val s,
                  int how); /* 'u' upper, 'l' lower, 'c' capitalize, 't' title, 's' swap */
nrd_template_list *nrd_template_split_lines(nrd_template_run *r, nrd_template_val s);
nrd_template_val nrd_template_escape(nrd_template_run *r,
                                     nrd_template_val v); /* HTML; makes markup */
nrd_template_val nrd_template_replace(nrd_template_run *r, nrd_template_val s,
                                      nrd_template_val from, nrd_template_val to, int64_t count);

/* items and calls */
nrd_template_val nrd_template_item(nrd_template_run *r, nrd_template_val obj,
                                   nrd_template_val key); /* obj[key] */
nrd_template_val nrd_template_slice(nrd_template_run *r, nrd_template_val obj,
                                    nrd_template_val from, nrd_template_val to,
                                    nrd_template_val step);
const nrd_template_method_row *nrd_template_find_method(nrd_template_val self, const char *name,
                                                        bool *out_unsafe);
nrd_template_val nrd_template_call_row(nrd_template_run *r, const nrd_template_method_row *row,
                                       nrd_template_val self, const nrd_template_args *a,
                                       const char *what);
enum { FUNC_RANGE, FUNC_DICT, FUNC_NAMESPACE, FUNC_RAISE, FUNC_STRFTIME }; /* the flag of a V_FUNC */
nrd_template_val nrd_template_call_builtin(nrd_template_run *r, nrd_template_val f,
                                           const nrd_template_args *a);

const nrd_template_method_row *nrd_template_find_filter(const char *name); /* NULL: none */
const nrd_template_method_row *nrd_template_find_list_filter(const char *name);
const nrd_template_method_row *nrd_template_find_test(const char *name);

/* what filters and methods share */
#define TPL_TEST(name, condition)                                                                  \
    static nrd_template_val name(nrd_template_run *r, nrd_template_val v,                          \
                                 const nrd_template_bound *b)                                      \
    {                                                                                              \
        (void)r;                                                                                   \
        (void)b;                                                                                   \
        return nrd_template_val_bool(condition);                                                   \
    }
nrd_template_val nrd_template_arg(const nrd_template_bound *b, size_t i, nrd_template_val fallback);
bool nrd_template_flag(const nrd_template_bound *b, size_t i);
int64_t nrd_template_int_arg(nrd_template_run *r, const nrd_template_bound *b, size_t i,
                             int64_t fallback, const char *name);
bool nrd_template_parse_int(nrd_template_val v, int base, int64_t *out);
nrd_template_list *nrd_template_dict_items(nrd_template_run *r, const nrd_template_dict *d,
                                           nrd_template_list_kind kind);
nrd_template_val nrd_template_strip(nrd_template_run *r, nrd_template_val s, nrd_template_val chars,
                                    bool left, bool right);
bool nrd_template_has_case(nrd_template_run *r, nrd_template_val s, int how);
nrd_template_val nrd_template_to_list(nrd_template_run *r,
                                      nrd_template_val v); /* a new list of what it iterates over */

#endif
