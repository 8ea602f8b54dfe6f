/* SPDX-License-Identifier: Apache-2.0
 * Routes: what a path names, methods, restricted groups, keys, tables one after the other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "frontends/http/router.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Answers with everything that it was given. */
static void tell(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    char text[512];
    int n = snprintf(text, sizeof text, "%s m=%s v=%s r=%s", (const char *)user,
                     route->model ? route->model : "-", route->version ? route->version : "-",
                     route->region ? route->region : "-");
    nrd_http_reply(req, 200, "text/plain", NULL, text, (size_t)n);
}

static const nrd_http_route_row first[] = {
    {"v2/models/{m}/infer", NRD_HTTP_ON_POST, "inference", tell, nrd_http_refuse_method},
    {"v2/models/{m}/versions/{v}", NRD_HTTP_ON_GET, "metadata", tell, NULL},
    {"v2/region/{r}/status", NRD_HTTP_ON_GET | NRD_HTTP_ON_POST, NULL, tell, NULL},
};
static const nrd_http_route_row second[] = {
    {"v1/models/{m*}", NRD_HTTP_ON_GET | NRD_HTTP_ON_OTHER, NULL, tell, NULL},
    {"", NRD_HTTP_ON_GET, NULL, tell, NULL},
    {"v2/models/{m}/infer", NRD_HTTP_ON_GET, NULL, tell, NULL}, /* hidden by the first table */
};

static void fail_second(nrd_http_request *req, int status, const char *message)
{
    nrd_str text = {0};
    nrd_str_printf(&text, "second: %s", message);
    nrd_http_reply_str(req, status, "text/plain", NULL, &text);
    nrd_str_fini(&text);
}

static nrd_http_router *router;
static nrd_http_server *server;
static nrd_keys *keys;
static nrd_option_entry entry = {.name = (char *)(uintptr_t) "metadata",
                                 .setting = (char *)(uintptr_t) "key",
                                 .value = (char *)(uintptr_t) "secret"};
static nrd_option_entry api_key = {.name = (char *)(uintptr_t) "k1"};
static const nrd_options options = {.http_address = (char *)(uintptr_t) "0.0.0.0",
                                    .http_restricted = {&entry, 1},
                                    .api_key_file = (char *)(uintptr_t) "",
                                    .api_keys = {&api_key, 1}};

static int start(void **state)
{
    (void)state;
    nrd_error *err = nrd_keys_new(&keys, &options);
    if (!err) {
        err = nrd_http_router_new(&router, &options, keys);
    }
    if (!err) {
        err = nrd_http_router_add(router, first, 3, (void *)(uintptr_t) "first", NULL);
    }
    if (!err) {
        err = nrd_http_router_add(router, second, 3, (void *)(uintptr_t) "second", fail_second);
    }
    nrd_http_config cfg = {.name = "test",
                           .address = "127.0.0.1",
                           .n_threads = 1,
                           .max_body_bytes = 1000,
                           .handle = nrd_http_router_handle,
                           .fail = nrd_http_router_fail,
                           .user = router};
    if (!err) {
        err = nrd_http_server_start(&server, &cfg);
    }
    nrd_error_free(err);
    return server ? 0 : -1;
}

static int finish(void **state)
{
    (void)state;
    nrd_http_server_free(server);
    nrd_http_router_free(router);
    nrd_keys_free(keys);
    return 0;
}

/* One request on a connection of its own; `want` must be in the answer. */
static void ask(const char *request, const char *fields, const char *want_status, const char *want)
{
    char out[2048], in[4096];
    size_t n = 0;
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)nrd_http_server_port(server)),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    int len = snprintf(out, sizeof out, "%s HTTP/1.1\r\nHost: h\r\nConnection: close\r\n%s\r\n",
                       request, fields);
    assert_int_equal(send(fd, out, (size_t)len, MSG_NOSIGNAL), len);
    for (ssize_t r; (r = recv(fd, in + n, sizeof in - 1 - n, 0)) > 0;) {
        n += (size_t)r;
    }
    in[n] = '\0';
    close(fd);
    if (strncmp(in + 9, want_status, 3) != 0 || !strstr(in, want)) {
        fail_msg("%s: got %s", request, in);
    }
}

static void test_the_root_has_a_row(void **state)
{
    (void)state;
    ask("GET /", "", "200", "second m=-");
    ask("GET /?x=1", "", "200", "second m=-");
    ask("GET //", "", "404", "Not Found");
    ask("POST /", "Content-Length: 0\r\n", "405", "Method Not Allowed");
}

static void test_paths_are_taken_apart(void **state)
{
    (void)state;
    ask("POST /v2/models/a%20b/infer", "Authorization: bearer k1\r\nContent-Length: 0\r\n", "200", "first m=a b v=- r=-");
    ask("GET /v2/models/m/versions/12", "key: secret\r\n", "200", "first m=m v=12 r=-");
    ask("GET /v2/region/x/status?q=1", "", "200", "first m=- v=- r=x");
    ask("GET /v1/models/org/name/x", "", "200", "second m=org/name/x");
    ask("DELETE /v1/models/org", "", "200", "second m=org");
}

static void test_what_does_not_match_is_refused(void **state)
{
    (void)state;
    ask("GET /v2/models/m/versions/1x", "key: secret\r\n", "404", "Not Found");
    ask("GET /v2/models//versions/1", "", "404", "Not Found");
    ask("GET /v2/region/x/status/", "", "404", "Not Found");
    ask("GET /v1/models", "", "404", "Not Found");
    ask("GET /v1/models/", "", "404", "Not Found");
    ask("GET /v2/region/%00/status", "", "404", "Not Found");
    ask("GET /v2/models/m/infer", "Authorization: Bearer k1\r\n", "405", "text/plain"); /* the earlier table decides */
    ask("DELETE /v2/region/x/status", "", "405", "application/json");
    ask("GET /v2/models/m/versions/12", "", "403", "expecting header 'key'");
    ask("GET /v2/models/m/versions/12", "key: Secret\r\n", "403", "expecting header 'key'");
}

static void test_a_guarded_group_asks_for_the_key(void **state)
{
    const char *const wrong[] = {"", "Authorization: Bearer k\r\n", "Authorization: Bearer k12\r\n",
                                 "Authorization: Bearer K1\r\n", "Authorization: Bearer\r\n",
                                 "Authorization: k1\r\n", "Authorization: Basic k1\r\n"};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ask("GET /v2/models/m/infer", wrong[i], "401", "WWW-Authenticate: Bearer");
    }
}

static void test_an_error_has_the_form_of_the_path_where_it_was_read(void **state)
{
    (void)state;
    ask("GET /v1/models/org", "Content-Length: 1\r\nContent-Length: 1\r\n", "400", "second: repeated Content-Length");
    ask("POST /v1/models/org", "Content-Length: 1001\r\n", "400", "second: request body size of 1001 bytes");
    ask("GET", "", "400", "{\"error\":\"malformed request line\"}");
    ask("GET none", "", "400", "{\"error\":\"malformed request target\"}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_root_has_a_row),
        cmocka_unit_test(test_paths_are_taken_apart),
        cmocka_unit_test(test_what_does_not_match_is_refused),
        cmocka_unit_test(test_a_guarded_group_asks_for_the_key),
        cmocka_unit_test(test_an_error_has_the_form_of_the_path_where_it_was_read),
    };
    return cmocka_run_group_tests(tests, start, finish);
}
