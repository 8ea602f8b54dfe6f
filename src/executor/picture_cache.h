/* SPDX-License-Identifier: Apache-2.0
 * executor/picture_cache.h - rows that pictures became, kept for the next question about them.
 *
 * Purpose   Rows of embeddings in host memory, by the content of pictures, so that the tower does not run twice for one.
 *           Where there is no more room the longest unused goes.
 * Owner     find and put: the loop thread; stats: any thread. The cache ends after the loop.
 * Units     Bytes count rows; what the list takes beside them is small.
 * Errors    None: what finds no memory is not kept.
 */
#ifndef NRD_EXECUTOR_PICTURE_CACHE_H
#define NRD_EXECUTOR_PICTURE_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct nrd_picture_cache nrd_picture_cache;

typedef struct nrd_picture_cache_stats {
    uint64_t n_hits, n_misses, bytes;
} nrd_picture_cache_stats;

/* max_bytes 0: nothing is kept, all are misses. NULL: there is no memory. */
nrd_picture_cache *nrd_picture_cache_new(uint64_t max_bytes);
void nrd_picture_cache_free(nrd_picture_cache *c); /* NULL is fine */
/* Copies the rows of a picture with this content, so many bytes; false: they are not there. */
bool nrd_picture_cache_find(nrd_picture_cache *c, const uint64_t hash[2], void *rows, size_t bytes);
void nrd_picture_cache_put(nrd_picture_cache *c, const uint64_t hash[2], const void *rows, size_t bytes); /* copies */
void nrd_picture_cache_get_stats(nrd_picture_cache *c, nrd_picture_cache_stats *out);

#endif
