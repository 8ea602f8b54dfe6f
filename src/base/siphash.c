/* SPDX-License-Identifier: Apache-2.0 */
#include "base/siphash.h"

#include "base/error.h"

#include <pthread.h>
#include <string.h>
#include <sys/random.h>

static inline uint64_t rotl(uint64_t x, int b)
{
    return x << b | x >> (64 - b);
}

static inline void mix(uint64_t v[4])
{
    v[0] += v[1];
    v[1] = rotl(v[1], 13) ^ v[0];
    v[0] = rotl(v[0], 32);
    v[2] += v[3];
    v[3] = rotl(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = rotl(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = rotl(v[1], 17) ^ v[2];
    v[2] = rotl(v[2], 32);
}

static inline void take(uint64_t v[4], uint64_t word)
{
    v[3] ^= word;
    mix(v);
    mix(v);
    v[0] ^= word;
}

void nrd_siphash_init(nrd_siphash *h, const uint64_t key[2])
{
    /* The constants of the paper; 0xee: a result of 128 bits. */
    *h = (nrd_siphash){.v = {key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du ^ 0xee,
                             key[0] ^ 0x6c7967656e657261u, key[1] ^ 0x7465646279746573u}};
}

void nrd_siphash_add(nrd_siphash *h, const void *data, size_t n)
{
    const unsigned char *p = data;
    uint64_t word;

    for (; n > 0 && h->n % 8 != 0; n--) {
        h->word |= (uint64_t)*p++ << (8 * (h->n % 8));
        if (++h->n % 8 == 0) {
            take(h->v, h->word);
            h->word = 0;
        }
    }
    for (; n >= 8; n -= 8, p += 8, h->n += 8) {
        memcpy(&word, p, 8); /* little-endian, as all machines that this runs on */
        take(h->v, word);
    }
    for (; n > 0; n--) {
        h->word |= (uint64_t)*p++ << (8 * (h->n++ % 8));
    }
}

static uint64_t half(uint64_t v[4])
{
    for (int i = 0; i < 4; i++) {
        mix(v);
    }
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

void nrd_siphash_end(nrd_siphash *h, uint64_t out[2])
{
    take(h->v, h->word | h->n << 56);
    h->v[2] ^= 0xee;
    out[0] = half(h->v);
    h->v[1] ^= 0xdd;
    out[1] = half(h->v);
}

static uint64_t process_key[2];

static void draw_key(void)
{
    ssize_t n = getrandom(process_key, sizeof process_key, 0);
    NRD_ASSERT(n == (ssize_t)sizeof process_key, "up to 256 bytes come whole once the system has started");
}

const uint64_t *nrd_siphash_process_key(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, draw_key);
    return process_key;
}

uint64_t nrd_siphash_bytes(const void *data, size_t n)
{
    nrd_siphash h;
    uint64_t sum[2];

    nrd_siphash_init(&h, nrd_siphash_process_key());
    nrd_siphash_add(&h, data, n);
    nrd_siphash_end(&h, sum);
    return sum[0];
}
