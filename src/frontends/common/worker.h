/* SPDX-License-Identifier: Apache-2.0
 * frontends/common/worker.h - threads for work that is too long for an event loop.
 *
 * Purpose   A loop thread serves thousands of connections, so what takes longer than one or
 *           two milliseconds for one of them (long prompts, opening a tokenizer, JSON of large tensors,
 *           compression) is a job here. Each client has a queue of its own and clients take turns:
 *           a client that sends a hundred long prompts delays only its own. Long jobs have threads of
 *           their own, which yield the processor to those that tokens wait for.
 * Owner     Any thread may submit and cancel. run and done are called by a worker, without a lock.
 * Errors    UNAVAILABLE: too many jobs wait, of this client or of all; or the pool has stopped.
 * Lifetime  A job is the caller's memory, borrowed from a successful submit until done is called or
 *           cancel answers true. Stop before whatever done posts to is freed.
 *
 *   submit --> waits --> run --> done(ran = true)
 *                |--cancel (true)--> the caller's again
 *                \--stop-----------> done(ran = false)
 */
#ifndef NRD_FRONTENDS_COMMON_WORKER_H
#define NRD_FRONTENDS_COMMON_WORKER_H

#include "base/error.h"
#include "base/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    NRD_WORKERS_MAX_JOBS = NRD_LIMIT_WORKER_JOBS,       /* that wait, of all clients */
    NRD_WORKERS_MAX_CLIENT_JOBS = NRD_LIMIT_CLIENT_JOBS, /* of one */
    NRD_WORKERS_MAX_THREADS = 64
};

typedef struct nrd_workers nrd_workers;

typedef struct nrd_job {
    void (*run)(struct nrd_job *job);
    /* Called once for each job that was not cancelled; the last use of the job. */
    void (*done)(struct nrd_job *job, bool ran);
    bool is_long; /* a second of work, maybe; set before submit, and the same until the end */

    /* private to worker.c */
    struct nrd_job *next;
    uint64_t client, since_ns;
} nrd_job;

typedef struct nrd_workers_stats {
    size_t n_waiting, n_running;
    uint64_t n_done;          /* jobs that ran */
    uint64_t wait_ns, run_ns; /* of those, together */
} nrd_workers_stats;

/* n_threads: up to NRD_WORKERS_MAX_THREADS; 0: half of the processors, 2 to 8. As many again for long jobs. The threads
 * start with the first job. */
nrd_error *nrd_workers_new(nrd_workers **out, size_t n_threads) NRD_MUST_USE;
/* No more jobs: done(ran = false) for those that wait; returns when those that run are over. NULL
 * is fine. */
void nrd_workers_stop(nrd_workers *w);
void nrd_workers_free(nrd_workers *w); /* stops; NULL is fine */

/* client: a key of the client that the job is for; the same for all its jobs. */
nrd_error *nrd_workers_submit(nrd_workers *w, nrd_job *job, uint64_t client) NRD_MUST_USE;
/* true: the job waited and will not run, nor will done be called. */
bool nrd_workers_cancel(nrd_workers *w, nrd_job *job);

nrd_workers_stats nrd_workers_look(nrd_workers *w);

#endif
