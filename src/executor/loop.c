/* SPDX-License-Identifier: Apache-2.0
 * The engine loop: takes requests and cancels from the inbox, plans, runs, commits, answers.
 *
 * A request's life here: inbox -> scheduler (all its sequences) -> responses in the outbox, the
 * last of which is final -> the scheduler gives its sequences back as idle -> freed. Between the
 * final response and the end a step in flight may still refer to it. */
#include "executor/handover.h"

#include "base/clock.h"
#include "executor/draft_model.h"
#include "executor/eagle_model.h"
#include "executor/medusa_model.h"
#include "executor/redrafter_model.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- taking in ---- */

static void reap(nrd_exec *x)
{
    nrd_seq *q;
    while ((q = nrd_sched_take_idle(x->sched)) != NULL) {
        nrd_exec_request_state *r = q->req.owner;
        if (++r->n_idle == r->n_seqs) {
            nrd_exec_request_free(r);
        }
    }
}

/* Ends it with what it has; why: CANCELLED or TIMED_OUT. */
static void end_early(nrd_exec *x, nrd_exec_request_state *r, nrd_seq_finish why)
{
    if (!r->is_taken && !(r->is_guided && nrd_guides_leave(x->guides, &r->guide_wait))) {
        r->is_cancelled = true; /* it is about to come */
        return;
    }
    if (!r->is_taken) {
        r->is_taken = true;
        pthread_mutex_lock(&x->mu);
        x->n_compiling--;
        pthread_mutex_unlock(&x->mu);
    }
    if (nrd_exec_is_held_back(x, r)) {
        nrd_exec_take_back(x, r);
    }
    for (int32_t i = 0; i < r->n_seqs; i++) {
        nrd_seq *q = &r->seqs[i];
        if (!nrd_seq_is_done(q)) {
            nrd_sched_end(x->sched, q);
            nrd_exec_answer(x, q, 0, why);
        }
    }
}

static void cancel_request(nrd_exec *x, nrd_exec_request_state *r)
{
    end_early(x, r, NRD_SEQ_FINISH_CANCELLED);
}

/* Between steps, so that a request overruns its time by the steps that are under way, at most two. */
static void end_late(nrd_exec *x)
{
    bool to_start;
    nrd_exec_request_state *r = NULL;
    const int64_t now = x->due_head ? (int64_t)nrd_now_ns() : 0;

    while ((r = nrd_exec_deadline_due(x, now, &to_start)) != NULL) {
        /* A vector or scores are there as a whole or not at all. */
        if (!to_start && !r->pooling && !r->score) {
            end_early(x, r, NRD_SEQ_FINISH_TIMED_OUT);
            continue;
        }
        if (nrd_exec_is_held_back(x, r)) {
            nrd_exec_take_back(x, r);
        }
        if (r->n_open > 0) {
            x->n_terminated_step++;
            nrd_exec_end_request(x, r, nrd_errorf(NRD_ERR_UNAVAILABLE, "Request timeout expired"));
        }
    }
}

static void cancel_all(nrd_exec *x)
{
    nrd_seq *q;
    while (x->held_back) {
        cancel_request(x, x->held_back);
    }
    while ((q = nrd_sched_first_running(x->sched)) != NULL ||
           (q = nrd_sched_first_waiting(x->sched)) != NULL) {
        cancel_request(x, q->req.owner);
    }
    /* Those whose guides are being compiled. Only this thread takes requests out of the table. */
    for (int i = 0; i < ACTIVE_BUCKETS; i++) {
        nrd_exec_request_state *r, *next;
        pthread_mutex_lock(&x->mu);
        r = x->active[i];
        pthread_mutex_unlock(&x->mu);
        for (; r; r = next) {
            next = r->hash_next;
            if (!r->is_taken) {
                cancel_request(x, r);
            }
        }
    }
}

/* The device is gone: everybody hears it once. */
static void lose(nrd_exec *x, nrd_error *err)
{
    pthread_mutex_lock(&x->mu);
    const bool is_news = !x->is_given_up;
    if (is_news) {
        snprintf(x->lost_text, sizeof x->lost_text, "%s", x->rank_lost[0] ? x->rank_lost : nrd_error_message(err));
        x->lost = x->lost_text;
    }
    pthread_mutex_unlock(&x->mu);
    nrd_error_free(err);
    if (is_news) {
        nrd_exec_log(x, 0, "engine lost: %s", x->lost);
    }
    if (x->is_answering) { /* what the step said, before requests end and go */
        nrd_exec_release_held(x);
    }
    for (int i = 0; i < x->n_plans; i++) {
        nrd_sched_forget(x->sched, &x->plans[i]);
    }
    nrd_seq *q;
    while (x->held_back) {
        nrd_exec_request_state *r = x->held_back;
        nrd_exec_take_back(x, r);
        nrd_exec_fail_request(x, r, nrd_errorf(NRD_ERR_UNAVAILABLE, "the engine was lost: %s", x->lost));
        nrd_exec_request_free(r);
    }
    while ((q = nrd_sched_first_running(x->sched)) != NULL ||
           (q = nrd_sched_first_waiting(x->sched)) != NULL) {
        nrd_exec_end_request(x, q->req.owner, nrd_errorf(NRD_ERR_UNAVAILABLE, "the engine was lost: %s", x->lost));
    }
    x->inflight = -1;
    x->n_under_way = 0;
    nrd_exec_release_held(x);
    reap(x);
}

/* An error where a rank was lost while no step was under way. */
static nrd_error *lost_rank(nrd_exec *x)
{
    pthread_mutex_lock(&x->mu);
    nrd_error *err = x->rank_lost[0] ? nrd_errorf(NRD_ERR_UNAVAILABLE, "%s", x->rank_lost) : NULL;
    pthread_mutex_unlock(&x->mu);
    return err;
}

/* What cannot be uploaded fails alone, unless the device is at fault. */
static void take_request(nrd_exec *x, nrd_exec_request_state *r)
{
    r->is_taken = true;
    if (r->is_cancelled) {
        cancel_request(x, r);
        return;
    }
    nrd_error *err = nrd_exec_request_bind_guide(r);
    if (err) {
        nrd_exec_fail_request(x, r, err);
        nrd_exec_request_free(r);
        return;
    }
    nrd_exec_enter_device(x);
    err = nrd_exec_leave_device(x, nrd_exec_request_upload(r));
    if (err) {
        if (nrd_error_get_code(err) == NRD_ERR_INTERNAL) {
            lose(x, nrd_errorf(NRD_ERR_INTERNAL, "%s", nrd_error_message(err)));
        }
        nrd_exec_fail_request(x, r, err);
        nrd_exec_request_free(r);
        return;
    }
    nrd_exec_deadline_add(r);
    nrd_exec_admit(x, r);
}

/* ---- steps ---- */

static void note_started(nrd_exec *x, const nrd_plan *p)
{
    int32_t n_started = 0;
    for (int32_t i = 0; i < p->n_entries; i++) {
        nrd_exec_request_state *r = p->entries[i].seq->req.owner;
        if (r->perf.first_scheduled_ns == 0) {
            r->perf.first_scheduled_ns = (int64_t)nrd_now_ns();
            n_started++;
        }
    }
    if (n_started > 0) {
        pthread_mutex_lock(&x->mu);
        x->n_waiting -= n_started;
        pthread_mutex_unlock(&x->mu);
    }
}

/* The pages of a CPU's cache become memory when a block is first written, and free blocks are taken
 * last in, first out: as many were written as were ever in use at once. A GPU's are memory at once. */
static void put_memory(nrd_exec *x, const nrd_kv_stats *kv, nrd_iter_stats *st)
{
    const int32_t n = kv->n_blocks - kv->n_free;
    const uint64_t block_bytes = kv->n_blocks > 0 ? x->info.kv_cache_bytes / (uint64_t)kv->n_blocks : 0;

    x->n_touched_blocks = n > x->n_touched_blocks ? n : x->n_touched_blocks;
    st->mem_reserved_bytes = x->info.weight_bytes + x->info.kv_cache_bytes + x->info.state_bytes;
    if (strncmp(x->info.device, "cpu", 3) == 0) {
        st->mem_cpu_bytes = x->info.weight_bytes + (uint64_t)x->n_touched_blocks * block_bytes;
    } else {
        st->mem_gpu_bytes = st->mem_reserved_bytes;
    }
}

static void put_drafts(nrd_exec *x, const nrd_plan *p, nrd_iter_stats *st)
{
    nrd_sched_stats sched;
    nrd_sched_get_stats(x->sched, &sched);
    for (int32_t i = 0; i < p->n_entries; i++) {
        st->n_drafts += p->entries[i].n_draft > 0;
    }
    st->n_draft_tokens = p->n_draft;
    st->n_accepted_draft_tokens = (int32_t)(sched.n_accepted - x->n_accepted);
    st->draft_ns = x->draft || x->medusa || x->eagle || x->redrafter ? x->draft_ns : 0;
    st->host_ns -= st->draft_ns < st->host_ns ? st->draft_ns : 0;
    x->n_accepted = sched.n_accepted;
}

static void record_stats(nrd_exec *x, const nrd_plan *p, uint64_t started_ns, uint64_t device_ns,
                         int32_t n_events)
{
    nrd_kv_stats kv;
    uint64_t now = nrd_now_ns();

    nrd_kv_get_stats(x->kv, &kv);
    nrd_iter_stats st = {
        .size = sizeof st,
        .iteration = x->iteration++,
        .timestamp_us = nrd_wall_us(),
        .iteration_ms = (double)(now - started_ns) / 1e6,
        .max_active = x->lim.max_batch_size,
        .n_scheduled = p->n_context + p->n_generation,
        .n_context = p->n_context,
        .n_generation = p->n_generation,
        .n_paused = p->n_paused,
        .n_terminated = (int32_t)x->n_terminated_step,
        .n_context_tokens = p->n_context_tokens,
        .n_generated_tokens = n_events,
        .n_empty_generation_slots =
            x->sched_lim.is_static ? x->lim.max_batch_size - p->n_generation : 0,
        .kv_max_blocks = kv.n_blocks,
        .kv_free_blocks = kv.n_free + kv.n_cached,
        .kv_used_blocks = kv.n_held,
        .kv_tokens_per_block = x->info.tokens_per_block,
        .kv_reused_blocks = kv.n_reused_total,
        .kv_missed_blocks = kv.n_missed_total,
        .kv_unusable_blocks = kv.n_unusable_total,
        .kept_states = kv.n_states_kept,
        .max_states = kv.n_states,
        .host_ns = now - started_ns - device_ns,
        .device_ns = device_ns,
    };
    put_memory(x, &kv, &st);
    put_drafts(x, p, &st);
    x->n_terminated_step = 0;
    pthread_mutex_lock(&x->mu);
    st.n_active = x->n_active;
    st.n_waiting = st.n_active > st.n_scheduled ? st.n_active - st.n_scheduled : 0;
    if (x->iter_cap > 0) {
        if (x->iter_n == x->iter_cap) {
            x->iter_first = (x->iter_first + 1) % x->iter_cap;
            x->iter_n--;
        }
        x->iter_ring[(x->iter_first + x->iter_n++) % x->iter_cap] = st;
    }
    pthread_mutex_unlock(&x->mu);
}

/* The prompt of a request that ends with it is kept for another executor. */
static nrd_error *hand_over(nrd_exec *x, nrd_sched_event *e)
{
    nrd_exec_request_state *r = e->seq->req.owner;
    nrd_error *err = nrd_handover_keep(r, e);
    if (err && nrd_error_get_code(err) == NRD_ERR_INTERNAL) {
        return err; /* the device is lost, and the request with it */
    }
    x->n_terminated_step += err != NULL;
    if (err) {
        nrd_exec_end_request(x, r, err);
        return NULL;
    }
    nrd_sched_end(x->sched, e->seq); /* nothing where the token ended it */
    nrd_exec_answer(x, e->seq, e->n_new, e->finish == NRD_SEQ_FINISH_NONE ? NRD_SEQ_FINISH_LENGTH : e->finish);
    return NULL;
}

/* What an event of a step means for its request. */
static nrd_error *tell(nrd_exec *x, nrd_sched_event *e)
{
    nrd_exec_request_state *r = e->seq->req.owner;

    if (r->handover) {
        nrd_handover_arrived(r);
    }
    if (r->gives && e->finish != NRD_SEQ_FINISH_ERROR) {
        return e->n_new > 0 || e->finish != NRD_SEQ_FINISH_NONE ? hand_over(x, e) : NULL;
    }
    nrd_exec_jump_forward(x, e);
    if (e->finish == NRD_SEQ_FINISH_ERROR) {
        nrd_exec_end_wrong(x, e->seq);
    } else {
        nrd_exec_answer(x, e->seq, e->n_new, e->finish);
    }
    return NULL;
}

static nrd_error *finish_step(nrd_exec *x, int32_t i, uint64_t started_ns)
{
    nrd_step_result result;
    int32_t n = 0, n_new = 0;
    uint64_t before = nrd_now_ns();
    nrd_exec_enter_step(x, &x->plans[i]);
    NRD_TRY(nrd_exec_leave_device(x, nrd_runner_wait(x->runner, i, &result)));
    nrd_exec_step_ended(x, &x->plans[i]);
    NRD_TRY(nrd_engine_check(x->engine)); /* before a token of this step is anybody's */
    const uint64_t end_ns = nrd_now_ns(), device_ns = end_ns - before;
    const uint64_t took_ns = end_ns - x->last_end_ns, draft_ns = x->plans[i].n_draft > 0 ? x->draft_ns : 0;
    const uint64_t guess_ns = draft_ns < took_ns ? draft_ns : 0;
    x->last_end_ns = end_ns;
    nrd_sched_commit(x->sched, &x->plans[i], &result, x->events, &n);
    /* What a step costs is the time from the end of the one before: the host's part too, where nothing runs beside it. What
     * networks take to guess is counted apart, and what is done once for a shape of step does not count. */
    if (result.was_recorded) {
        nrd_sched_hear_recorded(x->sched, &x->plans[i], took_ns);
    } else {
        nrd_sched_hear_cost(x->sched, &x->plans[i], took_ns - guess_ns, guess_ns, x->is_late[i]);
    }
    x->is_answering = !x->sched_lim.is_static;
    for (int32_t k = 0; k < n; k++) {
        nrd_sched_event *e = &x->events[k];
        const nrd_exec_request_state *r = e->seq->req.owner;
        if (r->n_open == 0) {
            continue; /* it ended with an event before this one */
        }
        NRD_TRY(tell(x, e));
        n_new += e->n_new;
    }
    if (x->is_answering) {
        nrd_exec_release_held(x);
    }
    record_stats(x, &x->plans[i], started_ns, device_ns, n_new);
    x->plans[i].n_entries = 0;
    return NULL;
}

/* Drafts for a plan, then its step. In the device. */
static nrd_error *submit(nrd_exec *x, int32_t i)
{
    NRD_TRY(nrd_exec_eagle_keep(x, &x->plans[i])); /* with drafts or without */
    const uint64_t before = nrd_now_ns();
    NRD_TRY(nrd_exec_draft_run(x, &x->plans[i]));
    NRD_TRY(nrd_exec_medusa_run(x, &x->plans[i]));
    NRD_TRY(nrd_exec_eagle_run(x, &x->plans[i]));
    NRD_TRY(nrd_exec_redrafter_run(x, &x->plans[i]));
    x->draft_ns = x->plans[i].n_draft > 0 ? nrd_now_ns() - before : 0;
    return nrd_runner_submit(x->runner, &x->plans[i], i);
}

static nrd_error *start_step(nrd_exec *x, int32_t i, bool *started)
{
    const uint64_t now = nrd_now_ns();
    nrd_kv_set_time(x->kv, (int64_t)(now / 1000000u));
    x->last_end_ns = x->last_end_ns > 0 ? x->last_end_ns : now;
    x->is_late[i] = x->overlap && x->inflight < 0;
    nrd_sched_plan(x->sched, &x->plans[i]);
    *started = x->plans[i].n_entries > 0;
    if (!*started) {
        return NULL;
    }
    note_started(x, &x->plans[i]);
    if (x->inflight < 0 && x->n_under_way == 0) {
        x->watch.busy_ns = nrd_now_ns();
    }
    nrd_exec_enter_step(x, &x->plans[i]);
    return nrd_exec_leave_device(x, submit(x, i));
}

/* Nothing could be started: somebody waits for a mask, or nobody for anything. */
static void note_idle(nrd_exec *x, const nrd_plan *p)
{
    x->is_held = p->n_held > 0;
    NRD_ASSERT(nrd_sched_first_running(x->sched) || !nrd_sched_first_waiting(x->sched) || x->is_held,
               "with nothing running the first in order fits");
}

/* As many steps under way as there are stages, each of other sequences; the oldest ends this turn. */
static nrd_error *turn_of_stages(nrd_exec *x)
{
    uint64_t t = nrd_now_ns();
    bool started = true;
    int32_t i = x->first_plan;

    while (started && x->n_under_way < x->n_plans) {
        i = (x->first_plan + x->n_under_way) % x->n_plans;
        NRD_TRY(start_step(x, i, &started));
        x->n_under_way += started;
    }
    if (x->n_under_way == 0) {
        note_idle(x, &x->plans[i]);
        return NULL;
    }
    int32_t done = x->first_plan;
    x->first_plan = (done + 1) % x->n_plans;
    x->n_under_way--;
    return finish_step(x, done, t);
}

/* One turn: with overlap the next step is enqueued before the last one is read. */
static nrd_error *turn(nrd_exec *x)
{
    uint64_t t = nrd_now_ns();
    bool started = false;
    if (x->sched_lim.n_micro > 1) {
        return turn_of_stages(x);
    }
    if (x->inflight < 0) {
        NRD_TRY(start_step(x, 0, &started));
        if (!started) {
            note_idle(x, &x->plans[0]);
            return NULL;
        }
        x->inflight = 0;
        if (x->overlap) {
            return NULL; /* the next turn enqueues behind it */
        }
    } else if (nrd_sched_may_overlap(x->sched)) {
        NRD_TRY(start_step(x, 1 - x->inflight, &started));
    }
    int32_t done = x->inflight;
    x->inflight = x->overlap && started ? 1 - done : -1;
    return finish_step(x, done, t);
}

/* ---- the thread ---- */

static bool has_work(const nrd_exec *x)
{
    return x->inbox_head || x->cancels || (x->held_back && x->adapter_news) || x->inflight >= 0 ||
           x->n_under_way > 0 || (x->rank_lost[0] && !x->lost) ||
           !nrd_sched_is_empty(x->sched);
}

/* All sequences may be waiting for a mask: then only something new gives a step. With mu held. */
static bool has_news(const nrd_exec *x)
{
    if (x->is_held) {
        return x->inbox_head || x->cancels || x->mask_news || x->cut || (x->held_back && x->adapter_news);
    }
    return has_work(x) || x->cut || (x->stopping && x->n_compiling == 0 && !x->held_back);
}

void nrd_exec_on_mask_ready(void *user)
{
    nrd_exec *x = user;
    pthread_mutex_lock(&x->mu);
    x->mask_news = true;
    pthread_cond_signal(&x->in_cv);
    pthread_mutex_unlock(&x->mu);
}

/* The next request whose end is asked for; NULL: none. */
static nrd_exec_request_state *take_cancel(nrd_exec *x)
{
    pthread_mutex_lock(&x->mu);
    nrd_exec_request_state *r = x->cancels_taken;
    if (r) {
        x->cancels_taken = r->cancel_next;
        r->cancel_asked = false;
    }
    pthread_mutex_unlock(&x->mu);
    return r;
}

/* Waits for something new; false: the time of a request, or of a prompt that is kept, is over. With mu held. */
static bool wait_in(nrd_exec *x)
{
    const int64_t due = nrd_exec_deadline_next(x), kept = x->handover_due_ns;
    const int64_t next = due == 0 || (kept > 0 && kept < due) ? kept : due;
    struct timespec t = {.tv_sec = next / 1000000000, .tv_nsec = next % 1000000000};
    if (next == 0) {
        pthread_cond_wait(&x->in_cv, &x->mu);
        return true;
    }
    return pthread_cond_timedwait(&x->in_cv, &x->mu, &t) != ETIMEDOUT;
}

/* Waits for work and takes it. False: shut down and nothing is left. */
static bool take_work(nrd_exec *x)
{
    pthread_mutex_lock(&x->mu);
    while (!has_news(x)) {
        x->last_end_ns = 0;
        if (wait_in(x)) {
            continue;
        }
        if (has_work(x) || x->held_back) {
            break;
        }
        pthread_mutex_unlock(&x->mu);
        nrd_handover_sweep(x, (int64_t)nrd_now_ns());
        pthread_mutex_lock(&x->mu);
    }
    x->is_held = x->mask_news = x->adapter_news = false;
    bool more = has_work(x) || x->n_compiling > 0 || x->held_back;
    bool cut = x->cut;
    nrd_exec_request_state *inbox = x->inbox_head;
    x->inbox_head = x->inbox_tail = NULL;
    /* Both at once: a cancel's request is then never still in the inbox. */
    x->cancels_taken = x->cancels;
    x->cancels = NULL;
    pthread_mutex_unlock(&x->mu);

    while (inbox) {
        nrd_exec_request_state *r = inbox;
        inbox = r->next;
        if (x->lost) {
            nrd_exec_fail_request(x, r, nrd_errorf(NRD_ERR_UNAVAILABLE, "the engine was lost: %s", x->lost));
            nrd_exec_request_free(r);
        } else {
            take_request(x, r);
        }
    }
    for (nrd_exec_request_state *r; (r = take_cancel(x)) != NULL;) {
        cancel_request(x, r); /* only this thread frees requests */
    }
    if (cut) {
        cancel_all(x);
    }
    nrd_exec_admit_held_back(x);
    end_late(x);
    if (x->handover_due_ns > 0 && (int64_t)nrd_now_ns() >= x->handover_due_ns) {
        nrd_handover_sweep(x, (int64_t)nrd_now_ns());
    }
    return more;
}

void *nrd_exec_loop_main(void *exec)
{
    nrd_exec *x = exec;
    pthread_setname_np(pthread_self(), "nrd-engine");
    atomic_store(&x->watch.loop_thread, (int32_t)syscall(SYS_gettid));
    for (;;) {
        if (!take_work(x)) {
            break;
        }
        if (!x->lost) {
            nrd_error *err = lost_rank(x);
            err = err ? err : turn(x);
            if (err) {
                lose(x, err);
            }
        }
        if (x->held_head && nrd_sched_first_running(x->sched) == NULL) {
            nrd_exec_release_held(x);
        }
        if (!x->held_head) {
            reap(x); /* a request lives until its final response is in the outbox */
        }
    }
    pthread_mutex_lock(&x->mu);
    x->stopped = true;
    pthread_cond_broadcast(&x->out_cv);
    pthread_mutex_unlock(&x->mu);
    return NULL;
}
