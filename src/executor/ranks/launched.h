/* SPDX-License-Identifier: Apache-2.0
 * executor/ranks/launched.h - ranks that mpirun or srun started, instead of processes of our own.
 *
 * Purpose   Rank 0 hands the descriptors of a worker to the process of another rank, which starts it as a child:
 *           a worker that is lost or an engine that is unloaded leaves the rank ready for the next one.
 * Owner     Process-wide; any thread that opens an executor. A worker ends with its socket, and with its rank's
 *           process.
 * Errors    INVALID_ARG: the engine has another number of ranks than were started. UNAVAILABLE: a rank did not
 *           come, or has ended. UNSUPPORTED: it is another build.
 */
#ifndef NRD_EXECUTOR_RANKS_LAUNCHED_H
#define NRD_EXECUTOR_RANKS_LAUNCHED_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

/* Set for a worker whose parent is a rank's process: it ends with that. */
#define NRD_RANK_PARENT "NEREID_RANK_PARENT"

/* Whether this process is rank 0 of several that a launcher started. */
bool nrd_launched(void);
/* Whether an engine of so many ranks suits the launcher's, and the n_ids of the launcher's ranks (participant_ids) that
 * are to run it; n_ids 0: the first ones. */
nrd_error *nrd_launched_check(int32_t n_ranks, const int32_t *ids, int32_t n_ids) NRD_MUST_USE;
/* Has the launcher's rank `launched` start `nereid worker rank` with these descriptors, which stay the caller's. */
nrd_error *nrd_launched_start(int32_t launched, int32_t rank, int segment_fd, int socket_fd) NRD_MUST_USE;

#endif
