/* SPDX-License-Identifier: Apache-2.0
 * Between the inbox and the scheduler: requests whose adapters are not on the device yet are held back, in
 * the order in which they came, while others run.
 *
 * A request holds its adapter there from here until it is freed, so that no step meets one that is not. When
 * all room is held by others, requests whose adapters are there may go past the one that waits, but only so
 * many of them: then nobody new takes hold, those under way end, and there is room. */
#include "executor/internal.h"

enum { MAX_OVERTAKEN = 64 };

static void add(nrd_exec *x, nrd_exec_request_state *r)
{
    for (int32_t i = 0; i < r->n_seqs; i++) {
        r->seqs[i].req.id = r->id;
        nrd_sched_add(x->sched, &r->seqs[i]);
    }
    if (r->handover) {
        nrd_exec_begin_handed(x, r);
    }
}

/* The runner must know of larger ranks before the first step that has one. */
static nrd_error *tell_runner(nrd_exec *x)
{
    nrd_lora_bank bank = nrd_lora_cache_bank(x->adapters);
    if (bank.max_rank <= x->bank_rank) {
        return NULL;
    }
    NRD_TRY(nrd_runner_set_bank(x->runner, &bank));
    x->bank_rank = bank.max_rank;
    return NULL;
}

/* The other ranks hear before the first step with it what lies where. */
static nrd_error *tell_ranks(nrd_exec *x)
{
    const nrd_lora *l = NULL;
    int32_t slot;
    while (x->ranks && nrd_lora_cache_next_change(x->adapters, &slot, &l)) {
        nrd_exec_enter_device(x); /* others may not take it */
        NRD_TRY(nrd_exec_leave_device(x, nrd_ranks_place_adapter(x->ranks, slot, l)));
    }
    return NULL;
}

/* True: the request is the scheduler's, or over. */
static bool try_one(nrd_exec *x, nrd_exec_request_state *r, bool only_there)
{
    int32_t slot = -1;
    nrd_lora_hold h;
    nrd_error *err = NULL;

    if (r->adapter_held) {
        h = nrd_lora_cache_state(x->adapters, r->adapter);
    } else {
        h = nrd_lora_cache_hold(x->adapters, r->adapter, only_there, &slot);
        r->adapter_held = h != NRD_LORA_NO_ROOM;
        err = tell_ranks(x);
        for (int32_t i = 0; i < r->n_seqs && r->adapter_held; i++) {
            r->seqs[i].run.adapter = slot + 1;
        }
    }
    if (!err && (h == NRD_LORA_NO_ROOM || h == NRD_LORA_LOADING)) {
        return false;
    }
    if (!err) {
        err = h == NRD_LORA_FAILED
                  ? nrd_errorf(NRD_ERR_UNAVAILABLE, "the LoRA adapter could not be brought to the device")
                  : tell_runner(x);
    }
    if (err) {
        nrd_exec_fail_request(x, r, err);
        nrd_exec_request_free(r);
        return true;
    }
    add(x, r);
    return true;
}

/* Waiting for room, not for a copy that is under way. */
static bool waits_for_room(const nrd_exec_request_state *r)
{
    return !r->adapter_held;
}

void nrd_exec_admit(nrd_exec *x, nrd_exec_request_state *r)
{
    if (!r->adapter) {
        add(x, r);
        return;
    }
    nrd_exec_request_state *first = x->held_back;
    while (first && !waits_for_room(first)) {
        first = first->next;
    }
    if (first && first->n_overtaken >= MAX_OVERTAKEN) {
        /* in line */
    } else if (try_one(x, r, first != NULL)) {
        if (first) {
            first->n_overtaken++;
        }
        return;
    }
    r->next = NULL;
    *(x->held_back_tail ? &x->held_back_tail->next : &x->held_back) = r;
    x->held_back_tail = r;
}

void nrd_exec_admit_held_back(nrd_exec *x)
{
    nrd_exec_request_state *list = x->held_back, *first = NULL;

    x->held_back = x->held_back_tail = NULL;
    while (list) {
        nrd_exec_request_state *r = list;
        list = r->next;
        bool in_line = first && first->n_overtaken >= MAX_OVERTAKEN && waits_for_room(r);
        if (!in_line && try_one(x, r, first != NULL)) {
            if (first) {
                first->n_overtaken++;
            }
            continue;
        }
        first = first ? first : waits_for_room(r) ? r : NULL;
        r->next = NULL;
        *(x->held_back_tail ? &x->held_back_tail->next : &x->held_back) = r;
        x->held_back_tail = r;
    }
}

bool nrd_exec_is_held_back(const nrd_exec *x, const nrd_exec_request_state *r)
{
    const nrd_exec_request_state *at = r->adapter ? x->held_back : NULL;
    while (at && at != r) {
        at = at->next;
    }
    return at != NULL;
}

void nrd_exec_take_back(nrd_exec *x, nrd_exec_request_state *r)
{
    nrd_exec_request_state *prev = NULL, *at = x->held_back;
    while (at != r) {
        prev = at;
        at = at->next;
    }
    *(prev ? &prev->next : &x->held_back) = r->next;
    if (x->held_back_tail == r) {
        x->held_back_tail = prev;
    }
}
