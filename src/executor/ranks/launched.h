/* SPDX-License-Identifier: Apache-2.0
 * executor/ranks/launched.h - ranks that mpirun or srun started, instead of processes of our own.
 *
 * Purpose   Rank 0 hands the descriptors of a worker to the process of another rank, which starts it as a child:
 *           a worker that is lost or an engine that is unloaded leaves the rank ready for the next one.
 *           Ranks of other hosts are reached through the first one there (host.h).
 * Owner     Process-wide; any thread that opens an executor. A worker ends with its socket, and with its rank's
 *           process.
 * Errors    INVALID_ARG: the engine has another number of ranks than were started. UNAVAILABLE: a rank did not
 *           come, or has ended. UNSUPPORTED: it is another build.
 */
#ifndef NRD_EXECUTOR_RANKS_LAUNCHED_H
#define NRD_EXECUTOR_RANKS_LAUNCHED_H

#include "base/error.h"
#include "executor/ranks/place.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Set for a worker whose parent is a rank's process: it ends with that. */
#define NRD_RANK_PARENT "NEREID_RANK_PARENT"

/* Whether this process is rank 0 of several that a launcher started. */
bool nrd_launched(void);
/* Whether an engine of so many ranks suits the launcher's, and the n_ids of the launcher's ranks (participant_ids) that
 * are to run it; n_ids 0: the first ones. */
nrd_error *nrd_launched_check(int32_t n_ranks, const int32_t *ids, int32_t n_ids) NRD_MUST_USE;
/* Which of the launcher's ranks runs an engine's rank, unless participant_ids says so; behind nrd_launched_check. */
int32_t nrd_launched_of(int32_t rank, int32_t n_ranks);
/* How many of an engine's ranks share this host's processors with the first of them. */
int32_t nrd_launched_here(int32_t n_ranks);
/* Has the launcher's rank `launched`, of this host, start `nereid worker rank` with these descriptors, which stay the caller's. *out_pid: of
 * a child of this process; 0: of another's. */
nrd_error *nrd_launched_start(int32_t launched, int32_t rank, int segment_fd, int socket_fd, pid_t *out_pid) NRD_MUST_USE;

/* Whether the launcher's ranks are on several hosts. */
bool nrd_launched_over_hosts(void);
/* Waits until the launcher's rank has come; *out: its host (others.h), 0: this one. */
nrd_error *nrd_launched_host(int32_t launched, int32_t *out) NRD_MUST_USE;
/* For how long a process waits for another of its job. */
int32_t nrd_launched_come_ms(const nrd_place *p);

#endif
