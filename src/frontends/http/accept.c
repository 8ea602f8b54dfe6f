/* SPDX-License-Identifier: Apache-2.0
 * The listening socket: accepts connections and spreads them over the loops. */
#include "frontends/http/conn.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <event2/listener.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define DEFAULT_STALL_SECS 120
#define DEFAULT_MIN_RATE 1024 /* bytes a second */
#define MAX_LATE 64           /* connections of a loop that drains */
#define WARN_EVERY_NS (5ull * 1000000000u)

typedef struct hand_over {
    nrd_http_task task;
    nrd_http_loop *loop;
    int fd;
    bool make_room;
} hand_over;

/* Behind TLS nobody could read the answer. */
static void refuse(const nrd_http_server *s, int fd, const char *answer, size_t n)
{
    if (!s->cfg.tls) {
        (void)!send(fd, answer, n, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    close(fd);
}

/* On the loop's thread. make_room: descriptors have run out, another connection of this loop goes first;
 * where none waits, the new one may at least ask for health. */
static void take(nrd_http_loop *l, int fd, bool make_room)
{
    static const char full[] = "HTTP/1.1 503 Service Unavailable\r\n"
                               "Content-Type: application/json\r\nContent-Length: 53\r\n"
                               "Connection: close\r\n\r\n"
                               "{\"error\":\"no descriptor for a connection, try later\"}";
    const bool has_room = !make_room || nrd_http_loop_shed(l);
    const bool may_be_late = l->server->cfg.drain_prefix && l->n_late < MAX_LATE;
    if (has_room && !l->draining) {
        nrd_http_conn_new(l, fd, false);
        return;
    }
    if (may_be_late) {
        nrd_http_conn_new(l, fd, true);
        return;
    }
    atomic_fetch_sub(&l->n_conns, 1);
    if (l->draining) {
        close(fd);
    } else {
        refuse(l->server, fd, full, sizeof full - 1);
    }
}

static void run_hand_over(nrd_http_task *task)
{
    hand_over *h = (hand_over *)(void *)task;
    take(h->loop, h->fd, h->make_room);
    free(h);
}

static void place(nrd_http_loop *l, int fd, bool make_room)
{
    atomic_fetch_add(&l->n_conns, 1);
    if (l == nrd_http_here) {
        take(l, fd, make_room);
        return;
    }
    hand_over *h = malloc(sizeof *h);
    if (!h) {
        close(fd);
        atomic_fetch_sub(&l->n_conns, 1);
        return;
    }
    h->task.run = run_hand_over;
    h->loop = l;
    h->fd = fd;
    h->make_room = make_room;
    nrd_http_post(l, &h->task);
}

static void on_accept(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *addr,
                      int addr_n, void *arg)
{
    nrd_http_server *s = arg;
    nrd_http_loop *best = &s->loops[0];
    (void)listener;
    (void)addr;
    (void)addr_n;
    if (s->cfg.max_connections && nrd_http_server_connections(s) >= s->cfg.max_connections) {
        static const char full[] = "HTTP/1.1 503 Service Unavailable\r\n"
                                   "Content-Type: application/json\r\nContent-Length: 43\r\n"
                                   "Connection: close\r\n\r\n"
                                   "{\"error\":\"too many connections, try later\"}";
        refuse(s, fd, full, sizeof full - 1);
        return;
    }
    for (int i = 1; i < s->n_loops; i++) {
        if (atomic_load(&s->loops[i].n_conns) < atomic_load(&best->n_conns)) {
            best = &s->loops[i];
        }
    }
    place(best, fd, false);
}

/* Out of descriptors: a spare one takes the connection, and a loop closes another for it. */
static bool accept_with_spare(nrd_http_server *s)
{
    nrd_http_spare_keep(&s->spare);
    if (!nrd_http_spare_give(&s->spare)) {
        return false;
    }
    int fd = accept4(evconnlistener_get_fd(s->listener), NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
        place(&s->loops[s->next_to_shed], fd, true);
        s->next_to_shed = (s->next_to_shed + 1) % s->n_loops;
    }
    nrd_http_spare_keep(&s->spare);
    return fd >= 0;
}

static void on_accept_error(struct evconnlistener *listener, void *arg)
{
    nrd_http_server *s = arg;
    const int error = errno;
    const uint64_t now = nrd_now_ns();
    struct timeval pause = {0, 10000};

    nrd_http_loop_awake(&s->loops[0]);
    if (!s->warned_ns || now - s->warned_ns > WARN_EVERY_NS) {
        s->warned_ns = now;
        NRD_LOG_WARN("%s service cannot accept a connection: %s", s->cfg.name, strerror(error));
    }
    if ((error == EMFILE || error == ENFILE) && accept_with_spare(s)) {
        return;
    }
    evconnlistener_disable(listener); /* trying again at once would spin */
    event_add(s->ev_accept_again, &pause);
}

static void on_accept_again(evutil_socket_t fd, short what, void *arg)
{
    nrd_http_server *s = arg;
    (void)fd;
    (void)what;
    nrd_http_spare_keep(&s->spare);
    if (s->listener) {
        evconnlistener_enable(s->listener);
    }
}

/* A descriptor of our own for a socket that is somebody else's. */
static nrd_error *use_listener(int listening, int *out_fd)
{
    const int fd = fcntl(listening, F_DUPFD_CLOEXEC, 3);
    const int flags = fd < 0 ? -1 : fcntl(fd, F_GETFL);

    *out_fd = fd;
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "descriptor %d: %s", listening, strerror(errno));
    }
    return NULL;
}

static nrd_error *bind_listener(const nrd_http_server *s, int *out_fd)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    char port[16];
    int one = 1, fd = -1, saved = 0;

    *out_fd = -1;
    snprintf(port, sizeof port, "%d", s->cfg.port);
    int rc = getaddrinfo(s->cfg.address, port, &hints, &list);
    if (rc != 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "address '%s': %s", s->cfg.address,
                          gai_strerror(rc));
    }
    for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol);
        if (fd < 0) {
            saved = errno;
            continue;
        }
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (s->cfg.reuse_port) {
            setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
        }
        if (bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, 1024) != 0) {
            saved = errno;
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    if (fd < 0) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE,
                          saved == EADDRINUSE ? "Socket '%s:%d' already in use "
                                              : "Socket '%s:%d': %s",
                          s->cfg.address, s->cfg.port, strerror(saved));
    }
    *out_fd = fd;
    return NULL;
}

static nrd_error *open_listener(nrd_http_server *s, int *out_fd)
{
    struct sockaddr_storage bound;
    socklen_t n = sizeof bound;

    NRD_TRY(s->cfg.listening ? use_listener(s->cfg.listening, out_fd) : bind_listener(s, out_fd));
    s->port = s->cfg.port;
    if (getsockname(*out_fd, (struct sockaddr *)&bound, &n) == 0) {
        s->port = bound.ss_family == AF_INET6
                      ? ntohs(((struct sockaddr_in6 *)(void *)&bound)->sin6_port)
                      : ntohs(((struct sockaddr_in *)(void *)&bound)->sin_port);
    }
    return NULL;
}

static void fail_plainly(nrd_http_request *req, int status, const char *message, void *user)
{
    (void)user;
    nrd_http_reply_error(req, status, message);
}

nrd_error *nrd_http_server_start(nrd_http_server **out, const nrd_http_config *cfg)
{
    nrd_error *err = NULL;
    nrd_http_server *s = NULL;
    int fd = -1;

    *out = NULL;
    NRD_NEW_GOTO(s, 1, err, fail);
    s->cfg = *cfg;
    s->cfg.stall_secs = cfg->stall_secs ? cfg->stall_secs : DEFAULT_STALL_SECS;
    s->cfg.min_rate = cfg->min_rate ? cfg->min_rate : DEFAULT_MIN_RATE;
    s->cfg.fail = cfg->fail ? cfg->fail : fail_plainly;
    NRD_NEW_GOTO(s->loops, cfg->n_threads, err, fail);
    s->n_loops = cfg->n_threads;
    for (int i = 0; i < s->n_loops; i++) {
        s->loops[i].wake_fd = -1;
    }
    if (!cfg->no_port) {
        NRD_TRY_GOTO(open_listener(s, &fd), err, fail);
    }
    for (int i = 0; i < s->n_loops; i++) {
        NRD_TRY_GOTO(nrd_http_loop_init(&s->loops[i], s), err, fail);
    }
    if (!cfg->no_port) {
        s->listener = evconnlistener_new(s->loops[0].base, on_accept, s,
                                         LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 0, fd);
        if (!s->listener) {
            err = nrd_errorf(NRD_ERR_INTERNAL, "cannot listen on port %d", s->port);
            goto fail;
        }
        fd = -1; /* the listener owns it */
        evconnlistener_set_error_cb(s->listener, on_accept_error);
    }
    s->ev_accept_again = event_new(s->loops[0].base, -1, 0, on_accept_again, s);
    if (!s->ev_accept_again) {
        err = nrd_error_no_memory();
        goto fail;
    }
    nrd_http_spare_keep(&s->spare);
    for (int i = 0; i < s->n_loops; i++) {
        char name[16];
        if (pthread_create(&s->loops[i].thread, NULL, nrd_http_loop_main, &s->loops[i]) != 0) {
            err = nrd_errorf(NRD_ERR_INTERNAL, "cannot start a thread");
            goto fail;
        }
        s->loops[i].started = true;
        snprintf(name, sizeof name, "%.7s-%u", cfg->name, (unsigned)i % 1000u);
        pthread_setname_np(s->loops[i].thread, name);
    }
    *out = s;
    return NULL;

fail:
    if (fd >= 0) {
        close(fd);
    }
    nrd_http_server_free(s);
    return err;
}

int nrd_http_server_port(const nrd_http_server *s)
{
    return s->port;
}

bool nrd_http_server_responds(nrd_http_server *s)
{
    bool ok = true;
    for (int i = 0; i < s->n_loops; i++) {
        nrd_http_loop *l = &s->loops[i];
        if (atomic_exchange(&l->pulse_waits, true)) {
            ok = false;
        } else {
            nrd_http_post(l, &l->pulse_task);
        }
    }
    return ok;
}

void nrd_http_server_drain(nrd_http_server *s)
{
    for (int i = 0; i < s->n_loops; i++) {
        nrd_http_post(&s->loops[i], &s->loops[i].drain_task);
    }
}

size_t nrd_http_server_connections(const nrd_http_server *s)
{
    size_t n = 0;
    for (int i = 0; i < s->n_loops; i++) {
        n += atomic_load(&s->loops[i].n_conns);
    }
    return n;
}

void nrd_http_server_free(nrd_http_server *s)
{
    if (!s) {
        return;
    }
    for (int i = 0; i < s->n_loops; i++) {
        if (s->loops[i].started) {
            nrd_http_post(&s->loops[i], &s->loops[i].stop_task);
        }
    }
    for (int i = 0; i < s->n_loops; i++) {
        if (s->loops[i].started) {
            pthread_join(s->loops[i].thread, NULL);
        }
    }
    if (s->listener) {
        evconnlistener_free(s->listener);
    }
    if (s->ev_accept_again) {
        event_free(s->ev_accept_again);
    }
    for (int i = 0; i < s->n_loops; i++) {
        nrd_http_loop *l = &s->loops[i];
        nrd_http_loop_wait_posts(l);
        if (l->ev_wake) {
            event_free(l->ev_wake);
        }
        if (l->ev_tick) {
            event_free(l->ev_tick);
        }
        if (l->base) {
            event_base_free(l->base);
        }
        if (l->wake_fd >= 0) {
            close(l->wake_fd);
        }
    }
    nrd_http_spare_close(&s->spare);
    free(s->loops);
    free(s);
}
