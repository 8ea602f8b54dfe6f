/* SPDX-License-Identifier: Apache-2.0 */
#include "cloud/http.h"

#include "base/env.h"

enum { MAX_STALL_SECS = 3600 };

nrd_error *nrd_cloud_http_do(nrd_http_handle *h, nrd_http_ask ask, nrd_http_reply *reply)
{
    long long n = 0;
    const bool is_given = nrd_parse_i64(nrd_env("NEREID_CLOUD_STALL_SECS", ""), &n) && n > 0 && n <= MAX_STALL_SECS;

    ask.ca_file = nrd_env("AWS_CA_BUNDLE", NULL);
    ask.stall_secs = is_given ? (long)n : 0;
    return nrd_http_do(h, &ask, reply);
}
