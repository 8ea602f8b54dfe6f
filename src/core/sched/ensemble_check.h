/* SPDX-License-Identifier: Apache-2.0
 * core/sched/ensemble_check.h - does an ensemble fit the models it uses? */
#ifndef NRD_CORE_SCHED_ENSEMBLE_CHECK_H
#define NRD_CORE_SCHED_ENSEMBLE_CHECK_H

#include "base/error.h"
#include "core/objects.h"

/* Checks types and shapes along the graph against the models, now loaded; marks the ensemble as
 * decoupled when one of them is. INVALID_ARG names the tensor and the models. */
nrd_error *nrd_ensemble_check(nrd_context *ctx, nrd_config *cfg) NRD_MUST_USE;

#endif
