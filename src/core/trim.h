/* SPDX-License-Identifier: Apache-2.0
 * core/trim.h - memory that requests have freed goes back to the system.
 *
 * Purpose   The C library keeps what is freed in its arenas: after large requests of many threads gigabytes
 *           that nobody uses. When requests have had little memory for a while and the process has grown,
 *           it is asked to give back what it keeps. Not sooner: it holds the lock of an arena meanwhile.
 *           Threads behind the requests free theirs later, which does not show from outside: so it is asked
 *           a few times more, at longer and longer intervals.
 * Owner     One thread.
 * Errors    None: where the system does not tell the size of the process, or the C library has no such
 *           function, nothing happens.
 */
#ifndef NRD_CORE_TRIM_H
#define NRD_CORE_TRIM_H

#include <stdbool.h>
#include <stdint.h>

typedef struct nrd_trim { /* zero-initialised */
    uint64_t next_ns, quiet_ns; /* quiet_ns: since when requests have had little; 0: they have more */
    uint64_t resident;          /* bytes after the last time, or fewer since */
    uint64_t least;             /* bytes of the process when it was smallest */
    unsigned n_again;           /* times in this quiet while without new growth */
} nrd_trim;

/* Called now and then, many times a second at most; claimed: bytes that requests have. true: it trimmed. */
bool nrd_trim_look(nrd_trim *t, uint64_t now_ns, uint64_t claimed);

#endif
