/* SPDX-License-Identifier: Apache-2.0
 * executor/ranks/mpi.h - workers that MPI_Comm_spawn starts, one world of them for each engine.
 *
 * Purpose   With NEREID_SPAWN=mpi workers are Open MPI's processes: its settings (binding, hosts' slots, --mca) hold for them. This
 *           process itself never is one: another, `nereid mpi-world`, calls MPI, so that a world that breaks takes
 *           nobody with it, and libmpi is opened only where it is asked for.
 * Owner     nrd_ranks.
 * Errors    UNSUPPORTED: there is no Open MPI. UNAVAILABLE: it could not start the workers.
 * Lifetime  A world ends with its socket: when it is closed, and with this process, however that ended.
 */
#ifndef NRD_EXECUTOR_RANKS_MPI_H
#define NRD_EXECUTOR_RANKS_MPI_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct nrd_mpi_world {
    pid_t pid; /* 0: none */
    int sock;
} nrd_mpi_world;

bool nrd_mpi_is_asked(void);
/* Starts workers of ranks 1 to n_ranks - 1; sockets[i]: of rank i, which stay the caller's, as segment_fd does. */
nrd_error *nrd_mpi_start(nrd_mpi_world *out, int32_t n_ranks, int segment_fd, const int *sockets) NRD_MUST_USE;
void nrd_mpi_stop(nrd_mpi_world *w); /* waits; nothing to do without a world */

#endif
