/* SPDX-License-Identifier: Apache-2.0
 * The life of a sequence, the lists that it stands in, and the blocks that it holds or is promised.
 *
 * Life of a sequence: waiting -> running -> done -> idle, when no step in flight refers to it. A running
 * sequence without room is paused: it gives its blocks up, waits again, and computes its tokens anew
 * (`epoch` tells results of the time before). A plan takes first the sequences that generate, then pieces
 * of prompts that have begun, then starts waiting ones, as far as tokens, slots and blocks allow. Plan and
 * commit only compute on integers and allocate nothing; a second plan may be made before the first is
 * committed: n_pending and n_inflight count what is still on its way. */
#include "engine/scheduler_internal.h"

#include "base/mem.h"

#include <string.h>

int32_t nrd_sched_n_slots(const nrd_sched_limits *l)
{
    return l->max_batch_size * l->max_beam_width;
}

/* As many tokens of trees hold as steps under way have. */
static int32_t max_moves(const nrd_sched_limits *l)
{
    return l->window > 0 ? 0 : l->max_draft_rows * (l->n_micro > 1 ? l->n_micro : 1);
}

/* A step copies at most one block for each beam, asked for at the last commit or at a start. */
static int32_t max_copies(const nrd_sched_limits *l)
{
    return 2 * nrd_sched_n_slots(l);
}

nrd_error *nrd_sched_new(nrd_sched **out, const nrd_sched_limits *limits, nrd_kv *kv)
{
    nrd_error *err = NULL;
    nrd_sched *s = NULL;

    *out = NULL;
    if (limits->max_batch_size <= 0 || limits->max_beam_width <= 0 ||
        limits->max_beam_width > NRD_MAX_BEAM_WIDTH || limits->max_num_tokens < nrd_sched_n_slots(limits)) {
        return nrd_errorf(
            NRD_ERR_INVALID_ARG,
            "scheduler: max_num_tokens (%d) must be at least max_batch_size (%d) times "
            "max_beam_width (%d, at most %d)",
            limits->max_num_tokens, limits->max_batch_size, limits->max_beam_width,
            NRD_MAX_BEAM_WIDTH);
    }
    NRD_NEW_GOTO(s, 1, err, fail);
    s->n_steps = 1;
    s->n_flows = 1;
    s->lim = *limits;
    s->lim.max_draft_rows = limits->window > 0 ? 0 : limits->max_draft_rows;
    s->kv = kv;
    s->cap_copies = max_copies(limits);
    NRD_NEW_GOTO(s->free_slots, nrd_sched_n_slots(limits), err, fail);
    NRD_NEW_GOTO(s->held_refs, limits->max_batch_size, err, fail);
    NRD_TRY_GOTO(nrd_draft_plan_init(&s->drafts, limits->max_batch_size), err, fail);
    s->drafts.costs.recomputes = limits->recurrent;
    s->drafts.costs.filled_up = limits->filled_up;
    NRD_NEW_GOTO(s->late_copies, s->cap_copies, err, fail);
    s->cap_moves = max_moves(limits);
    NRD_NEW_GOTO(s->late_moves, s->cap_moves + 1, err, fail);
    for (int32_t i = nrd_sched_n_slots(limits) - 1; i >= 0; i--) {
        s->free_slots[s->n_free_slots++] = i;
    }
    *out = s;
    return NULL;

fail:
    nrd_sched_free(s);
    return err;
}

void nrd_sched_free(nrd_sched *s)
{
    if (!s) {
        return;
    }
    free(s->free_slots);
    free(s->held_refs);
    nrd_draft_plan_fini(&s->drafts);
    free(s->late_copies);
    free(s->late_moves);
    free(s);
}

void nrd_sched_set_tap(nrd_sched *s, const nrd_sched_tap *tap)
{
    s->tap = tap;
}

nrd_error *nrd_plan_init(nrd_plan *p, const nrd_sched_limits *limits, const nrd_kv *kv)
{
    nrd_error *err = NULL;
    *p = (nrd_plan){.cap_entries = nrd_sched_n_slots(limits),
                    .cap_copies = max_copies(limits) + nrd_kv_max_moves(kv)};
    NRD_NEW_GOTO(p->entries, p->cap_entries, err, fail);
    NRD_NEW_GOTO(p->copies, p->cap_copies, err, fail);
    p->cap_moves = max_moves(limits);
    NRD_NEW_GOTO(p->moves, p->cap_moves + 1, err, fail);
    return NULL;

fail:
    nrd_plan_fini(p);
    return err;
}

void nrd_plan_fini(nrd_plan *p)
{
    free(p->entries);
    free(p->copies);
    free(p->moves);
    *p = (nrd_plan){0};
}

/* ---- lists ---- */

void nrd_sched_run_insert(nrd_sched *s, nrd_seq *q)
{
    nrd_seq *after = s->run_tail;
    while (after && nrd_sched_goes_before(q, after)) {
        after = after->sched.run_prev;
    }
    q->sched.run_prev = after;
    q->sched.run_next = after ? after->sched.run_next : s->run_head;
    *(q->sched.run_prev ? &q->sched.run_prev->sched.run_next : &s->run_head) = q;
    *(q->sched.run_next ? &q->sched.run_next->sched.run_prev : &s->run_tail) = q;
    s->n_running++;
    s->n_needs_host += q->dec.needs_host;
    s->n_drafting += q->spec.proposer != NULL;
}

static void run_remove(nrd_sched *s, nrd_seq *q)
{
    *(q->sched.run_prev ? &q->sched.run_prev->sched.run_next : &s->run_head) = q->sched.run_next;
    *(q->sched.run_next ? &q->sched.run_next->sched.run_prev : &s->run_tail) = q->sched.run_prev;
    q->sched.run_prev = q->sched.run_next = NULL;
    s->n_running--;
    s->n_needs_host -= q->dec.needs_host;
    s->n_drafting -= q->spec.proposer != NULL;
}

static void wait_insert(nrd_sched *s, nrd_seq *q)
{
    nrd_seq *after = s->wait_tail;
    while (after && nrd_sched_goes_before(q, after)) {
        after = after->sched.wait_prev;
    }
    q->sched.wait_prev = after;
    q->sched.wait_next = after ? after->sched.wait_next : s->wait_head;
    *(q->sched.wait_prev ? &q->sched.wait_prev->sched.wait_next : &s->wait_head) = q;
    *(q->sched.wait_next ? &q->sched.wait_next->sched.wait_prev : &s->wait_tail) = q;

    after = s->age_tail;
    while (after && q->sched.arrival < after->sched.arrival) {
        after = after->sched.age_prev;
    }
    q->sched.age_prev = after;
    q->sched.age_next = after ? after->sched.age_next : s->age_head;
    *(q->sched.age_prev ? &q->sched.age_prev->sched.age_next : &s->age_head) = q;
    *(q->sched.age_next ? &q->sched.age_next->sched.age_prev : &s->age_tail) = q;
    nrd_sched_flow_wait(s, q);
    q->sched.state = NRD_SEQ_WAITING;
    s->n_waiting++;
}

void nrd_sched_wait_remove(nrd_sched *s, nrd_seq *q)
{
    *(q->sched.wait_prev ? &q->sched.wait_prev->sched.wait_next : &s->wait_head) =
        q->sched.wait_next;
    *(q->sched.wait_next ? &q->sched.wait_next->sched.wait_prev : &s->wait_tail) =
        q->sched.wait_prev;
    *(q->sched.age_prev ? &q->sched.age_prev->sched.age_next : &s->age_head) = q->sched.age_next;
    *(q->sched.age_next ? &q->sched.age_next->sched.age_prev : &s->age_tail) = q->sched.age_prev;
    q->sched.wait_prev = q->sched.wait_next = q->sched.age_prev = q->sched.age_next = NULL;
    nrd_sched_flow_remove(s, q);
    s->n_waiting--;
    s->n_paused_now -= q->sched.n_paused > 0;
}

/* ---- blocks ---- */

/* Tokens whose KV may ever be needed: the last chosen token is never fed back. */
static int32_t max_kv_tokens(int32_t n_prompt, int32_t max_total)
{
    return max_total > n_prompt ? max_total - 1 : n_prompt;
}

int32_t nrd_sched_worst_blocks(const nrd_sched_limits *l, int32_t bt, int32_t n_prompt,
                               int32_t max_total, int32_t width)
{
    int32_t all = nrd_sched_ceil_div(max_kv_tokens(n_prompt, max_total), bt);
    if (width == 1) {
        if (l->window > 0 && !l->max_utilization) { /* a pause computes all of it again at once */
            /* All blocks of a prompt are taken at its start; behind it only the window stays. */
            int32_t prompt = nrd_sched_ceil_div(n_prompt, bt);
            int32_t live = nrd_sched_ceil_div(l->window, bt) + 2 + nrd_sched_ceil_div(l->n_sink, bt);
            int32_t peak = prompt + 1 > live ? prompt + 1 : live;
            return peak < all ? peak : all;
        }
        return all;
    }
    /* Whole prompt blocks are shared; each beam has its own rest, and one block more while
     * hypotheses change places. */
    int32_t shared = n_prompt / bt;
    return shared + width * (all - shared) + width;
}

/* Distinct blocks that a sequence holds. Beams share only blocks of equal index. */
static int32_t held_blocks(const nrd_seq *q)
{
    int32_t held = 0, n_tables = q->sched.beams_forked ? q->req.width : 1;
    for (int32_t b = 0; b < n_tables; b++) {
        const nrd_kv_table *t = &q->sched.tables[b];
        if (n_tables == 1) {
            for (int32_t i = 0; i < t->n_dropped; i++) {
                held -= t->blocks[i] < 0;
            }
            held += t->n_blocks;
            break;
        }
        for (int32_t i = 0; i < t->n_blocks; i++) {
            bool seen = t->blocks[i] < 0;
            for (int32_t o = 0; o < b && !seen; o++) {
                seen =
                    i < q->sched.tables[o].n_blocks && q->sched.tables[o].blocks[i] == t->blocks[i];
            }
            held += !seen;
        }
    }
    return held;
}

bool nrd_sched_is_reserving(const nrd_sched *s, const nrd_seq *q)
{
    return !s->lim.max_utilization || q->req.width > 1;
}

/* Sets what is still promised to a sequence from what it holds now. */
void nrd_sched_update_reserve(nrd_sched *s, nrd_seq *q)
{
    int32_t want = 0;
    if (q->sched.state == NRD_SEQ_RUNNING && nrd_sched_is_reserving(s, q)) {
        int32_t bt = nrd_kv_block_tokens(s->kv);
        want =
            nrd_sched_worst_blocks(&s->lim, bt, q->req.n_prompt, q->req.max_total, q->req.width) -
            held_blocks(q);
        if (q->req.width == 1) {
            /* Never more than the rest of its way needs. */
            int32_t rest = nrd_kv_n_missing(s->kv, &q->sched.tables[0],
                                            max_kv_tokens(q->req.n_prompt, q->req.max_total));
            want = rest < want ? rest : want;
        }
        want = want > 0 ? want : 0;
    }
    s->n_reserved += want - q->sched.n_reserved;
    q->sched.n_reserved = want;
}

/* Copies into blocks that are given up must not hit their next owner. */
static void forget_copies(nrd_sched *s, const nrd_kv_table *t)
{
    for (int32_t i = 0; i < s->n_late_copies; i++) {
        for (int32_t k = 0; k < t->n_blocks; k++) {
            if (s->late_copies[i][1] == t->blocks[k]) {
                s->n_late_copies--;
                memmove(s->late_copies + i, s->late_copies + i + 1,
                        (size_t)(s->n_late_copies - i) * sizeof *s->late_copies);
                i--;
                break;
            }
        }
    }
}

static void give_up_blocks(nrd_sched *s, nrd_seq *q)
{
    int32_t n_tables = q->sched.beams_forked ? q->req.width : 1;
    for (int32_t b = 0; b < n_tables && q->req.width > 1; b++) {
        forget_copies(s, &q->sched.tables[b]);
    }
    for (int32_t b = 0; b < n_tables; b++) {
        nrd_kv_release(s->kv, &q->sched.tables[b]);
    }
    for (int32_t b = 0; b < q->req.width; b++) {
        s->free_slots[s->n_free_slots++] = q->sched.slots[b];
        q->sched.slots[b] = -1;
    }
    q->sched.n_planned = q->sched.n_computed = q->sched.n_again = 0;
    q->sched.has_counts = false;
    q->sched.epoch++;
}

void nrd_sched_pause(nrd_sched *s, nrd_plan *p, nrd_seq *q)
{
    run_remove(s, q);
    give_up_blocks(s, q);
    q->sched.n_paused++;
    q->sched.n_skipped = 0;
    s->n_paused_now++;
    s->n_pauses++;
    p->n_paused++;
    wait_insert(s, q);
    nrd_sched_update_reserve(s, q);
}

void nrd_sched_end_seq(nrd_sched *s, nrd_seq *q)
{
    if (q->sched.state == NRD_SEQ_DONE) {
        return;
    }
    if (q->sched.state != NRD_SEQ_NEW) {
        nrd_sched_flow_leave(s, q);
    }
    if (q->sched.state == NRD_SEQ_RUNNING) {
        run_remove(s, q);
        give_up_blocks(s, q);
    } else if (q->sched.state == NRD_SEQ_WAITING) {
        nrd_sched_wait_remove(s, q);
    }
    q->sched.state = NRD_SEQ_DONE;
    nrd_sched_update_reserve(s, q);
    q->sched.run_next = s->idle_head;
    s->idle_head = q;
}

void nrd_sched_end(nrd_sched *s, nrd_seq *q)
{
    if (s->tap && s->tap->ended && q->sched.state != NRD_SEQ_DONE) {
        s->tap->ended(s->tap->user, q);
    }
    nrd_sched_end_seq(s, q);
}

void nrd_sched_forget(nrd_sched *s, nrd_plan *p)
{
    if (s->tap && s->tap->forgotten && p->n_entries > 0) {
        s->tap->forgotten(s->tap->user);
    }
    for (int32_t i = 0; i < p->n_entries; i++) {
        p->entries[i].seq->sched.n_inflight = 0;
        if (p->entries[i].state_save >= 0) {
            nrd_states_give_back(nrd_kv_states(s->kv), p->entries[i].state_save);
        }
    }
}

nrd_seq *nrd_sched_take_idle(nrd_sched *s)
{
    for (nrd_seq **at = &s->idle_head; *at; at = &(*at)->sched.run_next) {
        nrd_seq *q = *at;
        if (q->sched.n_inflight == 0) {
            *at = q->sched.run_next;
            q->sched.run_next = NULL;
            return q;
        }
    }
    return NULL;
}

void nrd_sched_add(nrd_sched *s, nrd_seq *q)
{
    NRD_ASSERT(q->sched.state == NRD_SEQ_NEW && q->req.width <= s->lim.max_beam_width &&
                   q->req.n_prompt > 0 && q->req.n_prompt <= q->req.max_total,
               "the executor has checked the request");
    q->sched.arrival = ++s->n_arrived;
    for (int32_t b = 0; b < q->req.width; b++) {
        q->sched.slots[b] = -1;
    }
    nrd_sched_flow_join(s, q);
    wait_insert(s, q);
    if (s->tap && s->tap->added) {
        s->tap->added(s->tap->user, q);
    }
}

/* ---- looking ---- */

bool nrd_sched_is_empty(const nrd_sched *s)
{
    return !s->run_head && !s->wait_head && !s->idle_head;
}

void nrd_sched_hear_cost(nrd_sched *s, const nrd_plan *p, uint64_t device_ns, uint64_t guess_ns, bool is_late)
{
    if (p->n_context == 0) {
        (p->n_draft > 0 ? nrd_costs_hear_drafted : is_late ? nrd_costs_hear_late : nrd_costs_hear)(&s->drafts.costs, p->n_tokens, device_ns);
        if (s->n_drafting > 0 && s->n_needs_host == 0) { /* else drafts are not why a step is late */
            nrd_costs_settle(&s->drafts.costs, p->n_entries, s->n_held, device_ns + guess_ns);
        }
    }
}

void nrd_sched_hear_recorded(nrd_sched *s, const nrd_plan *p, uint64_t ns)
{
    if (p->n_context == 0 && p->n_draft > 0) {
        nrd_costs_hear_recorded(&s->drafts.costs, p->n_entries, ns);
    }
}

const nrd_step_costs *nrd_sched_costs(const nrd_sched *s)
{
    return &s->drafts.costs;
}

bool nrd_sched_may_overlap(const nrd_sched *s)
{
    return s->n_needs_host == 0 && !s->has_draft && (s->n_drafting == 0 || s->drafts.costs.rests);
}

void nrd_sched_get_stats(const nrd_sched *s, nrd_sched_stats *out)
{
    *out = (nrd_sched_stats){
        .n_waiting = s->n_waiting,
        .n_running = s->n_running,
        .n_paused_now = s->n_paused_now,
        .n_steps = s->n_steps,
        .n_pauses = s->n_pauses,
        .n_accepted = s->n_accepted,
    };
}

nrd_seq *nrd_sched_first_running(const nrd_sched *s)
{
    return s->run_head;
}

nrd_seq *nrd_sched_first_waiting(const nrd_sched *s)
{
    return s->wait_head;
}

void nrd_sched_check(const nrd_sched *s)
{
    int32_t n_run = 0, n_wait = 0, n_age = 0, reserved = 0, slots = 0;
    for (const nrd_seq *q = s->run_head; q; q = q->sched.run_next) {
        NRD_ASSERT(q->sched.state == NRD_SEQ_RUNNING, "running sequences are in the running list");
        NRD_ASSERT(!q->sched.run_next || nrd_sched_goes_before(q, q->sched.run_next), "sorted");
        NRD_ASSERT(q->sched.n_computed <= q->sched.n_planned &&
                       q->sched.n_planned <= q->dec.n_known + q->sched.n_pending,
                   "nothing is computed before it is known");
        reserved += q->sched.n_reserved;
        slots += q->req.width;
        n_run++;
    }
    for (const nrd_seq *q = s->wait_head; q; q = q->sched.wait_next) {
        NRD_ASSERT(q->sched.state == NRD_SEQ_WAITING && q->sched.n_planned == 0 &&
                       q->sched.n_reserved == 0,
                   "waiting sequences hold nothing");
        n_wait++;
    }
    for (const nrd_seq *q = s->age_head; q; q = q->sched.age_next) {
        NRD_ASSERT(!q->sched.age_next || q->sched.arrival < q->sched.age_next->sched.arrival,
                   "sorted");
        n_age++;
    }
    NRD_ASSERT(n_run == s->n_running && n_wait == s->n_waiting && n_age == n_wait, "counts agree");
    nrd_sched_flow_check(s);
    NRD_ASSERT(reserved == s->n_reserved, "promises agree");
    NRD_ASSERT(slots + s->n_free_slots == nrd_sched_n_slots(&s->lim), "every slot is accounted for");
    NRD_ASSERT(s->n_reserved <= nrd_kv_n_available(s->kv), "promised blocks are there");
}
