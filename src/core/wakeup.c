/* SPDX-License-Identifier: Apache-2.0 */
#include "core/wakeup.h"

#include "base/clock.h"

#include <pthread.h>

void nrd_wakeup_init(nrd_wakeup *w)
{
    pthread_condattr_t attr;

    *w = (nrd_wakeup){.set = false};
    pthread_mutex_init(&w->mu, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->cond, &attr);
    pthread_condattr_destroy(&attr);
}

void nrd_wakeup_fini(nrd_wakeup *w)
{
    pthread_cond_destroy(&w->cond);
    pthread_mutex_destroy(&w->mu);
}

void nrd_wakeup_signal(nrd_wakeup *w)
{
    pthread_mutex_lock(&w->mu);
    w->set = true;
    pthread_cond_signal(&w->cond);
    pthread_mutex_unlock(&w->mu);
}

void nrd_wakeup_stop(nrd_wakeup *w)
{
    pthread_mutex_lock(&w->mu);
    w->stopped = true;
    pthread_cond_signal(&w->cond);
    pthread_mutex_unlock(&w->mu);
}

bool nrd_wakeup_wait(nrd_wakeup *w, uint64_t max_ns)
{
    const uint64_t when = nrd_now_ns() + max_ns;
    const struct timespec t = {.tv_sec = (time_t)(when / 1000000000u),
                               .tv_nsec = (long)(when % 1000000000u)};
    bool expired = false;

    pthread_mutex_lock(&w->mu);
    while (!w->set && !w->stopped && !expired) {
        expired = pthread_cond_timedwait(&w->cond, &w->mu, &t) != 0;
    }
    w->set = false;
    const bool stopped = w->stopped;
    pthread_mutex_unlock(&w->mu);
    return !stopped;
}
