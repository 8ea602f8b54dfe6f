/* SPDX-License-Identifier: Apache-2.0
 * caches/redis/pool.h - the connections that requests share, and what is done while Redis is away.
 *
 * Purpose   A request's thread only uses what is connected. One thread of the pool's own connects, also
 *           again after a failure, and looks once a second whether connections that wait have ended.
 *           After a call that failed or came too late nobody calls for a while (0.25 s, twice as long
 *           each time, at most 8 s): a server that hangs costs one time limit now and then.
 * Owner     Any thread.
 * Errors    nrd_redis_call: UNAVAILABLE: there is no connection, or the call failed (logged here, at most
 *           once in 30 s); INVALID_ARG: the server refuses the command.
 * Lifetime  Freed after the last call.
 */
#ifndef NRD_CACHES_REDIS_POOL_H
#define NRD_CACHES_REDIS_POOL_H

#include "caches/redis/link.h"

typedef struct nrd_redis_pool nrd_redis_pool;

/* Borrows the options. Fails where the first connection cannot be made. */
nrd_error *nrd_redis_pool_new(nrd_redis_pool **out, const nrd_redis_options *o) NRD_MUST_USE;
void nrd_redis_pool_free(nrd_redis_pool *p); /* NULL is fine */

nrd_error *nrd_redis_call(struct redisReply **out, nrd_redis_pool *p, int n, const char **words,
                          const size_t *sizes) NRD_MUST_USE;
/* One line a minute at most for each kind of trouble that concerns single values. */
void nrd_redis_warn(nrd_redis_pool *p, nrd_error *err); /* takes err always; NULL is fine */

#endif
