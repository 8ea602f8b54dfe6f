/* SPDX-License-Identifier: Apache-2.0
 * Memory blocks by size class. Each thread keeps two batches of each class; full batches go to a
 * depot that all threads share, empty threads take one there. What a thread still holds goes to the
 * depot when it ends. Used for requests, responses and other small objects that one thread makes
 * and another frees. */
#include "base/pool.h"

#include "base/mem.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define NO_STOCK 1
#elif defined __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define NO_STOCK 1
#endif
#endif
#ifndef NO_STOCK
#define NO_STOCK 0
#endif

enum {
    ALIGN = 64, /* a cache line: two threads never write to the same one for two blocks */
    SMALL = 1024,
    N_CLASSES = SMALL / ALIGN + 1,
    MAX_BATCHES = 64, /* of one class in the depot */
};

typedef struct block {
    struct block *next;
} block;

/* A thread's stock of one class: a full batch in reserve, and one that is used up or filled. */
typedef struct stock {
    block *list, *reserve;
    unsigned n; /* in list */
} stock;

typedef struct depot {
    pthread_mutex_t mu; /* guards what follows */
    block *batches[MAX_BATCHES];
    unsigned n;
} depot;

static depot depots[N_CLASSES];
static pthread_key_t leaving;
static pthread_once_t once = PTHREAD_ONCE_INIT;
/* Of this thread: N_CLASSES of them, made when first needed. One pointer in the block that is
 * reached without a call; there is little room in it for all libraries together. */
static _Thread_local stock *mine __attribute__((tls_model("initial-exec")));

static unsigned batch_of(size_t c)
{
    return c < N_CLASSES - 1 ? 32 : 8;
}

static size_t class_of(size_t size)
{
    return size > SMALL ? N_CLASSES - 1 : size ? (size - 1) / ALIGN : 0;
}

static size_t size_of(size_t c)
{
    return c < N_CLASSES - 1 ? (c + 1) * ALIGN : NRD_POOL_MAX;
}

static void free_list(block *b)
{
    for (block *next; b; b = next) {
        next = b->next;
        free(b);
    }
}

/* The thread ends. What it still gives back after this makes a new stock, which comes here again.
 */
static void leave(void *arg)
{
    stock *s = arg;
    mine = NULL;
    for (int i = 0; i < N_CLASSES; i++) {
        free_list(s[i].list);
        free_list(s[i].reserve);
    }
    free(s);
}

static void make_depots(void)
{
    for (int i = 0; i < N_CLASSES; i++) {
        pthread_mutex_init(&depots[i].mu, NULL);
    }
    int failed = pthread_key_create(&leaving, leave);
    NRD_ASSERT(!failed, "a process has few keys");
}

static void make_mine(void)
{
    pthread_once(&once, make_depots);
    mine = calloc(N_CLASSES, sizeof *mine);
    if (mine && pthread_setspecific(leaving, mine) != 0) {
        free(mine);
        mine = NULL;
    }
}

/* NULL: no memory for one. */
static stock *stock_of(size_t c)
{
    if (!mine) {
        make_mine();
    }
    return mine ? &mine[c] : NULL;
}

/* This code may be part of a library that is closed while its threads live on. */
__attribute__((destructor)) static void close_library(void)
{
    pthread_once(&once, make_depots);
    pthread_key_delete(leaving);
}

static void *fresh(size_t size)
{
    void *p = NULL;
    return posix_memalign(&p, ALIGN, size ? size : 1) == 0 ? p : NULL;
}

static block *take_batch(depot *d)
{
    block *b = NULL;
    pthread_mutex_lock(&d->mu);
    if (d->n > 0) {
        b = d->batches[--d->n];
    }
    pthread_mutex_unlock(&d->mu);
    return b;
}

static void give_batch(depot *d, block *b)
{
    pthread_mutex_lock(&d->mu);
    if (d->n < MAX_BATCHES) {
        d->batches[d->n++] = b;
        b = NULL;
    }
    pthread_mutex_unlock(&d->mu);
    free_list(b);
}

void *nrd_pool_get(size_t size)
{
    if (NO_STOCK || size > NRD_POOL_MAX) {
        return fresh(size);
    }
    const size_t c = class_of(size);
    stock *s = stock_of(c);
    if (!s) {
        return fresh(size_of(c));
    }
    block *b = s->list;
    if (!b) {
        b = s->reserve ? s->reserve : take_batch(&depots[c]);
        s->reserve = NULL;
        if (!b) {
            return fresh(size_of(c));
        }
        s->n = batch_of(c);
    }
    s->list = b->next;
    s->n--;
    return b;
}

void *nrd_pool_zget(size_t size)
{
    void *p = nrd_pool_get(size);
    return p ? memset(p, 0, size) : NULL;
}

void nrd_pool_put(void *p, size_t size)
{
    if (NO_STOCK || size > NRD_POOL_MAX || !p) {
        free(p);
        return;
    }
    const size_t c = class_of(size);
    stock *s = stock_of(c);
    block *b = p;
    if (!s) {
        free(p);
        return;
    }
    if (s->n == batch_of(c)) {
        if (s->reserve) {
            give_batch(&depots[c], s->reserve);
        }
        s->reserve = s->list;
        s->list = NULL;
        s->n = 0;
    }
    b->next = s->list;
    s->list = b;
    s->n++;
}

void *nrd_pool_grow(void *p, size_t old_bytes, size_t new_bytes)
{
    void *to = nrd_pool_get(new_bytes);
    if (p && to) {
        memcpy(to, p, old_bytes);
        nrd_pool_put(p, old_bytes);
    }
    return to;
}

char *nrd_pool_strdup(const char *s)
{
    const size_t n = strlen(s) + 1;
    char *copy = nrd_pool_get(n);
    return copy ? memcpy(copy, s, n) : NULL;
}

void nrd_pool_strput(char *s)
{
    if (s) {
        nrd_pool_put(s, strlen(s) + 1);
    }
}
