/* SPDX-License-Identifier: Apache-2.0 */
#include "frontends/service_manager.h"

#include "base/env.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define NS 1000000000ull

void nrd_service_notify(const char *state)
{
    const char *path = nrd_env("NOTIFY_SOCKET", "");
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const size_t n = strlen(path);

    if (n < 2 || n >= sizeof to.sun_path || (path[0] != '/' && path[0] != '@')) {
        return;
    }
    memcpy(to.sun_path, path, n);
    if (path[0] == '@') { /* a name without a file */
        to.sun_path[0] = '\0';
    }
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0) {
        (void)sendto(fd, state, strlen(state), MSG_NOSIGNAL | MSG_DONTWAIT, (const struct sockaddr *)&to,
                     (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n));
        close(fd);
    }
}

struct nrd_watchdog {
    bool (*alive)(void *arg);
    void *arg;
    uint64_t every_ns;
    pthread_t thread;
    pthread_mutex_t mu;
    pthread_cond_t stopping; /* with mu, CLOCK_MONOTONIC */
    bool stop;
};

static uint64_t watchdog_ns(void)
{
    const char *usec = nrd_env("WATCHDOG_USEC", ""), *pid = nrd_env("WATCHDOG_PID", "");
    char *end = NULL;

    if (*pid && strtoull(pid, NULL, 10) != (unsigned long long)getpid()) {
        return 0;
    }
    errno = 0;
    const unsigned long long us = strtoull(usec, &end, 10);
    return errno || end == usec || *end || us > UINT64_MAX / 1000 ? 0 : us * 1000;
}

static void *watchdog_main(void *arg)
{
    nrd_watchdog *w = arg;

    pthread_mutex_lock(&w->mu);
    while (!w->stop) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        const uint64_t ns = (uint64_t)until.tv_nsec + w->every_ns;
        until.tv_sec += (time_t)(ns / NS);
        until.tv_nsec = (long)(ns % NS);
        pthread_mutex_unlock(&w->mu); /* alive() may hang: then silence is what is to be said */
        if (w->alive(w->arg)) {
            nrd_service_notify("WATCHDOG=1");
        }
        pthread_mutex_lock(&w->mu);
        while (!w->stop && pthread_cond_timedwait(&w->stopping, &w->mu, &until) == 0) {
        }
    }
    pthread_mutex_unlock(&w->mu);
    return NULL;
}

nrd_error *nrd_watchdog_start(nrd_watchdog **out, bool (*alive)(void *arg), void *arg)
{
    const uint64_t ns = watchdog_ns();
    pthread_condattr_t attr;
    nrd_watchdog *w = NULL;

    *out = NULL;
    if (!ns) {
        return NULL;
    }
    w = calloc(1, sizeof *w);
    if (!w) {
        return nrd_error_no_memory();
    }
    w->alive = alive;
    w->arg = arg;
    w->every_ns = ns / 3;
    pthread_mutex_init(&w->mu, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->stopping, &attr);
    pthread_condattr_destroy(&attr);
    if (pthread_create(&w->thread, NULL, watchdog_main, w) != 0) {
        pthread_cond_destroy(&w->stopping);
        pthread_mutex_destroy(&w->mu);
        free(w);
        return nrd_errorf(NRD_ERR_INTERNAL, "cannot start a thread");
    }
    pthread_setname_np(w->thread, "watchdog");
    *out = w;
    return NULL;
}

void nrd_watchdog_stop(nrd_watchdog *w)
{
    if (!w) {
        return;
    }
    pthread_mutex_lock(&w->mu);
    w->stop = true;
    pthread_cond_signal(&w->stopping);
    pthread_mutex_unlock(&w->mu);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->stopping);
    pthread_mutex_destroy(&w->mu);
    free(w);
}
