/* SPDX-License-Identifier: Apache-2.0
 * The connection layer over real loopback sockets: framing, pipelining, late answers, streams,
 * slow readers, disconnects, draining. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/str.h"
#include "frontends/http/server.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_BODY (1u << 20)

static atomic_int gone_count, busy_count;
static _Atomic(nrd_http_request *) parked; /* the request of /park, answered by the test */

static atomic_bool hanging;

static void on_gone(nrd_http_request *req, void *arg)
{
    (void)req;
    (void)arg;
    atomic_fetch_add(&gone_count, 1);
}

static void handle(nrd_http_request *req, void *user)
{
    static char flood[65536];
    assert_string_equal(user, "user");
    if (nrd_view_is(req->head.path, "/echo")) {
        nrd_http_reply(req, 200, "text/plain", NULL, req->body, req->body_n);
    } else if (nrd_view_is(req->head.path, "/park")) {
        req->on_gone = on_gone;
        nrd_http_request_ref(req);
        atomic_store(&parked, req);
    } else if (nrd_view_is(req->head.path, "/stream")) {
        nrd_http_stream_begin(req, 200, "text/event-stream", NULL);
        nrd_http_stream_write(req, "one", 3);
        nrd_http_stream_write(req, "two", 3);
        nrd_http_stream_end(req);
    } else if (nrd_view_is(req->head.path, "/flood")) {
        req->on_gone = on_gone;
        nrd_http_stream_begin(req, 200, "text/plain", NULL);
        for (int i = 0; i < 1000 && !nrd_http_is_gone(req); i++) {
            nrd_http_stream_write(req, flood, sizeof flood);
        }
    } else if (nrd_view_is(req->head.path, "/big")) {
        static char big[4 << 20];
        memset(big, 'b', sizeof big);
        nrd_http_reply(req, 200, "text/plain", NULL, big, sizeof big);
    } else if (nrd_view_is(req->head.path, "/hang")) {
        nrd_http_reply(req, 200, "text/plain", NULL, "held", 4);
        atomic_store(&hanging, true);
        while (atomic_load(&hanging)) {
            usleep(1000);
        }
    } else {
        nrd_http_reply_error(req, 404, "Not Found");
    }
}

static nrd_http_server *server;

static int start(void **state)
{
    nrd_http_config cfg = {.name = "test",
                           .address = "127.0.0.1",
                           .port = 0,
                           .n_threads = 2,
                           .max_body_bytes = MAX_BODY,
                           .handle = handle,
                           .user = (void *)(uintptr_t) "user"};
    (void)state;
    atomic_store(&gone_count, 0);
    atomic_store(&busy_count, 0);
    atomic_store(&parked, NULL);
    nrd_error *err = nrd_http_server_start(&server, &cfg);
    if (err) {
        print_error("%s\n", nrd_error_message(err));
        nrd_error_free(err);
        return -1;
    }
    return 0;
}

static int finish(void **state)
{
    (void)state;
    nrd_http_server_free(server);
    return 0;
}

static int dial(int rcvbuf)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)nrd_http_server_port(server)),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval limit = {20, 0};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    if (rcvbuf) {
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &rcvbuf, sizeof rcvbuf);
    }
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static void put(int fd, const char *text)
{
    size_t n = strlen(text);
    assert_int_equal(send(fd, text, n, MSG_NOSIGNAL), (ssize_t)n);
}

/* Reads until the text ends with `end` (NULL: until the connection ends). */
static void get(int fd, nrd_str *s, const char *end)
{
    char buf[65536];
    for (;;) {
        if (end && s->len >= strlen(end) && nrd_str_has_suffix(s->data, end)) {
            return;
        }
        ssize_t r = recv(fd, buf, sizeof buf, 0);
        assert_true(r >= 0);
        if (r == 0) {
            assert_null(end);
            return;
        }
        nrd_str_append(s, buf, (size_t)r);
    }
}

static void wait_for(atomic_int *v, int value)
{
    const struct timespec nap = {0, 1000000};
    uint64_t until = nrd_now_ns() + 20000000000u;
    while (atomic_load(v) != value && nrd_now_ns() < until) {
        nanosleep(&nap, NULL);
    }
    assert_int_equal(atomic_load(v), value);
}

static nrd_http_request *wait_parked(void)
{
    const struct timespec nap = {0, 1000000};
    uint64_t until = nrd_now_ns() + 20000000000u;
    while (!atomic_load(&parked) && nrd_now_ns() < until) {
        nanosleep(&nap, NULL);
    }
    nrd_http_request *req = atomic_exchange(&parked, NULL);
    assert_non_null(req);
    return req;
}

/* Answers a parked request from its loop thread, as the core's callbacks do. */
typedef struct late {
    nrd_http_task task;
    nrd_http_request *req;
} late;

static void run_late(nrd_http_task *task)
{
    late *l = (late *)(void *)task;
    l->req->on_gone = NULL;
    nrd_http_reply(l->req, 200, "text/plain", NULL, "late", 4);
    nrd_http_request_unref(l->req);
    free(l);
}

static void answer_late(nrd_http_request *req)
{
    late *l = calloc(1, sizeof *l);
    l->task.run = run_late;
    l->req = req;
    nrd_http_post(req->loop, &l->task);
}

#define OK_HEAD(n) "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: " #n "\r\n\r\n"

static void test_bodies_arrive_whole_however_they_are_cut(void **state)
{
    static const char text[] = "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello";
    (void)state;
    int fd = dial(0);
    for (size_t cut = 1; cut < sizeof text - 1; cut++) {
        nrd_str s = {0};
        const struct timespec nap = {0, 300000};
        assert_int_equal(send(fd, text, cut, 0), (ssize_t)cut);
        nanosleep(&nap, NULL); /* lets the first part arrive alone; either way must work */
        put(fd, text + cut);
        get(fd, &s, "hello");
        assert_string_equal(s.data, OK_HEAD(5) "hello");
        nrd_str_fini(&s);
    }
    close(fd);
}

static void test_pipelined_requests_are_answered_in_order(void **state)
{
    nrd_str in = {0}, out = {0}, want = {0};
    (void)state;
    for (int i = 0; i < 500; i++) {
        nrd_str_printf(&in, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\n%04d", i);
        nrd_str_printf(&want, OK_HEAD(4) "%04d", i);
    }
    int fd = dial(0);
    put(fd, in.data);
    get(fd, &out, "0499");
    assert_string_equal(out.data, want.data);
    nrd_str_fini(&in);
    nrd_str_fini(&out);
    nrd_str_fini(&want);
    close(fd);
}

static void test_large_and_chunked_bodies_are_echoed(void **state)
{
    nrd_str in = {0}, out = {0}, body = {0};
    (void)state;
    for (int i = 0; i < 100000; i++) {
        nrd_str_printf(&body, "%07d,", i);
    }
    int fd = dial(0);
    nrd_str_printf(&in, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: %zu\r\n\r\n%s", body.len,
                   body.data);
    nrd_str_puts(&in, "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (size_t at = 0; at < body.len; at += 50000) {
        size_t n = body.len - at < 50000 ? body.len - at : 50000;
        nrd_str_printf(&in, "%zx\r\n", n);
        nrd_str_append(&in, body.data + at, n);
        nrd_str_puts(&in, "\r\n");
    }
    nrd_str_puts(&in, "0\r\n\r\nPOST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nend");
    size_t sent = 0;
    while (sent < in.len || !nrd_str_has_suffix(nrd_str_cstr(&out), "end")) {
        char buf[65536];
        if (sent < in.len) {
            ssize_t r = send(fd, in.data + sent, in.len - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
            sent += r > 0 ? (size_t)r : 0;
        }
        ssize_t r = recv(fd, buf, sizeof buf, sent < in.len ? MSG_DONTWAIT : 0);
        if (r > 0) {
            nrd_str_append(&out, buf, (size_t)r);
        }
        assert_int_not_equal(r, 0);
    }
    nrd_str want = {0};
    for (int i = 0; i < 2; i++) {
        nrd_str_printf(
            &want, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %zu\r\n\r\n%s",
            body.len, body.data);
    }
    nrd_str_puts(&want, OK_HEAD(3) "end");
    assert_int_equal(out.len, want.len);
    assert_memory_equal(out.data, want.data, want.len);
    nrd_str_fini(&want);
    nrd_str_fini(&in);
    nrd_str_fini(&out);
    nrd_str_fini(&body);
    close(fd);
}

static void test_body_over_the_limit_is_refused_and_the_reply_survives(void **state)
{
    static const char *const heads[] = {
        "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 3000000\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2DC6C0\r\n"};
    char *junk = calloc(1, 3000000);
    (void)state;
    for (int i = 0; i < 2; i++) {
        nrd_str s = {0};
        int fd = dial(0);
        put(fd, heads[i]);
        for (size_t sent = 0; sent < 3000000;) {
            ssize_t r = send(fd, junk + sent, 3000000 - sent, MSG_NOSIGNAL);
            assert_true(r > 0); /* the server reads on, so the reply is not lost to a reset */
            sent += (size_t)r;
        }
        shutdown(fd, SHUT_WR);
        get(fd, &s, NULL);
        assert_true(nrd_str_has_prefix(s.data, "HTTP/1.1 400 "));
        assert_non_null(strstr(s.data, "Connection: close\r\n"));
        assert_non_null(strstr(s.data, "--http-max-input-size"));
        nrd_str_fini(&s);
        close(fd);
    }
    free(junk);
}

static void test_expect_continue_is_answered_before_the_body(void **state)
{
    nrd_str s = {0};
    (void)state;
    int fd = dial(0);
    put(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
    get(fd, &s, "HTTP/1.1 100 Continue\r\n\r\n");
    nrd_str_clear(&s);
    put(fd, "hi");
    get(fd, &s, "hi");
    assert_string_equal(s.data, OK_HEAD(2) "hi");
    nrd_str_fini(&s);
    close(fd);
}

static void test_bad_head_is_answered_and_ends_the_connection(void **state)
{
    nrd_str s = {0};
    (void)state;
    int fd = dial(0);
    put(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n"
            "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /echo HTTP/1.1\r\nHost: h\r\n\r\n");
    shutdown(fd, SHUT_WR);
    get(fd, &s, NULL);
    assert_true(nrd_str_has_prefix(s.data, "HTTP/1.1 400 "));
    assert_null(strstr(s.data + 1, "HTTP/1.1")); /* the smuggled request got no answer */
    nrd_str_fini(&s);
    close(fd);
}

static void test_stream_is_chunked_for_1_1_and_ends_the_connection_for_1_0(void **state)
{
    nrd_str s = {0};
    (void)state;
    int fd = dial(0);
    put(fd, "GET /stream HTTP/1.1\r\nHost: h\r\n\r\n");
    get(fd, &s, "0\r\n\r\n");
    assert_string_equal(s.data, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                                "Transfer-Encoding: chunked\r\n\r\n"
                                "3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n");
    close(fd);
    nrd_str_clear(&s);
    fd = dial(0);
    put(fd, "GET /stream HTTP/1.0\r\n\r\n");
    get(fd, &s, NULL);
    assert_string_equal(s.data, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                                "Connection: close\r\n\r\nonetwo");
    nrd_str_fini(&s);
    close(fd);
}

static void test_late_answer_waits_and_pipelined_request_follows(void **state)
{
    nrd_str s = {0};
    (void)state;
    int fd = dial(0);
    put(fd, "GET /park HTTP/1.1\r\nHost: h\r\n\r\n"
            "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nxyz");
    answer_late(wait_parked());
    get(fd, &s, "xyz");
    assert_string_equal(s.data, OK_HEAD(4) "late" OK_HEAD(3) "xyz");
    nrd_str_fini(&s);
    close(fd);
}

static void test_nothing_is_waited_for_behind_the_end_of_the_input(void **state)
{
    static const struct {
        const char *second, *answer;
    } t[] = {{"no head\r\n\r\n", "HTTP/1.1 400 "},
             {"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nabc", "late"},
             {"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\nabc", "late"},
             {"POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc", "late"},
             {"POST /echo HTTP/1.1\r\nHo", "late"}};
    const struct timespec nap = {0, 1000000};
    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        const uint64_t until = nrd_now_ns() + 10000000000u;
        nrd_str s = {0};
        int fd = dial(0);
        put(fd, "GET /park HTTP/1.1\r\nHost: h\r\n\r\n");
        put(fd, t[i].second);
        shutdown(fd, SHUT_WR);
        get(fd, &s, "HTTP/1.1 100 Continue\r\n\r\n"); /* the end was read */
        answer_late(wait_parked());
        get(fd, &s, NULL);
        assert_non_null(strstr(s.data, t[i].answer));
        while (nrd_http_server_connections(server) > 0 && nrd_now_ns() < until) {
            nanosleep(&nap, NULL);
        }
        assert_int_equal(nrd_http_server_connections(server), 0);
        nrd_str_fini(&s);
        close(fd);
    }
}

static void test_disconnect_is_told_even_with_much_pipelined_input(void **state)
{
    char junk[20000];
    (void)state;
    memset(junk, 'x', sizeof junk);
    for (int flood = 0; flood < 2; flood++) {
        int fd = dial(0);
        atomic_store(&gone_count, 0);
        put(fd, "GET /park HTTP/1.1\r\nHost: h\r\n\r\n");
        nrd_http_request *req = wait_parked();
        if (flood) { /* more than the server's buffer: it stops reading and only watches */
            assert_int_equal(send(fd, junk, sizeof junk, 0), (ssize_t)sizeof junk);
        }
        close(fd);
        wait_for(&gone_count, 1);
        answer_late(req); /* an answer after that is dropped */
    }
}

static void test_reset_is_told_while_input_is_not_read(void **state)
{
    char junk[20000];
    struct linger hard = {1, 0};
    (void)state;
    memset(junk, 'x', sizeof junk);
    int fd = dial(0);
    put(fd, "GET /park HTTP/1.1\r\nHost: h\r\n\r\n");
    nrd_http_request *req = wait_parked();
    assert_int_equal(send(fd, junk, sizeof junk, 0), (ssize_t)sizeof junk);
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close(fd);
    wait_for(&gone_count, 1);
    answer_late(req);
}

static void test_slow_reader_gets_all_and_delays_nobody(void **state)
{
    nrd_str s = {0}, quick = {0};
    (void)state;
    int slow = dial(4096);
    put(slow, "GET /big HTTP/1.1\r\nHost: h\r\n\r\n");
    for (int i = 0; i < 4; i++) { /* on both loops, so also on the slow one's */
        int fd = dial(0);
        put(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nq");
        get(fd, &quick, "q");
        nrd_str_clear(&quick);
        close(fd);
    }
    put(slow, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nafter");
    get(slow, &s, "after");
    assert_int_equal(s.len, strlen("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
                                   "Content-Length: 4194304\r\n\r\n") +
                                (4u << 20) + strlen(OK_HEAD(5) "after"));
    nrd_str_fini(&s);
    nrd_str_fini(&quick);
    close(slow);
}

static void test_stream_that_nobody_reads_is_cut_off(void **state)
{
    (void)state;
    int fd = dial(4096);
    put(fd, "GET /flood HTTP/1.1\r\nHost: h\r\n\r\n");
    wait_for(&gone_count, 1);
    close(fd);
}

static void test_head_request_has_no_body(void **state)
{
    nrd_str s = {0};
    (void)state;
    int fd = dial(0);
    put(fd, "HEAD /nowhere HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    get(fd, &s, NULL);
    assert_true(nrd_str_has_prefix(s.data, "HTTP/1.1 404 Not Found\r\n"));
    assert_true(nrd_str_has_suffix(s.data, "\r\n\r\n"));
    nrd_str_fini(&s);
    close(fd);
}

static void test_drain_closes_idle_and_lets_busy_finish(void **state)
{
    nrd_str s = {0};
    char b;
    (void)state;
    int idle = dial(0), busy = dial(0);
    put(busy, "GET /park HTTP/1.1\r\nHost: h\r\n\r\n");
    nrd_http_request *req = wait_parked();
    nrd_http_server_drain(server);
    assert_int_equal(recv(idle, &b, 1, 0), 0);
    answer_late(req);
    get(busy, &s, NULL);
    assert_non_null(strstr(s.data, "Connection: close\r\n"));
    assert_true(nrd_str_has_suffix(s.data, "late"));
    nrd_str_fini(&s);
    close(idle);
    close(busy);
}

static void test_port_in_use_is_an_error(void **state)
{
    nrd_http_server *second;
    nrd_http_config cfg = {.name = "test",
                           .address = "127.0.0.1",
                           .port = nrd_http_server_port(server),
                           .n_threads = 1,
                           .handle = handle};
    (void)state;
    nrd_error *err = nrd_http_server_start(&second, &cfg);
    assert_non_null(err);
    assert_int_equal(nrd_error_get_code(err), NRD_ERR_UNAVAILABLE);
    assert_non_null(strstr(nrd_error_message(err), "already in use"));
    assert_null(second);
    nrd_error_free(err);
}

/* A second server with tight limits; `dial` reaches it until the test ends. */
static nrd_http_server *start_tight(void)
{
    nrd_http_server *first = server;
    nrd_http_config cfg = {.name = "tight",
                           .address = "127.0.0.1",
                           .n_threads = 1,
                           .max_body_bytes = MAX_BODY,
                           .max_connections = 3,
                           .stall_secs = 1,
                           .min_rate = 100,
                           .handle = handle,
                           .user = (void *)(uintptr_t) "user"};
    nrd_error *err = nrd_http_server_start(&server, &cfg);
    assert_null(err);
    return first;
}

static void test_connections_that_crawl_are_closed_and_idle_ones_stay(void **state)
{
    static const struct {
        const char *first, *drip;
    } slow[] = {{"GET /echo HTTP/1.1\r\nHost: h\r\nX: ", "y"},
                {"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 60000\r\n\r\n", "y"},
                {"POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5;", "e"}};
    (void)state;
    nrd_http_server *first = start_tight();
    int idle = dial(0);
    for (size_t i = 0; i < sizeof slow / sizeof *slow; i++) {
        int fd = dial(0), polls = 0;
        struct pollfd p = {.fd = fd, .events = POLLIN};
        put(fd, slow[i].first);
        while (poll(&p, 1, 200) == 0 && ++polls < 100) { /* 5 bytes a second */
            (void)!send(fd, slow[i].drip, 1, MSG_NOSIGNAL);
        }
        assert_true(polls >= 4 && polls < 60);
        close(fd);
    }
    nrd_str s = {0};
    put(idle, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nlive");
    get(idle, &s, "live");
    nrd_str_fini(&s);
    close(idle);
    nrd_http_server_free(server);
    server = first;
}

static void test_connection_idle_too_long_is_closed_and_a_waiting_one_stays(void **state)
{
    nrd_http_server *first = server;
    nrd_http_config cfg = {.name = "idle",
                           .address = "127.0.0.1",
                           .n_threads = 1,
                           .max_body_bytes = MAX_BODY,
                           .idle_secs = 1,
                           .handle = handle,
                           .user = (void *)(uintptr_t) "user"};
    nrd_str s = {0};
    char b;
    (void)state;
    assert_null(nrd_http_server_start(&server, &cfg));
    int silent = dial(0), used = dial(0), busy = dial(0);
    put(busy, "GET /park HTTP/1.1\r\nHost: h\r\n\r\n");
    nrd_http_request *req = wait_parked();
    put(used, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nlive");
    get(used, &s, "live");
    assert_int_equal(recv(silent, &b, 1, 0), 0);
    assert_int_equal(recv(used, &b, 1, 0), 0);
    answer_late(req);
    nrd_str_clear(&s);
    get(busy, &s, "late");
    nrd_str_fini(&s);
    close(silent);
    close(used);
    close(busy);
    nrd_http_server_free(server);
    server = first;
}

static bool responds_within(bool wanted, int milliseconds)
{
    for (int i = 0; i < milliseconds; i++) {
        if (nrd_http_server_responds(server) == wanted) {
            return true;
        }
        usleep(1000);
    }
    return false;
}

static void test_a_loop_that_hangs_is_noticed(void **state)
{
    (void)state;
    assert_true(nrd_http_server_responds(server));
    assert_true(responds_within(true, 20000));
    int fd = dial(0);
    put(fd, "GET /hang HTTP/1.1\r\nHost: h\r\n\r\n");
    while (!atomic_load(&hanging)) {
        usleep(1000);
    }
    (void)nrd_http_server_responds(server); /* asks */
    for (int i = 0; i < 3; i++) {
        assert_false(nrd_http_server_responds(server));
    }
    atomic_store(&hanging, false);
    assert_true(responds_within(true, 20000));
    close(fd);
}

static void test_one_connection_too_many_is_told_so(void **state)
{
    int fd[4];
    nrd_str s = {0};
    (void)state;
    nrd_http_server *first = start_tight();
    for (int i = 0; i < 3; i++) {
        fd[i] = dial(0);
        put(fd[i], "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok");
        get(fd[i], &s, "ok");
    }
    fd[3] = dial(0);
    nrd_str_clear(&s);
    get(fd[3], &s, NULL);
    assert_non_null(strstr(s.data, " 503 "));
    assert_non_null(strstr(s.data, "too many connections"));
    nrd_str_fini(&s);
    for (int i = 0; i < 4; i++) {
        close(fd[i]);
    }
    nrd_http_server_free(server);
    server = first;
}

#define T(f) cmocka_unit_test_setup_teardown(f, start, finish)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_bodies_arrive_whole_however_they_are_cut),
        T(test_pipelined_requests_are_answered_in_order),
        T(test_large_and_chunked_bodies_are_echoed),
        T(test_body_over_the_limit_is_refused_and_the_reply_survives),
        T(test_expect_continue_is_answered_before_the_body),
        T(test_bad_head_is_answered_and_ends_the_connection),
        T(test_stream_is_chunked_for_1_1_and_ends_the_connection_for_1_0),
        T(test_late_answer_waits_and_pipelined_request_follows),
        T(test_nothing_is_waited_for_behind_the_end_of_the_input),
        T(test_disconnect_is_told_even_with_much_pipelined_input),
        T(test_reset_is_told_while_input_is_not_read),
        T(test_slow_reader_gets_all_and_delays_nobody),
        T(test_stream_that_nobody_reads_is_cut_off),
        T(test_head_request_has_no_body),
        T(test_drain_closes_idle_and_lets_busy_finish),
        T(test_port_in_use_is_an_error),
        T(test_connections_that_crawl_are_closed_and_idle_ones_stay),
        T(test_connection_idle_too_long_is_closed_and_a_waiting_one_stays),
        T(test_a_loop_that_hangs_is_noticed),
        T(test_one_connection_too_many_is_told_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
