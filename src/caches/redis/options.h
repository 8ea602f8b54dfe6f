/* SPDX-License-Identifier: Apache-2.0
 * caches/redis/options.h - what `--cache-config redis,NAME=VALUE` says.
 *
 * Owner     Read once at the start; read-only afterwards, any thread.
 * Units     Milliseconds, bytes, seconds, as the names say.
 * Errors    INVALID_ARG with the setting, what was expected and what came.
 * Sources   Names and meanings: the published redis cache of Triton; `ttl`, `max_value_size`, `prefix`
 *           and `tls` are added. 0 means no limit for timeouts there; here it means the default, since
 *           nothing may hold a request up for ever.
 */
#ifndef NRD_CACHES_REDIS_OPTIONS_H
#define NRD_CACHES_REDIS_OPTIONS_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct nrd_redis_options {
    char *host, *port;     /* owned; port as text, checked */
    char *user, *password; /* owned; "" without */
    char *prefix;          /* owned; before every key */
    uint32_t db;
    uint32_t connect_timeout_ms, socket_timeout_ms, wait_timeout_ms;
    uint32_t pool_size;
    uint32_t ttl_s; /* 0: entries do not end by themselves */
    size_t max_value_bytes;
    bool tls;
    char *cert, *key, *cacert, *cacert_dir, *sni; /* owned; "" without */
} nrd_redis_options;

/* `json`: one object of texts or numbers. */
nrd_error *nrd_redis_options_read(nrd_redis_options *out, const char *json) NRD_MUST_USE;
void nrd_redis_options_fini(nrd_redis_options *o);

#endif
