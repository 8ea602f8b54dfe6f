/* SPDX-License-Identifier: Apache-2.0
 * core/sched/dynamic_batcher.h - the queue in front of a model's instances, which forms batches.
 *
 * Purpose   The scheduler of most models, and what a sequence batcher with the strategy `oldest`
 *           puts before each instance.
 * Owner     Counted: its model, or the sequence batcher, and workers that run one of its steps.
 * Errors    UNAVAILABLE: the queue is full or closed.
 */
#ifndef NRD_CORE_SCHED_DYNAMIC_BATCHER_H
#define NRD_CORE_SCHED_DYNAMIC_BATCHER_H

#include "base/error.h"
#include "core/objects.h"

#include <stdbool.h>
#include <stdint.h>

nrd_error *nrd_batcher_new(nrd_scheduler **out, nrd_model *m) NRD_MUST_USE;

/* What a worker does after an execution with the step that it kept (worker.kept) for itself. If
 * nothing waits in the queue of its own slot, it changes places with a worker that sleeps at the
 * step's queue; else it wakes one. */
void nrd_batcher_follow(nrd_worker *w);

/* The worker whose slot a lent thread has used (nrd_lent.worker) sleeps on, or is woken for what has
 * come meanwhile. The model may be gone afterwards. */
void nrd_batcher_give_back(nrd_worker *w);

/* One that is fed by a sequence batcher, with the batching of its oldest strategy. */
nrd_error *nrd_batcher_new_inner(nrd_batcher **out, nrd_model *m,
                                 const Inference__ModelSequenceBatching__StrategyOldest *o) NRD_MUST_USE;
void nrd_batcher_enqueue_inner(nrd_batcher *s, nrd_request *r); /* always takes the request */
/* Waits for work of the worker's slot; 0: stopped, or it has another slot now. At most cap requests
 * that may run as one batch. */
uint32_t nrd_batcher_take(nrd_batcher *s, nrd_worker *w, nrd_request **batch, uint32_t cap);
void nrd_batcher_sweep(nrd_batcher *s); /* answers cancelled and expired requests */
void nrd_batcher_stop(nrd_batcher *s);  /* refuses new requests, fails those that wait */
void nrd_batcher_unref(nrd_batcher *s); /* NULL is fine */

#endif
