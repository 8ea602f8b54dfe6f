/* SPDX-License-Identifier: Apache-2.0
 * tools/load/http_client.h - requests to one server, any number at a time, from one thread.
 *
 * Purpose   Connections are kept and used again; a request gets one that is idle, or a new one. What
 *           comes is told at once, event by event.
 * Owner     One thread: everything is called by it, callbacks come within wait and post.
 * Errors    Of opening: the URL, the address, TLS. Of a request: `end` with a reason.
 * Lifetime  open/free. A body is borrowed until `end`: it is sent again where a kept connection turns out
 *           to have been closed by the server meanwhile.
 */
#ifndef NRD_TOOLS_LOAD_HTTP_CLIENT_H
#define NRD_TOOLS_LOAD_HTTP_CLIENT_H

#include "base/str.h"
#include "tools/load/client.h"

/* Adds "NAME: VALUE" to the lines of headers; option: its name, for the error. */
nrd_error *nrd_http_add_header(nrd_str *headers, const char *option, const char *value) NRD_MUST_USE;

/* Opening fails in a build without libevent. */
extern const nrd_client_ops nrd_http_carrier;

#endif
