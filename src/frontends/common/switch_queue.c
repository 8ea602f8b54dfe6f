/* SPDX-License-Identifier: Apache-2.0
 * The queue of tickets, and who gets a lease. */
#include "frontends/common/switcher_internal.h"

#include "base/clock.h"

void nrd_switch_put_locked(nrd_switcher *s, nrd_switch_ticket *t)
{
    t->next = NULL;
    t->waits = true;
    *s->end = t;
    s->end = &t->next;
    s->n_waiting++;
}

void nrd_switch_take_locked(nrd_switcher *s, nrd_switch_ticket **at)
{
    nrd_switch_ticket *t = *at;
    *at = t->next;
    s->end = t->next ? s->end : at;
    t->next = NULL;
    t->waits = false;
    s->n_waiting--;
}

void nrd_switch_end_locked(nrd_switcher *s, nrd_switch_ticket **at, nrd_error *err, nrd_switch_tickets *ended)
{
    nrd_switch_ticket *t = *at;
    nrd_switch_take_locked(s, at);
    t->err = err;
    if (!ended->first) {
        ended->end = &ended->first;
    }
    *ended->end = t;
    ended->end = &t->next;
}

void nrd_switch_tell(nrd_switch_tickets *ended)
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

void nrd_switch_fail_locked(nrd_switcher *s, const nrd_switch_model *m, const nrd_error *err, nrd_switch_tickets *ended)
{
    for (nrd_switch_ticket **at = &s->first; *at;) {
        if (!m || (!(*at)->is_sleep && (*at)->model == m)) {
            nrd_switch_end_locked(s, at, copy_of(err), ended);
        } else {
            at = &(*at)->next;
        }
    }
}

bool nrd_switch_gives_leases_locked(const nrd_switcher *s, const nrd_switch_model *m)
{
    const nrd_switch_slot *o = nrd_switch_slot_of(s, m);
    return o->state == NRD_SWITCH_READY && !o->is_victim && !m->failed && !m->asleep;
}

void nrd_switch_lease_locked(nrd_switcher *s, nrd_switch_model *m)
{
    nrd_switch_slot_of(s, m)->n_leases++;
    nrd_switch_slot_of(s, m)->used_ns = nrd_now_ns();
    m->dropped = false;
}

uint64_t nrd_switch_after(uint64_t now, uint64_t ns)
{
    return ns >= NRD_SWITCH_FOREVER - 1 - now ? NRD_SWITCH_FOREVER : now + ns;
}

void nrd_switch_look_locked(nrd_switcher *s)
{
    s->look = true;
    pthread_cond_signal(&s->plan_cond);
}

uint64_t nrd_switch_held_locked(const nrd_switcher *s)
{
    uint64_t held = 0;
    for (size_t i = 0; i < s->n; i++) {
        held += s->slots[i].state == NRD_SWITCH_ABSENT ? 0 : s->slots[i].bytes;
    }
    return held;
}

void nrd_switch_give_leases_locked(nrd_switcher *s, nrd_switch_tickets *ended)
{
    for (nrd_switch_ticket **at = &s->first; *at;) {
        nrd_switch_ticket *t = *at;
        if (!t->is_sleep && nrd_switch_gives_leases_locked(s, t->model)) {
            nrd_switch_lease_locked(s, t->model);
            nrd_switch_end_locked(s, at, NULL, ended);
        } else {
            at = &t->next;
        }
    }
}

nrd_error *nrd_switch_stopping_error(void)
{
    return nrd_errorf(NRD_ERR_UNAVAILABLE, "the server is shutting down");
}
