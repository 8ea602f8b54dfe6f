/* SPDX-License-Identifier: Apache-2.0 */
#include "frontends/common/switcher.h"

#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct nrd_switch_model { /* what is guarded by mu, if not constant */
    char *name, *load;
    char **aliases;
    size_t n_aliases, i; /* i: its slot */
    uint64_t file_bytes;
    uint64_t keep_ns, expires_ns; /* expires_ns: while nobody uses it; NRD_SWITCH_FOREVER */
    uint64_t n_loads, load_ns;
    bool asleep, was_ready;
    bool dropped; /* ordered to go as soon as nobody uses it; until the next lease */
    bool failed; /* READY, but the core says that it does not serve any more */
    atomic_bool forgotten;
};

struct nrd_switcher {
    nrd_switch_config cfg;
    atomic_size_t n; /* grows alone, with mu held; what is below it has its names */
    nrd_switch_model *models; /* [NRD_LIMIT_SWITCHED_MODELS] */
    pthread_mutex_t mu;
    pthread_cond_t plan_cond, work_cond; /* for the thread that plans, and for the one that works */
    /* guarded by mu */
    nrd_switch_slot *slots; /* as models */
    nrd_switch_ticket *first, **end;
    size_t n_waiting;
    nrd_switch_model *order; /* to be loaded once all LEAVING have gone; NULL: none, only these */
    bool working;            /* an order is there */
    bool look;               /* something changed since the last plan */
    bool stopping, quit;
    pthread_mutex_t change_mu; /* before mu; held while the function is called */
    void (*on_change)(void *arg); /* guarded by change_mu, as its argument */
    void *change_arg;
    pthread_t planner, worker;
    bool has_planner, has_worker;
};

/* ---- tickets; "locked": with mu held ---- */

typedef struct ticket_list { /* that end, for after the lock */
    nrd_switch_ticket *first, **end;
} ticket_list;

static void put_locked(nrd_switcher *s, nrd_switch_ticket *t)
{
    t->next = NULL;
    t->waits = true;
    *s->end = t;
    s->end = &t->next;
    s->n_waiting++;
}

static void take_locked(nrd_switcher *s, nrd_switch_ticket **at)
{
    nrd_switch_ticket *t = *at;
    *at = t->next;
    s->end = t->next ? s->end : at;
    t->next = NULL;
    t->waits = false;
    s->n_waiting--;
}

/* Takes *at out of the queue and err; its caller is told later. */
static void end_locked(nrd_switcher *s, nrd_switch_ticket **at, nrd_error *err, ticket_list *ended)
{
    nrd_switch_ticket *t = *at;
    take_locked(s, at);
    t->err = err;
    if (!ended->first) {
        ended->end = &ended->first;
    }
    *ended->end = t;
    ended->end = &t->next;
}

static void tell(ticket_list *ended)
{
    while (ended->first) {
        nrd_switch_ticket *t = ended->first;
        ended->first = t->next; /* t is the caller's from here on */
        t->done(t);
    }
}

static nrd_error *copy_of(const nrd_error *err)
{
    return err ? nrd_errorf(nrd_error_get_code(err), "%s", nrd_error_message(err)) : NULL;
}

/* Every ticket for a lease on m (NULL: on any); err is the caller's still. */
static void fail_locked(nrd_switcher *s, const nrd_switch_model *m, const nrd_error *err, ticket_list *ended)
{
    for (nrd_switch_ticket **at = &s->first; *at;) {
        if (!(*at)->is_sleep && (!m || (*at)->model == m)) {
            end_locked(s, at, copy_of(err), ended);
        } else {
            at = &(*at)->next;
        }
    }
}

static nrd_switch_slot *slot_of(const nrd_switcher *s, const nrd_switch_model *m)
{
    return &s->slots[m->i];
}

static bool gives_leases_locked(const nrd_switcher *s, const nrd_switch_model *m)
{
    const nrd_switch_slot *o = slot_of(s, m);
    return o->state == NRD_SWITCH_READY && !o->is_victim && !m->failed && !m->asleep;
}

static void lease_locked(nrd_switcher *s, nrd_switch_model *m)
{
    slot_of(s, m)->n_leases++;
    slot_of(s, m)->used_ns = nrd_now_ns();
    m->dropped = false;
}

static uint64_t after(uint64_t now, uint64_t ns)
{
    return ns >= NRD_SWITCH_FOREVER - 1 - now ? NRD_SWITCH_FOREVER : now + ns;
}

static void look_locked(nrd_switcher *s)
{
    s->look = true;
    pthread_cond_signal(&s->plan_cond);
}

static uint64_t held_locked(const nrd_switcher *s)
{
    uint64_t held = 0;
    for (size_t i = 0; i < s->n; i++) {
        held += s->slots[i].state == NRD_SWITCH_ABSENT ? 0 : s->slots[i].bytes;
    }
    return held;
}

/* ---- errors ---- */

static nrd_error *stopping_error(void)
{
    return nrd_errorf(NRD_ERR_UNAVAILABLE, "the server is shutting down");
}

static nrd_error *asleep_error(const nrd_switch_model *m)
{
    return nrd_errorf(NRD_ERR_UNAVAILABLE, "The model `%s` is asleep; POST /wake_up ends that", m->name);
}

static nrd_error *never_error(const nrd_switcher *s, const nrd_switch_model *m, uint64_t room)
{
    const double gb = 1e9;
    return nrd_errorf(NRD_ERR_UNAVAILABLE, "The model `%s` takes %.4g GB of memory; %.4g GB are for models, of which pinned ones "
                      "leave %.4g GB. Start the server with a larger --model-memory-gb, a smaller --max-seq-len or fewer "
                      "pinned models",
                      m->name, (double)slot_of(s, m)->bytes / gb, (double)s->cfg.budget_bytes / gb, (double)room / gb);
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

static void give_leases_locked(nrd_switcher *s, ticket_list *ended)
{
    for (nrd_switch_ticket **at = &s->first; *at;) {
        nrd_switch_ticket *t = *at;
        if (!t->is_sleep && gives_leases_locked(s, t->model)) {
            lease_locked(s, t->model);
            end_locked(s, at, NULL, ended);
        } else {
            at = &t->next;
        }
    }
}

static void end_late_locked(nrd_switcher *s, uint64_t now, ticket_list *ended)
{
    for (nrd_switch_ticket **at = &s->first; *at;) {
        if ((*at)->until_ns <= now) {
            end_locked(s, at, late_error(s, *at), ended);
        } else {
            at = &(*at)->next;
        }
    }
}

/* A sleep is over when nothing of it is in memory, or somebody woke it. */
static void end_sleeps_locked(nrd_switcher *s, ticket_list *ended)
{
    for (nrd_switch_ticket **at = &s->first; *at;) {
        const nrd_switch_ticket *t = *at;
        bool over = t->is_sleep;
        for (size_t i = 0; i < s->n && over; i++) {
            const nrd_switch_model *m = &s->models[i];
            over = (t->model && t->model != m) || !m->asleep || s->slots[i].state == NRD_SWITCH_ABSENT;
        }
        if (over) {
            end_locked(s, at, NULL, ended);
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
        slot_of(s, load)->state = NRD_SWITCH_LOADING;
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
static bool plan_head_locked(nrd_switcher *s, ticket_list *ended)
{
    nrd_switch_model *m = head_locked(s);
    uint64_t room = 0;

    for (size_t i = 0; i < s->n; i++) {
        s->slots[i].is_victim = false;
    }
    if (!m || slot_of(s, m)->state != NRD_SWITCH_ABSENT) {
        return false; /* it gets its leases, or has failed and waits for those that are out */
    }
    switch (nrd_switch_plan(s->slots, s->n, m->i, s->cfg.budget_bytes, &room)) {
    case NRD_SWITCH_NEVER: {
        nrd_error *err = never_error(s, m, room);
        fail_locked(s, m, err, ended);
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

static void plan_locked(nrd_switcher *s, uint64_t now, ticket_list *ended)
{
    end_late_locked(s, now, ended);
    end_sleeps_locked(s, ended);
    if (!s->working && !s->stopping && !send_away_locked(s, now)) {
        while (plan_head_locked(s, ended)) {
        }
    }
    give_leases_locked(s, ended);
    /* The head may have got its lease just now, and then another decides. */
    nrd_switch_model *m = head_locked(s);
    s->look = s->look || (!s->working && m && slot_of(s, m)->state == NRD_SWITCH_ABSENT && ended->first);
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

static void *planner_main(void *arg)
{
    enum { LONGEST_NS = 1000000000 };
    nrd_switcher *s = arg;

    pthread_mutex_lock(&s->mu);
    while (!s->quit) {
        ticket_list ended = {0};
        s->look = false;
        plan_locked(s, nrd_now_ns(), &ended);
        if (ended.first) {
            pthread_mutex_unlock(&s->mu);
            tell(&ended);
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
    slot_of(s, m)->state = NRD_SWITCH_ABSENT;
    m->failed = false;
}

/* mu is given back meanwhile. */
static void load_locked(nrd_switcher *s, nrd_switch_model *m, ticket_list *ended)
{
    const nrd_switch_ops *ops = &s->cfg.ops;
    nrd_switch_slot *o = slot_of(s, m);
    const uint64_t begin = nrd_now_ns();

    pthread_mutex_unlock(&s->mu);
    nrd_error *err = ops->load(ops->user, m->load);
    const uint64_t bytes = err ? 0 : ops->size(ops->user, m->load);
    pthread_mutex_lock(&s->mu);
    if (err) {
        o->state = NRD_SWITCH_ABSENT;
        err = load_error(m, err);
        fail_locked(s, m, err, ended);
        nrd_error_free(err);
        return;
    }
    const uint64_t now = nrd_now_ns();
    m->n_loads++;
    m->load_ns = now - begin;
    o->bytes = bytes ? bytes : o->bytes;
    if (held_locked(s) > s->cfg.budget_bytes) { /* it takes more than was said: the plan is made again */
        NRD_LOG_WARN("the model '%s' takes %llu bytes, more than was expected: it goes again", m->name,
                     (unsigned long long)o->bytes);
        o->state = NRD_SWITCH_LEAVING;
        unload_locked(s, m);
        return;
    }
    o->state = NRD_SWITCH_READY;
    o->used_ns = now;
    m->keep_ns = s->cfg.keep_ns;
    m->expires_ns = after(now, m->keep_ns);
    give_leases_locked(s, ended);
}

void nrd_switcher_on_change(nrd_switcher *s, void (*fn)(void *arg), void *arg)
{
    pthread_mutex_lock(&s->change_mu);
    s->on_change = fn;
    s->change_arg = arg;
    pthread_mutex_unlock(&s->change_mu);
}

static void tell_change(nrd_switcher *s)
{
    pthread_mutex_lock(&s->change_mu);
    if (s->on_change) {
        s->on_change(s->change_arg);
    }
    pthread_mutex_unlock(&s->change_mu);
}

static void *worker_main(void *arg)
{
    nrd_switcher *s = arg;

    pthread_mutex_lock(&s->mu);
    while (!s->quit) {
        ticket_list ended = {0};
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
        look_locked(s);
        pthread_mutex_unlock(&s->mu);
        tell(&ended);
        tell_change(s);
        pthread_mutex_lock(&s->mu);
    }
    pthread_mutex_unlock(&s->mu);
    return NULL;
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
            slot_of(s, m)->n_leases--;
            m->failed = slot_of(s, m)->state == NRD_SWITCH_READY;
        }
        err = s->stopping ? stopping_error() : m->asleep ? asleep_error(m) : NULL;
        const bool now = !err && gives_leases_locked(s, m);
        if (now) {
            lease_locked(s, m);
        } else if (!err && s->n_waiting >= NRD_LIMIT_SWITCH_WAITING) {
            err = nrd_errorf(NRD_ERR_UNAVAILABLE, "%d requests wait for models already", (int)NRD_LIMIT_SWITCH_WAITING);
        } else if (!err) {
            t->model = m;
            t->is_sleep = false;
            t->until_ns = after(nrd_now_ns(), s->cfg.wait_ns);
            put_locked(s, t);
        }
        if (!now) {
            look_locked(s);
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
            take_locked(s, at);
            found = true;
            look_locked(s);
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
    nrd_switch_slot *o = slot_of(s, m);
    const uint64_t now = nrd_now_ns();
    NRD_ASSERT(o->n_leases > 0, "a lease is given back once");
    o->used_ns = now;
    m->keep_ns = keep_ns == NRD_SWITCH_DEFAULT ? s->cfg.keep_ns : keep_ns;
    if (--o->n_leases == 0) {
        m->expires_ns = m->dropped ? now : after(now, m->keep_ns);
        if (s->n_waiting > 0 || m->expires_ns != NRD_SWITCH_FOREVER || m->asleep || m->failed) {
            look_locked(s);
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
    const nrd_switch_slot *o = slot_of(s, m);
    const uint64_t held = held_locked(s);
    const bool room = o->state != NRD_SWITCH_ABSENT || (held <= s->cfg.budget_bytes && o->bytes <= s->cfg.budget_bytes - held);
    pthread_mutex_unlock(&s->mu);
    return room;
}

/* ---- orders ---- */

nrd_error *nrd_switcher_drop(nrd_switcher *s, nrd_switch_model *m)
{
    nrd_error *err = NULL;
    pthread_mutex_lock(&s->mu);
    if (slot_of(s, m)->pinned) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "The model `%s` is pinned; POST /sleep frees its memory", m->name);
    } else {
        m->dropped = true;
        m->expires_ns = 0;
        look_locked(s);
    }
    pthread_mutex_unlock(&s->mu);
    return err;
}

nrd_error *nrd_switcher_sleep(nrd_switcher *s, nrd_switch_model *only, nrd_switch_ticket *t, bool *out_now)
{
    ticket_list ended = {0};
    nrd_error *err = NULL;

    *out_now = true;
    pthread_mutex_lock(&s->mu);
    if (s->stopping) {
        err = stopping_error();
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
        fail_locked(s, m, why, &ended);
        nrd_error_free(why);
    }
    if (!err && !*out_now) {
        t->model = only;
        t->is_sleep = true;
        t->until_ns = after(nrd_now_ns(), s->cfg.wait_ns);
        put_locked(s, t);
    }
    look_locked(s);
    pthread_mutex_unlock(&s->mu);
    tell(&ended);
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
    look_locked(s);
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
    const nrd_switch_slot *o = slot_of(s, m);
    const uint64_t now = nrd_now_ns();
    uint64_t end = m->expires_ns;
    if (o->n_leases > 0) { /* as if they ended now */
        end = m->dropped ? now : after(now, m->keep_ns);
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

void nrd_switcher_totals(nrd_switcher *s, uint64_t *out_held, uint64_t *out_budget, size_t *out_waiting)
{
    pthread_mutex_lock(&s->mu);
    *out_held = held_locked(s);
    *out_budget = s->cfg.budget_bytes;
    *out_waiting = s->n_waiting;
    pthread_mutex_unlock(&s->mu);
}

/* ---- life ---- */

static nrd_error *copy_spec(nrd_switch_model *m, const nrd_switch_spec *spec)
{
    nrd_error *err = NULL;
    m->name = strdup(spec->name);
    m->load = strdup(spec->load);
    m->file_bytes = spec->file_bytes;
    NRD_NEW_GOTO(m->aliases, spec->n_aliases + 1, err, fail);
    for (size_t i = 0; i < spec->n_aliases; i++) {
        m->aliases[i] = strdup(spec->aliases[i]);
        if (!m->aliases[i]) {
            return nrd_error_no_memory();
        }
        m->n_aliases++;
    }
    return m->name && m->load ? NULL : nrd_error_no_memory();
fail:
    return err;
}

static void free_model(nrd_switch_model *m)
{
    for (size_t k = 0; k < m->n_aliases; k++) {
        free(m->aliases[k]);
    }
    free(m->aliases);
    free(m->name);
    free(m->load);
    memset(m, 0, sizeof *m);
}

/* Behind all others. */
static nrd_error *put_model_locked(nrd_switcher *s, const nrd_switch_spec *spec)
{
    const size_t i = s->n;
    nrd_switch_model *m = &s->models[i];
    nrd_error *err = copy_spec(m, spec);

    if (err) {
        free_model(m);
        return err;
    }
    m->i = i;
    m->keep_ns = s->cfg.keep_ns;
    s->slots[i] = (nrd_switch_slot){.bytes = spec->bytes, .pinned = spec->pinned};
    s->n = i + 1;
    return NULL;
}

nrd_error *nrd_switcher_add(nrd_switcher *s, const nrd_switch_spec *spec)
{
    nrd_switch_model *old = NULL;
    nrd_error *err = NULL;

    pthread_mutex_lock(&s->mu);
    for (size_t i = 0; i < s->n && !err; i++) {
        nrd_switch_model *m = &s->models[i];
        const bool is_one = !strcmp(m->name, spec->name), is_load = !strcmp(m->load, spec->load);
        if (is_one && is_load && m->forgotten && s->slots[i].state == NRD_SWITCH_ABSENT) {
            old = m;
        } else if (is_one || is_load) {
            err = nrd_errorf(NRD_ERR_UNAVAILABLE, "a model `%s` is here already", m->name);
        }
    }
    if (!err && old) {
        slot_of(s, old)->bytes = spec->bytes;
        old->file_bytes = spec->file_bytes;
        old->asleep = old->was_ready = false;
        old->forgotten = false;
    } else if (!err && s->n == NRD_LIMIT_SWITCHED_MODELS) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "this server has had %d models, which is the most", (int)NRD_LIMIT_SWITCHED_MODELS);
    } else if (!err) {
        err = put_model_locked(s, spec);
    }
    pthread_mutex_unlock(&s->mu);
    return err;
}

nrd_error *nrd_switcher_forget(nrd_switcher *s, nrd_switch_model *m)
{
    nrd_error *err = NULL;
    pthread_mutex_lock(&s->mu);
    if (!m->asleep || slot_of(s, m)->state != NRD_SWITCH_ABSENT) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "The model `%s` is in use", m->name);
    } else {
        m->forgotten = true;
    }
    pthread_mutex_unlock(&s->mu);
    return err;
}

nrd_error *nrd_switcher_new(nrd_switcher **out, const nrd_switch_config *cfg, const nrd_switch_spec *specs, size_t n)
{
    nrd_error *err = NULL;
    nrd_switcher *s = NULL;

    *out = NULL;
    if (n == 0 || n > NRD_LIMIT_SWITCHED_MODELS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%zu models, expected 1 to %d", n, (int)NRD_LIMIT_SWITCHED_MODELS);
    }
    NRD_NEW_GOTO(s, 1, err, fail);
    s->cfg = *cfg;
    s->end = &s->first;
    pthread_mutex_init(&s->mu, NULL);
    pthread_mutex_init(&s->change_mu, NULL);
    nrd_cond_init_steady(&s->plan_cond);
    pthread_cond_init(&s->work_cond, NULL);
    NRD_NEW_GOTO(s->models, NRD_LIMIT_SWITCHED_MODELS, err, fail);
    NRD_NEW_GOTO(s->slots, NRD_LIMIT_SWITCHED_MODELS, err, fail);
    for (size_t i = 0; i < n; i++) {
        NRD_TRY_GOTO(put_model_locked(s, &specs[i]), err, fail); /* nobody else has it yet */
    }
    s->has_planner = pthread_create(&s->planner, NULL, planner_main, s) == 0;
    s->has_worker = s->has_planner && pthread_create(&s->worker, NULL, worker_main, s) == 0;
    if (!s->has_worker) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "cannot start the threads that load models");
        goto fail;
    }
    *out = s;
    return NULL;

fail:
    if (s) {
        s->cfg.ops.free_user = NULL; /* the caller's still */
    }
    nrd_switcher_free(s);
    return err;
}

void nrd_switcher_stop(nrd_switcher *s)
{
    ticket_list ended = {0};
    nrd_error *err = stopping_error();

    pthread_mutex_lock(&s->mu);
    s->stopping = true;
    fail_locked(s, NULL, err, &ended);
    for (nrd_switch_ticket **at = &s->first; *at;) {
        end_locked(s, at, copy_of(err), &ended); /* those of sleep */
    }
    pthread_mutex_unlock(&s->mu);
    tell(&ended);
    nrd_error_free(err);
}

void nrd_switcher_free(nrd_switcher *s)
{
    if (!s) {
        return;
    }
    nrd_switcher_stop(s);
    pthread_mutex_lock(&s->mu);
    s->quit = true;
    pthread_cond_signal(&s->plan_cond);
    pthread_cond_signal(&s->work_cond);
    pthread_mutex_unlock(&s->mu);
    if (s->has_worker) {
        pthread_join(s->worker, NULL);
    }
    if (s->has_planner) {
        pthread_join(s->planner, NULL);
    }
    for (size_t i = 0; i < s->n; i++) {
        free_model(&s->models[i]);
    }
    pthread_mutex_destroy(&s->mu);
    pthread_mutex_destroy(&s->change_mu);
    pthread_cond_destroy(&s->plan_cond);
    pthread_cond_destroy(&s->work_cond);
    if (s->cfg.ops.free_user) {
        s->cfg.ops.free_user(s->cfg.ops.user);
    }
    free(s->models);
    free(s->slots);
    free(s);
}
