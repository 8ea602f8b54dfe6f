/* SPDX-License-Identifier: Apache-2.0
 * Slots of a sequence batcher: who gets one, and what runs in it next. */
#include "core/sched/sequence_internal.h"

#include "base/clock.h"

#include <stdlib.h>

nrd_sequence_slot *nrd_sequence_slot_find_locked(const nrd_sequence_batcher *s)
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

void nrd_sequence_slot_refill_locked(nrd_sequence_batcher *s, nrd_sequence_slot *slot,
                                     nrd_request_list *cancelled)
{
    slot->closing = false;
    if (slot->owner) {
        nrd_sequence_forget_locked(s, slot->owner);
    }
    while (s->first) {
        nrd_sequence_backlog *b = s->first;
        nrd_sequence_backlog_remove_locked(s, b);
        if (nrd_sequence_list_has_cancelled(&b->queue)) {
            nrd_sequence_list_move(cancelled, &b->queue);
            if (b->owner) {
                nrd_sequence_forget_locked(s, b->owner);
            }
            free(b);
            continue;
        }
        nrd_sequence_list_move(&slot->queue, &b->queue);
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

void nrd_sequence_slot_end_cancelled_locked(nrd_sequence_batcher *s, nrd_sequence_slot *slot,
                                            nrd_request_list *cancelled)
{
    while (slot->queue.head && nrd_request_is_cancelled(slot->queue.head)) {
        nrd_sequence_list_move(cancelled, &slot->queue);
        nrd_sequence_slot_refill_locked(s, slot, cancelled);
    }
}

void nrd_sequence_slot_add_tensors_locked(nrd_sequence_batcher *s, nrd_sequence_slot *slot,
                                          nrd_request *r)
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
static void forward_locked(nrd_sequence_batcher *s, nrd_sequence_slot *slot,
                           nrd_request_list *cancelled)
{
    while (!slot->in_flight && slot->taken) {
        nrd_sequence_slot_end_cancelled_locked(s, slot, cancelled);
        if (!slot->queue.head) {
            if (!slot->closing) {
                return;
            }
            nrd_sequence_slot_refill_locked(s, slot, cancelled);
            continue;
        }
        nrd_request *r = nrd_request_list_pop(&slot->queue);
        slot->closing = slot->closing || (r->flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_END) != 0;
        slot->in_flight = true;
        nrd_sequence_slot_add_tensors_locked(s, slot, r);
        nrd_batcher_enqueue_inner(slot->inst->inner, r);
    }
}

void nrd_sequence_slot_wake_locked(nrd_sequence_batcher *s, nrd_sequence_slot *slot,
                                   nrd_request_list *cancelled)
{
    if (s->oldest) {
        forward_locked(s, slot, cancelled);
        return;
    }
    while (slot->closing && !slot->queue.head) {
        nrd_sequence_slot_refill_locked(s, slot, cancelled);
    }
    if (slot->queue.head) {
        pthread_cond_signal(&slot->inst->cond);
    }
}
