/* text/template/internal.h - syntax tree, values and the state of one rendering.
 *
 * Purpose   What lex.c, parse.c, eval.c, value.c, filters.c and methods.c share.
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
} tok_kind;

typedef struct token {
    tok_kind kind;
    int line;
    const char *s; /* NUL-terminated for names */
    size_t n;
    int64_t i;
    double f;
} token;

/* ---- tree ---- */

typedef enum {
    N_DATA, N_PRINT, N_FOR, N_IF, N_SET, N_SET_BLOCK, N_WITH, N_MACRO, N_CALL_BLOCK, N_FILTER_BLOCK,
    N_SCOPE, N_BREAK, N_CONTINUE, /* statements */
    N_CONST, N_NAME, N_NSREF, N_LIST, N_TUPLE, N_DICT, N_PAIR, N_ATTR, N_ITEM, N_SLICE, N_CALL, N_ARG,
    N_FILTER, N_TEST, N_COND, N_AND, N_OR, N_NOT, N_NEG, N_POS, N_BINARY, N_CONCAT, N_COMPARE,
    N_OPERAND,
} node_kind;

typedef enum { V_UNDEF, V_NONE, V_BOOL, V_INT, V_FLOAT, V_STR, V_LIST, V_DICT, V_NS, V_MACRO,
               V_METHOD, V_FUNC, V_LOOP } val_type;

typedef struct val {
    uint8_t type;
    uint8_t flag; /* V_STR: 1 = markup; V_UNDEF: why, see undef_kind; V_FUNC: which */
    uint32_t n;   /* bytes of V_STR and of V_UNDEF's name */
    union {
        bool b;
        int64_t i;
        double f;
        const char *s;
        struct list *list;
        struct dict *dict; /* V_DICT, V_NS */
        struct macro *macro;
        struct method *method;
        struct loop *loop;
    };
} val;

typedef struct node {
    uint8_t kind;
    uint8_t op; /* token of an operator; 'i' in, 'n' not in; N_ARG: 0, '*', 'p' for ** */
    uint8_t flags;
    int line;
    const char *name; /* interned: equal names are equal pointers */
    struct node *a, *b, *c;
    struct node *list, *list2; /* first of children, linked by next */
    struct node *next;
    val value;
    const void *ref; /* filter or test table row */
} node;

enum { F_VARARGS = 1, F_KWARGS = 2, F_CALLER = 4 }; /* names that a macro's body uses */

typedef struct name_entry {
    const char *s;
    size_t n;
} name_entry;

struct nrd_template {
    nrd_arena arena;
    node *body;
    name_entry *names; /* hash table of interned names */
    size_t n_names, cap_names;
    const char *n_loop, *n_varargs, *n_kwargs, *n_caller;
};

typedef struct tpl_parser {
    nrd_template *t;
    jmp_buf jmp;
    nrd_error *err;
    token *tokens;
    size_t n_tokens, cap_tokens, pos;
    int depth, loop_depth;
    node *macro; /* innermost */
} tpl_parser;

void nrd_tpl_fail_parse(tpl_parser *p, nrd_error_code code, int line, const char *fmt, ...)
    NRD_PRINTF(4, 5) __attribute__((noreturn));
void *nrd_tpl_parse_alloc(tpl_parser *p, size_t n);
const char *nrd_tpl_intern(tpl_parser *p, const char *s, size_t n);
void nrd_tpl_lex(tpl_parser *p, const char *s, size_t n);
void nrd_tpl_parse(tpl_parser *p);

/* ---- values ---- */

typedef enum { UNDEF_NAME, UNDEF_ATTR, UNDEF_UNSAFE, UNDEF_OTHER } undef_kind;

typedef enum { L_LIST, L_TUPLE, L_RANGE, L_ITER, L_KEYS, L_VALUES, L_ITEMS } list_kind;

typedef struct list {
    list_kind kind;
    bool spent; /* L_ITER: what it had was taken */
    size_t n, cap;
    val *v;
} list;

typedef struct entry {
    val key, value;
} entry;

typedef struct dict {
    size_t n, cap;
    entry *e;
} dict;

typedef struct var {
    const char *name;
    val v;
} var;

typedef struct scope {
    struct scope *parent;
    size_t n, cap;
    var *vars;
} scope;

typedef struct macro {
    const node *def; /* N_MACRO, or N_CALL_BLOCK for a caller */
    scope *closure;
} macro;

typedef struct method {
    val self;
    const struct method_row *row;
} method;

typedef struct sb { /* text under construction, in the arena */
    char *s;
    size_t n, cap;
} sb;

typedef struct run {
    const nrd_template *t;
    jmp_buf jmp;
    nrd_error *err;
    nrd_arena arena;
    uint64_t steps, max_steps;
    size_t memory, max_memory, max_output;
    int depth, line;
    time_t now;
    scope *scope;
    scope root;
    sb *out;
} run;

typedef struct loop {
    val *items;  /* of the iterable */
    size_t n, pos;
    const node *node;
    scope *outer;
    val *ready;  /* passed the filter, not consumed yet */
    size_t n_ready, at_ready;
    size_t index0; /* of the current turn */
    val prev, current;
    bool has_prev;
    int depth0;
    val changed;
    bool has_changed;
} loop;

typedef struct kwarg {
    const char *name;
    val v;
} kwarg;

typedef struct args {
    val *v;
    size_t n;
    kwarg *kw;
    size_t n_kw;
} args;

/* A function with named parameters: "sep,maxsplit". NULL: takes whatever comes. */
enum { TPL_MAX_PARAMS = 5 };
typedef struct bound {
    val v[TPL_MAX_PARAMS];
    bool has[TPL_MAX_PARAMS];
    const args *all;
} bound;
typedef val (*tpl_function)(run *r, val self, const bound *b);
typedef struct method_row {
    const char *name;
    const char *params;
    tpl_function f; /* NULL: known, not implemented */
} method_row;

void nrd_tpl_fail(run *r, nrd_error_code code, const char *fmt, ...) NRD_PRINTF(3, 4)
    __attribute__((noreturn));
void nrd_tpl_fail_undef(run *r, val v) __attribute__((noreturn));
void *nrd_tpl_alloc(run *r, size_t n);
void nrd_tpl_step(run *r, uint64_t n);

static inline val val_undef(undef_kind why, const char *name)
{
    return (val){.type = V_UNDEF, .flag = (uint8_t)why, .n = (uint32_t)strlen(name), .s = name};
}
static inline val val_none(void) { return (val){.type = V_NONE}; }
static inline val val_bool(bool b) { return (val){.type = V_BOOL, .b = b}; }
static inline val val_int(int64_t i) { return (val){.type = V_INT, .i = i}; }
static inline val val_float(double f) { return (val){.type = V_FLOAT, .f = f}; }
static inline val val_str(const char *s, size_t n)
{
    return (val){.type = V_STR, .n = (uint32_t)n, .s = s};
}
static inline val val_text(const char *s) { return val_str(s, strlen(s)); }
static inline val val_list(list *l) { return (val){.type = V_LIST, .list = l}; }

const char *nrd_tpl_type_name(val v); /* "str", "dict", … */
list *nrd_tpl_list(run *r, list_kind kind, size_t cap);
void nrd_tpl_push(run *r, list *l, val v);
dict *nrd_tpl_dict(run *r, size_t cap);
val *nrd_tpl_dict_find(run *r, const dict *d, val key); /* NULL: none */
void nrd_tpl_dict_put(run *r, dict *d, val key, val value);
val nrd_tpl_from_json(run *r, const nrd_json *j);

void nrd_sb_put(run *r, sb *b, const char *s, size_t n);
void nrd_sb_puts(run *r, sb *b, const char *s);
void nrd_sb_putc(run *r, sb *b, char c);
void nrd_sb_put_cp(run *r, sb *b, uint32_t cp);
static inline val nrd_sb_val(const sb *b) { return val_str(b->s ? b->s : "", b->n); }

bool nrd_tpl_truthy(val v);
bool nrd_tpl_equal(run *r, val a, val b);
int nrd_tpl_compare(run *r, val a, val b, const char *op); /* < 0, 0, > 0; fails without an order */
void nrd_tpl_put(run *r, sb *out, val v);  /* str(v) */
void nrd_tpl_repr(run *r, sb *out, val v); /* repr(v) */
val nrd_tpl_to_str(run *r, val v);
bool nrd_tpl_is_number(val v);       /* bool counts, as in Python */
double nrd_tpl_as_double(val v);
void nrd_tpl_put_float(run *r, sb *out, double f);
void nrd_tpl_json(run *r, sb *out, val v, bool ascii, const char *indent, const char *item_sep,
                  const char *key_sep, bool sort_keys, int level);
val nrd_tpl_printf(run *r, val format, val a); /* format % a */

/* Elements of anything iterable; takes what an iterator has. */
val *nrd_tpl_iterate(run *r, val v, size_t *out_n);
int64_t nrd_tpl_length(run *r, val v);
bool nrd_tpl_contains(run *r, val container, val item);
val nrd_tpl_binary(run *r, int op, val a, val b);

/* strings */
bool nrd_tpl_is_space(uint32_t cp);
size_t nrd_tpl_cp_count(const char *s, size_t n);
size_t nrd_tpl_cp_offset(const char *s, size_t n, size_t index); /* byte of a code point */
size_t nrd_tpl_lstrip(const char *s, size_t n);  /* bytes of leading white space */
size_t nrd_tpl_rstrip(const char *s, size_t n);  /* length without trailing white space */
val nrd_tpl_case(run *r, val s, int how); /* 'u' upper, 'l' lower, 'c' capitalize, 't' title, 's' swap */
list *nrd_tpl_split_lines(run *r, val s);
val nrd_tpl_escape(run *r, val v); /* HTML; makes markup */
val nrd_tpl_replace(run *r, val s, val from, val to, int64_t count);

/* attributes and calls */
val nrd_tpl_attr(run *r, val obj, const char *name); /* obj.name */
val nrd_tpl_item(run *r, val obj, val key);          /* obj[key] */
val nrd_tpl_slice(run *r, val obj, val from, val to, val step);
const method_row *nrd_tpl_find_method(val self, const char *name, bool *out_unsafe);
val nrd_tpl_call_row(run *r, const method_row *row, val self, const args *a, const char *what);
val nrd_tpl_call(run *r, val f, const args *a);

const method_row *nrd_tpl_find_filter(const char *name); /* NULL: none */
const method_row *nrd_tpl_find_test(const char *name);

/* what filters and methods share */
#define TPL_TEST(name, condition)                                                                  \
    static val name(run *r, val v, const bound *b)                                                 \
    {                                                                                              \
        (void)r;                                                                                   \
        (void)b;                                                                                   \
        return val_bool(condition);                                                                \
    }
val nrd_tpl_arg(const bound *b, size_t i, val fallback);
bool nrd_tpl_flag(const bound *b, size_t i);
int64_t nrd_tpl_int_arg(run *r, const bound *b, size_t i, int64_t fallback, const char *name);
bool nrd_tpl_parse_int(val v, int base, int64_t *out);
list *nrd_tpl_dict_items(run *r, const dict *d, list_kind kind);
val nrd_tpl_strip(run *r, val s, val chars, bool left, bool right);
bool nrd_tpl_has_case(run *r, val s, int how);
val nrd_tpl_to_list(run *r, val v); /* a new list of what it iterates over */

#endif
