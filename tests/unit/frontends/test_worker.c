/* SPDX-License-Identifier: Apache-2.0
 * The pool of workers: fair turns, bounds, cancelling, and that every job has one end. */
#include "frontends/common/worker.h"

#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <cmocka.h>

typedef struct test_job {
    nrd_job job; /* first */
    int name;
    sem_t *gate; /* waited for by run; NULL: none */
} test_job;

static atomic_int n_order, n_ran, n_dropped;
static atomic_int priorities[8]; /* of the threads that ran the jobs of these names */
static atomic_int order[NRD_WORKERS_MAX_JOBS + 8];
static sem_t started;

static void run(nrd_job *job)
{
    test_job *t = (test_job *)(void *)job;
    atomic_store(&order[atomic_fetch_add(&n_order, 1)], t->name);
    if (t->name >= 0 && t->name < 8) {
        atomic_store(&priorities[t->name], getpriority(PRIO_PROCESS, 0));
    }
    sem_post(&started);
    if (t->gate) {
        sem_wait(t->gate);
    }
}

static void done(nrd_job *job, bool ran)
{
    (void)job;
    atomic_fetch_add(ran ? &n_ran : &n_dropped, 1);
}

static test_job make(int name, sem_t *gate)
{
    return (test_job){.job = {.run = run, .done = done}, .name = name, .gate = gate};
}

static int setup(void **state)
{
    (void)state;
    atomic_store(&n_order, 0);
    atomic_store(&n_ran, 0);
    atomic_store(&n_dropped, 0);
    return sem_init(&started, 0, 0);
}

static void test_clients_take_turns(void **state)
{
    nrd_workers *w = NULL;
    sem_t gate;
    test_job jobs[9];
    /* client 1 comes with five jobs, then 2 and 3 with two each */
    static const uint64_t clients[] = {1, 1, 1, 1, 1, 2, 2, 3, 3};
    static const int expected[] = {0, 1, 5, 7, 2, 6, 8, 3, 4};
    (void)state;
    sem_init(&gate, 0, 0);
    assert_null(nrd_workers_new(&w, 1));
    for (int i = 0; i < 9; i++) {
        jobs[i] = make(i, i == 0 ? &gate : NULL);
        assert_null(nrd_workers_submit(w, &jobs[i].job, clients[i]));
        if (i == 0) {
            sem_wait(&started); /* the one thread is busy: the others wait */
        }
    }
    assert_int_equal(nrd_workers_look(w).n_waiting, 8);
    assert_int_equal(nrd_workers_look(w).n_running, 1);
    sem_post(&gate);
    for (int i = 1; i < 9; i++) {
        sem_wait(&started);
    }
    nrd_workers_stop(w);
    for (int i = 0; i < 9; i++) {
        assert_int_equal(atomic_load(&order[i]), expected[i]);
    }
    assert_int_equal(nrd_workers_look(w).n_done, 9);
    assert_int_equal(atomic_load(&n_ran), 9);
    nrd_workers_free(w);
    sem_destroy(&gate);
}

static void test_as_many_jobs_run_as_there_are_threads(void **state)
{
    enum { N = 12 };
    nrd_workers *w = NULL;
    sem_t gate;
    test_job jobs[N];
    (void)state;
    sem_init(&gate, 0, 0);
    assert_null(nrd_workers_new(&w, N));
    for (int i = 0; i < N; i++) {
        jobs[i] = make(i, &gate);
        assert_null(nrd_workers_submit(w, &jobs[i].job, 1));
    }
    for (int i = 0; i < N; i++) { /* none ends before all have begun */
        struct timespec limit;
        clock_gettime(CLOCK_REALTIME, &limit);
        limit.tv_sec += 20;
        assert_int_equal(sem_timedwait(&started, &limit), 0);
    }
    assert_int_equal(nrd_workers_look(w).n_running, N);
    for (int i = 0; i < N; i++) {
        sem_post(&gate);
    }
    nrd_workers_free(w);
    assert_int_equal(atomic_load(&n_ran), N);
    sem_destroy(&gate);
}

static void test_a_job_that_waits_can_be_cancelled_one_that_runs_not(void **state)
{
    nrd_workers *w = NULL;
    sem_t gate;
    test_job a, b, c;
    (void)state;
    sem_init(&gate, 0, 0);
    assert_null(nrd_workers_new(&w, 1));
    a = make(0, &gate);
    b = make(1, NULL);
    c = make(2, NULL);
    assert_null(nrd_workers_submit(w, &a.job, 7));
    sem_wait(&started);
    assert_null(nrd_workers_submit(w, &b.job, 7));
    assert_null(nrd_workers_submit(w, &c.job, 7));
    assert_false(nrd_workers_cancel(w, &a.job));
    assert_true(nrd_workers_cancel(w, &c.job)); /* the last of its queue */
    assert_true(nrd_workers_cancel(w, &b.job)); /* then its only one */
    assert_false(nrd_workers_cancel(w, &b.job));
    assert_null(nrd_workers_submit(w, &b.job, 7));
    sem_post(&gate);
    sem_wait(&started);
    nrd_workers_free(w);
    assert_int_equal(atomic_load(&n_ran), 2);
    assert_int_equal(atomic_load(&n_dropped), 0);
    sem_destroy(&gate);
}

/* limits: WORKER_JOBS, CLIENT_JOBS */
static void test_more_than_the_limit_is_refused_and_stop_tells_those_that_wait(void **state)
{
    nrd_workers *w = NULL;
    sem_t gate;
    test_job first, *jobs = calloc(NRD_WORKERS_MAX_JOBS, sizeof *jobs), more = make(9, NULL);
    (void)state;
    sem_init(&gate, 0, 0);
    assert_null(nrd_workers_new(&w, 1));
    first = make(0, &gate);
    assert_null(nrd_workers_submit(w, &first.job, 99));
    sem_wait(&started);
    for (int i = 0; i < NRD_WORKERS_MAX_JOBS; i++) {
        jobs[i] = make(1, NULL);
        assert_null(
            nrd_workers_submit(w, &jobs[i].job, (uint64_t)(i / NRD_WORKERS_MAX_CLIENT_JOBS)));
        if (i + 1 == NRD_WORKERS_MAX_CLIENT_JOBS) { /* of one client */
            nrd_error *err = nrd_workers_submit(w, &more.job, 0);
            assert_int_equal(nrd_error_get_code(err), NRD_ERR_UNAVAILABLE);
            nrd_error_free(err);
        }
    }
    nrd_error *err = nrd_workers_submit(w, &more.job, 1234);
    assert_int_equal(nrd_error_get_code(err), NRD_ERR_UNAVAILABLE);
    nrd_error_free(err);
    sem_post(&gate);
    nrd_workers_stop(w);
    assert_int_equal(atomic_load(&n_ran) + atomic_load(&n_dropped), NRD_WORKERS_MAX_JOBS + 1);
    err = nrd_workers_submit(w, &more.job, 1);
    assert_int_equal(nrd_error_get_code(err), NRD_ERR_UNAVAILABLE);
    nrd_error_free(err);
    nrd_workers_free(w);
    free(jobs);
    sem_destroy(&gate);
}

/* A pool of one thread has another for long jobs. */
static void test_long_jobs_alone_run_at_a_low_priority(void **state)
{
    nrd_workers *w = NULL;
    test_job jobs[5];
    const int usual = getpriority(PRIO_PROCESS, 0);
    (void)state;
    assert_null(nrd_workers_new(&w, 1));
    for (int i = 0; i < 5; i++) {
        jobs[i] = make(i, NULL);
        jobs[i].job.is_long = i % 2 == 1;
        assert_null(nrd_workers_submit(w, &jobs[i].job, 1));
    }
    for (int i = 0; i < 5; i++) {
        sem_wait(&started);
    }
    nrd_workers_free(w);
    assert_int_equal(atomic_load(&n_ran), 5);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(atomic_load(&priorities[i]), i % 2 == 1 ? (usual > 10 ? usual : 10) : usual);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_clients_take_turns, setup),
        cmocka_unit_test_setup(test_long_jobs_alone_run_at_a_low_priority, setup),
        cmocka_unit_test_setup(test_as_many_jobs_run_as_there_are_threads, setup),
        cmocka_unit_test_setup(test_a_job_that_waits_can_be_cancelled_one_that_runs_not, setup),
        cmocka_unit_test_setup(
            test_more_than_the_limit_is_refused_and_stop_tells_those_that_wait, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
