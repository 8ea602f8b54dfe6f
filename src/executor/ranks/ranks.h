/* SPDX-License-Identifier: Apache-2.0
 * executor/ranks/ranks.h - the processes of an executor's ranks above 0.
 *
 * Purpose   An engine of several ranks runs in as many processes of this host: this one is rank 0, the others
 *           are `nereid worker`, started here or, where mpirun or srun started ranks, by their processes. Rank 0 plans; the others compute their share of each step.
 * Owner     One executor. The functions are rank 0's loop thread's and its opening thread's; on_lost comes
 *           from a thread of its own.
 * Errors    What a worker could not open comes back as its error, with the rank's number. UNAVAILABLE: a
 *           rank ended, or shows no sign of life for some seconds.
 * Lifetime  No worker outlives this process: each ends when its socket is closed.
 */
#ifndef NRD_EXECUTOR_RANKS_RANKS_H
#define NRD_EXECUTOR_RANKS_RANKS_H

#include "engine/run/parcel.h"
#include "executor/ranks/segment.h"

typedef struct nrd_ranks nrd_ranks;

/* Starts ranks 1 to size - 1. n_ahead, comm_bytes: of nrd_segment_new. on_lost: told once, when one of them is lost; what it waits for in the device
 * then fails. */
nrd_error *nrd_ranks_start(nrd_ranks **out, int32_t size, int32_t n_ahead, size_t comm_bytes,
                           const nrd_rank_config *config,
                           void (*on_lost)(void *user, const char *reason), void *user) NRD_MUST_USE;
/* How this process's runner takes part. */
nrd_runner_rank nrd_ranks_runner(nrd_ranks *r);
/* Waits until all have loaded their engines. *least_free: device memory of the rank that has least. */
nrd_error *nrd_ranks_wait_loaded(nrd_ranks *r, uint64_t *least_free) NRD_MUST_USE;
/* Has them make their caches, and waits until they have. This process makes its own in between: ranks on devices meet then,
 * and some do not go on before all are there. */
nrd_error *nrd_ranks_ask_kv(nrd_ranks *r, int32_t n_blocks, int32_t n_host_blocks) NRD_MUST_USE;
nrd_error *nrd_ranks_wait_kv(nrd_ranks *r) NRD_MUST_USE;
/* Of a rank on another host: its name and address, until the ranks are freed. NULL: it is on this host, or there is no such rank. */
const char *nrd_ranks_far_host(const nrd_ranks *r, int32_t rank);
/* Ends all waits of all ranks for ever: one of them lives but does not get on. Any thread; NULL is fine. */
void nrd_ranks_give_up(nrd_ranks *r);
/* Which adapter (whole) lies in a slot from the next step on; NULL: none. */
nrd_error *nrd_ranks_place_adapter(nrd_ranks *r, int32_t slot, const nrd_lora *l) NRD_MUST_USE;
/* Has the others put their shares of these blocks where it says, behind the steps that they were given (parcel.h). */
nrd_error *nrd_ranks_give_blocks(nrd_ranks *r, const nrd_parcel_place *place, const int32_t *blocks,
                                 int32_t n_blocks) NRD_MUST_USE;
/* Waits until they have: NO_MEMORY or UNAVAILABLE where one could not. */
nrd_error *nrd_ranks_wait_given(nrd_ranks *r, const nrd_parcel_place *place) NRD_MUST_USE;
/* Ends the workers and waits for them; no step may be under way. NULL is fine for both. */
void nrd_ranks_stop(nrd_ranks *r);
void nrd_ranks_free(nrd_ranks *r); /* after stop, and when the runner that shares its memory is gone */

#endif
