/* SPDX-License-Identifier: Apache-2.0 */
#include "core/claim.h"

#include "core/api.h"

#include "base/log.h"
#include "base/pool.h"

#include <inttypes.h>
#include <stdatomic.h>

struct nrd_account {
    atomic_int refs;
    uint64_t bytes; /* atomic; of all claims that have joined */
    atomic_uint_fast64_t tokens;
};

static uint64_t claimed; /* atomic */
static _Atomic uint64_t limit_of_all, limit_of_one; /* 0: none */

static nrd_error *too_much_for_one(uint64_t bytes, uint64_t had, const char *what)
{
    return nrd_errorf(NRD_ERR_INVALID_ARG,
                      "the request needs %" PRIu64 " bytes for %s, and has %" PRIu64 " already: one request may have "
                      "%" PRIu64 " (--max-request-memory-mb)",
                      bytes, what, had, atomic_load(&limit_of_one));
}

static nrd_error *too_much_for_all(uint64_t bytes, uint64_t had, const char *what)
{
    return nrd_errorf(NRD_ERR_UNAVAILABLE,
                      "the request needs %" PRIu64 " bytes for %s, and the requests in progress have %" PRIu64
                      ": together they may have %" PRIu64 " (--max-inflight-memory-mb); try again later",
                      bytes, what, had, atomic_load(&limit_of_all));
}

/* Adds unless the sum would be above the limit. *had: the sum before. */
static bool add(uint64_t *sum, uint64_t bytes, uint64_t limit, uint64_t *had)
{
    uint64_t now = __atomic_load_n(sum, __ATOMIC_RELAXED), next;
    do {
        *had = now;
        if (__builtin_add_overflow(now, bytes, &next) || (limit && next > limit)) {
            return false;
        }
    } while (!__atomic_compare_exchange_n(sum, &now, next, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return true;
}

/* ---- accounts ---- */

nrd_account *nrd_account_new(void)
{
    nrd_account *a = nrd_pool_zget(sizeof *a);
    if (a) {
        atomic_init(&a->refs, 1);
    }
    return a;
}

nrd_account *nrd_account_ref(nrd_account *a)
{
    atomic_fetch_add_explicit(&a->refs, 1, memory_order_relaxed);
    return a;
}

void nrd_account_unref(nrd_account *a)
{
    if (a && atomic_fetch_sub(&a->refs, 1) == 1) {
        nrd_pool_put(a, sizeof *a);
    }
}

void nrd_claim_enter(nrd_claim *c, nrd_account *a)
{
    if (a && !c->account) {
        c->account = nrd_account_ref(a);
        __atomic_fetch_add(&a->bytes, c->bytes, __ATOMIC_RELAXED);
    }
}

nrd_account *nrd_account_of(nrd_claim *c)
{
    if (!c->account) {
        nrd_account *a = nrd_account_new();
        nrd_claim_enter(c, a);
        nrd_account_unref(a);
    }
    return c->account;
}

void nrd_server_claim_join(nrd_claim *part, nrd_claim *whole)
{
    nrd_claim_enter(part, nrd_account_of(whole));
}

/* ---- claims ---- */

nrd_error *nrd_claim_take(nrd_claim *c, uint64_t bytes, const char *what)
{
    const uint64_t one = atomic_load(&limit_of_one), all = atomic_load(&limit_of_all);
    uint64_t had = 0, nobodys = 0;
    uint64_t *sum = !c ? &nobodys : c->account ? &c->account->bytes : &c->bytes;

    if (bytes < NRD_CLAIM_LEAST) {
        return NULL;
    }
    if (!add(sum, bytes, one, &had)) {
        return too_much_for_one(bytes, had, what);
    }
    if (!add(&claimed, bytes, all, &had)) {
        __atomic_fetch_sub(sum, bytes, __ATOMIC_RELAXED);
        return too_much_for_all(bytes, had, what);
    }
    if (c && c->account) {
        __atomic_fetch_add(&c->bytes, bytes, __ATOMIC_RELAXED);
    }
    return NULL;
}

TRITONSERVER_Error *nrd_server_claim(nrd_claim *c, uint64_t bytes, const char *what)
{
    return as_api(nrd_claim_take(c, bytes, what));
}

void nrd_server_unclaim(nrd_claim *c, uint64_t bytes)
{
    nrd_account *account = c ? c->account : NULL;
    const bool is_end = c && bytes == NRD_CLAIM_ALL;

    if (is_end) {
        bytes = __atomic_exchange_n(&c->bytes, 0, __ATOMIC_RELAXED);
        c->account = NULL;
    } else if (bytes < NRD_CLAIM_LEAST) {
        return;
    } else if (c) {
        __atomic_fetch_sub(&c->bytes, bytes, __ATOMIC_RELAXED);
    }
    if (account) {
        __atomic_fetch_sub(&account->bytes, bytes, __ATOMIC_RELAXED);
    }
    __atomic_fetch_sub(&claimed, bytes, __ATOMIC_RELAXED);
    if (is_end) {
        nrd_account_unref(account);
    }
}

void nrd_server_count_tokens(nrd_claim *c, uint64_t n)
{
    if (c->account) {
        atomic_fetch_add(&c->account->tokens, n);
    }
}

uint64_t nrd_server_tokens(const nrd_claim *c)
{
    return c->account ? atomic_load(&c->account->tokens) : 0;
}

void nrd_server_limit_memory(uint64_t all, uint64_t one)
{
    atomic_store(&limit_of_all, all);
    atomic_store(&limit_of_one, one);
}

uint64_t nrd_server_claimed(void)
{
    return __atomic_load_n(&claimed, __ATOMIC_RELAXED);
}

void nrd_claim_check_end(void)
{
    const uint64_t left = nrd_server_claimed();
    if (left > 0) {
        NRD_LOG_ERROR("%" PRIu64 " bytes of requests were not given back", left);
    }
}
