/* SPDX-License-Identifier: Apache-2.0
 * frontends/passed_sockets.h - listening sockets that the program which started this one has opened.
 *
 * Purpose   systemd's socket activation, and any program with the same protocol: the ports are open from the
 *           start of the machine, whoever connects waits in their queues until the models are loaded, and over
 *           restarts. Ports below 1024 need no capability here.
 * Rules     Descriptors 3 to 2 + LISTEN_FDS, for the process LISTEN_PID alone. LISTEN_FDNAMES, parted by colons,
 *           names the protocol of each: http, grpc, metrics. Sockets without such a name (empty, "unknown", or the
 *           name of a unit, as nereid.socket) get the protocols that no name has taken, in this order.
 *           Each is a stream socket that listens on an IPv4 or IPv6 address, one a protocol.
 * Owner     The main thread, before any other thread runs.
 * Errors    INVALID_ARG names the variable or the descriptor, and what was expected.
 * Sources   sd_listen_fds(3).
 */
#ifndef NRD_FRONTENDS_PASSED_SOCKETS_H
#define NRD_FRONTENDS_PASSED_SOCKETS_H

#include "frontends/options.h"

/* Sets the sockets of `o`, and its addresses and ports to theirs. Nothing where none were passed. The sockets
 * stay open, and as they are, until the process ends. */
nrd_error *nrd_passed_sockets_take(nrd_options *o) NRD_MUST_USE;

/* Whether programs that this one becomes or starts have them too. */
void nrd_passed_sockets_inherit(const nrd_options *o, bool yes);

#endif
