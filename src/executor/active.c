/* SPDX-License-Identifier: Apache-2.0
 * The table of requests under way, and the outbox, which takes those out that have their final answer. All with mu held. */
#include "executor/internal.h"

static nrd_exec_request_state **bucket(nrd_exec *x, uint64_t id)
{
    return &x->active[id % ACTIVE_BUCKETS];
}

void nrd_exec_active_add(nrd_exec *x, nrd_exec_request_state *r)
{
    nrd_exec_request_state **b = bucket(x, r->id);
    r->hash_next = *b;
    *b = r;
    x->n_active++;
    x->n_waiting++;
}

static void leave_cancels(nrd_exec_request_state **list, const nrd_exec_request_state *r)
{
    for (; *list; list = &(*list)->cancel_next) {
        if (*list == r) {
            *list = r->cancel_next;
            return;
        }
    }
}

static void active_remove(nrd_exec *x, nrd_exec_request_state *r)
{
    if (r->cancel_asked) {
        leave_cancels(&x->cancels, r);
        leave_cancels(&x->cancels_taken, r);
    }
    for (nrd_exec_request_state **at = bucket(x, r->id); *at; at = &(*at)->hash_next) {
        if (*at == r) {
            *at = r->hash_next;
            x->n_active--;
            x->n_waiting -= r->perf.first_scheduled_ns == 0;
            return;
        }
    }
}

nrd_exec_request_state *nrd_exec_active_find(nrd_exec *x, uint64_t id)
{
    nrd_exec_request_state *r = *bucket(x, id);
    while (r && r->id != id) {
        r = r->hash_next;
    }
    return r;
}

void nrd_exec_out_push(nrd_exec *x, nrd_exec_response_state *o)
{
    o->next = NULL;
    *(x->out_tail ? &x->out_tail->next : &x->out_head) = o;
    x->out_tail = o;
    if (o->pub.is_final) {
        nrd_exec_request_state *r = nrd_exec_active_find(x, o->pub.id);
        if (r) {
            active_remove(x, r);
        }
    }
}
