/* SPDX-License-Identifier: Apache-2.0 */
#include "frontends/http/forwarded.h"

#include <string.h>

enum { MAX_PROXIES = 16 }; /* one behind the other; a client's list must not cost time */

static nrd_view trimmed(nrd_view v)
{
    while (v.n > 0 && (v.p[0] == ' ' || v.p[0] == '\t')) {
        v.p++;
        v.n--;
    }
    while (v.n > 0 && (v.p[v.n - 1] == ' ' || v.p[v.n - 1] == '\t')) {
        v.n--;
    }
    return v;
}

/* ---- lists over all fields of a name, from their end ---- */

typedef struct back {
    const nrd_http_head *h;
    const char *name;
    bool quotes; /* a comma may stand within quotes */
    size_t i;      /* fields from here on are done */
    nrd_view rest; /* of the field before; p NULL: the next field */
} back;

/* Where the last comma outside quotes is; the end: there is none. */
static size_t last_comma(nrd_view v, bool quotes)
{
    size_t at = v.n;
    bool quoted = false;

    for (size_t i = 0; i < v.n; i++) {
        if (quoted && v.p[i] == '\\') {
            i++;
        } else if (quotes && v.p[i] == '"') {
            quoted = !quoted;
        } else if (v.p[i] == ',' && !quoted) {
            at = i;
        }
    }
    return at;
}

/* false: there is no more. */
static bool previous(back *b, nrd_view *out)
{
    while (!b->rest.p) {
        if (b->i == 0) {
            return false;
        }
        const nrd_http_field *f = &b->h->fields[--b->i];
        if (nrd_view_is_nocase(f->name, b->name)) {
            b->rest = f->value;
        }
    }
    const size_t at = last_comma(b->rest, b->quotes);
    const size_t from = at < b->rest.n ? at + 1 : 0;
    *out = trimmed((nrd_view){b->rest.p + from, b->rest.n - from});
    b->rest = at < b->rest.n ? (nrd_view){b->rest.p, at} : (nrd_view){NULL, 0};
    return true;
}

/* ---- one element ---- */

/* ADDRESS, ADDRESS:PORT (IPv4), [ADDRESS] or [ADDRESS]:PORT. */
static bool read_address(nrd_view v, nrd_address *out)
{
    const char *end;

    if (v.n > 0 && v.p[0] == '[') {
        end = memchr(v.p, ']', v.n);
        return end && nrd_address_parse(v.p + 1, (size_t)(end - v.p) - 1, out);
    }
    end = v.n > 0 ? memchr(v.p, ':', v.n) : NULL;
    if (end && !memchr(end + 1, ':', v.n - (size_t)(end - v.p) - 1)) {
        v.n = (size_t)(end - v.p);
    }
    return nrd_address_parse(v.p, v.n, out);
}

/* The value of a parameter of an element of Forwarded, without its quotes; an escape makes it none. */
static bool parameter(nrd_view element, const char *name, nrd_view *out)
{
    while (element.n > 0) {
        const char *semicolon = memchr(element.p, ';', element.n);
        const size_t n = semicolon ? (size_t)(semicolon - element.p) : element.n;
        nrd_view pair = trimmed((nrd_view){element.p, n});
        const char *equals = pair.n > 0 ? memchr(pair.p, '=', pair.n) : NULL;
        if (equals && nrd_view_is_nocase((nrd_view){pair.p, (size_t)(equals - pair.p)}, name)) {
            nrd_view v = {equals + 1, pair.n - (size_t)(equals - pair.p) - 1};
            if (v.n >= 2 && v.p[0] == '"' && v.p[v.n - 1] == '"') {
                v = (nrd_view){v.p + 1, v.n - 2};
            }
            *out = v;
            return v.n == 0 || !memchr(v.p, '\\', v.n);
        }
        element = (nrd_view){element.p + n + (semicolon != NULL), element.n - n - (semicolon != NULL)};
    }
    return false;
}

/* ---- requests ---- */

nrd_address nrd_http_forwarded_for(const nrd_http_head *h, const nrd_address *peer, const nrd_networks *trusted)
{
    const bool is_new = nrd_http_find_field(h, "Forwarded") != NULL;
    back b = {.h = h, .name = is_new ? "Forwarded" : "X-Forwarded-For", .quotes = is_new, .i = h->n_fields};
    nrd_address client = *peer, before;
    nrd_view v;

    if (is_new && nrd_http_find_field(h, "X-Forwarded-For")) {
        return client;
    }
    for (int i = 0; i < MAX_PROXIES && nrd_networks_have(trusted, &client) && previous(&b, &v) &&
                    (!is_new || parameter(v, "for", &v)) && read_address(v, &before);
         i++) {
        client = before;
    }
    return client;
}

const char *nrd_http_forwarded_proto(const nrd_http_head *h, const nrd_address *peer, const nrd_networks *trusted)
{
    const bool is_new = nrd_http_find_field(h, "Forwarded") != NULL;
    back b = {.h = h, .name = is_new ? "Forwarded" : "X-Forwarded-Proto", .quotes = is_new, .i = h->n_fields};
    nrd_view v;

    if (!nrd_networks_have(trusted, peer) || (is_new && nrd_http_find_field(h, "X-Forwarded-Proto")) || !previous(&b, &v) ||
        (is_new && !parameter(v, "proto", &v))) {
        return NULL;
    }
    return nrd_view_is_nocase(v, "https") ? "https" : nrd_view_is_nocase(v, "http") ? "http" : NULL;
}
