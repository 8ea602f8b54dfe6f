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
 * An iterative sequence is a single request that its backend gives back to be run again. */
#include "core/sched/sequence_batcher.h"

#include "core/instance_internal.h"
#include "core/model_metrics.h"
#include "core/sched/sequence_internal.h"
#include "core/trace.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

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
static nrd_error *place_locked(nrd_sequence_batcher *s, const nrd_request *r, nrd_sequence **out)
{
    const bool start = (r->flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_START) != 0;
    nrd_sequence *q = nrd_sequence_find_locked(s, r);

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
        nrd_sequence_slot *slot = nrd_sequence_slot_find_locked(s);
        q = nrd_sequence_begin_locked(s, r);
        if (!q) {
            return nrd_error_no_memory();
        }
        if (slot) {
            q->slot = slot;
            slot->owner = q;
            slot->taken = true;
            s->n_free--;
        } else {
            q->waiting = nrd_sequence_backlog_add_locked(s);
            if (!q->waiting) {
                nrd_sequence_forget_locked(s, q);
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
    nrd_sequence *q = NULL;
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
            nrd_sequence_forget_locked(s, q);
        }
        if (slot) {
            slot->closing = slot->closing || s->abandoned;
            nrd_sequence_slot_wake_locked(s, slot, &cancelled);
        }
    }
    pthread_mutex_unlock(&s->mu);
    nrd_sequence_list_fail_cancelled(&cancelled);
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
    if (slot && s->iterative && !again && slot->owner && nrd_sequence_is_of(slot->owner, r)) {
        nrd_sequence_forget_locked(s, slot->owner);
        slot->closing = true;
    }
    if (slot) {
        nrd_sequence_slot_wake_locked(s, slot, &cancelled);
    }
    pthread_mutex_unlock(&s->mu);
    nrd_sequence_list_fail_cancelled(&cancelled);
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
        for (nrd_sequence *q = s->buckets[i], *next; q; q = next) {
            next = q->next;
            if (!q->slot || now - q->last_ns < s->idle_ns || now < q->last_ns) {
                continue;
            }
            nrd_sequence_slot *slot = q->slot;
            nrd_sequence_forget_locked(s, q);
            slot->closing = true;
            nrd_sequence_slot_wake_locked(s, slot, cancelled);
            next = s->buckets[i]; /* a slot that was refilled changes the bucket: look again */
        }
    }
}

static void expire_backlog_locked(nrd_sequence_batcher *s, uint64_t now,
                                  nrd_request_list *cancelled, nrd_request_list *expired)
{
    for (nrd_sequence_backlog *b = s->first, *next; b; b = next) {
        const bool is_late = now >= b->deadline_ns;
        next = b->next;
        if (!is_late && !nrd_sequence_list_has_cancelled(&b->queue)) {
            continue;
        }
        nrd_sequence_backlog_remove_locked(s, b);
        nrd_sequence_list_move(is_late ? expired : cancelled, &b->queue);
        if (b->owner) {
            nrd_sequence_forget_locked(s, b->owner);
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
                nrd_sequence_slot_end_cancelled_locked(s, slot, &cancelled);
                nrd_sequence_slot_wake_locked(s, slot, &cancelled);
            }
        }
    }
    pthread_mutex_unlock(&s->mu);
    nrd_sequence_list_fail_cancelled(&cancelled);
    nrd_sequence_list_fail(&expired, NRD_ERR_UNAVAILABLE,
                           "timeout of the corresponding sequence has been expired",
                           NRD_FAIL_REJECTED);
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
            nrd_sequence_forget_locked(s, s->buckets[i]);
            if (slot) {
                slot->closing = true;
                nrd_sequence_slot_wake_locked(s, slot, &cancelled);
            }
        }
    }
    pthread_mutex_unlock(&s->mu);
    nrd_sequence_list_fail_cancelled(&cancelled);
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

static uint32_t take(nrd_scheduler *base, uint32_t slot, nrd_worker *w, nrd_request **batch,
                     uint32_t cap)
{
    nrd_sequence_batcher *s = (nrd_sequence_batcher *)base;
    nrd_sequence_inst *in = &s->insts[slot];
    return s->oldest ? nrd_batcher_take(in->inner, w, batch, cap)
                     : nrd_sequence_take_direct(s, in, batch, cap);
}

static nrd_sequence_states *first_states(const nrd_scheduler *base)
{
    const nrd_sequence_batcher *s = (const nrd_sequence_batcher *)base;
    return nrd_sequence_plan_is_empty(s->plan) ? NULL : nrd_sequence_states_new(s->plan);
}

/* ---- making ---- */

static nrd_error *add_inst(nrd_sequence_batcher *s, nrd_instance *instance)
{
    nrd_sequence_inst *in = &s->insts[s->n_insts++];
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
            nrd_sequence_forget_locked(s, s->buckets[i]);
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
