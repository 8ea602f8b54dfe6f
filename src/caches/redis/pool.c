/* SPDX-License-Identifier: Apache-2.0 */
#include "caches/redis/pool.h"

#include "base/clock.h"
#include "base/mem.h"
#include "triton/core/tritonserver.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define MS 1000000ull /* in nanoseconds */
#define FIRST_PAUSE (250 * MS)
#define LONGEST_PAUSE (8000 * MS)
#define BETWEEN_WARNINGS (30000 * MS)
#define BETWEEN_LOOKS (1000 * MS)

typedef struct slot {
    nrd_redis_link *link; /* NULL: to be connected */
    bool is_busy;
} slot;

struct nrd_redis_pool {
    const nrd_redis_options *o;
    struct ssl_ctx_st *tls;
    pthread_mutex_t mu;
    pthread_cond_t freed;    /* a connection may be taken */
    pthread_cond_t work;     /* the keeper has something to do */
    pthread_t keeper;
    bool has_keeper;
    bool closing;            /* this and the rest guarded by mu */
    uint64_t quiet_until_ns; /* no calls before */
    uint64_t pause_ns;       /* the next one */
    uint64_t warned_ns;
    bool is_away;            /* somebody was told so */
    uint32_t n;
    slot slots[];
};

static void note(TRITONSERVER_LogLevel level, const char *text)
{
    TRITONSERVER_ErrorDelete(TRITONSERVER_LogMessage(level, __FILE__, __LINE__, text));
}

static void wait_until(pthread_cond_t *cond, pthread_mutex_t *mu, uint64_t deadline_ns)
{
    const struct timespec t = {(time_t)(deadline_ns / 1000000000u), (long)(deadline_ns % 1000000000u)};
    (void)pthread_cond_timedwait(cond, mu, &t); /* a monotonic clock: see init_cond */
}

static void init_cond(pthread_cond_t *cond)
{
    pthread_condattr_t a;
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &a);
    pthread_condattr_destroy(&a);
}

static bool may_warn_locked(nrd_redis_pool *p)
{
    const uint64_t now = nrd_now_ns();
    if (p->warned_ns && now - p->warned_ns < BETWEEN_WARNINGS) {
        return false;
    }
    p->warned_ns = now;
    return true;
}

void nrd_redis_warn(nrd_redis_pool *p, nrd_error *err)
{
    pthread_mutex_lock(&p->mu);
    const bool now = err && may_warn_locked(p);
    pthread_mutex_unlock(&p->mu);
    if (now) {
        note(TRITONSERVER_LOG_WARN, nrd_error_message(err));
    }
    nrd_error_free(err);
}

/* ---- failures and their end ---- */

/* A call or a connection failed. */
static void failed(nrd_redis_pool *p, const nrd_error *err)
{
    char text[512];

    pthread_mutex_lock(&p->mu);
    p->pause_ns = p->pause_ns ? p->pause_ns * 2 : FIRST_PAUSE;
    p->pause_ns = p->pause_ns > LONGEST_PAUSE ? LONGEST_PAUSE : p->pause_ns;
    p->quiet_until_ns = nrd_now_ns() + p->pause_ns;
    p->is_away = true;
    const bool tell = may_warn_locked(p);
    pthread_cond_signal(&p->work);
    pthread_cond_broadcast(&p->freed); /* who waits for a connection need not */
    pthread_mutex_unlock(&p->mu);
    if (tell) {
        snprintf(text, sizeof text, "redis cache: %s; requests are answered without it until it is back",
                 nrd_error_message(err));
        note(TRITONSERVER_LOG_WARN, text);
    }
}

static void answered(nrd_redis_pool *p)
{
    pthread_mutex_lock(&p->mu);
    const bool is_back = p->is_away;
    p->is_away = false;
    p->pause_ns = 0;
    p->warned_ns = is_back ? 0 : p->warned_ns;
    pthread_mutex_unlock(&p->mu);
    if (is_back) {
        note(TRITONSERVER_LOG_INFO, "redis cache: Redis answers again");
    }
}

/* ---- the keeper ---- */

/* Something that it should connect or look at, marked busy; NULL: nothing. */
static slot *next_work_locked(nrd_redis_pool *p, bool look)
{
    for (uint32_t i = 0; i < p->n; i++) {
        slot *s = &p->slots[i];
        if (!s->is_busy && (look ? s->link && nrd_redis_link_is_dead(s->link) : !s->link)) {
            s->is_busy = true;
            return s;
        }
    }
    return NULL;
}

static void give_back(nrd_redis_pool *p, slot *s, nrd_redis_link *link)
{
    pthread_mutex_lock(&p->mu);
    s->link = link;
    s->is_busy = false;
    pthread_cond_signal(link ? &p->freed : &p->work);
    pthread_mutex_unlock(&p->mu);
}

static void connect_slot(nrd_redis_pool *p, slot *s)
{
    nrd_redis_link *link = NULL;
    nrd_error *err = nrd_redis_link_open(&link, p->o, p->tls, nrd_now_ns() + p->o->connect_timeout_ms * MS);

    if (err) {
        failed(p, err);
        nrd_error_free(err);
    }
    give_back(p, s, link);
}

static void *keep(void *arg)
{
    nrd_redis_pool *p = arg;
    uint64_t looked_ns = nrd_now_ns();

    pthread_mutex_lock(&p->mu);
    while (!p->closing) {
        const uint64_t now = nrd_now_ns();
        slot *s = NULL;
        if (now - looked_ns >= BETWEEN_LOOKS) {
            while ((s = next_work_locked(p, true)) != NULL) {
                nrd_redis_link_close(s->link);
                s->link = NULL;
                s->is_busy = false;
            }
            looked_ns = now;
        }
        s = now >= p->quiet_until_ns ? next_work_locked(p, false) : NULL;
        if (s) {
            pthread_mutex_unlock(&p->mu);
            connect_slot(p, s);
            pthread_mutex_lock(&p->mu);
            continue;
        }
        uint64_t until = looked_ns + BETWEEN_LOOKS;
        if (p->quiet_until_ns > now && p->quiet_until_ns < until) {
            until = p->quiet_until_ns;
        }
        wait_until(&p->work, &p->mu, until);
    }
    pthread_mutex_unlock(&p->mu);
    return NULL;
}

/* ---- calls ---- */

/* NULL: none is connected, or all are in use for too long. */
static slot *take(nrd_redis_pool *p)
{
    const uint64_t until = nrd_now_ns() + p->o->wait_timeout_ms * MS;
    slot *found = NULL;
    bool any = true;

    pthread_mutex_lock(&p->mu);
    while (!found && any && nrd_now_ns() >= p->quiet_until_ns) {
        any = false;
        for (uint32_t i = 0; i < p->n && !found; i++) {
            slot *s = &p->slots[i];
            any = any || s->link;
            found = s->link && !s->is_busy ? s : NULL;
        }
        if (found) {
            found->is_busy = true;
        } else if (nrd_now_ns() >= until) {
            break;
        } else if (any) {
            wait_until(&p->freed, &p->mu, until);
        }
    }
    pthread_mutex_unlock(&p->mu);
    return found;
}

nrd_error *nrd_redis_call(struct redisReply **out, nrd_redis_pool *p, int n, const char **words, const size_t *sizes)
{
    slot *s = take(p);
    nrd_error *err;

    *out = NULL;
    if (!s) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "redis cache: no connection is free");
    }
    nrd_redis_link *link = s->link; /* ours while the slot is busy */
    err = nrd_redis_link_call(out, link, n, words, sizes, nrd_now_ns() + p->o->socket_timeout_ms * MS);
    if (err && nrd_error_get_code(err) != NRD_ERR_INVALID_ARG) {
        nrd_redis_link_close(link);
        link = NULL;
        failed(p, err);
    } else {
        answered(p);
    }
    give_back(p, s, link);
    return err;
}

/* ---- life ---- */

nrd_error *nrd_redis_pool_new(nrd_redis_pool **out, const nrd_redis_options *o)
{
    nrd_error *err = NULL;
    nrd_redis_pool *p = calloc(1, sizeof *p + o->pool_size * sizeof p->slots[0]);

    *out = NULL;
    if (!p) {
        return nrd_error_no_memory();
    }
    p->o = o;
    p->n = o->pool_size;
    pthread_mutex_init(&p->mu, NULL);
    init_cond(&p->freed);
    init_cond(&p->work);
    NRD_TRY_GOTO(nrd_redis_tls_new(&p->tls, o), err, fail);
    NRD_TRY_GOTO(nrd_redis_link_open(&p->slots[0].link, o, p->tls, nrd_now_ns() + o->connect_timeout_ms * MS), err,
                 fail);
    if (pthread_create(&p->keeper, NULL, keep, p) != 0) {
        err = nrd_errorf(NRD_ERR_INTERNAL, "redis cache: cannot start a thread");
        goto fail;
    }
    pthread_setname_np(p->keeper, "redis");
    p->has_keeper = true;
    *out = p;
    return NULL;

fail:
    nrd_redis_pool_free(p);
    return err;
}

void nrd_redis_pool_free(nrd_redis_pool *p)
{
    if (!p) {
        return;
    }
    if (p->has_keeper) {
        pthread_mutex_lock(&p->mu);
        p->closing = true;
        pthread_cond_signal(&p->work);
        pthread_mutex_unlock(&p->mu);
        pthread_join(p->keeper, NULL);
    }
    for (uint32_t i = 0; i < p->n; i++) {
        nrd_redis_link_close(p->slots[i].link);
    }
    nrd_redis_tls_free(p->tls);
    pthread_cond_destroy(&p->freed);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->mu);
    free(p);
}
