/* SPDX-License-Identifier: Apache-2.0
 * Bodies that a handler reads in pieces, over real loopback sockets; and requests of the server to itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/str.h"
#include "frontends/http/local.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static nrd_http_server *server;
static atomic_int gone, open_sums;

/* ---- a handler that adds up a body, now and then with a pause ---- */

typedef struct sum {
    nrd_http_task task;
    nrd_http_request *req;
    size_t bytes, largest;
    uint32_t sum;
    int n;
    bool last;
} sum;

static void end_sum(sum *s)
{
    nrd_http_request_unref(s->req);
    free(s);
    atomic_fetch_sub(&open_sums, 1);
}

static void on_gone(nrd_http_request *req, void *arg)
{
    (void)req;
    atomic_fetch_add(&gone, 1);
    end_sum(arg);
}

static void on_piece(nrd_http_request *req, void *arg, const char *data, size_t n, bool last);

static void go_on(sum *s)
{
    if (nrd_http_is_gone(s->req)) {
        end_sum(s);
    } else if (s->last) {
        char text[64];
        const int n = snprintf(text, sizeof text, "%zu %u %d", s->bytes, (unsigned)s->sum, s->largest <= NRD_HTTP_PIECE * 2);
        nrd_http_reply(s->req, 200, "text/plain", NULL, text, (size_t)n);
        end_sum(s);
    } else {
        s->req->on_gone = on_gone;
        s->req->gone_arg = s;
        nrd_http_read_body(s->req, on_piece, s);
    }
}

static void run_task(nrd_http_task *task)
{
    go_on((sum *)(void *)task);
}

static void on_piece(nrd_http_request *req, void *arg, const char *data, size_t n, bool last)
{
    sum *s = arg;
    req->on_gone = NULL;
    for (size_t i = 0; i < n; i++) {
        s->sum = s->sum * 31 + (unsigned char)data[i];
    }
    s->bytes += n;
    s->largest = n > s->largest ? n : s->largest;
    s->last = last;
    if (++s->n % 2) {
        s->task.run = run_task;
        nrd_http_post(req->loop, &s->task);
    } else {
        go_on(s);
    }
}

/* ---- the server ---- */

static _Atomic(nrd_http_request *) parked;
static atomic_int n_parked;

static void ask(void *user, nrd_http_request *req)
{
    (void)user;
    if (nrd_view_is(req->head.path, "/sum")) {
        sum *s = calloc(1, sizeof *s);
        s->req = req;
        nrd_http_request_ref(req);
        atomic_fetch_add(&open_sums, 1);
        go_on(s);
    } else if (nrd_view_is(req->head.path, "/refuse")) {
        nrd_http_reply(req, 413, "text/plain", NULL, "no", 2);
    } else if (nrd_view_is(req->head.path, "/park")) {
        nrd_http_request_ref(req);
        atomic_store(&parked, req);
        atomic_fetch_add(&n_parked, 1);
    } else if (nrd_view_is(req->head.path, "/stream")) {
        nrd_http_stream_begin(req, 200, "text/plain", NULL);
        nrd_http_stream_write(req, "x", 1);
        nrd_http_stream_end(req);
    } else {
        nrd_http_reply(req, 200, "text/plain", NULL, req->body, req->body_n);
    }
}

static void handle(nrd_http_request *req, void *user)
{
    ask(user, req);
}

static bool in_pieces(const nrd_http_request *req, void *user)
{
    (void)user;
    return nrd_view_is(req->head.path, "/sum") || nrd_view_is(req->head.path, "/refuse");
}

static int start(void **state)
{
    const nrd_http_config cfg = {.name = "test", .address = "127.0.0.1", .n_threads = 2, .max_body_bytes = 1000,
                                 .handle = handle, .in_pieces = in_pieces, .no_port = *state != NULL};
    atomic_store(&gone, 0);
    atomic_store(&open_sums, 0);
    atomic_store(&n_parked, 0);
    atomic_store(&parked, NULL);
    return nrd_http_server_start(&server, &cfg) ? -1 : 0;
}

static int finish(void **state)
{
    (void)state;
    nrd_http_server_free(server);
    return atomic_load(&open_sums);
}

static int dial(void)
{
    const struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)nrd_http_server_port(server)),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct timeval limit = {20, 0};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    assert_int_equal(connect(fd, (const struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static void put(int fd, const char *data, size_t n)
{
    while (n > 0) {
        const ssize_t w = send(fd, data, n, MSG_NOSIGNAL);
        assert_true(w > 0);
        data += w;
        n -= (size_t)w;
    }
}

static void get(int fd, nrd_str *s, const char *end)
{
    char buf[4096];
    while (!end || s->len == 0 || !strstr(s->data, end)) {
        const ssize_t r = recv(fd, buf, sizeof buf, 0);
        if (r <= 0) {
            assert_null(end);
            return;
        }
        nrd_str_append(s, buf, (size_t)r);
    }
}

static void wait_for(atomic_int *v, int value)
{
    for (int i = 0; i < 20000 && atomic_load(v) != value; i++) {
        usleep(1000);
    }
    assert_int_equal(atomic_load(v), value);
}

/* A request with n bytes of body, its answer in *want. */
static void put_request(nrd_str *out, size_t n, bool chunked, char want[64])
{
    uint32_t total = 0;
    nrd_str_printf(out, "POST /sum HTTP/1.1\r\nHost: h\r\n");
    if (chunked) {
        nrd_str_puts(out, "Transfer-Encoding: chunked\r\n\r\n");
    } else {
        nrd_str_printf(out, "Content-Length: %zu\r\n\r\n", n);
    }
    for (size_t at = 0, part; at < n; at += part) {
        part = chunked && n - at > 7001 ? 7001 : n - at;
        if (chunked) {
            nrd_str_printf(out, "%zx\r\n", part);
        }
        for (size_t i = at; i < at + part; i++) {
            nrd_str_putc(out, (char)(i * 7 + i / 251));
            total = total * 31 + (unsigned char)(i * 7 + i / 251);
        }
        if (chunked) {
            nrd_str_puts(out, "\r\n");
        }
    }
    if (chunked) {
        nrd_str_puts(out, "0\r\n\r\n");
    }
    snprintf(want, 64, "\r\n\r\n%zu %u 1", n, (unsigned)total);
}

static void test_bodies_come_in_pieces_however_they_are_sent(void **state)
{
    static const size_t sizes[] = {1, 100, 9000, NRD_HTTP_PIECE - 1, NRD_HTTP_PIECE, NRD_HTTP_PIECE + 1, 2 * NRD_HTTP_PIECE, 1000003};
    (void)state;
    for (size_t i = 0; i < 2 * sizeof sizes / sizeof *sizes; i++) {
        for (size_t cut = 7777; cut < 2000000; cut = cut * 11) {
            const int fd = dial();
            nrd_str request = {0}, answer = {0};
            char want[64];
            put_request(&request, sizes[i / 2], i % 2, want);
            nrd_str_puts(&request, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nConnection: close\r\n\r\nnext");
            for (size_t at = 0; at < request.len; at += cut) {
                put(fd, request.data + at, request.len - at < cut ? request.len - at : cut);
            }
            get(fd, &answer, NULL);
            assert_non_null(strstr(answer.data, want));
            assert_true(nrd_str_has_suffix(answer.data, "\r\n\r\nnext"));
            nrd_str_fini(&request);
            nrd_str_fini(&answer);
            close(fd);
        }
    }
    assert_int_equal(atomic_load(&gone), 0);
}

static void test_a_client_that_waits_is_told_to_go_on(void **state)
{
    static const char head[] = "POST /sum HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n";
    const int fd = dial();
    nrd_str s = {0};
    (void)state;
    put(fd, head, sizeof head - 1);
    get(fd, &s, "100 Continue\r\n\r\n");
    put(fd, "abc", 3);
    get(fd, &s, "\r\n\r\n3 ");
    nrd_str_fini(&s);
    close(fd);
}

static void test_an_early_answer_arrives_and_ends_the_connection(void **state)
{
    static char much[3 << 20];
    char head[128];
    const int fd = dial();
    nrd_str s = {0};
    (void)state;
    const int n = snprintf(head, sizeof head, "POST /refuse HTTP/1.1\r\nHost: h\r\nContent-Length: %zu\r\n\r\n", sizeof much);
    put(fd, head, (size_t)n);
    put(fd, much, sizeof much);
    get(fd, &s, NULL);
    assert_true(nrd_str_has_prefix(s.data, "HTTP/1.1 413"));
    assert_non_null(strstr(s.data, "Connection: close"));
    assert_true(nrd_str_has_suffix(s.data, "\r\n\r\nno"));
    nrd_str_fini(&s);
    close(fd);
}

static void test_a_client_that_leaves_is_told_once(void **state)
{
    static const char head[] = "POST /sum HTTP/1.1\r\nHost: h\r\nContent-Length: 600000\r\n\r\n";
    static const char chunked[] = "POST /sum HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
    static char data[500000];
    (void)state;
    const size_t sent[] = {0, 5, 300000, 500000};
    for (size_t i = 0; i < 4; i++) {
        int fd = dial();
        put(fd, head, sizeof head - 1);
        put(fd, data, sent[i]);
        usleep(20000);
        close(fd);
        wait_for(&gone, (int)i + 1);
        wait_for(&open_sums, 0);
    }
    const int fd = dial();
    nrd_str s = {0};
    put(fd, chunked, sizeof chunked - 1);
    put(fd, "3\r\nabc\r\nxyz\r\n", 13);
    get(fd, &s, NULL);
    assert_true(nrd_str_has_prefix(s.data, "HTTP/1.1 400"));
    wait_for(&gone, 5);
    wait_for(&open_sums, 0);
    nrd_str_fini(&s);
    close(fd);
}

static void test_the_end_of_the_server_ends_what_is_half_read(void **state)
{
    static const char head[] = "POST /sum HTTP/1.1\r\nHost: h\r\nContent-Length: 600000\r\n\r\nabc";
    const int fd = dial();
    (void)state;
    put(fd, head, sizeof head - 1);
    wait_for(&open_sums, 1);
    nrd_http_server_free(server);
    server = NULL;
    assert_int_equal(atomic_load(&open_sums), 0);
    close(fd);
}

/* ---- requests of the server to itself ---- */

typedef struct asked {
    nrd_http_local local;
    atomic_int n_done;
    int status;
    nrd_str body;
} asked;

static void on_done(nrd_http_local *l, int status, nrd_str *body)
{
    asked *a = (asked *)(void *)l;
    a->status = status;
    a->body = *body;
    memset(body, 0, sizeof *body);
    atomic_fetch_add(&a->n_done, 1);
}

static void begin(asked *a, const char *path, uint64_t group)
{
    memset(a, 0, sizeof *a);
    a->local = (nrd_http_local){.path = path, .handle = ask, .key = 3, .group = group, .done = on_done};
    nrd_http_local_start(server, &a->local, strdup("body"), 4);
}

static void test_the_server_answers_itself(void **state)
{
    asked a[20];
    (void)state;
    for (int i = 0; i < 20; i++) {
        begin(&a[i], "/echo", 1);
    }
    for (int i = 0; i < 20; i++) {
        wait_for(&a[i].n_done, 1);
        assert_int_equal(a[i].status, 200);
        assert_string_equal(nrd_str_cstr(&a[i].body), "body");
        nrd_str_fini(&a[i].body);
    }
    begin(&a[0], "/stream", 1);
    wait_for(&a[0].n_done, 1);
    assert_int_equal(a[0].status, 400);
    nrd_str_fini(&a[0].body);
}

static void test_what_is_cancelled_is_done_once_and_others_stay(void **state)
{
    asked a, b;
    int key = 0;
    (void)state;
    begin(&a, "/park", 1);
    wait_for(&n_parked, 1);
    nrd_http_request *first = atomic_load(&parked);
    assert_true(nrd_http_is_local(first, &key));
    assert_int_equal(key, 3);
    assert_false(nrd_http_is_gone(first));
    begin(&b, "/park", 2);
    wait_for(&n_parked, 2);
    nrd_http_request *second = atomic_load(&parked);
    assert_null(nrd_http_local_cancel(server, 1));
    wait_for(&a.n_done, 1);
    assert_int_equal(a.status, 0);
    assert_true(nrd_http_is_gone(first));
    assert_string_equal(first->body, "body"); /* its holder may still read it */
    nrd_http_reply(first, 200, NULL, NULL, "late", 4);
    assert_int_equal(atomic_load(&a.n_done), 1);
    nrd_http_request_unref(first);
    assert_int_equal(atomic_load(&b.n_done), 0);
    nrd_http_server_free(server); /* what is left ends with the loops */
    server = NULL;
    assert_int_equal(atomic_load(&b.n_done), 1);
    assert_int_equal(b.status, 0);
    nrd_http_request_unref(second);
}

#define T(f) cmocka_unit_test_setup_teardown(f, start, finish)
#define L(f) cmocka_unit_test_prestate_setup_teardown(f, start, finish, &no_port)

int main(void)
{
    static int no_port;
    const struct CMUnitTest tests[] = {
        T(test_bodies_come_in_pieces_however_they_are_sent),
        T(test_a_client_that_waits_is_told_to_go_on),
        T(test_an_early_answer_arrives_and_ends_the_connection),
        T(test_a_client_that_leaves_is_told_once),
        T(test_the_end_of_the_server_ends_what_is_half_read),
        L(test_the_server_answers_itself),
        L(test_what_is_cancelled_is_done_once_and_others_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
