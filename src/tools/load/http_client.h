/* SPDX-License-Identifier: Apache-2.0
 * tools/load/http_client.h - requests to one server, any number at a time, from one thread.
 *
 * Purpose   Connections are kept and used again; a request gets one that is idle, or a new one. What
 *           comes is told at once, event by event.
 * Owner     One thread: everything is called by it, callbacks come within nrd_http_client_wait and
 *           nrd_http_client_post.
 * Errors    Of opening: the URL, the address, TLS. Of a request: `end` with a reason.
 * Lifetime  open/free. A body is borrowed until `end`: it is sent again where a kept connection turns out
 *           to have been closed by the server meanwhile.
 */
#ifndef NRD_TOOLS_LOAD_HTTP_CLIENT_H
#define NRD_TOOLS_LOAD_HTTP_CLIENT_H

#include "base/str.h"
#include "tools/load/client.h"

typedef struct nrd_http_client nrd_http_client;

/* Adds "NAME: VALUE" to the lines of headers; option: its name, for the error. */
nrd_error *nrd_http_add_header(nrd_str *headers, const char *option, const char *value) NRD_MUST_USE;

/* The strings of the configuration are copied. UNSUPPORTED: a build without libevent. */
nrd_error *nrd_http_client_open(nrd_http_client **out,
                                const nrd_client_config *c) NRD_MUST_USE;
void nrd_http_client_free(nrd_http_client *h); /* without `end` of what is under way */
void nrd_http_client_post(nrd_http_client *h, void *tag, const char *body, size_t n);
/* Serves connections until something has happened, or until that time (base/clock.h). */
void nrd_http_client_wait(nrd_http_client *h, uint64_t until_ns);
size_t nrd_http_client_connections(const nrd_http_client *h); /* opened so far */

/* The same, for who may speak gRPC instead. */
extern const nrd_client_ops nrd_http_carrier;

#endif
