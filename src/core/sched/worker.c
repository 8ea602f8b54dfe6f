/* SPDX-License-Identifier: Apache-2.0 */
#include "core/sched/worker.h"

static _Thread_local nrd_worker *current;

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
    bool was = current && current->queues_next_step;
    if (current) {
        current->queues_next_step = true;
    }
    return was;
}

void nrd_worker_end_next_steps(bool was)
{
    if (current) {
        current->queues_next_step = was;
    }
}
