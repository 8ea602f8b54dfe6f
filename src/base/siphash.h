/* SPDX-License-Identifier: Apache-2.0
 * base/siphash.h - hashing with a secret key, for tables and caches that strangers fill.
 *
 * Purpose   Who does not know the key cannot make two inputs with one hash: SipHash-2-4 with 128 bits.
 * Owner     A state belongs to one thread at a time; the process's key may be asked for by any.
 * Units     Bytes; into how many pieces they are cut does not matter.
 * Sources   Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012.
 */
#ifndef NRD_BASE_SIPHASH_H
#define NRD_BASE_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct nrd_siphash {
    uint64_t v[4];
    uint64_t word; /* the bytes of the last, incomplete word */
    uint64_t n;    /* bytes so far */
} nrd_siphash;

void nrd_siphash_init(nrd_siphash *h, const uint64_t key[2]);
void nrd_siphash_add(nrd_siphash *h, const void *data, size_t n);
void nrd_siphash_end(nrd_siphash *h, uint64_t out[2]);

/* Random, the same for the life of the process; drawn at the first call. */
const uint64_t *nrd_siphash_process_key(void);

/* Of n bytes with the process's key, for the place in a table. */
uint64_t nrd_siphash_bytes(const void *data, size_t n);

#endif
