/* SPDX-License-Identifier: Apache-2.0
 * Sequences: requests of one correlation id run in order, one at a time, in one slot of one
 * instance.
 *
 * A sequence begins with a START request, which takes the lowest free slot or, when there is none,
 * opens a queue in the backlog. It ends with its END request, when it was idle for too long, when
 * one of its requests that wait is cancelled, or when its time in the backlog is over. The slot
 * then goes to the oldest sequence of the backlog.
 *
 *   direct   every batch holds the slots of an instance in their places; a slot with nothing to run
 *            gets a null request when a higher slot has something to run.
 *   oldest   each slot gives one request at a time to a dynamic batcher of its instance, and the
 *            next one when that was released.
 *
 * An iterative sequence is a single request that its backend gives back to be run again.
 *
 * Lock: mu guards everything below it, and the fields next, prev and seq_slot of waiting requests.
 * Requests to be answered are collected while it is held and answered afterwards. The lock of an
 * inner dynamic batcher may be taken while it is held. */
#include "core/sched/sequence_batcher.h"

#include "core/instance_internal.h"
#include "core/model_internal.h"
#include "core/model_metrics.h"
#include "core/request.h"
#include "core/request_internal.h"
#include "core/sched/dynamic_batcher.h"
#include "core/sched/request_list.h"
#include "core/sched/scheduler.h"
#include "core/sched/sequence.h"
#include "core/trace.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "triton/core/tritonserver.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct backlog {
    struct backlog *next, *prev;
    nrd_request_list queue;
    struct sequence *owner; /* NULL: its END has come */
    uint64_t deadline_ns;   /* UINT64_MAX: none */
} backlog;

typedef struct sequence {  /* has begun, END has not come yet */
    struct sequence *next; /* of its bucket */
    uint64_t hash, id;
    char *text;              /* NULL: the id is the number */
    nrd_sequence_slot *slot; /* one of the two */
    backlog *waiting;
    uint64_t last_ns; /* its last request came then */
} sequence;

struct nrd_sequence_slot {
    struct inst *inst;
    nrd_request_list queue;
    sequence *owner;             /* whose requests come here; NULL: no more will */
    bool taken;                  /* by a sequence, which may have had its last request already */
    bool closing;                /* free it once nothing is queued or in flight */
    bool in_flight;              /* oldest: a request is with the inner batcher or the backend */
    nrd_sequence_states *states; /* shared */
};

typedef struct inst {
    nrd_instance *instance; /* borrowed */
    nrd_batcher *inner;     /* oldest; NULL for direct */
    pthread_cond_t cond;    /* direct: something is queued */
    nrd_sequence_slot *slots;
} inst;

typedef struct nrd_sequence_batcher {
    nrd_scheduler base;
    nrd_model *model; /* borrowed */
    bool iterative, oldest;
    uint32_t n_slots; /* per instance */
    uint64_t idle_ns, delay_ns;
    float min_utilization;
    nrd_sequence_controls *controls;
    nrd_sequence_plan *plan;
    atomic_uint_fast64_t next_id; /* of iterative requests */
    uint64_t next_text_id; /* number of the next sequence whose id is a text; guarded by mu */
    pthread_mutex_t mu;
    inst *insts;
    uint32_t n_insts, n_free;
    sequence **buckets;
    size_t n_buckets, n_sequences;
    backlog *first, *last;
    bool draining, abandoned, stopping;
} nrd_sequence_batcher;

/* ---- lists ---- */

static void move_all(nrd_request_list *to, nrd_request_list *from)
{
    while (from->head) {
        nrd_request_list_push(to, nrd_request_list_pop(from));
    }
}

static bool any_cancelled(const nrd_request_list *l)
{
    for (const nrd_request *r = l->head; r; r = r->next) {
        if (nrd_request_is_cancelled(r)) {
            return true;
        }
    }
    return false;
}

/* Answers requests that will not run. No lock is held. */
static void fail_all(nrd_request_list *l, nrd_error_code code, const char *message, nrd_fail_reason reason)
{
    while (l->head) {
        nrd_request *r = nrd_request_list_pop(l);
        nrd_request_fail(r, nrd_errorf(code, "%s", message), reason);
    }
}

static void fail_cancelled(nrd_request_list *l)
{
    fail_all(l, NRD_ERR_CANCELLED, "Request was cancelled", NRD_FAIL_CANCELED);
}

/* ---- sequences by correlation id ---- */

static uint64_t hash_of(const nrd_request *r)
{
    return r->corr_str ? nrd_hash_bytes(1, r->corr_str, strlen(r->corr_str))
                       : nrd_hash_u64(2, r->corr_id);
}

static bool is_same(const sequence *q, const nrd_request *r)
{
    if (q->text || r->corr_str) {
        return q->text && r->corr_str && strcmp(q->text, r->corr_str) == 0;
    }
    return q->id == r->corr_id;
}

static sequence *find_locked(const nrd_sequence_batcher *s, const nrd_request *r)
{
    sequence *q = s->buckets[hash_of(r) & (s->n_buckets - 1)];
    while (q && !is_same(q, r)) {
        q = q->next;
    }
    return q;
}

static void grow_locked(nrd_sequence_batcher *s)
{
    size_t n = s->n_buckets * 2;
    sequence **fresh = calloc(n, sizeof *fresh);

    if (!fresh) {
        return; /* slower, but as good */
    }
    for (size_t i = 0; i < s->n_buckets; i++) {
        for (sequence *q = s->buckets[i], *next; q; q = next) {
            next = q->next;
            q->next = fresh[q->hash & (n - 1)];
            fresh[q->hash & (n - 1)] = q;
        }
    }
    free(s->buckets);
    s->buckets = fresh;
    s->n_buckets = n;
}

/* NULL: no memory. */
static sequence *begin_locked(nrd_sequence_batcher *s, const nrd_request *r)
{
    sequence *q = calloc(1, sizeof *q);
    char *text = q && r->corr_str ? strdup(r->corr_str) : NULL;

    if (!q || (r->corr_str && !text)) {
        free(q);
        return NULL;
    }
    if (s->n_sequences >= s->n_buckets) {
        grow_locked(s);
    }
    q->hash = hash_of(r);
    q->id = r->corr_str ? s->next_text_id++ : r->corr_id;
    q->text = text;
    q->next = s->buckets[q->hash & (s->n_buckets - 1)];
    s->buckets[q->hash & (s->n_buckets - 1)] = q;
    s->n_sequences++;
    return q;
}

/* No request of the sequence is expected any more; those that are queued still run. */
static void forget_locked(nrd_sequence_batcher *s, sequence *q)
{
    sequence **p = &s->buckets[q->hash & (s->n_buckets - 1)];

    while (*p != q) {
        p = &(*p)->next;
    }
    *p = q->next;
    s->n_sequences--;
    if (q->slot) {
        q->slot->owner = NULL;
    }
    if (q->waiting) {
        q->waiting->owner = NULL;
    }
    free(q->text);
    free(q);
}

/* ---- the backlog ---- */

static void remove_backlog_locked(nrd_sequence_batcher *s, backlog *b)
{
    if (b->prev) {
        b->prev->next = b->next;
    } else {
        s->first = b->next;
    }
    if (b->next) {
        b->next->prev = b->prev;
    } else {
        s->last = b->prev;
    }
}

/* NULL: no memory. */
static backlog *add_backlog_locked(nrd_sequence_batcher *s)
{
    backlog *b = calloc(1, sizeof *b);
    if (!b) {
        return NULL;
    }
    b->deadline_ns = UINT64_MAX;
    b->prev = s->last;
    if (s->last) {
        s->last->next = b;
    } else {
        s->first = b;
    }
    s->last = b;
    return b;
}

/* ---- slots ---- */

static nrd_sequence_slot *free_slot_locked(const nrd_sequence_batcher *s)
{
    for (uint32_t k = 0; s->n_free > 0 && k < s->n_slots; k++) {
        for (uint32_t i = 0; i < s->n_insts; i++) {
            if (!s->insts[i].slots[k].taken) {
                return &s->insts[i].slots[k];
            }
        }
    }
    return NULL;
}

/* The slot has nothing queued: the oldest sequence of the backlog gets it. */
static void free_slot_or_refill_locked(nrd_sequence_batcher *s, nrd_sequence_slot *slot,
                                       nrd_request_list *cancelled)
{
    slot->closing = false;
    if (slot->owner) {
        forget_locked(s, slot->owner);
    }
    while (s->first) {
        backlog *b = s->first;
        remove_backlog_locked(s, b);
        if (any_cancelled(&b->queue)) {
            move_all(cancelled, &b->queue);
            if (b->owner) {
                forget_locked(s, b->owner);
            }
            free(b);
            continue;
        }
        move_all(&slot->queue, &b->queue);
        slot->owner = b->owner;
        slot->closing = !b->owner; /* no more will come than what is there */
        if (b->owner) {
            b->owner->waiting = NULL;
            b->owner->slot = slot;
            b->owner->last_ns = nrd_now_ns(); /* waiting was not its idleness */
        }
        free(b);
        return;
    }
    slot->taken = false;
    s->n_free++;
}

/* If the next request of the slot was cancelled, its sequence ends: all that waits goes with it. */
static void end_cancelled_locked(nrd_sequence_batcher *s, nrd_sequence_slot *slot, nrd_request_list *cancelled)
{
    while (slot->queue.head && nrd_request_is_cancelled(slot->queue.head)) {
        move_all(cancelled, &slot->queue);
        free_slot_or_refill_locked(s, slot, cancelled);
    }
}

/* Gives a request that is about to run what the core adds to it. */
static void add_tensors_locked(nrd_sequence_batcher *s, nrd_sequence_slot *slot, nrd_request *r)
{
    nrd_request_drop_overrides(r);
    nrd_sequence_controls_apply(s->controls, r);
    r->seq_slot = slot;
    if (nrd_sequence_plan_is_empty(s->plan)) {
        return;
    }
    if (!slot->states || (r->flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_START)) {
        nrd_sequence_states_unref(slot->states);
        slot->states = nrd_sequence_states_new(s->plan);
    }
    nrd_sequence_states_unref(r->states);
    r->states = slot->states ? nrd_sequence_states_ref(slot->states) : NULL;
    r->no_memory = r->no_memory || !slot->states;
}

/* Oldest: forwards the next request of the slot, if none is in flight. */
static void forward_locked(nrd_sequence_batcher *s, nrd_sequence_slot *slot, nrd_request_list *cancelled)
{
    while (!slot->in_flight && slot->taken) {
        end_cancelled_locked(s, slot, cancelled);
        if (!slot->queue.head) {
            if (!slot->closing) {
                return;
            }
            free_slot_or_refill_locked(s, slot, cancelled);
            continue;
        }
        nrd_request *r = nrd_request_list_pop(&slot->queue);
        slot->closing = slot->closing || (r->flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_END) != 0;
        slot->in_flight = true;
        add_tensors_locked(s, slot, r);
        nrd_batcher_enqueue_inner(slot->inst->inner, r);
    }
}

/* After the slot got something to do, or lost its sequence. */
static void wake_locked(nrd_sequence_batcher *s, nrd_sequence_slot *slot, nrd_request_list *cancelled)
{
    if (s->oldest) {
        forward_locked(s, slot, cancelled);
        return;
    }
    while (slot->closing && !slot->queue.head) {
        free_slot_or_refill_locked(s, slot, cancelled);
    }
    if (slot->queue.head) {
        pthread_cond_signal(&slot->inst->cond);
    }
}

/* ---- entering ---- */

static nrd_error *identify(nrd_sequence_batcher *s, nrd_request *r)
{
    if (r->batch_size > 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "inference request to model '%s' must specify batch-size 1 due to "
                          "requirements of sequence batcher",
                          r->model_name);
    }
    if (r->corr_str ? r->corr_str[0] != '\0' : r->corr_id != 0) {
        return NULL;
    }
    if (!s->iterative) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "inference request to model '%s' must specify a non-zero or non-empty "
                          "correlation ID",
                          r->model_name);
    }
    free(r->corr_str);
    r->corr_str = NULL;
    r->corr_id = atomic_fetch_add(&s->next_id, 1);
    r->flags = TRITONSERVER_REQUEST_FLAG_SEQUENCE_START;
    r->made_corr_id = true;
    return NULL;
}

static nrd_error *not_started(const nrd_request *r)
{
    char digits[24];
    snprintf(digits, sizeof digits, "%llu", (unsigned long long)r->corr_id);
    return nrd_errorf(NRD_ERR_INVALID_ARG,
                      "inference request for sequence %s to model '%s' must specify the START flag "
                      "on the first request of the sequence",
                      r->corr_str ? r->corr_str : digits, r->model_name);
}

static void warn_of_conflict(const nrd_request *r)
{
    char digits[24];
    snprintf(digits, sizeof digits, "%llu", (unsigned long long)r->corr_id);
    NRD_LOG_WARN("sequence %s for model '%s' has a conflict. The previous sequence did not end "
                 "before this sequence start. Previous sequence will be terminated early.",
                 r->corr_str ? r->corr_str : digits, r->model_name);
}

/* Finds or makes the place of the request's sequence. */
static nrd_error *place_locked(nrd_sequence_batcher *s, const nrd_request *r, sequence **out)
{
    const bool start = (r->flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_START) != 0;
    sequence *q = find_locked(s, r);

    if (s->draining && start) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE,
                          "Server is stopping, scheduler for model has stopped accepting new "
                          "inference requests");
    }
    if (!q && !start) {
        return not_started(r);
    }
    if (q && start) {
        warn_of_conflict(r);
    }
    if (!q) {
        nrd_sequence_slot *slot = free_slot_locked(s);
        q = begin_locked(s, r);
        if (!q) {
            return nrd_error_no_memory();
        }
        if (slot) {
            q->slot = slot;
            slot->owner = q;
            slot->taken = true;
            s->n_free--;
        } else {
            q->waiting = add_backlog_locked(s);
            if (!q->waiting) {
                forget_locked(s, q);
                return nrd_error_no_memory();
            }
            q->waiting->owner = q;
        }
    }
    *out = q;
    return NULL;
}

static nrd_error *queue(nrd_sequence_batcher *s, nrd_request *r)
{
    nrd_request_list cancelled = {0};
    sequence *q = NULL;
    nrd_error *err;

    r->batch_ns = nrd_now_ns();
    pthread_mutex_lock(&s->mu);
    err = place_locked(s, r, &q);
    if (!err) {
        nrd_sequence_slot *slot = q->slot;
        const bool end = (r->flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_END) != 0;
        atomic_store(&r->state, NRD_REQ_PENDING);
        atomic_fetch_add(&s->model->n_pending, 1);
        nrd_model_metrics_pending(s->model->metrics, 1);
        r->owner = &s->base;
        r->corr_id = q->id; /* of a text the number in its place */
        q->last_ns = r->batch_ns;
        if (!slot && r->timeout_us && r->timeout_us < UINT64_MAX / 2000u) {
            uint64_t when = r->batch_ns + r->timeout_us * 1000u;
            q->waiting->deadline_ns =
                when < q->waiting->deadline_ns ? when : q->waiting->deadline_ns;
        }
        nrd_request_list_push(slot ? &slot->queue : &q->waiting->queue, r);
        if (end || s->abandoned) {
            forget_locked(s, q);
        }
        if (slot) {
            slot->closing = slot->closing || s->abandoned;
            wake_locked(s, slot, &cancelled);
        }
    }
    pthread_mutex_unlock(&s->mu);
    fail_cancelled(&cancelled);
    return err;
}

static nrd_error *enqueue(nrd_scheduler *base, nrd_request *r)
{
    nrd_sequence_batcher *s = (nrd_sequence_batcher *)base;

    NRD_TRY(identify(s, r));
    r->queue_ns = nrd_now_ns();
    nrd_trace_report(r->trace, TRITONSERVER_TRACE_QUEUE_START, r->queue_ns);
    return queue(s, r);
}

/* ---- leaving ---- */

static nrd_error *released(nrd_scheduler *base, nrd_request *r, uint32_t flags, bool *goes_on)
{
    nrd_sequence_batcher *s = (nrd_sequence_batcher *)base;
    nrd_sequence_slot *slot = r->seq_slot;
    const bool again = (flags & TRITONSERVER_REQUEST_RELEASE_RESCHEDULE) != 0;
    nrd_request_list cancelled = {0};
    nrd_error *err = NULL;

    *goes_on = false;
    if (again && !s->iterative) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, "
                          "while the model is not configured to handle such a flag.");
    }
    pthread_mutex_lock(&s->mu);
    r->seq_slot = NULL; /* NULL already: it was answered while it waited, or twice given back */
    if (slot && s->oldest) {
        slot->in_flight = false;
    }
    if (slot && s->iterative && !again && slot->owner && is_same(slot->owner, r)) {
        forget_locked(s, slot->owner);
        slot->closing = true;
    }
    if (slot) {
        wake_locked(s, slot, &cancelled);
    }
    pthread_mutex_unlock(&s->mu);
    fail_cancelled(&cancelled);
    if (again) {
        nrd_request_drop_overrides(r);
        r->flags = 0;
        err = queue(s, r);
        *goes_on = !err;
    } else if (r->made_corr_id) {
        r->made_corr_id = false;
        r->corr_id = 0;
        r->flags = 0;
    }
    return err;
}

static void end_idle_locked(nrd_sequence_batcher *s, uint64_t now, nrd_request_list *cancelled)
{
    for (size_t i = 0; i < s->n_buckets; i++) {
        for (sequence *q = s->buckets[i], *next; q; q = next) {
            next = q->next;
            if (!q->slot || now - q->last_ns < s->idle_ns || now < q->last_ns) {
                continue;
            }
            nrd_sequence_slot *slot = q->slot;
            forget_locked(s, q);
            slot->closing = true;
            wake_locked(s, slot, cancelled);
            next = s->buckets[i]; /* a slot that was refilled changes the bucket: look again */
        }
    }
}

static void expire_backlog_locked(nrd_sequence_batcher *s, uint64_t now, nrd_request_list *cancelled,
                                  nrd_request_list *expired)
{
    for (backlog *b = s->first, *next; b; b = next) {
        const bool is_late = now >= b->deadline_ns;
        next = b->next;
        if (!is_late && !any_cancelled(&b->queue)) {
            continue;
        }
        remove_backlog_locked(s, b);
        move_all(is_late ? expired : cancelled, &b->queue);
        if (b->owner) {
            forget_locked(s, b->owner);
        }
        free(b);
    }
}

static void sweep(nrd_scheduler *base)
{
    nrd_sequence_batcher *s = (nrd_sequence_batcher *)base;
    nrd_request_list cancelled = {0}, expired = {0};

    pthread_mutex_lock(&s->mu);
    uint64_t now = nrd_now_ns();
    expire_backlog_locked(s, now, &cancelled, &expired);
    end_idle_locked(s, now, &cancelled);
    for (uint32_t i = 0; i < s->n_insts; i++) {
        for (uint32_t k = 0; k < s->n_slots; k++) {
            nrd_sequence_slot *slot = &s->insts[i].slots[k];
            if (slot->queue.head && nrd_request_is_cancelled(slot->queue.head)) {
                end_cancelled_locked(s, slot, &cancelled);
                wake_locked(s, slot, &cancelled);
            }
        }
    }
    pthread_mutex_unlock(&s->mu);
    fail_cancelled(&cancelled);
    fail_all(&expired, NRD_ERR_UNAVAILABLE,
             "timeout of the corresponding sequence has been expired", NRD_FAIL_REJECTED);
    for (uint32_t i = 0; s->oldest && i < s->n_insts; i++) {
        nrd_batcher_sweep(s->insts[i].inner);
    }
}

static size_t n_live(nrd_scheduler *base)
{
    nrd_sequence_batcher *s = (nrd_sequence_batcher *)base;

    pthread_mutex_lock(&s->mu);
    size_t n = s->n_sequences;
    pthread_mutex_unlock(&s->mu);
    return n;
}

static void drain(nrd_scheduler *base)
{
    nrd_sequence_batcher *s = (nrd_sequence_batcher *)base;

    pthread_mutex_lock(&s->mu);
    s->draining = true;
    pthread_mutex_unlock(&s->mu);
}

static void abandon(nrd_scheduler *base)
{
    nrd_sequence_batcher *s = (nrd_sequence_batcher *)base;
    nrd_request_list cancelled = {0};

    pthread_mutex_lock(&s->mu);
    s->abandoned = true;
    for (size_t i = 0; i < s->n_buckets; i++) {
        while (s->buckets[i]) {
            nrd_sequence_slot *slot = s->buckets[i]->slot;
            forget_locked(s, s->buckets[i]);
            if (slot) {
                slot->closing = true;
                wake_locked(s, slot, &cancelled);
            }
        }
    }
    pthread_mutex_unlock(&s->mu);
    fail_cancelled(&cancelled);
}

static void stop(nrd_scheduler *base)
{
    nrd_sequence_batcher *s = (nrd_sequence_batcher *)base;

    pthread_mutex_lock(&s->mu);
    s->draining = s->stopping = true;
    for (uint32_t i = 0; i < s->n_insts; i++) {
        pthread_cond_broadcast(&s->insts[i].cond);
    }
    pthread_mutex_unlock(&s->mu);
    for (uint32_t i = 0; s->oldest && i < s->n_insts; i++) {
        nrd_batcher_stop(s->insts[i].inner);
    }
}

/* ---- direct: batches of slots ---- */

typedef struct round_of_slots {
    nrd_request *like;   /* shapes of the batch, and of its null requests; NULL: nothing to run */
    uint32_t n_ready, n; /* n: slots up to the last one that has a request */
    uint64_t oldest_ns;
} round_of_slots;

static round_of_slots look_locked(nrd_sequence_batcher *s, inst *in, nrd_request_list *cancelled)
{
    round_of_slots r = {.oldest_ns = UINT64_MAX};

    for (uint32_t k = 0; k < s->n_slots; k++) {
        nrd_sequence_slot *slot = &in->slots[k];
        end_cancelled_locked(s, slot, cancelled);
        if (slot->queue.head) {
            const nrd_request *q = slot->queue.head;
            r.like = r.like ? r.like : slot->queue.head;
            r.oldest_ns = q->batch_ns < r.oldest_ns ? q->batch_ns : r.oldest_ns;
            r.n_ready++;
            r.n = k + 1;
        }
    }
    return r;
}

/* NULL: no memory. */
static nrd_request *null_locked(nrd_sequence_batcher *s, const nrd_request *like,
                                const nrd_sequence_states *states)
{
    nrd_request *r = nrd_request_new_null(like);

    if (!r) {
        return NULL;
    }
    nrd_sequence_controls_apply(s->controls, r);
    r->states = states ? nrd_sequence_states_new_null(states) : NULL;
    if ((states && !r->states) || r->no_memory) {
        nrd_request_free(r);
        return NULL;
    }
    return r;
}

static uint32_t collect_locked(nrd_sequence_batcher *s, inst *in, const round_of_slots *r,
                               nrd_request **batch, nrd_request_list *cancelled, nrd_request_list *failed)
{
    const nrd_request *like =
        r->like; /* the first one that has a slot; gets its tensors when met */
    nrd_request *shape = NULL;
    uint32_t n_null = 0;

    for (uint32_t k = 0; k < r->n; k++) {
        nrd_sequence_slot *slot = &in->slots[k];
        batch[k] = NULL;
        if (!slot->queue.head ||
            (slot->queue.head != like && !nrd_request_same_shapes(like, slot->queue.head))) {
            n_null++;
            continue;
        }
        batch[k] = nrd_request_list_pop(&slot->queue);
    }
    for (uint32_t k = 0; k < r->n; k++) { /* shapes were compared before anything was added */
        if (batch[k]) {
            nrd_sequence_slot *slot = &in->slots[k];
            add_tensors_locked(s, slot, batch[k]);
            shape = shape ? shape : batch[k];
            if (batch[k]->flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_END) {
                slot->closing = true;
            }
            while (slot->closing && !slot->queue.head) {
                free_slot_or_refill_locked(s, slot, cancelled);
            }
        }
    }
    bool ok = true;
    for (uint32_t k = 0; ok && n_null > 0 && k < r->n; k++) {
        batch[k] = batch[k] ? batch[k] : null_locked(s, shape, shape->states);
        ok = batch[k] != NULL;
    }
    for (uint32_t k = 0; !ok && k < r->n; k++) { /* slots cannot be left out: none of them runs */
        if (batch[k] && batch[k]->is_null) {
            nrd_request_free(batch[k]);
        } else if (batch[k]) {
            nrd_request_list_push(failed, batch[k]);
        }
    }
    return ok ? r->n : 0;
}

static uint32_t take_direct(nrd_sequence_batcher *s, inst *in, nrd_request **batch, uint32_t cap)
{
    uint32_t n = 0;

    NRD_ASSERT(cap >= s->n_slots, "every slot of the instance fits into its batch");
    pthread_mutex_lock(&s->mu);
    while (n == 0) {
        nrd_request_list cancelled = {0}, failed = {0};
        round_of_slots r = look_locked(s, in, &cancelled);
        uint64_t due = 0;
        if (r.like && s->delay_ns && s->min_utilization > 0 && !s->stopping &&
            (float)r.n_ready / (float)s->base.max_batch < s->min_utilization) {
            due = r.oldest_ns + s->delay_ns;
        }
        if (r.like && (due == 0 || nrd_now_ns() >= due)) {
            n = collect_locked(s, in, &r, batch, &cancelled, &failed);
        }
        if (cancelled.head || failed.head) {
            pthread_mutex_unlock(&s->mu);
            fail_cancelled(&cancelled);
            fail_all(&failed, NRD_ERR_UNAVAILABLE, "out of memory", NRD_FAIL_OTHER);
            pthread_mutex_lock(&s->mu);
        } else if (n == 0 && s->stopping) {
            break;
        } else if (n == 0 && due) {
            struct timespec t = {.tv_sec = (time_t)(due / 1000000000u),
                                 .tv_nsec = (long)(due % 1000000000u)};
            pthread_cond_timedwait(&in->cond, &s->mu, &t);
        } else if (n == 0) {
            pthread_cond_wait(&in->cond, &s->mu);
        }
    }
    pthread_mutex_unlock(&s->mu);
    return n;
}

static uint32_t take(nrd_scheduler *base, uint32_t slot, nrd_worker *w, nrd_request **batch,
                     uint32_t cap)
{
    nrd_sequence_batcher *s = (nrd_sequence_batcher *)base;
    inst *in = &s->insts[slot];
    return s->oldest ? nrd_batcher_take(in->inner, w, batch, cap) : take_direct(s, in, batch, cap);
}

static nrd_sequence_states *first_states(const nrd_scheduler *base)
{
    const nrd_sequence_batcher *s = (const nrd_sequence_batcher *)base;
    return nrd_sequence_plan_is_empty(s->plan) ? NULL : nrd_sequence_states_new(s->plan);
}

/* ---- making ---- */

static nrd_error *add_inst(nrd_sequence_batcher *s, nrd_instance *instance)
{
    inst *in = &s->insts[s->n_insts++];
    pthread_condattr_t attr;

    in->instance = instance;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&in->cond, &attr);
    pthread_condattr_destroy(&attr);
    in->slots = calloc(s->n_slots, sizeof *in->slots);
    if (!in->slots) {
        return nrd_error_no_memory();
    }
    for (uint32_t k = 0; k < s->n_slots; k++) {
        in->slots[k].inst = in;
    }
    if (s->oldest) {
        NRD_TRY(nrd_batcher_new_inner(&in->inner, s->model,
                                      s->model->config->sequence_batching->oldest));
    }
    s->n_free += s->n_slots;
    return NULL;
}

static void free_batcher(nrd_scheduler *base)
{
    nrd_sequence_batcher *s = (nrd_sequence_batcher *)base;

    for (size_t i = 0; s->buckets && i < s->n_buckets; i++) { /* sequences that never ended */
        while (s->buckets[i]) {
            forget_locked(s, s->buckets[i]);
        }
    }
    NRD_ASSERT(!s->first, "requests that wait keep their model");
    for (uint32_t i = 0; i < s->n_insts; i++) {
        for (uint32_t k = 0; s->insts[i].slots && k < s->n_slots; k++) {
            nrd_sequence_states_unref(s->insts[i].slots[k].states);
        }
        nrd_batcher_unref(s->insts[i].inner);
        pthread_cond_destroy(&s->insts[i].cond);
        free(s->insts[i].slots);
    }
    free(s->insts);
    free(s->buckets);
    nrd_sequence_controls_free(s->controls);
    nrd_sequence_plan_free(s->plan);
    pthread_mutex_destroy(&s->mu);
    free(s);
}

static const nrd_scheduler_ops ops = {
    .enqueue = enqueue,
    .take = take,
    .released = released,
    .sweep = sweep,
    .n_live = n_live,
    .drain = drain,
    .abandon = abandon,
    .stop = stop,
    .first_states = first_states,
    .free = free_batcher,
};

nrd_error *nrd_sequence_batcher_new(nrd_scheduler **out, nrd_model *m)
{
    const Inference__ModelSequenceBatching *sb = m->config->sequence_batching;
    nrd_sequence_batcher *s = calloc(1, sizeof *s);
    nrd_error *err;

    *out = NULL;
    if (!s) {
        return nrd_error_no_memory();
    }
    pthread_mutex_init(&s->mu, NULL);
    s->base.ops = &ops;
    s->base.by_instance = true;
    s->model = m;
    s->iterative = sb->iterative_sequence;
    s->oldest =
        sb->strategy_choice_case == INFERENCE__MODEL_SEQUENCE_BATCHING__STRATEGY_CHOICE_OLDEST;
    s->base.max_batch = m->config->max_batch_size > 0 ? (uint32_t)m->config->max_batch_size : 1;
    s->n_slots = s->base.max_batch;
    atomic_init(&s->next_id, 1);
    s->next_text_id = UINT64_C(1) << 30; /* fits INT32, and is not what clients count with */
    s->idle_ns = sb->max_sequence_idle_microseconds < UINT64_MAX / 2000u
                     ? sb->max_sequence_idle_microseconds * 1000u
                     : UINT64_MAX;
    if (s->oldest && sb->oldest->max_candidate_sequences > 0) {
        s->n_slots = (uint32_t)sb->oldest->max_candidate_sequences;
    } else if (!s->oldest && sb->direct) {
        s->delay_ns = sb->direct->max_queue_delay_microseconds < UINT64_MAX / 2000u
                          ? sb->direct->max_queue_delay_microseconds * 1000u
                          : UINT64_MAX / 2;
        s->min_utilization = sb->direct->minimum_slot_utilization;
    }
    s->n_buckets = 64;
    s->buckets = calloc(s->n_buckets, sizeof *s->buckets);
    s->controls = nrd_sequence_controls_new(m->config);
    s->insts = calloc(m->n_instances + 1u, sizeof *s->insts);
    err = s->buckets && s->controls && s->insts ? nrd_sequence_plan_new(&s->plan, m)
                                                : nrd_error_no_memory();
    for (uint32_t i = 0; i < m->n_instances && !err; i++) {
        if (!m->instances[i]->passive) {
            err = add_inst(s, m->instances[i]);
        }
    }
    if (err) {
        free_batcher(&s->base);
        return err;
    }
    *out = &s->base;
    return NULL;
}
