/* SPDX-License-Identifier: Apache-2.0
 * Events are read one by one; what is asked of the scheduler goes through the same functions as in the
 * engine's loop, and what it would have to ask others is answered from the record through its tap. */
#include "engine/replay.h"

#include "base/mem.h"
#include "engine/decode/decode.h"

#include <inttypes.h>
#include <string.h>

enum {
    MAX_BLOCKS = 1 << 26,
    MAX_SEQ_TOKENS = 1 << 24,
    MAX_STEP_TOKENS = 1 << 24,
    MAX_BATCH = 1 << 20,
    MAX_SEQS = 1 << 26,
    MAX_RANGES = 1 << 16,
};

typedef struct one {
    nrd_seq q;
    nrd_record_add add;
    nrd_kv_retention retention;
    nrd_kv_range *ranges;
    bool is_idle;
} one;

typedef struct replay {
    const uint32_t *const *words;
    const size_t *n;
    size_t at[2]; /* half, word */
    const nrd_replay_options *o;
    nrd_replay_result *res;
    nrd_kv *kv;
    nrd_sched *sched;
    nrd_sched_tap tap;
    nrd_plan plans[NRD_SCHED_MAX_MICRO];
    int32_t n_plans, n_inflight, first; /* plans[first] was made first */
    nrd_sched_event *events;
    bool *no_choice;
    one **seqs;
    size_t n_seqs, cap_seqs;
    const uint32_t *rows; /* of the commit being done */
    int32_t n_rows;
    const uint32_t *appended;
    nrd_seq_finish append_finish;
} replay;

typedef struct event {
    nrd_record_kind kind;
    const uint32_t *words;
    uint32_t n;
} event;

/* ---- reading ---- */

static bool look(const replay *r, event *e)
{
    size_t half = r->at[0], at = r->at[1];
    if (half < 2 && at == r->n[half]) {
        half++;
        at = 0;
    }
    if (half >= 2 || at >= r->n[half]) {
        return false;
    }
    const uint32_t word = r->words[half][at], n = word & NRD_RECORD_MAX_EVENT;
    if (n > r->n[half] - at - 1) {
        return false;
    }
    *e = (event){.kind = (nrd_record_kind)(word >> 24), .words = r->words[half] + at + 1, .n = n};
    return true;
}

static void step_over(replay *r, const event *e)
{
    if (r->at[1] == r->n[r->at[0]]) {
        r->at[0]++;
        r->at[1] = 0;
    }
    r->at[1] += 1 + (size_t)e->n;
    r->res->n_events++;
}

static bool stop(replay *r, nrd_replay_end how, const char *reason)
{
    r->res->end = how;
    snprintf(r->res->reason, sizeof r->res->reason, "%s", reason);
    return false;
}

static bool broken(replay *r, const char *what)
{
    return stop(r, NRD_REPLAY_BROKEN, what);
}

static bool traced(const replay *r)
{
    return r->o->trace && r->res->step >= r->o->from;
}

/* ---- what the scheduler asks ---- */

/* Masks that were asked for in a plan stand before its event. */
static bool tap_held(void *user, const nrd_seq *q, bool is_held)
{
    replay *r = user;
    event e;
    (void)is_held;
    if (!look(r, &e) || e.kind != NRD_RECORD_HELD || e.n != 2 || e.words[0] != q->sched.record_no) {
        return false; /* the plan will differ */
    }
    step_over(r, &e);
    return e.words[1] != 0;
}

static nrd_seq_finish tap_accept(void *user, nrd_seq *q, int32_t row, int32_t *out_n_new)
{
    replay *r = user;
    const uint32_t word = row < r->n_rows ? r->rows[row] : 0;
    *out_n_new = 0;
    if ((word >> 3 & 1) && q->dec.n_known < q->req.max_total) {
        q->dec.tokens[q->dec.n_known++] = (int32_t)(word >> 5);
        *out_n_new = 1;
        r->res->n_tokens++;
    }
    return (nrd_seq_finish)(word & 7);
}

static nrd_seq_finish tap_append(void *user, nrd_seq *q, const int32_t *ids, int32_t n, int32_t *n_new)
{
    replay *r = user;
    (void)ids;
    for (int32_t i = 0; i < n && q->dec.n_known < q->req.max_total; i++) {
        q->dec.tokens[q->dec.n_known++] = (int32_t)r->appended[i];
        (*n_new)++;
    }
    return r->append_finish;
}

/* ---- sequences ---- */

static void free_one(one *s)
{
    if (!s) {
        return;
    }
    for (int32_t b = 0; s->q.sched.tables && b < s->q.req.width; b++) {
        nrd_kv_table_fini(&s->q.sched.tables[b]);
    }
    free(s->q.sched.tables);
    free(s->q.sched.slots);
    free(s->q.dec.tokens);
    free(s->ranges);
    s->q.sched.tables = NULL;
    s->q.sched.slots = NULL;
    s->q.dec.tokens = NULL;
    s->ranges = NULL;
}

static one *find(const replay *r, uint32_t no)
{
    one *s = no < r->n_seqs ? r->seqs[no] : NULL;
    return s && !s->is_idle ? s : NULL;
}

static uint64_t pair(const uint32_t *w)
{
    return (uint64_t)w[1] << 32 | w[0];
}

static nrd_error *read_retention(one *s, const uint32_t *w)
{
    nrd_error *err = NULL;
    const int32_t n = s->add.n_retention;
    NRD_NEW_GOTO(s->ranges, n + 1, err, fail);
    for (int32_t i = 0; i < n; i++) {
        const uint32_t *k = w + 4 + 5 * (size_t)i;
        s->ranges[i] = (nrd_kv_range){(int32_t)k[0], (int32_t)k[1], (int32_t)k[2], (int64_t)pair(k + 3)};
    }
    s->retention = (nrd_kv_retention){
        .ranges = s->ranges,
        .n_ranges = n,
        .n_prompt = (int32_t)w[0],
        .decode_priority = (int32_t)w[1],
        .decode_duration_ms = (int64_t)pair(w + 2),
    };
    s->q.req.content.retention = &s->retention;
fail:
    return err;
}

static bool fits(const replay *r, const nrd_record_add *a, uint32_t n_words, const nrd_record_head *h)
{
    const int32_t bt = h->kv.block_tokens;
    if (a->seq != r->n_seqs || a->n_prompt <= 0 || a->n_prompt > a->max_total || a->max_total > MAX_SEQ_TOKENS ||
        a->width <= 0 || a->width > h->limits.max_beam_width || a->n_retention > MAX_RANGES || a->n_retention < -1) {
        return false;
    }
    if (a->leader != (uint32_t)NRD_RECORD_NONE && (a->leader >= r->n_seqs || a->n_prompt != r->seqs[a->leader]->add.n_prompt)) {
        return false;
    }
    if (nrd_sched_worst_blocks(&h->limits, bt, a->n_prompt, a->max_total, a->width) > h->kv.n_blocks) {
        return false;
    }
    const size_t n_keep = a->n_retention >= 0 ? 4 + 5 * (size_t)a->n_retention : 0;
    return n_words == sizeof *a / 4 + n_keep + (size_t)a->n_prompt;
}

static nrd_error *read_add(replay *r, const nrd_record_head *h, const event *e, bool *ok)
{
    nrd_error *err = NULL;
    one *s = NULL;
    nrd_record_add a;
    const int32_t bt = h->kv.block_tokens;

    *ok = e->n >= sizeof a / 4 && r->n_seqs < MAX_SEQS;
    if (*ok) {
        memcpy(&a, e->words, sizeof a);
        *ok = fits(r, &a, e->n, h) && (a.width == 1 || !(a.flags & (NRD_RECORD_HANDED_TOKEN | NRD_RECORD_HANDED_BLOCKS)));
    }
    if (!*ok) {
        broken(r, "an arrival has impossible sizes");
        return NULL;
    }
    if (a.flags & NRD_RECORD_DRAFTS) {
        *ok = stop(r, NRD_REPLAY_UNRECORDED, "a request has draft tokens: guesses follow from text, which is not in the record");
        return NULL;
    }
    if (r->n_seqs == r->cap_seqs) {
        const size_t cap = r->cap_seqs ? r->cap_seqs * 2 : 1024;
        one **more = realloc(r->seqs, cap * sizeof *more);
        if (!more) {
            return nrd_error_no_memory();
        }
        r->seqs = more;
        r->cap_seqs = cap;
    }
    NRD_NEW_GOTO(s, 1, err, fail);
    s->add = a;
    nrd_seq *q = &s->q;
    q->req = (nrd_seq_request){
        .id = a.request,
        .index = (int32_t)a.index,
        .group = (uint64_t)a.group[1] << 32 | a.group[0],
        .flow = (uint64_t)a.flow[1] << 32 | a.flow[0],
        .owner = s,
        .priority = a.priority,
        .width = a.width,
        .n_prompt = a.n_prompt,
        .max_total = a.max_total,
        .end_id = -1,
        .no_reuse = (a.flags & NRD_RECORD_NO_REUSE) != 0,
        .no_sample = (a.flags & NRD_RECORD_NO_SAMPLE) != 0,
        .may_jump = (a.flags & NRD_RECORD_MAY_JUMP) != 0,
        .picture_rows = (a.flags & NRD_RECORD_PICTURES) != 0, /* that there are some; nothing is computed here */
        .handed = (a.flags & NRD_RECORD_HANDED_BLOCKS)  ? NRD_HANDED_BLOCKS
                  : (a.flags & NRD_RECORD_HANDED_TOKEN) ? NRD_HANDED_TOKEN
                                                        : NRD_NOT_HANDED,
        .leader = a.leader == (uint32_t)NRD_RECORD_NONE ? NULL : &r->seqs[a.leader]->q,
        .content.key = {(uint64_t)a.key[1] << 32 | a.key[0], (uint64_t)a.key[3] << 32 | a.key[2]},
    };
    q->sched.record_no = a.seq;
    q->sched.is_guided = (a.flags & NRD_RECORD_GUIDED) != 0;
    q->dec.n_known = a.n_prompt;
    q->dec.needs_host = (a.flags & NRD_RECORD_NEEDS_HOST) != 0;
    q->dec.keeps_counts = (a.flags & NRD_RECORD_KEEPS_COUNTS) != 0;
    NRD_NEW_GOTO(q->dec.tokens, a.max_total, err, fail);
    q->req.content.tokens = q->dec.tokens;
    NRD_NEW_GOTO(q->sched.slots, a.width, err, fail);
    NRD_NEW_GOTO(q->sched.tables, a.width, err, fail);
    for (int32_t b = 0; b < a.width; b++) {
        NRD_TRY_GOTO(nrd_kv_table_init(&q->sched.tables[b], (a.max_total + bt - 1) / bt + 1), err, fail);
    }
    const uint32_t *w = e->words + sizeof a / 4;
    if (a.n_retention >= 0) {
        NRD_TRY_GOTO(read_retention(s, w), err, fail);
        w += 4 + 5 * (size_t)a.n_retention;
    }
    for (int32_t i = 0; i < a.n_prompt; i++) {
        q->dec.tokens[i] = (int32_t)w[i];
    }
    r->seqs[r->n_seqs++] = s;
    r->res->n_sequences++;
    if (traced(r)) {
        fprintf(r->o->trace, "arrival %u: prompt %d, at most %d, width %d, priority %g\n", a.seq, a.n_prompt,
                a.max_total - a.n_prompt, a.width, (double)a.priority);
    }
    nrd_sched_add(r->sched, q);
    return NULL;

fail:
    free_one(s);
    free(s);
    return err;
}

static void reap(replay *r)
{
    nrd_seq *q;
    while ((q = nrd_sched_take_idle(r->sched)) != NULL) {
        one *s = q->req.owner;
        s->is_idle = true;
        free_one(s);
    }
}

/* ---- steps ---- */

static void trace_plan(const replay *r, const nrd_plan *p, const nrd_record_plan *e)
{
    fprintf(r->o->trace, "step %" PRIu64 ": %d rows, %d tokens, %d prompts, %d paused, %d held; blocks: %d free, %d cached\n",
            p->step, p->n_rows, p->n_tokens, p->n_context, p->n_paused, p->n_held, e->n_free, e->n_cached);
    for (int32_t i = 0; i < p->n_entries; i++) {
        const nrd_plan_entry *x = &p->entries[i];
        fprintf(r->o->trace, "  sequence %u beam %d slot %d: tokens %d to %d%s, %d blocks\n", x->seq->sched.record_no, x->beam,
                x->slot, x->start, x->start + x->n - 1, x->is_context ? " of its prompt" : "",
                x->seq->sched.tables[x->beam].n_blocks);
    }
}

static bool read_plan(replay *r, const event *first)
{
    nrd_record_plan want;
    event e = *first;
    nrd_plan *p = &r->plans[(r->first + r->n_inflight) % r->n_plans];

    if (r->n_inflight == r->n_plans) {
        return broken(r, "too many steps at once");
    }
    /* The time stands in the plan's own event, behind the masks that it asked for. */
    for (size_t half = r->at[0], at = r->at[1]; e.kind == NRD_RECORD_HELD;) {
        replay ahead = *r;
        nrd_replay_result none = {0};
        ahead.res = &none;
        ahead.at[0] = half;
        ahead.at[1] = at;
        step_over(&ahead, &e);
        half = ahead.at[0];
        at = ahead.at[1];
        if (!look(&ahead, &e)) {
            return false; /* the record ends inside the plan */
        }
    }
    if (e.kind != NRD_RECORD_PLAN || e.n != sizeof want / 4) {
        return broken(r, "masks were asked for outside a plan");
    }
    memcpy(&want, e.words, sizeof want);
    nrd_kv_set_time(r->kv, (int64_t)pair(want.now_ms));
    nrd_sched_plan(r->sched, p);
    const nrd_record_plan got = nrd_record_plan_of(p, r->kv);
    r->res->n_plans++;
    r->res->step = p->step;
    r->res->recorded = want;
    r->res->replayed = got;
    if (traced(r) && p->n_entries > 0) {
        trace_plan(r, p, &got);
    }
    if (!look(r, &e) || e.kind != NRD_RECORD_PLAN || memcmp(&want, &got, sizeof want) != 0) {
        return stop(r, NRD_REPLAY_DIFFERS, "the plan is another one");
    }
    step_over(r, &e);
    r->n_inflight += p->n_entries > 0;
    return true;
}

static bool read_commit(replay *r, const event *e)
{
    nrd_plan *p = &r->plans[r->first];
    nrd_step_result result = {.no_choice = r->no_choice};
    int32_t n = 0;

    if (r->n_inflight == 0 || e->n != 1 + (uint32_t)p->n_rows || e->words[0] != (uint32_t)p->step) {
        return broken(r, "the end of a step that is not under way");
    }
    r->rows = e->words + 1;
    r->n_rows = p->n_rows;
    for (int32_t i = 0; i < p->n_rows; i++) {
        r->no_choice[i] = (r->rows[i] >> 4 & 1) != 0;
    }
    for (int32_t i = 0; i < p->n_entries; i++) {
        if (p->entries[i].row >= 0 && p->entries[i].seq->req.width > 1) {
            return stop(r, NRD_REPLAY_UNRECORDED, "a beam search chooses by log probabilities, which are not in the record");
        }
    }
    nrd_sched_commit(r->sched, p, &result, r->events, &n);
    p->n_entries = 0;
    r->first = (r->first + 1) % r->n_plans;
    r->n_inflight--;
    if (traced(r)) {
        for (int32_t i = 0; i < n; i++) {
            if (r->events[i].finish != NRD_SEQ_FINISH_NONE) {
                fprintf(r->o->trace, "  sequence %u ended (%d) with %d tokens\n", r->events[i].seq->sched.record_no,
                        (int)r->events[i].finish, nrd_seq_n_generated(r->events[i].seq));
            }
        }
    }
    step_over(r, e);
    return true;
}

static bool read_append(replay *r, const event *e)
{
    one *s = e->n >= 2 ? find(r, e->words[0]) : NULL;
    const bool is_choice = s && s->q.req.handed && s->q.dec.n_known == s->q.req.n_prompt;
    if (!s || !(s->q.req.may_jump || is_choice) || nrd_seq_is_done(&s->q) || e->n - 2 > (is_choice ? 1 : NRD_MAX_JUMP)) {
        return broken(r, "tokens for a sequence that takes none");
    }
    nrd_sched_event ev = {.seq = &s->q, .n_new = 1};
    r->appended = e->words + 2;
    r->append_finish = (nrd_seq_finish)e->words[1];
    nrd_sched_append(r->sched, (const int32_t *)(const void *)r->appended, (int32_t)(e->n - 2), &ev);
    step_over(r, e);
    return true;
}

static bool read_end(replay *r, const event *e)
{
    one *s = e->n == 1 ? find(r, e->words[0]) : NULL;
    if (!s) {
        return broken(r, "the end of a sequence that is not there");
    }
    if (traced(r)) {
        fprintf(r->o->trace, "sequence %u is ended from outside\n", e->words[0]);
    }
    nrd_sched_end(r->sched, &s->q);
    step_over(r, e);
    return true;
}

static nrd_error *run_events(replay *r, const nrd_record_head *h)
{
    event e;
    bool ok = true;
    while (ok && look(r, &e)) {
        switch (e.kind) {
        case NRD_RECORD_ADD:
            NRD_TRY(read_add(r, h, &e, &ok));
            if (ok) {
                step_over(r, &e);
            }
            break;
        case NRD_RECORD_END:
            ok = read_end(r, &e);
            break;
        case NRD_RECORD_HELD:
        case NRD_RECORD_PLAN:
            reap(r);
            ok = read_plan(r, &e);
            break;
        case NRD_RECORD_COMMIT:
            ok = read_commit(r, &e);
            break;
        case NRD_RECORD_APPEND:
            ok = read_append(r, &e);
            break;
        case NRD_RECORD_FORGET:
            for (; r->n_inflight > 0; r->n_inflight--, r->first = (r->first + 1) % r->n_plans) {
                nrd_sched_forget(r->sched, &r->plans[r->first]);
            }
            step_over(r, &e);
            break;
        default:
            ok = broken(r, "an event of no known kind");
        }
    }
    return NULL;
}

/* ---- all of it ---- */

static void put_list(FILE *f, const char *what, const nrd_seq *q, bool running)
{
    fprintf(f, "%s:\n", what);
    for (; q; q = running ? q->sched.run_next : q->sched.wait_next) {
        fprintf(f, "  sequence %u: prompt %d, %d generated of %d, %d computed, %d blocks, paused %d times%s\n",
                q->sched.record_no, q->req.n_prompt, nrd_seq_n_generated(q), q->req.max_total - q->req.n_prompt,
                q->sched.n_computed, q->sched.tables[0].n_blocks, q->sched.n_paused,
                q->sched.n_inflight > 0 ? ", in a step" : "");
    }
}

static nrd_error *check_head(const nrd_record_head *h)
{
    const nrd_sched_limits *l = &h->limits;
    if (l->max_batch_size <= 0 || l->max_batch_size > MAX_BATCH || l->max_beam_width <= 0 ||
        l->max_beam_width > NRD_MAX_BEAM_WIDTH || l->max_num_tokens <= 0 || l->max_num_tokens > MAX_STEP_TOKENS ||
        h->kv.n_blocks <= 0 || h->kv.n_blocks > MAX_BLOCKS || h->kv.n_host_blocks < 0 ||
        h->kv.n_host_blocks > MAX_BLOCKS || h->kv.n_states < 0 || h->kv.n_states > MAX_BLOCKS || h->kv.block_tokens <= 0 || h->kv.block_tokens > MAX_STEP_TOKENS ||
        l->choices_at_once < 0 || l->even_context_tokens < 0 || l->n_micro < 0 || l->n_micro > NRD_SCHED_MAX_MICRO || l->window < 0 ||
        l->n_sink < 0 || l->window > MAX_SEQ_TOKENS || l->n_sink > MAX_SEQ_TOKENS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the record's limits are impossible");
    }
    return NULL;
}

static void finish(replay *r)
{
    for (; r->n_inflight > 0; r->n_inflight--, r->first = (r->first + 1) % r->n_plans) {
        nrd_sched_forget(r->sched, &r->plans[r->first]);
    }
    nrd_seq *q;
    while (r->sched && ((q = nrd_sched_first_running(r->sched)) != NULL || (q = nrd_sched_first_waiting(r->sched)) != NULL)) {
        nrd_sched_end(r->sched, q);
    }
    if (r->sched) {
        reap(r);
    }
    for (size_t i = 0; i < r->n_seqs; i++) {
        free_one(r->seqs[i]);
        free(r->seqs[i]);
    }
    free(r->seqs);
    free(r->events);
    free(r->no_choice);
    for (int32_t i = 0; i < NRD_SCHED_MAX_MICRO; i++) {
        nrd_plan_fini(&r->plans[i]);
    }
    nrd_sched_free(r->sched);
    nrd_kv_free(r->kv);
}

nrd_error *nrd_replay_run(const nrd_record_head *head, const uint32_t *const words[2], const size_t n[2],
                          const nrd_replay_options *options, nrd_replay_result *out)
{
    nrd_error *err = NULL;
    replay r = {.words = words, .n = n, .o = options, .res = out};

    *out = (nrd_replay_result){.end = NRD_REPLAY_SAME};
    r.tap = (nrd_sched_tap){.user = &r, .held = tap_held, .accept = tap_accept, .append = tap_append};
    NRD_TRY(check_head(head));
    if (head->n_turns > 1) {
        event e;
        for (; look(&r, &e); step_over(&r, &e)) {
            if (e.kind == NRD_RECORD_PLAN && e.n == sizeof out->recorded / 4) {
                memcpy(&out->recorded, e.words, sizeof out->recorded);
                out->step = out->recorded.step;
                out->n_plans++;
            }
            out->n_sequences += e.kind == NRD_RECORD_ADD;
        }
        stop(&r, NRD_REPLAY_NO_START, "its beginning was overwritten: more happened than it has room for");
        return NULL;
    }
    NRD_TRY_GOTO(nrd_kv_new(&r.kv, &head->kv), err, done);
    NRD_TRY_GOTO(nrd_sched_new(&r.sched, &head->limits, r.kv), err, done);
    nrd_sched_set_tap(r.sched, &r.tap);
    r.n_plans = head->limits.n_micro > 1 ? head->limits.n_micro : 2;
    for (int i = 0; i < r.n_plans; i++) {
        NRD_TRY_GOTO(nrd_plan_init(&r.plans[i], &head->limits, r.kv), err, done);
    }
    NRD_NEW_GOTO(r.events, r.plans[0].cap_entries, err, done);
    NRD_NEW_GOTO(r.no_choice, r.plans[0].cap_entries, err, done);
    err = run_events(&r, head);
    if (!err && options->state) {
        put_list(options->state, "running", nrd_sched_first_running(r.sched), true);
        put_list(options->state, "waiting", nrd_sched_first_waiting(r.sched), false);
    }
done:
    finish(&r);
    return err;
}

nrd_error *nrd_replay_requests(const uint32_t *const words[2], const size_t n[2],
                               void (*each)(void *user, const nrd_record_add *a), void *user)
{
    nrd_replay_result none = {0};
    replay r = {.words = words, .n = n, .res = &none};
    event e;
    for (; look(&r, &e); step_over(&r, &e)) {
        nrd_record_add a;
        if (e.kind == NRD_RECORD_ADD && e.n >= sizeof a / 4) {
            memcpy(&a, e.words, sizeof a);
            if (a.n_prompt <= 0 || a.max_total < a.n_prompt || a.max_total > MAX_SEQ_TOKENS) {
                return nrd_errorf(NRD_ERR_INVALID_ARG, "an arrival has impossible sizes");
            }
            each(user, &a);
        }
    }
    return NULL;
}

nrd_error *nrd_replay_find(const void *data, size_t n, size_t *at, const nrd_record_head **out_head,
                           const uint32_t *out_words[2], size_t out_n[2])
{
    static const char mark[] = NRD_RECORD_MARK;
    const char *bytes = data;
    const uint32_t magic = NRD_RECORD_MAGIC;

    *out_head = NULL;
    if (*at == 0 && n >= sizeof magic && memcmp(bytes, &magic, sizeof magic) == 0) {
        /* a file of one record */
    } else {
        const char *found = *at < n ? memmem(bytes + *at, n - *at, mark, sizeof mark - 1) : NULL;
        if (!found) {
            *at = n;
            return NULL;
        }
        *at = (size_t)(found - bytes) + sizeof mark - 1;
    }
    if (*at % sizeof(uint64_t) != 0 || (uintptr_t)data % sizeof(uint64_t) != 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the file was changed: the scheduler's record does not lie where it was written");
    }
    const nrd_record_head *h = (const nrd_record_head *)(const void *)(bytes + *at);
    if (n - *at < sizeof *h) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the scheduler's record is cut off");
    }
    if (h->magic != magic || h->version != NRD_RECORD_VERSION || h->head_bytes != sizeof *h) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the scheduler's record is of another version of Nereid");
    }
    if (h->used[0] > h->half_words || h->used[1] > h->half_words || h->current > 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the scheduler's record has impossible sizes");
    }
    const uint32_t older = h->n_turns > 0 ? 1 - h->current : h->current;
    const uint32_t *first = (const uint32_t *)(const void *)(h + 1);
    const size_t room = (n - *at - sizeof *h) / 4;
    out_n[0] = h->used[older];
    out_n[1] = h->n_turns > 0 ? h->used[h->current] : 0;
    const size_t need = h->packed ? out_n[0] + out_n[1] : 2 * (size_t)h->half_words;
    if (need > room) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the scheduler's record is cut off");
    }
    out_words[0] = h->packed ? first : first + (older ? h->half_words : 0);
    out_words[1] = h->packed ? first + out_n[0] : first + (h->current ? h->half_words : 0);
    *out_head = h;
    *at += sizeof *h + need * 4;
    return NULL;
}
