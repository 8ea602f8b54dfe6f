/* SPDX-License-Identifier: Apache-2.0
 * base/hash.h - 64-bit hashing for tables and for telling blocks of tokens apart.
 * Stateless, any thread. Not cryptographic. Mixing after wyhash/splitmix64 (Steele et al., 2014). */
#ifndef NRD_BASE_HASH_H
#define NRD_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t nrd_hash_mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline uint64_t nrd_hash_u64(uint64_t seed, uint64_t v)
{
    return nrd_hash_mix(seed ^ nrd_hash_mix(v + 0x9e3779b97f4a7c15u));
}

static inline uint64_t nrd_hash_bytes(uint64_t seed, const void *data, size_t n)
{
    const unsigned char *p = data;
    uint64_t h = seed ^ (n * 0x9e3779b97f4a7c15u), v;
    while (n >= 8) {
        memcpy(&v, p, 8);
        h = nrd_hash_u64(h, v);
        p += 8;
        n -= 8;
    }
    v = 0;
    if (n) {
        memcpy(&v, p, n);
    }
    return nrd_hash_u64(h, v);
}

#endif
