/* SPDX-License-Identifier: Apache-2.0
 * frontends/grpc/accept.h - the gRPC port goes on listening when descriptors run out.
 *
 * Purpose   The gRPC library (1.51) gives a port up for ever after any error of accept4 but EAGAIN: one
 *           moment without descriptors, and nobody is let in until the server starts again. The program
 *           therefore has an accept4 of its own, which the libraries find before the C library's. On the
 *           guarded port it closes what cannot be taken, by a descriptor that is kept for this, and
 *           tells the library that nothing waits. On all others it changes nothing.
 * Owner     Any thread.
 */
#ifndef NRD_FRONTENDS_GRPC_ACCEPT_H
#define NRD_FRONTENDS_GRPC_ACCEPT_H

/* Before the port is opened; 0: none. */
void nrd_grpc_guard_port(int port);

#endif
