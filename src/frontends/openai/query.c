/* SPDX-License-Identifier: Apache-2.0
 * What stands behind the question mark of a request. */
#include "frontends/openai/internal.h"

#include <string.h>

bool nrd_oai_query(const nrd_http_request *req, const char *name, char *out, size_t n)
{
    nrd_view rest = req->head.query;
    const size_t len = strlen(name);

    while (rest.n > 0) {
        const char *end = memchr(rest.p, '&', rest.n);
        const size_t part = end ? (size_t)(end - rest.p) : rest.n;
        if (part > len && rest.p[len] == '=' && !memcmp(rest.p, name, len)) {
            return nrd_http_unescape((nrd_view){rest.p + len + 1, part - len - 1}, out, n);
        }
        rest.p += part + (end ? 1 : 0);
        rest.n -= part + (end ? 1 : 0);
    }
    return false;
}

nrd_error *nrd_oai_query_limit(const nrd_http_request *req, long long usual, long long most, long long *out)
{
    char value[24];

    *out = usual;
    if (nrd_oai_query(req, "limit", value, sizeof value) && (!nrd_parse_i64(value, out) || *out < 1 || *out > most)) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "limit", "must be a whole number from 1 to %lld", most);
    }
    return NULL;
}

nrd_error *nrd_oai_query_order(const nrd_http_request *req, bool *out_ascending)
{
    char value[24];

    *out_ascending = false;
    if (nrd_oai_query(req, "order", value, sizeof value)) {
        *out_ascending = !strcmp(value, "asc");
        if (!*out_ascending && strcmp(value, "desc") != 0) {
            return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "order", "must be asc or desc");
        }
    }
    return NULL;
}
