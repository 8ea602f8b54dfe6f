/* SPDX-License-Identifier: Apache-2.0
 * core/sched/rate_limiter.h - shared resources of instances. A NULL limiter limits nothing. */
#ifndef NRD_CORE_SCHED_RATE_LIMITER_H
#define NRD_CORE_SCHED_RATE_LIMITER_H

#include "base/error.h"
#include "core/objects.h"
#include "core/options.h"

nrd_limiter *nrd_limiter_new(const nrd_setting *given); /* borrows; NULL: no memory */
void nrd_limiter_free(nrd_limiter *l);
nrd_error *nrd_limiter_add(nrd_limiter *l, const nrd_instance *inst) NRD_MUST_USE; /* borrows */
void nrd_limiter_remove(nrd_limiter *l, const nrd_instance *inst);
void nrd_limiter_acquire(nrd_limiter *l, nrd_instance *inst); /* waits */
void nrd_limiter_release(nrd_limiter *l, nrd_instance *inst);

#endif
