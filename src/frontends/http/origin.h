/* SPDX-License-Identifier: Apache-2.0
 * frontends/http/origin.h - whether a browser's request comes from where it may.
 *
 * Purpose   A page of another site can send requests to a server that its reader reaches, and a name
 *           that is pointed at this machine makes that page the server's own in the browser's eyes.
 *           Browsers say both in header fields: Origin and Host.
 * Owner     Pure functions.
 * Sources   RFC 6454 (Origin), RFC 9110 section 7.2 (Host).
 */
#ifndef NRD_FRONTENDS_HTTP_ORIGIN_H
#define NRD_FRONTENDS_HTTP_ORIGIN_H

#include "frontends/http/parser.h"
#include "frontends/options.h"

/* No Origin field, that of the server itself (proto, else http or https, then the request's Host), or one of
 * `allowed` (name: an origin; "*" is not looked at: it lets pages read, not change). */
bool nrd_http_origin_may_change(const nrd_http_head *head, const char *proto, const nrd_option_list *allowed);

/* Whether the body may be read as JSON: programs may leave its type out or say another, as curl does; a page
 * (Origin or Sec-Fetch-Site) must name application/json, which a form cannot and which asks browsers first. */
bool nrd_http_type_is_json(const nrd_http_head *head);

/* No Host field, or a name that the server goes by. A server at a loopback address goes by
 * localhost, names below it, 127.0.0.0/8, [::1], that address, and `hosts` (name: without port; "*":
 * any); at another address by any name unless there are `hosts`: then by them and by addresses. */
bool nrd_http_host_is_ours(const nrd_http_head *head, const char *address,
                           const nrd_option_list *hosts);

/* localhost, 127.x.y.z or ::1. */
bool nrd_http_is_loopback(const char *address);

#endif
