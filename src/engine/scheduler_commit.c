/* SPDX-License-Identifier: Apache-2.0
 * What follows from the result of a step. */
#include "engine/scheduler_internal.h"

#include "base/mem.h"
#include "engine/decode/beam.h"
#include "engine/decode/decode.h"
#include "engine/speculate/proposer.h"

static void commit_beams(nrd_sched *s, nrd_seq *q, const nrd_step_result *r, int32_t row,
                         nrd_sched_event *ev)
{
    if (r->ids && r->ids[row] == NRD_SAMPLE_NO_NUMBERS) { /* a replay has none */
        ev->finish = NRD_SEQ_FINISH_ERROR;
        return;
    }
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
        q->sched.n_again = 0;
        nrd_sched_update_reserve(s, q);
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

/* The choice behind token i of the draft goes on in the text; 0: behind the last known one. What guesses the next tokens hears of it. */
static void hear_token(const nrd_sched *s, nrd_seq *q, const nrd_plan_entry *e, int32_t i)
{
    if (q->spec.then && nrd_seq_n_generated(q) > 0) {
        nrd_proposer_free(q->spec.proposer);
        q->spec.proposer = q->spec.then;
        q->spec.then = NULL;
    }
    nrd_proposer *from = q->spec.proposer;
    if (from && from->hear_token) {
        from->hear_token(from, s->committing, s->commit_at + e->n - e->n_draft - 1 + i);
    }
}

/* A state has all of the draft in it: where not all holds, it goes back to what it was before the step, and the tokens that hold are
 * computed again with what comes next. */
static void take_state_back(nrd_seq *q, const nrd_plan_entry *e, int32_t n_accepted)
{
    if (n_accepted == e->n_draft && q->sched.n_computed + n_accepted < q->dec.n_known) {
        q->sched.n_computed += n_accepted;
    } else {
        const int32_t end = e->start + e->n - e->n_draft + n_accepted, most = q->dec.n_known - 1;
        q->sched.n_computed = e->start;
        q->sched.n_again = (end < most ? end : most) - e->start;
    }
    q->sched.n_planned = q->sched.n_computed;
}

/* The tokens that hold are as good as if they had been known before the step; what the step wrote behind them,
 * the next one writes over. */
static void commit_draft(nrd_sched *s, nrd_seq *q, const nrd_plan_entry *e, const nrd_step_result *r, bool same_cache,
                         nrd_sched_event *ev)
{
    nrd_draft_accept *a = &s->accepted;
    nrd_proposer *from = q->spec.proposer;
    const bool is_only = q->req.ends_behind_draft && nrd_seq_n_generated(q) == 0;

    ev->finish = nrd_speculate_accept(q, r, e->row, e->n_draft, e->tree, a);
    ev->finish = ev->finish == NRD_SEQ_FINISH_NONE && is_only ? NRD_SEQ_FINISH_LENGTH : ev->finish;
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
    if (same_cache && s->lim.recurrent) {
        take_state_back(q, e, n_accepted);
    } else if (same_cache) {
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
    if (nrd_sched_shares(s)) {
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
        nrd_sched_keep_state(s, q, e, false);
        q->sched.n_pending -= e->row >= 0 && e->beam == 0;
        return; /* ended while this step ran; further beams come with the first */
    }
    if (e->row >= 0 && r->no_choice && r->no_choice[e->row]) {
        nrd_sched_keep_state(s, q, e, false);
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
    nrd_sched_keep_state(s, q, e, same_cache);
    if (same_cache) {
        nrd_sched_update_reserve(s, q);
    }
    nrd_sched_flow_served(s, q, ev->n_new);
    if (ev->finish != NRD_SEQ_FINISH_NONE) {
        nrd_sched_end_seq(s, q);
    }
}

void nrd_sched_append(nrd_sched *s, const int32_t *ids, int32_t n, nrd_sched_event *event)
{
    nrd_seq *q = event->seq;
    const bool is_choice = q->req.handed && q->dec.n_known == q->req.n_prompt;
    NRD_ASSERT((q->req.may_jump || is_choice) && q->sched.state != NRD_SEQ_DONE,
               "it goes on, and was made for this");
    event->finish = s->tap && s->tap->append ? s->tap->append(s->tap->user, q, ids, n, &event->n_new)
                    : is_choice              ? nrd_decode_accept(q, ids[0], &event->n_new)
                                             : nrd_decode_append(q, ids, n, &event->n_new);
    nrd_sched_flow_served(s, q, n);
    if (n > 0) {
        q->sched.has_counts = false; /* of occurrences: the device has not seen these */
    }
    if (event->finish != NRD_SEQ_FINISH_NONE) {
        nrd_sched_end_seq(s, q);
    }
    if (s->tap && s->tap->appended) {
        s->tap->appended(s->tap->user, q, is_choice ? event->n_new : n, event->finish);
    }
}

void nrd_sched_commit(nrd_sched *s, const nrd_plan *p, const nrd_step_result *r,
                      nrd_sched_event *out_events, int32_t *out_n)
{
    int32_t n = 0;
    const uint64_t n_accepted = s->n_accepted;
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
    s->n_held = (int32_t)(s->n_accepted - n_accepted);
    if (s->tap && s->tap->committed) {
        s->tap->committed(s->tap->user, p, r, out_events, n);
    }
}
