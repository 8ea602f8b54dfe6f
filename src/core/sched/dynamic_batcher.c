/* SPDX-License-Identifier: Apache-2.0
 * The queue in front of a model's instances. Each worker takes its own work: a free worker forms
 * the next batch, so a request changes threads once, from the caller's thread to the worker.
 *
 * Threads without work (workers, see sched/worker.h) sleep in a stack, each on its own semaphore:
 * the one that slept last is woken first. Only this one wakes, so none wakes without work. A
 * thread is taken off the stack under the lock and woken after unlocking; it cannot end in between.
 *
 * Without dynamic_batching a batch is one request. With it, requests of equal shapes are put
 * together up to max_batch_size; a batch smaller than every preferred size waits until its oldest
 * request has been queued for max_queue_delay_microseconds. One thread at a time forms a batch
 * (`forming`), so that two idle instances do not share out one batch.
 *
 * Lock: mu guards everything below it in the struct; it is never held across a callback. Two of
 * them are locked in the order of their addresses. */
#include "core/sched/dynamic_batcher.h"

#include "core/context.h"
#include "core/model_internal.h"
#include "core/model_metrics.h"
#include "core/request.h"
#include "core/request_internal.h"
#include "core/response.h"
#include "core/response_order.h"
#include "core/sched/request_list.h"
#include "core/sched/scheduler.h"
#include "core/sched/strategy.h"
#include "core/sched/worker.h"
#include "core/trace.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "triton/core/tritonserver.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* A model may have any number of priority levels (priority_levels is 64 bits wide) and requests
 * name them: only those that are used exist, and empty ones go when there are more than this. */
enum { KEEP_LEVELS = 64, LATE = 1 };

typedef struct level {
    uint64_t number;            /* from 1, the most urgent */
    bool fixed;                 /* has a policy of its own, or is the one for unnamed priority */
    nrd_request_list queued[2]; /* in order of arrival; [LATE]: expired, but kept behind the others (DELAY) */
    uint32_t n;
    uint64_t timeout_us;
    bool allow_override, delay;
    uint32_t max_size;
} level;

struct nrd_batcher {
    nrd_scheduler base;
    atomic_int refs;
    nrd_model *model; /* borrowed: lives longer than its requests; NULL-safe use only before stop */
    bool batching;
    bool open;  /* its workers may change places with those of others */
    bool lends; /* its slots, to threads of front ends */
    uint64_t delay_ns;
    uint32_t *preferred;
    size_t n_preferred;
    pthread_mutex_t mu;
    nrd_worker *idle;         /* without work, the last one first */
    pthread_cond_t form_cond; /* the worker that is forming a batch */
    level *levels;            /* rising numbers */
    level usual;              /* what a new one is like */
    uint32_t n_levels;
    uint64_t last_level, default_level;
    uint32_t n_queued;
    bool forming, stopping;
    bool asking; /* the batching library looks at queued requests: none may leave */
};

/* ---- making ---- */

static void set_policy(level *l, const Inference__ModelQueuePolicy *p)
{
    if (p) {
        l->timeout_us = p->default_timeout_microseconds;
        l->allow_override = p->allow_timeout_override;
        l->delay = p->timeout_action == INFERENCE__MODEL_QUEUE_POLICY__TIMEOUT_ACTION__DELAY;
        l->max_size = p->max_queue_size;
    }
}

/* The level of that number, made if need be; NULL: no memory. The fixed ones are made first, without
 * the lock. */
static level *level_locked(nrd_batcher *s, uint64_t number)
{
    uint32_t at = 0, kept = 0;

    while (at < s->n_levels && s->levels[at].number < number) {
        at++;
    }
    if (at < s->n_levels && s->levels[at].number == number) {
        return &s->levels[at];
    }
    if (s->n_levels >= KEEP_LEVELS) {
        at = 0;
        for (uint32_t i = 0; i < s->n_levels; i++) {
            if (s->levels[i].fixed || s->levels[i].n > 0) {
                s->levels[kept++] = s->levels[i];
                at += s->levels[kept - 1].number < number;
            }
        }
        s->n_levels = kept;
    }
    level *grown = realloc(s->levels, (s->n_levels + 1u) * sizeof *s->levels);
    if (!grown) {
        return NULL;
    }
    s->levels = grown;
    memmove(s->levels + at + 1, s->levels + at, (s->n_levels - at) * sizeof *s->levels);
    s->n_levels++;
    s->levels[at] = s->usual;
    s->levels[at].number = number;
    return &s->levels[at];
}

/* While a model is loaded. policy NULL: the usual one. */
static nrd_error *fix_level(nrd_batcher *s, uint64_t number, const Inference__ModelQueuePolicy *policy)
{
    level *l = level_locked(s, number);

    if (!l) {
        return nrd_error_no_memory();
    }
    l->fixed = true;
    set_policy(l, policy);
    return NULL;
}

static nrd_error *sched_new(nrd_batcher **out, nrd_model *m)
{
    nrd_batcher *s = calloc(1, sizeof *s);
    pthread_condattr_t attr;

    *out = s;
    if (!s) {
        return nrd_error_no_memory();
    }
    atomic_init(&s->refs, 1);
    s->model = m;
    pthread_mutex_init(&s->mu, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->form_cond, &attr);
    pthread_condattr_destroy(&attr);
    s->base.max_batch = 1;
    s->last_level = s->default_level = 1;
    return fix_level(s, 1, NULL); /* there is always one */
}

static nrd_error *set_batching(nrd_batcher *s, const int32_t *preferred, size_t n, uint64_t delay_us,
                         bool preserve_order)
{
    const int32_t max = s->model->config->max_batch_size;

    s->batching = true;
    s->base.max_batch = max > 0 ? (uint32_t)max : 1;
    s->delay_ns = delay_us < UINT64_MAX / 2000u ? delay_us * 1000u : UINT64_MAX / 2;
    s->base.order = preserve_order ? nrd_response_order_new(nrd_factory_deliver) : NULL;
    s->n_preferred = n;
    s->preferred = calloc(n + 1, sizeof *s->preferred);
    if (!s->preferred || (preserve_order && !s->base.order)) {
        return nrd_error_no_memory();
    }
    for (size_t i = 0; i < n; i++) {
        s->preferred[i] = (uint32_t)preferred[i];
    }
    return NULL;
}

static const nrd_scheduler_ops ops;

static nrd_error *configure(nrd_batcher *s, const Inference__ModelDynamicBatching *db)
{
    s->last_level = db->priority_levels > 0 ? db->priority_levels : 1;
    s->default_level = db->default_priority_level > 0 ? db->default_priority_level : 1;
    NRD_TRY(set_batching(s, db->preferred_batch_size, db->n_preferred_batch_size,
                         db->max_queue_delay_microseconds, db->preserve_ordering));
    set_policy(&s->usual, db->default_queue_policy);
    set_policy(&s->levels[0], db->default_queue_policy);
    NRD_TRY(fix_level(s, s->default_level, NULL));
    for (size_t i = 0; i < db->n_priority_queue_policy; i++) {
        uint64_t key = db->priority_queue_policy[i]->key;
        if (key >= 1 && key <= s->last_level) {
            NRD_TRY(fix_level(s, key, db->priority_queue_policy[i]->value));
        }
    }
    return NULL;
}

nrd_error *nrd_batcher_new(nrd_scheduler **out, nrd_model *m)
{
    const nrd_config *cfg = m->config;
    const Inference__ModelDynamicBatching *db =
        cfg->scheduling_choice_case == INFERENCE__MODEL_CONFIG__SCHEDULING_CHOICE_DYNAMIC_BATCHING
            ? cfg->dynamic_batching
            : NULL;
    nrd_batcher *s;

    nrd_error *err;

    *out = NULL;
    NRD_TRY_GOTO(sched_new(&s, m), err, fail);
    if (db) {
        NRD_TRY_GOTO(configure(s, db), err, fail);
    }
    s->open = s->delay_ns == 0;
    for (size_t i = 0; i < cfg->n_instance_group; i++) {
        /* backends may keep a GPU current per thread */
        s->open = s->open &&
                  cfg->instance_group[i]->kind != INFERENCE__MODEL_INSTANCE_GROUP__KIND__KIND_GPU;
    }
    s->lends = s->open && m->never_blocks && !s->base.order && !m->strategy && !m->cached &&
               !m->ctx->limiter;
    s->base.ops = &ops;
    *out = &s->base;
    return NULL;

fail:
    nrd_batcher_unref(s);
    return err;
}

nrd_error *nrd_batcher_new_inner(nrd_batcher **out, nrd_model *m,
                                 const Inference__ModelSequenceBatching__StrategyOldest *o)
{
    nrd_error *err = sched_new(out, m);

    if (!err) {
        err = set_batching(*out, o->preferred_batch_size, o->n_preferred_batch_size,
                           o->max_queue_delay_microseconds, o->preserve_ordering);
    }
    if (err) {
        nrd_batcher_unref(*out);
        *out = NULL;
    }
    return err;
}

void nrd_batcher_unref(nrd_batcher *s)
{
    if (s && atomic_fetch_sub(&s->refs, 1) == 1) {
        NRD_ASSERT(s->n_queued == 0, "a queue is emptied before it goes");
        pthread_cond_destroy(&s->form_cond);
        pthread_mutex_destroy(&s->mu);
        nrd_response_order_unref(s->base.order);
        free(s->levels);
        free(s->preferred);
        free(s);
    }
}

static void put_locked(nrd_batcher *s, level *l, nrd_request *r)
{
    nrd_request_list_push(&l->queued[0], r);
    l->n++;
    s->n_queued++;
}

static void remove_locked(nrd_batcher *s, level *l, nrd_request *r, bool is_late)
{
    nrd_request_list_remove(&l->queued[is_late], r);
    l->n--;
    s->n_queued--;
}

/* ---- sleeping and waking ---- */

/* The worker that the caller has to wake once it has unlocked; NULL: none sleeps. */
static nrd_worker *pop_idle_locked(nrd_batcher *s)
{
    nrd_worker *w = s->idle;
    if (w) {
        s->idle = w->next;
        w->next = NULL;
    }
    return w;
}

static void wake(nrd_worker *w)
{
    if (w) {
        sem_post(&w->wake);
    }
}

/* A worker has to look at the queue: the one that forms a batch, else a sleeping one (returned, as
 * above). If there is neither, all workers are busy and look at the queue when they are done. */
static nrd_worker *notify_locked(nrd_batcher *s)
{
    if (s->forming) {
        pthread_cond_signal(&s->form_cond);
        return NULL;
    }
    return pop_idle_locked(s);
}

/* Unlocks while the worker sleeps. false: it was given another slot, and s is none of its business
 * any more: not locked again. */
static bool sleep_locked(nrd_batcher *s, nrd_worker *w)
{
    const unsigned n_moved = w->n_moved;

    w->next = s->idle;
    s->idle = w;
    pthread_mutex_unlock(&s->mu);
    while (sem_wait(&w->wake) != 0) { /* interrupted */
    }
    if (w->n_moved != n_moved) {
        return false;
    }
    pthread_mutex_lock(&s->mu);
    return true;
}

/* ---- entering ---- */

static uint32_t leaving_locked(const nrd_batcher *s);

/* Whether the worker that queues the request, a step of an ensemble, runs it itself: no other
 * worker needs to be woken. */
static bool keeps_locked(nrd_batcher *s, uint64_t now_ns)
{
    nrd_worker *w = nrd_worker_current();
    nrd_scheduler *own = w && nrd_worker_queues_next_step() ? w->slot->model->scheduler : NULL;

    if (!own || own->ops != &ops ||
        (own == &s->base ? s->delay_ns > 0 : !s->open || !((nrd_batcher *)own)->open)) {
        return false;
    }
    if (w->next_step_ns == 0) {
        w->next_step_ns = now_ns;
    }
    if (w->kept || w->slot->n_quick_ends < NRD_QUICK_ENOUGH) {
        return false; /* it can run one step, others run beside it */
    }
    if (own != &s->base) {
        atomic_fetch_add(&s->refs, 1);
    }
    w->kept = s;
    return true;
}

static bool is_small(const nrd_request *r)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < r->n_inputs; i++) {
        bytes += r->inputs[i]->byte_size;
    }
    return bytes <= nrd_lent_limits.bytes;
}

/* Whether the thread that has sent the request runs it itself, in the slot of a worker that sleeps
 * on: nrd_workers_run_lent does that once the request is sent. While it runs one, it goes on with a
 * step of an ensemble that follows. */
static bool lends_locked(nrd_batcher *s, nrd_request *r)
{
    nrd_lent *t = nrd_lent_here();

    if (!t->is_lent || t->worker || !s->lends || s->n_queued > 0 || s->forming || !s->idle ||
        s->idle->slot->n_quick_runs < NRD_QUICK_ENOUGH) {
        return false;
    }
    if (t->is_running &&
        (!nrd_worker_queues_next_step() || r->queue_ns - t->begin_ns > nrd_lent_limits.chain_ns)) {
        return false;
    }
    if (!is_small(r) || nrd_request_is_cancelled(r)) {
        return false;
    }
    t->begin_ns = t->is_running ? t->begin_ns : r->queue_ns;
    t->worker = pop_idle_locked(s);
    t->request = r;
    return true;
}

static nrd_error *enqueue(nrd_scheduler *base, nrd_request *r)
{
    nrd_batcher *s = (nrd_batcher *)base;
    const uint64_t priority = r->priority ? r->priority : s->default_level;
    nrd_error *err = NULL;
    nrd_worker *next = NULL;

    r->batch_ns = r->queue_ns = nrd_now_ns();
    nrd_trace_report(r->trace, TRITONSERVER_TRACE_QUEUE_START, r->queue_ns);
    pthread_mutex_lock(&s->mu);
    level *l = level_locked(s, priority <= s->last_level ? priority : s->last_level);
    if (!l) {
        pthread_mutex_unlock(&s->mu);
        return nrd_error_no_memory();
    }
    const uint64_t timeout_us =
        l->allow_override && r->timeout_us && (!l->timeout_us || r->timeout_us < l->timeout_us)
            ? r->timeout_us
            : l->timeout_us;
    r->deadline_ns =
        timeout_us && timeout_us < UINT64_MAX / 2000u ? r->queue_ns + timeout_us * 1000u : 0;
    r->start_by_ns = l->delay ? 0 : r->deadline_ns;
    if (s->stopping) {
        err =
            nrd_request_errorf(r, NRD_ERR_UNAVAILABLE,
                               "Server is stopping, scheduler for model has stopped accepting new "
                               "inference requests");
    } else if (l->max_size && l->n >= l->max_size && l->n - leaving_locked(s) >= l->max_size) {
        err = nrd_request_errorf(r, NRD_ERR_UNAVAILABLE, "Exceeds maximum queue size");
    } else if ((err = nrd_factory_join_order(r->factory, s->base.order)) == NULL) {
        atomic_store(&r->state, NRD_REQ_PENDING);
        atomic_fetch_add(&r->model->n_pending, 1);
        nrd_model_metrics_pending(r->model->metrics, 1);
        if (!lends_locked(s, r)) {
            put_locked(s, l, r);
            if (s->forming || !keeps_locked(s, r->queue_ns)) {
                next = notify_locked(s);
            }
        }
    }
    pthread_mutex_unlock(&s->mu);
    wake(next);
    return err;
}

void nrd_batcher_enqueue_inner(nrd_batcher *s, nrd_request *r)
{
    r->batch_ns = nrd_now_ns();
    r->deadline_ns = r->start_by_ns = 0;
    pthread_mutex_lock(&s->mu);
    /* Without memory for a place its answers come when they are made, and not in their turn. */
    nrd_error_free(nrd_factory_join_order(r->factory, s->base.order));
    put_locked(s, &s->levels[0], r);
    nrd_worker *next = notify_locked(s);
    pthread_mutex_unlock(&s->mu);
    wake(next);
}

/* ---- leaving without a backend ---- */

/* Moves cancelled and expired requests to the two lists; expired ones of a DELAY level go behind
 * the others instead. Stops after `limit` requests that stay: who takes a batch needs to know about
 * the first ones only, housekeeping looks at all. */
static void collect_locked(nrd_batcher *s, uint32_t limit, nrd_request_list *cancelled,
                           nrd_request_list *expired)
{
    uint64_t now = 0; /* read when a deadline asks for it */

    for (uint32_t i = 0; i < s->n_levels && s->n_queued; i++) {
        level *l = &s->levels[i];
        for (int late = 0; late < 2; late++) {
            for (nrd_request *r = l->queued[late].head, *next; r && limit; r = next) {
                next = r->next;
                limit--;
                if (r->deadline_ns && !now) {
                    now = nrd_now_ns();
                }
                if (nrd_request_is_cancelled(r)) {
                    limit++;
                    remove_locked(s, l, r, late);
                    nrd_request_list_push(cancelled, r);
                } else if (!late && r->deadline_ns && now >= r->deadline_ns) {
                    limit++;
                    if (l->delay) {
                        nrd_request_list_remove(&l->queued[0], r);
                        nrd_request_list_push(&l->queued[LATE], r);
                    } else {
                        remove_locked(s, l, r, false);
                        nrd_request_list_push(expired, r);
                    }
                }
            }
        }
    }
}

static void fail_list(nrd_request_list *list, nrd_error_code code, const char *message,
                      nrd_fail_reason reason)
{
    while (list->head) {
        nrd_request *r = nrd_request_list_pop(list);
        nrd_factory_leave_order(r->factory); /* need not wait for those that run */
        nrd_request_fail(r, nrd_request_errorf(r, code, "%s", message), reason);
    }
}

void nrd_batcher_sweep(nrd_batcher *s)
{
    nrd_request_list cancelled = {0}, expired = {0};
    nrd_worker *next = NULL;

    pthread_mutex_lock(&s->mu);
    if (!s->asking) {
        collect_locked(s, UINT32_MAX, &cancelled, &expired);
    }
    if (s->n_queued > 0) { /* a worker that meant to run it may be late */
        next = notify_locked(s);
    }
    pthread_mutex_unlock(&s->mu);
    wake(next);
    fail_list(&expired, NRD_ERR_UNAVAILABLE, "Request timeout expired", NRD_FAIL_REJECTED);
    fail_list(&cancelled, NRD_ERR_CANCELLED, "Request was cancelled", NRD_FAIL_CANCELED);
}

void nrd_batcher_stop(nrd_batcher *s)
{
    pthread_mutex_lock(&s->mu);
    s->stopping = true;
    nrd_worker *all = s->idle;
    s->idle = NULL;
    pthread_cond_broadcast(&s->form_cond);
    pthread_mutex_unlock(&s->mu);
    for (nrd_worker *next; all; all = next) {
        next = all->next; /* woken, it is gone */
        wake(all);
    }
}

/* ---- forming batches ---- */

static uint32_t weight(const nrd_request *r)
{
    return r->batch_size ? r->batch_size : 1;
}

/* The first request in order of priority, then arrival. */
static nrd_request *first_locked(const nrd_batcher *s)
{
    for (uint32_t i = 0; i < s->n_levels; i++) {
        if (s->levels[i].queued[0].head) {
            return s->levels[i].queued[0].head;
        }
        if (s->levels[i].queued[LATE].head) {
            return s->levels[i].queued[LATE].head;
        }
    }
    return NULL;
}

typedef struct plan {
    uint32_t n;      /* requests */
    uint32_t total;  /* inferences in them */
    uint32_t best_n; /* requests of the largest preferred size that is met exactly */
    bool is_full;    /* another request is waiting that does not fit: no use in waiting */
    uint64_t oldest_ns;
    uint64_t expires_ns; /* the first time-out among them: others may make a batch then */
} plan;

static bool is_preferred(const nrd_batcher *s, uint32_t total)
{
    for (size_t i = 0; i < s->n_preferred; i++) {
        if (s->preferred[i] == total) {
            return true;
        }
    }
    return false;
}

/* Walks the queue in order and counts what one batch could hold. */
static plan make_plan_locked(const nrd_batcher *s, uint32_t cap)
{
    plan p = {.oldest_ns = UINT64_MAX, .expires_ns = UINT64_MAX};
    const nrd_request *first = NULL;

    for (uint32_t i = 0; i < s->n_levels && !p.is_full; i++) {
        for (int late = 0; late < 2 && !p.is_full; late++) {
            for (const nrd_request *r = s->levels[i].queued[late].head; r && !p.is_full; r = r->next) {
                if (first &&
                    (!s->batching || p.n >= cap || p.total + weight(r) > s->base.max_batch ||
                     !nrd_request_same_shapes(first, r))) {
                    p.is_full = true;
                    break;
                }
                first = first ? first : r;
                p.n++;
                p.total += weight(r);
                p.oldest_ns = r->batch_ns < p.oldest_ns ? r->batch_ns : p.oldest_ns;
                if (!late && r->deadline_ns && r->deadline_ns < p.expires_ns) {
                    p.expires_ns = r->deadline_ns;
                }
                if (is_preferred(s, p.total)) {
                    p.best_n = p.n;
                }
                p.is_full = !s->batching || p.total >= s->base.max_batch;
            }
        }
    }
    return p;
}

/* Walks the queue in order: copies its first n requests to out, or, with `compare`, tells whether they
 * are still the same. */
static bool first_ones_locked(const nrd_batcher *s, nrd_request **out, uint32_t n, bool compare)
{
    uint32_t k = 0;

    for (uint32_t i = 0; i < s->n_levels; i++) {
        for (int late = 0; late < 2; late++) {
            nrd_request *r = s->levels[i].queued[late].head;
            for (; r && k < n; r = r->next, k++) {
                if (compare && out[k] != r) {
                    return false;
                }
                out[k] = r;
            }
        }
    }
    return k == n;
}

/* Asks the batching library which of the planned requests may share a batch: it takes as many of the
 * first ones as it likes. Unlocks meanwhile; nothing leaves the queue until it has answered. false:
 * the queue has changed, another plan is needed. batch: room for p->n. */
static bool ask_strategy(nrd_batcher *s, nrd_request **batch, uint32_t cap, plan *p)
{
    nrd_strategy *custom = s->model->strategy;
    const uint32_t n = p->n;
    uint32_t accepted = 0;

    first_ones_locked(s, batch, n, false);
    s->forming = s->asking = true;
    pthread_mutex_unlock(&s->mu);
    void *userp = nrd_strategy_begin(custom, s->model);
    while (accepted < n) {
        const bool included = nrd_strategy_includes(custom, batch[accepted], userp);
        if (!included && accepted > 0) { /* a batch of none would never end */
            break;
        }
        accepted++;
    }
    nrd_strategy_end(custom, s->model, userp);
    pthread_mutex_lock(&s->mu);
    s->forming = s->asking = false;
    if (make_plan_locked(s, cap).n != n || !first_ones_locked(s, batch, n, true)) {
        return false;
    }
    *p = make_plan_locked(s, accepted);
    return true;
}

/* Requests that the forming worker has been told to take and will once it is awake: they no longer
 * count as waiting. Seen to for the plain queue only. */
static uint32_t leaving_locked(const nrd_batcher *s)
{
    if (!s->forming || s->n_levels > 1 || s->model->strategy) {
        return 0;
    }
    const plan p = make_plan_locked(s, s->base.max_batch);
    return p.is_full ? p.n : p.best_n;
}

static uint32_t take_locked(nrd_batcher *s, nrd_request **batch, uint32_t n)
{
    for (uint32_t k = 0; k < n; k++) {
        nrd_request *r = first_locked(s);
        for (uint32_t i = 0; i < s->n_levels; i++) {
            const level *l = &s->levels[i];
            if (l->queued[0].head == r || l->queued[LATE].head == r) {
                remove_locked(s, &s->levels[i], r, l->queued[LATE].head == r);
                break;
            }
        }
        batch[k] = r;
    }
    return n;
}

static void wait_until(nrd_batcher *s, uint64_t when_ns)
{
    struct timespec t = {.tv_sec = (time_t)(when_ns / 1000000000u),
                         .tv_nsec = (long)(when_ns % 1000000000u)};
    pthread_cond_timedwait(&s->form_cond, &s->mu, &t);
}

uint32_t nrd_batcher_take(nrd_batcher *s, nrd_worker *w, nrd_request **batch, uint32_t cap)
{
    uint32_t n = 0;
    nrd_worker *next = NULL;

    pthread_mutex_lock(&s->mu);
    for (;;) {
        nrd_request_list cancelled = {0}, expired = {0};
        if (!s->asking) {
            collect_locked(s, cap, &cancelled, &expired);
        }
        if (cancelled.head || expired.head) {
            pthread_mutex_unlock(&s->mu);
            fail_list(&expired, NRD_ERR_UNAVAILABLE, "Request timeout expired", NRD_FAIL_REJECTED);
            fail_list(&cancelled, NRD_ERR_CANCELLED, "Request was cancelled", NRD_FAIL_CANCELED);
            pthread_mutex_lock(&s->mu);
            continue;
        }
        if (s->stopping && s->n_queued == 0) {
            break;
        }
        if (s->n_queued == 0 || s->forming) {
            if (!sleep_locked(s, w)) {
                return 0;
            }
            continue;
        }
        plan p = make_plan_locked(s, cap);
        if (s->batching && s->model->strategy && !ask_strategy(s, batch, cap, &p)) {
            continue;
        }
        uint64_t ready_ns = p.oldest_ns + s->delay_ns;
        if (s->delay_ns == 0 || p.is_full || s->stopping || nrd_now_ns() >= ready_ns) {
            n = take_locked(s, batch, p.n);
        } else if (p.best_n > 0) {
            n = take_locked(s, batch, p.best_n);
        }
        if (n > 0) {
            break;
        }
        s->forming = true;
        wait_until(s, p.expires_ns < ready_ns ? p.expires_ns : ready_ns);
        s->forming = false;
    }
    /* Arrivals woke only the forming worker; what it leaves behind is for the next one. */
    if (s->n_queued > 0 || s->stopping) {
        next = pop_idle_locked(s);
    }
    pthread_mutex_unlock(&s->mu);
    wake(next);
    return n;
}

/* ---- going on with the next step ---- */

static void lock_both(nrd_batcher *a, nrd_batcher *b)
{
    pthread_mutex_lock((uintptr_t)a < (uintptr_t)b ? &a->mu : &b->mu);
    pthread_mutex_lock((uintptr_t)a < (uintptr_t)b ? &b->mu : &a->mu);
}

void nrd_batcher_follow(nrd_worker *w)
{
    nrd_batcher *from = (nrd_batcher *)w->slot->model->scheduler; /* else it kept nothing */
    nrd_batcher *to = w->kept;
    nrd_worker *other = NULL;

    w->kept = NULL;
    if (to == from) {
        return; /* this worker looks at that queue anyway */
    }
    lock_both(from, to);
    if (to->n_queued > 0) { /* else another worker was faster, or it was cancelled */
        other = pop_idle_locked(to);
    }
    if (other && from->n_queued == 0 && !from->stopping) {
        nrd_worker_slot *slot = w->slot;
        w->slot = other->slot;
        other->slot = slot; /* where it sleeps on, as w would have */
        other->n_moved++;
        other->next = from->idle;
        from->idle = other;
        other = NULL;
    }
    pthread_mutex_unlock(&from->mu);
    pthread_mutex_unlock(&to->mu);
    wake(other);
    nrd_batcher_unref(to);
}

/* ---- a slot that was lent ---- */

void nrd_batcher_give_back(nrd_worker *w)
{
    nrd_batcher *s = (nrd_batcher *)w->slot->model->scheduler; /* no other one lends */

    pthread_mutex_lock(&s->mu);
    const bool is_needed = s->stopping || s->n_queued > 0;
    if (!is_needed) {
        w->next = s->idle;
        s->idle = w;
    }
    pthread_mutex_unlock(&s->mu); /* asleep among the others it may be gone from here on */
    wake(is_needed ? w : NULL);
}

/* ---- as the scheduler of a model ---- */

static uint32_t take(nrd_scheduler *s, uint32_t slot, nrd_worker *w, nrd_request **batch,
                     uint32_t cap)
{
    (void)slot; /* one queue for all */
    return nrd_batcher_take((nrd_batcher *)s, w, batch, cap);
}

static void sweep(nrd_scheduler *base)
{
    nrd_batcher *s = (nrd_batcher *)base;
    if (atomic_load(&s->model->n_pending) > 0) {
        nrd_batcher_sweep(s);
    }
}

static void stop(nrd_scheduler *s)
{
    nrd_batcher_stop((nrd_batcher *)s);
}

static void free_share(nrd_scheduler *s)
{
    nrd_batcher_unref((nrd_batcher *)s);
}

static const nrd_scheduler_ops ops = {
    .enqueue = enqueue,
    .take = take,
    .sweep = sweep,
    .stop = stop,
    .free = free_share,
};
