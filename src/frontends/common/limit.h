/* SPDX-License-Identifier: Apache-2.0
 * frontends/common/limit.h - how many requests may be open at the same time, over all protocols.
 *
 * Purpose   Overload is answered at once instead of queued: a request that finds the limit reached
 *           gets UNAVAILABLE (HTTP 503).
 * Owner     Any thread.
 * Lifetime  Outlives every request that was counted.
 */
#ifndef NRD_FRONTENDS_COMMON_LIMIT_H
#define NRD_FRONTENDS_COMMON_LIMIT_H

#include "base/error.h"

#include <stdatomic.h>
#include <stddef.h>

typedef struct nrd_limit {
    atomic_size_t n;
    size_t max; /* 0: none */
} nrd_limit;

/* Counts one; on error nothing was counted. */
static inline nrd_error *nrd_limit_take(nrd_limit *l)
{
    if (l->max == 0 || atomic_fetch_add(&l->n, 1) < l->max) {
        return NULL;
    }
    atomic_fetch_sub(&l->n, 1);
    return nrd_errorf(NRD_ERR_UNAVAILABLE,
                      "the server has %zu requests in progress, which is its limit; try again "
                      "later",
                      l->max);
}

static inline void nrd_limit_give(nrd_limit *l)
{
    if (l->max != 0) {
        atomic_fetch_sub(&l->n, 1);
    }
}

#endif
