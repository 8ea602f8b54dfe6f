/* SPDX-License-Identifier: Apache-2.0
 * base/parts.h - names of files in parts, "NAME-00001-of-00003.gguf", as llama-gguf-split writes them.
 * Stateless; any thread. */
#ifndef NRD_BASE_PARTS_H
#define NRD_BASE_PARTS_H

#include <stddef.h>

/* How many parts; *out_at: where "-00001-of-…" begins. 0: a whole file. At most 99999. */
size_t nrd_parts_of_name(const char *name, size_t *out_at);
/* The same name of part i, from 1 on. Owned by the caller; NULL: no memory. */
char *nrd_part_name(const char *name, size_t at, size_t i);

#endif
