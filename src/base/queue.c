#include "base/queue.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct nrd_queue {
    pthread_mutex_t mu;
    pthread_cond_t ready;
    void **items;           /* ring; guarded by mu, as all below */
    size_t head, n, cap, max_items;
    bool closed;
    int fd;
};

nrd_error *nrd_queue_new(nrd_queue **out, size_t max_items, bool with_fd)
{
    nrd_error *err = NULL;
    nrd_queue *q = NULL;
    pthread_condattr_t attr;

    *out = NULL;
    NRD_NEW_GOTO(q, 1, err, fail);
    q->fd = -1;
    q->max_items = max_items;
    if (with_fd) {
        q->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        if (q->fd < 0) {
            err = nrd_errorf(NRD_ERR_INTERNAL, "eventfd: %s", strerror(errno));
            goto fail;
        }
    }
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

static void signal_fd(nrd_queue *q)
{
    if (q->fd >= 0) {
        uint64_t one = 1;
        ssize_t n = write(q->fd, &one, sizeof one); /* EAGAIN: already signalled */
        (void)n;
    }
}

bool nrd_queue_push(nrd_queue *q, void *item)
{
    bool ok = false;
    pthread_mutex_lock(&q->mu);
    if (!q->closed && (!q->max_items || q->n < q->max_items)) {
        if (q->n == q->cap) {
            size_t cap = q->cap ? q->cap * 2 : 16;
            void **items = nrd_xmalloc(cap * sizeof *items);
            for (size_t i = 0; i < q->n; i++) {
                items[i] = q->items[(q->head + i) % q->cap];
            }
            free(q->items);
            q->items = items;
            q->cap = cap;
            q->head = 0;
        }
        q->items[(q->head + q->n) % q->cap] = item;
        q->n++;
        ok = true;
        signal_fd(q);
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

void *nrd_queue_try_pop(nrd_queue *q)
{
    pthread_mutex_lock(&q->mu);
    void *item = take(q);
    pthread_mutex_unlock(&q->mu);
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

size_t nrd_queue_len(nrd_queue *q)
{
    pthread_mutex_lock(&q->mu);
    size_t n = q->n;
    pthread_mutex_unlock(&q->mu);
    return n;
}

void nrd_queue_close(nrd_queue *q)
{
    pthread_mutex_lock(&q->mu);
    q->closed = true;
    signal_fd(q);
    pthread_cond_broadcast(&q->ready);
    pthread_mutex_unlock(&q->mu);
}

bool nrd_queue_is_closed(nrd_queue *q)
{
    pthread_mutex_lock(&q->mu);
    bool closed = q->closed;
    pthread_mutex_unlock(&q->mu);
    return closed;
}

int nrd_queue_fd(nrd_queue *q)
{
    return q->fd;
}

void nrd_queue_clear_fd(nrd_queue *q)
{
    uint64_t count;
    ssize_t n = read(q->fd, &count, sizeof count);
    (void)n;
}

void nrd_queue_free(nrd_queue *q)
{
    if (!q) {
        return;
    }
    if (q->fd >= 0) {
        close(q->fd);
    }
    pthread_cond_destroy(&q->ready);
    pthread_mutex_destroy(&q->mu);
    free(q->items);
    free(q);
}
