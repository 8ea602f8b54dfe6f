/* SPDX-License-Identifier: Apache-2.0
 * The two threads of a switcher: one plans which model is loaded next and keeps time, one loads and unloads. */
#include "frontends/common/switcher_internal.h"

#include "base/clock.h"
#include "base/log.h"

/* ---- errors ---- */

static nrd_error *never_error(const nrd_switcher *s, const nrd_switch_model *m, uint64_t room)
{
    const double gb = 1e9;
    return nrd_errorf(NRD_ERR_UNAVAILABLE, "The model `%s` takes %.4g GB of memory; %.4g GB are for models, of which pinned ones "
                      "leave %.4g GB. Start the server with a larger --model-memory-gb, a smaller --max-seq-len or fewer "
                      "pinned models",
                      m->name, (double)nrd_switch_slot_of(s, m)->bytes / gb, (double)s->cfg.budget_bytes / gb, (double)room / gb);
}

static nrd_error *late_error(const nrd_switcher *s, const nrd_switch_ticket *t)
{
    const unsigned long long secs = (unsigned long long)(s->cfg.wait_ns / 1000000000u);
    if (t->is_sleep) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "Requests are still under way after %llu s. No new ones begin, and the memory is "
                          "freed when the last has ended", secs);
    }
    return nrd_errorf(NRD_ERR_UNAVAILABLE, "The model `%s` could not be loaded within %llu s, since others were in use; ask later, or "
                      "start the server with a larger --model-memory-gb or --model-wait-secs", t->model->name, secs);
}

/* Takes err. */
static nrd_error *load_error(const nrd_switch_model *m, nrd_error *err)
{
    nrd_error *full = nrd_errorf(NRD_ERR_UNAVAILABLE, "The model `%s` could not be loaded: %s", m->name, nrd_error_message(err));
    nrd_error_free(err);
    return full;
}

/* ---- planning ---- */

static void end_late_locked(nrd_switcher *s, uint64_t now, nrd_switch_tickets *ended)
{
    for (nrd_switch_ticket **at = &s->first; *at;) {
        if ((*at)->until_ns <= now) {
            nrd_switch_end_locked(s, at, late_error(s, *at), ended);
        } else {
            at = &(*at)->next;
        }
    }
}

/* A sleep is over when nothing of it is in memory, or somebody woke it. */
static void end_sleeps_locked(nrd_switcher *s, nrd_switch_tickets *ended)
{
    for (nrd_switch_ticket **at = &s->first; *at;) {
        const nrd_switch_ticket *t = *at;
        bool over = t->is_sleep;
        for (size_t i = 0; i < s->n && over; i++) {
            const nrd_switch_model *m = &s->models[i];
            over = (t->model && t->model != m) || !m->asleep || s->slots[i].state == NRD_SWITCH_ABSENT;
        }
        if (over) {
            nrd_switch_end_locked(s, at, NULL, ended);
        } else {
            at = &(*at)->next;
        }
    }
}

static void order_locked(nrd_switcher *s, nrd_switch_model *load)
{
    s->order = load;
    s->working = true;
    if (load) {
        nrd_switch_slot_of(s, load)->state = NRD_SWITCH_LOADING;
    }
    pthread_cond_signal(&s->work_cond);
}

static void leave_locked(nrd_switcher *s, size_t i)
{
    s->slots[i].state = NRD_SWITCH_LEAVING;
    s->slots[i].is_victim = false;
}

static bool must_go_locked(const nrd_switcher *s, size_t i, uint64_t now)
{
    const nrd_switch_model *m = &s->models[i];
    const nrd_switch_slot *o = &s->slots[i];
    return o->state == NRD_SWITCH_READY && o->n_leases == 0 &&
           (m->asleep || m->failed || (!o->pinned && m->expires_ns <= now));
}

/* Orders what must go by itself. */
static bool send_away_locked(nrd_switcher *s, uint64_t now)
{
    bool any = false;
    for (size_t i = 0; i < s->n; i++) {
        if (must_go_locked(s, i, now)) {
            leave_locked(s, i);
            any = true;
        }
    }
    if (any) {
        order_locked(s, NULL);
    }
    return any;
}

static nrd_switch_model *head_locked(const nrd_switcher *s)
{
    const nrd_switch_ticket *t = s->first;
    while (t && t->is_sleep) {
        t = t->next;
    }
    return t ? t->model : NULL;
}

/* Whether the queue has to be looked at once more: its head has gone. */
static bool plan_head_locked(nrd_switcher *s, nrd_switch_tickets *ended)
{
    nrd_switch_model *m = head_locked(s);
    uint64_t room = 0;

    for (size_t i = 0; i < s->n; i++) {
        s->slots[i].is_victim = false;
    }
    if (!m || nrd_switch_slot_of(s, m)->state != NRD_SWITCH_ABSENT) {
        return false; /* it gets its leases, or has failed and waits for those that are out */
    }
    switch (nrd_switch_plan(s->slots, s->n, m->i, s->cfg.budget_bytes, &room)) {
    case NRD_SWITCH_NEVER: {
        nrd_error *err = never_error(s, m, room);
        nrd_switch_fail_locked(s, m, err, ended);
        nrd_error_free(err);
        return true;
    }
    case NRD_SWITCH_EVICT:
        for (size_t i = 0; i < s->n; i++) {
            if (s->slots[i].is_victim) {
                leave_locked(s, i);
            }
        }
        order_locked(s, m);
        break;
    case NRD_SWITCH_FITS:
        order_locked(s, m);
        break;
    case NRD_SWITCH_WAIT:
        break;
    }
    return false;
}

static void plan_locked(nrd_switcher *s, uint64_t now, nrd_switch_tickets *ended)
{
    end_late_locked(s, now, ended);
    end_sleeps_locked(s, ended);
    if (!s->working && !s->stopping && !send_away_locked(s, now)) {
        while (plan_head_locked(s, ended)) {
        }
    }
    nrd_switch_give_leases_locked(s, ended);
    /* The head may have got its lease just now, and then another decides. */
    nrd_switch_model *m = head_locked(s);
    s->look = s->look || (!s->working && m && nrd_switch_slot_of(s, m)->state == NRD_SWITCH_ABSENT && ended->first);
}

static uint64_t next_time_locked(const nrd_switcher *s)
{
    uint64_t at = UINT64_MAX;
    for (const nrd_switch_ticket *t = s->first; t; t = t->next) {
        at = t->until_ns < at ? t->until_ns : at;
    }
    for (size_t i = 0; i < s->n && !s->working; i++) {
        const nrd_switch_slot *o = &s->slots[i];
        const bool goes = o->state == NRD_SWITCH_READY && o->n_leases == 0 && !o->pinned;
        at = goes && s->models[i].expires_ns < at ? s->models[i].expires_ns : at;
    }
    return at;
}

void *nrd_switch_planner(void *arg)
{
    enum { LONGEST_NS = 1000000000 };
    nrd_switcher *s = arg;

    pthread_mutex_lock(&s->mu);
    while (!s->quit) {
        nrd_switch_tickets ended = {0};
        s->look = false;
        plan_locked(s, nrd_now_ns(), &ended);
        if (ended.first) {
            pthread_mutex_unlock(&s->mu);
            nrd_switch_tell(&ended);
            pthread_mutex_lock(&s->mu);
        }
        const uint64_t now = nrd_now_ns(), at = next_time_locked(s);
        if (!s->look && !s->quit && at > now) {
            const struct timespec until = nrd_steady_in(at - now < LONGEST_NS ? at - now : LONGEST_NS);
            pthread_cond_timedwait(&s->plan_cond, &s->mu, &until);
        }
    }
    pthread_mutex_unlock(&s->mu);
    return NULL;
}

/* ---- loading and unloading ---- */

/* mu is given back meanwhile. */
static void unload_locked(nrd_switcher *s, nrd_switch_model *m)
{
    const nrd_switch_ops *ops = &s->cfg.ops;
    pthread_mutex_unlock(&s->mu);
    nrd_error *err = ops->unload(ops->user, m->load);
    if (err) {
        NRD_LOG_ERROR("unloading the model '%s': %s", m->name, nrd_error_message(err));
        nrd_error_free(err);
    }
    pthread_mutex_lock(&s->mu);
    nrd_switch_slot_of(s, m)->state = NRD_SWITCH_ABSENT;
    m->failed = false;
}

/* mu is given back meanwhile. */
static void load_locked(nrd_switcher *s, nrd_switch_model *m, nrd_switch_tickets *ended)
{
    const nrd_switch_ops *ops = &s->cfg.ops;
    nrd_switch_slot *o = nrd_switch_slot_of(s, m);
    const uint64_t begin = nrd_now_ns();

    pthread_mutex_unlock(&s->mu);
    nrd_error *err = ops->load(ops->user, m->load);
    const uint64_t bytes = err ? 0 : ops->size(ops->user, m->load);
    pthread_mutex_lock(&s->mu);
    if (err) {
        o->state = NRD_SWITCH_ABSENT;
        err = load_error(m, err);
        nrd_switch_fail_locked(s, m, err, ended);
        nrd_error_free(err);
        return;
    }
    const uint64_t now = nrd_now_ns();
    m->n_loads++;
    m->load_ns = now - begin;
    o->bytes = bytes ? bytes : o->bytes;
    if (nrd_switch_held_locked(s) > s->cfg.budget_bytes) { /* it takes more than was said: the plan is made again */
        NRD_LOG_WARN("the model '%s' takes %llu bytes, more than was expected: it goes again", m->name,
                     (unsigned long long)o->bytes);
        o->state = NRD_SWITCH_LEAVING;
        unload_locked(s, m);
        return;
    }
    o->state = NRD_SWITCH_READY;
    o->used_ns = now;
    m->keep_ns = s->cfg.keep_ns;
    m->expires_ns = nrd_switch_after(now, m->keep_ns);
    nrd_switch_give_leases_locked(s, ended);
}

static void tell_change(nrd_switcher *s)
{
    pthread_mutex_lock(&s->change_mu);
    if (s->on_change) {
        s->on_change(s->change_arg);
    }
    pthread_mutex_unlock(&s->change_mu);
}

void *nrd_switch_worker(void *arg)
{
    nrd_switcher *s = arg;

    pthread_mutex_lock(&s->mu);
    while (!s->quit) {
        nrd_switch_tickets ended = {0};
        if (!s->working) {
            pthread_cond_wait(&s->work_cond, &s->mu);
            continue;
        }
        for (size_t i = 0; i < s->n; i++) {
            if (s->slots[i].state == NRD_SWITCH_LEAVING) {
                unload_locked(s, &s->models[i]);
            }
        }
        if (s->order) {
            load_locked(s, s->order, &ended);
        }
        s->order = NULL;
        s->working = false;
        nrd_switch_look_locked(s);
        pthread_mutex_unlock(&s->mu);
        nrd_switch_tell(&ended);
        tell_change(s);
        pthread_mutex_lock(&s->mu);
    }
    pthread_mutex_unlock(&s->mu);
    return NULL;
}
