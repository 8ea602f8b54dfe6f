/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/quantize/workers.h"

#include "base/mem.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

enum { PIECES = 8 }; /* of a loop for each thread, since they do not run alike */

struct nrd_qworkers {
    pthread_mutex_t mu;
    pthread_cond_t begun, ended;
    pthread_t *threads;
    int32_t n_threads, n_started; /* the caller is one more than were started */
    /* guarded by mu */
    uint64_t n_loops;
    int32_t n_running;
    bool is_closing;
    /* of the loop, which stay as they are while it runs */
    void (*fn)(void *user, int64_t from, int64_t to);
    void *user;
    int64_t n, step;
    _Atomic int64_t next;
};

static void take_ranges(nrd_qworkers *w)
{
    for (int64_t from; (from = atomic_fetch_add(&w->next, w->step)) < w->n;) {
        w->fn(w->user, from, from + w->step < w->n ? from + w->step : w->n);
    }
}

static void *work(void *arg)
{
    nrd_qworkers *w = arg;
    uint64_t seen = 0;

    pthread_mutex_lock(&w->mu);
    while (true) {
        while (w->n_loops == seen && !w->is_closing) {
            pthread_cond_wait(&w->begun, &w->mu);
        }
        if (w->is_closing) {
            break;
        }
        seen = w->n_loops;
        pthread_mutex_unlock(&w->mu);
        take_ranges(w);
        pthread_mutex_lock(&w->mu);
        if (--w->n_running == 0) {
            pthread_cond_signal(&w->ended);
        }
    }
    pthread_mutex_unlock(&w->mu);
    return NULL;
}

nrd_error *nrd_qworkers_open(nrd_qworkers **out, int32_t n_threads)
{
    nrd_error *err = NULL;
    nrd_qworkers *w = NULL;

    *out = NULL;
    NRD_NEW_GOTO(w, 1, err, fail);
    pthread_mutex_init(&w->mu, NULL);
    pthread_cond_init(&w->begun, NULL);
    pthread_cond_init(&w->ended, NULL);
    NRD_NEW_GOTO(w->threads, n_threads, err, fail);
    w->n_threads = n_threads;
    while (w->n_started < n_threads - 1 && !pthread_create(&w->threads[w->n_started], NULL, work, w)) {
        w->n_started++;
    }
    *out = w;
    return NULL;

fail:
    nrd_qworkers_close(w);
    return err;
}

void nrd_qworkers_close(nrd_qworkers *w)
{
    if (!w) {
        return;
    }
    pthread_mutex_lock(&w->mu);
    w->is_closing = true;
    pthread_cond_broadcast(&w->begun);
    pthread_mutex_unlock(&w->mu);
    for (int32_t i = 0; i < w->n_started; i++) {
        pthread_join(w->threads[i], NULL);
    }
    pthread_cond_destroy(&w->begun);
    pthread_cond_destroy(&w->ended);
    pthread_mutex_destroy(&w->mu);
    free(w->threads);
    free(w);
}

void nrd_qworkers_each(nrd_qworkers *w, int64_t n, void (*fn)(void *user, int64_t from, int64_t to), void *user)
{
    if (n <= 0) {
        return;
    }
    w->fn = fn;
    w->user = user;
    w->n = n;
    w->step = n / ((int64_t)w->n_threads * PIECES) + 1;
    atomic_store(&w->next, 0);
    pthread_mutex_lock(&w->mu);
    w->n_loops++;
    w->n_running = w->n_started;
    pthread_cond_broadcast(&w->begun);
    pthread_mutex_unlock(&w->mu);
    take_ranges(w);
    pthread_mutex_lock(&w->mu);
    while (w->n_running > 0) {
        pthread_cond_wait(&w->ended, &w->mu);
    }
    pthread_mutex_unlock(&w->mu);
}
