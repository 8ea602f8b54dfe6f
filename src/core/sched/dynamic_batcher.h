/* core/sched/dynamic_batcher.h - a queue in front of a model's instances, which forms batches. */
#ifndef NRD_CORE_SCHED_DYNAMIC_BATCHER_H
#define NRD_CORE_SCHED_DYNAMIC_BATCHER_H

#include "base/error.h"
#include "core/objects.h"

#include <stdbool.h>
#include <stdint.h>

/* A queue in front of a model's instances, sched/dynamic_batcher.c. */
nrd_error *nrd_sched_new(nrd_sched **out, nrd_model *m) NRD_MUST_USE;
/* One that is fed by a sequence batcher, with the batching of its oldest strategy. */
nrd_sched *nrd_sched_new_inner(nrd_model *m,
                               const Inference__ModelSequenceBatching__StrategyOldest *o);
void nrd_sched_enqueue_inner(nrd_sched *s, nrd_request *r);              /* takes always */
nrd_error *nrd_sched_enqueue(nrd_sched *s, nrd_request *r) NRD_MUST_USE; /* takes on success */
/* Waits for work of the hand's seat; 0: stopped, or it has another seat now. At most cap requests
 * that may run as one batch. */
uint32_t nrd_sched_take(nrd_sched *s, nrd_hand *h, nrd_request **batch, uint32_t cap);
/* Sees to the step that h queued in `to` without waking anybody. If nothing waits in the queue of
 * its own seat, it changes places with a hand that sleeps at `to`; else it wakes one. */
void nrd_sched_follow(nrd_sched *to, nrd_hand *h);
bool nrd_sched_waits(const nrd_sched *s);   /* for a batch to become larger */
bool nrd_sched_is_open(const nrd_sched *s); /* its hands may change places with those of others */
/* Gives the request a place among the responses, if the model keeps them in order. */
void nrd_sched_keep_order(nrd_sched *s, nrd_request *r);
void nrd_sched_sweep(nrd_sched *s); /* answers cancelled and expired requests */
void nrd_sched_stop(nrd_sched *s);  /* refuses new requests, fails those that wait */
nrd_sched *nrd_sched_ref(nrd_sched *s);
void nrd_sched_unref(nrd_sched *s);
uint32_t nrd_sched_max_batch(const nrd_sched *s);

#endif
