/* core/worker.h - the threads that run instances.
 *
 * A worker is a seat: one instance, or those that share a device, and the duty to run them. A hand
 * is the thread that sits there; every seat has exactly one, which sleeps when the queue is empty.
 * Hands may change places (nrd_sched_follow), so a hand looks at its seat again whenever it woke.
 */
#ifndef NRD_CORE_WORKER_H
#define NRD_CORE_WORKER_H

#include "base/error.h"
#include "core/objects.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>

struct nrd_worker {
    nrd_model *model;         /* borrowed: joined before the model goes */
    nrd_instance **instances; /* one, or all of a device */
    uint32_t n_instances, next;
    nrd_request **batch; /* what its hand has taken */
    uint32_t cap;
    int promptness; /* how often in a row an execution ended at once after its last answer */
    bool started;
    sem_t closed; /* posted when its hand has left for good */
    pthread_t last;
};

struct nrd_hand {
    struct nrd_hand *next; /* among the sleeping ones of a queue; guarded by its lock */
    nrd_worker *seat;      /* changed by the hand itself or, while it sleeps, by who moves it */
    unsigned n_moved;      /* by others; tells, as an address may come back */
    sem_t wake;
    bool chaining;        /* a step of an ensemble is being queued after the one before it ended */
    uint64_t chained_ns;  /* when this batch first did that; 0: not yet */
    nrd_sched *owed;      /* where it queued a step without waking anybody; NULL: nowhere */
    bool is_named_freely; /* its name no longer tells an instance */
};

nrd_error *nrd_workers_start(nrd_model *m) NRD_MUST_USE;
void nrd_workers_join(nrd_model *m); /* after nrd_sched_stop */
/* Around the queuing of steps whose predecessor has just given its last answer: a hand that will be
 * free in a moment may see to such a step itself. Returns what end gets. */
bool nrd_hand_begin_chain(void);
void nrd_hand_end_chain(bool was);
/* true: this thread is a hand that sees to the step which it now queues in s, nobody needs to be
 * woken. Called with the lock of s held. */
bool nrd_hand_keeps(nrd_sched *s, uint64_t now_ns);

#endif
