/* SPDX-License-Identifier: Apache-2.0
 * core/sched/worker.h - worker threads, and the slots of a model where they work.
 *
 * Purpose   A slot is one instance, or those that share a device, and the duty to run them. A
 *           worker is the thread in a slot; every slot has exactly one, which sleeps when the queue
 *           is empty. Workers may change slots, also those of different models
 *           (nrd_batcher_follow), so a worker looks at its slot again whenever it woke.
 *           A thread that a front end has lent may run a request in the slot of a sleeping worker,
 *           which it takes from the queue of sleepers for that time: one thread runs a slot.
 * Owner     A slot: its model. A worker: itself. nrd_lent: its thread.
 * Lifetime  nrd_workers_join (sched/workers.h) ends both.
 */
#ifndef NRD_CORE_SCHED_WORKER_H
#define NRD_CORE_SCHED_WORKER_H

#include "core/host_policy.h"
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
    int pause;        /* runs that the last slow one of those cost */
    int n_quick_runs; /* how often in a row an execution was over within quick_run_ns, with its
                       * requests released; counted where lent threads may run it */
    bool started;
    sem_t closed; /* posted when its worker has left for good */
    pthread_t last;
};

struct nrd_worker {
    nrd_worker *next;      /* among the sleeping ones of a queue; guarded by its lock */
    nrd_worker_slot *slot; /* changed by the worker itself or, while it sleeps, by who moves it */
    unsigned n_moved;      /* by others; tells, as an address may come back */
    sem_t wake;
    uint64_t next_step_ns; /* when this batch first did that; 0: not yet */
    nrd_batcher *kept;     /* where it queued a step that it runs itself, shared unless it is its
                            * own queue; NULL: nowhere */
    bool has_common_name;  /* its name no longer tells an instance */
    nrd_host_home home;    /* where its thread runs for instances without a host policy */
};

/* The worker that this thread is; NULL: another thread. */
nrd_worker *nrd_worker_current(void);
void nrd_worker_set_current(nrd_worker *w);
/* Around the queuing of steps whose predecessor has just given its last answer: a thread that will
 * be free in a moment may run such a step itself. Returns what end gets. */
bool nrd_worker_begin_next_steps(void);
void nrd_worker_end_next_steps(bool was);
bool nrd_worker_queues_next_step(void);

/* What this thread runs for models although it is no worker. */
typedef struct nrd_lent {
    bool is_lent; /* by its front end */
    bool is_running;
    uint64_t begin_ns;    /* of its first run for the request that it has sent */
    nrd_worker *worker;   /* borrowed, and asleep: `request` runs next, in its slot; NULL: none */
    nrd_request *request; /* taken from its sender, in no queue */
} nrd_lent;

nrd_lent *nrd_lent_here(void); /* never NULL */

/* Bounds of what lent threads run, for the sake of what else they have to do. Fixed; a test may give
 * itself time on a crowded machine before it starts a server. */
typedef struct nrd_lent_bounds {
    uint64_t quick_run_ns; /* an execution, as a rule */
    uint64_t wake_ns;      /* more for an execution on a worker, which wakes who waits for the answer */
    uint64_t chain_ns;     /* no further step of an ensemble after that time */
    uint64_t bytes;        /* of a request's inputs */
    int many_runs;         /* quick ones in a row; one slow run after them is the kernel's */
} nrd_lent_bounds;

extern nrd_lent_bounds nrd_lent_limits;

#endif
