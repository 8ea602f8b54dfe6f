/* SPDX-License-Identifier: Apache-2.0
 * formats/tar.h - names and spans of the files in a tar archive.
 *
 * Purpose   POSIX ustar and pax, and the long names of GNU tar. Files stay in the mapped archive; nothing is unpacked.
 * Owner     Immutable after open; any thread may read.
 * Errors    INVALID_ARG with path, offset and what is wrong. UNSUPPORTED: a compressed archive.
 * Limits    See tar.c: number of files, length of a name.
 * Lifetime  Names and data borrow from the object until close.
 * Sources   POSIX.1-2017, pax, "ustar Interchange Format"; GNU tar manual, "Basic Tar Format".
 */
#ifndef NRD_FORMATS_TAR_H
#define NRD_FORMATS_TAR_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct nrd_tar nrd_tar;

typedef struct nrd_tar_member {
    const char *name; /* without a leading "./" */
    const uint8_t *data;
    size_t bytes;
} nrd_tar_member;

nrd_error *nrd_tar_open(nrd_tar **out, const char *path) NRD_MUST_USE;
/* Over memory that outlives the object. */
nrd_error *nrd_tar_open_memory(nrd_tar **out, const void *data, size_t n) NRD_MUST_USE;
void nrd_tar_close(nrd_tar *t);
bool nrd_tar_is_lost(const nrd_tar *t); /* the file was made shorter while it was read */
size_t nrd_tar_n(const nrd_tar *t);
const nrd_tar_member *nrd_tar_at(const nrd_tar *t, size_t i); /* regular files alone, in the archive's order */
const nrd_tar_member *nrd_tar_find(const nrd_tar *t, const char *name); /* the last of this name; NULL: none */

#endif
