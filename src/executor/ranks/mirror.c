/* SPDX-License-Identifier: Apache-2.0
 * Frames: where bytes go and how many, where the mark is and its value; the bytes follow. One send for a frame. */
#include "executor/ranks/mirror.h"

#include "base/mem.h"

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CONNECT_MS = 5000, HELLO_MS = 5000, LOOK_MS = 50, MAX_GUESTS = 2 * NRD_HOSTS_MAX };

typedef struct hello {
    uint8_t token[NRD_TOKEN_BYTES];
} hello;

typedef struct frame {
    uint64_t at, bytes, mark; /* offsets in the memory */
    uint32_t value, pad;
} frame;

/* ---- sending ---- */

struct nrd_mirror {
    nrd_mirror_memory memory;
    int32_t n_hosts, own, size;
    uint8_t of[NRD_HOSTS_MAX];
    int fd[NRD_HOSTS_MAX]; /* -1: this host, or gone */
    pthread_mutex_t mu[NRD_HOSTS_MAX]; /* frames of several threads do not mix */
};

nrd_error *nrd_mirror_open(nrd_mirror **out, const nrd_mirror_memory *memory, const nrd_rank_hosts *hosts, int32_t rank,
                           int32_t size)
{
    nrd_error *err = NULL;
    nrd_mirror *m = NULL;
    hello h;

    *out = NULL;
    if (size < 2 || size > NRD_HOSTS_MAX || rank < 0 || rank >= size || hosts->n < 2 || hosts->n > NRD_HOSTS_MAX) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "rank %d of %d over %d hosts; there are at most %d", rank, size, hosts->n,
                          (int)NRD_HOSTS_MAX);
    }
    NRD_NEW_GOTO(m, 1, err, fail);
    m->memory = *memory;
    m->n_hosts = hosts->n;
    m->own = hosts->of[rank];
    m->size = size;
    memcpy(m->of, hosts->of, sizeof m->of);
    memcpy(h.token, hosts->token, sizeof h.token);
    for (int32_t i = 0; i < NRD_HOSTS_MAX; i++) {
        m->fd[i] = -1;
        pthread_mutex_init(&m->mu[i], NULL);
    }
    for (int32_t i = 0; i < m->n_hosts; i++) {
        if (i == m->own) {
            continue;
        }
        NRD_TRY_GOTO(nrd_tcp_connect(hosts->address[i], hosts->port[i], CONNECT_MS, &m->fd[i]), err, fail);
        if (!nrd_tcp_send(m->fd[i], &h, sizeof h)) {
            err = nrd_errorf(NRD_ERR_UNAVAILABLE, "host %s is gone", hosts->address[i]);
            goto fail;
        }
    }
    *out = m;
    return NULL;

fail:
    nrd_mirror_close(m);
    return err;
}

void nrd_mirror_close(nrd_mirror *m)
{
    if (!m) {
        return;
    }
    for (int32_t i = 0; i < NRD_HOSTS_MAX; i++) {
        if (m->fd[i] >= 0) {
            close(m->fd[i]);
        }
        pthread_mutex_destroy(&m->mu[i]);
    }
    free(m);
}

/* Waits for room at most until the ranks are stopped. */
static bool send_parts(const nrd_mirror *m, int fd, struct iovec *part, size_t n_parts)
{
    struct pollfd room = {.fd = fd, .events = POLLOUT};

    while (n_parts > 0) {
        const struct msghdr message = {.msg_iov = part, .msg_iovlen = n_parts};
        ssize_t n = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            if (atomic_load_explicit(m->memory.stop, memory_order_relaxed)) {
                return false;
            }
            (void)poll(&room, 1, LOOK_MS);
            continue;
        }
        if (n < 0) {
            return false;
        }
        for (; n_parts > 0 && (size_t)n >= part->iov_len; part++, n_parts--) {
            n -= (ssize_t)part->iov_len;
        }
        if (n_parts > 0) {
            part->iov_base = (char *)part->iov_base + n;
            part->iov_len -= (size_t)n;
        }
    }
    return true;
}

static uint64_t offset(const nrd_mirror *m, const void *at)
{
    return (uint64_t)((const char *)at - (const char *)m->memory.base);
}

void nrd_mirror_wrote(nrd_mirror *m, int32_t first, int32_t n, const void *data, size_t bytes, const void *mark, uint32_t value)
{
    const frame head = {.at = bytes > 0 ? offset(m, data) : 0, .bytes = bytes, .mark = offset(m, mark), .value = value};
    uint64_t done = 1ull << m->own;

    for (int32_t r = first; r < first + n && r < m->size; r++) {
        const int32_t to = m->of[r];
        if (done >> to & 1) {
            continue;
        }
        done |= 1ull << to;
        struct iovec parts[2] = {{(void *)&head, sizeof head}, {(void *)data, bytes}};
        pthread_mutex_lock(&m->mu[to]);
        if (m->fd[to] >= 0 && !send_parts(m, m->fd[to], parts, 2)) {
            close(m->fd[to]); /* half a frame may be there: nothing must follow it */
            m->fd[to] = -1;
        }
        pthread_mutex_unlock(&m->mu[to]);
    }
}

/* ---- receiving ---- */

static bool fits(const nrd_mirror_memory *memory, const frame *f)
{
    return f->bytes <= memory->bytes && f->at <= memory->bytes - f->bytes && f->mark % sizeof(uint32_t) == 0 &&
           f->mark <= memory->bytes - sizeof(uint32_t);
}

void nrd_mirror_hear(const nrd_mirror_memory *memory, int fd)
{
    char *base = memory->base;
    frame f;

    while (nrd_tcp_receive(fd, &f, sizeof f) && fits(memory, &f) && nrd_tcp_receive(fd, base + f.at, f.bytes)) {
        _Atomic uint32_t *mark = (_Atomic uint32_t *)(void *)(base + f.mark);
        atomic_store(mark, f.value);
        syscall(SYS_futex, mark, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    }
}

typedef struct guest {
    nrd_mirror_listener *listener;
    pthread_t thread;
    int fd;
    bool runs;         /* the thread is to be joined */
    atomic_bool ended; /* it has */
} guest;

struct nrd_mirror_listener {
    nrd_mirror_memory memory;
    uint8_t token[NRD_TOKEN_BYTES];
    int listens;
    pthread_t thread;
    bool runs;
    atomic_bool ends;
    guest guests[MAX_GUESTS]; /* the accepting thread's */
};

/* In a time that does not depend on how much is right. */
static bool knows_token(const nrd_mirror_listener *d, const hello *h)
{
    uint8_t differs = 0;
    for (size_t i = 0; i < sizeof d->token; i++) {
        differs |= (uint8_t)(d->token[i] ^ h->token[i]);
    }
    return differs == 0;
}

static void *hear_guest(void *user)
{
    guest *g = user;
    hello h;

    pthread_setname_np(pthread_self(), "nrd-mirror");
    nrd_tcp_limit(g->fd, HELLO_MS);
    if (nrd_tcp_receive(g->fd, &h, sizeof h) && knows_token(g->listener, &h)) {
        nrd_tcp_limit(g->fd, 0);
        nrd_mirror_hear(&g->listener->memory, g->fd);
    }
    (void)shutdown(g->fd, SHUT_RDWR); /* or the other end would go on */
    atomic_store(&g->ended, true);
    return NULL;
}

static void end_guest(guest *g)
{
    if (g->runs) {
        (void)shutdown(g->fd, SHUT_RDWR);
        pthread_join(g->thread, NULL);
        close(g->fd);
        g->runs = false;
    }
}

static void let_in(nrd_mirror_listener *d, int fd)
{
    for (int i = 0; i < MAX_GUESTS; i++) {
        guest *g = &d->guests[i];
        if (g->runs && !atomic_load(&g->ended)) {
            continue;
        }
        end_guest(g);
        *g = (guest){.listener = d, .fd = fd};
        g->runs = pthread_create(&g->thread, NULL, hear_guest, g) == 0;
        if (!g->runs) {
            break;
        }
        return;
    }
    close(fd);
}

static void *keep_listener(void *user)
{
    nrd_mirror_listener *d = user;

    pthread_setname_np(pthread_self(), "nrd-listener");
    while (!atomic_load(&d->ends)) {
        const int fd = nrd_tcp_accept(d->listens, -1);
        if (fd >= 0) {
            let_in(d, fd);
        } else {
            (void)poll(NULL, 0, 1); /* no descriptors left: later, perhaps */
        }
    }
    return NULL;
}

nrd_error *nrd_mirror_listener_open(nrd_mirror_listener **out, const nrd_mirror_memory *memory, const uint8_t token[NRD_TOKEN_BYTES],
                                uint16_t *port)
{
    nrd_error *err = NULL;
    nrd_mirror_listener *d = NULL;

    *out = NULL;
    *port = 0;
    NRD_NEW_GOTO(d, 1, err, fail);
    d->memory = *memory;
    memcpy(d->token, token, sizeof d->token);
    NRD_TRY_GOTO(nrd_tcp_listen(port, &d->listens), err, fail);
    d->runs = pthread_create(&d->thread, NULL, keep_listener, d) == 0;
    if (!d->runs) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "no thread for ranks of other hosts");
        goto fail;
    }
    *out = d;
    return NULL;

fail:
    if (d) {
        nrd_mirror_listener_close(d);
    }
    return err;
}

void nrd_mirror_listener_close(nrd_mirror_listener *d)
{
    if (!d) {
        return;
    }
    if (d->runs) {
        atomic_store(&d->ends, true);
        (void)shutdown(d->listens, SHUT_RDWR);
        pthread_join(d->thread, NULL);
    }
    for (int i = 0; i < MAX_GUESTS; i++) {
        end_guest(&d->guests[i]);
    }
    if (d->listens > 0) {
        close(d->listens);
    }
    free(d);
}
