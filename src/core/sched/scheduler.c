#include "core/sched/scheduler.h"

#include "core/model.h"
#include "core/sched/dynamic_batcher.h"
#include "core/sched/ensemble.h"
#include "core/sched/sequence_batcher.h"

#include "base/error.h"

#include <stdlib.h>

nrd_error *nrd_scheduler_new(nrd_scheduler **out, nrd_model *m)
{
    switch (m->config->scheduling_choice_case) {
    case INFERENCE__MODEL_CONFIG__SCHEDULING_CHOICE_ENSEMBLE_SCHEDULING:
        return nrd_ensemble_new(out, m);
    case INFERENCE__MODEL_CONFIG__SCHEDULING_CHOICE_SEQUENCE_BATCHING:
        return nrd_seq_batcher_new(out, m);
    default:
        return nrd_batcher_new(out, m);
    }
}

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

nrd_seq_states *nrd_scheduler_first_states(const nrd_scheduler *s)
{
    return s->ops->first_states ? s->ops->first_states(s) : NULL;
}
