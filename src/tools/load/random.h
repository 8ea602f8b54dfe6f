/* SPDX-License-Identifier: Apache-2.0
 * tools/load/random.h - numbers that are the same for the same seed, on every machine.
 * One thread for each state. */
#ifndef NRD_TOOLS_LOAD_RANDOM_H
#define NRD_TOOLS_LOAD_RANDOM_H

#include "base/hash.h"

#include <math.h>
#include <stdint.h>

typedef struct nrd_random {
    uint64_t state;
} nrd_random;

static inline uint64_t nrd_random_u64(nrd_random *r)
{
    return r->state = nrd_hash_u64(r->state, 1);
}

static inline double nrd_random_unit(nrd_random *r) /* above 0, at most 1 */
{
    return (double)((nrd_random_u64(r) >> 11) + 1) / 9007199254740992.0;
}

static inline double
nrd_random_normal(nrd_random *r) /* mean 0, deviation 1 (Box and Muller, 1958) */
{
    const double radius = sqrt(-2 * log(nrd_random_unit(r)));
    return radius * cos(6.283185307179586 * nrd_random_unit(r));
}

#endif
