/* Responses in the order of their requests, however the requests overtake each other while they
 * run (preserve_ordering). Every request has a turn; responses of a turn that is not first wait in
 * it. Whoever brings a response that may go delivers it, and those behind it that may go then; no
 * lock is held across a callback, and only one thread delivers at a time. */
#include "core/response_order.h"

#include "core/response.h"

#include "base/error.h"
#include "base/log.h"
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

struct nrd_turn {
    nrd_turn *next;
    item *first, **last;
    bool is_over; /* no further response will come */
};

struct nrd_order {
    atomic_int refs;
    pthread_mutex_t mu; /* guards what follows; a leaf */
    nrd_turn *head, **tail;
    bool delivering;
};

nrd_order *nrd_order_new(void)
{
    nrd_order *o = nrd_xcalloc(1, sizeof *o);
    atomic_init(&o->refs, 1);
    pthread_mutex_init(&o->mu, NULL);
    o->tail = &o->head;
    return o;
}

void nrd_order_unref(nrd_order *o)
{
    if (o && atomic_fetch_sub(&o->refs, 1) == 1) {
        NRD_ASSERT(!o->head, "every turn belongs to a factory, which shares the order");
        pthread_mutex_destroy(&o->mu);
        free(o);
    }
}

void nrd_order_join(nrd_order *o, nrd_factory *f)
{
    nrd_turn *t = nrd_xcalloc(1, sizeof *t);

    atomic_fetch_add(&o->refs, 1);
    f->order = o;
    f->turn = t;
    t->last = &t->first;
    pthread_mutex_lock(&o->mu);
    *o->tail = t;
    o->tail = &t->next;
    pthread_mutex_unlock(&o->mu);
}

/* Unlocks. */
static void deliver_locked(nrd_order *o)
{
    if (o->delivering) { /* that thread sees what is new before it stops */
        pthread_mutex_unlock(&o->mu);
        return;
    }
    o->delivering = true;
    while (o->head && (o->head->first || o->head->is_over)) {
        nrd_turn *t = o->head;
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
        i->factory->response_fn((TRITONSERVER_InferenceResponse *)(void *)i->response, i->flags,
                                i->factory->response_userp);
        nrd_factory_unref(i->factory);
        free(i);
        pthread_mutex_lock(&o->mu);
    }
    o->delivering = false;
    pthread_mutex_unlock(&o->mu);
}

void nrd_order_push(nrd_factory *f, nrd_response *r, uint32_t flags)
{
    nrd_order *o = f->order;
    item *i = nrd_xcalloc(1, sizeof *i);

    atomic_fetch_add(&o->refs, 1); /* the callback may end the last other user */
    i->factory = nrd_factory_ref(f);
    i->response = r;
    i->flags = flags;
    pthread_mutex_lock(&o->mu);
    if (!f->turn) { /* its last response went before */
        pthread_mutex_unlock(&o->mu);
        NRD_LOG_ERROR("a response after the last one of its request; dropped");
        nrd_response_free(r);
        nrd_factory_unref(f);
        free(i);
        nrd_order_unref(o);
        return;
    }
    *f->turn->last = i;
    f->turn->last = &i->next;
    if (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) {
        f->turn->is_over = true;
        f->turn = NULL;
    }
    deliver_locked(o);
    nrd_order_unref(o);
}

void nrd_order_leave(nrd_factory *f)
{
    nrd_order *o = f->order;

    f->order = NULL;
    if (!o) {
        return;
    }
    pthread_mutex_lock(&o->mu);
    if (f->turn) {
        f->turn->is_over = true;
        f->turn = NULL;
        deliver_locked(o);
    } else {
        pthread_mutex_unlock(&o->mu);
    }
    nrd_order_unref(o);
}
