/* SPDX-License-Identifier: Apache-2.0 */
#include "executor/ranks/host.h"

#include "base/clock.h"
#include "base/mem.h"
#include "device/device.h"
#include "executor/ranks/launched.h"
#include "executor/ranks/life.h"
#include "executor/ranks/spawn.h"
#include "executor/ranks/wire.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { RETRY_MS = 500 };

/* ---- an engine ---- */

typedef struct engine {
    char address[NRD_TCP_ADDRESS]; /* rank 0's */
    nrd_wire_order order;
    int32_t leader;
    int fd;
    nrd_segment *segment;
    nrd_mirror_listener *listener;
    int32_t size, n; /* ranks of the engine; those of this host */
    int32_t rank[NRD_RANKS_MAX];
    int sock[NRD_RANKS_MAX]; /* of each of the n; -1: it has ended */
    nrd_worker_life life[NRD_RANKS_MAX];
} engine;

/* The memory and the listener; *fd: the memory's, the caller's. */
static nrd_error *make_memory(engine *e, const nrd_wire_engine *wish, uint16_t *port, int *fd)
{
    *fd = -1;
    NRD_TRY(nrd_wire_check_engine(wish));
    NRD_TRY(nrd_segment_new(&e->segment, wish->size, wish->n_ahead, wish->comm_bytes, &wish->config, fd));
    *fd = nrd_worker_move_up(*fd);
    const nrd_mirror_memory memory = nrd_segment_memory(e->segment);
    e->size = wish->size;
    return nrd_mirror_listener_open(&e->listener, &memory, e->order.token, port);
}

static nrd_error *start_rank(engine *e, int32_t rank, int segment_fd)
{
    const int32_t i = e->n;
    int pair[2];
    pid_t unused;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        e->rank[i] = rank;
        e->sock[i] = -1;
        e->n++;
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "no socket for rank %d: %s", rank, strerror(errno));
    }
    e->rank[i] = rank;
    e->sock[i] = pair[0];
    e->n++;
    pair[1] = nrd_worker_move_up(pair[1]);
    nrd_error *err = nrd_launched_start(nrd_segment_config(e->segment)->launched[rank], rank, segment_fd, pair[1], &unused);
    close(pair[1]);
    return err;
}

static void say(engine *e, int32_t kind, int32_t i, const nrd_rank_reply *reply)
{
    struct {
        nrd_wire_said said;
        nrd_rank_reply reply;
    } whole = {.said = {.kind = kind, .rank = e->rank[i]}, .reply = *reply};

    _Static_assert(sizeof whole == sizeof whole.said + sizeof whole.reply, "one behind the other");
    (void)nrd_tcp_send(e->fd, &whole, sizeof whole);
}

static void say_lost(engine *e, int32_t i, const char *how)
{
    nrd_rank_reply reply = {.failed = true, .code = NRD_ERR_UNAVAILABLE};

    snprintf(reply.text, sizeof reply.text, "%s", how);
    say(e, NRD_SAID_LOST, i, &reply);
    if (e->sock[i] >= 0) {
        close(e->sock[i]); /* it ends, if it lives */
        e->sock[i] = -1;
    }
}

/* Makes the memory and tells rank 0 of its listener. false: rank 0 is gone, or hears why not. */
static bool open_memory(engine *e, int *memory_fd)
{
    nrd_wire_engine *wish = calloc(1, sizeof *wish);
    nrd_wire_listener listener = {0};
    bool is_well = wish && nrd_tcp_receive(e->fd, wish, sizeof *wish);
    nrd_error *err = is_well ? make_memory(e, wish, &listener.port, memory_fd) : NULL;

    if (err) {
        listener.failed = 1;
        snprintf(listener.text, sizeof listener.text, "%s", nrd_error_message(err));
    }
    is_well = is_well && nrd_tcp_send(e->fd, &listener, sizeof listener) && !err;
    nrd_error_free(err);
    free(wish);
    return is_well;
}

/* Starts the ranks of this host; one that cannot be started is lost. */
static bool open_engine(engine *e)
{
    nrd_wire_hosts *where = calloc(1, sizeof *where);
    int memory_fd = -1;
    const bool is_well = where && open_memory(e, &memory_fd) &&
                         nrd_tcp_receive(e->fd, where, sizeof *where) &&
                         nrd_wire_check_hosts(where, e->size);

    if (is_well) {
        snprintf(where->all.address[0], NRD_TCP_ADDRESS, "%s", e->address);
        nrd_segment_set_hosts(e->segment, &where->all);
    }
    for (int32_t r = 1; is_well && r < e->size; r++) {
        nrd_error *err = where->all.of[r] == where->own ? start_rank(e, r, memory_fd) : NULL;
        if (err) {
            say_lost(e, e->n - 1, nrd_error_message(err));
            nrd_error_free(err);
        }
    }
    if (memory_fd >= 0) {
        close(memory_fd);
    }
    free(where);
    return is_well;
}

/* What a rank says, or that it has ended. */
static void hear_rank(engine *e, int32_t i)
{
    nrd_rank_reply reply;

    if (recv(e->sock[i], &reply, sizeof reply, 0) == (ssize_t)sizeof reply) {
        say(e, NRD_SAID_REPLY, i, &reply);
        return;
    }
    say_lost(e, i, "its process ended");
}

static void look_at_ranks(engine *e, const struct pollfd *fds, int64_t ms)
{
    char how[128];

    for (int32_t i = 0; i < e->n; i++) {
        if (e->sock[i] < 0) {
            continue;
        }
        const nrd_rank_life life = nrd_segment_life(e->segment, e->rank[i]);
        if (fds[i].revents) {
            hear_rank(e, i);
        } else if (life.n_beats > 0 && nrd_worker_stands_still(&e->life[i], &life, ms, how, sizeof how)) {
            say_lost(e, i, how);
            (void)kill(life.process, SIGKILL); /* one that was stopped does not see its socket's end; it has given a beat */
        }
    }
}

/* Until rank 0 ends the engine, or is gone. */
static void serve_engine(engine *e)
{
    const nrd_wire_said beat = {.kind = NRD_SAID_BEAT};
    struct pollfd fds[1 + NRD_RANKS_MAX];
    int64_t silent_ms = 0, said_ms = 0;
    nrd_wire_said said;

    nrd_tcp_limit(e->fd, NRD_WIRE_SILENT_MS);
    for (int64_t looked = (int64_t)(nrd_now_ns() / 1000000); silent_ms <= NRD_WIRE_SILENT_MS;) {
        fds[0] = (struct pollfd){.fd = e->fd, .events = POLLIN};
        for (int32_t i = 0; i < e->n; i++) {
            fds[1 + i] = (struct pollfd){.fd = e->sock[i], .events = POLLIN};
        }
        (void)poll(fds, (nfds_t)(1 + e->n), NRD_WIRE_BEAT_MS);
        const int64_t now = (int64_t)(nrd_now_ns() / 1000000), gone = now - looked;
        const int64_t ms = gone < 2 * NRD_WIRE_BEAT_MS ? gone : 2 * NRD_WIRE_BEAT_MS;
        looked = now;
        silent_ms = fds[0].revents ? 0 : silent_ms + ms;
        if (fds[0].revents && !nrd_tcp_receive(e->fd, &said, sizeof said)) {
            return;
        }
        if (now - said_ms >= NRD_WIRE_BEAT_MS) {
            said_ms = now;
            (void)nrd_tcp_send(e->fd, &beat, sizeof beat);
        }
        look_at_ranks(e, fds + 1, ms);
    }
}

static void *run_engine(void *user)
{
    engine *e = user;
    nrd_wire_guest who = {.leader = e->leader};

    pthread_setname_np(pthread_self(), "nrd-host");
    memcpy(who.token, e->order.token, sizeof who.token);
    nrd_error *err = nrd_tcp_connect(e->address, e->order.port, NRD_WIRE_MS, &e->fd);
    if (!err) {
        nrd_tcp_limit(e->fd, NRD_WIRE_MS);
        if (nrd_tcp_send(e->fd, &who, sizeof who) && open_engine(e)) {
            serve_engine(e);
        }
    }
    nrd_error_free(err); /* rank 0 does not wait for it any more */
    if (e->segment) {
        nrd_segment_stop(e->segment, 0);
    }
    for (int32_t i = 0; i < e->n; i++) {
        if (e->sock[i] >= 0) {
            close(e->sock[i]); /* its end */
        }
    }
    if (e->fd >= 0) {
        close(e->fd);
    }
    nrd_mirror_listener_close(e->listener);
    nrd_segment_free(e->segment);
    free(e);
    return NULL;
}

static void start_engine(const char *address, const nrd_wire_order *order, int32_t leader)
{
    pthread_t thread;
    engine *e = calloc(1, sizeof *e);

    if (!e) {
        return; /* rank 0 hears nothing, and says so */
    }
    snprintf(e->address, sizeof e->address, "%s", address);
    e->order = *order;
    e->leader = leader;
    e->fd = -1;
    if (pthread_create(&thread, NULL, run_engine, e) != 0) {
        free(e);
        return;
    }
    pthread_detach(thread);
}

/* ---- the job ---- */

/* *out: connected, greeted and let in. UNAVAILABLE: not yet, perhaps. */
static nrd_error *greet(const nrd_card *card, const nrd_wire_hello *hello, int *out)
{
    nrd_wire_answer answer;

    NRD_TRY(nrd_meet_connect(card, out));
    nrd_tcp_limit(*out, NRD_WIRE_MS);
    if (!nrd_tcp_send(*out, hello, sizeof *hello) || !nrd_tcp_receive(*out, &answer, sizeof answer)) {
        close(*out);
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "rank 0 ended the connection");
    }
    answer.text[sizeof answer.text - 1] = '\0';
    if (answer.refused) {
        close(*out);
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s", answer.text);
    }
    nrd_tcp_limit(*out, 0);
    return NULL;
}

static nrd_error *reach(const nrd_place *p, const nrd_card *card, const nrd_wire_hello *hello, int *out)
{
    const struct timespec pause = {0, RETRY_MS * 1000000l};
    const uint64_t until = nrd_now_ns() + (uint64_t)nrd_launched_come_ms(p) * (uint64_t)1000000;

    for (;;) {
        nrd_error *err = greet(card, hello, out);
        if (!err || nrd_error_get_code(err) != NRD_ERR_UNAVAILABLE || nrd_now_ns() > until) {
            return err ? nrd_error_wrap(err, "rank 0 of the other host") : NULL;
        }
        nrd_error_free(err);
        nanosleep(&pause, NULL);
    }
}

nrd_error *nrd_host_serve(const nrd_place *p, const nrd_card *card, const int32_t *ranks, int32_t n)
{
    nrd_wire_hello hello = {.n = n};
    nrd_wire_order order = {0};
    char address[NRD_TCP_ADDRESS];
    int fd = -1;

    snprintf(hello.build, sizeof hello.build, "%s", nrd_device_id());
    snprintf(hello.key, sizeof hello.key, "%s", card->key);
    (void)gethostname(hello.name, sizeof hello.name - 1);
    memcpy(hello.ranks, ranks, (size_t)n * sizeof *ranks);
    while (order.kind != NRD_ORDER_END) {
        NRD_TRY(reach(p, card, &hello, &fd)); /* again: a server may start again as the same process, and a network come back */
        nrd_tcp_peer(fd, address);
        while (order.kind != NRD_ORDER_END && nrd_tcp_receive(fd, &order, sizeof order)) {
            if (order.kind == NRD_ORDER_START) {
                start_engine(address, &order, p->rank);
            }
        }
        close(fd);
    }
    return NULL;
}
