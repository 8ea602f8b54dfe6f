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

typedef struct item {
    struct item *next;
    nrd_factory *factory; /* shared */
    nrd_response *response;
    uint32_t flags;
} item;

struct nrd_order_entry {
    nrd_order_entry *next;
    item *first, **last;
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
    nrd_response_order *o = nrd_xcalloc(1, sizeof *o);
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
    nrd_order_entry *t = nrd_xcalloc(1, sizeof *t);

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
        item *i = t->first;
        if (!i) {
            o->head = t->next;
            o->tail = o->head ? o->tail : &o->head;
            free(t);
            continue;
        }
        t->first = i->next;
        t->last = t->first ? t->last : &t->first;
        pthread_mutex_unlock(&o->mu);
        o->deliver(i->factory, i->response, i->flags);
        free(i);
        pthread_mutex_lock(&o->mu);
    }
    o->delivering = false;
    pthread_mutex_unlock(&o->mu);
}

bool nrd_response_order_push(nrd_response_order *o, nrd_order_entry **entry, nrd_factory *f,
                             nrd_response *r, uint32_t flags)
{
    item *i = nrd_xcalloc(1, sizeof *i);

    *i = (item){.factory = f, .response = r, .flags = flags};
    nrd_response_order_ref(o); /* the callback may end the last other user */
    pthread_mutex_lock(&o->mu);
    nrd_order_entry *t = *entry;
    if (!t) {
        pthread_mutex_unlock(&o->mu);
        free(i);
        nrd_response_order_unref(o);
        return false;
    }
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
