/* SPDX-License-Identifier: Apache-2.0
 * From a guide to the program of its automaton: expressions are combined here by the functions that
 * regex.c, ebnf.c, schema.c and numbers.c call, then written as nodes, each with its ways on. */
#include "guided/internal.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/limits.h"

#include <stdarg.h>
#include <string.h>

void nrd_guided_fail(builder *b, nrd_error_code code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    if (!b->err) {
        b->err = nrd_errorv(code, fmt, ap);
    }
    va_end(ap);
}

void nrd_guided_no_memory(builder *b)
{
    if (!b->err) {
        b->err = nrd_error_no_memory();
    }
}

void nrd_guided_spend(builder *b, size_t n)
{
    const size_t before = b->n_spent;

    b->n_spent += n;
    if (b->n_spent / 256 == before / 256) {
        return;
    }
    if (nrd_now_ns() > b->deadline_ns) {
        nrd_guided_fail(b, NRD_ERR_INVALID_ARG, "the guide takes more than %d ms to compile (GUIDE_COMPILE_MS)",
                        NRD_LIMIT_GUIDE_COMPILE_MS);
    }
    if (b->stop && atomic_load(b->stop)) {
        nrd_guided_fail(b, NRD_ERR_UNAVAILABLE, "nobody waits for this guide any more");
    }
}

static expr *new_expr(builder *b, expr_kind kind, uint32_t size)
{
    nrd_guided_spend(b, 1);
    expr *e = b->err ? NULL : nrd_arena_alloc(&b->arena, sizeof *e);
    if (!e) {
        nrd_guided_no_memory(b);
        return NULL;
    }
    *e = (expr){.kind = kind, .size = size};
    return e;
}

expr *nrd_guided_empty(builder *b)
{
    return new_expr(b, E_EMPTY, 0);
}

expr *nrd_guided_seq(builder *b)
{
    return new_expr(b, E_SEQ, 0);
}

expr *nrd_guided_alt(builder *b)
{
    return new_expr(b, E_ALT, 1);
}

void nrd_guided_add(builder *b, expr *list, expr *e)
{
    if (b->err || !list || !e) {
        return;
    }
    if (e->next || e == list->last) { /* shared expressions are rules */
        nrd_guided_fail(b, NRD_ERR_INTERNAL, "an expression is in two places");
        return;
    }
    if (list->last) {
        list->last->next = e;
    } else {
        list->a = e;
    }
    list->last = e;
    list->size += e->size + (list->kind == E_ALT);
    if (list->size > G_MAX_NODES) {
        nrd_guided_fail(b, NRD_ERR_INVALID_ARG, "the guide makes more than %d nodes (GUIDE_NODES)", G_MAX_NODES);
    }
}

expr *nrd_guided_repeat(builder *b, expr *e, int32_t min, int32_t max)
{
    if (!e) {
        return NULL;
    }
    if (min > G_MAX_REPEAT || max > G_MAX_REPEAT) {
        nrd_guided_fail(b, NRD_ERR_INVALID_ARG, "a repetition of more than %d", G_MAX_REPEAT);
        return NULL;
    }
    uint64_t times = (uint64_t)(max < 0 ? min + 1 : max);
    if (e->size > 4 && times > 1) { /* copies of a call are cheaper */
        uint32_t r = nrd_guided_new_rule(b);
        nrd_guided_define(b, r, e);
        e = nrd_guided_rule_ref(b, r);
    }
    expr *x = e ? new_expr(b, E_REPEAT, 0) : NULL;
    if (x) {
        uint64_t size = times * ((uint64_t)e->size + 1) + 1;
        x->a = e;
        x->min = min;
        x->max = max;
        x->size = size > UINT32_MAX ? UINT32_MAX : (uint32_t)size;
        if (size > G_MAX_NODES) {
            nrd_guided_fail(b, NRD_ERR_INVALID_ARG, "the guide makes more than %d nodes (GUIDE_NODES)",
                            G_MAX_NODES);
        }
    }
    return x;
}

expr *nrd_guided_rule_ref(builder *b, uint32_t r)
{
    expr *e = new_expr(b, E_RULE, 1);
    if (e) {
        e->rule = r;
    }
    return e;
}

/* Room for one more behind n items. False: no memory (b->err), the list is as it was. */
static bool grow(builder *b, void **p, uint32_t n, uint32_t *cap, size_t size)
{
    if (n == *cap) {
        const uint32_t more = *cap ? 2 * *cap : 64;
        void *list = realloc(*p, more * size);
        if (!list) {
            nrd_guided_no_memory(b);
            return false;
        }
        *p = list;
        *cap = more;
    }
    return true;
}

uint32_t nrd_guided_new_rule(builder *b)
{
    if (b->n_rules >= G_MAX_RULES) {
        nrd_guided_fail(b, NRD_ERR_INVALID_ARG, "the guide makes more than %d rules", G_MAX_RULES);
        return 0;
    }
    if (!grow(b, (void **)&b->rules, b->n_rules, &b->cap_rules, sizeof *b->rules)) {
        return 0;
    }
    b->rules[b->n_rules] = (rule){0};
    return b->n_rules++;
}

static bool grow_rule_table(builder *b)
{
    const uint32_t mask = b->rule_mask ? 2 * b->rule_mask + 1 : 63;
    uint32_t *table = calloc((size_t)mask + 1, sizeof *table);

    if (!table) {
        nrd_guided_no_memory(b);
        return false;
    }
    for (uint32_t i = b->first_named; i < b->n_rules; i++) {
        const char *name = b->rules[i].name;
        uint32_t at = name ? (uint32_t)nrd_hash_bytes(0, name, strlen(name)) & mask : 0;
        while (name && table[at]) {
            at = (at + 1) & mask;
        }
        if (name) {
            table[at] = i + 1;
        }
    }
    free(b->rule_table);
    b->rule_table = table;
    b->rule_mask = mask;
    return true;
}

void nrd_guided_forget_names(builder *b)
{
    free(b->rule_table);
    b->rule_table = NULL;
    b->rule_mask = b->n_named = 0;
    b->first_named = b->n_rules;
}

uint32_t nrd_guided_rule(builder *b, const char *name, size_t n)
{
    if (2 * b->n_named >= b->rule_mask && !grow_rule_table(b)) {
        return 0;
    }
    uint32_t at = (uint32_t)nrd_hash_bytes(0, name, n) & b->rule_mask;
    while (b->rule_table[at]) {
        const char *known = b->rules[b->rule_table[at] - 1].name;
        if (strlen(known) == n && memcmp(known, name, n) == 0) {
            return b->rule_table[at] - 1;
        }
        at = (at + 1) & b->rule_mask;
    }
    uint32_t r = nrd_guided_new_rule(b);
    if (!b->err) {
        char *copy = nrd_arena_strndup(&b->arena, name, n);
        if (!copy) {
            nrd_guided_no_memory(b);
            return 0;
        }
        b->rules[r].name = copy;
        b->rule_table[at] = r + 1;
        b->n_named++;
    }
    return r;
}

void nrd_guided_define(builder *b, uint32_t r, expr *body)
{
    if (!b->err && r < b->n_rules) {
        b->rules[r].body = body;
    }
}

expr *nrd_guided_bytes(builder *b, const byte_set *set)
{
    expr *e = new_expr(b, E_BYTES, 1);
    if (!e) {
        return NULL;
    }
    for (uint32_t i = b->n_sets; i-- > 0 && b->n_sets - i < 64;) { /* neighbours are often equal */
        if (memcmp(&b->sets[i], set, sizeof *set) == 0) {
            e->set = i;
            return e;
        }
    }
    if (!grow(b, (void **)&b->sets, b->n_sets, &b->cap_sets, sizeof *b->sets)) {
        return NULL;
    }
    b->sets[b->n_sets] = *set;
    e->set = b->n_sets++;
    return e;
}

expr *nrd_guided_byte_range(builder *b, uint8_t lo, uint8_t hi)
{
    byte_set s = {{0}};
    for (unsigned c = lo; c <= hi; c++) {
        s.bits[c / 64] |= 1ull << (c % 64);
    }
    return nrd_guided_bytes(b, &s);
}

expr *nrd_guided_text(builder *b, const char *s, size_t n)
{
    expr *e = nrd_guided_seq(b);
    for (size_t i = 0; i < n && !b->err; i++) {
        nrd_guided_add(b, e, nrd_guided_byte_range(b, (uint8_t)s[i], (uint8_t)s[i]));
    }
    return e;
}

expr *nrd_guided_word(builder *b, const char *s)
{
    return nrd_guided_text(b, s, strlen(s));
}

/* ---- sets of characters ---- */

void nrd_guided_cp_add(builder *b, cp_set *s, uint32_t lo, uint32_t hi)
{
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 8;
        cp_range *r = nrd_arena_alloc(&b->arena, cap * sizeof *r);
        if (!r) {
            nrd_guided_no_memory(b);
            return;
        }
        if (s->n > 0) {
            memcpy(r, s->r, s->n * sizeof *r);
        }
        s->r = r;
        s->cap = cap;
    }
    s->r[s->n++] = (cp_range){lo, hi};
}

static int by_lo(const void *a, const void *b)
{
    const cp_range *x = a, *y = b;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

/* Ranges rise afterwards, and stand apart. */
static void cp_sort(cp_set *s)
{
    size_t n = 0;
    if (s->n > 1) {
        qsort(s->r, s->n, sizeof *s->r, by_lo);
    }
    for (size_t i = 0; i < s->n; i++) {
        if (n > 0 && s->r[i].lo <= s->r[n - 1].hi + 1) {
            s->r[n - 1].hi = s->r[i].hi > s->r[n - 1].hi ? s->r[i].hi : s->r[n - 1].hi;
        } else {
            s->r[n++] = s->r[i];
        }
    }
    s->n = n;
}

void nrd_guided_cp_invert(builder *b, cp_set *s)
{
    cp_set out = {0};
    uint32_t from = 0;
    cp_sort(s);
    for (size_t i = 0; i < s->n; i++) {
        if (s->r[i].lo > from) {
            nrd_guided_cp_add(b, &out, from, s->r[i].lo - 1);
        }
        from = s->r[i].hi + 1;
    }
    if (from <= 0x10ffff) {
        nrd_guided_cp_add(b, &out, from, 0x10ffff);
    }
    *s = out;
}

/* lo..hi of equal length in UTF-8, as sequences of byte ranges. */
static void add_utf8(builder *b, expr *alt, const uint8_t *lo, const uint8_t *hi, int n)
{
    int same = 0;
    uint8_t low[4], high[4];
    bool lo_full = true, hi_full = true;

    while (same < n - 1 && lo[same] == hi[same]) {
        same++;
    }
    for (int i = same + 1; i < n; i++) {
        lo_full = lo_full && lo[i] == 0x80;
        hi_full = hi_full && hi[i] == 0xbf;
    }
    if (same == n - 1 || (lo_full && hi_full)) {
        expr *seq = nrd_guided_seq(b);
        for (int i = 0; i < n; i++) {
            nrd_guided_add(b, seq, nrd_guided_byte_range(b, lo[i], hi[i]));
        }
        nrd_guided_add(b, alt, seq);
        return;
    }
    memcpy(low, lo, sizeof low);
    memcpy(high, hi, sizeof high);
    if (!lo_full) { /* the rest of the block in which lo lies */
        for (int i = same + 1; i < n; i++) {
            high[i] = 0xbf;
        }
        high[same] = lo[same];
        add_utf8(b, alt, lo, high, n);
        memcpy(low, lo, sizeof low);
        low[same] = (uint8_t)(lo[same] + 1);
        for (int i = same + 1; i < n; i++) {
            low[i] = 0x80;
        }
        if (low[same] <= hi[same]) {
            add_utf8(b, alt, low, hi, n);
        }
        return;
    }
    high[same] = (uint8_t)(hi[same] - 1); /* full blocks, then the beginning of hi's */
    for (int i = same + 1; i < n; i++) {
        high[i] = 0xbf;
    }
    add_utf8(b, alt, lo, high, n);
    low[same] = hi[same];
    add_utf8(b, alt, low, hi, n);
}

static int encode(uint32_t cp, uint8_t *out)
{
    if (cp < 0x80) {
        out[0] = (uint8_t)cp;
        return 1;
    }
    int n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--) {
        out[i] = (uint8_t)(0x80 | (cp & 0x3f));
        cp >>= 6;
    }
    out[0] = (uint8_t)((n == 2 ? 0xc0u : n == 3 ? 0xe0u : 0xf0u) | cp);
    return n;
}

static void add_range(builder *b, expr *alt, uint32_t lo, uint32_t hi)
{
    static const uint32_t ends[] = {0x7f, 0x7ff, 0xd7ff, 0xdfff, 0xffff, 0x10ffff};
    for (int i = 0; i < 6 && lo <= hi; i++) {
        uint32_t end = hi < ends[i] ? hi : ends[i];
        if (lo > end) {
            continue;
        }
        if (i != 3) { /* surrogates have no UTF-8 */
            uint8_t x[4] = {0}, y[4] = {0};
            int n = encode(lo, x);
            encode(end, y);
            add_utf8(b, alt, x, y, n);
        }
        lo = end + 1;
    }
}

/* What must be escaped in a JSON string. */
static void add_json_escapes(builder *b, expr *alt, const cp_set *s)
{
    for (size_t i = 0; i < s->n; i++) {
        for (uint32_t c = s->r[i].lo; c <= s->r[i].hi && c <= '\\'; c++) {
            static const char plain[] = "\b\f\n\r\t\"\\", names[] = "bfnrt\"\\";
            const char *at = c ? strchr(plain, (int)c) : NULL;
            char text[8];
            if (at) {
                text[0] = '\\';
                text[1] = names[at - plain];
                nrd_guided_add(b, alt, nrd_guided_text(b, text, 2));
            } else if (c < 0x20) {
                static const char hex[] = "0123456789abcdef";
                memcpy(text, "\\u00", 4);
                text[4] = hex[c >> 4];
                text[5] = hex[c & 15];
                nrd_guided_add(b, alt, nrd_guided_text(b, text, 6));
            }
        }
    }
}

expr *nrd_guided_chars(builder *b, cp_set *s)
{
    byte_set ascii = {{0}};
    expr *alt = nrd_guided_alt(b);
    bool any = false;

    cp_sort(s);
    for (size_t i = 0; i < s->n; i++) {
        for (uint32_t c = s->r[i].lo; c <= s->r[i].hi && c < 0x80; c++) {
            if (!b->json || (c >= 0x20 && c != '"' && c != '\\')) {
                ascii.bits[c / 64] |= 1ull << (c % 64);
                any = true;
            }
        }
    }
    if (any) {
        nrd_guided_add(b, alt, nrd_guided_bytes(b, &ascii));
    }
    for (size_t i = 0; i < s->n; i++) {
        if (s->r[i].hi >= 0x80) {
            add_range(b, alt, s->r[i].lo < 0x80 ? 0x80 : s->r[i].lo, s->r[i].hi);
        }
    }
    if (b->json) {
        add_json_escapes(b, alt, s);
    }
    return alt;
}

expr *nrd_guided_char(builder *b, uint32_t cp)
{
    cp_set s = {0};
    nrd_guided_cp_add(b, &s, cp, cp);
    return nrd_guided_chars(b, &s);
}

/* ---- expressions into nodes ---- */

static uint32_t add_node(builder *b, program *p, gnode_kind kind, uint32_t x, uint32_t y)
{
    nrd_guided_spend(b, 1);
    if (p->n >= G_MAX_NODES) {
        nrd_guided_fail(b, NRD_ERR_INVALID_ARG, "the guide makes more than %d nodes (GUIDE_NODES)", G_MAX_NODES);
        return 0;
    }
    if (!grow(b, (void **)&p->nodes, p->n, &p->cap, sizeof *p->nodes)) {
        return 0;
    }
    p->nodes[p->n] = (gnode){(uint8_t)kind, x, y};
    return p->n++;
}

/* Nodes for `e`, followed by node `next`; gives the first. */
static uint32_t emit(builder *b, program *p, const expr *e, uint32_t next)
{
    uint32_t at, loop;
    if (b->err || !e) {
        return 0;
    }
    switch (e->kind) {
    case E_EMPTY:
        return next;
    case E_BYTES:
        return add_node(b, p, N_BYTES, e->set, next);
    case E_RULE:
        return add_node(b, p, N_CALL, e->rule, next);
    case E_ALT:
        at = add_node(b, p, N_FAIL, 0, 0);
        for (const expr *c = e->a; c; c = c->next) {
            uint32_t first = emit(b, p, c, next);
            at = c == e->a ? first : add_node(b, p, N_SPLIT, at, first);
        }
        return at;
    case E_REPEAT:
        if (e->max < 0) {
            loop = add_node(b, p, N_SPLIT, 0, next);
            at = emit(b, p, e->a, loop);
            p->nodes[loop].a = at;
            at = loop;
        } else {
            at = next;
            for (int32_t i = e->min; i < e->max; i++) {
                uint32_t once = emit(b, p, e->a, at);
                at = add_node(b, p, N_SPLIT, once, next);
            }
        }
        for (int32_t i = 0; i < e->min; i++) {
            at = emit(b, p, e->a, at);
        }
        return at;
    case E_SEQ:
        break;
    }
    /* Children are linked forwards and emitted backwards. */
    size_t n = 0;
    for (const expr *c = e->a; c; c = c->next) {
        n++;
    }
    const expr **list = calloc(n + 1, sizeof *list);
    if (!list) {
        nrd_guided_no_memory(b);
        return 0;
    }
    n = 0;
    for (const expr *c = e->a; c; c = c->next) {
        list[n++] = c;
    }
    for (at = next; n > 0; n--) {
        at = emit(b, p, list[n - 1], at);
    }
    free((void *)list);
    return at;
}

/* Rules that can come back to themselves without a byte between would never end. */
typedef struct left_walk {
    builder *b;
    const program *p;
    uint8_t *nullable; /* of rules */
    uint8_t *color;    /* of rules: 0 new, 1 on the way, 2 done */
    uint32_t *seen;    /* of nodes: the walk that saw it */
    uint32_t *queue;   /* of nodes, for one walk at a time */
    uint32_t walk;
} left_walk;

/* Can the end be reached from this node without a byte? */
static bool reaches_end(left_walk *w, uint32_t start)
{
    uint32_t *queue = w->queue, n = 0;
    bool end = false;
    w->walk++;
    queue[n++] = start;
    w->seen[start] = w->walk;
    while (n > 0 && !w->b->err) {
        const gnode *g = &w->p->nodes[queue[--n]];
        uint32_t next[2], k = 0;
        nrd_guided_spend(w->b, 1);
        end = end || g->kind == N_END;
        if (g->kind == N_SPLIT) {
            next[k++] = g->a;
            next[k++] = g->b;
        } else if (g->kind == N_CALL && w->nullable[g->a]) {
            next[k++] = g->b;
        }
        while (k > 0) {
            uint32_t at = next[--k];
            if (w->seen[at] != w->walk) {
                w->seen[at] = w->walk;
                queue[n++] = at;
            }
        }
    }
    return end;
}

static void check_left(left_walk *w, uint32_t r, int depth)
{
    w->color[r] = 1;
    /* Every rule that is called before a byte must have been read. */
    uint32_t *queue = w->queue, n = 0, mark = ++w->walk;
    uint32_t *calls = NULL, n_calls = 0, cap = 0;
    queue[n++] = w->b->rules[r].start;
    w->seen[queue[0]] = mark;
    while (n > 0 && !w->b->err) {
        const gnode *g = &w->p->nodes[queue[--n]];
        uint32_t next[2], k = 0;
        nrd_guided_spend(w->b, 1);
        if (g->kind == N_SPLIT) {
            next[k++] = g->a;
            next[k++] = g->b;
        } else if (g->kind == N_CALL) {
            if (!grow(w->b, (void **)&calls, n_calls, &cap, sizeof *calls)) {
                break;
            }
            calls[n_calls++] = g->a;
            if (w->nullable[g->a]) {
                next[k++] = g->b;
            }
        }
        while (k > 0) {
            uint32_t at = next[--k];
            if (w->seen[at] != mark) {
                w->seen[at] = mark;
                queue[n++] = at;
            }
        }
    }
    for (uint32_t i = 0; i < n_calls && !w->b->err; i++) {
        if (w->color[calls[i]] == 1) {
            const char *name = w->b->rules[calls[i]].name;
            nrd_guided_fail(w->b, NRD_ERR_UNSUPPORTED,
                            "rule '%s' begins with itself (left recursion)", name ? name : "?");
        } else if (w->color[calls[i]] == 0) {
            if (depth > G_MAX_STACK) {
                nrd_guided_fail(w->b, NRD_ERR_INVALID_ARG, "rules nest deeper than %d",
                                G_MAX_STACK);
            } else {
                check_left(w, calls[i], depth + 1);
            }
        }
    }
    free(calls);
    w->color[r] = 2;
}

static void check_rules(builder *b, const program *p)
{
    left_walk w = {.b = b, .p = p};
    w.nullable = calloc((size_t)b->n_rules + 1, 1);
    w.color = calloc((size_t)b->n_rules + 1, 1);
    w.seen = calloc((size_t)p->n + 1, sizeof *w.seen);
    w.queue = calloc((size_t)p->n + 1, sizeof *w.queue);
    if (!w.nullable || !w.color || !w.seen || !w.queue) {
        nrd_guided_no_memory(b);
    }
    bool backwards = true; /* in turn: rules mostly call those behind them, or those before them */
    for (bool changed = true; changed && !b->err; backwards = !backwards) {
        changed = false;
        for (uint32_t i = 0; i < b->n_rules && !b->err; i++) {
            uint32_t r = backwards ? b->n_rules - 1 - i : i;
            if (!w.nullable[r] && reaches_end(&w, b->rules[r].start)) {
                w.nullable[r] = 1;
                changed = true;
            }
        }
    }
    for (uint32_t r = 0; r < b->n_rules && !b->err; r++) {
        if (w.color[r] == 0) {
            check_left(&w, r, 0);
        }
    }
    free(w.queue);
    free(w.nullable);
    free(w.color);
    free(w.seen);
}

/* Refines one class of all bytes by every set. */
static void find_classes(program *p, const byte_set *sets, uint32_t n_sets)
{
    p->n_classes = 1;
    for (uint32_t i = 0; i < n_sets && p->n_classes < 256; i++) {
        int16_t inside[256]; /* the new number of a class's bytes that are in the set */
        bool out[256] = {false};
        uint32_t n = p->n_classes;
        memset(inside, -1, sizeof inside);
        for (uint32_t c = 0; c < 256; c++) {
            out[p->class_of[c]] |= !(sets[i].bits[c / 64] >> (c % 64) & 1);
        }
        for (uint32_t c = 0; c < 256; c++) {
            uint8_t k = p->class_of[c];
            if (out[k] && sets[i].bits[c / 64] >> (c % 64) & 1) {
                if (inside[k] < 0) {
                    inside[k] = (int16_t)n++;
                }
                p->class_of[c] = (uint8_t)inside[k];
            }
        }
        p->n_classes = n;
    }
    for (uint32_t c = 256; c-- > 0;) {
        p->first_of[p->class_of[c]] = (uint8_t)c;
        p->class_size[p->class_of[c]] = (uint8_t)(p->class_size[p->class_of[c]] + (p->class_size[p->class_of[c]] < 255));
    }
}

nrd_error *nrd_guided_assemble(builder *b, expr *root, program *out)
{
    uint32_t end = add_node(b, out, N_END, 0, 0);
    for (uint32_t r = 0; r < b->n_rules && !b->err; r++) {
        if (!b->rules[r].body) {
            nrd_guided_fail(b, NRD_ERR_INVALID_ARG, "rule '%s' is not defined",
                            b->rules[r].name ? b->rules[r].name : "?");
        }
        b->rules[r].start = emit(b, out, b->rules[r].body, end);
    }
    out->start = emit(b, out, root, end);
    if (!b->err) {
        check_rules(b, out);
    }
    for (uint32_t i = 0; i < out->n && !b->err; i++) { /* calls name their rule until now */
        if (out->nodes[i].kind == N_CALL) {
            out->nodes[i].a = b->rules[out->nodes[i].a].start;
        }
    }
    find_classes(out, b->sets, b->err ? 0 : b->n_sets);
    out->sets = b->sets;
    b->sets = NULL;
    return b->err;
}
