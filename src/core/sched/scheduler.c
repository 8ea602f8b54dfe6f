/* SPDX-License-Identifier: Apache-2.0 */
#include "core/sched/scheduler.h"

#include <stdlib.h>

void nrd_scheduler_sweep(nrd_scheduler *s)
{
    if (s && s->ops->sweep) {
        s->ops->sweep(s);
    }
}

void nrd_scheduler_drain(nrd_scheduler *s)
{
    if (s && s->ops->drain) {
        s->ops->drain(s);
    }
}

void nrd_scheduler_abandon(nrd_scheduler *s)
{
    if (s && s->ops->abandon) {
        s->ops->abandon(s);
    }
}

void nrd_scheduler_stop(nrd_scheduler *s)
{
    if (s && s->ops->stop) {
        s->ops->stop(s);
    }
}

void nrd_scheduler_free(nrd_scheduler *s)
{
    if (s) {
        s->ops->free(s);
    }
}

nrd_sequence_states *nrd_scheduler_first_states(const nrd_scheduler *s)
{
    return s->ops->first_states ? s->ops->first_states(s) : NULL;
}
