/* SPDX-License-Identifier: Apache-2.0
 * executor/ranks/spawn.h - the process of one rank above 0: `nereid worker RANK`. Any thread. */
#ifndef NRD_EXECUTOR_RANKS_SPAWN_H
#define NRD_EXECUTOR_RANKS_SPAWN_H

#include "base/error.h"

#include <stdint.h>
#include <sys/types.h>

/* Starts it with the segment and its socket, which stay the caller's. UNAVAILABLE: it cannot be started. */
nrd_error *nrd_worker_spawn(int32_t rank, int segment_fd, int socket_fd, pid_t *out_pid) NRD_MUST_USE;
/* The descriptor under a number that a worker has nothing else under; closes fd. -1: there are none. */
int nrd_worker_move_up(int fd);

#endif
