/* SPDX-License-Identifier: Apache-2.0
 * base/clock.h - time. Steady time orders events; wall time is for people and time stamps.
 * Stateless, any thread. */
#ifndef NRD_BASE_CLOCK_H
#define NRD_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t nrd_now_ns(void) /* CLOCK_MONOTONIC */
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t nrd_wall_us(void) /* microseconds since 1970 */
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

#endif
