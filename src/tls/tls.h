/* SPDX-License-Identifier: Apache-2.0
 * tls/tls.h - TLS for the programs: opens the plug-in, keeps a server's certificate up to date.
 *
 * Purpose   A server's side of TLS over sockets that do not block; the front end that has the
 *           connections does their input and output (nrd_tls_ops). Certificates may be replaced while
 *           the server runs.
 * Owner     nrd_tls_new, nrd_tls_reload and nrd_tls_free: one thread. nrd_tls_conn_new: any.
 * Errors    UNSUPPORTED: the build or the installation has no nereid_tls.so. INVALID_ARG: a file that
 *           cannot be used, with its path.
 * Lifetime  Freed after the last connection.
 */
#ifndef NRD_TLS_TLS_H
#define NRD_TLS_TLS_H

#include "base/error.h"
#include "tls/plugin.h"

typedef struct nrd_tls nrd_tls;

/* The plug-in's functions; it is opened once and stays. */
nrd_error *nrd_tls_load(const nrd_tls_ops **out) NRD_MUST_USE;

/* Reads the files (PEM; copied paths). client_ca NULL or "": clients bring no certificate; else those
 * without one that it signed are refused. */
nrd_error *nrd_tls_new(nrd_tls **out, const char *cert, const char *key, const char *client_ca) NRD_MUST_USE;
void nrd_tls_free(nrd_tls *t); /* NULL is fine */

/* Reads the files again where they have changed since the last look, or always: `force`. New connections
 * get the new certificate; on error they get the old one. *out_changed: another certificate is used. */
nrd_error *nrd_tls_reload(nrd_tls *t, bool force, bool *out_changed) NRD_MUST_USE;

const nrd_tls_ops *nrd_tls_functions(const nrd_tls *t);
void *nrd_tls_conn_new(nrd_tls *t, int fd); /* as conn_new of the plug-in */

#endif
