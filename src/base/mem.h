/* SPDX-License-Identifier: Apache-2.0
 * base/mem.h - allocation with checked sizes.
 *
 * Purpose   Zeroed, aligned and arena allocation; overflow-checked size arithmetic.
 * Owner     No state of its own except inside nrd_arena (one thread at a time).
 * Errors    nrd_size_* report overflow; NRD_NEW* return the out-of-memory error.
 */
#ifndef NRD_BASE_MEM_H
#define NRD_BASE_MEM_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* true: *out = a op b. false: overflow, *out untouched. */
static inline bool nrd_size_mul(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_mul_overflow(a, b, &r)) {
        return false;
    }
    *out = r;
    return true;
}

static inline bool nrd_size_add(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_add_overflow(a, b, &r)) {
        return false;
    }
    *out = r;
    return true;
}

/* p = zeroed array of n objects of *p's type (at least one byte); on no memory sets err, jumps. */
#define NRD_NEW_GOTO(p, n, err, label)                                                             \
    do {                                                                                           \
        (p) = calloc((size_t)(n) > 0 ? (size_t)(n) : 1, sizeof *(p));                              \
        if (!(p)) {                                                                                \
            (err) = nrd_error_no_memory();                                                         \
            goto label;                                                                            \
        }                                                                                          \
    } while (0)

/* p = a copy of the text, which the caller owns; on no memory sets err, jumps. */
#define NRD_DUP_GOTO(p, text, err, label)                                                          \
    do {                                                                                           \
        (p) = strdup(text);                                                                        \
        if (!(p)) {                                                                                \
            (err) = nrd_error_no_memory();                                                         \
            goto label;                                                                            \
        }                                                                                          \
    } while (0)

/* Start-up and tiny allocations whose failure cannot be handled: abort on no memory. */
void *nrd_xmalloc(size_t size_bytes);
void *nrd_xcalloc(size_t n, size_t size_bytes);
void *nrd_xrealloc(void *p, size_t size_bytes);
char *nrd_xstrdup(const char *s);
char *nrd_xstrndup(const char *s, size_t n);
char *nrd_xasprintf(const char *fmt, ...) NRD_PRINTF(1, 2);
void *nrd_or_end(void *p); /* p, or the same end where it is NULL */

/* Zeroed memory aligned to `align` (a power of two); NULL on no memory. Free with free(). */
void *nrd_aligned_zalloc(size_t align, size_t size_bytes);

/* Bump allocator: everything is freed at once. Blocks grow geometrically. */
typedef struct nrd_arena {
    struct nrd_arena_block *head;
    size_t used, cap;
} nrd_arena;

void nrd_arena_init(nrd_arena *a);
void *nrd_arena_alloc(nrd_arena *a, size_t size_bytes); /* 16-byte aligned; NULL on no memory */
char *nrd_arena_strndup(nrd_arena *a, const char *s, size_t n);
void nrd_arena_fini(nrd_arena *a);

#endif
