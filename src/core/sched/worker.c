/* SPDX-License-Identifier: Apache-2.0 */
#include "core/sched/worker.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { SLOWED = 50 }; /* else nothing would be quick, and never run this way */
#else
enum { SLOWED = 1 };
#endif
enum { WAKE_NS = 50 * 1000 }; /* about what it costs to wake a thread */

nrd_lent_bounds nrd_lent_limits = {
    .quick_run_ns = 20 * 1000 * SLOWED,
#ifdef __SANITIZE_THREAD__
    .wake_ns = 20 * WAKE_NS,
#else
    .wake_ns = WAKE_NS,
#endif
    .chain_ns = 100 * 1000 * SLOWED,
    .bytes = 64 * 1024,
    .many_runs = 100,
};

static _Thread_local nrd_worker *current;
static _Thread_local bool queues_next_step;
static _Thread_local nrd_lent lent;

nrd_worker *nrd_worker_current(void)
{
    return current;
}

void nrd_worker_set_current(nrd_worker *w)
{
    current = w;
}

bool nrd_worker_begin_next_steps(void)
{
    const bool was = queues_next_step;
    queues_next_step = true;
    return was;
}

void nrd_worker_end_next_steps(bool was)
{
    queues_next_step = was;
}

bool nrd_worker_queues_next_step(void)
{
    return queues_next_step;
}

nrd_lent *nrd_lent_here(void)
{
    return &lent;
}
