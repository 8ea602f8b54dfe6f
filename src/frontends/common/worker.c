/* SPDX-License-Identifier: Apache-2.0
 * The worker threads of the front ends. Each client that has jobs is in a circle; a free thread
 * takes one job of the client whose turn it is. Threads start when there is work for them. A job
 * is: waiting -> running -> done, or waiting -> cancelled. Called by handlers on loop threads. */
#include "frontends/common/worker.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#define N_BUCKETS 64
#define MAX_DEFAULT_THREADS 8
#define LONG_NICE 10 /* as of the threads that compile guides */

/* Jobs of one client that wait; there is none without a job. */
typedef struct client {
    struct client *prev, *next; /* the circle of clients that have jobs */
    struct client *same;        /* in the bucket */
    uint64_t key;
    nrd_job *first, **last;
    size_t n;
} client;

struct nrd_workers {
    nrd_workers *for_long; /* owns; NULL: these are they */
    pthread_mutex_t mu;
    pthread_cond_t work;
    size_t n_threads, n_started; /* guarded by mu, as all below */
    pthread_t threads[NRD_WORKERS_MAX_THREADS];
    bool stopping;
    client *turn; /* whose job is next; NULL: none waits */
    client *buckets[N_BUCKETS];
    nrd_workers_stats stats;
};

nrd_error *nrd_workers_new(nrd_workers **out, size_t n_threads)
{
    nrd_workers *w = *out = calloc(1, sizeof *w), *l = w ? calloc(1, sizeof *l) : NULL;
    if (!l) {
        free(w);
        *out = NULL;
        return nrd_error_no_memory();
    }
    if (n_threads == 0) {
        long n = sysconf(_SC_NPROCESSORS_ONLN) / 2;
        n_threads = n < 2 ? 2 : n > MAX_DEFAULT_THREADS ? MAX_DEFAULT_THREADS : (size_t)n;
    }
    w->for_long = l;
    w->n_threads = l->n_threads = n_threads < NRD_WORKERS_MAX_THREADS ? n_threads : NRD_WORKERS_MAX_THREADS;
    pthread_mutex_init(&w->mu, NULL);
    pthread_cond_init(&w->work, NULL);
    pthread_mutex_init(&l->mu, NULL);
    pthread_cond_init(&l->work, NULL);
    return NULL;
}

/* ---- queues; lock held ---- */

static client **find(nrd_workers *w, uint64_t key)
{
    client **at = &w->buckets[nrd_hash_mix(key) % N_BUCKETS];
    while (*at && (*at)->key != key) {
        at = &(*at)->same;
    }
    return at;
}

/* New clients come last: right before the one whose turn it is. */
static client *add_client(nrd_workers *w, client **bucket, uint64_t key)
{
    client *c = calloc(1, sizeof *c);
    if (!c) {
        return NULL;
    }
    c->key = key;
    c->last = &c->first;
    *bucket = c;
    if (w->turn) {
        c->next = w->turn;
        c->prev = w->turn->prev;
        c->prev->next = c->next->prev = c;
    } else {
        w->turn = c->next = c->prev = c;
    }
    return c;
}

static void drop_client(nrd_workers *w, client *c)
{
    *find(w, c->key) = c->same;
    if (c->next == c) {
        w->turn = NULL;
    } else {
        c->prev->next = c->next;
        c->next->prev = c->prev;
        w->turn = w->turn == c ? c->next : w->turn;
    }
    free(c);
}

/* Takes the job that *at points to out of its client's queue. */
static nrd_job *take(nrd_workers *w, client *c, nrd_job **at)
{
    nrd_job *job = *at;
    *at = job->next;
    if (!*at) {
        c->last = at;
    }
    w->stats.n_waiting--;
    if (--c->n == 0) {
        drop_client(w, c);
    }
    return job;
}

/* The next job, of the client whose turn it is; then it is the next client's turn. */
static nrd_job *take_next(nrd_workers *w)
{
    client *c = w->turn;
    w->turn = c->next;
    return take(w, c, &c->first);
}

/* ---- threads ---- */

static void run(nrd_workers *w, nrd_job *job)
{
    const uint64_t begin = nrd_now_ns(), waited = begin - job->since_ns;
    job->run(job);
    const uint64_t took = nrd_now_ns() - begin;
    pthread_mutex_lock(&w->mu);
    w->stats.n_running--;
    w->stats.n_done++;
    w->stats.wait_ns += waited;
    w->stats.run_ns += took;
    pthread_mutex_unlock(&w->mu);
    job->done(job, true);
}

static void *main_of_thread(void *arg)
{
    nrd_workers *w = arg;
    pthread_setname_np(pthread_self(), w->for_long ? "worker" : "long worker");
    if (!w->for_long && getpriority(PRIO_PROCESS, 0) < LONG_NICE) {
        (void)setpriority(PRIO_PROCESS, 0, LONG_NICE); /* on Linux, of this thread */
    }
    pthread_mutex_lock(&w->mu);
    while (!w->stopping) {
        if (!w->turn) {
            pthread_cond_wait(&w->work, &w->mu);
            continue;
        }
        nrd_job *job = take_next(w);
        w->stats.n_running++;
        pthread_mutex_unlock(&w->mu);
        run(w, job);
        pthread_mutex_lock(&w->mu);
    }
    pthread_mutex_unlock(&w->mu);
    return NULL;
}

/* A thread more, while there are jobs for all. Lock held. */
static void start_thread(nrd_workers *w)
{
    if (w->n_started < w->n_threads && w->stats.n_running + w->stats.n_waiting > w->n_started &&
        pthread_create(&w->threads[w->n_started], NULL, main_of_thread, w) == 0) {
        w->n_started++;
    }
}

/* ---- for others ---- */

static nrd_error *put(nrd_workers *w, nrd_job *job, uint64_t key)
{
    client **bucket = find(w, key), *c = *bucket;
    if (w->stopping) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "the server is shutting down");
    }
    if (w->stats.n_waiting >= NRD_WORKERS_MAX_JOBS || (c && c->n >= NRD_WORKERS_MAX_CLIENT_JOBS)) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE,
                          "%zu requests wait to be worked on, which is the limit%s; try again later",
                          c && c->n >= NRD_WORKERS_MAX_CLIENT_JOBS ? c->n : w->stats.n_waiting,
                          c && c->n >= NRD_WORKERS_MAX_CLIENT_JOBS ? " of one client" : "");
    }
    if (!c && !(c = add_client(w, bucket, key))) {
        return nrd_error_no_memory();
    }
    job->next = NULL;
    job->client = key;
    job->since_ns = nrd_now_ns();
    *c->last = job;
    c->last = &job->next;
    c->n++;
    w->stats.n_waiting++;
    start_thread(w);
    if (w->n_started == 0) {
        (void)take(w, c, &c->first);
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "cannot start a worker thread");
    }
    pthread_cond_signal(&w->work);
    return NULL;
}

static nrd_workers *those_for(nrd_workers *w, const nrd_job *job)
{
    return job->is_long ? w->for_long : w;
}

nrd_error *nrd_workers_submit(nrd_workers *w, nrd_job *job, uint64_t key)
{
    w = those_for(w, job);
    pthread_mutex_lock(&w->mu);
    nrd_error *err = put(w, job, key);
    pthread_mutex_unlock(&w->mu);
    return err;
}

bool nrd_workers_cancel(nrd_workers *w, nrd_job *job)
{
    bool found = false;
    w = those_for(w, job);
    pthread_mutex_lock(&w->mu);
    client *c = *find(w, job->client);
    for (nrd_job **at = c ? &c->first : NULL; at && *at && !found; at = found ? NULL : &(*at)->next) {
        if (*at == job) {
            (void)take(w, c, at);
            found = true;
        }
    }
    pthread_mutex_unlock(&w->mu);
    return found;
}

nrd_workers_stats nrd_workers_look(nrd_workers *w)
{
    nrd_workers_stats s = {0};
    for (; w; w = w->for_long) {
        pthread_mutex_lock(&w->mu);
        s.n_waiting += w->stats.n_waiting;
        s.n_running += w->stats.n_running;
        s.n_done += w->stats.n_done;
        s.wait_ns += w->stats.wait_ns;
        s.run_ns += w->stats.run_ns;
        pthread_mutex_unlock(&w->mu);
    }
    return s;
}

void nrd_workers_stop(nrd_workers *w)
{
    if (!w) {
        return;
    }
    pthread_mutex_lock(&w->mu);
    w->stopping = true;
    pthread_cond_broadcast(&w->work);
    const size_t n = w->n_started;
    w->n_started = 0;
    while (w->turn) {
        nrd_job *job = take_next(w);
        pthread_mutex_unlock(&w->mu);
        job->done(job, false);
        pthread_mutex_lock(&w->mu);
    }
    pthread_mutex_unlock(&w->mu);
    for (size_t i = 0; i < n; i++) {
        pthread_join(w->threads[i], NULL);
    }
    nrd_workers_stop(w->for_long);
}

void nrd_workers_free(nrd_workers *w)
{
    if (w) {
        nrd_workers_stop(w);
        nrd_workers_free(w->for_long);
        pthread_cond_destroy(&w->work);
        pthread_mutex_destroy(&w->mu);
        free(w);
    }
}
