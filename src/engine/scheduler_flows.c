/* SPDX-License-Identifier: Apache-2.0
 * Whose turn it is among flows, as requests of one API key are: each counts the tokens that it was served, and of those
 * with somebody waiting the one that had least is next. So who sends a thousand requests at once keeps nobody waiting for
 * more than one start. A flow that had nothing waiting begins where the others are: what it did not use is not saved up.
 * Source: virtual token counter (Sheng et al., Fairness in Serving Large Language Models, OSDI 2024). */
#include "engine/scheduler_internal.h"

#include "base/mem.h"

enum { COST_PROMPT = 1, COST_NEW = 2 }; /* of a token, as the paper has them */

/* Nobody misses what it counted. */
static bool is_free(const nrd_sched *s, const nrd_sched_flow *f)
{
    return f->n_live == 0 && f->served <= s->flow_floor;
}

/* The place of a flow; more than there are places for share some. Place 0 is that of requests without one. */
static int32_t place_of(nrd_sched *s, uint64_t id)
{
    int32_t at = 0;

    if (id == 0) {
        return 0;
    }
    for (int32_t i = 1; i < s->n_flows; i++) {
        if (s->flows[i].id == id) {
            return i;
        }
        at = at == 0 && is_free(s, &s->flows[i]) ? i : at;
    }
    if (at == 0 && s->n_flows == NRD_SCHED_MAX_FLOWS) {
        return 1 + (int32_t)(id % (NRD_SCHED_MAX_FLOWS - 1));
    }
    at = at == 0 ? s->n_flows++ : at;
    s->flows[at] = (nrd_sched_flow){.id = id};
    return at;
}

void nrd_sched_flow_join(nrd_sched *s, nrd_seq *q)
{
    q->sched.flow = place_of(s, q->req.flow);
    s->flows[q->sched.flow].n_live++;
}

void nrd_sched_flow_leave(nrd_sched *s, const nrd_seq *q)
{
    s->flows[q->sched.flow].n_live--;
}

/* What the least served of those who wait had; where nobody waits, the last one that started. */
static uint64_t level(const nrd_sched *s)
{
    uint64_t least = UINT64_MAX;
    for (int32_t i = 0; i < s->n_flows; i++) {
        if (s->flows[i].n_waiting > 0 && s->flows[i].served < least) {
            least = s->flows[i].served;
        }
    }
    return least == UINT64_MAX ? s->flow_floor : least;
}

void nrd_sched_flow_wait(nrd_sched *s, nrd_seq *q)
{
    nrd_sched_flow *f = &s->flows[q->sched.flow];
    nrd_seq *after = f->tail;

    if (f->n_waiting == 0) {
        const uint64_t least = level(s);
        f->served = f->served > least ? f->served : least;
        s->n_flows_waiting++;
    }
    while (after && nrd_sched_goes_before(q, after)) {
        after = after->sched.flow_prev;
    }
    q->sched.flow_prev = after;
    q->sched.flow_next = after ? after->sched.flow_next : f->head;
    *(q->sched.flow_prev ? &q->sched.flow_prev->sched.flow_next : &f->head) = q;
    *(q->sched.flow_next ? &q->sched.flow_next->sched.flow_prev : &f->tail) = q;
    f->n_waiting++;
}

void nrd_sched_flow_remove(nrd_sched *s, nrd_seq *q)
{
    nrd_sched_flow *f = &s->flows[q->sched.flow];

    *(q->sched.flow_prev ? &q->sched.flow_prev->sched.flow_next : &f->head) = q->sched.flow_next;
    *(q->sched.flow_next ? &q->sched.flow_next->sched.flow_prev : &f->tail) = q->sched.flow_prev;
    q->sched.flow_prev = q->sched.flow_next = NULL;
    f->n_waiting--;
    s->n_flows_waiting -= f->n_waiting == 0;
}

void nrd_sched_flow_started(nrd_sched *s, const nrd_seq *q, int32_t n_tokens)
{
    nrd_sched_flow *f = &s->flows[q->sched.flow];

    s->flow_floor = f->served > s->flow_floor ? f->served : s->flow_floor;
    f->served += q->sched.n_paused > 0 ? 0 : (uint64_t)n_tokens * COST_PROMPT;
}

void nrd_sched_flow_served(nrd_sched *s, const nrd_seq *q, int32_t n_new)
{
    s->flows[q->sched.flow].served += (uint64_t)n_new * COST_NEW;
}

bool nrd_sched_flow_goes_before(const nrd_sched *s, const nrd_seq *a, const nrd_seq *b)
{
    const uint64_t of_a = s->flows[a->sched.flow].served, of_b = s->flows[b->sched.flow].served;

    return a->req.priority > b->req.priority || (a->req.priority == b->req.priority && of_a < of_b) ||
           (a->req.priority == b->req.priority && of_a == of_b && a->sched.arrival < b->sched.arrival);
}

void nrd_sched_flow_check(const nrd_sched *s)
{
    int32_t n = 0, n_flows = 0;
    for (int32_t i = 0; i < s->n_flows; i++) {
        const nrd_sched_flow *f = &s->flows[i];
        int32_t n_of = 0;
        for (const nrd_seq *q = f->head; q; q = q->sched.flow_next) {
            NRD_ASSERT(!q->sched.flow_next || nrd_sched_goes_before(q, q->sched.flow_next), "sorted");
            NRD_ASSERT(q->sched.flow == i, "it stands in its own flow");
            n_of++;
        }
        NRD_ASSERT(n_of == f->n_waiting && n_of <= f->n_live, "counts agree");
        n += n_of;
        n_flows += n_of > 0;
    }
    NRD_ASSERT(n == s->n_waiting && n_flows == s->n_flows_waiting, "all who wait stand in a flow");
}
