/* SPDX-License-Identifier: Apache-2.0
 * nereid/ranks.h - programs that a launcher of ranks started (mpirun, srun).
 *
 * Purpose   `mpirun -n N PROGRAM` starts the same program N times. Rank 0 is the one that serves or prints; the
 *           others start, on its behalf, the processes that compute engines' ranks.
 * Owner     Called once by the main thread, when the options are known and before a port is opened.
 * Source    Open MPI, Slurm and MPICH say in the environment which rank a process is.
 */
#ifndef NEREID_RANKS_H
#define NEREID_RANKS_H

#include "nereid/export.h"

#include <stddef.h>
#include <stdint.h>

/* Returns in rank 0, and in a program that was started alone. In the other ranks it ends the process: with status 0
 * when rank 0 has ended, with 1 and a message where this rank cannot take part. At exit rank 0 waits up to 2 seconds for
 * ranks that have not come yet, so that they see its end. */
NRD_API void nrd_ranks_enter(void);
/* The same, but rank 0 is another program, which this one is about to become. */
NRD_API void nrd_ranks_enter_above_0(void);

/* `nereid mpi-world N` and `nereid mpi-worker NAME`, which executors start with NEREID_SPAWN=mpi; the exit status. */
NRD_API int nrd_mpi_world_main(int32_t n);
NRD_API int nrd_mpi_worker_main(const char *name);
/* `nereid mpi-meet`, which ranks on several hosts start to find rank 0; the exit status. */
NRD_API int nrd_mpi_meet_main(void);
/* Which Open MPI this machine has, "Open MPI v4.1.4", or why none can be opened; for people. size: room in `out`, with the end. Opens the library,
 * which stays open: for programs that end soon. */
NRD_API void nrd_mpi_describe(char *out, size_t size);

#endif
