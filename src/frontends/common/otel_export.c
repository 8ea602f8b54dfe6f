/* SPDX-License-Identifier: Apache-2.0
 * One thread that posts finished spans to a collector. Spans wait in a queue of bounded length; the
 * thread wakes when a batch is full or its delay is over, connects, sends one HTTP request and
 * reads the status. What cannot be delivered is dropped with a warning. Fed by tracer.c. */
#include "frontends/common/otel_export.h"

#include "base/log.h"
#include "base/mem.h"
#include "tls/tls.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/util.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define NETWORK_SECS 5
#define WARN_EVERY 1000 /* dropped spans between two warnings */

typedef struct batch {
    struct batch *next;
    nrd_str spans;
    size_t n;
} batch;

struct nrd_otel {
    char *host, *port, *path, *attributes;
    const nrd_tls_ops *tls; /* NULL: not encrypted */
    size_t max_queue, max_batch;
    int64_t delay_ms;
    pthread_t thread;
    pthread_mutex_t mu;
    pthread_cond_t cond;
    batch *first, **last; /* guarded by mu */
    size_t n_queued;      /* guarded by mu: spans */
    uint64_t n_dropped;   /* guarded by mu */
    bool stopping;        /* guarded by mu */
};

/* ---- the collector ---- */

static nrd_error *parse_url(nrd_otel *x, const char *url)
{
    const bool secret = strncmp(url, "https://", 8) == 0;
    const char *host = url + (secret ? 8 : 7);
    const size_t n = secret || strncmp(url, "http://", 7) == 0 ? strcspn(host, "/") : 0;
    const char *colon = n ? memchr(host, ':', n) : NULL;
    const size_t host_n = colon ? (size_t)(colon - host) : n;
    if (host_n == 0 || strpbrk(url, " \r\n")) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "--trace-config opentelemetry,url: expected http://host[:port]/path or https://…, got %s", url);
    }
    x->host = strndup(host, host_n);
    x->port = colon ? strndup(colon + 1, n - host_n - 1) : strdup(secret ? "443" : "80");
    x->path = strdup(host[n] ? host + n : "/");
    if (!x->host || !x->port || !x->path) {
        return nrd_error_no_memory();
    }
    return secret ? nrd_error_wrap(nrd_tls_load(&x->tls), "--trace-config opentelemetry,url") : NULL;
}

static int dial(const nrd_otel *x)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    const struct timeval limit = {NETWORK_SECS, 0};
    struct addrinfo *list = NULL;
    int fd = -1;
    if (getaddrinfo(x->host, x->port, &hints, &list) != 0) {
        return -1;
    }
    for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (fd < 0) {
            continue;
        }
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        if (connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    return fd;
}

static bool send_all(int fd, const char *data, size_t n)
{
    while (n > 0) {
        ssize_t r = send(fd, data, n, MSG_NOSIGNAL);
        if (r < 0 && errno == EINTR) {
            continue;
        }
        if (r <= 0) {
            return false;
        }
        data += r;
        n -= (size_t)r;
    }
    return true;
}

/* The status in the first 12 characters of an answer; 0: it has none. */
static int status_of(char line[13])
{
    long long status;

    line[12] = '\0';
    return strncmp(line, "HTTP/1.", 7) == 0 && nrd_parse_i64(line + 9, &status) ? (int)status : 0;
}

/* The status of the answer; 0: none came. */
static int read_status(int fd)
{
    char line[16];
    size_t n = 0;
    while (n < 12) {
        ssize_t r = recv(fd, line + n, sizeof line - 1 - n, 0);
        if (r < 0 && errno == EINTR) {
            continue;
        }
        if (r <= 0) {
            return 0;
        }
        n += (size_t)r;
    }
    return status_of(line);
}

/* ---- the same over TLS: the plug-in's connections are libevent's ---- */

typedef struct exchange {
    const nrd_otel *x;
    struct event_base *base; /* of this exchange alone */
    int status;
} exchange;

static void on_read(struct bufferevent *bev, void *arg)
{
    exchange *e = arg;
    char line[13];

    if (evbuffer_get_length(bufferevent_get_input(bev)) >= 12) {
        evbuffer_remove(bufferevent_get_input(bev), line, 12);
        e->status = status_of(line);
        event_base_loopbreak(e->base);
    }
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    exchange *e = arg;
    char why[200];

    if (what & BEV_EVENT_CONNECTED) {
        return;
    }
    e->x->tls->client_why(bev, why, sizeof why);
    if (why[0]) {
        NRD_LOG_WARN("OpenTelemetry collector %s:%s: %s", e->x->host, e->x->port, why);
    }
    event_base_loopbreak(e->base);
}

/* Takes fd. */
static int post_tls(const nrd_otel *x, int fd, const nrd_str *head, const nrd_str *body)
{
    const struct timeval limit = {NETWORK_SECS, 0};
    exchange e = {.x = x, .base = event_base_new()};
    char why[200] = "no memory";
    struct bufferevent *bev = e.base ? x->tls->client_new(e.base, x->host, NULL, why, sizeof why) : NULL;

    if (!bev || evutil_make_socket_nonblocking(fd) != 0 || bufferevent_setfd(bev, fd) != 0) {
        NRD_LOG_WARN("OpenTelemetry collector %s:%s: %s", x->host, x->port, why);
        close(fd);
    } else {
        bufferevent_setcb(bev, on_read, NULL, on_event, &e);
        bufferevent_set_timeouts(bev, &limit, &limit);
        bufferevent_write(bev, head->data, head->len);
        bufferevent_write(bev, body->data, body->len);
        bufferevent_enable(bev, EV_READ | EV_WRITE);
        event_base_dispatch(e.base);
    }
    if (bev) {
        bufferevent_free(bev); /* with fd */
    }
    if (e.base) {
        event_base_free(e.base);
    }
    return e.status;
}

static void post(const nrd_otel *x, const nrd_str *spans, size_t n_spans)
{
    nrd_str head = {0}, body = {0};
    nrd_str_printf(&body,
                   "{\"resourceSpans\":[{\"resource\":{\"attributes\":[%s]},\"scopeSpans\":"
                   "[{\"scope\":{\"name\":\"triton-server\"},\"spans\":[",
                   x->attributes);
    nrd_str_put(&body, spans);
    nrd_str_puts(&body, "]}]}]}");
    nrd_str_printf(&head,
                   "POST %s HTTP/1.1\r\nHost: %s:%s\r\nContent-Type: application/json\r\n"
                   "Content-Length: %zu\r\nConnection: close\r\n\r\n",
                   x->path, x->host, x->port, body.len);
    int status = 0;
    const int fd = body.no_memory || head.no_memory ? -1 : dial(x);
    if (fd >= 0 && x->tls) {
        status = post_tls(x, fd, &head, &body);
    } else if (fd >= 0) {
        if (send_all(fd, head.data, head.len) && send_all(fd, body.data, body.len)) {
            status = read_status(fd);
        }
        close(fd);
    }
    if (status < 200 || status > 299) {
        NRD_LOG_WARN("OpenTelemetry collector %s:%s took no spans (status %d): %zu are lost",
                     x->host, x->port, status, n_spans);
    }
    nrd_str_fini(&head);
    nrd_str_fini(&body);
}

/* ---- the thread ---- */

/* Takes up to max_batch spans off the queue. Lock held. */
static size_t take(nrd_otel *x, nrd_str *out)
{
    size_t n = 0;
    while (x->first && (n == 0 || n + x->first->n <= x->max_batch)) {
        batch *b = x->first;
        x->first = b->next;
        if (!x->first) {
            x->last = &x->first;
        }
        if (n) {
            nrd_str_putc(out, ',');
        }
        nrd_str_put(out, &b->spans);
        n += b->n;
        x->n_queued -= b->n;
        nrd_str_fini(&b->spans);
        free(b);
    }
    return n;
}

static void wait_for_work(nrd_otel *x)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += x->delay_ms / 1000;
    until.tv_nsec += x->delay_ms % 1000 * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    while (!x->stopping && x->n_queued < x->max_batch &&
           pthread_cond_timedwait(&x->cond, &x->mu, &until) != ETIMEDOUT) {
    }
}

static void *thread_main(void *arg)
{
    nrd_otel *x = arg;
    nrd_str spans = {0};
    pthread_setname_np(pthread_self(), "otel-export");
    pthread_mutex_lock(&x->mu);
    for (bool over = false; !over;) {
        wait_for_work(x);
        over = x->stopping;
        for (size_t n; (n = take(x, &spans)) > 0;) {
            pthread_mutex_unlock(&x->mu);
            post(x, &spans, n);
            nrd_str_clear(&spans);
            pthread_mutex_lock(&x->mu);
        }
    }
    pthread_mutex_unlock(&x->mu);
    nrd_str_fini(&spans);
    return NULL;
}

void nrd_otel_add(nrd_otel *x, const nrd_str *spans, size_t n)
{
    if (n == 0) {
        return;
    }
    batch *b = calloc(1, sizeof *b);
    if (b) {
        nrd_str_put(&b->spans, spans);
    }
    if (!b || b->spans.no_memory) {
        NRD_LOG_WARN("%zu spans are lost: out of memory", n);
        if (b) {
            nrd_str_fini(&b->spans);
        }
        free(b);
        return;
    }
    b->n = n;
    pthread_mutex_lock(&x->mu);
    if (x->n_queued + n > x->max_queue) {
        if (x->n_dropped++ % WARN_EVERY == 0) {
            NRD_LOG_WARN("the queue of spans is full (bsp_max_queue_size %zu): some are lost",
                         x->max_queue);
        }
    } else {
        *x->last = b;
        x->last = &b->next;
        x->n_queued += n;
        b = NULL;
        if (x->n_queued >= x->max_batch) {
            pthread_cond_signal(&x->cond);
        }
    }
    pthread_mutex_unlock(&x->mu);
    if (b) {
        nrd_str_fini(&b->spans);
        free(b);
    }
}

/* ---- life ---- */

static void fini(nrd_otel *x)
{
    free(x->host);
    free(x->port);
    free(x->path);
    free(x->attributes);
    free(x);
}

nrd_error *nrd_otel_new(nrd_otel **out, const char *url, const char *attributes, int64_t max_queue,
                        int64_t delay_ms, int64_t max_batch)
{
    pthread_condattr_t attr;
    nrd_otel *x = calloc(1, sizeof *x);
    *out = NULL;
    if (!x) {
        return nrd_error_no_memory();
    }
    nrd_error *err = parse_url(x, url);
    x->attributes = strdup(attributes);
    if (!err && !x->attributes) {
        err = nrd_error_no_memory();
    }
    if (err) {
        fini(x);
        return err;
    }
    x->max_queue = (size_t)max_queue;
    x->max_batch = (size_t)max_batch;
    x->delay_ms = delay_ms;
    x->last = &x->first;
    pthread_mutex_init(&x->mu, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&x->cond, &attr);
    pthread_condattr_destroy(&attr);
    if (pthread_create(&x->thread, NULL, thread_main, x) != 0) {
        fini(x);
        return nrd_errorf(NRD_ERR_INTERNAL, "cannot start the thread that exports spans");
    }
    *out = x;
    return NULL;
}

void nrd_otel_free(nrd_otel *x)
{
    if (!x) {
        return;
    }
    pthread_mutex_lock(&x->mu);
    x->stopping = true;
    pthread_cond_signal(&x->cond);
    pthread_mutex_unlock(&x->mu);
    pthread_join(x->thread, NULL);
    pthread_cond_destroy(&x->cond);
    pthread_mutex_destroy(&x->mu);
    fini(x);
}
