/* SPDX-License-Identifier: Apache-2.0
 * Who asks behind proxies: what trusted ones wrote is believed, a client's own word is not, and what is malformed
 * changes nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "frontends/http/forwarded.h"

#include <stdio.h>
#include <string.h>

static nrd_networks trusted;

static int trust_some(void **state)
{
    (void)state;
    return nrd_networks_add(&trusted, "10.0.0.0/8") && nrd_networks_add(&trusted, "::1") &&
                   nrd_networks_add(&trusted, "2001:db8::/33")
               ? 0
               : 1;
}

static int forget(void **state)
{
    (void)state;
    nrd_networks_fini(&trusted);
    return 0;
}

/* The client of a request with these header lines that came from `peer`. */
static const char *client(const char *peer, const char *lines, const char **out_proto)
{
    static char text[2048], out[NRD_ADDRESS_TEXT];
    nrd_http_head h;
    nrd_address from;
    const char *why;

    const int n = snprintf(text, sizeof text, "GET / HTTP/1.1\r\nHost: h\r\n%s\r\n", lines);
    assert_int_equal(nrd_http_parse_head(&h, text, (size_t)n, &why), 0);
    assert_true(nrd_address_parse(peer, strlen(peer), &from));
    const nrd_address a = nrd_http_forwarded_for(&h, &from, &trusted);
    nrd_address_put(&a, out);
    if (out_proto) {
        *out_proto = nrd_http_forwarded_proto(&h, &from, &trusted);
    }
    return out;
}

#define CLIENT(peer, lines, want) assert_string_equal(client(peer, lines, NULL), want)

static void strangers_are_not_believed(void **state)
{
    const char *proto;
    (void)state;
    CLIENT("192.0.2.9", "X-Forwarded-For: 198.51.100.1\r\n", "192.0.2.9");
    CLIENT("2001:db8:8000::1", "Forwarded: for=198.51.100.1\r\n", "2001:db8:8000::1"); /* the bit behind the prefix */
    client("192.0.2.9", "X-Forwarded-Proto: https\r\n", &proto);
    assert_null(proto);
}

static void trusted_proxies_say_who_asks(void **state)
{
    (void)state;
    CLIENT("10.1.2.3", "", "10.1.2.3");
    CLIENT("10.1.2.3", "X-Forwarded-For: 198.51.100.1\r\n", "198.51.100.1");
    CLIENT("::1", "X-Forwarded-For: 198.51.100.1:4711\r\n", "198.51.100.1");
    CLIENT("10.1.2.3", "X-Forwarded-For: 2001:db8:8000::1\r\n", "2001:db8:8000::1");
    CLIENT("2001:db8::7", "X-Forwarded-For: [2001:db8:8000::1]:80\r\n", "2001:db8:8000::1");
    CLIENT("::ffff:10.1.2.3", "X-Forwarded-For: 198.51.100.1\r\n", "198.51.100.1");
    /* several proxies, and fields that stand apart */
    CLIENT("10.1.2.3", "X-Forwarded-For: 198.51.100.1, 10.9.9.9\r\n", "198.51.100.1");
    CLIENT("10.1.2.3", "X-Forwarded-For: 198.51.100.1\r\nX-Other: 1\r\nx-forwarded-for: 10.9.9.9,10.4.4.4\r\n", "198.51.100.1");
    CLIENT("10.1.2.3", "Forwarded: For=198.51.100.1;proto=http;by=_x, for=\"[2001:db8::17]:4711\"\r\n", "198.51.100.1");
    CLIENT("10.1.2.3", "Forwarded: host=\"a,b\";for=198.51.100.1\r\n", "198.51.100.1");
}

static void what_the_client_wrote_before_is_not_believed(void **state)
{
    (void)state;
    CLIENT("10.1.2.3", "X-Forwarded-For: 203.0.113.5, 198.51.100.1\r\n", "198.51.100.1");
    CLIENT("10.1.2.3", "X-Forwarded-For: \"x, 198.51.100.1\r\n", "198.51.100.1");
    CLIENT("10.1.2.3", "Forwarded: for=203.0.113.5\r\nX-Forwarded-For: 198.51.100.1\r\n", "10.1.2.3");
}

static void malformed_fields_change_nothing(void **state)
{
    static const char *const bad[] = {"", ",", "unknown", "_hidden", "1.2.3", "1.2.3.4.5", "1.2.3.4:x:y", "[::1", "[]", "::1]", "\"", "a\tb",
                                      "300.1.1.1", "1.2.3.4/8", "-"};
    char lines[256];
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(lines, sizeof lines, "X-Forwarded-For: 198.51.100.1, %s\r\n", bad[i]);
        CLIENT("10.1.2.3", lines, "10.1.2.3");
        snprintf(lines, sizeof lines, "Forwarded: for=198.51.100.1, for=%s\r\n", bad[i]);
        CLIENT("10.1.2.3", lines, "10.1.2.3");
    }
    CLIENT("10.1.2.3", "Forwarded: ;;=;for;for =x\r\n", "10.1.2.3");
    CLIENT("10.1.2.3", "Forwarded: for=\"\\1.2.3.4\"\r\n", "10.1.2.3");
    CLIENT("10.1.2.3", "X-Forwarded-For: 198.51.100.1,10.0.0.1,10.0.0.1,10.0.0.1,10.0.0.1,10.0.0.1,10.0.0.1,10.0.0.1,10.0.0.1,"
                       "10.0.0.1,10.0.0.1,10.0.0.1,10.0.0.1,10.0.0.1,10.0.0.1,10.0.0.1,10.0.0.2\r\n", "10.0.0.1"); /* 16 are enough */
}

static void the_scheme_is_the_last_proxys(void **state)
{
    const char *proto;
    (void)state;
    client("10.1.2.3", "X-Forwarded-Proto: https\r\n", &proto);
    assert_string_equal(proto, "https");
    client("10.1.2.3", "X-Forwarded-Proto: https, HTTP\r\n", &proto);
    assert_string_equal(proto, "http");
    client("10.1.2.3", "Forwarded: for=1.2.3.4;proto=\"https\"\r\n", &proto);
    assert_string_equal(proto, "https");
    client("10.1.2.3", "X-Forwarded-Proto: gopher\r\n", &proto);
    assert_null(proto);
    client("10.1.2.3", "Forwarded: proto=https\r\nX-Forwarded-Proto: https\r\n", &proto);
    assert_null(proto);
}

static void networks_are_read_strictly(void **state)
{
    static const char *const good[] = {"0.0.0.0/0", "::/0", "127.0.0.1", "127.0.0.1/32", "fe80::/10", "::ffff:0.0.0.0/96"};
    static const char *const bad[] = {"", "/", "/8", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.1/8", "::1/129", "::1/64", "host",
                                      "10.0.0.0/8/8", "10.0.0.0 /8"};
    nrd_networks list = {0};
    nrd_address a;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_false(nrd_networks_add(&list, bad[i]));
    }
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(nrd_networks_add(&list, good[i]));
    }
    assert_true(nrd_address_parse("203.0.113.1", 11, &a));
    assert_true(nrd_networks_have(&list, &a));
    a = (nrd_address){{0}};
    assert_false(nrd_networks_have(&list, &a)); /* a peer without an address, as of a Unix socket */
    nrd_networks_fini(&list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strangers_are_not_believed),
        cmocka_unit_test(trusted_proxies_say_who_asks),
        cmocka_unit_test(what_the_client_wrote_before_is_not_believed),
        cmocka_unit_test(malformed_fields_change_nothing),
        cmocka_unit_test(the_scheme_is_the_last_proxys),
        cmocka_unit_test(networks_are_read_strictly),
    };
    return cmocka_run_group_tests(tests, trust_some, forget);
}
