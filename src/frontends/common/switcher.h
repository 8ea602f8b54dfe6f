/* SPDX-License-Identifier: Apache-2.0
 * frontends/common/switcher.h - several models in one server, of which as many are loaded as memory allows.
 *
 * Purpose   A request asks for a lease on its model and gives it back at its end. A model is loaded when a
 *           lease is asked for, and goes when its memory is needed for another, when nobody has used it
 *           for its time (keep-alive), or by order.
 *
 *           A model:   ABSENT --load--> LOADING --> READY --evict--> LEAVING --gone--> ABSENT
 *                                         '--failed--> ABSENT: an error to all that wait for it; the next
 *                                                      request tries again
 *             Leases are given while it is READY and no victim. LEAVING begins when it has no lease and
 *             ends when the core has freed it, so that its bytes are never counted too little.
 *             asleep: an order (sleep) made it leave, and it is not loaded until another (wake).
 *             pinned: neither others nor time make it go; an order does.
 *           A ticket:  (asked) --> given at once, or WAITS in the queue --> given | failed | cancelled
 *             One queue for all models, first come first served. Its head decides what is loaded next: when
 *             that does not fit, the plan (switch_plan.h) names victims. They get no new leases, so new
 *             requests for them stand behind the head, and go together when their last lease is back: all
 *             or none. A model that has been loaded gets all its tickets, wherever they stand. So two
 *             models that do not fit together take turns, each turn serves all that had come, and nobody
 *             waits for more than one turn of each model before it.
 *           Memory: the bytes of all that is not ABSENT never pass the budget, as far as bytes are known: a
 *             model's are what its file says until it has been loaded, then what it says itself. One that
 *             takes more than was said and does not fit is unloaded again, and its tickets are planned
 *             with the true number.
 *
 * Owner     Any thread. One lock; the core is asked without it, by two threads: one plans and keeps time,
 *           one loads and unloads, one order at a time.
 * Errors    UNAVAILABLE: asleep, does not fit, waited too long, stopping; what the core says of a load.
 * Lifetime  new, stop (fails what waits), free when no lease is out. Models live as long as the switcher; one that is
 *           forgotten keeps its place, for another of its name.
 */
#ifndef NRD_FRONTENDS_COMMON_SWITCHER_H
#define NRD_FRONTENDS_COMMON_SWITCHER_H

#include "base/duration.h"
#include "base/error.h"
#include "frontends/common/switch_plan.h"

#define NRD_SWITCH_FOREVER NRD_DURATION_FOREVER /* a time to keep a model */
#define NRD_SWITCH_DEFAULT (UINT64_MAX - 1)     /* the switcher's */

typedef struct nrd_switcher nrd_switcher;
typedef struct nrd_switch_model nrd_switch_model;

/* What is done to the core; called without a lock, by one thread at a time. */
typedef struct nrd_switch_ops {
    void *user;
    nrd_error *(*load)(void *user, const char *name);   /* returns when it serves, or has failed */
    nrd_error *(*unload)(void *user, const char *name); /* returns when its memory is free */
    uint64_t (*size)(void *user, const char *name);     /* bytes of a loaded one; 0: not known */
    bool (*is_ready)(void *user, const char *name);     /* any thread; false: it failed since it was loaded */
    void (*free_user)(void *user); /* with the switcher; NULL: nothing to do */
} nrd_switch_ops;

typedef struct nrd_switch_config {
    nrd_switch_ops ops;
    uint64_t budget_bytes;
    uint64_t keep_ns; /* how long an unused model stays; NRD_SWITCH_FOREVER */
    uint64_t wait_ns; /* that a ticket waits at most */
} nrd_switch_config;

typedef struct nrd_switch_spec {
    const char *name;           /* what clients call it */
    const char *load;           /* what the core calls it */
    const char *const *aliases; /* other names that mean it, n_aliases; all are copied */
    size_t n_aliases;
    uint64_t bytes; /* expected */
    uint64_t file_bytes; /* of its weights, for lists */
    bool pinned;
} nrd_switch_spec;

nrd_error *nrd_switcher_new(nrd_switcher **out, const nrd_switch_config *cfg, const nrd_switch_spec *specs,
                            size_t n) NRD_MUST_USE;
/* What waits fails, nothing is loaded any more; leases that are out may come back. Any number of times. */
void nrd_switcher_stop(nrd_switcher *s);
/* fn(arg) is called after each load and unload, without the switcher's lock, by its thread; NULL: no longer, and no
 * call is under way any more. */
void nrd_switcher_on_change(nrd_switcher *s, void (*fn)(void *arg), void *arg);
void nrd_switcher_free(nrd_switcher *s); /* waits for a load under way; NULL is fine */

/* One more model, absent at first. UNAVAILABLE: a model of this name is there, or still leaves; or there are too many.
 * One that was forgotten comes back with the same `load`. */
nrd_error *nrd_switcher_add(nrd_switcher *s, const nrd_switch_spec *spec) NRD_MUST_USE;
/* It is found and loaded no more. UNAVAILABLE: it is not asleep, or its memory is not free yet. */
nrd_error *nrd_switcher_forget(nrd_switcher *s, nrd_switch_model *m) NRD_MUST_USE;

/* The first of all models, then the next; NULL: there is none. */
nrd_switch_model *nrd_switcher_next(nrd_switcher *s, const nrd_switch_model *m);
nrd_switch_model *nrd_switcher_only(nrd_switcher *s); /* NULL: there are several, or none */
nrd_switch_model *nrd_switcher_find(nrd_switcher *s, const char *name); /* or alias; NULL: none */
const char *nrd_switch_name(const nrd_switch_model *m);

typedef struct nrd_switch_info {
    nrd_switch_state state;
    uint64_t bytes, file_bytes; /* bytes: of memory */
    uint32_t n_leases;
    bool pinned, asleep;
    bool was_ready;     /* asleep: it was loaded when it was sent to sleep */
    uint64_t left_ns;   /* READY: until it goes when nobody uses it; NRD_SWITCH_FOREVER */
    uint64_t n_loads;   /* so far */
    uint64_t load_ns;   /* that the last one took */
} nrd_switch_info;
void nrd_switcher_info(nrd_switcher *s, const nrd_switch_model *m, nrd_switch_info *out);

/* Zeroed, then done and user set by the caller, whose memory it is until done was called or cancel said true. */
typedef struct nrd_switch_ticket {
    /* Once, on any thread, no lock held; t->err, which it takes, or NULL: the lease is there. */
    void (*done)(struct nrd_switch_ticket *t);
    void *user;
    nrd_error *err;

    /* private */
    struct nrd_switch_ticket *next;
    nrd_switch_model *model; /* of a sleep NULL: all */
    uint64_t until_ns;
    bool waits, is_sleep;
} nrd_switch_ticket;

/* *out_now: the lease is there, done is not called. An error: neither. */
nrd_error *nrd_switcher_acquire(nrd_switcher *s, nrd_switch_model *m, nrd_switch_ticket *t, bool *out_now) NRD_MUST_USE;
/* True: done is not called any more. False: it was, or is about to be. */
bool nrd_switcher_cancel(nrd_switcher *s, nrd_switch_ticket *t);
/* keep_ns: how long the model stays from now on when nobody uses it; NRD_SWITCH_DEFAULT. */
void nrd_switcher_release(nrd_switcher *s, nrd_switch_model *m, uint64_t keep_ns);
/* For who cannot wait. NULL: the lease is there. UNAVAILABLE: the model is loaded now, as if somebody waited for
 * it; ask again. */
nrd_error *nrd_switcher_acquire_now(nrd_switcher *s, nrd_switch_model *m) NRD_MUST_USE;
/* Acquires, waits for it, and releases at once: loads. For threads that may block. */
nrd_error *nrd_switcher_load(nrd_switcher *s, nrd_switch_model *m) NRD_MUST_USE;
/* Whether it is loaded, or could be without sending another away. */
bool nrd_switcher_has_room(nrd_switcher *s, const nrd_switch_model *m);
/* It goes as soon as nobody uses it; INVALID_ARG: it is pinned. */
nrd_error *nrd_switcher_drop(nrd_switcher *s, nrd_switch_model *m) NRD_MUST_USE;

/* One model, or all (NULL): what waits for it fails, what is under way ends, its memory is freed; done
 * (or *out_now) tells when. At the ticket's end of time it is still asleep, with requests under way. */
nrd_error *nrd_switcher_sleep(nrd_switcher *s, nrd_switch_model *m, nrd_switch_ticket *t, bool *out_now) NRD_MUST_USE;
void nrd_switcher_wake(nrd_switcher *s, nrd_switch_model *m); /* NULL: all; loads nothing */
bool nrd_switcher_is_asleep(nrd_switcher *s, const nrd_switch_model *m); /* NULL: all are */

#endif
