/* SPDX-License-Identifier: Apache-2.0
 * frontends/http/compress.h - gzip and deflate for bodies.
 * Stateless, any thread. INVALID_ARG for broken data or data over the limit.
 * Sources: RFC 1950, 1952; RFC 9110 sections 8.4 and 12.5.3. */
#ifndef NRD_FRONTENDS_HTTP_COMPRESS_H
#define NRD_FRONTENDS_HTTP_COMPRESS_H

#include "base/error.h"
#include "base/str.h"
#include "frontends/http/parser.h"

#include <sys/uio.h>

typedef enum {
    NRD_ENCODING_IDENTITY,
    NRD_ENCODING_DEFLATE, /* zlib format */
    NRD_ENCODING_GZIP,
    NRD_ENCODING_UNKNOWN,
} nrd_http_encoding;

const char *nrd_http_encoding_name(nrd_http_encoding e);
/* Content-Encoding; NULL is identity. */
nrd_http_encoding nrd_http_content_encoding(const nrd_view *value);
/* The best of gzip, deflate, identity by the weights of Accept-Encoding; ties: the first named. */
nrd_http_encoding nrd_http_accept_encoding(const nrd_view *value);

nrd_error *nrd_http_deflate(nrd_str *out, nrd_http_encoding e, const struct iovec *parts,
                            int n_parts) NRD_MUST_USE;

#endif
