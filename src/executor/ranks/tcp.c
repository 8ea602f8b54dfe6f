/* SPDX-License-Identifier: Apache-2.0 */
#include "executor/ranks/tcp.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { BACKLOG = 128, KEEP_IDLE_S = 5, KEEP_STEP_S = 2, KEEP_TIMES = 3 };

/* Small messages leave at once, and a peer that vanished is noticed. */
static void set_up(int fd)
{
    const int yes = 1, idle = KEEP_IDLE_S, step = KEEP_STEP_S, times = KEEP_TIMES;

    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &step, sizeof step);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof times);
}

static int listen_on(int family, uint16_t port)
{
    const int yes = 1, no = 0;
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = in6addr_any};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_ANY)};
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0) {
        return -1;
    }
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (family == AF_INET6) {
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
    }
    const struct sockaddr *at = family == AF_INET6 ? (const struct sockaddr *)&six : (const struct sockaddr *)&four;
    if (bind(fd, at, family == AF_INET6 ? sizeof six : sizeof four) != 0 || listen(fd, BACKLOG) != 0) {
        const int why = errno;
        close(fd);
        errno = why;
        return -1;
    }
    return fd;
}

nrd_error *nrd_tcp_listen(uint16_t *port, int *out)
{
    struct sockaddr_storage at = {0};
    socklen_t n = sizeof at;
    char number[8] = "0";

    *out = listen_on(AF_INET6, *port);
    if (*out < 0 && errno != EADDRINUSE) { /* a host without IPv6 */
        *out = listen_on(AF_INET, *port);
    }
    if (*out < 0) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "cannot listen on TCP port %u for ranks of other hosts: %s", *port, strerror(errno));
    }
    if (getsockname(*out, (struct sockaddr *)&at, &n) != 0 ||
        getnameinfo((const struct sockaddr *)&at, n, NULL, 0, number, sizeof number, NI_NUMERICSERV) != 0) {
        close(*out);
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "a TCP port has no number: %s", strerror(errno));
    }
    *port = (uint16_t)strtoul(number, NULL, 10);
    return NULL;
}

/* 0, or the reason. */
static int reach(int fd, const struct addrinfo *at, int ms)
{
    struct pollfd done = {.fd = fd, .events = POLLOUT};
    int why = 0;
    socklen_t n = sizeof why;
    const int flags = fcntl(fd, F_GETFL);

    (void)fcntl(fd, F_SETFL, flags | O_NONBLOCK);
    if (connect(fd, at->ai_addr, at->ai_addrlen) != 0) {
        if (errno != EINPROGRESS) {
            return errno;
        }
        if (poll(&done, 1, ms) <= 0) {
            return ETIMEDOUT;
        }
        (void)getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &n);
    }
    (void)fcntl(fd, F_SETFL, flags);
    return why;
}

nrd_error *nrd_tcp_connect(const char *host, uint16_t port, int ms, int *out)
{
    const struct addrinfo wish = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    char number[8];
    int why = 0;

    *out = -1;
    snprintf(number, sizeof number, "%u", port);
    const int unknown = getaddrinfo(host, number, &wish, &list);
    if (unknown) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "host '%s': %s", host, gai_strerror(unknown));
    }
    for (const struct addrinfo *at = list; at && *out < 0; at = at->ai_next) {
        int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        why = fd < 0 ? errno : reach(fd, at, ms);
        if (fd >= 0 && why == 0) {
            *out = fd;
        } else if (fd >= 0) {
            close(fd);
        }
    }
    freeaddrinfo(list);
    if (*out < 0) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "host %s, TCP port %u: %s", host, port, strerror(why));
    }
    set_up(*out);
    return NULL;
}

int nrd_tcp_accept(int listener, int ms)
{
    struct pollfd come = {.fd = listener, .events = POLLIN};
    const int fd = poll(&come, 1, ms) > 0 ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : -1;

    if (fd >= 0) {
        set_up(fd);
    }
    return fd;
}

bool nrd_tcp_send(int fd, const void *data, size_t bytes)
{
    for (const char *at = data; bytes > 0;) {
        const ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);
        if (n <= 0 && !(n < 0 && errno == EINTR)) {
            return false;
        }
        at += n > 0 ? n : 0;
        bytes -= n > 0 ? (size_t)n : 0;
    }
    return true;
}

/* A time limit holds for all bytes together: else who sends one at a time would never be late. */
static bool is_late(int fd, uint64_t since_ns)
{
    struct timeval most = {0};
    socklen_t n = sizeof most;

    (void)getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, &n);
    const uint64_t limit_us = (uint64_t)most.tv_sec * 1000000u + (uint64_t)most.tv_usec;
    return limit_us > 0 && (nrd_now_ns() - since_ns) / 1000u >= limit_us;
}

bool nrd_tcp_receive(int fd, void *out, size_t bytes)
{
    const uint64_t since = nrd_now_ns();

    for (char *at = out; bytes > 0;) {
        const ssize_t n = recv(fd, at, bytes, MSG_WAITALL);
        if (n <= 0 && !(n < 0 && errno == EINTR)) {
            return false;
        }
        at += n > 0 ? n : 0;
        bytes -= n > 0 ? (size_t)n : 0;
        if (bytes > 0 && is_late(fd, since)) {
            return false;
        }
    }
    return true;
}

void nrd_tcp_limit(int fd, int ms)
{
    const struct timeval most = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};

    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
}

void nrd_tcp_peer(int fd, char out[NRD_TCP_ADDRESS])
{
    static const char mapped[] = "::ffff:"; /* an IPv4 address that came through an IPv6 socket */
    struct sockaddr_storage at;
    socklen_t n = sizeof at;

    if (getpeername(fd, (struct sockaddr *)&at, &n) != 0 ||
        getnameinfo((const struct sockaddr *)&at, n, out, NRD_TCP_ADDRESS, NULL, 0, NI_NUMERICHOST) != 0) {
        snprintf(out, NRD_TCP_ADDRESS, "?");
    } else if (strncmp(out, mapped, sizeof mapped - 1) == 0) {
        memmove(out, out + sizeof mapped - 1, strlen(out + sizeof mapped - 1) + 1);
    }
}
