/* SPDX-License-Identifier: Apache-2.0
 * frontends/common/inflate.h - what clients compressed, up to a limit.
 * Stateless, any thread. INVALID_ARG for broken data or data over the limit, which names the option.
 * Sources: RFC 1950, 1952. */
#ifndef NRD_FRONTENDS_COMMON_INFLATE_H
#define NRD_FRONTENDS_COMMON_INFLATE_H

#include "base/error.h"
#include "frontends/common/claim.h"

#include <stdbool.h>
#include <stddef.h>

/* A gzip or else a zlib stream. *out is owned (free); at most max bytes, which are added to the claim, also
 * where it fails. */
nrd_error *nrd_inflate(char **out, size_t *out_n, nrd_claim *claim, bool is_gzip, const char *data, size_t n,
                       size_t max, const char *option) NRD_MUST_USE;

#endif
