/* SPDX-License-Identifier: Apache-2.0
 * The thread that brings a response whose turn it is delivers it, and then those whose turn comes
 * by this; no lock is held across a callback, and only one thread delivers at a time. */
#include "core/response_order.h"

#include "base/error.h"
#include "base/mem.h"
#include "triton/core/tritonserver.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

struct nrd_order_entry {
    nrd_order_entry *next;
    nrd_order_item *first, **last;
    nrd_order_item end; /* room for a last one of flags alone */
    bool is_over; /* no further response will come */
};

struct nrd_response_order {
    atomic_int refs;
    nrd_deliver_fn *deliver;
    pthread_mutex_t mu; /* guards what follows; a leaf */
    nrd_order_entry *head, **tail;
    bool delivering;
};

nrd_response_order *nrd_response_order_new(nrd_deliver_fn *deliver)
{
    nrd_response_order *o = calloc(1, sizeof *o);
    if (!o) {
        return NULL;
    }
    atomic_init(&o->refs, 1);
    o->deliver = deliver;
    pthread_mutex_init(&o->mu, NULL);
    o->tail = &o->head;
    return o;
}

nrd_response_order *nrd_response_order_ref(nrd_response_order *o)
{
    atomic_fetch_add(&o->refs, 1);
    return o;
}

void nrd_response_order_unref(nrd_response_order *o)
{
    if (o && atomic_fetch_sub(&o->refs, 1) == 1) {
        NRD_ASSERT(!o->head, "every entry belongs to a factory, which shares the order");
        pthread_mutex_destroy(&o->mu);
        free(o);
    }
}

nrd_order_entry *nrd_response_order_join(nrd_response_order *o)
{
    nrd_order_entry *t = calloc(1, sizeof *t);

    if (!t) {
        return NULL;
    }
    t->last = &t->first;
    pthread_mutex_lock(&o->mu);
    *o->tail = t;
    o->tail = &t->next;
    pthread_mutex_unlock(&o->mu);
    return t;
}

/* Unlocks. */
static void deliver_locked(nrd_response_order *o)
{
    if (o->delivering) { /* that thread sees what is new before it stops */
        pthread_mutex_unlock(&o->mu);
        return;
    }
    o->delivering = true;
    while (o->head && (o->head->first || o->head->is_over)) {
        nrd_order_entry *t = o->head;
        if (!t->first) {
            o->head = t->next;
            o->tail = o->head ? o->tail : &o->head;
            free(t);
            continue;
        }
        const nrd_order_item i = *t->first; /* delivering ends what it lies in */
        t->first = i.next;
        t->last = t->first ? t->last : &t->first;
        pthread_mutex_unlock(&o->mu);
        o->deliver(i.factory, i.response, i.flags);
        pthread_mutex_lock(&o->mu);
    }
    o->delivering = false;
    pthread_mutex_unlock(&o->mu);
}

bool nrd_response_order_push(nrd_response_order *o, nrd_order_entry **entry, nrd_factory *f,
                             nrd_response *r, uint32_t flags, nrd_order_item *room)
{
    nrd_response_order_ref(o); /* the callback may end the last other user */
    pthread_mutex_lock(&o->mu);
    nrd_order_entry *t = *entry;
    if (!t) {
        pthread_mutex_unlock(&o->mu);
        nrd_response_order_unref(o);
        return false;
    }
    nrd_order_item *i = r ? room : &t->end;
    *i = (nrd_order_item){.factory = f, .response = r, .flags = flags};
    *t->last = i;
    t->last = &i->next;
    if (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) {
        t->is_over = true;
        *entry = NULL;
    }
    deliver_locked(o);
    nrd_response_order_unref(o);
    return true;
}

void nrd_response_order_leave(nrd_response_order *o, nrd_order_entry **entry)
{
    pthread_mutex_lock(&o->mu);
    if (*entry) {
        (*entry)->is_over = true;
        *entry = NULL;
        deliver_locked(o);
    } else {
        pthread_mutex_unlock(&o->mu);
    }
}
