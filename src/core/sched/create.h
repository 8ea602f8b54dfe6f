/* SPDX-License-Identifier: Apache-2.0
 * core/sched/create.h - the scheduler that a model's configuration asks for. */
#ifndef NRD_CORE_SCHED_CREATE_H
#define NRD_CORE_SCHED_CREATE_H

#include "base/error.h"
#include "core/objects.h"

/* Borrows the model, whose instances have been made. */
nrd_error *nrd_scheduler_new(nrd_scheduler **out, nrd_model *m) NRD_MUST_USE;

#endif
