/* SPDX-License-Identifier: Apache-2.0
 * frontends/common/switcher_internal.h - a switcher from inside: its queue of tickets (switch_queue.c), its two threads
 * (switch_threads.c), what others ask of it (switch_leases.c), its beginning and end (switch_life.c).
 *
 * Owner     `mu`; functions whose names end with "locked" are called with it held.
 */
#ifndef NRD_FRONTENDS_COMMON_SWITCHER_INTERNAL_H
#define NRD_FRONTENDS_COMMON_SWITCHER_INTERNAL_H

#include "frontends/common/switcher.h"

#include <pthread.h>
#include <stdatomic.h>

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

typedef struct nrd_switch_tickets { /* that end, for after the lock */
    nrd_switch_ticket *first, **end;
} nrd_switch_tickets;

static inline nrd_switch_slot *nrd_switch_slot_of(const nrd_switcher *s, const nrd_switch_model *m)
{
    return &s->slots[m->i];
}

/* ---- switch_queue.c ---- */

void nrd_switch_put_locked(nrd_switcher *s, nrd_switch_ticket *t); /* at the end */
void nrd_switch_take_locked(nrd_switcher *s, nrd_switch_ticket **at); /* *at out of the queue */
/* The same, and takes err; its caller is told later. */
void nrd_switch_end_locked(nrd_switcher *s, nrd_switch_ticket **at, nrd_error *err, nrd_switch_tickets *ended);
/* Every ticket for a lease on m (NULL: every ticket); err is the caller's still. */
void nrd_switch_fail_locked(nrd_switcher *s, const nrd_switch_model *m, const nrd_error *err, nrd_switch_tickets *ended);
void nrd_switch_give_leases_locked(nrd_switcher *s, nrd_switch_tickets *ended); /* to all that can have one */
void nrd_switch_tell(nrd_switch_tickets *ended); /* without mu */
nrd_error *nrd_switch_stopping_error(void) NRD_MUST_USE;

bool nrd_switch_gives_leases_locked(const nrd_switcher *s, const nrd_switch_model *m);
void nrd_switch_lease_locked(nrd_switcher *s, nrd_switch_model *m);
void nrd_switch_look_locked(nrd_switcher *s);           /* something changed: a new plan */
uint64_t nrd_switch_held_locked(const nrd_switcher *s); /* bytes of all that is not ABSENT */
uint64_t nrd_switch_after(uint64_t now, uint64_t ns);   /* NRD_SWITCH_FOREVER stays that */

/* ---- switch_threads.c ---- */

void *nrd_switch_planner(void *switcher); /* bodies of its threads, until `quit` */
void *nrd_switch_worker(void *switcher);

#endif
