/* SPDX-License-Identifier: Apache-2.0
 * How threads go through a list of commands: every task once, phases one after the other, what one leaves others take. */
#include "base/clock.h"
#include "base/spin.h"
#include "device/cpu/walk.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_THREADS = 20, MAX_CMDS = 40, MAX_TASKS = 70, PHASES = 2, RUNS = 300 };

static _Atomic int taken[MAX_CMDS][PHASES][MAX_TASKS]; /* how often */
static _Atomic int n_taken[MAX_CMDS][PHASES];
static _Atomic int n_early; /* tasks of a phase before the end of the one before it */
static nrd_cpu_cmd list[MAX_CMDS];

static void ok(nrd_error *err)
{
    if (err) {
        fail_msg("%s", nrd_error_message(err));
    }
}

static bool is_done(int c, int phase)
{
    return atomic_load(&n_taken[c][phase]) == list[c].n_tasks[phase];
}

static void run_noting(nrd_cpu_run *r, nrd_cpu_cmd *cmd, int phase, int32_t task)
{
    const int c = (int)(cmd - list);

    (void)r;
    if ((phase > 0 && !is_done(c, phase - 1)) || (phase == 0 && c > 0 && !is_done(c - 1, PHASES - 1))) {
        atomic_fetch_add(&n_early, 1);
    }
    atomic_fetch_add(&taken[c][phase][task], 1);
    atomic_fetch_add(&n_taken[c][phase], 1);
}

/* The first task ends when all others have. */
static void run_waiting(nrd_cpu_run *r, nrd_cpu_cmd *cmd, int phase, int32_t task)
{
    const int c = (int)(cmd - list);
    const uint64_t end = nrd_now_ns() + 5 * (uint64_t)1000000000;

    (void)r;
    while (task == 0 && atomic_load(&n_taken[c][phase]) < cmd->n_tasks[phase] - 1 && nrd_now_ns() < end) {
        nrd_spin_pause();
    }
    n_early += task == 0 && atomic_load(&n_taken[c][phase]) < cmd->n_tasks[phase] - 1;
    atomic_fetch_add(&n_taken[c][phase], 1);
}

static const nrd_cpu_op noting = {run_noting}, waiting = {run_waiting};

static void new_list(const nrd_cpu_op *op, int n, int seed)
{
    memset((void *)taken, 0, sizeof taken);
    memset((void *)n_taken, 0, sizeof n_taken);
    memset((void *)list, 0, sizeof list);
    n_early = 0;
    for (int c = 0; c < n; c++) {
        list[c].op = op;
        for (int p = 0; p < PHASES; p++) {
            list[c].n_tasks[p] = (c * 31 + p * 17 + seed * 13) % MAX_TASKS; /* 0 too */
        }
    }
}

static nrd_threads *pool;
static nrd_cpu_walk *w;

static void start(int n_threads)
{
    ok(nrd_threads_new(&pool, n_threads, 0, 1));
    ok(nrd_cpu_walk_new(&w, n_threads, MAX_CMDS));
}

static void run(int n_commands)
{
    uint8_t *scratch[MAX_THREADS] = {NULL};

    nrd_cpu_walk_run(w, pool, list, n_commands, scratch, NULL);
    assert_int_equal(n_early, 0);
}

static void stop(void)
{
    nrd_cpu_walk_free(w);
    nrd_threads_free(pool);
}

static void test_every_task_once_and_phases_in_order(void **state)
{
    static const int counts[] = {1, 2, 3, 5, MAX_THREADS};

    (void)state;
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        start(counts[k]);
        for (int i = 0; i < RUNS / counts[k]; i++) { /* counters of earlier runs stay */
            const int n = 1 + i % MAX_CMDS;
            new_list(&noting, n, i);
            run(n);
            for (int c = 0; c < n; c++) {
                for (int p = 0; p < PHASES; p++) {
                    for (int t = 0; t < MAX_TASKS; t++) {
                        assert_int_equal(taken[c][p][t], t < list[c].n_tasks[p]);
                    }
                }
            }
        }
        stop();
    }
}

static void test_others_take_what_a_slow_thread_leaves(void **state)
{
    static const int counts[] = {2, 3, MAX_THREADS};

    (void)state;
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        start(counts[k]);
        new_list(&waiting, 4, 3);
        run(4);
        stop();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_task_once_and_phases_in_order),
        cmocka_unit_test(test_others_take_what_a_slow_thread_leaves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
