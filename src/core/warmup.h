/* SPDX-License-Identifier: Apache-2.0
 * core/warmup.h - samples of model_warmup, run before a model is ready. */
#ifndef NRD_CORE_WARMUP_H
#define NRD_CORE_WARMUP_H

#include "base/error.h"
#include "core/objects.h"

/* Runs the samples of model_warmup on every instance, warmup.c. */
nrd_error *nrd_model_warm_up(nrd_model *m) NRD_MUST_USE;

#endif
