/* SPDX-License-Identifier: Apache-2.0
 * hub/plugin/digest.h - SHA-256, and git's SHA-1 of a blob, while a file comes in.
 * One thread at a time. Source: FIPS 180-4; git-hash-object: SHA-1 of "blob SIZE\0" and the content. */
#ifndef NRD_HUB_PLUGIN_DIGEST_H
#define NRD_HUB_PLUGIN_DIGEST_H

#include "base/error.h"
#include "hub/plugin.h"

typedef struct nrd_hub_digest nrd_hub_digest;

nrd_error *nrd_hub_digest_new(nrd_hub_digest **out, nrd_hub_hash_kind kind, uint64_t size) NRD_MUST_USE;
void nrd_hub_digest_free(nrd_hub_digest *d); /* NULL is fine */
nrd_error *nrd_hub_digest_add(nrd_hub_digest *d, const void *data, size_t n) NRD_MUST_USE;
/* Ends it. "" for NRD_HUB_HASH_NONE. */
nrd_error *nrd_hub_digest_end(nrd_hub_digest *d, char out_hex[65]) NRD_MUST_USE;

#endif
