/* SPDX-License-Identifier: Apache-2.0
 * Free text with marks: any bytes, but behind one mark only what belongs to it may follow, and another must
 * not come at all. The machine that looks for all marks at once (Aho and Corasick 1975) is written as rules,
 * one for each of its states: a state calls the next one last, so the stack does not grow. */
#include "guided/internal.h"

#include <string.h>

typedef struct machine {
    builder *b;
    const text_mark *marks;
    size_t n_marks, n_nodes;
    uint16_t (*go)[256]; /* [n_nodes] 0: none until the machine is complete, then the root */
    uint16_t *fail;      /* [n_nodes] the longest proper suffix that is a node too */
    uint16_t *first;     /* [n_nodes] 1 + a mark that ends here, or 0 */
    uint16_t *next;      /* [n_marks] the same for the next one that ends at this node */
    bool *hit, *banned;  /* [n_nodes] some mark ends here; one that must not come */
    uint16_t *queue;     /* [n_nodes] nearest to the root first */
    uint32_t *rules;     /* [n_nodes] */
} machine;

static void add_marks(machine *m)
{
    m->n_nodes = 1;
    for (size_t i = 0; i < m->n_marks; i++) {
        uint16_t at = 0;
        for (size_t k = 0; k < m->marks[i].n; k++) {
            uint16_t *to = &m->go[at][(uint8_t)m->marks[i].s[k]];
            if (!*to) {
                *to = (uint16_t)m->n_nodes++;
            }
            at = *to;
        }
        m->next[i] = m->first[at];
        m->first[at] = (uint16_t)(i + 1);
        m->hit[at] = true;
        m->banned[at] = m->banned[at] || m->marks[i].banned;
    }
}

/* A byte that leads nowhere from a node leads where it leads from the node's longest suffix. */
static void complete(machine *m)
{
    size_t n = 0;
    m->queue[n++] = 0;
    for (size_t i = 0; i < n; i++) {
        const uint16_t at = m->queue[i], suffix = m->fail[at];
        m->hit[at] = m->hit[at] || m->hit[suffix];
        m->banned[at] = m->banned[at] || m->banned[suffix];
        for (unsigned c = 0; c < 256; c++) {
            const uint16_t beside = at ? m->go[suffix][c] : 0, to = m->go[at][c];
            if (to) {
                m->fail[to] = beside;
                m->queue[n++] = to;
            } else {
                m->go[at][c] = beside;
            }
        }
    }
}

/* Does the text of a mark reach its end, or does another one come first? */
static bool can_come(const machine *m, const text_mark *mark)
{
    uint16_t at = 0;
    for (size_t k = 0; k < mark->n; k++) {
        if (m->hit[at]) {
            return false;
        }
        at = m->go[at][(uint8_t)mark->s[k]];
    }
    return !m->banned[at];
}

/* What follows where marks end: of each that does. */
static expr *behind(const machine *m, uint16_t at)
{
    expr *alt = nrd_guided_alt(m->b);
    for (uint16_t node = at; node; node = m->fail[node]) {
        for (uint16_t i = m->first[node]; i; i = m->next[i - 1]) {
            nrd_guided_add(m->b, alt, nrd_guided_rule_ref(m->b, m->marks[i - 1].follow));
        }
    }
    return alt;
}

static void define_state(machine *m, uint16_t at)
{
    builder *b = m->b;
    bool done[256] = {false};
    expr *alt = nrd_guided_alt(b);

    nrd_guided_add(b, alt, nrd_guided_empty(b)); /* free text may end anywhere */
    for (unsigned c = 0; c < 256 && !b->err; c++) {
        const uint16_t to = m->go[at][c];
        byte_set set = {{0}};
        if (done[c] || m->banned[to]) {
            continue;
        }
        for (unsigned k = c; k < 256; k++) {
            if (m->go[at][k] == to) {
                done[k] = true;
                set.bits[k / 64] |= 1ull << (k % 64);
            }
        }
        expr *seq = nrd_guided_seq(b);
        nrd_guided_add(b, seq, nrd_guided_bytes(b, &set));
        nrd_guided_add(b, seq, m->hit[to] ? behind(m, to) : nrd_guided_rule_ref(b, m->rules[to]));
        nrd_guided_add(b, alt, seq);
    }
    nrd_guided_define(b, m->rules[at], alt);
}

size_t nrd_guided_free_text(builder *b, uint32_t start, const text_mark *marks, size_t n)
{
    size_t nodes = 1, bad = n;
    machine m = {.b = b, .marks = marks, .n_marks = n};

    for (size_t i = 0; i < n; i++) {
        nodes += marks[i].n;
    }
    if (nodes - 1 > NRD_LIMIT_GUIDE_MARKS) {
        nrd_guided_fail(b, NRD_ERR_INVALID_ARG,
                        "triggers, excludes and ends of %zu bytes around one free text; at most %d (GUIDE_MARKS)",
                        nodes - 1, NRD_LIMIT_GUIDE_MARKS);
        return n;
    }
    m.go = calloc(nodes, sizeof *m.go);
    m.fail = calloc(3 * nodes + n, sizeof *m.fail);
    m.hit = calloc(2 * nodes, sizeof *m.hit);
    m.rules = calloc(nodes, sizeof *m.rules);
    if (!m.go || !m.fail || !m.hit || !m.rules) {
        nrd_guided_no_memory(b);
        goto done;
    }
    m.first = m.fail + nodes;
    m.queue = m.first + nodes;
    m.next = m.queue + nodes;
    m.banned = m.hit + nodes;
    add_marks(&m);
    complete(&m);
    for (size_t i = 0; i < n && bad == n; i++) {
        bad = marks[i].banned || can_come(&m, &marks[i]) ? n : i;
    }
    m.rules[0] = start;
    for (size_t i = 1; i < m.n_nodes && bad == n && !b->err; i++) {
        m.rules[i] = m.hit[i] ? 0 : nrd_guided_new_rule(b);
    }
    for (size_t i = 0; i < m.n_nodes && bad == n && !b->err; i++) {
        if (!m.hit[i]) {
            define_state(&m, (uint16_t)i);
        }
    }
done:
    free(m.go);
    free(m.fail);
    free(m.hit);
    free(m.rules);
    return bad;
}
