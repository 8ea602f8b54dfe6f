/* SPDX-License-Identifier: Apache-2.0 */
#include "frontends/http/origin.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

bool nrd_http_origin_may_change(const nrd_http_head *head, const char *proto, const nrd_option_list *allowed)
{
    const nrd_view *origin = nrd_http_find_field(head, "Origin");
    const nrd_view *host = nrd_http_find_field(head, "Host");
    static const char *const schemes[] = {"http://", "https://"}; /* a proxy may add TLS */

    if (!origin) {
        return true;
    }
    for (size_t i = 0; host && i < sizeof schemes / sizeof *schemes; i++) {
        const size_t n = strlen(schemes[i]);
        if (origin->n == n + host->n && strncasecmp(origin->p, schemes[i], n) == 0 &&
            (!proto || strlen(proto) == n - strlen("://")) &&
            strncasecmp(origin->p + n, host->p, host->n) == 0) {
            return true;
        }
    }
    for (size_t i = 0; i < allowed->n; i++) {
        if (strcmp(allowed->items[i].name, "*") != 0 &&
            nrd_view_is(*origin, allowed->items[i].name)) {
            return true;
        }
    }
    return false;
}

bool nrd_http_type_is_json(const nrd_http_head *head)
{
    static const char json[] = "application/json";
    const nrd_view *type = nrd_http_find_field(head, "Content-Type");
    const size_t n = sizeof json - 1;

    if (!nrd_http_find_field(head, "Origin") && !nrd_http_find_field(head, "Sec-Fetch-Site")) {
        return true;
    }
    return type && type->n >= n && strncasecmp(type->p, json, n) == 0 &&
           (type->n == n || type->p[n] == ';' || type->p[n] == ' ');
}

/* The name of a Host field, without port, final dot and brackets, into out[0..cap). */
static bool take_name(nrd_view host, char *out, size_t cap)
{
    const char *end = memchr(host.p, ':', host.n);
    size_t n = end ? (size_t)(end - host.p) : host.n;

    if (host.n > 0 && host.p[0] == '[') {
        end = memchr(host.p, ']', host.n);
        n = end ? (size_t)(end - host.p) - 1 : 0;
        host.p++;
    } else if (n > 0 && host.p[n - 1] == '.') {
        n--;
    }
    if (n == 0 || n >= cap || memchr(host.p, '\0', n)) {
        return false;
    }
    memcpy(out, host.p, n);
    out[n] = '\0';
    return true;
}

bool nrd_http_is_loopback(const char *name)
{
    static const char tail[] = ".localhost";
    struct in_addr four;
    struct in6_addr six;
    const size_t n = strlen(name), n_tail = sizeof tail - 1;

    return (inet_pton(AF_INET, name, &four) == 1 && ntohl(four.s_addr) >> 24 == 127) ||
           (inet_pton(AF_INET6, name, &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six)) ||
           strcasecmp(name, tail + 1) == 0 ||
           (n > n_tail && strcasecmp(name + n - n_tail, tail) == 0);
}

/* An address cannot be rebound: whoever wrote it meant it. */
static bool is_address(const char *name)
{
    struct in6_addr out;
    return inet_pton(AF_INET, name, &out) == 1 || inet_pton(AF_INET6, name, &out) == 1;
}

bool nrd_http_host_is_ours(const nrd_http_head *head, const char *address,
                           const nrd_option_list *hosts)
{
    const nrd_view *host = nrd_http_find_field(head, "Host");
    const bool closed = nrd_http_is_loopback(address);
    char name[256]; /* a name of the DNS has at most 253 characters */

    if (!host || (!closed && hosts->n == 0)) {
        return true;
    }
    for (size_t i = 0; i < hosts->n; i++) {
        if (strcmp(hosts->items[i].name, "*") == 0) {
            return true;
        }
    }
    if (!take_name(*host, name, sizeof name)) {
        return false;
    }
    for (size_t i = 0; i < hosts->n; i++) {
        if (strcasecmp(hosts->items[i].name, name) == 0) {
            return true;
        }
    }
    return nrd_http_is_loopback(name) || strcasecmp(name, address) == 0 ||
           (!closed && is_address(name));
}
