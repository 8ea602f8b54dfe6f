/* SPDX-License-Identifier: Apache-2.0
 * A device that does not come back. The engine loop then waits in it for ever, so a thread of its own tells the
 * requests, and nobody waits for the loop any more.
 *
 * `in_device` says since when the loop's thread is in the device (0: it is not), and is where both agree: the loop comes
 * back by putting 0 there, the watch gives it up by putting GIVEN_UP there. While the loop is in the device it touches no request's answers
 * and not the outbox, so the watch may; a loop that comes back after it was given up finds that, and only cleans up.
 * Steps call back with rows of logits: during these the loop counts as outside.
 *
 * On processors a hang is seen by the threads (ranks/pulse.h), and a step may take long for many reasons: pages of weights that come
 * from a disk, other programs. On other devices a step's limit is learned (step_limit.h). */
#include "executor/internal.h"

#include "base/clock.h"
#include "base/env.h"
#include "base/str.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    DEFAULT_SECS = 1800, /* a step of thousands of tokens of a large model on few cores takes minutes */
    MAX_SECS = 7 * 24 * 3600,
    LOOK_MS = 500,
    LATE_MS = 1000, /* a look that comes later counts as this: the whole process may have stood */
    GRACE_MS = 1500, /* a step that waits for a rank that was lost ends by itself within this */
    LEAVE_MS = 2000, /* a loop that was given up has so long to end before it is left alone */
};

static const int64_t GIVEN_UP = -1;

static int64_t now_ms(void)
{
    return (int64_t)(nrd_now_ns() / 1000000);
}

nrd_error *nrd_exec_stall_limit(nrd_exec_watch *w)
{
    const char *text = nrd_env("NEREID_RANK_STALL_SECS", NULL);
    long long secs = DEFAULT_SECS;

    if (text && (!nrd_parse_i64(text, &secs) || secs < 1 || secs > MAX_SECS)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "NEREID_RANK_STALL_SECS must be between 1 and %d, got '%s'", (int)MAX_SECS, text);
    }
    w->limit_ms = (int64_t)secs * 1000;
    w->is_wished = text != NULL;
    return NULL;
}

/* ---- the loop's side ---- */

void nrd_exec_enter_device(nrd_exec *x)
{
    int64_t outside = 0;
    atomic_compare_exchange_strong(&x->watch.in_device, &outside, now_ms());
}

void nrd_exec_enter_step(nrd_exec *x, const nrd_plan *p)
{
    if (!x->watch.computes_here && !x->watch.is_wished) {
        atomic_store(&x->watch.step_limit_ms, nrd_step_limit_ms(&x->watch.step_limit, nrd_step_work(p, x->spec->hidden), x->watch.limit_ms));
    }
    nrd_exec_enter_device(x);
}

void nrd_exec_step_ended(nrd_exec *x, const nrd_plan *p)
{
    const uint64_t now = nrd_now_ns();

    nrd_step_limit_hear(&x->watch.step_limit, nrd_step_work(p, x->spec->hidden), (int64_t)(now - x->watch.busy_ns));
    x->watch.busy_ns = now;
}

nrd_error *nrd_exec_leave_device(nrd_exec *x, nrd_error *err)
{
    int64_t since = atomic_load(&x->watch.in_device);

    atomic_store(&x->watch.step_limit_ms, 0);
    if (since != GIVEN_UP && atomic_compare_exchange_strong(&x->watch.in_device, &since, 0)) {
        return err;
    }
    nrd_error_free(err);
    return nrd_errorf(NRD_ERR_INTERNAL, "the device came back after it was given up");
}

bool nrd_exec_pause_device(nrd_exec *x)
{
    int64_t since = atomic_load(&x->watch.in_device);
    return since != GIVEN_UP && atomic_compare_exchange_strong(&x->watch.in_device, &since, 0);
}

/* ---- the watch ---- */

/* Everybody who waits hears it. With mu held, which the loop does not hold in the device. */
static bool give_up(nrd_exec *x, int64_t since)
{
    if (!atomic_compare_exchange_strong(&x->watch.in_device, &since, GIVEN_UP)) {
        return false; /* it came back */
    }
    x->is_given_up = true;
    if (!x->lost) {
        snprintf(x->lost_text, sizeof x->lost_text, "%s", x->rank_lost);
        x->lost = x->lost_text;
    }
    for (int i = 0; i < ACTIVE_BUCKETS; i++) {
        for (nrd_exec_request_state *r; (r = x->active[i]) != NULL;) {
            r->is_told = true;
            nrd_exec_out_push(x, nrd_exec_response_make_error(
                                     r, nrd_errorf(NRD_ERR_UNAVAILABLE, "the engine was lost: %s", x->lost)));
        }
    }
    pthread_cond_broadcast(&x->out_cv); /* who waits for the loop's end, too */
    return true;
}

/* Which of several ranks does not get on the others cannot tell: all wait for it. */
static void note_stall(nrd_exec *x, int64_t ms, int64_t limit_ms)
{
    const int n_ranks = x->spec->tp_size * x->spec->pp_size;
    char of_ranks[32] = "";

    if (n_ranks > 1) {
        snprintf(of_ranks, sizeof of_ranks, " of %d ranks", n_ranks);
    }
    snprintf(x->rank_lost, sizeof x->rank_lost, "a step%s has not ended for %.1f s, the limit is %.1f s%s "
             "(NEREID_RANK_STALL_SECS): %s hangs", of_ranks, (double)ms / 1e3, (double)limit_ms / 1e3,
             limit_ms < x->watch.limit_ms ? " by the steps before" : "", n_ranks > 1 ? "one of them" : "the device");
    x->rank_lost_ms = now_ms();
    nrd_ranks_give_up(x->ranks);
}

/* The loop's own rank: nobody has to be given time to notice. */
static bool note_hang(nrd_exec *x, int64_t now)
{
    const int n_ranks = x->spec->tp_size * x->spec->pp_size;
    char what[48] = "the device hangs";

    x->watch.pulse.thread = atomic_load(&x->watch.loop_thread);
    if (!x->watch.computes_here || nrd_pulse_look(&x->watch.pulse, now) <= NRD_PULSE_HANGS_MS) {
        return false;
    }
    if (n_ranks > 1) {
        snprintf(what, sizeof what, "rank 0 of %d was lost: it hangs", n_ranks);
    }
    snprintf(x->rank_lost, sizeof x->rank_lost, "%s: no thread of it has run for %.1f s", what,
             (double)x->watch.pulse.still_ms / 1e3);
    x->rank_lost_ms = now;
    nrd_ranks_give_up(x->ranks);
    return true;
}

/* For how long the loop has been in the device. */
static int64_t waited_ms(nrd_exec_watch *w, int64_t since, int64_t now)
{
    const int64_t from = since == w->stay.since ? w->stay.looked_ms : since;
    const int64_t more = now - from < LATE_MS ? now - from : LATE_MS;

    w->stay.waited_ms = since == w->stay.since ? w->stay.waited_ms + more : more;
    w->stay.since = since;
    w->stay.looked_ms = now;
    return w->stay.waited_ms;
}

/* With mu held. True: the loop was given up. */
static bool look(nrd_exec *x)
{
    const int64_t since = atomic_load(&x->watch.in_device), learned = atomic_load(&x->watch.step_limit_ms), now = now_ms();
    const int64_t limit = learned > 0 ? learned : x->watch.limit_ms;

    if (since <= 0) {
        x->watch.pulse.still_ms = 0;
        return false;
    }
    if (!x->rank_lost[0] && note_hang(x, now)) {
        return give_up(x, since);
    }
    const int64_t waited = waited_ms(&x->watch, since, now);
    if (!x->rank_lost[0] && waited > limit && atomic_load(&x->watch.in_device) == since) {
        note_stall(x, waited, limit);
    }
    if (!x->rank_lost[0]) {
        return false;
    }
    const int64_t from = x->rank_lost_ms > since ? x->rank_lost_ms : since;
    return (!x->ranks || now - from > GRACE_MS) && give_up(x, since);
}

/* Until something may have to be done. With mu held. */
static void sleep_until_next(nrd_exec *x)
{
    const int64_t part = x->watch.limit_ms / 8 < LOOK_MS ? x->watch.limit_ms / 8 : LOOK_MS;
    const int64_t ms = x->rank_lost[0] && GRACE_MS / 4 < part ? GRACE_MS / 4 : part;
    const uint64_t until = nrd_now_ns() + (uint64_t)ms * 1000000u;
    const struct timespec t = {.tv_sec = (time_t)(until / 1000000000u), .tv_nsec = (long)(until % 1000000000u)};

    pthread_cond_timedwait(&x->watch.cv, &x->mu, &t);
}

static void *watch_main(void *exec)
{
    nrd_exec *x = exec;
    bool over = false;

    pthread_setname_np(pthread_self(), "nrd-stall");
    pthread_mutex_lock(&x->mu);
    while (!over && !x->watch.ends) {
        sleep_until_next(x);
        over = look(x);
    }
    pthread_mutex_unlock(&x->mu);
    if (over) {
        nrd_exec_log(x, 0, "engine lost: %s", x->lost);
    }
    return NULL;
}

nrd_error *nrd_exec_stall_start(nrd_exec *x)
{
    if (pthread_create(&x->watch.thread, NULL, watch_main, x) != 0) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "cannot start the thread that watches over the engine's");
    }
    x->watch.started = true;
    return NULL;
}

void nrd_exec_stall_stop(nrd_exec *x)
{
    if (!x->watch.started) {
        return;
    }
    pthread_mutex_lock(&x->mu);
    x->watch.ends = true;
    pthread_cond_signal(&x->watch.cv);
    pthread_mutex_unlock(&x->mu);
    pthread_join(x->watch.thread, NULL);
    x->watch.started = false;
}

/* ---- the end of a loop that hangs ---- */

void nrd_exec_await_given_up(nrd_exec *x)
{
    const uint64_t until = nrd_now_ns() + LEAVE_MS * 1000000ull;
    const struct timespec t = {.tv_sec = (time_t)(until / 1000000000u), .tv_nsec = (long)(until % 1000000000u)};

    while (!x->stopped && pthread_cond_timedwait(&x->out_cv, &x->mu, &t) != ETIMEDOUT) {
    }
    if (!x->stopped) {
        x->stopped = x->is_abandoned = true;
        pthread_cond_broadcast(&x->out_cv);
    }
}

void nrd_exec_abandon(nrd_exec *x)
{
    static const char here = 0;
    Dl_info info;

    nrd_exec_log(x, 1, "an engine whose device hangs keeps its memory until this process ends");
    x->cfg.log = NULL; /* its user goes */
    if (dladdr(&here, &info) && info.dli_fname) { /* the thread may come back to this code */
        (void)dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
    }
    pthread_detach(x->thread);
    nrd_ranks_stop(x->ranks);
}
