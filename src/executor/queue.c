/* SPDX-License-Identifier: Apache-2.0
 * Requests on their way to the engine loop and responses on their way back. */
#include "executor/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

static nrd_error *lost_error_locked(const nrd_exec *x)
{
    return nrd_errorf(NRD_ERR_UNAVAILABLE, "the engine was lost: %s", x->lost);
}

nrd_error *nrd_exec_health(nrd_exec *x)
{
    pthread_mutex_lock(&x->mu);
    nrd_error *err = x->lost ? lost_error_locked(x) : NULL;
    pthread_mutex_unlock(&x->mu);
    return err;
}

static void out_unlink(nrd_exec *x, nrd_exec_response_state *prev, nrd_exec_response_state *o)
{
    *(prev ? &prev->next : &x->out_head) = o->next;
    if (x->out_tail == o) {
        x->out_tail = prev;
    }
    o->next = NULL;
}

/* ---- requests ---- */

/* With mu held. */
static void push_inbox(nrd_exec *x, nrd_exec_request_state *r)
{
    r->next = NULL;
    *(x->inbox_tail ? &x->inbox_tail->next : &x->inbox_head) = r;
    x->inbox_tail = r;
    pthread_cond_signal(&x->in_cv);
}

/* The guide, or why there is none: the loop takes the request. */
static void on_guide(void *user, nrd_guide *guide, nrd_error *err)
{
    nrd_exec_request_state *r = user;
    nrd_exec *x = r->exec;

    r->guide = guide;
    r->guide_err = err;
    pthread_mutex_lock(&x->mu);
    x->n_compiling--;
    push_inbox(x, r);
    pthread_mutex_unlock(&x->mu);
}

static nrd_error *admit(nrd_exec *x, nrd_exec_request_state *r)
{
    if (x->lost) {
        return lost_error_locked(x);
    }
    if (x->stopping) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "the executor is shutting down");
    }
    if (x->lim.max_queue_size > 0 && x->n_waiting >= x->lim.max_queue_size) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE,
                          "Maximum queue size of %d has been reached, please try again later",
                          x->lim.max_queue_size);
    }
    r->id = x->next_id++;
    nrd_exec_active_add(x, r);
    return NULL;
}

nrd_error *nrd_exec_submit(nrd_exec *x, nrd_exec_request_state *r, uint64_t *out_id)
{
    const bool guided = r->is_guided;
    char *type = r->guide_type, *text = r->guide_text;
    nrd_guide *guide = NULL;

    r->guide_type = r->guide_text = NULL;
    r->guide_wait = (nrd_guide_waiter){.done = on_guide, .user = r};
    pthread_mutex_lock(&x->mu);
    nrd_error *err = admit(x, r);
    if (!err) {
        *out_id = r->id;
        if (guided) {
            x->n_compiling++;
        } else {
            push_inbox(x, r);
        }
    }
    pthread_mutex_unlock(&x->mu);
    if (err) {
        nrd_exec_request_free(r);
    } else if (guided) { /* what goes wrong now is an answer, not an error of this call */
        nrd_error *wrong = nrd_guides_want(x->guides, type, text, &r->guide_wait, &guide);
        if (wrong || guide) {
            on_guide(r, guide, wrong);
        }
    }
    free(type);
    free(text);
    return err;
}

nrd_error *nrd_exec_enqueue(nrd_exec *x, const nrd_exec_request *in, uint64_t *out_id)
{
    nrd_exec_request_state *r = NULL;
    *out_id = 0;
    NRD_TRY(nrd_exec_request_new(&r, x, in));
    return nrd_exec_submit(x, r, out_id);
}

void nrd_exec_cancel(nrd_exec *x, uint64_t id)
{
    pthread_mutex_lock(&x->mu);
    nrd_exec_request_state *r = nrd_exec_active_find(x, id);
    if (r && !r->cancel_asked) {
        r->cancel_asked = true;
        r->cancel_next = x->cancels;
        x->cancels = r;
        pthread_cond_signal(&x->in_cv);
    }
    pthread_mutex_unlock(&x->mu);
}

/* ---- responses ---- */

static void deadline_in(struct timespec *t, int64_t timeout_us)
{
    clock_gettime(CLOCK_MONOTONIC, t);
    t->tv_sec += timeout_us / 1000000;
    t->tv_nsec += timeout_us % 1000000 * 1000;
    if (t->tv_nsec >= 1000000000) {
        t->tv_sec++;
        t->tv_nsec -= 1000000000;
    }
}

/* Waits for a change of the outbox; false: time is up. With mu held. */
static bool wait_out(nrd_exec *x, int64_t timeout_us, const struct timespec *deadline)
{
    if (timeout_us == 0) {
        return false;
    }
    if (timeout_us < 0) {
        pthread_cond_wait(&x->out_cv, &x->mu);
        return true;
    }
    return pthread_cond_timedwait(&x->out_cv, &x->mu, deadline) != ETIMEDOUT;
}

nrd_error *nrd_exec_await(nrd_exec *x, nrd_exec_response **out, int32_t max, int64_t timeout_us,
                          int32_t *out_n)
{
    struct timespec deadline;
    int32_t n = 0;

    deadline_in(&deadline, timeout_us > 0 ? timeout_us : 0);
    pthread_mutex_lock(&x->mu);
    do {
        nrd_exec_response_state *prev = NULL, *o = x->out_head;
        while (o && n < max) {
            nrd_exec_response_state *next = o->next;
            if (o->is_private) { /* somebody waits for it by its id */
                prev = o;
            } else {
                out_unlink(x, prev, o);
                out[n++] = &o->pub;
            }
            o = next;
        }
    } while (n == 0 && !x->stopped && wait_out(x, timeout_us, &deadline));
    if (!x->out_head) {
        pthread_cond_broadcast(&x->out_cv); /* threads that wait for "done" */
    }
    pthread_mutex_unlock(&x->mu);
    *out_n = n;
    return NULL;
}

nrd_error *nrd_exec_await_id(nrd_exec *x, uint64_t id, nrd_exec_response **out, int64_t timeout_us)
{
    struct timespec deadline;
    nrd_error *err = NULL;

    *out = NULL;
    deadline_in(&deadline, timeout_us > 0 ? timeout_us : 0);
    pthread_mutex_lock(&x->mu);
    for (;;) {
        nrd_exec_response_state *prev = NULL, *o = x->out_head;
        while (o && o->pub.id != id) {
            prev = o;
            o = o->next;
        }
        if (o) {
            out_unlink(x, prev, o);
            *out = &o->pub;
            break;
        }
        if (!nrd_exec_active_find(x, id)) {
            err = nrd_errorf(NRD_ERR_NOT_FOUND, "no request %llu is under way",
                             (unsigned long long)id);
            break;
        }
        if (!wait_out(x, timeout_us, &deadline)) {
            break;
        }
    }
    pthread_mutex_unlock(&x->mu);
    return err;
}

void nrd_exec_response_free(nrd_exec_response *r)
{
    if (r) {
        nrd_exec_response_put((nrd_exec_response_state *)(void *)r);
    }
}

bool nrd_exec_is_done(nrd_exec *x)
{
    pthread_mutex_lock(&x->mu);
    bool done = x->stopped && !x->out_head;
    pthread_mutex_unlock(&x->mu);
    return done;
}

/* ---- ending ---- */

nrd_error *nrd_exec_shutdown(nrd_exec *x, int64_t timeout_us)
{
    struct timespec deadline;
    deadline_in(&deadline, timeout_us > 0 ? timeout_us : 0);
    pthread_mutex_lock(&x->mu);
    x->stopping = true;
    pthread_cond_signal(&x->in_cv);
    while (!x->stopped && x->thread_started) {
        if (x->is_given_up) {
            nrd_exec_await_given_up(x);
        } else if (!wait_out(x, x->cut ? -1 : timeout_us, &deadline)) {
            x->cut = true;
            pthread_cond_signal(&x->in_cv);
        }
    }
    pthread_mutex_unlock(&x->mu);
    return NULL;
}
