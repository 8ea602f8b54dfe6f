/* SPDX-License-Identifier: Apache-2.0
 * When requests under way must end: a list in the order of their times, so that the loop looks at its head
 * only. New ones are put in from the tail: clients that set a time mostly set the same one. */
#include "executor/internal.h"

static void insert(nrd_exec *x, nrd_exec_request_state *r)
{
    nrd_exec_request_state *after = x->due_tail;
    while (after && after->due_ns > r->due_ns) {
        after = after->due_prev;
    }
    r->due_prev = after;
    r->due_next = after ? after->due_next : x->due_head;
    *(r->due_prev ? &r->due_prev->due_next : &x->due_head) = r;
    *(r->due_next ? &r->due_next->due_prev : &x->due_tail) = r;
}

void nrd_exec_deadline_add(nrd_exec_request_state *r)
{
    const bool starts_first = r->start_by_ns > 0 && (r->deadline_ns <= 0 || r->start_by_ns < r->deadline_ns);
    r->due_ns = starts_first ? r->start_by_ns : r->deadline_ns;
    if (r->due_ns > 0) {
        insert(r->exec, r);
    }
}

void nrd_exec_deadline_remove(nrd_exec_request_state *r)
{
    nrd_exec *x = r->exec;
    if (r->due_ns <= 0) {
        return;
    }
    *(r->due_prev ? &r->due_prev->due_next : &x->due_head) = r->due_next;
    *(r->due_next ? &r->due_next->due_prev : &x->due_tail) = r->due_prev;
    r->due_prev = r->due_next = NULL;
    r->due_ns = 0;
}

nrd_exec_request_state *nrd_exec_deadline_due(nrd_exec *x, int64_t now_ns, bool *out_to_start)
{
    while (x->due_head && x->due_head->due_ns <= now_ns) {
        nrd_exec_request_state *r = x->due_head;
        *out_to_start = r->due_ns == r->start_by_ns && r->perf.first_scheduled_ns == 0;
        const bool is_end = r->deadline_ns > 0 && r->deadline_ns <= now_ns;
        nrd_exec_deadline_remove(r);
        if (*out_to_start || is_end) {
            return r;
        }
        r->start_by_ns = 0; /* it began in time */
        nrd_exec_deadline_add(r);
    }
    return NULL;
}

int64_t nrd_exec_deadline_next(const nrd_exec *x)
{
    return x->due_head ? x->due_head->due_ns : 0;
}
