/* Who runs the instances: seats and the threads that sit there (see core/worker.h).
 *
 * A request of an ensemble goes from model to model, and waking the next model's thread costs more
 * than a cheap step. So a hand that queues the next step at the end of its own execution may see to
 * it itself: it leaves the others asleep (`owed`) and, once the execution is over and the limiter's
 * resources are given back, follows the step. If nothing waits where it comes from, it changes
 * places with a hand that sleeps at the step's queue: two records change, nobody wakes. If
 * something waits there, it wakes a hand for the step instead, so neither queue stands still while
 * a hand could run it.
 *
 * How soon an execution is over after its last answer is the backend's affair. Each seat counts how
 * often in a row that was at once (`promptness`); only where it is the rule does a hand keep steps
 * to itself, one long execution ends that for a while, and the server's keeper wakes a hand for
 * what waits regardless. */
#include "core/worker.h"

#include "core/backend.h"
#include "core/instance.h"
#include "core/model.h"
#include "core/sched/dynamic_batcher.h"
#include "core/sched/rate_limiter.h"
#include "core/sched/sequence_batcher.h"
#include "core/server.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "triton/core/tritonbackend.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    PROMPT_NS = 50 * 1000, /* about what it costs to wake a thread */
    PROMPT_ENOUGH = 16,
    PROMPT_PENALTY = 64,
};

static _Thread_local nrd_hand *here;

/* ---- steps of ensembles ---- */

bool nrd_hand_begin_chain(void)
{
    bool was = here && here->chaining;
    if (here) {
        here->chaining = true;
    }
    return was;
}

void nrd_hand_end_chain(bool was)
{
    if (here) {
        here->chaining = was;
    }
}

bool nrd_hand_keeps(nrd_sched *s, uint64_t now_ns)
{
    nrd_hand *h = here;
    nrd_sched *own = h && h->chaining ? h->seat->model->sched : NULL;

    if (!own ||
        (s == own ? nrd_sched_waits(s) : !nrd_sched_is_open(s) || !nrd_sched_is_open(own))) {
        return false;
    }
    if (h->chained_ns == 0) {
        h->chained_ns = now_ns;
    }
    if (h->owed || h->seat->promptness < PROMPT_ENOUGH) {
        return false; /* it can see to one step, others run beside it */
    }
    h->owed = s == own ? s : nrd_sched_ref(s);
    return true;
}

static void judge(nrd_worker *w, uint64_t took_ns)
{
    if (took_ns > PROMPT_NS) {
        w->promptness = -PROMPT_PENALTY;
    } else if (w->promptness < PROMPT_ENOUGH) {
        w->promptness++;
    }
}

/* Its first move ends that a thread's name tells its instance. */
static void name_freely(nrd_hand *h)
{
    if (!h->is_named_freely) {
        h->is_named_freely = true;
        pthread_setname_np(pthread_self(), "instances");
    }
}

static void follow(nrd_hand *h)
{
    nrd_sched *to = h->owed;

    h->owed = NULL;
    if (to == h->seat->model->sched) {
        return; /* it comes by there anyway */
    }
    const nrd_worker *was = h->seat;
    nrd_sched_follow(to, h);
    nrd_sched_unref(to);
    if (h->seat != was) {
        name_freely(h);
    }
}

/* ---- threads ---- */

static uint32_t take(nrd_worker *w, nrd_hand *h)
{
    nrd_model *m = w->model;
    return m->seq ? nrd_seq_take(m->seq, (uint32_t)(w - m->workers), h, w->batch, w->cap)
                  : nrd_sched_take(m->sched, h, w->batch, w->cap);
}

static void run_batch(nrd_worker *w, nrd_hand *h, uint32_t n)
{
    nrd_instance *inst = w->instances[w->next];
    nrd_limiter *limiter = w->model->server->limiter;

    nrd_limiter_acquire(limiter, inst);
    nrd_instance_execute(inst, w->batch, n);
    nrd_limiter_release(limiter, inst);
    w->next = (w->next + 1) % w->n_instances;
    if (h->chained_ns) {
        judge(w, nrd_now_ns() - h->chained_ns);
        h->chained_ns = 0;
    }
    if (h->owed) {
        follow(h);
    }
}

static void *run_hand(void *arg)
{
    nrd_hand *h = arg;
    nrd_worker *w;
    char name[16]; /* the kernel's limit */

    here = h;
    snprintf(name, sizeof name, "i:%s", h->seat->instances[0]->name);
    pthread_setname_np(pthread_self(), name);
    for (;;) {
        const unsigned n_moved = h->n_moved;
        w = h->seat;
        uint32_t n = take(w, h);
        if (n > 0) {
            run_batch(w, h, n);
        } else if (h->n_moved == n_moved) {
            break; /* the model goes */
        } else {
            name_freely(h);
        }
    }
    sem_destroy(&h->wake);
    free(h);
    w->last = pthread_self();
    sem_post(&w->closed);
    return NULL;
}

static nrd_error *start_hand(nrd_worker *w)
{
    nrd_hand *h = nrd_xcalloc(1, sizeof *h);
    pthread_t thread;

    h->seat = w;
    sem_init(&h->wake, 0, 0);
    if (pthread_create(&thread, NULL, run_hand, h) != 0) {
        sem_destroy(&h->wake);
        free(h);
        return nrd_errorf(NRD_ERR_INTERNAL, "cannot start a thread for model '%s'", w->model->name);
    }
    w->started = true;
    return NULL;
}

static bool same_device(const nrd_instance *a, const nrd_instance *b)
{
    return a->kind == b->kind && a->device_id == b->device_id;
}

nrd_error *nrd_workers_start(nrd_model *m)
{
    bool shared = m->backend->policy == TRITONBACKEND_EXECUTION_DEVICE_BLOCKING;

    if (shared && m->seq) { /* slots belong to instances: each needs a thread of its own */
        NRD_LOG_INFO("Overriding execution policy to \"TRITONBACKEND_EXECUTION_BLOCKING\" for "
                     "sequence model \"%s\"",
                     m->name);
        shared = false;
    }
    m->workers = nrd_xcalloc(m->n_instances + 1u, sizeof *m->workers);
    for (uint32_t k = 0; k < m->n_instances; k++) {
        nrd_worker *w = NULL;
        if (m->instances[k]->passive) {
            continue; /* loaded, but never scheduled */
        }
        for (uint32_t j = 0; shared && j < m->n_workers && !w; j++) {
            w = same_device(m->workers[j].instances[0], m->instances[k]) ? &m->workers[j] : NULL;
        }
        if (!w) {
            w = &m->workers[m->n_workers++];
            w->model = m;
            w->cap = m->seq ? nrd_seq_max_batch(m->seq) : nrd_sched_max_batch(m->sched);
            w->batch = nrd_xcalloc(w->cap, sizeof *w->batch);
            sem_init(&w->closed, 0, 0);
        }
        w->instances = nrd_xrealloc(w->instances, (w->n_instances + 1) * sizeof *w->instances);
        w->instances[w->n_instances++] = m->instances[k];
    }
    for (uint32_t j = 0; j < m->n_workers; j++) {
        NRD_TRY(start_hand(&m->workers[j]));
    }
    return NULL;
}

void nrd_workers_join(nrd_model *m)
{
    for (uint32_t j = 0; j < m->n_workers; j++) {
        nrd_worker *w = &m->workers[j];
        if (w->started) {
            while (sem_wait(&w->closed) != 0) { /* interrupted */
            }
            pthread_join(w->last, NULL);
        }
        sem_destroy(&w->closed);
        free(w->batch);
        free(w->instances);
    }
    free(m->workers);
    m->workers = NULL;
    m->n_workers = 0;
}
