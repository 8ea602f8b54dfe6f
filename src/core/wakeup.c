/* SPDX-License-Identifier: Apache-2.0 */
#include "core/wakeup.h"

#include "base/clock.h"

#include <pthread.h>

void nrd_wakeup_init(nrd_wakeup *w)
{
    *w = (nrd_wakeup){.set = false};
    pthread_mutex_init(&w->mu, NULL);
    nrd_cond_init_steady(&w->cond);
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
    const struct timespec t = nrd_steady_in(max_ns);
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
