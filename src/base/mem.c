/* SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"

#include "base/pool.h"

#include <stdio.h>
#include <string.h>

struct nrd_arena_block {
    struct nrd_arena_block *next;
    size_t total; /* bytes of the block; keeps the payload 16-byte aligned too */
    unsigned char data[];
};

enum { ARENA_MIN_BLOCK = 4096, ARENA_MAX_BLOCK = 4 << 20 };

void *nrd_or_end(void *p)
{
    if (!p) {
        fputs("nereid: out of memory\n", stderr);
        abort();
    }
    return p;
}

void *nrd_xmalloc(size_t size_bytes)
{
    return nrd_or_end(malloc(size_bytes ? size_bytes : 1));
}

void *nrd_xcalloc(size_t n, size_t size_bytes)
{
    return nrd_or_end(calloc(n ? n : 1, size_bytes ? size_bytes : 1));
}

void *nrd_xrealloc(void *p, size_t size_bytes)
{
    return nrd_or_end(realloc(p, size_bytes ? size_bytes : 1));
}

char *nrd_xstrdup(const char *s)
{
    return nrd_or_end(strdup(s));
}

char *nrd_xstrndup(const char *s, size_t n)
{
    return nrd_or_end(strndup(s, n));
}

char *nrd_xasprintf(const char *fmt, ...)
{
    char *s = NULL;
    va_list args;
    va_start(args, fmt);
    int n = vasprintf(&s, fmt, args);
    va_end(args);
    return nrd_or_end(n < 0 ? NULL : s);
}

void *nrd_aligned_zalloc(size_t align, size_t size_bytes)
{
    void *p = NULL;
    size_t padded;
    if (!nrd_size_add(size_bytes, align - 1, &padded)) {
        return NULL;
    }
    padded &= ~(align - 1);
    if (posix_memalign(&p, align < sizeof(void *) ? sizeof(void *) : align,
                       padded ? padded : align)) {
        return NULL;
    }
    memset(p, 0, padded);
    return p;
}

void nrd_arena_init(nrd_arena *a)
{
    memset(a, 0, sizeof *a);
}

void *nrd_arena_alloc(nrd_arena *a, size_t size_bytes)
{
    size_t need;
    if (!nrd_size_add(size_bytes, 15, &need)) {
        return NULL;
    }
    need &= ~(size_t)15;
    if (!a->head || a->cap - a->used < need) {
        size_t cap = a->cap * 2 < ARENA_MAX_BLOCK ? a->cap * 2 : ARENA_MAX_BLOCK;
        size_t total;
        cap = cap < ARENA_MIN_BLOCK ? ARENA_MIN_BLOCK : cap;
        cap = cap < need ? need : cap;
        if (!nrd_size_add(cap, sizeof(struct nrd_arena_block), &total)) {
            return NULL;
        }
        struct nrd_arena_block *b = total <= NRD_POOL_MAX ? nrd_pool_get(total) : malloc(total);
        if (!b) {
            return NULL;
        }
        b->total = total;
        b->next = a->head;
        a->head = b;
        a->cap = cap;
        a->used = 0;
    }
    void *p = a->head->data + a->used;
    a->used += need;
    return p;
}

char *nrd_arena_strndup(nrd_arena *a, const char *s, size_t n)
{
    char *p = nrd_arena_alloc(a, n + 1);
    if (p) {
        memcpy(p, s, n);
        p[n] = '\0';
    }
    return p;
}

void nrd_arena_fini(nrd_arena *a)
{
    while (a->head) {
        struct nrd_arena_block *next = a->head->next;
        nrd_pool_put(a->head, a->head->total);
        a->head = next;
    }
    nrd_arena_init(a);
}
