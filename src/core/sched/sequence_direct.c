/* SPDX-License-Identifier: Apache-2.0
 * The strategy direct of a sequence batcher: batches that hold the slots of an instance in their places. */
#include "core/sched/sequence_internal.h"

#include "base/clock.h"

#include <pthread.h>

typedef struct round_of_slots {
    nrd_request *like;   /* shapes of the batch, and of its null requests; NULL: nothing to run */
    uint32_t n_ready, n; /* n: slots up to the last one that has a request */
    uint64_t oldest_ns;
} round_of_slots;

static round_of_slots look_locked(nrd_sequence_batcher *s, nrd_sequence_inst *in,
                                  nrd_request_list *cancelled)
{
    round_of_slots r = {.oldest_ns = UINT64_MAX};

    for (uint32_t k = 0; k < s->n_slots; k++) {
        nrd_sequence_slot *slot = &in->slots[k];
        nrd_sequence_slot_end_cancelled_locked(s, slot, cancelled);
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

static uint32_t collect_locked(nrd_sequence_batcher *s, nrd_sequence_inst *in,
                               const round_of_slots *r, nrd_request **batch,
                               nrd_request_list *cancelled, nrd_request_list *failed)
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
            nrd_sequence_slot_add_tensors_locked(s, slot, batch[k]);
            shape = shape ? shape : batch[k];
            if (batch[k]->flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_END) {
                slot->closing = true;
            }
            while (slot->closing && !slot->queue.head) {
                nrd_sequence_slot_refill_locked(s, slot, cancelled);
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

uint32_t nrd_sequence_take_direct(nrd_sequence_batcher *s, nrd_sequence_inst *in,
                                  nrd_request **batch, uint32_t cap)
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
            nrd_sequence_list_fail_cancelled(&cancelled);
            nrd_sequence_list_fail(&failed, NRD_ERR_UNAVAILABLE, "out of memory", NRD_FAIL_OTHER);
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
