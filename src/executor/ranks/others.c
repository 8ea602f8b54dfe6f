/* SPDX-License-Identifier: Apache-2.0 */
#include "executor/ranks/others.h"

#include "device/device.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HELLO_MS = 2000 };

typedef struct other {
    int fd; /* -1: the connection is lost */
    char name[NRD_HOST_NAME + NRD_TCP_ADDRESS + 4];
    nrd_wire_hello hello;
} other;

static struct {
    pthread_mutex_t mu;
    int listener; /* 0: there is none */
    char key[NRD_CARD_KEY];
    int32_t size, n;
    other at[NRD_HOSTS_MAX]; /* [0]: this host, not used */
} others = {.mu = PTHREAD_MUTEX_INITIALIZER};

void nrd_others_begin(int listener, const nrd_card *card, int32_t size)
{
    others.listener = listener;
    others.size = size;
    others.n = 1;
    memcpy(others.key, card->key, sizeof others.key);
}

int nrd_others_listener(void)
{
    return others.listener > 0 ? others.listener : -1;
}

/* Its old place, or a new one; NULL: there are too many. */
static other *place_for(const nrd_wire_hello *h)
{
    for (int32_t i = 1; i < others.n; i++) {
        if (others.at[i].hello.ranks[0] == h->ranks[0]) {
            return &others.at[i];
        }
    }
    if (others.n == NRD_HOSTS_MAX) {
        return NULL;
    }
    others.at[others.n].fd = -1;
    return &others.at[others.n++];
}

static void greet(int fd, nrd_wire_hello *h, nrd_error **err)
{
    nrd_wire_answer answer = {0};
    char address[NRD_TCP_ADDRESS];

    nrd_tcp_limit(fd, HELLO_MS);
    if (!nrd_tcp_receive(fd, h, sizeof *h)) {
        close(fd);
        return;
    }
    nrd_tcp_peer(fd, address);
    const bool is_ours =
        nrd_wire_knows_key(h, others.key); /* who is not can do no more than be refused */
    if (is_ours && strncmp(h->build, nrd_device_id(), sizeof h->build - 1) != 0) {
        *err = nrd_errorf(NRD_ERR_UNSUPPORTED, "host %s has another build of this program; install the same one on every host",
                          address);
    } else if (!is_ours || !nrd_wire_check_hello(h, others.size)) {
        answer.refused = 1;
        snprintf(answer.text, sizeof answer.text, "it is of another job, or NEREID_RANKS_KEY differs");
    }
    if (*err) {
        answer.refused = 1;
        snprintf(answer.text, sizeof answer.text, "it has another build of this program; install the same one on every host");
    }
    other *o = answer.refused ? NULL : place_for(h);
    if (!nrd_tcp_send(fd, &answer, sizeof answer) || !o) {
        close(fd);
        return;
    }
    if (o->fd >= 0) {
        close(o->fd);
    }
    o->fd = fd;
    o->hello = *h;
    snprintf(o->name, sizeof o->name, "%s (%s)", h->name, address);
}

nrd_error *nrd_others_take(void)
{
    nrd_error *err = NULL;
    nrd_wire_hello h;
    int fd;

    pthread_mutex_lock(&others.mu);
    while (others.listener > 0 && !err && (fd = nrd_tcp_accept(others.listener, 0)) >= 0) {
        greet(fd, &h, &err);
    }
    pthread_mutex_unlock(&others.mu);
    return err;
}

/* Nothing is ever said to rank 0 here: what can be read is the end. */
static bool is_lost(other *o)
{
    char byte;

    if (o->fd < 0) {
        return true;
    }
    const ssize_t n = recv(o->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n >= 0 || (errno != EAGAIN && errno != EINTR)) {
        close(o->fd);
        o->fd = -1;
    }
    return o->fd < 0;
}

int32_t nrd_others_host_of(int32_t launched)
{
    int32_t host = 0;

    pthread_mutex_lock(&others.mu);
    for (int32_t i = 1; i < others.n && host == 0; i++) {
        for (int32_t k = 0; k < others.at[i].hello.n && host == 0; k++) {
            host = others.at[i].hello.ranks[k] == launched && !is_lost(&others.at[i]) ? i : 0;
        }
    }
    pthread_mutex_unlock(&others.mu);
    return host;
}

const char *nrd_others_name(int32_t host)
{
    return others.at[host].name;
}

int32_t nrd_others_leader(int32_t host)
{
    return others.at[host].hello.ranks[0];
}

nrd_error *nrd_others_order(int32_t host, const nrd_wire_order *order)
{
    pthread_mutex_lock(&others.mu);
    const bool told = others.at[host].fd >= 0 && nrd_tcp_send(others.at[host].fd, order, sizeof *order);
    pthread_mutex_unlock(&others.mu);
    return told ? NULL : nrd_errorf(NRD_ERR_UNAVAILABLE, "host %s is gone", others.at[host].name);
}

void nrd_others_end(void)
{
    const nrd_wire_order order = {.kind = NRD_ORDER_END};

    for (int32_t i = 1; i < others.n; i++) {
        nrd_error_free(nrd_others_order(i, &order));
    }
}
