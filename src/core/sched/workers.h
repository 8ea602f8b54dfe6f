/* SPDX-License-Identifier: Apache-2.0
 * core/sched/workers.h - the worker threads of a model.
 *
 * Errors    INTERNAL: no more threads.
 */
#ifndef NRD_CORE_SCHED_WORKERS_H
#define NRD_CORE_SCHED_WORKERS_H

#include "base/error.h"
#include "core/objects.h"

nrd_error *nrd_workers_start(nrd_model *m) NRD_MUST_USE; /* after its scheduler was made */
/* Runs what the schedulers have left to this thread (nrd_lent_here), with the steps of ensembles that
 * follow; nothing inside such a run. No lock may be held. */
void nrd_workers_run_lent(void);
void nrd_workers_join(nrd_model *m);                     /* after nrd_scheduler_stop */

#endif
