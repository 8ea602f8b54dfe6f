/* SPDX-License-Identifier: Apache-2.0
 * What proxies say of clients. Input: a line with networks, then header lines. The client of a peer that is not trusted
 * is the peer; the scheme is http or https. An
 * address is read back as it was written. */
#include "frontends/http/forwarded.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_INPUT = 16 << 10 };

static void must(bool holds)
{
    if (!holds) {
        abort();
    }
}

static nrd_networks read_networks(const char *line, size_t n)
{
    nrd_networks list = {0};
    char text[256], *before = NULL;

    snprintf(text, sizeof text, "%.*s", (int)(n < sizeof text ? n : sizeof text - 1), line);
    for (char *word = strtok_r(text, ", ", &before); word; word = strtok_r(NULL, ", ", &before)) {
        (void)nrd_networks_add(&list, word);
    }
    return list;
}

static void ask(const nrd_http_head *h, const char *peer, const nrd_networks *trusted)
{
    char text[NRD_ADDRESS_TEXT];
    nrd_address from, again;

    must(nrd_address_parse(peer, strlen(peer), &from));
    const nrd_address client = nrd_http_forwarded_for(h, &from, trusted);
    const char *proto = nrd_http_forwarded_proto(h, &from, trusted);
    must(!proto || !strcmp(proto, "http") || !strcmp(proto, "https"));
    if (!nrd_networks_have(trusted, &from)) {
        must(!proto && memcmp(&client, &from, sizeof from) == 0);
    }
    nrd_address_put(&client, text);
    must(!strcmp(text, "-") || (nrd_address_parse(text, strlen(text), &again) && memcmp(&again, &client, sizeof again) == 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char line[] = "GET / HTTP/1.1\r\nHost: h\r\n";
    const char *end = memchr(data, '\n', size), *why = NULL;
    char text[MAX_INPUT + sizeof line + 4];
    nrd_http_head h;

    if (!end || size > MAX_INPUT) {
        return 0;
    }
    nrd_networks trusted = read_networks((const char *)data, (size_t)(end - (const char *)data));
    const size_t n = size - (size_t)(end + 1 - (const char *)data);
    memcpy(text, line, sizeof line - 1);
    memcpy(text + sizeof line - 1, end + 1, n);
    memcpy(text + sizeof line - 1 + n, "\r\n", 2);
    if (nrd_http_parse_head(&h, text, sizeof line - 1 + n + 2, &why) == 0) {
        ask(&h, "10.1.2.3", &trusted);
        ask(&h, "2001:db8::1", &trusted);
    }
    nrd_networks_fini(&trusted);
    return 0;
}
