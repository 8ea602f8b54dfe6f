/* guided/internal.h - expressions and the automaton that they become.
 *
 * regex.c, ebnf.c and schema.c build expressions; build.c turns them into nodes; automaton.c runs the
 * nodes. Expressions live in the builder's arena. A builder keeps its first error; what is built after
 * it is NULL and ignored.
 */
#ifndef NRD_GUIDED_INTERNAL_H
#define NRD_GUIDED_INTERNAL_H

#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "guided/guided.h"

enum {
    G_MAX_TEXT = 1 << 20,
    G_MAX_NODES = 1 << 20,
    G_MAX_RULES = 1 << 16,
    G_MAX_REPEAT = 100000,
    G_MAX_NESTING = 200, /* of expressions in the guide's text */
    G_MAX_STACK = 256,   /* of rules within rules while running */
    G_MAX_STATES = 32768,
    G_MAX_MASK_BYTES = 64 << 20,
    G_MAX_CONFIGS = 1 << 14, /* of one state */
};

/* ---- expressions ---- */

typedef enum { E_EMPTY, E_BYTES, E_SEQ, E_ALT, E_REPEAT, E_RULE } expr_kind;

typedef struct expr {
    expr_kind kind;
    uint32_t set;   /* E_BYTES: index of a byte set */
    int32_t min, max; /* E_REPEAT; max -1: no limit */
    uint32_t rule;  /* E_RULE */
    struct expr *a; /* E_REPEAT; first child of E_SEQ, E_ALT */
    struct expr *next;
    struct expr *last; /* child of E_SEQ, E_ALT */
    uint32_t size;  /* nodes that it makes, about */
} expr;

typedef struct byte_set {
    uint64_t bits[4];
} byte_set;

typedef struct rule {
    const char *name;
    expr *body; /* NULL: named, not defined yet */
    uint32_t start;
} rule;

typedef struct builder {
    nrd_arena arena;
    nrd_error *err;
    byte_set *sets;
    uint32_t n_sets, cap_sets;
    rule *rules;
    uint32_t n_rules, cap_rules;
    bool json; /* characters are written as inside a JSON string */
    int depth;
} builder;

void g_fail(builder *b, nrd_error_code code, const char *fmt, ...) NRD_PRINTF(3, 4);
expr *g_empty(builder *b);
expr *g_seq(builder *b); /* then g_add */
expr *g_alt(builder *b); /* an alternative of nothing matches nothing */
void g_add(builder *b, expr *list, expr *e);
expr *g_repeat(builder *b, expr *e, int32_t min, int32_t max);
expr *g_rule_ref(builder *b, uint32_t rule);
uint32_t g_rule(builder *b, const char *name, size_t n); /* finds or makes it */
uint32_t g_new_rule(builder *b);                          /* without a name */
void g_define(builder *b, uint32_t rule, expr *body);
expr *g_byte_range(builder *b, uint8_t lo, uint8_t hi);
expr *g_text(builder *b, const char *s, size_t n); /* these bytes */
expr *g_word(builder *b, const char *s);

/* Sets of characters. */
typedef struct cp_range {
    uint32_t lo, hi;
} cp_range;
typedef struct cp_set {
    cp_range *r;
    size_t n, cap;
} cp_set;
void g_cp_add(builder *b, cp_set *s, uint32_t lo, uint32_t hi);
void g_cp_sort(cp_set *s); /* rising, apart */
void g_cp_invert(builder *b, cp_set *s);
expr *g_chars(builder *b, cp_set *s); /* UTF-8, or JSON's way to write them when b->json */
expr *g_char(builder *b, uint32_t cp);

/* ---- front ends ---- */
expr *g_regex(builder *b, const char *s, size_t n, bool search); /* search: anywhere unless anchored */
expr *g_ebnf(builder *b, const char *s, size_t n);
expr *g_schema(builder *b, const nrd_json *schema);
expr *g_json_object(builder *b);

/* ---- automaton ---- */
typedef enum { N_BYTES, N_SPLIT, N_CALL, N_END, N_FAIL } gnode_kind;
typedef struct gnode {
    uint8_t kind;
    uint32_t a, b; /* N_BYTES: set, next; N_SPLIT: two nexts; N_CALL: rule's start, next */
} gnode;

typedef struct program {
    gnode *nodes;
    uint32_t n, cap;
    byte_set *sets;
    uint32_t start;
} program;

nrd_error *g_assemble(builder *b, expr *root, program *out) NRD_MUST_USE;

#endif
