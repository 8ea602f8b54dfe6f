/* SPDX-License-Identifier: Apache-2.0
 * frontends/http/forwarded.h - who asks, where a proxy stands in between.
 *
 * Purpose   The address of a request's client and the scheme it used, from X-Forwarded-For and X-Forwarded-Proto or
 *           from Forwarded. They are believed as far as trusted proxies wrote them: from the last one back to the
 *           first address that is no such proxy. What came before that is the client's own word.
 * Owner     Pure functions.
 * Errors    None: what is not well formed, and both forms in one request (a proxy that writes one hands on a client's
 *           other), leaves what is known without it.
 * Sources   RFC 7239; MDN, X-Forwarded-For, section "Selecting an IP address".
 */
#ifndef NRD_FRONTENDS_HTTP_FORWARDED_H
#define NRD_FRONTENDS_HTTP_FORWARDED_H

#include "frontends/common/network.h"
#include "frontends/http/parser.h"

/* peer: the connection's other end. */
nrd_address nrd_http_forwarded_for(const nrd_http_head *h, const nrd_address *peer, const nrd_networks *trusted);
/* "http" or "https", as a trusted peer says; NULL: nothing is known. */
const char *nrd_http_forwarded_proto(const nrd_http_head *h, const nrd_address *peer, const nrd_networks *trusted);

#endif
