/* SPDX-License-Identifier: Apache-2.0
 * base/pool.h - small memory that one thread takes and another gives back.
 *
 * Purpose   The allocator of the C library keeps blocks per thread group behind a lock; a server
 *           whose requests are made on one thread and freed on another meets that lock all the
 *           time. Here every thread has a stock of blocks of each size, and whole batches of blocks
 *           change hands between threads.
 * Owner     Any thread. A block may be given back by another thread than took it.
 * Units     Bytes. The size given back must be the size that was taken (or grown to).
 * Errors    NULL on no memory.
 * Lifetime  Blocks are 64-byte aligned. What is given back stays with the process up to a limit of
 *           a few megabytes for each size; sizes above NRD_POOL_MAX go to malloc and free.
 *           Under the address and the thread sanitizer every block is its own allocation.
 */
#ifndef NRD_BASE_POOL_H
#define NRD_BASE_POOL_H

#include <stddef.h>

#define NRD_POOL_MAX 4160u /* a page and a list's head; between 1024 and this: one size */

void *nrd_pool_get(size_t size_bytes);         /* contents undefined; NULL: no memory */
void *nrd_pool_zget(size_t size_bytes);        /* zeroed */
void nrd_pool_put(void *p, size_t size_bytes); /* NULL is fine */
/* Moves the first old_bytes to a block of new_bytes; p may be NULL when old_bytes is 0. Without
 * memory p is as it was. */
void *nrd_pool_grow(void *p, size_t old_bytes, size_t new_bytes);
/* NULL: no memory. A copy of a text that is not changed in length until it is given back. */
char *nrd_pool_strdup(const char *s);
void nrd_pool_strput(char *s); /* NULL is fine */

#endif
