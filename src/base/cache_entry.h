/* SPDX-License-Identifier: Apache-2.0
 * base/cache_entry.h - who uses the engines, tokenizers and repositories of $NEREID_CACHE, and which may go.
 *
 * Purpose   An entry is a folder of $NEREID_CACHE/KIND whose date is its last use. A process holds what it uses (a shared lock of
 *           the folder, which the kernel takes back however the process ends), and the repositories of running servers name what
 *           they may open again. What is removed is first taken out of the way under a lock of its own, so that nobody finds half
 *           of it.
 * Owner     Any thread; holds are the process's.
 * Errors    None: where a file system has no locks nothing is held, and what cannot be read is not there.
 */
#ifndef NRD_BASE_CACHE_ENTRY_H
#define NRD_BASE_CACHE_ENTRY_H

#include "base/error.h"
#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>

#define NRD_CACHE_MAX_SIZE "NEREID_CACHE_MAX_SIZE" /* what engines may take: 50GB, 20% of the disk, or 0: no limit */

/* Held until the process ends. false: it is not there any more, so that it has to be made (again). */
bool nrd_cache_entry_hold(const char *entry);
/* What is held stays so in the program that this process becomes (exec). */
void nrd_cache_entries_pass_on(void);

/* Out of the way, under a name of its own beside it, which the caller removes and frees. NULL: some process holds it, this
 * one too, or it cannot be renamed. */
char *nrd_cache_entry_take(const char *entry);

/* The repositories of running servers with their configurations, which name engines and tokenizers. */
void nrd_cache_in_use(nrd_str *out);
bool nrd_cache_is_in_use(const nrd_str *in_use, const char *path);

/* "50GB", "20%" (of the disk that `dir` is on), bytes without a unit. INVALID_ARG: it is none. */
nrd_error *nrd_cache_read_size(const char *text, const char *dir, uint64_t *out_bytes) NRD_MUST_USE;
/* What the entries of a kind may take together; UINT64_MAX: no limit. Default: a quarter of the disk. A value that is none is
 * warned of, and the default. */
uint64_t nrd_cache_max_bytes(const char *dir);
/* Removes the entries in `dir` that were not used longest until all take at most so much, and the disk has `more_bytes` and 5 % (2 GB
 * at most) free: the cache never takes the last of it while something older can go. What somebody uses stays; without a limit
 * (UINT64_MAX) all do. Each one that goes is a warning, since it has to be made again. */
void nrd_cache_trim(const char *dir, uint64_t max_bytes, uint64_t more_bytes);

#endif
