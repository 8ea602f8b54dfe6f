/* SPDX-License-Identifier: Apache-2.0 */
#include "core/cancel.h"

#include "base/pool.h"

#include <stdatomic.h>

struct nrd_cancel {
    atomic_int refs;
    _Atomic bool set;
    nrd_cancel *parent; /* shared */
    _Atomic(nrd_account *) account; /* shared; NULL: the parent's, or nobody has asked for it */
};

nrd_cancel *nrd_cancel_new(nrd_cancel *parent)
{
    nrd_cancel *c = nrd_pool_zget(sizeof *c);
    if (!c) {
        return NULL;
    }
    atomic_init(&c->refs, 1);
    c->parent = parent ? nrd_cancel_ref(parent) : NULL;
    return c;
}

nrd_cancel *nrd_cancel_ref(nrd_cancel *c)
{
    atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    return c;
}

void nrd_cancel_unref(nrd_cancel *c)
{
    while (c && atomic_fetch_sub(&c->refs, 1) == 1) {
        nrd_cancel *parent = c->parent;
        nrd_account_unref(atomic_load(&c->account));
        nrd_pool_put(c, sizeof *c);
        c = parent;
    }
}

void nrd_cancel_set(nrd_cancel *c)
{
    atomic_store(&c->set, true);
}

bool nrd_cancel_is_set(const nrd_cancel *c)
{
    for (; c; c = c->parent) {
        if (atomic_load(&c->set)) {
            return true;
        }
    }
    return false;
}

nrd_account *nrd_cancel_account(nrd_cancel *c)
{
    nrd_account *a = atomic_load(&c->account), *none = NULL;
    while (!a && c->parent) {
        c = c->parent;
        a = atomic_load(&c->account);
    }
    if (a || !(a = nrd_account_new())) {
        return a;
    }
    if (!atomic_compare_exchange_strong(&c->account, &none, a)) { /* another thread was first */
        nrd_account_unref(a);
        a = none;
    }
    return a;
}

void nrd_cancel_set_account(nrd_cancel *c, nrd_account *a)
{
    atomic_store(&c->account, nrd_account_ref(a));
}
