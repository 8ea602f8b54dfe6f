/* SPDX-License-Identifier: Apache-2.0
 * executor/ranks/spawn.h - the process of one rank above 0: `nereid worker RANK`. Any thread. */
#ifndef NRD_EXECUTOR_RANKS_SPAWN_H
#define NRD_EXECUTOR_RANKS_SPAWN_H

#include "base/error.h"

#include <stdint.h>
#include <sys/types.h>

/* Starts it with the segment and its socket, which stay the caller's. UNAVAILABLE: it cannot be started. */
nrd_error *nrd_worker_spawn(int32_t rank, int segment_fd, int socket_fd, pid_t *out_pid) NRD_MUST_USE;
/* The program `nereid`; owned (free). */
nrd_error *nrd_worker_program(char **out) NRD_MUST_USE;

#define NRD_MPI_WORLD "mpi-world" /* `nereid mpi-world N`: has MPI_Comm_spawn start N workers (mpi_world.c) */
#define NRD_MPI_WORKER "mpi-worker" /* `nereid mpi-worker NAME`: one of them */
/* Starts the former with its end of a socket; null_fd: any descriptor of /dev/null. */
nrd_error *nrd_world_spawn(int32_t n_ranks, int null_fd, int socket_fd, pid_t *out_pid) NRD_MUST_USE;
/* `nereid mpi-meet` (meet.h) with its end of a socket. */
nrd_error *nrd_meet_spawn(int socket_fd, pid_t *out_pid) NRD_MUST_USE;
/* The descriptor under a number that a worker has nothing else under; closes fd. -1: there are none. */
int nrd_worker_move_up(int fd);

#endif
