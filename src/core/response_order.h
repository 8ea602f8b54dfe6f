/* core/response_order.h - responses in the order of their requests (preserve_ordering). */
#ifndef NRD_CORE_RESPONSE_ORDER_H
#define NRD_CORE_RESPONSE_ORDER_H

#include "core/objects.h"

#include <stdint.h>

nrd_order *nrd_order_new(void);
void nrd_order_unref(nrd_order *o);                /* NULL is fine */
void nrd_order_join(nrd_order *o, nrd_factory *f); /* its responses come after all that joined */
void nrd_order_push(nrd_factory *f, nrd_response *r, uint32_t flags); /* takes r always */
void nrd_order_leave(nrd_factory *f); /* no more responses through it; fine if it never joined */

#endif
