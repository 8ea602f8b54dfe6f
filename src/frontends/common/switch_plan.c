/* SPDX-License-Identifier: Apache-2.0 */
#include "frontends/common/switch_plan.h"

/* A sum that stays at its end instead of starting anew. */
static uint64_t add(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static bool fits(uint64_t held, uint64_t want, uint64_t budget)
{
    return held <= budget && want <= budget - held;
}

static bool may_go(const nrd_switch_slot *s)
{
    return s->state == NRD_SWITCH_READY && !s->pinned && !s->is_victim;
}

/* Idle ones first: requests under way are a use that has not ended. */
static bool goes_before(const nrd_switch_slot *a, const nrd_switch_slot *b)
{
    const bool a_idle = a->n_leases == 0, b_idle = b->n_leases == 0;
    return a_idle != b_idle ? a_idle : a->used_ns < b->used_ns;
}

static nrd_switch_slot *next_victim(nrd_switch_slot *slots, size_t n, size_t wanted)
{
    nrd_switch_slot *best = NULL;
    for (size_t i = 0; i < n; i++) {
        if (i != wanted && may_go(&slots[i]) && (!best || goes_before(&slots[i], best))) {
            best = &slots[i];
        }
    }
    return best;
}

/* The one used last among the victims that could stay after all; NULL: none. */
static nrd_switch_slot *spared(nrd_switch_slot *slots, size_t n, uint64_t spare)
{
    nrd_switch_slot *best = NULL;
    for (size_t i = 0; i < n; i++) {
        nrd_switch_slot *s = &slots[i];
        if (s->is_victim && s->bytes <= spare && (!best || goes_before(best, s))) {
            best = s;
        }
    }
    return best;
}

nrd_switch_verdict nrd_switch_plan(nrd_switch_slot *slots, size_t n, size_t wanted, uint64_t budget,
                                   uint64_t *out_room)
{
    uint64_t held = 0, leaving = 0, pinned = 0;
    nrd_switch_slot *s = NULL;
    bool idle = true;

    for (size_t i = 0; i < n; i++) {
        const nrd_switch_slot *o = &slots[i];
        slots[i].is_victim = false;
        if (i != wanted && o->state != NRD_SWITCH_ABSENT) {
            held = add(held, o->bytes);
            leaving = add(leaving, o->state == NRD_SWITCH_LEAVING ? o->bytes : 0);
            pinned = add(pinned, o->pinned && o->state != NRD_SWITCH_LEAVING ? o->bytes : 0);
        }
    }
    const uint64_t want = slots[wanted].bytes;
    *out_room = pinned < budget ? budget - pinned : 0;
    if (!fits(pinned, want, budget)) {
        return NRD_SWITCH_NEVER;
    }
    if (fits(held, want, budget)) {
        return NRD_SWITCH_FITS;
    }
    uint64_t after = held - leaving;
    while (!fits(after, want, budget) && (s = next_victim(slots, n, wanted)) != NULL) {
        s->is_victim = true;
        after -= s->bytes;
    }
    if (!fits(after, want, budget)) { /* one that is being loaded stands in the way: it may go later */
        for (size_t i = 0; i < n; i++) {
            slots[i].is_victim = false;
        }
        return NRD_SWITCH_WAIT;
    }
    while ((s = spared(slots, n, budget - want - after)) != NULL) {
        s->is_victim = false;
        after += s->bytes;
    }
    for (size_t i = 0; i < n; i++) {
        idle = idle && !(slots[i].is_victim && slots[i].n_leases > 0);
    }
    return idle && leaving == 0 ? NRD_SWITCH_EVICT : NRD_SWITCH_WAIT;
}
