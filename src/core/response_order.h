/* SPDX-License-Identifier: Apache-2.0
 * core/response_order.h - responses in the order of their requests (preserve_ordering).
 *
 * Purpose   Every request has an entry; responses of an entry that is not first wait in it, however
 *           the requests overtake each other while they run.
 * Owner     Counted: the scheduler and every response factory that joined. Any thread.
 */
#ifndef NRD_CORE_RESPONSE_ORDER_H
#define NRD_CORE_RESPONSE_ORDER_H

#include "core/objects.h"

#include <stdbool.h>
#include <stdint.h>

/* Delivers a response, or flags alone (r NULL), and gives the share of the factory back. */
typedef void nrd_deliver_fn(nrd_factory *f, nrd_response *r, uint32_t flags);

/* A response that waits; room for it is inside the response, so that waiting needs no memory. */
typedef struct nrd_order_item {
    struct nrd_order_item *next;
    nrd_factory *factory; /* shared */
    nrd_response *response;
    uint32_t flags;
} nrd_order_item;

nrd_response_order *nrd_response_order_new(nrd_deliver_fn *deliver); /* NULL: no memory */
nrd_response_order *nrd_response_order_ref(nrd_response_order *o);
void nrd_response_order_unref(nrd_response_order *o); /* NULL is fine */
/* Responses of the new entry come after those of all that joined before. NULL: no memory. */
nrd_order_entry *nrd_response_order_join(nrd_response_order *o);
/* Delivers the response as soon as it is first, which may be now, in this thread. Takes r and the
 * caller's share of f on success. false: the entry is over. The last response ends the entry, and
 * sets *entry to NULL. room: of r; r NULL: flags alone, which tell something with the last one only. */
bool nrd_response_order_push(nrd_response_order *o, nrd_order_entry **entry, nrd_factory *f,
                             nrd_response *r, uint32_t flags, nrd_order_item *room);
/* No more responses will come; fine if the entry is over. */
void nrd_response_order_leave(nrd_response_order *o, nrd_order_entry **entry);

#endif
