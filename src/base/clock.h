/* SPDX-License-Identifier: Apache-2.0
 * base/clock.h - time. Steady time orders events; wall time is for people and time stamps.
 * Stateless, any thread. */
#ifndef NRD_BASE_CLOCK_H
#define NRD_BASE_CLOCK_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

static inline uint64_t nrd_now_ns(void) /* CLOCK_MONOTONIC */
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* A condition whose timed waits take nrd_steady_in: one that waits by the wall clock ends too early, or hours
 * too late, when somebody sets that. */
static inline void nrd_cond_init_steady(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

static inline struct timespec nrd_steady_in(uint64_t ns) /* so long from now */
{
    const uint64_t at = nrd_now_ns() + ns;
    return (struct timespec){.tv_sec = (time_t)(at / 1000000000u), .tv_nsec = (long)(at % 1000000000u)};
}

static inline uint64_t nrd_wall_ns(void) /* since 1970 */
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t nrd_wall_us(void)
{
    return nrd_wall_ns() / 1000u;
}

#endif
