/* SPDX-License-Identifier: Apache-2.0
 * guided/internal.h - expressions and the automaton that they become.
 *
 * regex.c, ebnf.c, schema.c, numbers.c, free_text.c and tags.c build expressions (schema_keywords.c says which keywords schemas
 * may have); build.c turns them into nodes; automaton.c runs the nodes, vocab.c orders the tokens, tokens.c brings the two together. Expressions live in the
 * builder's arena. A builder keeps its first error; what is built after it is NULL and ignored.
 */
#ifndef NRD_GUIDED_INTERNAL_H
#define NRD_GUIDED_INTERNAL_H

#include "base/json.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/str.h"
#include "guided/guided.h"

#include <stdatomic.h>

enum {
    G_MAX_NODES = NRD_LIMIT_GUIDE_NODES,
    G_MAX_RULES = 1 << 16,
    G_MAX_REPEAT = 100000,
    G_MAX_NESTING = 200, /* of expressions in the guide's text */
    G_MAX_STACK = 256,   /* of rules within rules while running */
    G_MAX_STATES = NRD_LIMIT_GUIDE_STATES,
    G_MAX_MASK_BYTES = 64 << 20,
    G_MAX_CONFIGS = NRD_LIMIT_GUIDE_PLACES, /* of one state */
    G_MAX_JUMP_WORK = 1 << 16, /* places: about 2 ms; a guide that takes longer forces no text */
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
    uint32_t *rule_table; /* [rule_mask + 1] 0 or a named rule's number + 1 */
    uint32_t rule_mask, n_named, first_named; /* earlier rules' names are forgotten */
    uint64_t deadline_ns; /* of the compile */
    const atomic_bool *stop; /* nobody wants it any more; or NULL */
    size_t n_spent;       /* by nrd_guided_spend */
    bool json; /* characters are written as inside a JSON string */
    int depth;
} builder;

void nrd_guided_fail(builder *b, nrd_error_code code, const char *fmt, ...) NRD_PRINTF(3, 4);
void nrd_guided_no_memory(builder *b);
/* Counts looks at something: an expression, a node, a name that is compared. Every 256 of them it looks whether the compile
 * has time, and fails where it has none. Loops whose length a guide's text says more than once must count. */
void nrd_guided_spend(builder *b, size_t n);
/* Fails where a schema has keywords that are not kept, or values of types that they cannot have. */
void nrd_guided_check_keywords(builder *b, const nrd_json *s);
expr *nrd_guided_empty(builder *b);
expr *nrd_guided_seq(builder *b); /* then nrd_guided_add */
expr *nrd_guided_alt(builder *b); /* an alternative of nothing matches nothing */
void nrd_guided_add(builder *b, expr *list, expr *e);
expr *nrd_guided_repeat(builder *b, expr *e, int32_t min, int32_t max);
expr *nrd_guided_rule_ref(builder *b, uint32_t rule);
uint32_t nrd_guided_rule(builder *b, const char *name, size_t n); /* finds or makes it */
uint32_t nrd_guided_new_rule(builder *b);                          /* without a name */
void nrd_guided_forget_names(builder *b); /* another grammar begins */
void nrd_guided_define(builder *b, uint32_t rule, expr *body);
expr *nrd_guided_bytes(builder *b, const byte_set *set);
expr *nrd_guided_byte_range(builder *b, uint8_t lo, uint8_t hi);
expr *nrd_guided_text(builder *b, const char *s, size_t n); /* these bytes */
expr *nrd_guided_word(builder *b, const char *s);

/* Sets of characters. */
typedef struct cp_range {
    uint32_t lo, hi;
} cp_range;
typedef struct cp_set {
    cp_range *r;
    size_t n, cap;
} cp_set;
void nrd_guided_cp_add(builder *b, cp_set *s, uint32_t lo, uint32_t hi);
void nrd_guided_cp_invert(builder *b, cp_set *s);
expr *nrd_guided_chars(builder *b, cp_set *s); /* UTF-8, or JSON's way to write them when b->json */
expr *nrd_guided_char(builder *b, uint32_t cp);

/* ---- numbers ---- */
typedef struct num_bound {
    double at; /* may be infinite */
    bool open; /* itself is outside */
} num_bound;
expr *nrd_guided_digits(builder *b, int32_t min, int32_t max);
expr *nrd_guided_integer_between(builder *b, num_bound lo, num_bound hi);
/* max_fraction: digits behind the point; 0: as many as the bounds allow. */
expr *nrd_guided_number_between(builder *b, num_bound lo, num_bound hi, int max_fraction);
/* Whole numbers that m > 0 divides. */
expr *nrd_guided_multiples(builder *b, int32_t m, num_bound lo, num_bound hi);

/* ---- free text ---- */
typedef struct text_mark {
    const char *s; /* [n] not empty; borrowed while the rules are made */
    size_t n;
    uint32_t follow; /* the rule of what must come behind it, and of all that follows */
    bool banned;     /* it must not come at all */
} text_mark;
/* Makes `start` the rule of any bytes, which may end anywhere. Gives n, or the number of a mark that cannot
 * come since another one ends before it does. */
size_t nrd_guided_free_text(builder *b, uint32_t start, const text_mark *marks, size_t n);

/* ---- front ends ---- */
expr *nrd_guided_regex(builder *b, const char *s, size_t n, bool search); /* search: anywhere unless anchored */
expr *nrd_guided_ebnf(builder *b, const char *s, size_t n);
expr *nrd_guided_schema(builder *b, const nrd_json *schema);
expr *nrd_guided_json_object(builder *b);
expr *nrd_guided_tags(builder *b, const nrd_json *root);

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
    /* Bytes that no set tells apart behave alike in every state. */
    uint8_t class_of[256], first_of[256], class_size[256]; /* first_of: a byte of the class */
    uint32_t n_classes;
} program;

nrd_error *nrd_guided_assemble(builder *b, expr *root, program *out) NRD_MUST_USE;

typedef struct stack_node {
    uint32_t ret, parent, depth;
} stack_node;

typedef struct place {
    uint32_t node, stack;
} place;

enum { UNKNOWN = -2, FREE = -1 }; /* of what a state forces; else the one byte that may follow */
enum { NOT_ASKED = 0, MANY = 1, ONE = 2 }; /* plain: where plain characters lead: ONE + the state */

typedef struct state {
    uint32_t first, n; /* places */
    bool accepting;
    int16_t forced;
    uint32_t plain;
    uint32_t *mask; /* or NULL */
} state;

enum { DEAD = 0 }; /* the first state: no place, not accepting */

typedef enum { LIMIT_NONE, LIMIT_WORK, LIMIT_BYTES, LIMIT_STATES, LIMIT_PLACES, LIMIT_MEMORY } guide_limit;

struct nrd_guide {
    atomic_int refs;
    const nrd_guide_vocab *v;
    program p;
    atomic_int limit;    /* a guide_limit: the first one that was passed */
    atomic_int n_lent;   /* loans */
    atomic_int n_users;  /* states outside */

    stack_node *stacks; /* [0] is the empty one */
    uint32_t n_stacks, cap_stacks;
    uint32_t *stack_table;
    uint32_t stack_mask;

    state *states;
    uint32_t n_states, cap_states;
    uint32_t *state_table;
    uint32_t state_mask;
    place *places;
    size_t n_places, cap_places;
    uint32_t *next; /* [cap_states, n_classes] 0: not known yet, else state + 1 */
    size_t mask_bytes;
    atomic_size_t bytes; /* of everything, as last counted */
    uint32_t visited;    /* places, since the mask or the step was begun */
    uint32_t making;     /* state + 1 whose mask was begun and not finished: visited goes on */
    uint32_t max_visited; /* then the work at hand stops, to go on another time; 0: no such limit */
    const atomic_bool *stop; /* the same when it becomes true; or NULL */
    uint64_t until_ns;       /* the same at this time; 0: never */
    uint32_t n_stepped;      /* since the clock was looked at */
    bool stopped;            /* it did: what was found last is not true of any state */
    bool no_jump;            /* forced text took too long */

    /* while a state is made */
    place *found, *work, *seen;
    uint32_t *seen_at; /* [(seen_mask + 1) / 2] where in `seen` the n_seen places lie */
    uint32_t n_found, n_work, seen_mask, n_seen, cap_work, cap_found;
    bool accepting;
    uint32_t start;
    uint32_t *walk; /* [longest + 1] states along a token */
};

void nrd_guided_pass(nrd_guide *g, guide_limit which); /* its automaton grows no more */
void nrd_guided_count_bytes(nrd_guide *g);
/* DEAD too when a limit was passed (g->limit) or the work was stopped (g->stopped). */
uint32_t nrd_guided_step(nrd_guide *g, uint32_t from, uint8_t byte);
void nrd_guided_drop_masks(nrd_guide *g);

/* ---- vocabulary ---- */

/* A place in a tree of tokens; nodes stand in the order in which a walk meets them. */
typedef struct trie_node {
    uint32_t byte : 8, depth : 16, n_tokens : 8;
} trie_node;

typedef struct trie_end {
    uint32_t node, token; /* the first ones behind its subtree */
} trie_end;

typedef struct trie {
    trie_node *nodes;
    trie_end *ends;
    uint32_t n_nodes;
    int32_t *ids; /* in the order of the nodes */
} trie;

enum { PLAIN_CHARS = 16 }; /* longer tokens are few, and each bounded string tries so many states */

struct nrd_guide_vocab {
    int32_t n_tokens;
    trie all;
    /* Most tokens are at most PLAIN_CHARS plain characters (not ", \ or control). Inside a string, and
     * wherever else such characters all lead to the same state, their number alone decides. */
    trie rest;                        /* the others */
    uint32_t *plain[PLAIN_CHARS + 1]; /* mask of those of at most so many characters */
    const char **bytes;
    uint16_t *lengths; /* [n_tokens] 0: never allowed */
    char *mem;
    uint16_t longest;
    nrd_guide_encode encode; /* or NULL */
    void *user;
};

#endif
