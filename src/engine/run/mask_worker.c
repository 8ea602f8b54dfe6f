/* SPDX-License-Identifier: Apache-2.0
 * One thread, one job at a time: `states` is set by begin and becomes NULL again when all their
 * masks are made. The masks are kept by the states; nothing is handed back. */
#include "engine/run/mask_worker.h"

#include "base/mem.h"
#include "guided/guided.h"

#include <pthread.h>

struct nrd_mask_worker {
    pthread_mutex_t mu;
    pthread_cond_t work, done;
    pthread_t thread;
    bool started;              /* the caller's */
    bool stopping;             /* guarded by mu */
    nrd_guide_state *const *states; /* guarded by mu; NULL: nothing to do */
    size_t n;                  /* guarded by mu */
};

nrd_error *nrd_mask_worker_new(nrd_mask_worker **out)
{
    nrd_error *err = NULL;
    *out = NULL;
    NRD_NEW_GOTO(*out, 1, err, fail);
    pthread_mutex_init(&(*out)->mu, NULL);
    pthread_cond_init(&(*out)->work, NULL);
    pthread_cond_init(&(*out)->done, NULL);
fail:
    return err;
}

static void make_masks(nrd_guide_state *const *states, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        size_t words;
        (void)nrd_guide_mask(states[i], &words);
    }
}

static void *worker_main(void *user)
{
    nrd_mask_worker *w = user;
    pthread_setname_np(pthread_self(), "nrd-guides");
    pthread_mutex_lock(&w->mu);
    for (;;) {
        while (!w->states && !w->stopping) {
            pthread_cond_wait(&w->work, &w->mu);
        }
        if (!w->states) {
            break;
        }
        nrd_guide_state *const *states = w->states;
        size_t n = w->n;
        pthread_mutex_unlock(&w->mu);
        make_masks(states, n);
        pthread_mutex_lock(&w->mu);
        w->states = NULL;
        pthread_cond_signal(&w->done);
    }
    pthread_mutex_unlock(&w->mu);
    return NULL;
}

void nrd_mask_worker_begin(nrd_mask_worker *w, nrd_guide_state *const *states, size_t n)
{
    nrd_mask_worker_wait(w);
    if (!w->started && pthread_create(&w->thread, NULL, worker_main, w) != 0) {
        make_masks(states, n);
        return;
    }
    w->started = true;
    pthread_mutex_lock(&w->mu);
    w->states = states;
    w->n = n;
    pthread_cond_signal(&w->work);
    pthread_mutex_unlock(&w->mu);
}

void nrd_mask_worker_wait(nrd_mask_worker *w)
{
    if (!w->started) {
        return;
    }
    pthread_mutex_lock(&w->mu);
    while (w->states) {
        pthread_cond_wait(&w->done, &w->mu);
    }
    pthread_mutex_unlock(&w->mu);
}

void nrd_mask_worker_free(nrd_mask_worker *w)
{
    if (!w) {
        return;
    }
    if (w->started) {
        nrd_mask_worker_wait(w);
        pthread_mutex_lock(&w->mu);
        w->stopping = true;
        pthread_cond_signal(&w->work);
        pthread_mutex_unlock(&w->mu);
        pthread_join(w->thread, NULL);
    }
    pthread_cond_destroy(&w->work);
    pthread_cond_destroy(&w->done);
    pthread_mutex_destroy(&w->mu);
    free(w);
}
