/* SPDX-License-Identifier: Apache-2.0
 * The threads that read pictures: order, bound, how many, and that every job has one end. */
#include "backends/tensorrtllm/reader.c"

#include "base/limits.h"

#include <sched.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

typedef struct test_job {
    nrd_llm_job job; /* first */
    int name;
} test_job;

typedef struct fixture {
    sem_t started, gate;
    atomic_bool is_open; /* jobs do not wait at the gate any more */
    int names[8];        /* of the first jobs; read when their threads have ended */
    atomic_int n_ran, n_over, n_at_once, most_at_once;
} fixture;

static void run(void *user, nrd_llm_job *job, bool is_over)
{
    fixture *f = user;
    test_job *t = (test_job *)job;

    atomic_fetch_add(&f->n_over, is_over);
    if (!is_over) {
        const int n = atomic_fetch_add(&f->n_ran, 1), at_once = atomic_fetch_add(&f->n_at_once, 1) + 1;
        int most = atomic_load(&f->most_at_once);
        while (at_once > most && !atomic_compare_exchange_weak(&f->most_at_once, &most, at_once)) {
        }
        if (n < 8) {
            f->names[n] = t->name;
        }
        if (!atomic_load(&f->is_open)) {
            sem_post(&f->started);
            sem_wait(&f->gate);
        }
        atomic_fetch_sub(&f->n_at_once, 1);
    }
    free(t);
}

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    sem_init(&f->started, 0, 0);
    sem_init(&f->gate, 0, 0);
    *state = f;
    return f == NULL;
}

static int teardown(void **state)
{
    fixture *f = *state;
    sem_destroy(&f->started);
    sem_destroy(&f->gate);
    free(f);
    return 0;
}

static void push(nrd_llm_reader *r, int name)
{
    test_job *t = calloc(1, sizeof *t);
    t->name = name;
    assert_null(nrd_llm_reader_push(r, &t->job));
}

static void test_jobs_run_in_the_order_in_which_they_came(void **state)
{
    fixture *f = *state;
    nrd_llm_reader *r = NULL;

    assert_null(nrd_llm_reader_new(&r, 1, 8, run, f));
    for (int i = 0; i < 5; i++) {
        push(r, i);
    }
    for (int i = 0; i < 5; i++) {
        sem_wait(&f->started);
        sem_post(&f->gate);
    }
    push(r, 5); /* after it was idle */
    sem_post(&f->gate);
    sem_wait(&f->started);
    nrd_llm_reader_free(r);
    assert_int_equal(f->n_ran, 6);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(f->names[i], i);
    }
    assert_int_equal(f->n_over, 0);
}

/* limits: PICTURES_WAITING */
static void test_there_is_room_for_so_many_that_wait(void **state)
{
    fixture *f = *state;
    nrd_llm_reader *r = NULL;

    assert_null(nrd_llm_reader_new(&r, 1, NRD_LIMIT_PICTURES_WAITING, run, f));
    push(r, 0);
    sem_wait(&f->started); /* the one that runs does not wait */
    for (int i = 0; i < NRD_LIMIT_PICTURES_WAITING; i++) {
        assert_true(nrd_llm_reader_has_room(r));
        push(r, 1);
    }
    assert_false(nrd_llm_reader_has_room(r));
    sem_post(&f->gate);
    sem_wait(&f->started); /* the second has begun */
    assert_true(nrd_llm_reader_has_room(r));
    atomic_store(&f->is_open, true);
    sem_post(&f->gate);
    nrd_llm_reader_free(r); /* while jobs run and wait */
    assert_true(f->n_ran >= 2);
    assert_int_equal(f->n_ran + f->n_over, NRD_LIMIT_PICTURES_WAITING + 1);
}

/* The first job stays at the gate until those behind it are over. */
static void test_a_job_does_not_wait_for_one_that_takes_long(void **state)
{
    fixture *f = *state;
    nrd_llm_reader *r = NULL;

    assert_null(nrd_llm_reader_new(&r, 2, 8, run, f));
    push(r, 0);
    sem_wait(&f->started);
    atomic_store(&f->is_open, true);
    for (int i = 1; i < 6; i++) {
        push(r, i);
    }
    while (atomic_load(&f->n_ran) < 6 || atomic_load(&f->n_at_once) > 1) {
        sched_yield();
    }
    sem_post(&f->gate);
    nrd_llm_reader_free(r);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(f->names[i], i);
    }
    assert_int_equal(f->most_at_once, 2);
}

static void test_no_more_run_at_once_than_there_are_threads(void **state)
{
    fixture *f = *state;
    nrd_llm_reader *r = NULL;
    enum { JOBS = 2 * NRD_LLM_MAX_READERS };

    assert_null(nrd_llm_reader_new(&r, NRD_LLM_MAX_READERS + 5, JOBS, run, f));
    for (int i = 0; i < JOBS; i++) {
        push(r, i);
    }
    for (int i = 0; i < NRD_LLM_MAX_READERS; i++) {
        sem_wait(&f->started);
    }
    assert_int_equal(f->n_at_once, NRD_LLM_MAX_READERS);
    assert_true(nrd_llm_reader_has_room(r)); /* half of them run */
    atomic_store(&f->is_open, true);
    for (int i = 0; i < NRD_LLM_MAX_READERS; i++) {
        sem_post(&f->gate);
    }
    nrd_llm_reader_free(r);
    assert_int_equal(f->n_ran + f->n_over, JOBS);
    assert_int_equal(f->most_at_once, NRD_LLM_MAX_READERS);
}

static void test_a_reader_without_jobs_ends(void **state)
{
    nrd_llm_reader *r = NULL;

    assert_null(nrd_llm_reader_new(&r, 0, 1, run, *state));
    nrd_llm_reader_free(r);
    nrd_llm_reader_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_jobs_run_in_the_order_in_which_they_came, setup, teardown),
        cmocka_unit_test_setup_teardown(test_there_is_room_for_so_many_that_wait, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_job_does_not_wait_for_one_that_takes_long, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_more_run_at_once_than_there_are_threads, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_reader_without_jobs_ends, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
