/* SPDX-License-Identifier: Apache-2.0
 * How other threads give work to an event loop: a list of tasks.
 *
 * A loop looks at its list before it sleeps, so while it works other threads only add their tasks.
 * When it goes to sleep it leaves a mark in the empty list; the thread that finds the mark wakes
 * it, once. */
#include "frontends/http/conn.h"

#include "base/clock.h"

#include <sched.h>
#include <unistd.h>

#define MAX_RINGS 16

_Thread_local nrd_http_loop *nrd_http_here;

static nrd_http_task asleep; /* the mark; never run */

void nrd_http_post(nrd_http_loop *l, nrd_http_task *task)
{
    nrd_http_task *old = atomic_load_explicit(&l->inbox, memory_order_relaxed);
    atomic_fetch_add_explicit(&l->n_posting, 1, memory_order_relaxed);
    do {
        task->next = old == &asleep ? NULL : old;
    } while (!atomic_compare_exchange_weak_explicit(&l->inbox, &old, task, memory_order_release,
                                                    memory_order_relaxed));
    if (old == &asleep) {
        /* A ring that is lost leaves the task until the loop's next tick, seconds later: whatever the
         * reason, another try is cheap. */
        const uint64_t one = 1;
        for (int tries = 0; tries < MAX_RINGS && write(l->wake_fd, &one, sizeof one) < 0; tries++) {
        }
    }
    /* The task may be done and its server about to go: this is the last look at the loop. */
    atomic_fetch_sub_explicit(&l->n_posting, 1, memory_order_release);
}

void nrd_http_loop_wait_posts(nrd_http_loop *l)
{
    while (atomic_load_explicit(&l->n_posting, memory_order_acquire) > 0) {
        sched_yield();
    }
}

void nrd_http_loop_awake(nrd_http_loop *l)
{
    nrd_http_task *mark = &asleep;
    l->now_ns = nrd_now_ns();
    if (atomic_load_explicit(&l->inbox, memory_order_relaxed) == mark) {
        atomic_compare_exchange_strong(&l->inbox, &mark, NULL);
    }
}

bool nrd_http_loop_fall_asleep(nrd_http_loop *l)
{
    nrd_http_task *nothing = NULL;
    return atomic_compare_exchange_strong(&l->inbox, &nothing, &asleep);
}

void nrd_http_loop_run_tasks(nrd_http_loop *l)
{
    nrd_http_task *t = atomic_exchange_explicit(&l->inbox, NULL, memory_order_acquire);
    nrd_http_task *in_order = NULL;
    t = t == &asleep ? NULL : t;
    if (t) {
        l->now_ns = nrd_now_ns();
    }
    while (t) {
        nrd_http_task *next = t->next;
        t->next = in_order;
        in_order = t;
        t = next;
    }
    while (in_order) {
        t = in_order;
        in_order = t->next; /* the task may be freed by its run */
        t->run(t);
    }
}
