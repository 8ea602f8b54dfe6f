/* SPDX-License-Identifier: Apache-2.0
 * frontends/common/header_pattern.h - which headers become request parameters.
 *
 * Purpose   The expression of --http-header-forward-pattern and --grpc-header-forward-pattern. It
 *           may match anywhere in a name; letters match in both cases unless the expression says
 *           (?-i). The syntax is PCRE2's, which holds what Triton's RE2 knows; in builds without
 *           PCRE2 it is POSIX's extended one, with a leading (?i) or (?-i).
 * Owner     Compiled once; nrd_header_pattern_matches may be called from any thread.
 * Errors    INVALID_ARG: not an expression, with the option's name.
 * Lifetime  Borrows nothing.
 */
#ifndef NRD_FRONTENDS_COMMON_HEADER_PATTERN_H
#define NRD_FRONTENDS_COMMON_HEADER_PATTERN_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct nrd_header_pattern nrd_header_pattern;

/* *out is NULL for the empty expression, which matches nothing. */
nrd_error *nrd_header_pattern_new(nrd_header_pattern **out, const char *option,
                                  const char *expression) NRD_MUST_USE;
void nrd_header_pattern_free(nrd_header_pattern *p); /* NULL is fine */
bool nrd_header_pattern_matches(const nrd_header_pattern *p, const char *name, size_t n);

#endif
