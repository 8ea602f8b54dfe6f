/* SPDX-License-Identifier: Apache-2.0
 * What runs in the next step, and what follows from its result.
 *
 * Life of a sequence: waiting -> running -> done -> idle, when no step in flight refers to it. A running
 * sequence without room is paused: it gives its blocks up, waits again, and computes its tokens anew
 * (`epoch` tells results of the time before). A plan takes first the sequences that generate, then pieces
 * of prompts that have begun, then starts waiting ones, as far as tokens, slots and blocks allow. Plan and
 * commit only compute on integers and allocate nothing; a second plan may be made before the first is
 * committed: n_pending and n_inflight count what is still on its way. */
#include "engine/scheduler.h"

#include "base/mem.h"
#include "engine/decode/beam.h"
#include "engine/decode/decode.h"
#include "engine/speculate/plan.h"
#include "engine/speculate/proposer.h"
#include "engine/speculate/verify.h"

#include <string.h>

struct nrd_sched {
    const nrd_sched_tap *tap; /* NULL: nobody listens */
    nrd_sched_limits lim;
    nrd_kv *kv;
    nrd_seq *run_head, *run_tail;   /* by priority, then arrival */
    nrd_seq *wait_head, *wait_tail; /* by priority, then arrival */
    nrd_seq *age_head, *age_tail;   /* by arrival */
    nrd_seq *idle_head;             /* done; linked by run_next; may still be in flight */
    int32_t *free_slots;
    int32_t n_free_slots;
    nrd_draft_plan drafts;
    int32_t *held_refs; /* blocks held until the plan is complete */
    int32_t n_held_refs;
    int32_t (*late_copies)[2]; /* asked for at commit (beams), go into the next plan */
    int32_t n_late_copies, cap_copies;
    int32_t (*late_moves)[2]; /* likewise, of tokens (trees) */
    int32_t n_late_moves, cap_moves;
    bool prompts_wait; /* for a step without trees */
    nrd_draft_accept accepted; /* scratch of a commit */
    uint64_t committing;       /* the step that is, */
    int32_t commit_at;         /* and the entry's first token among the step's */
    int32_t n_planned_moves; /* of the cache's pending ones, in the plan being made */
    int32_t n_reserved; /* sum over sequences */
    int32_t n_running, n_waiting, n_paused_now, n_needs_host;
    uint64_t n_arrived, n_started, n_steps, n_pauses, n_accepted;
};

static int32_t n_slots(const nrd_sched_limits *l)
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
    return 2 * n_slots(l);
}

nrd_error *nrd_sched_new(nrd_sched **out, const nrd_sched_limits *limits, nrd_kv *kv)
{
    nrd_error *err = NULL;
    nrd_sched *s = NULL;

    *out = NULL;
    if (limits->max_batch_size <= 0 || limits->max_beam_width <= 0 ||
        limits->max_beam_width > NRD_MAX_BEAM_WIDTH || limits->max_num_tokens < n_slots(limits)) {
        return nrd_errorf(
            NRD_ERR_INVALID_ARG,
            "scheduler: max_num_tokens (%d) must be at least max_batch_size (%d) times "
            "max_beam_width (%d, at most %d)",
            limits->max_num_tokens, limits->max_batch_size, limits->max_beam_width,
            NRD_MAX_BEAM_WIDTH);
    }
    NRD_NEW_GOTO(s, 1, err, fail);
    s->n_steps = 1;
    s->lim = *limits;
    s->lim.max_draft_rows = limits->window > 0 || limits->recurrent ? 0 : limits->max_draft_rows;
    s->kv = kv;
    s->cap_copies = max_copies(limits);
    NRD_NEW_GOTO(s->free_slots, n_slots(limits), err, fail);
    NRD_NEW_GOTO(s->held_refs, limits->max_batch_size, err, fail);
    NRD_TRY_GOTO(nrd_draft_plan_init(&s->drafts, limits->max_batch_size), err, fail);
    NRD_NEW_GOTO(s->late_copies, s->cap_copies, err, fail);
    s->cap_moves = max_moves(limits);
    NRD_NEW_GOTO(s->late_moves, s->cap_moves + 1, err, fail);
    for (int32_t i = n_slots(limits) - 1; i >= 0; i--) {
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
    *p = (nrd_plan){.cap_entries = n_slots(limits),
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

static bool goes_before(const nrd_seq *a, const nrd_seq *b)
{
    return a->req.priority > b->req.priority ||
           (a->req.priority == b->req.priority && a->sched.arrival < b->sched.arrival);
}

static void run_insert(nrd_sched *s, nrd_seq *q)
{
    nrd_seq *after = s->run_tail;
    while (after && goes_before(q, after)) {
        after = after->sched.run_prev;
    }
    q->sched.run_prev = after;
    q->sched.run_next = after ? after->sched.run_next : s->run_head;
    *(q->sched.run_prev ? &q->sched.run_prev->sched.run_next : &s->run_head) = q;
    *(q->sched.run_next ? &q->sched.run_next->sched.run_prev : &s->run_tail) = q;
    s->n_running++;
    s->n_needs_host += q->dec.needs_host;
}

static void run_remove(nrd_sched *s, nrd_seq *q)
{
    *(q->sched.run_prev ? &q->sched.run_prev->sched.run_next : &s->run_head) = q->sched.run_next;
    *(q->sched.run_next ? &q->sched.run_next->sched.run_prev : &s->run_tail) = q->sched.run_prev;
    q->sched.run_prev = q->sched.run_next = NULL;
    s->n_running--;
    s->n_needs_host -= q->dec.needs_host;
}

static void wait_insert(nrd_sched *s, nrd_seq *q)
{
    nrd_seq *after = s->wait_tail;
    while (after && goes_before(q, after)) {
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
    q->sched.state = NRD_SEQ_WAITING;
    s->n_waiting++;
}

static void wait_remove(nrd_sched *s, nrd_seq *q)
{
    *(q->sched.wait_prev ? &q->sched.wait_prev->sched.wait_next : &s->wait_head) =
        q->sched.wait_next;
    *(q->sched.wait_next ? &q->sched.wait_next->sched.wait_prev : &s->wait_tail) =
        q->sched.wait_prev;
    *(q->sched.age_prev ? &q->sched.age_prev->sched.age_next : &s->age_head) = q->sched.age_next;
    *(q->sched.age_next ? &q->sched.age_next->sched.age_prev : &s->age_tail) = q->sched.age_prev;
    q->sched.wait_prev = q->sched.wait_next = q->sched.age_prev = q->sched.age_next = NULL;
    s->n_waiting--;
    s->n_paused_now -= q->sched.n_paused > 0;
}

/* ---- blocks ---- */

static int32_t ceil_div(int32_t a, int32_t b)
{
    return (a + b - 1) / b;
}

/* Tokens whose KV may ever be needed: the last chosen token is never fed back. */
static int32_t max_kv_tokens(int32_t n_prompt, int32_t max_total)
{
    return max_total > n_prompt ? max_total - 1 : n_prompt;
}

int32_t nrd_sched_worst_blocks(const nrd_sched_limits *l, int32_t bt, int32_t n_prompt,
                               int32_t max_total, int32_t width)
{
    int32_t all = ceil_div(max_kv_tokens(n_prompt, max_total), bt);
    if (width == 1) {
        if (l->window > 0 && !l->max_utilization) { /* a pause computes all of it again at once */
            /* All blocks of a prompt are taken at its start; behind it only the window stays. */
            int32_t prompt = ceil_div(n_prompt, bt);
            int32_t live = ceil_div(l->window, bt) + 2 + ceil_div(l->n_sink, bt);
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

static bool is_reserving(const nrd_sched *s, const nrd_seq *q)
{
    return !s->lim.max_utilization || q->req.width > 1;
}

/* Sets what is still promised to a sequence from what it holds now. */
static void update_reserve(nrd_sched *s, nrd_seq *q)
{
    int32_t want = 0;
    if (q->sched.state == NRD_SEQ_RUNNING && is_reserving(s, q)) {
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
    q->sched.n_planned = q->sched.n_computed = 0;
    q->sched.has_counts = false;
    q->sched.epoch++;
}

static void pause_seq(nrd_sched *s, nrd_plan *p, nrd_seq *q)
{
    run_remove(s, q);
    give_up_blocks(s, q);
    q->sched.n_paused++;
    q->sched.n_skipped = 0;
    s->n_paused_now++;
    s->n_pauses++;
    p->n_paused++;
    wait_insert(s, q);
    update_reserve(s, q);
}

static void end_seq(nrd_sched *s, nrd_seq *q)
{
    if (q->sched.state == NRD_SEQ_DONE) {
        return;
    }
    if (q->sched.state == NRD_SEQ_RUNNING) {
        run_remove(s, q);
        give_up_blocks(s, q);
    } else if (q->sched.state == NRD_SEQ_WAITING) {
        wait_remove(s, q);
    }
    q->sched.state = NRD_SEQ_DONE;
    update_reserve(s, q);
    q->sched.run_next = s->idle_head;
    s->idle_head = q;
}

void nrd_sched_end(nrd_sched *s, nrd_seq *q)
{
    if (s->tap && s->tap->ended && q->sched.state != NRD_SEQ_DONE) {
        s->tap->ended(s->tap->user, q);
    }
    end_seq(s, q);
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
    wait_insert(s, q);
    if (s->tap && s->tap->added) {
        s->tap->added(s->tap->user, q);
    }
}

/* ---- planning ---- */

/* Another thread makes masks: the only answer here that does not follow from what the scheduler was told. */
static bool is_held(const nrd_sched *s, const nrd_seq *q)
{
    if (s->tap && s->tap->held && q->sched.is_guided) {
        return s->tap->held(s->tap->user, q, nrd_decode_is_held(q));
    }
    return nrd_decode_is_held(q);
}

/* Tokens of a step, its drafts with them, so that every running sequence can have its token too. */
static int32_t draft_room(const nrd_sched *s)
{
    return s->lim.max_num_tokens - n_slots(&s->lim) + s->n_free_slots;
}

static void take_draft(nrd_sched *s, nrd_seq *q, int32_t k)
{
    nrd_draft_take(q, s->kv, nrd_kv_n_available(s->kv) - (s->n_reserved - q->sched.n_reserved), k);
    if (q->spec.n_draft > 0) {
        update_reserve(s, q);
    }
}

/* The draft of the entry being made, where it needs more than causal order. */
static const nrd_token_tree *tree_of(const nrd_seq *q)
{
    const nrd_token_tree *t = q->spec.n_draft > 0 ? q->spec.proposer->tree : NULL;
    return t && !nrd_tree_is_chain(t, q->spec.n_draft) ? t : NULL;
}

/* n: known tokens. */
static nrd_plan_entry *add_entry(nrd_sched *s, nrd_plan *p, nrd_seq *q, int32_t beam, int32_t n,
                                 bool is_context)
{
    (void)s;
    NRD_ASSERT(p->n_entries < p->cap_entries, "slots bound the entries");
    nrd_plan_entry *e = &p->entries[p->n_entries++];
    bool chooses =
        q->sched.n_planned + n == q->dec.n_known + q->sched.n_pending && !q->req.no_sample;
    *e = (nrd_plan_entry){
        .seq = q,
        .beam = beam,
        .slot = q->sched.slots[beam],
        .start = q->sched.n_planned,
        .n = n + q->spec.n_draft,
        .n_draft = q->spec.n_draft,
        .first_draft = p->n_draft,
        .tree = tree_of(q),
        .n_generated = q->dec.n_known + q->sched.n_pending - q->req.n_prompt,
        .row = chooses ? p->n_rows : -1,
        .epoch = q->sched.epoch,
        .state_load = -1,
        .state_save = -1,
        .from_slot = q->sched.n_planned >= q->dec.n_known,
        .init_counts = chooses && q->dec.keeps_counts && (!q->sched.has_counts || q->spec.n_draft > 0),
        .is_context = is_context,
    };
    if (chooses) {
        p->n_rows += 1 + q->spec.n_draft;
    }
    p->n_tokens += n + q->spec.n_draft;
    p->n_draft += q->spec.n_draft;
    p->has_trees |= e->tree != NULL;
    q->spec.n_proposed += q->spec.n_draft;
    q->spec.n_draft = 0;
    q->sched.n_inflight++;
    return e;
}

/* ---- snapshots of states ---- */

/* Whether sequences share what they compute. */
static bool shares(const nrd_sched *s)
{
    return s->lim.window == 0 && (!s->lim.recurrent || nrd_kv_states(s->kv));
}

/* A piece of a prompt [start, start + n), cut where its state is to be kept. */
static int32_t cut_at_stop(const nrd_seq *q, int32_t start, int32_t n)
{
    for (int i = 0; i < 2; i++) {
        const int32_t stop = q->sched.state_stops[i];
        n = stop > start && stop < start + n ? stop - start : n;
    }
    return n;
}

/* Where the state of a sequence that starts is to be kept; the match is what the cache has of it. */
static void set_stops(const nrd_sched *s, nrd_seq *q, const nrd_kv_match *m)
{
    const int32_t bt = nrd_kv_block_tokens(s->kv);
    const bool none = !nrd_kv_states(s->kv) || q->req.no_reuse || q->req.picture_rows > 0;
    q->sched.state_stops[0] = none ? 0 : (q->dec.n_known - 1) / bt * bt;
    q->sched.state_stops[1] = none ? 0 : m->n_matched * bt;
    q->sched.state_block = -1;
}

/* Has the state behind an entry kept, if it is worth that. */
static void take_state(const nrd_sched *s, nrd_plan_entry *e)
{
    const nrd_seq *q = e->seq;
    const int32_t end = e->start + e->n, *stops = q->sched.state_stops;
    nrd_states *states = nrd_kv_states(s->kv);

    if (!states || q->req.no_reuse || end % nrd_kv_block_tokens(s->kv) != 0) {
        return;
    }
    if (!e->is_context || end == stops[0] || end == stops[1]) {
        e->state_save = nrd_states_take(states);
    }
}

/* The step of an entry is done. Of what is generated only the newest state is kept, unless one was of use. */
static void keep_state(nrd_sched *s, nrd_seq *q, const nrd_plan_entry *e, bool same_cache)
{
    nrd_states *states = nrd_kv_states(s->kv);
    const nrd_kv_table *t = &q->sched.tables[0];

    if (e->state_save < 0) {
        return;
    }
    const int32_t i = (e->start + e->n) / nrd_kv_block_tokens(s->kv) - 1;
    if (!same_cache || i >= t->n_published) {
        nrd_states_give_back(states, e->state_save);
        return;
    }
    if (nrd_states_keep(states, e->state_save, t->blocks[i]) && !e->is_context) {
        if (q->sched.state_block >= 0) {
            nrd_states_drop_unused(states, q->sched.state_block);
        }
        q->sched.state_block = t->blocks[i];
    }
}

static void append_copy(nrd_plan *p, int32_t src, int32_t dst)
{
    NRD_ASSERT(p->n_copies < p->cap_copies, "at most one copy for each slot and step");
    p->copies[p->n_copies][0] = src;
    p->copies[p->n_copies][1] = dst;
    p->n_copies++;
}

/* The moves that the cache asked for since the last call: a block's content goes before another's
 * comes. */
static void add_moves(nrd_sched *s, nrd_plan *p)
{
    int32_t n;
    const int32_t(*moves)[2] = nrd_kv_moves(s->kv, &n);
    for (; s->n_planned_moves < n; s->n_planned_moves++) {
        append_copy(p, moves[s->n_planned_moves][0], moves[s->n_planned_moves][1]);
    }
}

static void add_copy(nrd_sched *s, nrd_plan *p, int32_t src, int32_t dst)
{
    add_moves(s, p);
    append_copy(p, src, dst);
}

/* Takes blocks for n more tokens of every beam, pausing others behind it if need be. False: the
 * sequence itself was paused. *out_next: who comes behind it afterwards. */
static bool make_room(nrd_sched *s, nrd_plan *p, nrd_seq *q, int32_t n, nrd_seq **out_next)
{
    int32_t n_tables = q->sched.beams_forked ? q->req.width : 1;
    for (;;) {
        int32_t missing = 0;
        for (int32_t b = 0; b < n_tables; b++) {
            missing += nrd_kv_n_missing(s->kv, &q->sched.tables[b], q->sched.n_planned + n);
        }
        if (missing <= nrd_kv_n_available(s->kv) - (s->n_reserved - q->sched.n_reserved)) {
            break;
        }
        nrd_seq *victim = s->run_tail;
        while (victim != q && is_reserving(s, victim)) {
            victim = victim->sched.run_prev;
        }
        NRD_ASSERT(victim != q || !is_reserving(s, q), "reserved blocks are there");
        *out_next = q->sched.run_next;
        pause_seq(s, p, victim);
        if (victim == q) {
            return false;
        }
    }
    for (int32_t b = 0; b < n_tables; b++) {
        int32_t before = q->sched.tables[b].n_blocks;
        bool ok = nrd_kv_extend(s->kv, &q->sched.tables[b], q->sched.n_planned + n);
        NRD_ASSERT(ok, "availability was checked");
        q->sched.n_new_blocks += q->sched.tables[b].n_blocks - before;
    }
    *out_next = q->sched.run_next;
    return true;
}

static void drop_window(nrd_sched *s, nrd_seq *q)
{
    if (s->lim.window > 0 && q->req.width == 1) {
        nrd_kv_drop_window(s->kv, &q->sched.tables[0], q->sched.n_planned + 1 - s->lim.window,
                           s->lim.n_sink);
    }
}

static bool is_decoding(const nrd_seq *q)
{
    return q->sched.n_planned >= q->req.n_prompt &&
           q->dec.n_known + q->sched.n_pending - q->sched.n_planned == 1;
}

/* Several known tokens behind the prompt are yet to be computed. More of them: it was paused. */
static bool is_jumping(const nrd_seq *q)
{
    int32_t n = q->dec.n_known - q->sched.n_planned;
    return q->req.may_jump && q->sched.n_pending == 0 && q->sched.n_planned >= q->req.n_prompt &&
           n > 1 && n <= NRD_MAX_JUMP + 1;
}

/* Of a running sequence in this step; 0: a prompt, or one that waits for its last token, or for which
 * that token is its last. */
static int32_t n_to_generate(const nrd_sched *s, const nrd_seq *q)
{
    if (is_held(s, q) || (s->lim.n_micro > 1 && q->sched.n_pending > 0)) {
        return 0;
    }
    if (is_jumping(q)) {
        int32_t n = q->dec.n_known - q->sched.n_planned, bt = nrd_kv_block_tokens(s->kv);
        /* With a window, what is promised behind a prompt holds no more than a block at a time. */
        return s->lim.window > 0 && n > bt ? bt : n;
    }
    if (!is_decoding(q) || (q->sched.n_pending > 0 && q->dec.needs_host) ||
        q->dec.n_known + q->sched.n_pending >= q->req.max_total) {
        return 0;
    }
    return 1;
}

static void plan_tokens(nrd_sched *s, nrd_plan *p, nrd_seq *q, int32_t n)
{
    int32_t n_beams = q->sched.beams_forked ? q->req.width : 1;
    bool chooses = false;
    for (int32_t b = 0; b < n_beams; b++) {
        nrd_plan_entry *e = add_entry(s, p, q, b, n, false);
        q->sched.has_counts |=
            e->init_counts && q->req.width == 1; /* beams change slots every step */
        chooses = e->row >= 0;
        take_state(s, e);
    }
    q->sched.n_planned += n;
    q->sched.n_pending += chooses;
    p->n_generation++;
}

/* How many of so many sequences one plan takes, where several run at once. */
static int32_t share_of(const nrd_sched *s, int32_t n)
{
    n = n < s->lim.max_batch_size ? n : s->lim.max_batch_size;
    return s->lim.n_micro > 1 ? ceil_div(n, s->lim.n_micro) : n;
}

/* In order, since who needs room takes it from those behind; entries of one token stand first. */
static void plan_decodes(nrd_sched *s, nrd_plan *p)
{
    int32_t n_jumped = 0, n_drafting = 0, n_left = share_of(s, s->n_running);
    for (nrd_seq *q = s->run_head, *next; q; q = next) {
        int32_t n = n_to_generate(s, q), room = s->lim.max_num_tokens - p->n_tokens - n_jumped;
        next = q->sched.run_next;
        q->sched.n_jump = 0;
        p->n_held += is_held(s, q);
        if (n == 0) {
            continue;
        }
        if (room < q->req.width || n_left == 0) {
            break;
        }
        n = n < room ? n : room;
        drop_window(s, q);
        if (!make_room(s, p, q, n, &next)) {
            continue; /* those behind it hold reserved blocks and go on */
        }
        update_reserve(s, q);
        n_left--;
        if (n == 1 && q->spec.proposer) {
            n_drafting++; /* planned below: a draft is for what the others leave */
            n_jumped++;
            q->sched.n_jump = 1;
        } else if (n == 1) {
            plan_tokens(s, p, q, 1);
        } else {
            q->sched.n_jump = n;
            n_jumped += n;
        }
    }
    if (n_drafting > 0) {
        nrd_draft_weigh(&s->drafts, s->run_head, p->n_tokens, s->lim.max_draft_rows - p->n_draft, draft_room(s),
                        !s->prompts_wait);
    }
    /* Those that turn out to have no draft have one token, and stand before the longer ones. */
    for (nrd_seq *q = s->run_head; q && n_drafting > 0; q = q->sched.run_next) {
        if (q->sched.n_jump == 1) {
            n_drafting--;
            take_draft(s, q, q->spec.n_draft);
            if (q->spec.n_draft == 0) {
                n_jumped--;
                q->sched.n_jump = 0;
                plan_tokens(s, p, q, 1);
            }
        }
    }
    for (nrd_seq *q = s->run_head; q && n_jumped > 0; q = q->sched.run_next) {
        if (q->sched.n_jump > 0) {
            n_jumped -= q->sched.n_jump;
            plan_tokens(s, p, q, q->sched.n_jump);
            q->sched.n_jump = 0;
        }
    }
}

/* Tokens of a prompt to run in this step; 0: none. */
static int32_t chunk_of(const nrd_sched *s, const nrd_plan *p, nrd_seq *q, int32_t n_done)
{
    int32_t room = s->lim.max_num_tokens - p->n_tokens, rest = q->dec.n_known - n_done;
    int32_t bt = nrd_kv_block_tokens(s->kv);
    const bool whole = q->req.picture_rows > 0;
    if (s->lim.chunked_context && !whole && s->lim.mixed_context_tokens > 0 && p->n_generation > 0) {
        int32_t mixed = s->lim.mixed_context_tokens - p->n_context_tokens;
        room = mixed < room ? mixed : room; /* who waits for a next token waits for this step */
    }
    if (rest <= room) {
        return rest;
    }
    if (room <= 0) {
        return 0;
    }
    /* Without chunked context a prompt runs whole, unless it never could (recomputed sequences grow
     * beyond the limit) or has been kept out by others for too long. */
    if (!s->lim.chunked_context && rest <= s->lim.max_num_tokens &&
        q->sched.n_skipped < NRD_SCHED_MAX_SKIPPED) {
        q->sched.n_skipped++;
        return 0;
    }
    int32_t aligned = (n_done + room) / bt * bt - n_done, n = aligned > 0 ? aligned : room;
    /* An encoder runs once, with a token of the decoder behind it. A prompt with pictures whose tokens see what follows
     * runs whole; the executor has seen to that it can. */
    const int32_t least = whole ? q->req.n_prompt - n_done : q->req.n_cross - n_done + 1;
    return n >= least ? n : room >= least ? room : 0;
}

static void plan_chunk(nrd_sched *s, nrd_plan *p, nrd_seq *q, int32_t n)
{
    const int32_t room = draft_room(s) - p->n_tokens - n, rows = s->lim.max_draft_rows - p->n_draft;
    take_draft(s, q, nrd_draft_behind_prompt(q, n, rows < room ? rows : room));
    nrd_plan_entry *e = add_entry(s, p, q, 0, n, true);
    take_state(s, e);
    q->sched.has_counts |= e->init_counts && q->req.width == 1;
    q->sched.n_planned += n;
    q->sched.n_pending += e->row >= 0;
    p->n_context++;
    p->n_context_tokens += n;
}

/* A piece of its prompt, or of what is computed again, may come next. */
static bool is_context(const nrd_sched *s, const nrd_seq *q)
{
    return q->sched.n_pending == 0 && !is_decoding(q) && !is_jumping(q) && q->sched.n_planned < q->dec.n_known &&
           !is_held(s, q);
}

static void plan_contexts(nrd_sched *s, nrd_plan *p)
{
    for (nrd_seq *q = s->run_head; q; q = q->sched.run_next) {
        if (!is_context(s, q)) {
            continue;
        }
        int32_t n = chunk_of(s, p, q, q->sched.n_planned);
        if (n == 0) {
            return;
        }
        plan_chunk(s, p, q, cut_at_stop(q, q->sched.n_planned, n));
    }
}

static bool waits_for_leader(const nrd_sched *s, const nrd_seq *q)
{
    const nrd_seq *l = q->req.leader;
    if (!l || s->lim.is_static || !shares(s) || l->sched.state == NRD_SEQ_DONE ||
        q->dec.n_known != q->req.n_prompt) {
        return false;
    }
    /* What started in this very plan may hold a block that a copy has yet to fill. */
    return l->sched.n_computed < l->req.n_prompt || l->sched.start_step == s->n_steps;
}

typedef struct group_count {
    uint64_t group; /* 0: not counted yet */
    int32_t n;      /* of it that run */
} group_count;

/* As many of its group run as may. Later ones find the prompt's blocks in the cache, if the first have gone. c keeps
 * the last count, since those of a group mostly wait behind each other. */
static bool waits_for_group(const nrd_sched *s, const nrd_seq *q, group_count *c)
{
    const uint64_t group = q->req.group;
    if (!group || s->lim.choices_at_once <= 0 || s->lim.is_static || q->req.no_reuse) {
        return false;
    }
    if (c->group != group) {
        *c = (group_count){.group = group};
        for (const nrd_seq *o = s->run_head; o; o = o->sched.run_next) {
            c->n += o->req.group == group;
        }
    }
    return c->n >= s->lim.choices_at_once;
}

/* Starts a waiting sequence. False: it does not fit now; nothing has changed. */
static bool try_start(nrd_sched *s, nrd_plan *p, nrd_seq *q)
{
    int32_t bt = nrd_kv_block_tokens(s->kv), available = nrd_kv_n_available(s->kv) - s->n_reserved;
    int32_t n_done = 0, have = 0, copy_src = -1, copy_dst = -1;
    const nrd_seq *l = q->req.leader;
    nrd_kv_match m = {.partial_block = -1, .state = -1};
    bool fork = l && l->sched.state == NRD_SEQ_RUNNING && l->sched.n_computed >= l->req.n_prompt &&
                l->sched.start_step != s->n_steps && l->sched.tables[0].n_dropped == 0 &&
                q->dec.n_known == q->req.n_prompt && q->req.n_prompt > 1 && !q->req.no_reuse &&
                s->lim.window == 0 && !s->lim.recurrent;

    if (q->req.width > s->n_free_slots) {
        return false;
    }
    if (fork) {
        n_done = q->req.n_prompt - 1;
        have = n_done / bt;
    } else if (!q->req.no_reuse && shares(s)) {
        nrd_kv_find(s->kv, &q->req.content, q->dec.n_known - 1, &m);
        n_done = m.n_blocks * bt + m.n_partial;
        have = m.n_blocks;
        available -= m.n_cached;
    }
    int32_t need = ceil_div(q->dec.n_known, bt);
    if (is_reserving(s, q)) {
        need = nrd_sched_worst_blocks(&s->lim, bt, q->req.n_prompt, q->req.max_total, q->req.width);
        int32_t now = ceil_div(q->dec.n_known, bt);
        need = now > need ? now : need;
    }
    need -= have - m.n_host;
    if (m.partial_block >= 0 && need > available - 1) {
        /* The copied block stays held until the step is enqueued: do without it. */
        n_done -= m.n_partial;
        m.partial_block = -1;
        m.n_partial = 0;
    }
    if (need > available - (m.partial_block >= 0)) {
        return false;
    }
    int32_t n = chunk_of(s, p, q, n_done);
    if (n == 0) {
        return false;
    }

    wait_remove(s, q);
    nrd_kv_table *t = &q->sched.tables[0];
    if (fork) {
        bool ok = nrd_kv_fork(s->kv, t, &l->sched.tables[0], n_done, &copy_src, &copy_dst);
        NRD_ASSERT(ok, "availability was checked");
    } else if (m.n_matched > 0 || m.partial_block >= 0) {
        nrd_kv_attach(s->kv, t, &q->req.content, &m);
    }
    q->sched.n_reused_blocks += have;
    bool ok = nrd_kv_extend(s->kv, t, q->dec.n_known);
    NRD_ASSERT(ok, "availability was checked");
    q->sched.n_new_blocks += t->n_blocks - have;
    if (m.partial_block >= 0) {
        copy_src = m.partial_block;
        copy_dst = t->blocks[m.n_blocks];
        s->held_refs[s->n_held_refs++] = m.partial_block;
    }
    if (copy_src >= 0) {
        add_copy(s, p, copy_src, copy_dst);
    }
    for (int32_t b = 0; b < q->req.width; b++) {
        q->sched.slots[b] = s->free_slots[--s->n_free_slots];
    }
    q->sched.state = NRD_SEQ_RUNNING;
    q->sched.start_step = s->n_steps;
    q->sched.n_planned = q->sched.n_computed = n_done;
    q->sched.n_skipped = 0;
    run_insert(s, q);
    update_reserve(s, q);
    set_stops(s, q, &m);
    plan_chunk(s, p, q, cut_at_stop(q, n_done, n));
    p->entries[p->n_entries - 1].state_load = m.state;
    s->n_started++;
    return true;
}

/* The next waiting sequence that may start. */
static nrd_seq *next_candidate(const nrd_sched *s, nrd_plan *p)
{
    bool by_age = (s->n_started + 1) % NRD_SCHED_AGING == 0;
    nrd_seq *q = by_age ? s->age_head : s->wait_head;
    group_count c = {0};
    while (q && (q->sched.n_inflight > 0 || waits_for_leader(s, q) || waits_for_group(s, q, &c) || is_held(s, q))) {
        p->n_held += is_held(s, q);
        q = by_age ? q->sched.age_next : q->sched.wait_next;
    }
    return q;
}

static void plan_starts(nrd_sched *s, nrd_plan *p)
{
    const int32_t share = share_of(s, s->n_running + s->n_waiting);
    while (s->n_running < s->lim.max_batch_size && p->n_tokens < s->lim.max_num_tokens &&
           p->n_context + p->n_generation < share) {
        nrd_seq *q = next_candidate(s, p);
        if (q && p->has_trees) {
            s->prompts_wait = true;
            return;
        }
        /* When the first in order does not fit, no later one may start before it, or long ones
         * would wait for ever. */
        if (!q || !try_start(s, p, q)) {
            return;
        }
    }
}

/* Prompts that have begun go before trees; those that would start waited for one step with trees at most. */
static bool any_context(const nrd_sched *s)
{
    for (const nrd_seq *q = s->run_head; q && s->lim.max_draft_rows > 0; q = q->sched.run_next) {
        if (is_context(s, q)) {
            return true;
        }
    }
    return false;
}

void nrd_sched_plan(nrd_sched *s, nrd_plan *p)
{
    bool was_empty = s->n_running == 0;
    s->prompts_wait = s->prompts_wait || any_context(s);
    p->step = s->n_steps;
    p->n_entries = p->n_copies = p->n_moves = p->n_tokens = p->n_rows = p->n_draft = 0;
    p->has_trees = false;
    p->n_context = p->n_generation = p->n_context_tokens = p->n_paused = p->n_held = 0;
    s->n_planned_moves = 0;
    for (int32_t i = 0; i < s->n_late_copies; i++) {
        add_copy(s, p, s->late_copies[i][0], s->late_copies[i][1]);
    }
    add_moves(s, p);
    plan_decodes(s, p);
    if (!p->has_trees) {
        s->prompts_wait = false;
        plan_contexts(s, p);
    }
    /* A paused sequence needs the blocks that others just gave up: no new one starts, unless the
     * step would be empty. */
    if ((p->n_paused == 0 || p->n_entries == 0) &&
        (!s->lim.is_static || was_empty || s->n_running == 0)) {
        plan_starts(s, p);
    }
    for (int32_t i = 0; i < s->n_held_refs; i++) {
        nrd_kv_unref(s->kv, s->held_refs[i]);
    }
    s->n_held_refs = 0;
    add_moves(s, p);
    if (p->n_entries > 0) {
        nrd_kv_moves_done(s->kv);
        s->n_late_copies = 0;
        p->n_moves = s->n_late_moves;
        if (p->n_moves > 0) {
            memcpy(p->moves, s->late_moves, (size_t)p->n_moves * sizeof *p->moves);
        }
        s->n_late_moves = 0;
        s->n_steps++;
    }
    if (s->tap && s->tap->planned) {
        s->tap->planned(s->tap->user, p);
    }
}

/* ---- committing ---- */

static void commit_beams(nrd_sched *s, nrd_seq *q, const nrd_step_result *r, int32_t row,
                         nrd_sched_event *ev)
{
    ev->n_new = 1;
    ev->finish = nrd_beams_step(q, r, row);
    if (ev->finish != NRD_SEQ_FINISH_NONE) {
        return;
    }
    int32_t n_copies = nrd_beams_move_tables(q->dec.beams, q->sched.tables, s->kv,
                                             q->sched.n_planned, s->late_copies + s->n_late_copies);
    q->sched.beams_forked = true;
    q->sched.n_new_blocks += n_copies;
    s->n_late_copies += n_copies;
    NRD_ASSERT(s->n_late_copies <= s->cap_copies, "one copy for each beam");
}

/* The mask was not ready: the step counts but for its last token, which a later one computes again, with
 * the choice behind it. A state has that token in it already: it begins anew. */
static void choose_again(nrd_sched *s, const nrd_plan_entry *e, bool same_cache)
{
    nrd_seq *q = e->seq;
    q->sched.n_pending--;
    q->sched.has_counts = false; /* the choice that has no meaning was counted */
    if (same_cache) {
        q->sched.n_computed = q->sched.n_planned = s->lim.recurrent ? 0 : e->start + e->n - e->n_draft - 1;
        update_reserve(s, q);
    }
}

/* Where a token's keys and values are. */
static int32_t place_of(const nrd_sched *s, const nrd_seq *q, int32_t token)
{
    const int32_t bt = nrd_kv_block_tokens(s->kv);
    return q->sched.tables[0].blocks[token / bt] * bt + token % bt;
}

/* The path of a tree that holds, node by node to where its token belongs: never to a place that a later node lies in. */
static void gather_path(nrd_sched *s, const nrd_seq *q, const nrd_plan_entry *e, const nrd_draft_accept *a)
{
    const int32_t first = e->start + e->n - e->n_draft;
    for (int32_t i = 0; i < a->n_accepted; i++) {
        if (a->path[i] != i) {
            NRD_ASSERT(s->n_late_moves < s->cap_moves, "drafts of the steps under way bound the moves");
            s->late_moves[s->n_late_moves][0] = place_of(s, q, first + a->path[i]);
            s->late_moves[s->n_late_moves++][1] = place_of(s, q, first + i);
        }
    }
}

/* The choice behind token i of the draft goes on in the text; 0: behind the last known one. */
static void hear_token(const nrd_sched *s, nrd_seq *q, const nrd_plan_entry *e, int32_t i)
{
    nrd_proposer *from = q->spec.proposer;
    if (from && from->hear_token) {
        from->hear_token(from, s->committing, s->commit_at + e->n - e->n_draft - 1 + i);
    }
}

/* The tokens that hold are as good as if they had been known before the step; what the step wrote behind them,
 * the next one writes over. */
static void commit_draft(nrd_sched *s, nrd_seq *q, const nrd_plan_entry *e, const nrd_step_result *r, bool same_cache,
                         nrd_sched_event *ev)
{
    nrd_draft_accept *a = &s->accepted;
    nrd_proposer *from = q->spec.proposer;

    ev->finish = nrd_speculate_accept(q, r, e->row, e->n_draft, e->tree, a);
    ev->n_new = a->n_new;
    const int32_t n_accepted = a->n_accepted;
    q->spec.n_accepted += n_accepted;
    s->n_accepted += (uint64_t)n_accepted;
    from->hear(from, &(nrd_draft_outcome){e->n_draft, n_accepted, e->tree ? a->path : NULL, r->ids + e->row});
    hear_token(s, q, e, n_accepted == 0 ? 0 : e->tree ? 1 + a->path[n_accepted - 1] : n_accepted);
    q->sched.has_counts = false; /* which of its rows holds, the device does not know */
    if (same_cache && e->tree) {
        gather_path(s, q, e, a);
    }
    if (same_cache) {
        q->sched.n_computed += n_accepted;
        if (q->sched.n_computed == q->dec.n_known) { /* no choice behind the last one that holds: it is made again */
            q->sched.n_computed--;
        }
        q->sched.n_planned = q->sched.n_computed;
    }
}

/* What was computed can be shared with others. */
static void publish(nrd_sched *s, nrd_seq *q)
{
    int32_t n = q->sched.n_computed < q->dec.n_known ? q->sched.n_computed : q->dec.n_known;
    if (q->req.width > 1 && n > q->req.n_prompt) {
        n = q->req.n_prompt; /* what beams generate is not */
    }
    if (shares(s)) {
        nrd_kv_publish(s->kv, &q->sched.tables[0], &q->req.content, n);
    }
}

static void commit_entry(nrd_sched *s, const nrd_plan_entry *e, const nrd_step_result *r,
                         nrd_sched_event *ev)
{
    nrd_seq *q = e->seq;
    bool same_cache = q->sched.state == NRD_SEQ_RUNNING && q->sched.epoch == e->epoch;

    *ev = (nrd_sched_event){.seq = q};
    q->sched.n_inflight--;
    if (q->sched.state == NRD_SEQ_DONE || e->beam > 0) {
        keep_state(s, q, e, false);
        q->sched.n_pending -= e->row >= 0 && e->beam == 0;
        return; /* ended while this step ran; further beams come with the first */
    }
    if (e->row >= 0 && r->no_choice && r->no_choice[e->row]) {
        keep_state(s, q, e, false);
        choose_again(s, e, same_cache);
        return;
    }
    if (same_cache) {
        q->sched.n_computed = e->start + e->n - e->n_draft;
        if (q->req.width > 1 && !q->sched.beams_forked) {
            /* Before the beams have tables of their own: another sequence's equal block that one of them took would
             * not be the one that the others keep, and more blocks be held than were promised. */
            publish(s, q);
        }
    }
    ev->context_done =
        e->is_context && e->start + e->n - e->n_draft >= q->req.n_prompt && e->start < q->req.n_prompt;
    if (e->row >= 0) {
        q->sched.n_pending--;
        if (q->req.width > 1) {
            commit_beams(s, q, r, e->row, ev);
        } else if (e->n_draft > 0) {
            commit_draft(s, q, e, r, same_cache, ev);
        } else {
            ev->finish = s->tap && s->tap->accept
                             ? s->tap->accept(s->tap->user, q, e->row, &ev->n_new)
                             : nrd_decode_accept(q, r->ids[e->row], &ev->n_new);
            if (q->req.want_log_probs || q->req.n_top > 0) {
                nrd_decode_keep_log_probs(q, r, e->row, ev->n_new);
            }
            hear_token(s, q, e, 0);
        }
    } else if (q->req.no_sample && e->start + e->n >= q->req.n_prompt) {
        ev->finish = NRD_SEQ_FINISH_LENGTH;
    }
    if (same_cache && q->req.width == 1) {
        publish(s, q);
    }
    keep_state(s, q, e, same_cache);
    if (same_cache) {
        update_reserve(s, q);
    }
    if (ev->finish != NRD_SEQ_FINISH_NONE) {
        end_seq(s, q);
    }
}

void nrd_sched_append(nrd_sched *s, const int32_t *ids, int32_t n, nrd_sched_event *event)
{
    nrd_seq *q = event->seq;
    NRD_ASSERT(q->req.may_jump && q->sched.state != NRD_SEQ_DONE,
               "it goes on, and was made for this");
    event->finish = s->tap && s->tap->append
                        ? s->tap->append(s->tap->user, q, ids, n, &event->n_new)
                        : nrd_decode_append(q, ids, n, &event->n_new);
    if (n > 0) {
        q->sched.has_counts = false; /* of occurrences: the device has not seen these */
    }
    if (event->finish != NRD_SEQ_FINISH_NONE) {
        end_seq(s, q);
    }
    if (s->tap && s->tap->appended) {
        s->tap->appended(s->tap->user, q, n, event->finish);
    }
}

void nrd_sched_commit(nrd_sched *s, const nrd_plan *p, const nrd_step_result *r,
                      nrd_sched_event *out_events, int32_t *out_n)
{
    int32_t n = 0;
    s->committing = p->step;
    s->commit_at = 0;
    for (int32_t i = 0; i < p->n_entries; s->commit_at += p->entries[i].n, i++) {
        nrd_sched_event ev;
        commit_entry(s, &p->entries[i], r, &ev);
        if (ev.n_new > 0 || ev.finish != NRD_SEQ_FINISH_NONE || ev.context_done) {
            out_events[n++] = ev;
        }
    }
    *out_n = n;
    if (s->tap && s->tap->committed) {
        s->tap->committed(s->tap->user, p, r, out_events, n);
    }
}

/* ---- looking ---- */

bool nrd_sched_is_empty(const nrd_sched *s)
{
    return !s->run_head && !s->wait_head && !s->idle_head;
}

void nrd_sched_hear_cost(nrd_sched *s, const nrd_plan *p, uint64_t device_ns)
{
    if (p->n_context == 0) {
        nrd_costs_hear(&s->drafts.costs, p->n_tokens, device_ns);
    }
}

const nrd_step_costs *nrd_sched_costs(const nrd_sched *s)
{
    return &s->drafts.costs;
}

bool nrd_sched_may_overlap(const nrd_sched *s)
{
    return s->n_needs_host == 0;
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
        NRD_ASSERT(!q->sched.run_next || goes_before(q, q->sched.run_next), "sorted");
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
    NRD_ASSERT(reserved == s->n_reserved, "promises agree");
    NRD_ASSERT(slots + s->n_free_slots == n_slots(&s->lim), "every slot is accounted for");
    NRD_ASSERT(s->n_reserved <= nrd_kv_n_available(s->kv), "promised blocks are there");
}
