/* SPDX-License-Identifier: Apache-2.0
 * frontends/grpc/credentials.h - the certificates of the gRPC port.
 *
 * Purpose   Plain, TLS or mutual TLS as the options say. Certificates are read again when their files
 *           have changed: each new connection looks.
 * Owner     new, free: the thread that starts the service; in between gRPC's threads.
 * Errors    INVALID_ARG: files that are missing or cannot be used.
 * Lifetime  Freed after grpc_shutdown.
 */
#ifndef NRD_FRONTENDS_GRPC_CREDENTIALS_H
#define NRD_FRONTENDS_GRPC_CREDENTIALS_H

#include "base/error.h"
#include "frontends/options.h"

#include <grpc/grpc_security.h>

typedef struct nrd_grpc_certs nrd_grpc_certs;

/* Borrows the options until free. *out NULL without TLS; *out_creds: the caller releases it. */
nrd_error *nrd_grpc_certs_new(nrd_grpc_certs **out, const nrd_options *o,
                              grpc_server_credentials **out_creds) NRD_MUST_USE;
void nrd_grpc_certs_free(nrd_grpc_certs *c); /* NULL is fine */

#endif
