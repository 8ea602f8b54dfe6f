/* SPDX-License-Identifier: Apache-2.0
 * executor/ranks/far.h - rank 0's side of an engine's ranks on other hosts.
 *
 * Purpose   Has the other hosts' processes open the engine's memory and start its ranks there, passes on what these say, and
 *           watches over the hosts: one that says nothing for NRD_WIRE_SILENT_MS is lost, with all of its ranks.
 * Owner     nrd_ranks. Each host has a thread here.
 * Errors    UNAVAILABLE: a host is not there or does not answer. What a host could not open comes as its error.
 */
#ifndef NRD_EXECUTOR_RANKS_FAR_H
#define NRD_EXECUTOR_RANKS_FAR_H

#include "executor/ranks/segment.h"

typedef struct nrd_far nrd_far;

/* Whether some of the engine's ranks (config->launched) are elsewhere. Waits until all of them have come. */
nrd_error *nrd_far_is_needed(int32_t size, const nrd_rank_config *config, bool *out) NRD_MUST_USE;
/* Opens the engine there and connects this process, rank 0, with it: afterwards the segment's config says where each rank is. s, and the arguments
 * that it was made with. */
nrd_error *nrd_far_open(nrd_far **out, nrd_segment *s, int32_t size, int32_t n_ahead, size_t comm_bytes,
                        const nrd_rank_config *config) NRD_MUST_USE;
/* Behind nrd_far_open: what rank `rank`, which is elsewhere, says comes out of the other end of `sock` (SOCK_SEQPACKET), as nrd_rank_reply; its last words
 * have `failed` set and are how it was lost, then the socket ends. Takes the socket. */
void nrd_far_attach(nrd_far *f, int32_t rank, int sock);
nrd_error *nrd_far_run(nrd_far *f) NRD_MUST_USE; /* when all are attached */
/* Name and address of the host that a rank is on, nrd_far's; NULL: this host, or no rank. Behind nrd_far_open; any thread. */
const char *nrd_far_host_name(const nrd_far *f, int32_t rank);
void nrd_far_end(nrd_far *f); /* the other hosts hear that the engine has ended; any thread, NULL is fine */
void nrd_far_free(nrd_far *f); /* waits for its threads; NULL is fine */

#endif
