/* SPDX-License-Identifier: Apache-2.0
 * base/base64.h - bytes inside text: the standard alphabet of RFC 4648 section 4.
 *
 * Purpose   Both directions, for JSON (handles, files of models, embeddings, tables of tokenizers).
 * Owner     Stateless; any thread.
 * Errors    decode answers false: another character, one left over, or text behind the padding.
 */
#ifndef NRD_BASE_BASE64_H
#define NRD_BASE_BASE64_H

#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>

/* Appends; with padding. */
void nrd_base64_encode(const char *in, size_t n, nrd_str *out);

/* Line breaks are skipped; the padding may be missing. out has room for n bytes. */
bool nrd_base64_decode(const char *in, size_t n, char *out, size_t *out_n);

#endif
