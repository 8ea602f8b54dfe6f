/* SPDX-License-Identifier: Apache-2.0 */
#include "frontends/common/network.h"

#include "base/str.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff}; /* what IPv4 addresses begin with */

static bool is_v4(const nrd_address *a)
{
    return memcmp(a->bytes, mapped, sizeof mapped) == 0;
}

nrd_address nrd_address_of(const struct sockaddr *a)
{
    nrd_address out = {{0}};

    if (a->sa_family == AF_INET) {
        memcpy(out.bytes, mapped, sizeof mapped);
        memcpy(out.bytes + 12, &((const struct sockaddr_in *)(const void *)a)->sin_addr, 4);
    } else if (a->sa_family == AF_INET6) {
        memcpy(out.bytes, &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr, 16);
    }
    return out;
}

bool nrd_address_parse(const char *text, size_t n, nrd_address *out)
{
    char name[NRD_ADDRESS_TEXT];

    *out = (nrd_address){{0}};
    if (n == 0 || n >= sizeof name || memchr(text, '\0', n)) {
        return false;
    }
    memcpy(name, text, n);
    name[n] = '\0';
    if (inet_pton(AF_INET, name, out->bytes + 12) == 1) {
        memcpy(out->bytes, mapped, sizeof mapped);
        return true;
    }
    return inet_pton(AF_INET6, name, out->bytes) == 1;
}

void nrd_address_put(const nrd_address *a, char out[NRD_ADDRESS_TEXT])
{
    static const nrd_address unknown;

    if (memcmp(a, &unknown, sizeof unknown) == 0) {
        snprintf(out, NRD_ADDRESS_TEXT, "-");
    } else if (is_v4(a)) {
        inet_ntop(AF_INET, a->bytes + 12, out, NRD_ADDRESS_TEXT);
    } else {
        inet_ntop(AF_INET6, a->bytes, out, NRD_ADDRESS_TEXT);
    }
}

/* Whether the first n_bits are the same. */
static bool same_begin(const nrd_address *a, const nrd_address *b, int n_bits)
{
    const int whole = n_bits / 8, rest = n_bits % 8;
    const uint8_t mask = (uint8_t)(0xff00 >> rest);

    return memcmp(a->bytes, b->bytes, (size_t)whole) == 0 &&
           (rest == 0 || ((a->bytes[whole] ^ b->bytes[whole]) & mask) == 0);
}

/* Bits behind the prefix would be a slip: 10.0.0.1/8. */
static bool is_first(const nrd_address *a, int n_bits)
{
    for (int i = n_bits; i < 128; i++) {
        if (a->bytes[i / 8] >> (7 - i % 8) & 1) {
            return false;
        }
    }
    return true;
}

bool nrd_networks_add(nrd_networks *list, const char *text)
{
    const char *slash = strchr(text, '/');
    const size_t n = slash ? (size_t)(slash - text) : strlen(text);
    struct nrd_network one = {.n_bits = 128};
    long long bits = 0;

    if (!nrd_address_parse(text, n, &one.first)) {
        return false;
    }
    if (slash) {
        const int most = is_v4(&one.first) && !memchr(text, ':', n) ? 32 : 128;
        if (!nrd_parse_i64(slash + 1, &bits) || bits < 0 || bits > most) {
            return false;
        }
        one.n_bits = 128 - most + (int)bits;
    }
    struct nrd_network *v = is_first(&one.first, one.n_bits) ? realloc(list->v, (list->n + 1) * sizeof *v) : NULL;
    if (!v) {
        return false;
    }
    v[list->n] = one;
    list->v = v;
    list->n++;
    return true;
}

bool nrd_networks_have(const nrd_networks *list, const nrd_address *a)
{
    static const nrd_address unknown;

    for (size_t i = 0; i < list->n && memcmp(a, &unknown, sizeof unknown) != 0; i++) {
        if (same_begin(a, &list->v[i].first, list->v[i].n_bits)) {
            return true;
        }
    }
    return false;
}

void nrd_networks_fini(nrd_networks *list)
{
    free(list->v);
    *list = (nrd_networks){0};
}
