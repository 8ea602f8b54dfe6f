/* SPDX-License-Identifier: Apache-2.0
 * executor/ranks/meet.h - how a launcher's processes on several hosts find rank 0's.
 *
 * Purpose   Rank 0 listens on a TCP port; where, and a key without which nobody is let in, comes to the others in one of these ways:
 *           NEREID_RANKS_ADDRESS=HOST:PORT in all of them; a LeaderWorkerSet's LWS_LEADER_ADDRESS; Open MPI, which the
 *           launcher's ranks ask once (a process of its own, `nereid mpi-meet`, so that they are no MPI processes
 *           later); else Slurm's list of nodes. In all but Open MPI's the key is NEREID_RANKS_KEY.
 * Owner     Once, by the main thread. Errors: UNAVAILABLE, UNSUPPORTED with what to do.
 */
#ifndef NRD_EXECUTOR_RANKS_MEET_H
#define NRD_EXECUTOR_RANKS_MEET_H

#include "executor/ranks/place.h"
#include "executor/ranks/tcp.h"

enum { NRD_CARD_ADDRESSES = 16, NRD_CARD_NUMBER = 46, NRD_CARD_KEY = 33 };

/* What everyone must know of rank 0. Plain bytes. */
typedef struct nrd_card {
    uint16_t port;
    char key[NRD_CARD_KEY];
    int32_t n; /* addresses, any of which may do */
    char address[NRD_CARD_ADDRESSES][NRD_TCP_ADDRESS];
} nrd_card;

/* Every process of a job over several hosts, once. Rank 0: *listener becomes the socket that listens; the others: -1. */
nrd_error *nrd_meet(const nrd_place *p, nrd_card *card, int *listener) NRD_MUST_USE;
/* Tries all addresses of the card. */
nrd_error *nrd_meet_connect(const nrd_card *card, int *out) NRD_MUST_USE;

#define NRD_MPI_MEET "mpi-meet" /* `nereid mpi-meet`, which nrd_meet starts (mpi_meet.c) */

#endif
