/* SPDX-License-Identifier: Apache-2.0
 * core/sched/worker.h - worker threads, and the slots of a model where they work.
 *
 * Purpose   A slot is one instance, or those that share a device, and the duty to run them. A
 *           worker is the thread in a slot; every slot has exactly one, which sleeps when the queue
 *           is empty. Workers may change slots, also those of different models
 *           (nrd_batcher_follow), so a worker looks at its slot again whenever it woke.
 * Owner     A slot: its model. A worker: itself.
 * Lifetime  nrd_workers_join (sched/workers.h) ends both.
 */
#ifndef NRD_CORE_SCHED_WORKER_H
#define NRD_CORE_SCHED_WORKER_H

#include "core/objects.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>

/* As many executions in a row must have ended at once before a worker keeps a step to itself. */
enum { NRD_QUICK_ENOUGH = 16 };

struct nrd_worker_slot {
    nrd_model *model;         /* borrowed: joined before the model goes */
    nrd_instance **instances; /* one, or all of a device */
    uint32_t n_instances, next;
    nrd_request **batch; /* what its worker has taken */
    uint32_t cap;
    int n_quick_ends; /* how often in a row an execution ended at once after its last answer */
    bool started;
    sem_t closed; /* posted when its worker has left for good */
    pthread_t last;
};

struct nrd_worker {
    nrd_worker *next;      /* among the sleeping ones of a queue; guarded by its lock */
    nrd_worker_slot *slot; /* changed by the worker itself or, while it sleeps, by who moves it */
    unsigned n_moved;      /* by others; tells, as an address may come back */
    sem_t wake;
    bool queues_next_step; /* a step of an ensemble is queued, after the one before it ended */
    uint64_t next_step_ns; /* when this batch first did that; 0: not yet */
    nrd_batcher *kept;     /* where it queued a step that it runs itself, shared unless it is its
                            * own queue; NULL: nowhere */
    bool has_common_name;  /* its name no longer tells an instance */
};

/* The worker that this thread is; NULL: another thread. */
nrd_worker *nrd_worker_current(void);
void nrd_worker_set_current(nrd_worker *w);
/* Around the queuing of steps whose predecessor has just given its last answer: a worker that will
 * be free in a moment may run such a step itself. Returns what end gets. */
bool nrd_worker_begin_next_steps(void);
void nrd_worker_end_next_steps(bool was);

#endif
