/* SPDX-License-Identifier: Apache-2.0 */
#include "frontends/common/quota.h"

#include "base/clock.h"
#include "base/mem.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct bucket { /* refills evenly and holds one minute's worth */
    double left;          /* below 0: owed */
    uint64_t refilled_ns; /* 0: it is full */
} bucket;

struct nrd_quota { /* guarded by mu */
    bucket requests, tokens;
    int64_t running;
};

struct nrd_quotas {
    pthread_mutex_t mu;
    const nrd_keys *keys; /* borrows; they have the limits */
    nrd_quota *of;           /* [1 + places of keys]; the first is of requests without a key */
};

nrd_error *nrd_quotas_new(nrd_quotas **out, const nrd_keys *keys)
{
    nrd_error *err = NULL;
    nrd_quotas *q = NULL;

    *out = NULL;
    if (!nrd_keys_have_limits(keys)) {
        return NULL;
    }
    NRD_NEW_GOTO(q, 1, err, fail);
    pthread_mutex_init(&q->mu, NULL);
    q->keys = keys;
    NRD_NEW_GOTO(q->of, 1 + nrd_keys_places(keys), err, fail);
    *out = q;
    return NULL;

fail:
    nrd_quotas_free(q);
    return err;
}

void nrd_quotas_free(nrd_quotas *q)
{
    if (q) {
        pthread_mutex_destroy(&q->mu);
        free(q->of);
        free(q);
    }
}

bool nrd_quotas_count_tokens(const nrd_quotas *q, int key)
{
    return q && nrd_keys_limit(q->keys, key, NRD_KEY_TOKENS) > 0;
}

/* mu is held. Gives the seconds until there is one in it, 0: there is. */
static int refill(bucket *b, double per_minute)
{
    const uint64_t now = nrd_now_ns();

    b->left = b->refilled_ns ? b->left + (double)(now - b->refilled_ns) / 60e9 * per_minute : per_minute;
    b->left = b->left > per_minute ? per_minute : b->left;
    b->refilled_ns = now;
    return b->left >= 1 ? 0 : 1 + (int)((1 - b->left) * 60 / per_minute);
}

nrd_refusal nrd_quota_ask(nrd_quotas *q, int key)
{
    const int64_t a_minute = q ? nrd_keys_limit(q->keys, key, NRD_KEY_RATE) : 0;

    if (a_minute == 0) {
        return (nrd_refusal){0};
    }
    nrd_quota *k = &q->of[key + 1];
    pthread_mutex_lock(&q->mu);
    const int after = refill(&k->requests, (double)a_minute);
    k->requests.left -= after == 0;
    pthread_mutex_unlock(&q->mu);
    return (nrd_refusal){after, after > 0 ? "Too many requests for this key." : NULL};
}

nrd_refusal nrd_quota_take(nrd_quotas *q, int key, nrd_quota **out)
{
    *out = NULL;
    if (!q) {
        return (nrd_refusal){0};
    }
    const int64_t at_once = nrd_keys_limit(q->keys, key, NRD_KEY_AT_ONCE), tokens = nrd_keys_limit(q->keys, key, NRD_KEY_TOKENS);
    nrd_quota *k = &q->of[key + 1];
    pthread_mutex_lock(&q->mu);
    const bool is_full = at_once > 0 && k->running >= at_once;
    const int after = tokens > 0 ? refill(&k->tokens, (double)tokens) : 0;
    if (!is_full && after == 0) {
        k->running++;
        *out = k;
    }
    pthread_mutex_unlock(&q->mu);
    return is_full ? (nrd_refusal){after > 0 ? after : 1, "Too many requests of this key at once."}
                   : (nrd_refusal){after, after > 0 ? "Too many tokens for this key." : NULL};
}

void nrd_quota_give(nrd_quotas *q, nrd_quota *k, uint64_t tokens)
{
    if (k) {
        pthread_mutex_lock(&q->mu);
        k->running--;
        k->tokens.left -= (double)tokens;
        pthread_mutex_unlock(&q->mu);
    }
}
