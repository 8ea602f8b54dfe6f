/* SPDX-License-Identifier: Apache-2.0
 * The loop of an engine without the engine: arrivals go to the scheduler when their time has come, a plan's step ends
 * when the caller's figure says, and is committed then. Over the stages of a pipeline steps follow each other as in a
 * flow shop: a stage begins a step when it is free and the stage before is done with it. */
#include "engine/simulate.h"

#include "base/mem.h"

#include <string.h>

typedef struct under_way {
    int32_t plan;
    double end_s;
} under_way;

typedef struct sim {
    const nrd_sim_config *cfg;
    nrd_sim_request *requests;
    size_t n, n_arrived, n_ended;
    nrd_sim_result *out;
    nrd_kv *kv;
    nrd_sched *sched;
    nrd_sched_tap tap;
    nrd_plan plans[NRD_SCHED_MAX_MICRO];
    nrd_sched_event *events;
    double now_s, free_s[NRD_SCHED_MAX_MICRO]; /* when each stage is done with what it has */
    under_way line[NRD_SCHED_MAX_MICRO];       /* oldest first */
    int32_t n_line, next_plan;
} sim;

/* Any token will do. */
static nrd_seq_finish accept(void *user, nrd_seq *q, int32_t row, int32_t *out_n_new)
{
    (void)user;
    (void)row;
    q->dec.tokens[q->dec.n_known++] = 0;
    *out_n_new = 1;
    return q->dec.n_known == q->req.max_total ? NRD_SEQ_FINISH_LENGTH : NRD_SEQ_FINISH_NONE;
}

/* ---- sequences ---- */

static void free_seq(nrd_seq *q)
{
    if (q->sched.tables) {
        nrd_kv_table_fini(q->sched.tables);
    }
    free(q->sched.tables);
    free(q->sched.slots);
    free(q->dec.tokens);
    free(q);
}

static nrd_error *check_request(const sim *s, size_t i)
{
    const nrd_sim_request *r = &s->requests[i];
    const nrd_sched_limits *lim = s->cfg->limits;

    if (r->n_in < 1 || r->n_out < 1 || r->n_in > INT32_MAX - r->n_out) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "request %zu: %d prompt and %d new tokens, expected at least one of each", i,
                          r->n_in, r->n_out);
    }
    if (!lim->chunked_context && r->n_in > lim->max_num_tokens) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "request %zu: %d prompt tokens, but a step has at most %d (max_num_tokens)", i,
                          r->n_in, lim->max_num_tokens);
    }
    const int32_t need = nrd_sched_worst_blocks(lim, s->cfg->block_tokens, r->n_in, r->n_in + r->n_out, 1);
    return need <= s->cfg->n_blocks
               ? NULL
               : nrd_errorf(NRD_ERR_INVALID_ARG, "request %zu: %d tokens need %d blocks of the KV cache, which has %d", i,
                            r->n_in + r->n_out, need, s->cfg->n_blocks);
}

static nrd_error *arrive(sim *s)
{
    nrd_sim_request *r = &s->requests[s->n_arrived];
    const int32_t total = r->n_in + r->n_out, bt = s->cfg->block_tokens;
    nrd_error *err = NULL;
    nrd_seq *q = NULL;

    NRD_NEW_GOTO(q, 1, err, fail);
    NRD_NEW_GOTO(q->dec.tokens, (size_t)total, err, fail);
    NRD_NEW_GOTO(q->sched.slots, 1, err, fail);
    NRD_NEW_GOTO(q->sched.tables, 1, err, fail);
    NRD_TRY_GOTO(nrd_kv_table_init(q->sched.tables, (total + bt - 1) / bt + 1), err, fail);
    q->req = (nrd_seq_request){
        .id = s->n_arrived,
        .owner = r,
        .priority = 0.5f,
        .width = 1,
        .n_prompt = r->n_in,
        .max_total = total,
        .end_id = -1,
        .content.tokens = q->dec.tokens,
    };
    q->dec.n_known = r->n_in;
    nrd_sched_add(s->sched, q);
    s->n_arrived++;
    return NULL;

fail:
    if (q) {
        free_seq(q);
    }
    return err;
}

static void reap(sim *s)
{
    nrd_seq *q;
    while ((q = nrd_sched_take_idle(s->sched)) != NULL) {
        free_seq(q);
    }
}

/* ---- steps ---- */

static nrd_sim_step weigh(const nrd_plan *p)
{
    nrd_sim_step out = {0};
    for (int32_t i = 0; i < p->n_entries; i++) {
        const nrd_plan_entry *e = &p->entries[i];
        const double pairs = (double)e->n * e->start + (double)e->n * (e->n + 1) / 2;
        if (e->is_context) {
            out.n_context_tokens += e->n;
            out.context_pairs += pairs;
        } else {
            out.n_generation++;
            out.generation_pairs += pairs;
        }
    }
    return out;
}

/* Whether a step could be started. */
static bool start(sim *s)
{
    nrd_plan *p = &s->plans[s->next_plan];

    nrd_kv_set_time(s->kv, (int64_t)(s->now_s * 1e3));
    nrd_sched_plan(s->sched, p);
    if (p->n_entries == 0) {
        return false;
    }
    const nrd_sim_step step = weigh(p);
    const double each_s = s->cfg->step_s(s->cfg->user, &step) / s->cfg->n_stages;
    double at = s->now_s;
    for (int32_t i = 0; i < s->cfg->n_stages; i++) {
        at = (s->free_s[i] > at ? s->free_s[i] : at) + each_s;
        s->free_s[i] = at;
    }
    s->out->busy_s += each_s * s->cfg->n_stages;
    s->out->n_steps++;
    s->out->most_running = p->n_context + p->n_generation > s->out->most_running ? p->n_context + p->n_generation
                                                                                : s->out->most_running;
    s->line[s->n_line++] = (under_way){s->next_plan, at};
    s->next_plan = (s->next_plan + 1) % s->cfg->n_stages;
    return true;
}

/* The oldest step's end. */
static void finish(sim *s)
{
    const under_way done = s->line[0];
    const nrd_step_result none = {0};
    int32_t n = 0;

    memmove(s->line, s->line + 1, (size_t)--s->n_line * sizeof *s->line);
    s->now_s = done.end_s > s->now_s ? done.end_s : s->now_s;
    nrd_sched_commit(s->sched, &s->plans[done.plan], &none, s->events, &n);
    for (int32_t i = 0; i < n; i++) {
        const nrd_sched_event *e = &s->events[i];
        nrd_sim_request *r = e->seq->req.owner;
        if (e->n_new > 0 && nrd_seq_n_generated(e->seq) == e->n_new) {
            r->first_s = s->now_s;
        }
        if (e->finish != NRD_SEQ_FINISH_NONE) {
            r->end_s = s->now_s;
            s->n_ended++;
        }
    }
    reap(s);
}

static nrd_error *run(sim *s)
{
    while (s->n_ended < s->n) {
        while (s->n_arrived < s->n && s->requests[s->n_arrived].at_s <= s->now_s) {
            NRD_TRY(arrive(s));
        }
        if (s->n_line < s->cfg->n_stages && start(s)) {
            continue;
        }
        /* A stage that is free takes what comes before the oldest step's end. */
        const bool has_next = s->n_arrived < s->n;
        const double next_s = has_next ? s->requests[s->n_arrived].at_s : 0;
        if (s->n_line == 0 || (has_next && s->n_line < s->cfg->n_stages && next_s < s->line[0].end_s)) {
            NRD_ASSERT(has_next, "what has arrived can run");
            s->now_s = next_s;
        } else {
            finish(s);
        }
    }
    return NULL;
}

static void end(sim *s)
{
    for (nrd_seq *q; s->sched && (q = nrd_sched_first_running(s->sched)) != NULL; reap(s)) {
        nrd_sched_end(s->sched, q);
    }
    for (nrd_seq *q; s->sched && (q = nrd_sched_first_waiting(s->sched)) != NULL; reap(s)) {
        nrd_sched_end(s->sched, q);
    }
    nrd_sched_free(s->sched);
    nrd_kv_free(s->kv);
    for (int i = 0; i < NRD_SCHED_MAX_MICRO; i++) {
        nrd_plan_fini(&s->plans[i]);
    }
    free(s->events);
}

nrd_error *nrd_simulate(const nrd_sim_config *cfg, nrd_sim_request *requests, size_t n, nrd_sim_result *out)
{
    const nrd_kv_config kv = {.n_blocks = cfg->n_blocks, .block_tokens = cfg->block_tokens};
    sim s = {.cfg = cfg, .requests = requests, .n = n, .out = out};
    nrd_error *err = NULL;

    *out = (nrd_sim_result){0};
    NRD_ASSERT(cfg->n_stages >= 1 && cfg->n_stages <= NRD_SCHED_MAX_MICRO, "stages are bounded");
    for (size_t i = 0; i < n; i++) { /* before anything is under way */
        NRD_TRY(check_request(&s, i));
    }
    NRD_TRY_GOTO(nrd_kv_new(&s.kv, &kv), err, done);
    NRD_TRY_GOTO(nrd_sched_new(&s.sched, cfg->limits, s.kv), err, done);
    s.tap = (nrd_sched_tap){.user = &s, .accept = accept};
    nrd_sched_set_tap(s.sched, &s.tap);
    for (int32_t i = 0; i < cfg->n_stages; i++) {
        NRD_TRY_GOTO(nrd_plan_init(&s.plans[i], cfg->limits, s.kv), err, done);
    }
    NRD_NEW_GOTO(s.events, s.plans[0].cap_entries, err, done);
    NRD_TRY_GOTO(run(&s), err, done);
    nrd_sched_stats st;
    nrd_sched_get_stats(s.sched, &st);
    out->n_pauses = st.n_pauses;
    out->end_s = s.now_s;
done:
    end(&s);
    return err;
}
