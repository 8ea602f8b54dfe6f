/* SPDX-License-Identifier: Apache-2.0
 * What runs in the next step: what generates, pieces of prompts that have begun, then sequences that wait. */
#include "engine/scheduler_internal.h"

#include "base/mem.h"
#include "engine/decode/decode.h"
#include "engine/speculate/proposer.h"

#include <string.h>

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
    return s->lim.max_num_tokens - nrd_sched_n_slots(&s->lim) + s->n_free_slots;
}

static void take_draft(nrd_sched *s, nrd_seq *q, int32_t k)
{
    nrd_draft_take(q, s->kv, nrd_kv_n_available(s->kv) - (s->n_reserved - q->sched.n_reserved), k);
    if (q->spec.n_draft > 0) {
        nrd_sched_update_reserve(s, q);
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
    const int32_t again = q->sched.n_again;
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
        .n_again = again < n ? again : n,
        .state_back = again > 0,
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
    q->sched.n_again = 0;
    q->sched.n_inflight++;
    return e;
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
        while (victim != q && nrd_sched_is_reserving(s, victim)) {
            victim = victim->sched.run_prev;
        }
        NRD_ASSERT(victim != q || !nrd_sched_is_reserving(s, q), "reserved blocks are there");
        *out_next = q->sched.run_next;
        nrd_sched_pause(s, p, victim);
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
    return (q->req.may_jump || q->sched.n_again > 0) && q->sched.n_pending == 0 && q->sched.n_planned >= q->req.n_prompt &&
           n > 1 && n <= NRD_MAX_JUMP + 1;
}

/* Promised tokens that a step may take beyond one of each sequence. Beside others, where a token more is felt, they at most
 * double a step: who has a long promise gets the rest of it in the next ones. */
static int32_t room_for_promises(const nrd_sched *s)
{
    const int32_t n = s->n_running + s->n_waiting;
    return s->lim.mixed_context_tokens > 0 && n > 1 ? n : s->lim.max_num_tokens;
}

/* Of a running sequence in this step; 0: a prompt, or one that waits for its last token, or for which
 * that token is its last. promises: what room_for_promises left. */
static int32_t n_to_generate(const nrd_sched *s, const nrd_seq *q, int32_t promises)
{
    if (is_held(s, q) || (s->lim.n_micro > 1 && q->sched.n_pending > 0)) {
        return 0;
    }
    if (is_jumping(q)) {
        int32_t n = q->dec.n_known - q->sched.n_planned, bt = nrd_kv_block_tokens(s->kv);
        if (q->sched.n_again == 0 && n > 1 + promises) { /* what is computed again has to come whole */
            n = 1 + promises;
        }
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
        nrd_sched_take_state(s, e);
    }
    q->sched.n_planned += n;
    q->sched.n_pending += chooses;
    p->n_generation++;
}

/* How many of so many sequences one plan takes, where several run at once. */
static int32_t share_of(const nrd_sched *s, int32_t n)
{
    n = n < s->lim.max_batch_size ? n : s->lim.max_batch_size;
    return s->lim.n_micro > 1 ? nrd_sched_ceil_div(n, s->lim.n_micro) : n;
}

/* In order, since who needs room takes it from those behind; entries of one token stand first. */
static void plan_decodes(nrd_sched *s, nrd_plan *p)
{
    int32_t n_jumped = 0, n_drafting = 0, n_left = share_of(s, s->n_running), promises = room_for_promises(s);
    for (nrd_seq *q = s->run_head, *next; q; q = next) {
        int32_t n = n_to_generate(s, q, promises), room = s->lim.max_num_tokens - p->n_tokens - n_jumped;
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
        nrd_sched_update_reserve(s, q);
        n_left--;
        promises = n - 1 < promises ? promises - (n - 1) : 0;
        if (q->spec.proposer && (n == 1 || q->sched.n_again > 0)) {
            n_drafting++; /* planned below: a draft is for what the others leave */
            n_jumped += n;
            q->sched.n_jump = n;
        } else if (n == 1) {
            plan_tokens(s, p, q, 1);
        } else {
            q->sched.n_jump = n;
            n_jumped += n;
        }
    }
    if (n_drafting > 0) {
        nrd_draft_weigh(&s->drafts, s->run_head, p->n_tokens, s->lim.max_draft_rows - p->n_draft, draft_room(s),
                        !s->prompts_wait && !s->lim.recurrent);
    }
    /* Those that turn out to have no draft have one token, and stand before the longer ones. */
    for (nrd_seq *q = s->run_head; q && n_drafting > 0; q = q->sched.run_next) {
        if (nrd_draft_may_follow(q)) {
            n_drafting--;
            take_draft(s, q, q->spec.n_draft);
            if (q->spec.n_draft == 0 && q->sched.n_jump == 1) {
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

/* An encoder runs within the step, on the whole of its input. Beside those who generate it runs on one input a step, or on
 * more where all of them are no longer than what prompts may take of such a step. */
static bool encoder_fits(const nrd_sched *s, const nrd_plan *p, int32_t n)
{
    return s->lim.mixed_context_tokens <= 0 || p->n_generation == 0 || p->n_context_tokens == 0 ||
           p->n_context_tokens + n <= s->lim.mixed_context_tokens;
}

/* Prompt tokens of a step in which others generate; INT32_MAX: no limit. */
static int32_t mixed_limit(const nrd_sched *s, const nrd_plan *p)
{
    const int32_t fixed = s->lim.mixed_context_tokens, rows = 2 * p->n_generation;

    return p->n_generation == 0 ? INT32_MAX : fixed > 0 ? fixed : s->even_limit > rows ? s->even_limit : rows;
}

/* Tokens of a prompt to run in this step; 0: none. */
static int32_t chunk_of(const nrd_sched *s, const nrd_plan *p, nrd_seq *q, int32_t n_done)
{
    int32_t room = s->lim.max_num_tokens - p->n_tokens, rest = q->dec.n_known - n_done;
    int32_t bt = nrd_kv_block_tokens(s->kv);
    const bool whole = q->req.picture_rows > 0, at_once = whole || q->req.n_cross > n_done;
    if (s->lim.chunked_context && !at_once) {
        const int32_t mixed = mixed_limit(s, p) - p->n_context_tokens;
        room = mixed < room ? mixed : room; /* who waits for a next token waits for this step */
    }
    if (q->req.n_cross > n_done && !encoder_fits(s, p, rest)) {
        return 0;
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
    if (!s->lim.recurrent) { /* to take a state back would be to compute the whole piece again */
        take_draft(s, q, nrd_draft_behind_prompt(q, n, rows < room ? rows : room));
    }
    nrd_plan_entry *e = add_entry(s, p, q, 0, n, true);
    nrd_sched_take_state(s, e);
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
        plan_chunk(s, p, q, nrd_sched_cut_at_stop(q, q->sched.n_planned, n));
    }
}

static bool waits_for_leader(const nrd_sched *s, const nrd_seq *q)
{
    const nrd_seq *l = q->req.leader;
    if (!l || s->lim.is_static || !nrd_sched_shares(s) || l->sched.state == NRD_SEQ_DONE ||
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

/* Whether there is anything but the choices of one request. */
static bool has_others(const nrd_sched *s)
{
    const nrd_seq *first = s->run_head ? s->run_head : s->wait_head;
    if (!first || !first->req.group) {
        return s->n_running + s->n_waiting > 1;
    }
    for (const nrd_seq *q = s->run_head; q; q = q->sched.run_next) {
        if (q->req.group != first->req.group) {
            return true;
        }
    }
    for (const nrd_seq *q = s->wait_head; q; q = q->sched.wait_next) {
        if (q->req.group != first->req.group) {
            return true;
        }
    }
    return false;
}

/* As many of its group run as may: an eighth while there are others, whose tokens wait for the step. Later ones find
 * the prompt's blocks in the cache, if the first have gone. c keeps the last count, since those of a group mostly wait
 * behind each other. */
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
    return c->n >= (s->has_others ? nrd_sched_ceil_div(s->lim.choices_at_once, NRD_SCHED_BESIDE) : s->lim.choices_at_once);
}

/* Its prompt was computed elsewhere and is brought, once: who is paused computes it here. */
static bool brings_blocks(const nrd_seq *q)
{
    return q->req.handed == NRD_HANDED_BLOCKS && q->sched.epoch == 0 && !q->req.no_reuse;
}

/* Starts a waiting sequence. False: it does not fit now; nothing has changed. Where sequences may be paused, each running
 * one finds one more block: who starts into the last blocks is paused a few steps later, and what it has computed is
 * lost. */
static bool try_start(nrd_sched *s, nrd_plan *p, nrd_seq *q)
{
    const int32_t kept = s->n_reserved + (nrd_sched_is_reserving(s, q) ? 0 : s->n_running);
    int32_t bt = nrd_kv_block_tokens(s->kv), available = nrd_kv_n_available(s->kv) - kept;
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
    } else if (!q->req.no_reuse && nrd_sched_shares(s)) {
        nrd_kv_find(s->kv, &q->req.content, q->dec.n_known - 1, &m);
        n_done = m.n_blocks * bt + m.n_partial;
        have = m.n_blocks;
        available -= m.n_cached;
    }
    if (brings_blocks(q)) {
        n_done = q->req.n_prompt;
        m.partial_block = -1;
        m.n_partial = 0;
    }
    int32_t need = nrd_sched_ceil_div(q->dec.n_known, bt);
    if (nrd_sched_is_reserving(s, q)) {
        need = nrd_sched_worst_blocks(&s->lim, bt, q->req.n_prompt, q->req.max_total, q->req.width);
        int32_t now = nrd_sched_ceil_div(q->dec.n_known, bt);
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

    nrd_sched_wait_remove(s, q);
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
    nrd_sched_run_insert(s, q);
    nrd_sched_update_reserve(s, q);
    nrd_sched_set_stops(s, q, &m);
    plan_chunk(s, p, q, nrd_sched_cut_at_stop(q, n_done, n));
    p->entries[p->n_entries - 1].state_load = m.state;
    p->entries[p->n_entries - 1].take_from = brings_blocks(q) ? 1 + have : 0;
    nrd_sched_flow_started(s, q, q->dec.n_known - n_done);
    s->n_started++;
    return true;
}

/* One that waits may start, as far as it is up to others. */
static bool may_start(const nrd_sched *s, nrd_plan *p, const nrd_seq *q, group_count *c)
{
    if (q->sched.n_inflight > 0 || waits_for_leader(s, q) || waits_for_group(s, q, c) || is_held(s, q)) {
        p->n_held += is_held(s, q);
        return false;
    }
    return true;
}

/* Of several flows the first of the one whose turn it is. */
static nrd_seq *next_of_flows(const nrd_sched *s, nrd_plan *p, group_count *c)
{
    nrd_seq *best = NULL;
    for (int32_t i = 0; i < s->n_flows; i++) {
        nrd_seq *q = s->flows[i].head;
        while (q && !may_start(s, p, q, c)) {
            q = q->sched.flow_next;
        }
        best = q && (!best || nrd_sched_flow_goes_before(s, q, best)) ? q : best;
    }
    return best;
}

/* The next waiting sequence that may start. */
static nrd_seq *next_candidate(const nrd_sched *s, nrd_plan *p)
{
    const bool by_age = (s->n_started + 1) % NRD_SCHED_AGING == 0;
    group_count c = {0};
    if (!by_age && s->n_flows_waiting > 1) {
        return next_of_flows(s, p, &c);
    }
    nrd_seq *q = by_age ? s->age_head : s->wait_head;
    while (q && !may_start(s, p, q, &c)) {
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

/* even_limit of a plan: INT32_MAX where there is none. */
static int32_t even_limit(const nrd_sched *s)
{
    const int32_t least = s->lim.even_context_tokens;
    int64_t n = 0;

    if (least <= 0) {
        return INT32_MAX;
    }
    const int64_t most = (int64_t)s->lim.max_num_tokens * NRD_SCHED_EVEN_STEPS;
    for (const nrd_seq *q = s->run_head; q && n < most; q = q->sched.run_next) {
        const int32_t rest = q->dec.n_known - q->sched.n_planned;
        n += rest > 1 ? rest : 0; /* one: it generates */
    }
    for (const nrd_seq *q = s->wait_head; q && n < most; q = q->sched.wait_next) {
        n += q->dec.n_known;
    }
    n /= NRD_SCHED_EVEN_STEPS;
    return n > least ? (int32_t)n : least;
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
    s->even_limit = even_limit(s);
    s->has_others = s->lim.choices_at_once > 0 && has_others(s);
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
    s->has_draft = p->n_draft > 0;
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
