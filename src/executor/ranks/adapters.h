/* SPDX-License-Identifier: Apache-2.0
 * executor/ranks/adapters.h - LoRA adapters on their way from rank 0 to the others.
 *
 * Purpose   Rank 0 decides which adapter lies in which slot. It says so between the steps, in their order, so that no
 *           step meets an adapter that is not there, and all ranks hold the same ones: the whole adapter once for all, in
 *           messages of a few MB, of which each rank keeps its share.
 * Owner     send: rank 0's loop thread; the others: the thread that reads messages.
 * Errors    UNAVAILABLE: the ranks were stopped, or no memory.
 */
#ifndef NRD_EXECUTOR_RANKS_ADAPTERS_H
#define NRD_EXECUTOR_RANKS_ADAPTERS_H

#include "engine/run/runner.h"
#include "executor/ranks/segment.h"

/* l NULL: the slot is empty now. */
nrd_error *nrd_rank_send_adapter(nrd_segment *s, int32_t slot, const nrd_lora *l) NRD_MUST_USE;

/* The other side. */
typedef struct nrd_rank_adapters nrd_rank_adapters;

/* spec: of all ranks. Borrows device, spec and runner, for the life of the process; takes memory when the first adapter
 * comes. */
nrd_error *nrd_rank_adapters_new(nrd_rank_adapters **out, nrd_device *dev, nrd_runner *runner,
                                 const nrd_model_spec *spec, int32_t rank) NRD_MUST_USE;
nrd_error *nrd_rank_adapters_take(nrd_rank_adapters *a, const void *message, size_t bytes) NRD_MUST_USE;

#endif
