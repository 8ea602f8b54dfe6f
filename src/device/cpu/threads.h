/* SPDX-License-Identifier: Apache-2.0
 * device/cpu/threads.h - a pool that runs one function on all its threads.
 *
 * Purpose   Fork-join with barriers inside. The caller is thread 0; n - 1 workers wait, first
 *           spinning for some tens of microseconds, then asleep on a futex: an idle pool costs
 *           nothing. Workers are pinned, one to a processor of the process's affinity mask, each to
 *           a core of its own as long as there are any, spread over the memory nodes. The caller keeps its
 *           mask; a run that finds it on the processor of a worker moves it to another one.
 * Owner     Any thread may call nrd_threads_run; calls are served one after another.
 * Errors    nrd_threads_new: UNAVAILABLE if the system gives no threads.
 */
#ifndef NRD_DEVICE_CPU_THREADS_H
#define NRD_DEVICE_CPU_THREADS_H

#include "base/error.h"

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct nrd_threads nrd_threads;

typedef struct nrd_thread {
    nrd_threads *pool;
    int id, n;
    uint32_t target; /* of the next barrier */
} nrd_thread;

typedef void (*nrd_threads_fn)(void *user, nrd_thread *self);

/* The processors of `set`, the first one of every core before the others, which share a core's
 * arithmetic with it; both kinds from each memory node in turn. Gives how many there are; *out_n_cores
 * how many cores. `topology` is the system's folder of processors; a processor that it says nothing
 * about is a core of node 0. */
int nrd_threads_order_cpus(const char *topology, const cpu_set_t *set, int out[CPU_SETSIZE],
                           int *out_n_cores);
int nrd_threads_default(void); /* cores in the affinity mask, cgroup quota */
/* n_threads 0: the default, divided by n_shares. The pool is the share-th of n_shares that have as many
 * threads each, so that pools of several processes do not use the same processors. */
nrd_error *nrd_threads_new(nrd_threads **out, int n_threads, int share, int n_shares) NRD_MUST_USE;
void nrd_threads_free(nrd_threads *p);
int nrd_threads_size(const nrd_threads *p);
void nrd_threads_run(nrd_threads *p, nrd_threads_fn fn, void *user);
void nrd_threads_barrier(nrd_thread *self); /* every thread of the run must come */

/* Work counted instead of threads: `finish` adds n to a counter that began at 0 and says whether it has reached the target,
 * `wait` returns when it has. A thread that the system runs late delays no other. */
bool nrd_threads_finish(nrd_thread *self, _Atomic uint32_t *count, uint32_t n, uint32_t target);
void nrd_threads_wait(nrd_thread *self, _Atomic uint32_t *count, uint32_t target);

#endif
