/* SPDX-License-Identifier: Apache-2.0 */
#include "core/sched/create.h"

#include "core/model_internal.h"
#include "core/sched/dynamic_batcher.h"
#include "core/sched/ensemble.h"
#include "core/sched/sequence_batcher.h"

#include "base/error.h"

nrd_error *nrd_scheduler_new(nrd_scheduler **out, nrd_model *m)
{
    switch (m->config->scheduling_choice_case) {
    case INFERENCE__MODEL_CONFIG__SCHEDULING_CHOICE_ENSEMBLE_SCHEDULING:
        return nrd_ensemble_new(out, m);
    case INFERENCE__MODEL_CONFIG__SCHEDULING_CHOICE_SEQUENCE_BATCHING:
        return nrd_sequence_batcher_new(out, m);
    default:
        return nrd_batcher_new(out, m);
    }
}
