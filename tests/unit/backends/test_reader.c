/* SPDX-License-Identifier: Apache-2.0
 * The thread that reads pictures: order, bound, and that every job has one end. */
#include "backends/tensorrtllm/reader.c"

#include "base/limits.h"

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
    atomic_bool is_open;    /* jobs do not wait at the gate any more */
    int names[8];           /* of the first jobs; of the reader's thread until it has ended, as what follows */
    int n_ran, n_over;
} fixture;

static void run(void *user, nrd_llm_job *job, bool is_over)
{
    fixture *f = user;
    test_job *t = (test_job *)job;

    f->n_over += is_over;
    f->n_ran += !is_over;
    if (!is_over && f->n_ran <= 8) {
        f->names[f->n_ran - 1] = t->name;
    }
    if (!is_over && !atomic_load(&f->is_open)) {
        sem_post(&f->started);
        sem_wait(&f->gate);
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

    assert_null(nrd_llm_reader_new(&r, 8, run, f));
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

    assert_null(nrd_llm_reader_new(&r, NRD_LIMIT_PICTURES_WAITING, run, f));
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

static void test_a_reader_without_jobs_ends(void **state)
{
    nrd_llm_reader *r = NULL;

    assert_null(nrd_llm_reader_new(&r, 1, run, *state));
    nrd_llm_reader_free(r);
    nrd_llm_reader_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_jobs_run_in_the_order_in_which_they_came, setup, teardown),
        cmocka_unit_test_setup_teardown(test_there_is_room_for_so_many_that_wait, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_reader_without_jobs_ends, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
