/* SPDX-License-Identifier: Apache-2.0
 * frontends/grpc/listener.h - a listening socket that somebody else opened takes the place of the library's.
 *
 * Purpose   The gRPC library (1.51) opens its port itself: it takes connections from others
 *           (grpc_server_add_channel_from_fd, without TLS and without limits on handshakes), but no socket that
 *           listens. So it is told to open a port that is nobody's. The program has a listen() of its own, which the
 *           libraries find before the C library's: there the library's descriptor becomes one of the socket that was
 *           passed, before the library looks at it. For all other sockets it changes nothing.
 * Owner     The thread that starts the service.
 * Errors    UNAVAILABLE: the port cannot be opened, or the descriptor not be replaced.
 */
#ifndef NRD_FRONTENDS_GRPC_LISTENER_H
#define NRD_FRONTENDS_GRPC_LISTENER_H

#include "base/error.h"

#include <grpc/grpc_security.h>

/* The server takes connections from `listening`, which is borrowed and stays open. */
nrd_error *nrd_grpc_add_listener(grpc_server *server, int listening,
                                 grpc_server_credentials *creds) NRD_MUST_USE;

#endif
