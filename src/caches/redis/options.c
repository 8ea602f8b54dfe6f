/* SPDX-License-Identifier: Apache-2.0 */
#include "caches/redis/options.h"

#include "base/env.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"

#include <string.h>

enum { MAX_TIMEOUT_MS = 10000, MAX_POOL = 256, MAX_DB = 1 << 20, MAX_TTL_S = 1 << 30 };
#define MAX_VALUE_BYTES ((size_t)512 << 20) /* what Redis takes as one value */

static void put_text(char **field, const nrd_json *o, const char *name, const char *fallback)
{
    *field = nrd_xstrdup(nrd_json_get_str(o, name, fallback));
}

/* A whole number, or the text of one. */
static nrd_error *read_number(const nrd_json *o, const char *name, unsigned long long min, unsigned long long max,
                              unsigned long long *inout)
{
    const nrd_json *v = nrd_json_get(o, name);
    const char *text = nrd_json_str(v, NULL);
    unsigned long long n = 0;

    if (!v) {
        return NULL;
    }
    const bool ok = text ? nrd_parse_u64(text, &n) : nrd_json_int(v, -1) >= 0;
    if (ok && !text) {
        n = (unsigned long long)nrd_json_int(v, 0);
    }
    if (!ok || n < min || n > max) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "redis cache: '%s' must be a whole number from %llu to %llu, got '%s'",
                          name, min, max, text ? text : "another value");
    }
    *inout = n;
    return NULL;
}

static nrd_error *read_u32(const nrd_json *o, const char *name, unsigned long long min, unsigned long long max,
                           uint32_t *inout)
{
    unsigned long long n = *inout;
    NRD_TRY(read_number(o, name, min, max, &n));
    *inout = (uint32_t)n;
    return NULL;
}

static nrd_error *read_timeout(const nrd_json *o, const char *name, uint32_t *inout)
{
    const uint32_t usual = *inout;
    NRD_TRY(read_u32(o, name, 0, MAX_TIMEOUT_MS, inout));
    *inout = *inout ? *inout : usual;
    return NULL;
}

static nrd_error *read_tls(nrd_redis_options *out, const nrd_json *o)
{
    const char *word = nrd_json_get_str(o, "tls", "");

    put_text(&out->cert, o, "cert", "");
    put_text(&out->key, o, "key", "");
    put_text(&out->cacert, o, "cacert", "");
    put_text(&out->cacert_dir, o, "cacert_dir", "");
    put_text(&out->sni, o, "sni", "");
    if (word[0] && strcmp(word, "true") != 0 && strcmp(word, "false") != 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "redis cache: 'tls' must be true or false, got '%s'", word);
    }
    out->tls = !strcmp(word, "true") || out->cert[0] || out->key[0] || out->cacert[0] || out->cacert_dir[0] ||
               out->sni[0];
    if (out->tls && !strcmp(word, "false")) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "redis cache: 'cert', 'key', 'cacert', 'cacert_dir' and 'sni' are for TLS, and 'tls' is false");
    }
    if (!out->cert[0] != !out->key[0]) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "redis cache: 'cert' and 'key' go together");
    }
    return NULL;
}

static nrd_error *read_all(nrd_redis_options *out, const nrd_json *o)
{
    unsigned long long port = 0, bytes = (unsigned long long)8 << 20;

    if (!nrd_json_get(o, "host") || !nrd_json_get(o, "port")) { /* the words of the published one */
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "Failed to initialize RedisCache, didn't specify address. Must at a minimum specify 'host' "
                          "and 'port' in the configuration - e.g. tritonserver --cache-config redis,host=redis "
                          "--cache-config redis,port=6379 --model-repository=/models ...");
    }
    NRD_TRY(read_number(o, "port", 1, 65535, &port));
    put_text(&out->host, o, "host", "");
    out->port = nrd_xasprintf("%llu", port);
    /* From the environment too, so that no list of processes shows them. */
    put_text(&out->user, o, "user", nrd_env("TRITONCACHE_REDIS_USERNAME", ""));
    put_text(&out->password, o, "password", nrd_env("TRITONCACHE_REDIS_PASSWORD", ""));
    put_text(&out->prefix, o, "prefix", "nereid:");
    out->connect_timeout_ms = 1000;
    out->socket_timeout_ms = 100;
    out->wait_timeout_ms = 100;
    out->pool_size = 4;
    NRD_TRY(read_timeout(o, "connect_timeout", &out->connect_timeout_ms));
    NRD_TRY(read_timeout(o, "socket_timeout", &out->socket_timeout_ms));
    NRD_TRY(read_timeout(o, "wait_timeout", &out->wait_timeout_ms));
    NRD_TRY(read_u32(o, "pool_size", 1, MAX_POOL, &out->pool_size));
    NRD_TRY(read_u32(o, "db", 0, MAX_DB, &out->db));
    NRD_TRY(read_u32(o, "ttl", 0, MAX_TTL_S, &out->ttl_s));
    NRD_TRY(read_number(o, "max_value_size", 1, MAX_VALUE_BYTES, &bytes));
    out->max_value_bytes = (size_t)bytes;
    return read_tls(out, o);
}

nrd_error *nrd_redis_options_read(nrd_redis_options *out, const char *json)
{
    nrd_json_doc *doc = NULL;

    memset(out, 0, sizeof *out);
    NRD_TRY(nrd_error_wrap(nrd_json_parse(&doc, json, strlen(json), NULL), "redis cache"));
    nrd_error *err = read_all(out, nrd_json_root(doc));
    nrd_json_doc_free(doc);
    if (err) {
        nrd_redis_options_fini(out);
    }
    return err;
}

void nrd_redis_options_fini(nrd_redis_options *o)
{
    char *texts[] = {o->host, o->port, o->user, o->password, o->prefix, o->cert, o->key, o->cacert, o->cacert_dir, o->sni};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        free(texts[i]);
    }
    memset(o, 0, sizeof *o);
}
