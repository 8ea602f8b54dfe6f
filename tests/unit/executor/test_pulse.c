/* SPDX-License-Identifier: Apache-2.0
 * Who hangs and who is only slow. Time is the test's own; threads are waited for by what the system says of them. */
#include "executor/ranks/pulse.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { LOOK_MS = 250, LOOKS = 40 };

typedef struct worker {
    const char *name;
    pthread_t thread;
    _Atomic int32_t id;
    atomic_bool runs, ends;
    pthread_mutex_t mu;
    pthread_cond_t cv;
} worker;

/* Runs in circles while it is told to, else waits for a word. */
static void *work(void *user)
{
    worker *w = user;
    pthread_setname_np(pthread_self(), w->name);
    atomic_store(&w->id, (int32_t)syscall(SYS_gettid));
    while (!atomic_load(&w->ends)) {
        while (atomic_load(&w->runs)) {
        }
        pthread_mutex_lock(&w->mu);
        while (!atomic_load(&w->ends) && !atomic_load(&w->runs)) {
            pthread_cond_wait(&w->cv, &w->mu);
        }
        pthread_mutex_unlock(&w->mu);
    }
    return NULL;
}

static void tell(worker *w, bool runs, bool ends)
{
    pthread_mutex_lock(&w->mu);
    atomic_store(&w->ends, ends);
    atomic_store(&w->runs, runs);
    pthread_cond_signal(&w->cv);
    pthread_mutex_unlock(&w->mu);
}

static void start(worker *w, const char *name, bool runs)
{
    w->name = name;
    atomic_store(&w->runs, runs);
    pthread_mutex_init(&w->mu, NULL);
    pthread_cond_init(&w->cv, NULL);
    assert_int_equal(pthread_create(&w->thread, NULL, work, w), 0);
    while (atomic_load(&w->id) == 0) {
    }
}

static void finish(worker *w)
{
    tell(w, false, true);
    pthread_join(w->thread, NULL);
    pthread_mutex_destroy(&w->mu);
    pthread_cond_destroy(&w->cv);
}

static void await_hang(nrd_pulse *p, int64_t *now)
{
    do {
        *now += LOOK_MS;
    } while (nrd_pulse_look(p, *now) <= NRD_PULSE_HANGS_MS);
}

static void always_runs(nrd_pulse *p, int64_t *now)
{
    nrd_pulse_look(p, *now += LOOK_MS);
    for (int i = 0; i < LOOKS; i++) {
        assert_int_equal(nrd_pulse_look(p, *now += LOOK_MS), 0);
    }
}

static void test_a_thread_that_waits_for_ever_hangs_and_one_that_runs_does_not(void **state)
{
    static worker loop;
    int64_t now = 1000;
    (void)state;
    start(&loop, "nrd-engine", true);
    nrd_pulse p = {.thread = loop.id};
    always_runs(&p, &now);
    tell(&loop, false, false);
    await_hang(&p, &now);
    tell(&loop, true, false);
    while (nrd_pulse_look(&p, now += LOOK_MS) > 0) { /* until it has woken */
    }
    always_runs(&p, &now);
    finish(&loop);
}

static void test_who_waits_for_the_pool_hangs_only_with_it(void **state)
{
    static worker loop, pool, other;
    int64_t now = 1000;
    (void)state;
    start(&loop, "nrd-engine", false);
    start(&pool, "nrd-cpu-1", true);
    start(&other, "http", true); /* computes nothing of a step */
    nrd_pulse p = {.thread = loop.id};
    always_runs(&p, &now);
    tell(&pool, false, false);
    await_hang(&p, &now);
    finish(&other);
    finish(&pool);
    finish(&loop);
}

static void test_a_late_look_adds_a_second_at_most(void **state)
{
    static worker loop;
    int64_t now = 1000;
    (void)state;
    start(&loop, "nrd-engine", false);
    nrd_pulse p = {.thread = loop.id};
    while (nrd_pulse_look(&p, ++now) != 1) {
    }
    assert_int_equal(nrd_pulse_look(&p, now += 3600 * 1000), 1001);
    finish(&loop);
}

static void test_a_stopped_process_would_not_run_and_a_busy_one_would(void **state)
{
    static worker busy;
    int status = 0;
    (void)state;
    start(&busy, "beats", true);
    assert_true(nrd_pulse_would_run(getpid(), busy.id));
    finish(&busy);
    const pid_t child = fork();
    if (child == 0) {
        for (;;) {
            pause();
        }
    }
    assert_true(child > 0);
    assert_int_equal(kill(child, SIGSTOP), 0);
    assert_int_equal(waitpid(child, &status, WUNTRACED), child);
    assert_true(WIFSTOPPED(status));
    assert_false(nrd_pulse_would_run(child, child));
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_false(nrd_pulse_would_run(child, child)); /* there is none */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_thread_that_waits_for_ever_hangs_and_one_that_runs_does_not),
        cmocka_unit_test(test_who_waits_for_the_pool_hangs_only_with_it),
        cmocka_unit_test(test_a_late_look_adds_a_second_at_most),
        cmocka_unit_test(test_a_stopped_process_would_not_run_and_a_busy_one_would),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
