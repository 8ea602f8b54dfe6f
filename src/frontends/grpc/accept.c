/* SPDX-License-Identifier: Apache-2.0 */
#include "frontends/grpc/accept.h"

#include "base/clock.h"
#include "base/log.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_REFUSED = 4096 }; /* at a time; more than the longest queue of a port */
#define WARN_EVERY_NS 10000000000u

typedef int accept4_function(int fd, struct sockaddr *address, socklen_t *n, int flags);

static atomic_int guarded;
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static int spare = -1;      /* guarded by mu */
static uint64_t warned_ns;  /* guarded by mu */
static atomic_bool is_missing; /* the spare one; there was no descriptor for it */

__attribute__((visibility("default"))) accept4_function accept4;

static void keep_spare(void)
{
    if (spare < 0) {
        spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    }
    atomic_store(&is_missing, spare < 0);
}

void nrd_grpc_guard_port(int port)
{
    pthread_mutex_lock(&mu);
    keep_spare();
    pthread_mutex_unlock(&mu);
    atomic_store(&guarded, port);
}

static bool is_guarded(int fd)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } a;
    socklen_t n = sizeof a;
    const int port = atomic_load(&guarded);

    if (port == 0 || getsockname(fd, &a.any, &n) != 0) {
        return false;
    }
    return (a.any.sa_family == AF_INET && ntohs(a.v4.sin_port) == port) ||
           (a.any.sa_family == AF_INET6 && ntohs(a.v6.sin6_port) == port);
}

/* Those who wait hear soon that they are not let in, and may try again. */
static void refuse_waiting(accept4_function *next, int fd, int error)
{
    const uint64_t now = nrd_now_ns();
    pthread_mutex_lock(&mu);
    keep_spare(); /* it may be missing since the last time */
    for (int i = 0; i < MAX_REFUSED && spare >= 0; i++) {
        close(spare);
        spare = -1;
        const int refused = next(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (refused >= 0) {
            close(refused);
        }
        keep_spare();
        if (refused < 0) {
            break;
        }
    }
    const bool warns = warned_ns == 0 || now - warned_ns > WARN_EVERY_NS;
    warned_ns = warns ? now : warned_ns;
    pthread_mutex_unlock(&mu);
    if (warns) {
        NRD_LOG_WARN("gRPC service cannot accept a connection: %s", strerror(error));
    }
}

int accept4(int fd, struct sockaddr *address, socklen_t *n, int flags)
{
    static _Atomic(accept4_function *) found;
    accept4_function *next = atomic_load(&found);
    if (!next) {
        *(void **)&next = dlsym(RTLD_NEXT, "accept4");
        atomic_store(&found, next);
    }
    const int got = next(fd, address, n, flags);
    if (got >= 0 && atomic_load_explicit(&is_missing, memory_order_relaxed)) { /* there are descriptors again */
        pthread_mutex_lock(&mu);
        keep_spare();
        pthread_mutex_unlock(&mu);
    }
    /* The rest is the port's own end. */
    if (got >= 0 || errno == EAGAIN || errno == EINTR || errno == EINVAL || errno == EBADF || errno == ENOTSOCK) {
        return got;
    }
    const int error = errno;
    if (is_guarded(fd)) {
        if (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS) {
            refuse_waiting(next, fd, error);
        }
        errno = EAGAIN;
    } else {
        errno = error;
    }
    return -1;
}
