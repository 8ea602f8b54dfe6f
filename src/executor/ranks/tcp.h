/* SPDX-License-Identifier: Apache-2.0
 * executor/ranks/tcp.h - TCP between hosts of ranks: open, send and receive whole structures.
 *
 * Owner     Stateless; a descriptor is its caller's (close). One thread sends and one receives at a time.
 * Errors    UNAVAILABLE, with the address and the reason.
 * Limits    A peer that is gone without a word is noticed after about 12 seconds (keepalive); who must know earlier
 *           sends signs of life.
 */
#ifndef NRD_EXECUTOR_RANKS_TCP_H
#define NRD_EXECUTOR_RANKS_TCP_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NRD_TCP_ADDRESS = 256 }; /* bytes of a host's name or number, with the end */

/* On all addresses of this host, IPv6 ones where there are any. *port 0: any that is free; the one that was taken. */
nrd_error *nrd_tcp_listen(uint16_t *port, int *out) NRD_MUST_USE;
/* host: a name or a number. Tries each of its addresses for `ms` at most. */
nrd_error *nrd_tcp_connect(const char *host, uint16_t port, int ms, int *out) NRD_MUST_USE;
/* Who waits at the listener for `ms` at most; -1: nobody came. */
int nrd_tcp_accept(int listener, int ms);

/* All bytes or none that count: false where the peer is gone, or where a time limit (nrd_tcp_limit) is over. */
bool nrd_tcp_send(int fd, const void *data, size_t bytes);
bool nrd_tcp_receive(int fd, void *out, size_t bytes);
void nrd_tcp_limit(int fd, int ms); /* for all bytes of a call; 0: none */

/* The number of the other end's address; "?". */
void nrd_tcp_peer(int fd, char out[NRD_TCP_ADDRESS]);

#endif
