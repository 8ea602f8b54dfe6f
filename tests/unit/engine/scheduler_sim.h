/* SPDX-License-Identifier: Apache-2.0
 * What the scheduler's tests pretend: a device whose KV blocks hold the hash of everything up to each
 * position, and whose next token is a function of that hash. Each job knows the tokens that it gets alone;
 * run_plan checks every position that a step may look at, finish_plan every result. */
#ifndef NRD_TESTS_SCHEDULER_SIM_H
#define NRD_TESTS_SCHEDULER_SIM_H

#include "engine/decode/beam.h"
#include "engine/decode/decode.h"
#include "engine/scheduler.h"
#include "engine/speculate/proposer.h"

#include "random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <math.h>
#include <string.h>

#include <cmocka.h>

enum { BT = 4, VOCAB = 12, MAX_LEN = 64, MAX_SEQS = 24, MAX_W = 3, MAX_TOP = 2 * MAX_W, MAX_PLANS = 4,
       MAX_ROWS = 64 };

typedef struct job {
    nrd_seq q;
    int32_t tokens[MAX_LEN], slots[MAX_W];
    nrd_kv_table tables[MAX_W];
    int32_t stop_ids[4], stop_ends[2];
    int32_t start_step;  /* when it is handed over */
    int32_t cancel_step; /* -1: never */
    bool added, over, idle;
    nrd_seq_finish finish;
    nrd_proposer proposer;
    nrd_token_tree tree;
    uint64_t luck; /* of its guesses */
} job;

typedef struct sim {
    nrd_sched_limits lim;
    nrd_kv *kv;
    nrd_sched *sched;
    nrd_plan plans[MAX_PLANS];
    uint64_t (*content)[BT];
    int32_t n_blocks, n_host, n_jobs;
    job jobs[MAX_SEQS];
    int32_t slot_tokens[64];
    int32_t ids[MAX_PLANS][MAX_ROWS], top_ids[MAX_PLANS][MAX_ROWS * MAX_TOP];
    float log_probs[MAX_PLANS][MAX_ROWS], top_log_probs[MAX_PLANS][MAX_ROWS * MAX_TOP];
    bool no_choice[MAX_PLANS][MAX_ROWS];
    int32_t n_drafted, n_moved;
    uint64_t states[64], *kept; /* of slots, where layers have a state; and snapshots */
    uint64_t before_draft[64];  /* what states were before the slot's last step with a draft */
    int32_t n_back;
    int32_t n_loaded;
    int32_t n_unplanned; /* tokens of prompts that wait for the plan being made */
    bool overlap, in_batch;
    int32_t step;
} sim;

/* ---- the language of the pretended model ---- */

static uint64_t hash_of(const int32_t *tokens, int32_t n)
{
    uint64_t h = 99;
    for (int32_t i = 0; i < n; i++) {
        h = nrd_hash_u64(h, (uint64_t)(uint32_t)tokens[i]);
    }
    return h;
}

static float log_prob_of(uint64_t h, int32_t token)
{
    return -(float)(nrd_hash_u64(h, (uint64_t)token) % 10000) / 1000.0f;
}

static int32_t next_token(uint64_t h)
{
    int32_t best = 0;
    for (int32_t v = 1; v < VOCAB; v++) {
        best = log_prob_of(h, v) > log_prob_of(h, best) ? v : best;
    }
    return best;
}

static void best_tokens(uint64_t h, int32_t n, int32_t *ids, float *log_probs)
{
    bool used[VOCAB] = {false};
    for (int32_t k = 0; k < n; k++) {
        int32_t best = -1;
        for (int32_t v = 0; v < VOCAB; v++) {
            if (!used[v] && (best < 0 || log_prob_of(h, v) > log_prob_of(h, best))) {
                best = v;
            }
        }
        used[best] = true;
        ids[k] = best;
        log_probs[k] = log_prob_of(h, best);
    }
}

static bool ends_with_stop(const nrd_seq *q, const int32_t *gen, int32_t n)
{
    for (int32_t i = 0; i < q->req.stop.n; i++) {
        int32_t a = i ? q->req.stop.ends[i - 1] : 0, len = q->req.stop.ends[i] - a, k = 0;
        while (k < len && len <= n && gen[n - len + k] == q->req.stop.ids[a + k]) {
            k++;
        }
        if (k == len) {
            return true;
        }
    }
    return false;
}

/* Some texts leave no choice for a while. */
static int32_t forced_behind(const int32_t *tokens, int32_t n, int32_t *out, int32_t cap)
{
    uint64_t h = nrd_hash_u64(hash_of(tokens, n), 7);
    int32_t k = h % 4 == 0 ? (int32_t)((h >> 8) % 17) : 0;
    k = k < cap ? k : cap;
    for (int32_t i = 0; i < k; i++) {
        out[i] = (int32_t)((h >> 16) + (uint64_t)i * 5) & 7;
    }
    return k;
}

static void jump(nrd_sched *s, nrd_sched_event *e)
{
    int32_t ids[NRD_MAX_JUMP], room = e->seq->req.max_total - e->seq->dec.n_known;
    if (e->seq->req.may_jump && e->n_new > 0 && e->finish == NRD_SEQ_FINISH_NONE) {
        int32_t n = forced_behind(e->seq->dec.tokens, e->seq->dec.n_known, ids,
                                  room < NRD_MAX_JUMP ? room : NRD_MAX_JUMP);
        nrd_sched_append(s, ids, n, e);
    }
}

/* What a sequence says when it is alone. */
static int32_t alone(const nrd_seq *q, int32_t *tokens, nrd_seq_finish *why)
{
    int32_t n = q->req.n_prompt;
    for (;;) {
        int32_t t = next_token(hash_of(tokens, n));
        if (t == q->req.end_id) {
            *why = NRD_SEQ_FINISH_END_ID;
            return n;
        }
        tokens[n++] = t;
        int32_t forced[MAX_LEN], n_forced = -1;
        for (int32_t i = -1; i < n_forced || i < 0; i++) {
            if (i >= 0) {
                tokens[n++] = forced[i];
            }
            if (ends_with_stop(q, tokens + q->req.n_prompt, n - q->req.n_prompt)) {
                *why = NRD_SEQ_FINISH_STOP_WORDS;
                return n;
            }
            if (n == q->req.max_total) {
                *why = NRD_SEQ_FINISH_LENGTH;
                return n;
            }
            if (i < 0) {
                n_forced =
                    q->req.may_jump ? forced_behind(tokens, n, forced, q->req.max_total - n) : 0;
            }
        }
    }
}

/* ---- beam search without any cleverness ---- */

typedef struct hyp {
    int32_t tokens[MAX_LEN], n;
    double cum, rank;
} hyp;

static double rank_of(const nrd_seq *q, double cum, int32_t length)
{
    return q->req.sampling.length_penalty == 0
               ? cum
               : cum / pow(length, (double)q->req.sampling.length_penalty);
}

static void keep_best(hyp *done, int32_t *n_done, int32_t w, const hyp *h)
{
    hyp all[MAX_W + 1];
    int32_t n = *n_done, at = n;
    memcpy(all, done, (size_t)n * sizeof *all);
    while (at > 0 && all[at - 1].rank < h->rank) {
        all[at] = all[at - 1];
        at--;
    }
    all[at] = *h;
    *n_done = n + 1 < w ? n + 1 : w;
    memcpy(done, all, (size_t)*n_done * sizeof *all);
}

static int32_t alone_beams(const nrd_seq *q, const int32_t *prompt, hyp *done)
{
    hyp live[MAX_W], next[MAX_W];
    int32_t w = q->req.width, n_live = 1, n_done = 0;
    live[0] = (hyp){.n = q->req.n_prompt};
    memcpy(live[0].tokens, prompt, (size_t)q->req.n_prompt * sizeof *prompt);
    while (n_live > 0) {
        struct {
            double score, cum;
            int32_t from, token;
        } c[MAX_W * MAX_TOP], x;
        int32_t n = 0, n_next = 0, gen = live[0].n - q->req.n_prompt;
        for (int32_t b = 0; b < n_live; b++) {
            int32_t ids[MAX_TOP];
            float lp[MAX_TOP];
            best_tokens(hash_of(live[b].tokens, live[b].n), 2 * w, ids, lp);
            for (int32_t k = 0; k < 2 * w; k++, n++) {
                c[n].cum = live[b].cum + (double)lp[k];
                c[n].score = c[n].cum - (double)q->req.sampling.diversity_rate * k;
                c[n].from = b;
                c[n].token = ids[k];
            }
        }
        for (int32_t i = 1; i < n; i++) { /* stable insertion sort */
            for (int32_t k = i; k > 0 && c[k].score > c[k - 1].score; k--) {
                x = c[k];
                c[k] = c[k - 1];
                c[k - 1] = x;
            }
        }
        for (int32_t i = 0; i < n && n_next < w; i++) {
            hyp h = live[c[i].from];
            h.cum = c[i].cum;
            h.rank = rank_of(q, h.cum, gen + 1);
            if (c[i].token == q->req.end_id) {
                if (i < w) {
                    keep_best(done, &n_done, w, &h);
                }
                continue;
            }
            h.tokens[h.n++] = c[i].token;
            if (ends_with_stop(q, h.tokens + q->req.n_prompt, gen + 1)) {
                keep_best(done, &n_done, w, &h);
            } else {
                next[n_next++] = h;
            }
        }
        memcpy(live, next, sizeof live);
        n_live = n_next;
        if (n_live > 0 && live[0].n == q->req.max_total) {
            for (int32_t b = 0; b < n_live; b++) {
                keep_best(done, &n_done, w, &live[b]);
            }
            return n_done;
        }
        if (n_done >= w) {
            int32_t length =
                q->req.sampling.early_stopping != 0 && q->req.sampling.length_penalty > 0
                    ? q->req.max_total - q->req.n_prompt
                    : gen + 1;
            if (q->req.sampling.early_stopping == 1 ||
                rank_of(q, c[0].cum, length) <= done[w - 1].rank) {
                return n_done;
            }
        }
    }
    return n_done;
}

/* ---- the pretended device ---- */

static const int32_t *tokens_of(const nrd_plan_entry *e)
{
    int32_t n;
    return e->seq->req.width > 1 && e->start >= e->seq->req.n_prompt
               ? nrd_beams_tokens(e->seq->dec.beams, e->beam, &n)
               : e->seq->dec.tokens;
}

static void check_visible(const sim *s, const nrd_plan_entry *e, const int32_t *tokens)
{
    const nrd_kv_table *t = &e->seq->sched.tables[e->beam];
    uint64_t h = 99;
    assert_true((e->start + e->n + BT - 1) / BT <= t->n_blocks);
    for (int32_t p = 0; p < e->start; p++) {
        int32_t b = t->blocks[p / BT];
        h = nrd_hash_u64(h, (uint64_t)(uint32_t)tokens[p]);
        if (b >= 0) {
            assert_true(s->content[b][p % BT] == h);
        } else {
            assert_true(s->lim.window > 0 && p <= e->start - s->lim.window && p >= s->lim.n_sink);
        }
    }
}

static void run_plan(sim *s, int i)
{
    const nrd_plan *p = &s->plans[i];
    int32_t n_rows = 0, n_tokens = 0, n_draft = 0;
    int32_t n_split = p->n_context_tokens; /* of prompts that may be split */
    for (int32_t k = 0; k < p->n_entries; k++) {
        const nrd_plan_entry *e = &p->entries[k];
        const bool whole = e->seq->req.picture_rows > 0;
        n_split -= e->is_context && whole ? e->n - e->n_draft : 0;
        assert_true(!whole || e->start >= e->seq->req.n_prompt || e->start + e->n >= e->seq->req.n_prompt);
    }
    if (s->lim.chunked_context && s->lim.mixed_context_tokens > 0 && p->n_generation > 0) {
        assert_true(n_split <= s->lim.mixed_context_tokens);
    } else if (s->lim.chunked_context && s->lim.even_context_tokens > 0 && p->n_generation > 0) {
        const int32_t share = s->n_unplanned / NRD_SCHED_EVEN_STEPS, rows = 2 * p->n_generation;
        assert_true(n_split <= share || n_split <= rows || n_split <= s->lim.even_context_tokens);
    }
    for (int32_t c = 0; c < p->n_moves; c++) { /* one after the other */
        const int32_t from = p->moves[c][0], to = p->moves[c][1];
        assert_true(from / BT < s->n_blocks && to / BT < s->n_blocks);
        s->content[to / BT][to % BT] = s->content[from / BT][from % BT];
    }
    s->n_moved += p->n_moves;
    assert_true(!p->has_trees || p->n_context == 0);
    for (int32_t c = 0; c < p->n_copies; c++) {
        for (int32_t d = 0; s->n_host == 0 && d < p->n_copies; d++) { /* may run in any order */
            assert_true(p->copies[c][1] != p->copies[d][0]);
            assert_true(c == d || p->copies[c][1] != p->copies[d][1]);
        }
        memcpy(s->content[p->copies[c][1]], s->content[p->copies[c][0]], sizeof s->content[0]);
    }
    for (int32_t k = 0; k < p->n_entries; k++) { /* all of them before the step */
        const nrd_plan_entry *e = &p->entries[k];
        if (e->state_load >= 0) {
            s->states[e->slot] = s->kept[e->state_load];
            s->n_loaded++;
        }
        assert_true(!e->state_back || (s->lim.recurrent && e->state_load < 0 && e->n_again > 0 && e->n_again < e->n - e->n_draft + 1));
        assert_true(!s->lim.recurrent || (!e->tree && (e->n_draft == 0 || !e->is_context || e->state_back)));
        if (e->state_back) {
            s->states[e->slot] = s->before_draft[e->slot];
            s->n_back++;
        } else if (e->n_draft > 0) {
            s->before_draft[e->slot] = s->states[e->slot];
        }
    }
    for (int32_t k = 0; k < p->n_entries; k++) {
        const nrd_plan_entry *e = &p->entries[k];
        const int32_t *tokens = tokens_of(e);
        uint64_t h = hash_of(tokens, e->start);
        check_visible(s, e, tokens);
        assert_true(!s->lim.recurrent || e->start == 0 || s->states[e->slot] == h);
        assert_true(e->n == 1 || !e->from_slot);
        assert_true(e->n_draft == 0 || e->row >= 0);
        uint64_t behind[1 + NRD_MAX_TREE]; /* the root, and each node */
        for (int32_t t = 0; t < e->n; t++) {
            const int32_t node = e->tree ? t - (e->n - e->n_draft) : -1;
            int32_t token = e->from_slot ? s->slot_tokens[e->slot] : node >= 0 ? e->tree->ids[node] : tokens[e->start + t];
            h = nrd_hash_u64(node >= 0 ? behind[1 + e->tree->parent[node]] : h, (uint64_t)(uint32_t)token);
            behind[node >= 0 ? 1 + node : 0] = h;
            s->content[e->seq->sched.tables[e->beam].blocks[(e->start + t) / BT]]
                      [(e->start + t) % BT] = h;
            const int32_t row = e->row + t - (e->n - 1 - e->n_draft);
            if (e->row >= 0 && row >= e->row) {
                assert_int_equal(row, n_rows++);
                s->ids[i][row] = next_token(h);
                s->slot_tokens[e->slot] = e->n_draft > 0 ? -1 : s->ids[i][row];
                s->no_choice[i][row] = e->n_draft > 0 && nrd_hash_u64(h, (uint64_t)s->step) % 6 == 0;
                s->log_probs[i][row] = log_prob_of(h, s->ids[i][row]);
                best_tokens(h, MAX_TOP, s->top_ids[i] + row * MAX_TOP, s->top_log_probs[i] + row * MAX_TOP);
            }
        }
        assert_int_equal(e->first_draft, n_draft);
        s->states[e->slot] = h;
        n_draft += e->n_draft;
        n_tokens += e->n;
    }
    for (int32_t k = 0; k < p->n_entries; k++) { /* all of them behind it */
        if (p->entries[k].state_save >= 0) {
            s->kept[p->entries[k].state_save] = s->states[p->entries[k].slot];
        }
    }
    s->n_drafted += n_draft;
    assert_int_equal(n_draft, p->n_draft);
    assert_true(n_draft <= s->lim.max_draft_rows);
    assert_int_equal(n_rows, p->n_rows);
    assert_int_equal(n_tokens, p->n_tokens);
    assert_true(n_tokens <= s->lim.max_num_tokens);
}

/* ---- the loop ---- */

static job *job_of(sim *s, nrd_seq *q)
{
    return (job *)(void *)((char *)q - offsetof(job, q)) + 0 * (s != NULL);
}

static void check_all(sim *s)
{
    const nrd_kv_table *tables[MAX_SEQS * MAX_W];
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_jobs; i++) {
        for (int32_t b = 0; b < s->jobs[i].q.req.width; b++) {
            tables[n++] = &s->jobs[i].tables[b];
        }
    }
    nrd_sched_check(s->sched);
    nrd_kv_check(s->kv, tables, n, 0);
}

static void check_result(const job *j, bool cancelled)
{
    int32_t want[MAX_LEN];
    nrd_seq_finish why;
    memcpy(want, j->tokens, (size_t)j->q.req.n_prompt * sizeof *want);
    if (j->q.req.width > 1) {
        hyp done[MAX_W];
        if (cancelled) {
            return; /* half a search has no counterpart */
        }
        int32_t n = alone_beams(&j->q, want, done);
        for (int32_t i = 0; i < n; i++) {
            const int32_t *ids;
            const float *lp;
            float cum;
            int32_t n_ids;
            nrd_beams_hypothesis(j->q.dec.beams, i, &ids, &n_ids, &lp, &cum, &why);
            assert_int_equal(n_ids, done[i].n - j->q.req.n_prompt);
            assert_memory_equal(ids, done[i].tokens + j->q.req.n_prompt,
                                (size_t)n_ids * sizeof *ids);
            assert_true(fabs((double)cum - done[i].cum) < 1e-3);
        }
        return;
    }
    int32_t n = alone(&j->q, want, &why);
    assert_true(cancelled ? j->q.dec.n_known <= n : j->q.dec.n_known == n);
    assert_memory_equal(j->tokens, want, (size_t)j->q.dec.n_known * sizeof *want);
    assert_int_equal(j->finish, cancelled ? NRD_SEQ_FINISH_CANCELLED : why);
}

static void finish_plan(sim *s, int i)
{
    nrd_sched_event events[64];
    int32_t n;
    nrd_step_result r = {.ids = s->ids[i],
                         .log_probs = s->log_probs[i],
                         .log_probs_norm = s->log_probs[i],
                         .no_choice = s->no_choice[i],
                         .n_top = MAX_TOP,
                         .top_ids = s->top_ids[i],
                         .top_log_probs = s->top_log_probs[i]};
    nrd_sched_commit(s->sched, &s->plans[i], &r, events, &n);
    for (int32_t k = 0; k < n; k++) {
        job *j = job_of(s, events[k].seq);
        jump(s->sched, &events[k]);
        assert_false(j->over);
        if (events[k].finish != NRD_SEQ_FINISH_NONE) {
            j->over = true;
            j->finish = events[k].finish;
            check_result(j, false);
        }
    }
    s->plans[i].n_entries = 0;
}

static bool make_plan(sim *s, int i)
{
    bool was_running = nrd_sched_first_running(s->sched) != NULL;
    nrd_sched_stats before, after;
    s->n_unplanned = 0;
    for (int32_t k = 0; k < s->n_jobs; k++) {
        const nrd_seq *q = &s->jobs[k].q;
        const int32_t rest = q->dec.n_known - (q->sched.state == NRD_SEQ_RUNNING ? q->sched.n_planned : 0);
        const bool waits = q->sched.state == NRD_SEQ_WAITING || rest > 1;
        s->n_unplanned += s->jobs[k].added && q->sched.state != NRD_SEQ_DONE && waits ? rest : 0;
    }
    nrd_sched_get_stats(s->sched, &before);
    nrd_sched_plan(s->sched, &s->plans[i]);
    nrd_sched_get_stats(s->sched, &after);
    if (s->lim.is_static && was_running) {
        assert_true(after.n_running <= before.n_running); /* nobody joins a batch that has left */
    }
    check_all(s);
    if (s->plans[i].n_entries == 0) {
        return false;
    }
    run_plan(s, i);
    return true;
}

static void feed(sim *s)
{
    for (int32_t i = 0; i < s->n_jobs; i++) {
        job *j = &s->jobs[i];
        if (!j->added && j->start_step <= s->step) {
            nrd_sched_add(s->sched, &j->q);
            j->added = true;
        }
        if (j->added && !j->over && j->cancel_step == s->step) {
            nrd_sched_end(s->sched, &j->q);
            j->over = true;
            j->finish = NRD_SEQ_FINISH_CANCELLED;
            check_result(j, true);
        }
    }
    for (nrd_seq *q; (q = nrd_sched_take_idle(s->sched)) != NULL;) {
        job *j = job_of(s, q);
        assert_true(j->over && !j->idle && q->sched.n_inflight == 0);
        j->idle = true;
    }
}

static bool all_idle(const sim *s)
{
    for (int32_t i = 0; i < s->n_jobs; i++) {
        if (!s->jobs[i].idle) {
            return false;
        }
    }
    return true;
}

/* A sequence that generates in one plan under way is in no other. */
/* ---- making ---- */

/* Some guesses are right, some are not, some have a right beginning. */
static int32_t propose(nrd_proposer *p, const nrd_seq *q, int32_t *out, int32_t max)
{
    const job *j = (const job *)(const void *)((const char *)p - offsetof(job, proposer));
    const uint64_t h = nrd_hash_u64(j->luck, (uint64_t)q->dec.n_known);
    const int32_t n = (int32_t)(h % 7) < max ? (int32_t)(h % 7) : max, right = (int32_t)((h >> 8) % 7);
    for (int32_t i = 0; i < n; i++) { /* `out` lies behind the known tokens */
        const int32_t next = next_token(hash_of(q->dec.tokens, q->dec.n_known + i));
        out[i] = i < right ? next : (next + 1) % VOCAB;
    }
    return n;
}

/* Continuations that turn away from the right one somewhere, in any order; sometimes it is among them. */
static int32_t propose_tree(nrd_proposer *p, const nrd_seq *q, int32_t *out, int32_t max)
{
    job *j = (job *)(void *)((char *)p - offsetof(job, proposer));
    rng r = {nrd_hash_u64(j->luck, (uint64_t)q->dec.n_known)};
    (void)out;
    j->tree.n = 0;
    for (int32_t k = rng_in(&r, 0, 4); k > 0; k--) {
        uint64_t h = hash_of(q->dec.tokens, q->dec.n_known);
        const int32_t right = rng_in(&r, 0, 4);
        for (int32_t node = -1, d = 0; d < right + rng_in(&r, 0, 3); d++) {
            const int32_t id = d < right ? next_token(h) : rng_in(&r, 0, VOCAB - 1);
            node = nrd_tree_add(&j->tree, max, node, id);
            if (node < 0) {
                break;
            }
            h = nrd_hash_u64(h, (uint64_t)(uint32_t)id);
        }
    }
    return j->tree.n;
}

static void hear(nrd_proposer *p, const nrd_draft_outcome *o)
{
    (void)p;
    assert_true(o->n_accepted <= o->n_proposed);
    for (int32_t i = 0; o->path && i < o->n_accepted; i++) {
        assert_true(o->path[i] >= i && o->path[i] < o->n_proposed);
    }
}

static void make_job(sim *s, job *j, rng *r)
{
    nrd_seq *q = &j->q;
    *q = (nrd_seq){.req = {.width = s->lim.max_beam_width > 1 && rng_in(r, 0, 2) == 0
                                        ? rng_in(r, 2, s->lim.max_beam_width)
                                        : 1,
                           .n_prompt = rng_in(r, 1, 30),
                           .priority = (float)rng_in(r, 0, 2) / 2,
                           .flow = (uint64_t)rng_in(r, 0, 3),
                           .end_id = rng_in(r, 0, 2) ? 3 : -1,
                           .sampling = {.repetition_penalty = 1,
                                        .top_p_decay = 1,
                                        .early_stopping = rng_in(r, 0, 2),
                                        .length_penalty = (float)rng_in(r, 0, 2) / 2,
                                        .diversity_rate = (float)rng_in(r, 0, 1) / 4}},
                   .dec = {.tokens = j->tokens},
                   .sched = {.tables = j->tables, .slots = j->slots}};
    q->req.max_total = q->req.n_prompt + rng_in(r, 1, MAX_LEN - q->req.n_prompt - 1);
    for (int32_t i = 0; i < q->req.n_prompt; i++) {
        j->tokens[i] = i % 9 == 8 ? rng_in(r, 0, 1) : i % VOCAB;
    }
    if (rng_in(r, 0, 2) == 0) {
        for (int i = 0; i < 4; i++) {
            j->stop_ids[i] = rng_in(r, 0, VOCAB - 1);
        }
        j->stop_ends[0] = 2;
        j->stop_ends[1] = 4;
        q->req.stop = (nrd_phrase_list){j->stop_ids, j->stop_ends, 2};
    }
    q->req.content = (nrd_kv_content){.tokens = j->tokens};
    q->req.no_reuse = rng_in(r, 0, 5) == 0;
    if (rng_in(r, 0, 3) == 0 && q->req.n_prompt <= s->lim.max_num_tokens - s->lim.max_batch_size * s->lim.max_beam_width) {
        q->req.picture_rows = 1;
    }
    for (int32_t b = 0; b < q->req.width; b++) {
        assert_null(nrd_kv_table_init(&j->tables[b], MAX_LEN / BT + 2));
    }
    if (q->req.width > 1) {
        assert_null(nrd_beams_new(&q->dec.beams, q->req.width, j->tokens, q->req.n_prompt,
                                  q->req.max_total));
    }
    q->req.may_jump = q->req.width == 1 && rng_in(r, 0, 2) == 0;
    /* Forced texts of this language are not what the model would choose, as those of a guide are: none with drafts. */
    if (s->lim.max_draft_rows > 0 && q->req.width == 1 && !q->req.may_jump && rng_in(r, 0, 2)) {
        j->luck = rng_next(r);
        j->proposer = (nrd_proposer){.propose = propose, .hear = hear, .rate = rng_in(r, 0, 1) ? 0.6f : 2, .threshold = -1};
        if (rng_in(r, 0, 1)) {
            j->proposer.propose = propose_tree;
            j->proposer.tree = &j->tree;
            j->proposer.whole = rng_in(r, 0, 3) == 0;
        }
        q->spec.proposer = &j->proposer;
        q->spec.asked = j->proposer.rate > 1;
    }
    nrd_decode_prepare(q);
    j->start_step = rng_in(r, 0, 30);
    j->cancel_step = rng_in(r, 0, 9) == 0 ? rng_in(r, 0, 40) : -1;
}

/* A record as files have it, from a file. */
#endif
