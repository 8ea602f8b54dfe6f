/* SPDX-License-Identifier: Apache-2.0
 * core/sched/sequence_batcher.h - requests of one correlation id go to one slot of one instance, in
 * order. */
#ifndef NRD_CORE_SCHED_SEQUENCE_BATCHER_H
#define NRD_CORE_SCHED_SEQUENCE_BATCHER_H

#include "base/error.h"
#include "core/objects.h"

nrd_error *nrd_sequence_batcher_new(nrd_scheduler **out, nrd_model *m) NRD_MUST_USE;

#endif
