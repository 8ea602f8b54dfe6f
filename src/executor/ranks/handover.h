/* SPDX-License-Identifier: Apache-2.0
 * executor/ranks/handover.h - a worker's two descriptors from one process of this host to another, and how its start went.
 * Stateless; over connected SOCK_SEQPACKET sockets of AF_UNIX between processes of one build. */
#ifndef NRD_EXECUTOR_RANKS_HANDOVER_H
#define NRD_EXECUTOR_RANKS_HANDOVER_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Which rank of an engine is to run with this segment and socket, which stay the caller's. false: the other end is gone. */
bool nrd_rank_hand(int sock, int32_t rank, int segment_fd, int socket_fd);
/* fds: the segment's and the socket's, the caller's from then on. false: the other end is gone, or sent something else. */
bool nrd_rank_take(int sock, int32_t *rank, int fds[2]);

/* Says how a start went. Takes err; NULL: well. */
bool nrd_rank_say(int sock, nrd_error *err);
/* Waits for that. The error that was said; UNAVAILABLE with `gone`: the other end is gone. */
nrd_error *nrd_rank_hear(int sock, const char *gone) NRD_MUST_USE;

/* The process at the other end, if it is this user's; 0. */
pid_t nrd_rank_peer(int sock);

#endif
