/* SPDX-License-Identifier: Apache-2.0
 * core/sched/ensemble.h - a graph of models. */
#ifndef NRD_CORE_SCHED_ENSEMBLE_H
#define NRD_CORE_SCHED_ENSEMBLE_H

#include "base/error.h"
#include "core/objects.h"

nrd_error *nrd_ensemble_new(nrd_scheduler **out, nrd_model *m) NRD_MUST_USE;

#endif
