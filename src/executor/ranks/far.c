/* SPDX-License-Identifier: Apache-2.0 */
#include "executor/ranks/far.h"

#include "base/clock.h"
#include "base/mem.h"
#include "executor/ranks/launched.h"
#include "executor/ranks/others.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct far_host {
    struct nrd_far *far;
    int32_t id;     /* of the launcher's hosts */
    char name[NRD_HOST_NAME + NRD_TCP_ADDRESS + 4];
    int fd;         /* -1: not connected */
    pthread_t thread;
    bool runs;
} far_host;

struct nrd_far {
    int32_t size;
    nrd_rank_hosts hosts;
    far_host at[NRD_HOSTS_MAX]; /* [0] is not used */
    int sock[NRD_HOSTS_MAX];    /* of each rank elsewhere, its host's thread's; -1: none */
    nrd_mirror_listener *listener;
    int wake[2]; /* pipe: its end ends the threads */
    pthread_mutex_t mu; /* of wake[1] */
};

/* Numbers the hosts that the engine's ranks are on in the order of the ranks; ids: those of launched.h. */
static nrd_error *find_hosts(int32_t size, const nrd_rank_config *config, nrd_rank_hosts *out, int32_t ids[NRD_HOSTS_MAX])
{
    out->n = 1;
    ids[0] = 0;
    for (int32_t r = 1; r < size; r++) {
        int32_t id = 0, k = 0;
        NRD_TRY(nrd_launched_host(config->launched[r], &id));
        while (k < out->n && ids[k] != id) {
            k++;
        }
        if (k == out->n) {
            ids[out->n++] = id;
        }
        out->of[r] = (uint8_t)k;
    }
    return NULL;
}

nrd_error *nrd_far_is_needed(int32_t size, const nrd_rank_config *config, bool *out)
{
    nrd_rank_hosts hosts = {0};
    int32_t ids[NRD_HOSTS_MAX];

    *out = false;
    if (!nrd_launched_over_hosts()) {
        return NULL;
    }
    NRD_TRY(find_hosts(size, config, &hosts, ids));
    *out = hosts.n > 1;
    return NULL;
}

/* ---- opening ---- */

static nrd_error *no_answer(const far_host *h)
{
    return nrd_errorf(NRD_ERR_UNAVAILABLE,
                      "host %s does not answer within %d s: it is gone, or the network is cut",
                      h->name, NRD_WIRE_MS / 1000);
}

/* Until each host has connected for this engine. */
static nrd_error *let_in(nrd_far *f, int listens)
{
    const uint64_t until = nrd_now_ns() + NRD_WIRE_MS * 1000000ull;

    for (int32_t k = 1; k < f->hosts.n;) {
        nrd_wire_guest who;
        int32_t i = 1;
        if (nrd_now_ns() > until) {
            return no_answer(&f->at[k]);
        }
        const int fd = nrd_tcp_accept(listens, NRD_WIRE_BEAT_MS);
        if (fd < 0) {
            continue;
        }
        nrd_tcp_limit(fd, NRD_WIRE_MS);
        const bool knows = nrd_tcp_receive(fd, &who, sizeof who) && memcmp(who.token, f->hosts.token, sizeof who.token) == 0;
        for (; i < f->hosts.n && (f->at[i].fd >= 0 || nrd_others_leader(f->at[i].id) != who.leader); i++) {
        }
        if (!knows || i == f->hosts.n) {
            close(fd);
            continue;
        }
        f->at[i].fd = fd;
        for (; k < f->hosts.n && f->at[k].fd >= 0; k++) {
        }
    }
    return NULL;
}

static nrd_error *call_hosts(nrd_far *f)
{
    nrd_wire_order order = {.kind = NRD_ORDER_START};
    int listens = -1;
    nrd_error *err = NULL;

    NRD_TRY(nrd_tcp_listen(&order.port, &listens));
    memcpy(order.token, f->hosts.token, sizeof order.token);
    for (int32_t k = 1; k < f->hosts.n && !err; k++) {
        err = nrd_others_order(f->at[k].id, &order);
    }
    err = err ? err : let_in(f, listens);
    close(listens);
    return err;
}

static nrd_error *open_there(nrd_far *f, far_host *h, int32_t k, const nrd_wire_engine *engine)
{
    nrd_wire_listener listener;

    if (!nrd_tcp_send(h->fd, engine, sizeof *engine) || !nrd_tcp_receive(h->fd, &listener, sizeof listener)) {
        return no_answer(h);
    }
    listener.text[sizeof listener.text - 1] = '\0';
    if (listener.failed) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "host %s: %s", h->name, listener.text);
    }
    nrd_tcp_peer(h->fd, f->hosts.address[k]);
    f->hosts.port[k] = listener.port;
    return NULL;
}

static nrd_error *open_all(nrd_far *f, nrd_segment *s, int32_t n_ahead, size_t comm_bytes, const nrd_rank_config *config)
{
    const nrd_mirror_memory memory = nrd_segment_memory(s);
    nrd_wire_engine *engine = NULL;
    nrd_wire_hosts *where = NULL;
    nrd_error *err = NULL;

    NRD_NEW_GOTO(where, 1, err, done);
    NRD_NEW_GOTO(engine, 1, err, done);
    engine->size = f->size;
    engine->n_ahead = n_ahead;
    engine->comm_bytes = comm_bytes;
    engine->config = *config;
    NRD_TRY_GOTO(nrd_mirror_listener_open(&f->listener, &memory, f->hosts.token, &f->hosts.port[0]), err, done);
    NRD_TRY_GOTO(call_hosts(f), err, done);
    for (int32_t k = 1; k < f->hosts.n; k++) {
        NRD_TRY_GOTO(open_there(f, &f->at[k], k, engine), err, done);
    }
    where->all = f->hosts;
    for (where->own = 1; where->own < f->hosts.n; where->own++) {
        const int32_t k = where->own;
        if (!nrd_tcp_send(f->at[k].fd, where, sizeof *where)) {
            err = no_answer(&f->at[k]);
            goto done;
        }
    }
    nrd_segment_set_hosts(s, &f->hosts);
    err = nrd_segment_connect(s);
done:
    free(where);
    free(engine);
    return err;
}

nrd_error *nrd_far_open(nrd_far **out, nrd_segment *s, int32_t size, int32_t n_ahead, size_t comm_bytes,
                        const nrd_rank_config *config)
{
    int32_t ids[NRD_HOSTS_MAX];
    nrd_error *err = NULL;
    nrd_far *f = NULL;

    *out = NULL;
    NRD_NEW_GOTO(f, 1, err, fail);
    pthread_mutex_init(&f->mu, NULL);
    f->size = size;
    f->wake[0] = f->wake[1] = -1;
    for (int32_t i = 0; i < NRD_HOSTS_MAX; i++) {
        f->at[i] = (far_host){.far = f, .fd = -1};
        f->sock[i] = -1;
    }
    NRD_TRY_GOTO(find_hosts(size, config, &f->hosts, ids), err, fail);
    for (int32_t k = 0; k < f->hosts.n; k++) {
        f->at[k].id = ids[k];
        snprintf(f->at[k].name, sizeof f->at[k].name, "%s", nrd_others_name(ids[k]));
    }
    if (getrandom(f->hosts.token, NRD_TOKEN_BYTES, 0) != NRD_TOKEN_BYTES || pipe(f->wake) != 0) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "ranks of other hosts: %s", strerror(errno));
        goto fail;
    }
    NRD_TRY_GOTO(open_all(f, s, n_ahead, comm_bytes, config), err, fail);
    *out = f;
    return NULL;

fail:
    nrd_far_free(f);
    return err;
}

const char *nrd_far_host_name(const nrd_far *f, int32_t rank)
{
    return rank > 0 && rank < f->size && f->hosts.of[rank] > 0 ? f->at[f->hosts.of[rank]].name
                                                               : NULL;
}

/* ---- watching ---- */

void nrd_far_attach(nrd_far *f, int32_t rank, int sock)
{
    f->sock[rank] = sock;
}

static void pass_on(nrd_far *f, int32_t rank, const nrd_rank_reply *reply, bool is_last)
{
    if (rank > 0 && rank < f->size && f->sock[rank] >= 0) {
        (void)!send(f->sock[rank], reply, sizeof *reply, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (is_last) {
            close(f->sock[rank]);
            f->sock[rank] = -1;
        }
    }
}

static void lose_host(far_host *h, const char *how)
{
    nrd_far *f = h->far;
    nrd_rank_reply reply = {.failed = true, .code = NRD_ERR_UNAVAILABLE};

    snprintf(reply.text, sizeof reply.text, "its host %s %s", h->name, how);
    for (int32_t r = 1; r < f->size; r++) {
        if (&f->at[f->hosts.of[r]] == h) {
            pass_on(f, r, &reply, true);
        }
    }
}

/* One thing that the host says; false: it is gone. */
static bool hear(far_host *h)
{
    nrd_wire_said said;
    nrd_rank_reply reply;

    if (!nrd_tcp_receive(h->fd, &said, sizeof said)) {
        return false;
    }
    if (said.kind == NRD_SAID_BEAT) {
        return true;
    }
    if (!nrd_tcp_receive(h->fd, &reply, sizeof reply)) {
        return false;
    }
    nrd_wire_mend_reply(&reply);
    if (said.rank > 0 && said.rank < h->far->size && &h->far->at[h->far->hosts.of[said.rank]] == h) {
        pass_on(h->far, said.rank, &reply, said.kind == NRD_SAID_LOST);
    }
    return true;
}

static void *watch_host(void *user)
{
    far_host *h = user;
    const nrd_wire_said beat = {.kind = NRD_SAID_BEAT};
    struct pollfd fds[2] = {{.fd = h->fd, .events = POLLIN}, {.fd = h->far->wake[0], .events = POLLIN}};
    int64_t silent_ms = 0, said_ms = 0;
    char how[96];

    pthread_setname_np(pthread_self(), "nrd-host");
    nrd_tcp_limit(h->fd, NRD_WIRE_SILENT_MS);
    for (int64_t looked = (int64_t)(nrd_now_ns() / 1000000);;) {
        (void)poll(fds, 2, NRD_WIRE_BEAT_MS);
        const int64_t now = (int64_t)(nrd_now_ns() / 1000000), ms = now - looked;
        looked = now;
        silent_ms = fds[0].revents ? 0 : silent_ms + (ms < 2 * NRD_WIRE_BEAT_MS ? ms : 2 * NRD_WIRE_BEAT_MS);
        if (fds[1].revents) {
            break;
        }
        if (now - said_ms >= NRD_WIRE_BEAT_MS) {
            said_ms = now;
            (void)nrd_tcp_send(h->fd, &beat, sizeof beat);
        }
        if (fds[0].revents && !hear(h)) {
            lose_host(h, "ended the connection");
            break;
        }
        if (silent_ms > NRD_WIRE_SILENT_MS) {
            snprintf(how, sizeof how, "has shown no sign of life for %.1f s", (double)silent_ms / 1e3);
            lose_host(h, how);
            break;
        }
    }
    (void)shutdown(h->fd, SHUT_RDWR); /* its ranks end */
    return NULL;
}

nrd_error *nrd_far_run(nrd_far *f)
{
    for (int32_t k = 1; k < f->hosts.n; k++) {
        f->at[k].runs = pthread_create(&f->at[k].thread, NULL, watch_host, &f->at[k]) == 0;
        if (!f->at[k].runs) {
            return nrd_errorf(NRD_ERR_UNAVAILABLE, "no thread for ranks of other hosts");
        }
    }
    return NULL;
}

void nrd_far_end(nrd_far *f)
{
    if (f) {
        pthread_mutex_lock(&f->mu);
        if (f->wake[1] >= 0) {
            close(f->wake[1]);
            f->wake[1] = -1;
        }
        pthread_mutex_unlock(&f->mu);
    }
}

void nrd_far_free(nrd_far *f)
{
    if (!f) {
        return;
    }
    nrd_far_end(f);
    for (int32_t k = 0; k < NRD_HOSTS_MAX; k++) {
        if (f->at[k].runs) {
            pthread_join(f->at[k].thread, NULL);
        }
        if (f->at[k].fd >= 0) {
            close(f->at[k].fd);
        }
        if (f->sock[k] >= 0) {
            close(f->sock[k]);
        }
    }
    nrd_mirror_listener_close(f->listener);
    if (f->wake[0] >= 0) {
        close(f->wake[0]);
    }
    pthread_mutex_destroy(&f->mu);
    free(f);
}
