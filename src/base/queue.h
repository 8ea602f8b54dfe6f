/* SPDX-License-Identifier: Apache-2.0
 * base/queue.h - bounded queue of pointers between threads.
 *
 * Purpose   Messages from many producers to one or more consumers.
 * Owner     Any thread may push and pop.
 * Errors    push reports a full or closed queue, or no memory, by returning false; the caller keeps the item.
 * Lifetime  close wakes every waiter; items still inside are popped normally, then pop gives NULL.
 */
#ifndef NRD_BASE_QUEUE_H
#define NRD_BASE_QUEUE_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct nrd_queue nrd_queue;

/* max_items 0: unbounded. */
nrd_error *nrd_queue_new(nrd_queue **out, size_t max_items) NRD_MUST_USE;
/* Room for n items at a time: the pushes of so many need no memory. */
nrd_error *nrd_queue_reserve(nrd_queue *q, size_t n) NRD_MUST_USE;
bool nrd_queue_push(nrd_queue *q, void *item); /* takes on success */
/* Waits at most timeout_ns (UINT64_MAX: for ever). NULL: time-out, or closed and empty. */
void *nrd_queue_pop(nrd_queue *q, uint64_t timeout_ns);
void nrd_queue_close(nrd_queue *q);
void nrd_queue_free(nrd_queue *q);     /* must be empty or its items unowned */

#endif
