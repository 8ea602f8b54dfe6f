/* SPDX-License-Identifier: Apache-2.0
 * The threads that run the instances of a model (see sched/worker.h).
 *
 * A request of an ensemble goes from model to model, and waking the next model's thread costs more
 * than a cheap step. So a worker that queues the next step at the end of its own execution may run
 * it itself: it leaves the others asleep and remembers the step's queue (`kept`). Once the
 * execution is over and the limiter's resources are given back, it follows the step. If nothing
 * waits where it comes from, it changes places with a worker that sleeps at the step's queue: two
 * records change, no thread wakes. If something waits there, it wakes a worker for the step
 * instead, so neither queue stands still while a worker could run it.
 *
 * How soon an execution is over after its last answer depends on the backend. Each slot counts how
 * often in a row it was over at once (`n_quick_ends`); only where this is usual does a worker keep
 * steps to itself. One long execution ends that for a while, and the server's housekeeping wakes a
 * worker for what waits regardless.
 *
 * A request that a front end's thread sends need not wake a worker either, where the thread is lent
 * and the backend never blocks: the scheduler takes a sleeping worker off its list, and the thread
 * runs the request in that worker's slot before it returns from sending it. The worker sleeps on; a
 * model that is stopped waits for it, and so for the thread. The thread's own work must not wait for
 * long: each slot counts how often in a row an execution was short (`n_quick_runs`). */
#include "core/sched/workers.h"

#include "core/backend_internal.h"
#include "core/context.h"
#include "core/instance.h"
#include "core/instance_internal.h"
#include "core/model_internal.h"
#include "core/request_internal.h"
#include "core/sched/dynamic_batcher.h"
#include "core/sched/rate_limiter.h"
#include "core/sched/scheduler.h"
#include "core/sched/worker.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "triton/core/tritonbackend.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

enum {
#ifdef __SANITIZE_THREAD__
    QUICK_NS = 1000 * 1000, /* every access is slower, and workers are to change places here too */
#else
    QUICK_NS = 50 * 1000, /* about what it costs to wake a thread */
#endif
    QUICK_PENALTY = 64,
    LONGEST_PAUSE = 1000, /* runs */
};

static void count_quick_end(nrd_worker_slot *slot, uint64_t took_ns)
{
    if (took_ns > QUICK_NS) {
        slot->n_quick_ends = -QUICK_PENALTY;
    } else if (slot->n_quick_ends < NRD_QUICK_ENOUGH) {
        slot->n_quick_ends++;
    }
}

/* One slow run among many is the kernel's, which has set the thread aside; several are the model's
 * own, and it is run by its workers for longer each time. */
static void count_run(nrd_worker_slot *slot, bool is_quick)
{
    if (!is_quick) {
        const int longer = 4 * slot->pause + NRD_QUICK_ENOUGH;
        slot->pause = slot->n_quick_runs >= nrd_lent_limits.many_runs ? 0
                      : longer < LONGEST_PAUSE                        ? longer
                                                                      : LONGEST_PAUSE;
        slot->n_quick_runs = -slot->pause;
    } else if (slot->n_quick_runs < nrd_lent_limits.many_runs) {
        slot->n_quick_runs++;
    }
}

/* ---- steps of ensembles ---- */

/* Its first move ends that a thread's name tells its instance. */
static void use_common_name(nrd_worker *w)
{
    if (!w->has_common_name) {
        w->has_common_name = true;
        pthread_setname_np(pthread_self(), "instances");
    }
}

/* The thread goes where the instances of its slot run. */
static void use_place(nrd_worker *w)
{
    nrd_error *err = nrd_host_policy_enter(&w->slot->instances[0]->place, &w->home);
    if (err) {
        NRD_LOG_ERROR("model '%s': %s", w->slot->model->name, nrd_error_message(err));
        nrd_error_free(err);
    }
}

/* ---- executing ---- */

static uint32_t take(nrd_worker_slot *slot, nrd_worker *w)
{
    nrd_model *m = slot->model;
    return m->scheduler->ops->take(m->scheduler, (uint32_t)(slot - m->workers), w, slot->batch,
                                   slot->cap);
}

static uint64_t cpu_ns(const struct rusage *u)
{
    const struct timeval *a = &u->ru_utime, *b = &u->ru_stime;
    return (uint64_t)(a->tv_sec + b->tv_sec) * 1000000000u +
           (uint64_t)(a->tv_usec + b->tv_usec) * 1000u;
}

/* A run on a worker also wakes the thread that waits for the answer, which costs more than the run
 * where processors sleep deeply, as in virtual machines; a lent thread is that one, and wakes nobody.
 * A run that is too long for it in spite of that is told by the lent thread's own measure. */
static uint64_t longest_on_worker_ns(void)
{
    return nrd_lent_limits.quick_run_ns + nrd_lent_limits.wake_ns;
}

/* Whether the thread has worked no longer than a quick run and never slept: the kernel often lets
 * the thread that it has woken go first. */
static bool was_set_aside(const struct rusage *before)
{
    struct rusage now;
    return getrusage(RUSAGE_THREAD, &now) == 0 && now.ru_nvcsw == before->ru_nvcsw &&
           cpu_ns(&now) - cpu_ns(before) <= longest_on_worker_ns();
}

/* Runs the slot's batch. true: all its requests were released meanwhile. */
static bool execute(nrd_worker_slot *slot, uint32_t n)
{
    nrd_instance *inst = slot->instances[slot->next];
    const bool all_released = nrd_instance_execute(inst, slot->batch, n);

    slot->next = (slot->next + 1) % slot->n_instances;
    return all_released;
}

/* The same on a worker, where lent threads might run it. */
static void execute_measured(nrd_worker_slot *slot, uint32_t n)
{
    struct rusage before = {0};

    getrusage(RUSAGE_THREAD, &before);
    const uint64_t begin_ns = nrd_now_ns();
    const bool all_released = execute(slot, n);
    const bool is_short = nrd_now_ns() - begin_ns <= longest_on_worker_ns();
    count_run(slot, all_released && (is_short || was_set_aside(&before)));
}

static void run_batch(nrd_worker_slot *slot, nrd_worker *w, uint32_t n)
{
    nrd_instance *inst = slot->instances[slot->next];
    nrd_limiter *limiter = slot->model->ctx->limiter;

    nrd_limiter_acquire(limiter, inst);
    if (slot->model->never_blocks) {
        execute_measured(slot, n);
    } else {
        execute(slot, n);
    }
    nrd_limiter_release(limiter, inst);
    if (w->next_step_ns) {
        count_quick_end(slot, nrd_now_ns() - w->next_step_ns);
        w->next_step_ns = 0;
    }
    if (w->kept) {
        const nrd_worker_slot *was = w->slot;
        nrd_batcher_follow(w);
        if (w->slot != was) {
            use_common_name(w);
            use_place(w);
        }
    }
}

void nrd_workers_run_lent(void)
{
    nrd_lent *t = nrd_lent_here();

    if (t->is_running || !t->worker) {
        return;
    }
    t->is_running = true;
    while (t->worker) {
        nrd_worker *w = t->worker;
        const uint64_t begin_ns = t->request->queue_ns;
        w->slot->batch[0] = t->request;
        t->worker = NULL;
        /* May leave a next step, in the slot of another worker. */
        const bool all_released = execute(w->slot, 1);
        const bool is_short = nrd_now_ns() - begin_ns <= nrd_lent_limits.quick_run_ns;
        count_run(w->slot, all_released && is_short);
        nrd_batcher_give_back(w);
    }
    t->is_running = false;
}

/* ---- threads ---- */

static void *run_worker(void *arg)
{
    nrd_worker *w = arg;
    nrd_worker_slot *slot;
    char name[16]; /* the kernel's limit */

    nrd_worker_set_current(w);
    snprintf(name, sizeof name, "i:%s", w->slot->instances[0]->name);
    pthread_setname_np(pthread_self(), name);
    use_place(w);
    for (;;) {
        const unsigned n_moved = w->n_moved;
        slot = w->slot;
        uint32_t n = take(slot, w);
        if (n > 0) {
            run_batch(slot, w, n);
        } else if (w->n_moved == n_moved) {
            break; /* the model goes */
        } else {
            use_common_name(w);
            use_place(w);
        }
    }
    sem_destroy(&w->wake);
    free(w);
    slot->last = pthread_self();
    sem_post(&slot->closed);
    return NULL;
}

static nrd_error *start_worker(nrd_worker_slot *slot)
{
    nrd_worker *w = calloc(1, sizeof *w);
    pthread_t thread;

    if (!w) {
        return nrd_error_no_memory();
    }
    w->slot = slot;
    sem_init(&w->wake, 0, 0);
    if (pthread_create(&thread, NULL, run_worker, w) != 0) {
        sem_destroy(&w->wake);
        free(w);
        return nrd_errorf(NRD_ERR_INTERNAL, "cannot start a thread for model '%s'",
                          slot->model->name);
    }
    slot->started = true;
    return NULL;
}

static bool same_device(const nrd_instance *a, const nrd_instance *b)
{
    return a->kind == b->kind && a->device_id == b->device_id;
}

nrd_error *nrd_workers_start(nrd_model *m)
{
    bool shared = m->backend->policy == TRITONBACKEND_EXECUTION_DEVICE_BLOCKING;

    if (shared && m->scheduler->by_instance) {
        NRD_LOG_INFO("Overriding execution policy to \"TRITONBACKEND_EXECUTION_BLOCKING\" for "
                     "sequence model \"%s\"",
                     m->name);
        shared = false;
    }
    m->workers = calloc(m->n_instances + 1u, sizeof *m->workers);
    if (!m->workers) {
        return nrd_error_no_memory();
    }
    for (uint32_t k = 0; k < m->n_instances; k++) {
        nrd_worker_slot *slot = NULL;
        if (m->instances[k]->passive) {
            continue; /* loaded, but never scheduled */
        }
        for (uint32_t j = 0; shared && j < m->n_workers && !slot; j++) {
            slot = same_device(m->workers[j].instances[0], m->instances[k]) ? &m->workers[j] : NULL;
        }
        if (!slot) {
            slot = &m->workers[m->n_workers++];
            slot->model = m;
            slot->cap = m->scheduler->max_batch;
            slot->batch = calloc(slot->cap, sizeof *slot->batch);
            sem_init(&slot->closed, 0, 0);
        }
        nrd_instance **list = realloc(slot->instances, (slot->n_instances + 1) * sizeof *list);
        slot->instances = list ? list : slot->instances;
        if (!list || !slot->batch) {
            return nrd_error_no_memory();
        }
        slot->instances[slot->n_instances++] = m->instances[k];
    }
    for (uint32_t j = 0; j < m->n_workers; j++) {
        NRD_TRY(start_worker(&m->workers[j]));
    }
    return NULL;
}

void nrd_workers_join(nrd_model *m)
{
    for (uint32_t j = 0; j < m->n_workers; j++) {
        nrd_worker_slot *slot = &m->workers[j];
        if (slot->started) {
            while (sem_wait(&slot->closed) != 0) { /* interrupted */
            }
            pthread_join(slot->last, NULL);
        }
        sem_destroy(&slot->closed);
        free(slot->batch);
        free(slot->instances);
    }
    free(m->workers);
    m->workers = NULL;
    m->n_workers = 0;
}
