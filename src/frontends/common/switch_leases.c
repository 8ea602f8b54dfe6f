/* SPDX-License-Identifier: Apache-2.0
 * What is asked of a switcher: leases, orders, how its models are. */
#include "frontends/common/switcher_internal.h"

#include "base/clock.h"
#include "base/limits.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

static nrd_error *asleep_error(const nrd_switch_model *m)
{
    return nrd_errorf(NRD_ERR_UNAVAILABLE, "The model `%s` is asleep; POST /wake_up ends that", m->name);
}

/* ---- leases ---- */

nrd_error *nrd_switcher_acquire(nrd_switcher *s, nrd_switch_model *m, nrd_switch_ticket *t, bool *out_now)
{
    nrd_error *err = NULL;
    bool tried = false;

    *out_now = false;
    for (;;) {
        pthread_mutex_lock(&s->mu);
        if (tried) { /* the lease is of a model that failed: it goes, and is loaded again */
            nrd_switch_slot_of(s, m)->n_leases--;
            m->failed = nrd_switch_slot_of(s, m)->state == NRD_SWITCH_READY;
        }
        err = s->stopping ? nrd_switch_stopping_error() : m->asleep ? asleep_error(m) : NULL;
        const bool now = !err && nrd_switch_gives_leases_locked(s, m);
        if (now) {
            nrd_switch_lease_locked(s, m);
        } else if (!err && s->n_waiting >= NRD_LIMIT_SWITCH_WAITING) {
            err = nrd_errorf(NRD_ERR_UNAVAILABLE, "%d requests wait for models already", (int)NRD_LIMIT_SWITCH_WAITING);
        } else if (!err) {
            t->model = m;
            t->is_sleep = false;
            t->until_ns = nrd_switch_after(nrd_now_ns(), s->cfg.wait_ns);
            nrd_switch_put_locked(s, t);
        }
        if (!now) {
            nrd_switch_look_locked(s);
        }
        pthread_mutex_unlock(&s->mu);
        if (!now || s->cfg.ops.is_ready(s->cfg.ops.user, m->load)) {
            *out_now = now;
            return err;
        }
        tried = true;
    }
}

bool nrd_switcher_cancel(nrd_switcher *s, nrd_switch_ticket *t)
{
    bool found = false;
    pthread_mutex_lock(&s->mu);
    for (nrd_switch_ticket **at = &s->first; *at && !found;) {
        if (*at == t) {
            nrd_switch_take_locked(s, at);
            found = true;
            nrd_switch_look_locked(s);
        } else {
            at = &(*at)->next;
        }
    }
    pthread_mutex_unlock(&s->mu);
    return found;
}

void nrd_switcher_release(nrd_switcher *s, nrd_switch_model *m, uint64_t keep_ns)
{
    pthread_mutex_lock(&s->mu);
    nrd_switch_slot *o = nrd_switch_slot_of(s, m);
    const uint64_t now = nrd_now_ns();
    NRD_ASSERT(o->n_leases > 0, "a lease is given back once");
    o->used_ns = now;
    m->keep_ns = keep_ns == NRD_SWITCH_DEFAULT ? s->cfg.keep_ns : keep_ns;
    if (--o->n_leases == 0) {
        m->expires_ns = m->dropped ? now : nrd_switch_after(now, m->keep_ns);
        if (s->n_waiting > 0 || m->expires_ns != NRD_SWITCH_FOREVER || m->asleep || m->failed) {
            nrd_switch_look_locked(s);
        }
    }
    pthread_mutex_unlock(&s->mu);
}

/* A load that nobody waits for. */
typedef struct errand {
    nrd_switch_ticket ticket;
    nrd_switcher *switcher;
} errand;

static void errand_done(nrd_switch_ticket *t)
{
    errand *e = t->user;
    if (!t->err) {
        nrd_switcher_release(e->switcher, t->model, NRD_SWITCH_DEFAULT);
    }
    nrd_error_free(t->err); /* who asks again is told */
    free(e);
}

static bool is_waited_for(nrd_switcher *s, const nrd_switch_model *m)
{
    bool found = false;
    pthread_mutex_lock(&s->mu);
    for (const nrd_switch_ticket *t = s->first; t && !found; t = t->next) {
        found = t->model == m && !t->is_sleep;
    }
    pthread_mutex_unlock(&s->mu);
    return found;
}

nrd_error *nrd_switcher_acquire_now(nrd_switcher *s, nrd_switch_model *m)
{
    bool now = false;
    nrd_error *err = NULL;

    if (!is_waited_for(s, m)) { /* else one more would change nothing */
        errand *e = calloc(1, sizeof *e);
        if (!e) {
            return nrd_error_no_memory();
        }
        *e = (errand){.ticket = {.done = errand_done, .user = e}, .switcher = s};
        err = nrd_switcher_acquire(s, m, &e->ticket, &now);
        if (err || now) {
            free(e);
            return err;
        }
    }
    return nrd_errorf(NRD_ERR_UNAVAILABLE, "The model `%s` is being loaded; ask again", m->name);
}

typedef struct waiter {
    nrd_switch_ticket ticket;
    pthread_mutex_t mu;
    pthread_cond_t cond;
    bool over;
} waiter;

static void waiter_done(nrd_switch_ticket *t)
{
    waiter *w = t->user;
    pthread_mutex_lock(&w->mu);
    w->over = true;
    pthread_cond_signal(&w->cond);
    pthread_mutex_unlock(&w->mu);
}

nrd_error *nrd_switcher_load(nrd_switcher *s, nrd_switch_model *m)
{
    waiter w = {.ticket = {.done = waiter_done, .user = &w}, .mu = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    bool now = false;

    NRD_TRY(nrd_switcher_acquire(s, m, &w.ticket, &now));
    pthread_mutex_lock(&w.mu);
    while (!now && !w.over) {
        pthread_cond_wait(&w.cond, &w.mu);
    }
    pthread_mutex_unlock(&w.mu);
    if (!w.ticket.err) {
        nrd_switcher_release(s, m, NRD_SWITCH_DEFAULT);
    }
    return w.ticket.err;
}

bool nrd_switcher_has_room(nrd_switcher *s, const nrd_switch_model *m)
{
    pthread_mutex_lock(&s->mu);
    const nrd_switch_slot *o = nrd_switch_slot_of(s, m);
    const uint64_t held = nrd_switch_held_locked(s);
    const bool room = o->state != NRD_SWITCH_ABSENT || (held <= s->cfg.budget_bytes && o->bytes <= s->cfg.budget_bytes - held);
    pthread_mutex_unlock(&s->mu);
    return room;
}

/* ---- orders ---- */

nrd_error *nrd_switcher_drop(nrd_switcher *s, nrd_switch_model *m)
{
    nrd_error *err = NULL;
    pthread_mutex_lock(&s->mu);
    if (nrd_switch_slot_of(s, m)->pinned) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "The model `%s` is pinned; POST /sleep frees its memory", m->name);
    } else {
        m->dropped = true;
        m->expires_ns = 0;
        nrd_switch_look_locked(s);
    }
    pthread_mutex_unlock(&s->mu);
    return err;
}

nrd_error *nrd_switcher_sleep(nrd_switcher *s, nrd_switch_model *only, nrd_switch_ticket *t, bool *out_now)
{
    nrd_switch_tickets ended = {0};
    nrd_error *err = NULL;

    *out_now = true;
    pthread_mutex_lock(&s->mu);
    if (s->stopping) {
        err = nrd_switch_stopping_error();
    }
    for (size_t i = 0; i < s->n && !err; i++) {
        nrd_switch_model *m = &s->models[i];
        if ((only && only != m) || m->asleep) {
            *out_now = *out_now && ((only && only != m) || s->slots[i].state == NRD_SWITCH_ABSENT);
            continue;
        }
        m->asleep = true;
        m->was_ready = s->slots[i].state == NRD_SWITCH_READY || s->slots[i].state == NRD_SWITCH_LOADING;
        *out_now = *out_now && s->slots[i].state == NRD_SWITCH_ABSENT;
        nrd_error *why = asleep_error(m);
        nrd_switch_fail_locked(s, m, why, &ended);
        nrd_error_free(why);
    }
    if (!err && !*out_now) {
        t->model = only;
        t->is_sleep = true;
        t->until_ns = nrd_switch_after(nrd_now_ns(), s->cfg.wait_ns);
        nrd_switch_put_locked(s, t);
    }
    nrd_switch_look_locked(s);
    pthread_mutex_unlock(&s->mu);
    nrd_switch_tell(&ended);
    *out_now = *out_now && !err;
    return err;
}

void nrd_switcher_wake(nrd_switcher *s, nrd_switch_model *only)
{
    pthread_mutex_lock(&s->mu);
    for (size_t i = 0; i < s->n; i++) {
        nrd_switch_model *m = &s->models[i];
        if ((!only || only == m) && !m->forgotten) {
            m->asleep = false;
        }
    }
    nrd_switch_look_locked(s);
    pthread_mutex_unlock(&s->mu);
}

bool nrd_switcher_is_asleep(nrd_switcher *s, const nrd_switch_model *only)
{
    bool all = true;
    pthread_mutex_lock(&s->mu);
    for (size_t i = 0; i < s->n; i++) {
        all = all && (s->models[i].asleep || (only && only != &s->models[i]));
    }
    pthread_mutex_unlock(&s->mu);
    return all;
}

/* ---- what others see ---- */

nrd_switch_model *nrd_switcher_next(nrd_switcher *s, const nrd_switch_model *m)
{
    for (size_t i = m ? m->i + 1 : 0; i < s->n; i++) {
        if (!s->models[i].forgotten) {
            return &s->models[i];
        }
    }
    return NULL;
}

nrd_switch_model *nrd_switcher_only(nrd_switcher *s)
{
    nrd_switch_model *m = nrd_switcher_next(s, NULL);
    return m && !nrd_switcher_next(s, m) ? m : NULL;
}

const char *nrd_switch_name(const nrd_switch_model *m)
{
    return m->name;
}

nrd_switch_model *nrd_switcher_find(nrd_switcher *s, const char *name)
{
    for (nrd_switch_model *m = nrd_switcher_next(s, NULL); m; m = nrd_switcher_next(s, m)) {
        if (!strcmp(m->name, name)) {
            return m;
        }
    }
    for (nrd_switch_model *m = nrd_switcher_next(s, NULL); m; m = nrd_switcher_next(s, m)) {
        for (size_t k = 0; k < m->n_aliases; k++) {
            if (!strcmp(m->aliases[k], name)) {
                return m;
            }
        }
    }
    return NULL;
}

void nrd_switcher_info(nrd_switcher *s, const nrd_switch_model *m, nrd_switch_info *out)
{
    pthread_mutex_lock(&s->mu);
    const nrd_switch_slot *o = nrd_switch_slot_of(s, m);
    const uint64_t now = nrd_now_ns();
    uint64_t end = m->expires_ns;
    if (o->n_leases > 0) { /* as if they ended now */
        end = m->dropped ? now : nrd_switch_after(now, m->keep_ns);
    }
    *out = (nrd_switch_info){
        .state = o->state,
        .bytes = o->bytes,
        .file_bytes = m->file_bytes,
        .n_leases = o->n_leases,
        .pinned = o->pinned,
        .asleep = m->asleep,
        .was_ready = m->was_ready,
        .left_ns = o->pinned || end == NRD_SWITCH_FOREVER ? NRD_SWITCH_FOREVER : end > now ? end - now : 0,
        .n_loads = m->n_loads,
        .load_ns = m->load_ns,
    };
    pthread_mutex_unlock(&s->mu);
}
