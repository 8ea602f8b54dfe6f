/* SPDX-License-Identifier: Apache-2.0
 * Event loops: one thread each, its tasks, its clock tick and its end. */
#include "frontends/http/conn.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/pool.h"
#include "frontends/common/infer.h"

#include <errno.h>
#include <event2/listener.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_TICK_SECS 5u
#define MAX_SHED_LOOKS 16
#define LATE_NS (10ull * 1000000000u)   /* for the one question of a connection that may only ask for health */
#define LINGER_NS (30ull * 1000000000u) /* reading away what a refused client still sends */

/* Edge-triggered: every ring is an event of its own, so the counter need not be read away. */
static void on_wake(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    nrd_http_loop_awake(arg);
}

static void end_conn(nrd_http_conn *c)
{
    c->depth++;
    nrd_http_conn_close(c);
    c->depth--;
    nrd_http_conn_release(c);
}

/* true: it moved too little for too long in the middle of a request or a reply. */
static bool is_stalled(nrd_http_conn *c)
{
    const nrd_http_config *cfg = &c->loop->server->cfg;
    const uint64_t now = c->loop->now_ns;
    const bool partial = c->state == READ_INPLACE || c->state == READ_BODY || c->state == READ_PIECE ||
                         c->state == READ_CHUNKED ||
                         (c->state == READ_HEAD && c->in && c->in->len > c->start);
    if ((!partial && !c->out) || c->state == LINGER) {
        c->window_ns = 0;
        return false;
    }
    if (c->window_ns && now - c->window_ns < cfg->stall_secs * 1000000000ull) {
        return false;
    }
    const bool stalled =
        c->window_ns && c->moved - c->window_moved < (uint64_t)cfg->stall_secs * cfg->min_rate;
    c->window_ns = now;
    c->window_moved = c->moved;
    return stalled;
}

/* It waits for a request, of which at most a part of the head has come. */
static bool is_waiting(const nrd_http_conn *c)
{
    return (c->state == READ_HEAD && !c->out) || c->state == HANDSHAKE;
}

static bool is_idle_too_long(const nrd_http_conn *c)
{
    const uint64_t limit_ns = c->late ? LATE_NS : c->loop->server->cfg.idle_secs * 1000000000ull;
    return limit_ns && is_waiting(c) && c->state != HANDSHAKE && (!c->in || c->start == c->in->len) &&
           c->loop->now_ns - c->active_ns >= limit_ns;
}

static nrd_http_conn *longest_waiting(nrd_http_loop *l)
{
    nrd_http_conn *longest = NULL;
    for (nrd_http_conn *c = l->conns; c; c = c->next) {
        if ((is_waiting(c) || c->state == LINGER) &&
            (!longest || c->active_ns < longest->active_ns)) {
            longest = c;
        }
    }
    return longest;
}

bool nrd_http_loop_shed(nrd_http_loop *l)
{
    char b;
    for (int i = 0; i < MAX_SHED_LOOKS; i++) {
        nrd_http_conn *c = longest_waiting(l);
        if (!c) {
            break;
        }
        if (c->state == LINGER || c->state == HANDSHAKE || recv(c->fd, &b, 1, MSG_PEEK | MSG_DONTWAIT) <= 0) {
            end_conn(c);
            return true;
        }
        c->active_ns = l->now_ns; /* its request has come and will be read next */
    }
    return false;
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    nrd_http_loop *l = arg;
    (void)fd;
    (void)what;
    nrd_http_loop_awake(l);
    if (l == &l->server->loops[0]) {
        nrd_http_spare_keep(&l->server->spare); /* there was none for them when connections took them */
    }
    for (nrd_http_conn *c = l->conns, *next; c; c = next) {
        next = c->next;
        if (is_stalled(c) || is_idle_too_long(c) || nrd_http_conn_handshake_is_late(c) ||
            (c->state == LINGER && l->now_ns - c->active_ns > LINGER_NS)) {
            end_conn(c);
        }
    }
}

static void run_drain(nrd_http_task *task)
{
    nrd_http_loop *l =
        (nrd_http_loop *)(void *)((char *)task - offsetof(nrd_http_loop, drain_task));
    l->draining = true;
    if (l == &l->server->loops[0] && l->server->listener && !l->server->cfg.drain_prefix) {
        evconnlistener_free(l->server->listener);
        l->server->listener = NULL;
    }
    for (nrd_http_conn *c = l->conns, *next; c; c = next) {
        next = c->next;
        if (c->state == LINGER ||
            (c->state == READ_HEAD && !c->out && (!c->in || c->start == c->in->len))) {
            end_conn(c);
        }
    }
}

static void run_pulse(nrd_http_task *task)
{
    nrd_http_loop *l = (nrd_http_loop *)(void *)((char *)task - offsetof(nrd_http_loop, pulse_task));
    atomic_store(&l->pulse_waits, false);
}

static void run_stop(nrd_http_task *task)
{
    nrd_http_loop *l = (nrd_http_loop *)(void *)((char *)task - offsetof(nrd_http_loop, stop_task));
    l->stop = true;
    event_base_loopbreak(l->base);
}

void *nrd_http_loop_main(void *arg)
{
    nrd_http_loop *l = arg;
    nrd_http_here = l;
    nrd_infer_lend_thread();
    l->now_ns = nrd_now_ns();
    while (!l->stop &&
           event_base_loop(l->base, nrd_http_loop_fall_asleep(l) ? EVLOOP_ONCE : EVLOOP_NONBLOCK) == 0) {
        nrd_http_loop_run_tasks(l);
    }
    while (l->conns) {
        end_conn(l->conns);
    }
    nrd_http_local_end_all(l);
    while (l->spare) {
        nrd_http_request *req = l->spare;
        l->spare = (nrd_http_request *)req->gone_arg;
        nrd_pool_put(req, sizeof *req);
    }
    l->n_spare = NRD_HTTP_SPARE_REQUESTS; /* later unrefs free at once */
    return NULL;
}

nrd_error *nrd_http_loop_init(nrd_http_loop *l, nrd_http_server *s)
{
    const nrd_http_config *c = &s->cfg;
    const unsigned quarter =
        (c->idle_secs && c->idle_secs < c->stall_secs ? c->idle_secs : c->stall_secs) / 4;
    struct timeval tick = {quarter < 1 ? 1 : quarter > MAX_TICK_SECS ? MAX_TICK_SECS : quarter, 0};
    struct event_config *cfg = event_config_new();
    l->server = s;
    l->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    l->drain_task.run = run_drain;
    l->stop_task.run = run_stop;
    l->pulse_task.run = run_pulse;
    if (cfg) {
        /* Other threads only write to wake_fd, so libevent needs no locks. */
        event_config_set_flag(cfg, EVENT_BASE_FLAG_NOLOCK);
        l->base = event_base_new_with_config(cfg);
        event_config_free(cfg);
    }
    if (!l->base || l->wake_fd < 0) {
        return nrd_errorf(NRD_ERR_INTERNAL, "event loop: %s", strerror(errno));
    }
    l->ev_wake = event_new(l->base, l->wake_fd, EV_READ | EV_PERSIST | EV_ET, on_wake, l);
    l->ev_tick = event_new(l->base, -1, EV_PERSIST, on_tick, l);
    if (!l->ev_wake || !l->ev_tick || event_add(l->ev_wake, NULL) != 0 ||
        event_add(l->ev_tick, &tick) != 0) {
        return nrd_errorf(NRD_ERR_INTERNAL, "event loop: cannot add its events");
    }
    return NULL;
}
