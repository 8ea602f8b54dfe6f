/* SPDX-License-Identifier: Apache-2.0
 * Two threads. The quick one has the states of one step: `n` is set by begin and becomes 0 again when
 * all have been given back or handed on. The slow one has guides that took too long, each for a slice of
 * time; a slice that ends early loses nothing, since a guide keeps the states that it came to. */
#include "engine/run/mask_worker.h"

#include "base/clock.h"
#include "base/mem.h"
#include "guided/guided.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <time.h>

enum {
    SLICE_NS = 20 * 1000 * 1000,
    SLOW_NICE = 10, /* behind the threads that others' tokens wait for */
};

struct nrd_mask_worker {
    size_t max;
    void (*on_ready)(void *user);
    void *user;
    pthread_mutex_t mu;
    pthread_cond_t work, slow_work, done;
    pthread_t quick, slow;
    bool quick_runs, slow_runs; /* the caller's */
    atomic_bool hurry;          /* the step waits no longer */
    atomic_bool stopping;
    nrd_guide_loan *loans; /* [max]; the quick thread's while n > 0, else the caller's */
    size_t n;              /* guarded by mu */
    nrd_guide_loan *ring;  /* [max] slow ones, each guide once; guarded by mu, as below */
    size_t first, n_slow;
};

nrd_error *nrd_mask_worker_new(nrd_mask_worker **out, size_t max_states, void (*on_ready)(void *user),
                               void *user)
{
    nrd_error *err = NULL;
    nrd_mask_worker *w = NULL;
    pthread_condattr_t attr;

    *out = NULL;
    NRD_NEW_GOTO(w, 1, err, fail);
    NRD_NEW_GOTO(w->loans, max_states, err, fail);
    NRD_NEW_GOTO(w->ring, max_states, err, fail);
    w->max = max_states;
    w->on_ready = on_ready;
    w->user = user;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&w->mu, NULL);
    pthread_cond_init(&w->work, NULL);
    pthread_cond_init(&w->slow_work, NULL);
    pthread_cond_init(&w->done, &attr);
    pthread_condattr_destroy(&attr);
    *out = w;
    return NULL;

fail:
    if (w) {
        free(w->loans);
        free(w->ring);
        free(w);
    }
    return err;
}

static void tell(const nrd_mask_worker *w)
{
    if (w->on_ready) {
        w->on_ready(w->user);
    }
}

/* Takes the loan; false: there is no room. With mu held. */
static bool push_slow(nrd_mask_worker *w, const nrd_guide_loan *loan)
{
    if (w->n_slow == w->max || !w->slow_runs) {
        return false;
    }
    w->ring[(w->first + w->n_slow++) % w->max] = *loan;
    pthread_cond_signal(&w->slow_work);
    return true;
}

static bool is_slow(const nrd_mask_worker *w, const nrd_guide *g)
{
    for (size_t i = 0; i < w->n_slow; i++) {
        if (w->ring[(w->first + i) % w->max].guide == g) {
            return true;
        }
    }
    return false;
}

/* ---- the quick thread ---- */

/* What was not made in time goes on, once for each guide: its other states are asked for again. */
static void hand_on(nrd_mask_worker *w, nrd_guide_loan *loan)
{
    pthread_mutex_lock(&w->mu);
    bool taken = !is_slow(w, loan->guide) && push_slow(w, loan);
    pthread_mutex_unlock(&w->mu);
    if (!taken) {
        nrd_guide_give_back(loan);
        tell(w);
    }
}

static void make_masks(nrd_mask_worker *w, nrd_guide_loan *loans, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (atomic_load(&w->hurry) || !nrd_guide_make_mask(&loans[i], &w->hurry, 0)) {
            hand_on(w, &loans[i]);
            continue;
        }
        nrd_guide_give_back(&loans[i]);
        if (atomic_load(&w->hurry)) {
            tell(w);
        }
    }
}

static void *quick_main(void *user)
{
    nrd_mask_worker *w = user;
    pthread_setname_np(pthread_self(), "nrd-guides");
    pthread_mutex_lock(&w->mu);
    for (;;) {
        while (w->n == 0 && !atomic_load(&w->stopping)) {
            pthread_cond_wait(&w->work, &w->mu);
        }
        if (w->n == 0) {
            break;
        }
        size_t n = w->n;
        pthread_mutex_unlock(&w->mu);
        make_masks(w, w->loans, n);
        pthread_mutex_lock(&w->mu);
        w->n = 0;
        pthread_cond_signal(&w->done);
    }
    pthread_mutex_unlock(&w->mu);
    return NULL;
}

/* ---- the slow thread ---- */

static void *slow_main(void *user)
{
    nrd_mask_worker *w = user;
    pthread_setname_np(pthread_self(), "nrd-guides-slow");
    (void)setpriority(PRIO_PROCESS, 0, SLOW_NICE); /* on Linux, of this thread */
    pthread_mutex_lock(&w->mu);
    for (;;) {
        while (w->n_slow == 0 && !atomic_load(&w->stopping)) {
            pthread_cond_wait(&w->slow_work, &w->mu);
        }
        if (atomic_load(&w->stopping)) {
            break;
        }
        nrd_guide_loan loan = w->ring[w->first];
        pthread_mutex_unlock(&w->mu);
        bool made = !nrd_guide_is_wanted(loan.guide) ||
                    nrd_guide_make_mask(&loan, &w->stopping, nrd_now_ns() + SLICE_NS);
        pthread_mutex_lock(&w->mu);
        w->first = (w->first + 1) % w->max;
        w->n_slow--;
        if (!made && push_slow(w, &loan)) {
            continue;
        }
        pthread_mutex_unlock(&w->mu);
        nrd_guide_give_back(&loan);
        tell(w);
        pthread_mutex_lock(&w->mu);
    }
    pthread_mutex_unlock(&w->mu);
    return NULL;
}

/* ---- the caller ---- */

static void start_threads(nrd_mask_worker *w)
{
    if (!w->quick_runs) {
        pthread_mutex_lock(&w->mu);
        w->slow_runs = w->slow_runs || pthread_create(&w->slow, NULL, slow_main, w) == 0;
        w->quick_runs = pthread_create(&w->quick, NULL, quick_main, w) == 0;
        pthread_mutex_unlock(&w->mu);
    }
}

static void wait_idle(nrd_mask_worker *w)
{
    pthread_mutex_lock(&w->mu);
    while (w->n > 0) {
        pthread_cond_wait(&w->done, &w->mu);
    }
    pthread_mutex_unlock(&w->mu);
}

void nrd_mask_worker_begin(nrd_mask_worker *w, nrd_guide_state *const *states, size_t n)
{
    NRD_ASSERT(n <= w->max, "the maker named the largest number");
    wait_idle(w);
    atomic_store(&w->hurry, false);
    for (size_t i = 0; i < n; i++) {
        w->loans[i] = nrd_guide_lend(states[i]);
    }
    start_threads(w);
    if (!w->quick_runs) {
        make_masks(w, w->loans, n);
        return;
    }
    pthread_mutex_lock(&w->mu);
    w->n = n;
    pthread_cond_signal(&w->work);
    pthread_mutex_unlock(&w->mu);
}

void nrd_mask_worker_wait(nrd_mask_worker *w, uint64_t timeout_ns)
{
    const uint64_t until = nrd_now_ns() + timeout_ns;
    const struct timespec at = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};

    pthread_mutex_lock(&w->mu);
    while (w->n > 0 && !atomic_load(&w->hurry)) {
        if (pthread_cond_timedwait(&w->done, &w->mu, &at) == ETIMEDOUT && w->n > 0) {
            atomic_store(&w->hurry, true);
        }
    }
    pthread_mutex_unlock(&w->mu);
}

void nrd_mask_worker_free(nrd_mask_worker *w)
{
    if (!w) {
        return;
    }
    atomic_store(&w->hurry, true);
    wait_idle(w);
    pthread_mutex_lock(&w->mu);
    atomic_store(&w->stopping, true);
    pthread_cond_signal(&w->work);
    pthread_cond_signal(&w->slow_work);
    pthread_mutex_unlock(&w->mu);
    if (w->quick_runs) {
        pthread_join(w->quick, NULL);
    }
    if (w->slow_runs) {
        pthread_join(w->slow, NULL);
    }
    for (size_t i = 0; i < w->n_slow; i++) {
        nrd_guide_give_back(&w->ring[(w->first + i) % w->max]);
    }
    pthread_cond_destroy(&w->work);
    pthread_cond_destroy(&w->slow_work);
    pthread_cond_destroy(&w->done);
    pthread_mutex_destroy(&w->mu);
    free(w->loans);
    free(w->ring);
    free(w);
}
