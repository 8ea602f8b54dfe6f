/* SPDX-License-Identifier: Apache-2.0
 * caches/redis/link.h - one connection to Redis or Valkey: commands and their replies, each before a
 * deadline.
 *
 * Purpose   hiredis writes commands and reads replies; the socket and TLS are handled here, because its
 *           own timeouts count anew for each piece that comes, so a server that sends a byte now and then
 *           would hold a request for ever, and because its TLS came only with version 1.0.
 * Owner     One thread at a time. The TLS context is shared by all links.
 * Units     Deadlines in nanoseconds of nrd_now_ns.
 * Errors    UNAVAILABLE: the connection is of no use any more, close it. INVALID_ARG: the server refuses
 *           (password, number of the database, command), in its own words; the connection is fine.
 * Sources   Redis serialization protocol (RESP 2); hiredis, section "Reply parsing API".
 */
#ifndef NRD_CACHES_REDIS_LINK_H
#define NRD_CACHES_REDIS_LINK_H

#include "caches/redis/options.h"

typedef struct nrd_redis_link nrd_redis_link;
struct redisReply;
struct ssl_ctx_st;

/* NULL in *out where the options want no TLS. */
nrd_error *nrd_redis_tls_new(struct ssl_ctx_st **out, const nrd_redis_options *o) NRD_MUST_USE;
void nrd_redis_tls_free(struct ssl_ctx_st *tls); /* NULL is fine */

/* Connects, logs in, chooses the database, and hears one answer. Borrows both until the link is closed.
 * Looking up the host's name may take longer than the deadline. */
nrd_error *nrd_redis_link_open(nrd_redis_link **out, const nrd_redis_options *o, struct ssl_ctx_st *tls,
                               uint64_t deadline_ns) NRD_MUST_USE;
void nrd_redis_link_close(nrd_redis_link *l); /* NULL is fine */
bool nrd_redis_link_is_dead(nrd_redis_link *l); /* of a link that waits: the server has closed it */

/* One command; the reply is the caller's (nrd_redis_reply_free). Replies above the options' limit for
 * values are UNAVAILABLE. */
nrd_error *nrd_redis_link_call(struct redisReply **out, nrd_redis_link *l, int n, const char **words,
                               const size_t *sizes, uint64_t deadline_ns) NRD_MUST_USE;
void nrd_redis_reply_free(struct redisReply *r);

#endif
