/* SPDX-License-Identifier: Apache-2.0 */
#include "base/queue.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <pthread.h>

struct nrd_queue {
    pthread_mutex_t mu;
    pthread_cond_t ready;
    void **items;           /* ring; guarded by mu, as all below */
    size_t head, n, cap, max_items;
    bool closed;
};

nrd_error *nrd_queue_new(nrd_queue **out, size_t max_items)
{
    nrd_error *err = NULL;
    nrd_queue *q = NULL;
    pthread_condattr_t attr;

    *out = NULL;
    NRD_NEW_GOTO(q, 1, err, fail);
    q->max_items = max_items;
    pthread_mutex_init(&q->mu, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&q->ready, &attr);
    pthread_condattr_destroy(&attr);
    *out = q;
    return NULL;

fail:
    free(q);
    return err;
}

/* Lock held. False: no memory. */
static bool grow(nrd_queue *q, size_t cap)
{
    void **items = malloc(cap * sizeof *items);
    if (!items) {
        return false;
    }
    for (size_t i = 0; i < q->n; i++) {
        items[i] = q->items[(q->head + i) % q->cap];
    }
    free(q->items);
    q->items = items;
    q->cap = cap;
    q->head = 0;
    return true;
}

nrd_error *nrd_queue_reserve(nrd_queue *q, size_t n)
{
    pthread_mutex_lock(&q->mu);
    const bool ok = n <= q->cap || (n <= SIZE_MAX / 2 / sizeof *q->items && grow(q, n));
    pthread_mutex_unlock(&q->mu);
    return ok ? NULL : nrd_error_no_memory();
}

bool nrd_queue_push(nrd_queue *q, void *item)
{
    bool ok = false;
    pthread_mutex_lock(&q->mu);
    if (!q->closed && (!q->max_items || q->n < q->max_items) &&
        (q->n < q->cap || grow(q, q->cap ? q->cap * 2 : 16))) {
        q->items[(q->head + q->n) % q->cap] = item;
        q->n++;
        ok = true;
        pthread_cond_signal(&q->ready);
    }
    pthread_mutex_unlock(&q->mu);
    return ok;
}

static void *take(nrd_queue *q)
{
    if (!q->n) {
        return NULL;
    }
    void *item = q->items[q->head];
    q->head = (q->head + 1) % q->cap;
    q->n--;
    return item;
}

void *nrd_queue_pop(nrd_queue *q, uint64_t timeout_ns)
{
    struct timespec t = {0};
    if (timeout_ns != UINT64_MAX) {
        uint64_t until = nrd_now_ns() + timeout_ns;
        t.tv_sec = (time_t)(until / 1000000000u);
        t.tv_nsec = (long)(until % 1000000000u);
    }
    pthread_mutex_lock(&q->mu);
    while (!q->n && !q->closed) {
        if (timeout_ns == UINT64_MAX) {
            pthread_cond_wait(&q->ready, &q->mu);
        } else if (pthread_cond_timedwait(&q->ready, &q->mu, &t) == ETIMEDOUT) {
            break;
        }
    }
    void *item = take(q);
    pthread_mutex_unlock(&q->mu);
    return item;
}

void nrd_queue_close(nrd_queue *q)
{
    pthread_mutex_lock(&q->mu);
    q->closed = true;
    pthread_cond_broadcast(&q->ready);
    pthread_mutex_unlock(&q->mu);
}

void nrd_queue_free(nrd_queue *q)
{
    if (!q) {
        return;
    }
    pthread_cond_destroy(&q->ready);
    pthread_mutex_destroy(&q->mu);
    free(q->items);
    free(q);
}
