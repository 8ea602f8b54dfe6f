/* SPDX-License-Identifier: Apache-2.0
 * Seeds of random tests: printed, and taken back from NRD_SEED. */
#ifndef NRD_TEST_ENGINE_RANDOM_H
#define NRD_TEST_ENGINE_RANDOM_H

#include "base/hash.h"
#include "base/str.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct rng {
    uint64_t s;
} rng;

static inline uint64_t rng_next(rng *r)
{
    r->s += 0x9e3779b97f4a7c15u;
    return nrd_hash_mix(r->s);
}

static inline int32_t rng_in(rng *r, int32_t lo, int32_t hi) /* both included */
{
    return lo + (int32_t)(rng_next(r) % (uint64_t)(hi - lo + 1));
}

static inline uint64_t first_seed(void)
{
    unsigned long long seed = 20260101;
    const char *text = getenv("NRD_SEED");
    if (text && !nrd_parse_u64(text, &seed)) {
        fprintf(stderr, "NRD_SEED is no number\n");
        exit(2);
    }
    printf("NRD_SEED=%llu\n", seed);
    return seed;
}

#endif
