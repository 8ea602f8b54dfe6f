/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/load/connection.h"

#define MAX_TIMEOUT_S 1e6

nrd_error *nrd_connection_add_header(void *values, const char *name, const char *value)
{
    return nrd_http_add_header(&((nrd_connection *)values)->headers, name, value);
}

nrd_error *nrd_connection_set_timeout(void *values, const char *name, const char *value)
{
    double seconds;
    if (!nrd_parse_f64(value, &seconds) || !(seconds > 0 && seconds <= MAX_TIMEOUT_S)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--%s: expected seconds above 0, at most %.0f, got '%s'", name, MAX_TIMEOUT_S,
                          value);
    }
    ((nrd_connection *)values)->timeout_s = seconds;
    return NULL;
}

nrd_client_config nrd_connection_config(const nrd_connection *c, const char *url, const char *path)
{
    return (nrd_client_config){.url = url,
                                    .path = path,
                                    .headers = nrd_str_cstr(&c->headers),
                                    .ca_cert = c->ca_cert,
                                    .timeout_s = c->timeout_s};
}

void nrd_connection_fini(nrd_connection *c)
{
    nrd_str_fini(&c->headers);
}
