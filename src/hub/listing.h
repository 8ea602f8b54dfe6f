/* SPDX-License-Identifier: Apache-2.0
 * hub/listing.h - the hub's answers: which commit a revision is, and which files it has.
 *
 * Purpose   Reads JSON that somebody else sent. Names become paths and hashes become names of files, so
 *           what could lead out of a folder, or is no hash, is refused here and nowhere else.
 * Owner     One thread.
 * Errors    INVALID_ARG names the field and what was expected.
 * Limits    20,000 files, 1 TiB each; names of 1,024 bytes, parts of 255.
 * Source    Hub API: GET /api/models/REPO/revision/REV and /api/models/REPO/tree/COMMIT?recursive=true.
 */
#ifndef NRD_HUB_LISTING_H
#define NRD_HUB_LISTING_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NRD_HUB_MAX_FILES = 20000, NRD_HUB_COMMIT = 40, NRD_HUB_MAX_HASH = 64 };
#define NRD_HUB_MAX_FILE_BYTES ((uint64_t)1 << 40)

typedef struct nrd_hub_file {
    char *path; /* owned; stays inside */
    uint64_t size;
    char hash[NRD_HUB_MAX_HASH + 1]; /* SHA-256 of the content where is_lfs, else git's SHA-1 of a blob */
    bool is_lfs;
} nrd_hub_file;

typedef struct nrd_hub_listing {
    nrd_hub_file *files;
    size_t n, cap;
} nrd_hub_listing;

/* Appends one page of the tree. */
nrd_error *nrd_hub_listing_add(nrd_hub_listing *l, const char *json, size_t n) NRD_MUST_USE;
void nrd_hub_listing_fini(nrd_hub_listing *l); /* safe on a zeroed struct */
/* The commit of a revision, from its description. */
nrd_error *nrd_hub_read_commit(char out[NRD_HUB_COMMIT + 1], const char *json, size_t n) NRD_MUST_USE;
/* n lower-case hexadecimal digits and nothing else. */
bool nrd_hub_is_hash(const char *text, size_t n);

#endif
