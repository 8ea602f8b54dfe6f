/* SPDX-License-Identifier: Apache-2.0
 * core/sched/scheduler.h - what stands between a model and the requests for it.
 *
 * Purpose   One interface for the dynamic batcher, the sequence batcher and the ensemble. A model
 *           has one scheduler; code outside this folder does not depend on its kind.
 * Owner     The model. Any thread, except where an operation says otherwise.
 * Errors    enqueue and released: the client's; making one: the configuration's.
 * Lifetime  Made after the model's instances; stopped, then its workers end, then freed.
 */
#ifndef NRD_CORE_SCHED_SCHEDULER_H
#define NRD_CORE_SCHED_SCHEDULER_H

#include "base/error.h"
#include "core/objects.h"

#include <stdbool.h>
#include <stdint.h>

/* An entry that is NULL: there is nothing to do. */
typedef struct nrd_scheduler_ops {
    /* Takes the request on success; it may be answered and gone before this returns. */
    nrd_error *(*enqueue)(nrd_scheduler *s, nrd_request *r);
    /* Waits for a batch that slot number `slot` of the model is to run; 0: stopped, or the worker
     * has another slot now. cap: max_batch. NULL where there are no instances. */
    uint32_t (*take)(nrd_scheduler *s, uint32_t slot, nrd_worker *w, nrd_request **batch,
                     uint32_t cap);
    /* A request whose `owner` is this scheduler was released. *goes_on: it was queued again; the
     * caller must not use it any more. Error: these flags are not allowed; the request stays with
     * the backend. */
    nrd_error *(*released)(nrd_scheduler *s, nrd_request *r, uint32_t flags, bool *goes_on);
    /* Answers cancelled, expired and idle requests. */
    void (*sweep)(nrd_scheduler *s);
    /* Work that the server waits for before it unloads models; NULL: the requests in flight. */
    size_t (*n_live)(nrd_scheduler *s);
    /* Takes nothing new on; what has begun goes on. */
    void (*drain)(nrd_scheduler *s);
    /* The model was taken out of service: nothing goes on beyond what is queued. */
    void (*abandon)(nrd_scheduler *s);
    /* Refuses new requests and ends the takers. */
    void (*stop)(nrd_scheduler *s);
    /* States as a sequence begins with, for the warm-up; NULL: the model has none. */
    nrd_sequence_states *(*first_states)(const nrd_scheduler *s);
    void (*free)(nrd_scheduler *s);
} nrd_scheduler_ops;

/* The first member of each kind. */
struct nrd_scheduler {
    const nrd_scheduler_ops *ops;
    nrd_response_order *order; /* shared; NULL: responses may overtake each other */
    uint32_t max_batch;        /* requests that one call of take gives at most */
    bool by_instance;          /* slots belong to instances: each needs a worker of its own */
};

/* All of them: NULL is fine. */
void nrd_scheduler_sweep(nrd_scheduler *s);
void nrd_scheduler_drain(nrd_scheduler *s);
void nrd_scheduler_abandon(nrd_scheduler *s);
void nrd_scheduler_stop(nrd_scheduler *s);
void nrd_scheduler_free(nrd_scheduler *s);
nrd_sequence_states *nrd_scheduler_first_states(const nrd_scheduler *s);

#endif
