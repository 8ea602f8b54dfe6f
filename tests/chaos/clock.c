/* SPDX-License-Identifier: Apache-2.0
 * A library to preload: the wall clock of a running server jumps, when the test that runs it says so; the
 * system's clock stays as it is.
 *
 * NEREID_CLOCK names a file that both have mapped: one int64_t, nanoseconds that are added to the time of
 * day. The kernel keeps its own time: who waits until a moment of the shifted clock waits as one waits
 * whose clock was set in between. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static _Atomic int64_t none, *offset = &none;

__attribute__((constructor)) static void attach(void)
{
    const char *path = getenv("NEREID_CLOCK");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *p = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *offset, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p != MAP_FAILED) {
        offset = p;
    }
    if (fd >= 0) {
        close(fd);
    }
}

static int64_t now_ns(void)
{
    static __typeof__(&clock_gettime) next;
    struct timespec t = {0};
    if (!next) {
        *(void **)&next = dlsym(RTLD_NEXT, "clock_gettime");
    }
    next(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec + atomic_load(offset);
}

EXPORT int clock_gettime(clockid_t clock, struct timespec *out)
{
    static __typeof__(&clock_gettime) next;
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) {
        const int64_t ns = now_ns();
        *out = (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
        return 0;
    }
    if (!next) {
        *(void **)&next = dlsym(RTLD_NEXT, "clock_gettime");
    }
    return next(clock, out);
}

EXPORT int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    const int64_t ns = now_ns();
    (void)zone;
    *out = (struct timeval){.tv_sec = ns / 1000000000, .tv_usec = ns % 1000000000 / 1000};
    return 0;
}

EXPORT time_t time(time_t *out)
{
    const time_t t = (time_t)(now_ns() / 1000000000);
    if (out) {
        *out = t;
    }
    return t;
}
