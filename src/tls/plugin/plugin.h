/* SPDX-License-Identifier: Apache-2.0
 * tls/plugin/plugin.h - nereid_tls.so from inside: its server's side (openssl.c), its client's (client.c), reasons (why.c).
 *
 * Purpose   What the files share. Only nrd_tls_ops_1 leaves the plug-in.
 * Owner     As tls/plugin.h.
 */
#ifndef NRD_TLS_PLUGIN_PLUGIN_H
#define NRD_TLS_PLUGIN_PLUGIN_H

#include "tls/plugin.h"

extern const nrd_tls_ops nrd_tls_ops_1;

/* `what 'path': reason of OpenSSL`; path may be NULL. Empties OpenSSL's list of errors. */
void nrd_tls_why(char *why, size_t n, const char *what, const char *path);

struct bufferevent *nrd_tls_client_new(struct event_base *base, const char *host, const char *ca, char *why,
                                       size_t why_n);
void nrd_tls_client_why(struct bufferevent *bev, char *why, size_t why_n);

#endif
