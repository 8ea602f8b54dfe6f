/* SPDX-License-Identifier: Apache-2.0
 * core/sched/strategy.h - custom batching: a library that decides what shares a batch. */
#ifndef NRD_CORE_SCHED_STRATEGY_H
#define NRD_CORE_SCHED_STRATEGY_H

#include "base/error.h"
#include "core/objects.h"

#include <stdbool.h>

/* Custom batching, sched/strategy.c. *out NULL: the model has no such library. */
nrd_error *nrd_strategy_new(nrd_strategy **out, nrd_model *m) NRD_MUST_USE;
void nrd_strategy_free(nrd_strategy *s); /* NULL is fine */
void *nrd_strategy_begin(nrd_strategy *s, const nrd_model *m);
bool nrd_strategy_includes(nrd_strategy *s, const nrd_request *r, void *userp);
void nrd_strategy_end(nrd_strategy *s, const nrd_model *m, void *userp);

#endif
