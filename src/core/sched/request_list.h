/* SPDX-License-Identifier: Apache-2.0
 * core/sched/request_list.h - requests that wait, in order: a list through their fields next and prev.
 *
 * Owner     Whoever has the list: a request is in one at most.
 */
#ifndef NRD_CORE_SCHED_REQUEST_LIST_H
#define NRD_CORE_SCHED_REQUEST_LIST_H

#include "core/request_internal.h"

typedef struct nrd_request_list { /* zeroed: empty */
    nrd_request *head, *tail;
} nrd_request_list;

static inline void nrd_request_list_push(nrd_request_list *l, nrd_request *r)
{
    r->next = NULL;
    r->prev = l->tail;
    *(l->tail ? &l->tail->next : &l->head) = r;
    l->tail = r;
}

static inline void nrd_request_list_remove(nrd_request_list *l, nrd_request *r)
{
    *(r->prev ? &r->prev->next : &l->head) = r->next;
    *(r->next ? &r->next->prev : &l->tail) = r->prev;
    r->next = r->prev = NULL;
}

/* The first; there is one. */
static inline nrd_request *nrd_request_list_pop(nrd_request_list *l)
{
    nrd_request *r = l->head;
    nrd_request_list_remove(l, r);
    return r;
}

#endif
