/* SPDX-License-Identifier: Apache-2.0
 * frontends/common/quota.h - how much each API key may ask for, in every protocol.
 *
 * Purpose   --key-rate-limit, --key-token-limit and --key-max-concurrent, or the key's own numbers in the file: requests
 *           and tokens a minute, and requests under way. A minute's worth comes back evenly. What a request uses is known at its end: one
 *           that was begun goes on, and what it used too much is waited for by the next ones.
 * Owner     Any thread.
 * Units     A key is its place (keys.h); -1: no key, all such requests share one quota.
 * Errors    A refusal says why and how long to wait; HTTP answers 429, gRPC RESOURCE_EXHAUSTED.
 * Lifetime  Outlives every request that has a place.
 */
#ifndef NRD_FRONTENDS_COMMON_QUOTA_H
#define NRD_FRONTENDS_COMMON_QUOTA_H

#include "base/error.h"
#include "frontends/common/keys.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct nrd_quotas nrd_quotas; /* of all keys; NULL: no limit, which every function takes */
typedef struct nrd_quota nrd_quota;   /* one key's */

typedef struct nrd_refusal {
    int after_secs; /* above 0 */
    const char *why; /* NULL: nothing is refused; a constant */
} nrd_refusal;

/* *out is NULL where no key can have a limit. keys: borrows. */
nrd_error *nrd_quotas_new(nrd_quotas **out, const nrd_keys *keys) NRD_MUST_USE;
void nrd_quotas_free(nrd_quotas *q);
bool nrd_quotas_count_tokens(const nrd_quotas *q, int key); /* whether `give` is to be told of them */

/* One more request in this minute. */
nrd_refusal nrd_quota_ask(nrd_quotas *q, int key) NRD_MUST_USE;
/* One more request under way. *out: whose place it has, for `give`; NULL: nobody's. */
nrd_refusal nrd_quota_take(nrd_quotas *q, int key, nrd_quota **out) NRD_MUST_USE;
/* At its end, with the tokens of its prompts and answers. k NULL is fine. */
void nrd_quota_give(nrd_quotas *q, nrd_quota *k, uint64_t tokens);

#endif
