/* SPDX-License-Identifier: Apache-2.0
 * Several models in turns: life of a model, order of tickets, orders beside requests, and a storm of threads, over
 * a core that only counts. Run it with BUILD=tsan as well. */
#include "frontends/common/switcher.h"

#include "base/clock.h"
#include "base/limits.h"

#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { N_MODELS = 4, FULL_NS = 1000000000 };

/* The core: knows what is loaded, and notes what may not be. */
static struct {
    pthread_mutex_t mu;
    bool loaded[N_MODELS], broken[N_MODELS], dead[N_MODELS];
    uint64_t bytes[N_MODELS], true_bytes[N_MODELS], budget;
    uint32_t used[N_MODELS]; /* leases out, by the tests' count */
    int n_loads, n_unloads;
    bool wrong; /* over the budget, loaded twice, unloaded while in use */
    sem_t *gate; /* loads wait for it */
    sem_t *begun;
} core = {.mu = PTHREAD_MUTEX_INITIALIZER};

static size_t index_of(const char *name)
{
    return (size_t)(name[0] - 'a');
}

static nrd_error *core_load(void *user, const char *name)
{
    const size_t i = index_of(name);
    uint64_t held = 0;
    (void)user;
    if (core.begun) {
        sem_post(core.begun);
    }
    if (core.gate) {
        sem_wait(core.gate);
    }
    pthread_mutex_lock(&core.mu);
    core.n_loads++;
    core.wrong = core.wrong || core.loaded[i];
    core.loaded[i] = !core.broken[i];
    for (size_t k = 0; k < N_MODELS; k++) {
        held += core.loaded[k] ? core.bytes[k] : 0;
    }
    core.wrong = core.wrong || held > core.budget;
    nrd_error *err = core.broken[i] ? nrd_errorf(NRD_ERR_INVALID_ARG, "no such file") : NULL;
    pthread_mutex_unlock(&core.mu);
    return err;
}

static nrd_error *core_unload(void *user, const char *name)
{
    const size_t i = index_of(name);
    (void)user;
    pthread_mutex_lock(&core.mu);
    core.n_unloads++;
    core.wrong = core.wrong || !core.loaded[i] || core.used[i] > 0;
    core.loaded[i] = core.dead[i] = false;
    pthread_mutex_unlock(&core.mu);
    return NULL;
}

static uint64_t core_size(void *user, const char *name)
{
    (void)user;
    return core.true_bytes[index_of(name)];
}

static bool core_is_ready(void *user, const char *name)
{
    const size_t i = index_of(name);
    (void)user;
    pthread_mutex_lock(&core.mu);
    const bool ready = core.loaded[i] && !core.dead[i];
    pthread_mutex_unlock(&core.mu);
    return ready;
}

static nrd_switcher *new_switcher(uint64_t budget, uint64_t keep_ns, uint64_t wait_ns, const char *pinned)
{
    static const char *const names[] = {"a", "b", "c", "d"}, *const parts[] = {"a.llm", "b.llm", "c.llm", "d.llm"};
    const nrd_switch_config cfg = {
        .ops = {.load = core_load, .unload = core_unload, .size = core_size, .is_ready = core_is_ready},
        .budget_bytes = budget,
        .keep_ns = keep_ns,
        .wait_ns = wait_ns,
    };
    nrd_switch_spec specs[N_MODELS];
    nrd_switcher *s = NULL;

    for (size_t i = 0; i < N_MODELS; i++) {
        specs[i] = (nrd_switch_spec){.name = names[i], .load = names[i], .aliases = &parts[i], .n_aliases = 1,
                                     .bytes = core.bytes[i], .pinned = strchr(pinned, names[i][0]) != NULL};
    }
    core.budget = budget;
    assert_null(nrd_switcher_new(&s, &cfg, specs, N_MODELS));
    return s;
}

static int setup(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++) {
        core.loaded[i] = core.broken[i] = core.dead[i] = false;
        core.used[i] = 0;
        core.bytes[i] = 10;
        core.true_bytes[i] = 0;
    }
    core.n_loads = core.n_unloads = 0;
    core.wrong = false;
    core.gate = core.begun = NULL;
    return 0;
}

/* A ticket that somebody waits for. */
typedef struct waiting {
    nrd_switch_ticket t;
    sem_t over;
    bool now;
} waiting;

static void on_done(nrd_switch_ticket *t)
{
    waiting *w = t->user;
    sem_post(&w->over);
}

static nrd_error *ask(nrd_switcher *s, const char *name, waiting *w)
{
    memset(w, 0, sizeof *w);
    w->t = (nrd_switch_ticket){.done = on_done, .user = w};
    sem_init(&w->over, 0, 0);
    return nrd_switcher_acquire(s, nrd_switcher_find(s, name), &w->t, &w->now);
}

static nrd_error *wait_for(waiting *w)
{
    if (!w->now) {
        while (sem_wait(&w->over) != 0) {
        }
    }
    return w->t.err;
}

static void take(nrd_switcher *s, const char *name)
{
    waiting w;
    assert_null(ask(s, name, &w));
    assert_null(wait_for(&w));
}

static void give(nrd_switcher *s, const char *name)
{
    nrd_switcher_release(s, nrd_switcher_find(s, name), NRD_SWITCH_DEFAULT);
}

static void use(nrd_switcher *s, const char *name)
{
    take(s, name);
    give(s, name);
}

static nrd_switch_info info_of(nrd_switcher *s, const char *name)
{
    nrd_switch_info i;
    nrd_switcher_info(s, nrd_switcher_find(s, name), &i);
    return i;
}

static void wait_state(nrd_switcher *s, const char *name, nrd_switch_state state)
{
    const uint64_t until = nrd_now_ns() + 20ull * FULL_NS;
    while (info_of(s, name).state != state) {
        assert_true(nrd_now_ns() < until);
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
}

static void check_error(nrd_error *err, nrd_error_code code, const char *words)
{
    assert_non_null(err);
    assert_int_equal(nrd_error_get_code(err), code);
    if (!strstr(nrd_error_message(err), words)) {
        fail_msg("'%s' is not in: %s", words, nrd_error_message(err));
    }
    nrd_error_free(err);
}

static void end(nrd_switcher *s)
{
    nrd_switcher_free(s);
    assert_false(core.wrong);
}

/* limits: SWITCHED_MODELS */
static void test_so_many_models_come_and_go_and_no_more(void **state)
{
    enum { MOST = NRD_LIMIT_SWITCHED_MODELS };
    const nrd_switch_config cfg = {
        .ops = {.load = core_load, .unload = core_unload, .size = core_size, .is_ready = core_is_ready}, .budget_bytes = 10};
    static char names[MOST + 1][16];
    nrd_switch_spec specs[MOST + 1];
    nrd_switcher *s = NULL;
    (void)state;
    for (int i = 0; i <= MOST; i++) {
        snprintf(names[i], sizeof names[i], "a%d", i);
        specs[i] = (nrd_switch_spec){.name = names[i], .load = names[i], .bytes = 10};
    }
    check_error(nrd_switcher_new(&s, &cfg, specs, MOST + 1), NRD_ERR_INVALID_ARG, "257 models, expected 1 to 256");
    assert_null(nrd_switcher_new(&s, &cfg, specs, MOST));
    check_error(nrd_switcher_add(s, &specs[MOST]), NRD_ERR_UNAVAILABLE, "256 models, which is the most");
    nrd_switcher_free(s);
}

/* limits: SWITCH_WAITING */
static void test_so_many_may_wait_and_the_next_is_told_to_come_later(void **state)
{
    enum { MOST = NRD_LIMIT_SWITCH_WAITING };
    waiting *all = calloc(MOST, sizeof *all), next;
    nrd_switcher *s = new_switcher(10, NRD_SWITCH_FOREVER, 60ull * FULL_NS, "");
    (void)state;
    take(s, "a"); /* nobody gives it back: there is no room for another */
    for (int i = 0; i < MOST; i++) {
        assert_null(ask(s, "b", &all[i]));
        assert_false(all[i].now);
    }
    check_error(ask(s, "b", &next), NRD_ERR_UNAVAILABLE, "16384 requests wait for models already");
    check_error(ask(s, "c", &next), NRD_ERR_UNAVAILABLE, "16384 requests wait");
    give(s, "a");
    for (int i = 0; i < MOST; i++) {
        assert_null(wait_for(&all[i]));
        give(s, "b");
    }
    end(s);
    free(all);
}

static void test_the_least_recently_used_model_goes(void **state)
{
    nrd_switcher *s = new_switcher(30, NRD_SWITCH_FOREVER, 10ull * FULL_NS, "");
    (void)state;
    use(s, "a");
    use(s, "b.llm"); /* a part means its model */
    use(s, "c");
    use(s, "a");
    use(s, "d");
    assert_int_equal(info_of(s, "b").state, NRD_SWITCH_ABSENT);
    assert_int_equal(info_of(s, "a").state, NRD_SWITCH_READY);
    assert_int_equal(info_of(s, "c").state, NRD_SWITCH_READY);
    assert_int_equal(core.n_loads, 4);
    assert_null(nrd_switcher_find(s, "e"));
    end(s);
}

static void test_a_pinned_model_stays_and_what_cannot_fit_is_refused_at_once(void **state)
{
    core.bytes[2] = 25;
    nrd_switcher *s = new_switcher(30, NRD_SWITCH_FOREVER, 10ull * FULL_NS, "a");
    waiting w;
    (void)state;
    use(s, "a");
    use(s, "b");
    assert_null(ask(s, "c", &w));
    check_error(wait_for(&w), NRD_ERR_UNAVAILABLE, "--model-memory-gb");
    assert_int_equal(info_of(s, "b").state, NRD_SWITCH_READY); /* nobody went in vain */
    check_error(nrd_switcher_drop(s, nrd_switcher_find(s, "a")), NRD_ERR_INVALID_ARG, "pinned");
    end(s);
}

static void test_a_model_in_use_is_waited_for_and_gives_no_new_leases_meanwhile(void **state)
{
    nrd_switcher *s = new_switcher(10, NRD_SWITCH_FOREVER, 10ull * FULL_NS, "");
    waiting b, a;
    (void)state;
    take(s, "a");
    assert_null(ask(s, "b", &b));
    const uint64_t until = nrd_now_ns() + 10ull * FULL_NS;
    do { /* until the plan has made a victim of it */
        assert_true(nrd_now_ns() < until);
        assert_null(ask(s, "a", &a));
        if (a.now) {
            give(s, "a");
        }
    } while (a.now);
    assert_int_equal(sem_trywait(&b.over), -1);
    give(s, "a");
    assert_null(wait_for(&b));
    assert_int_equal(sem_trywait(&a.over), -1); /* its turn comes behind */
    give(s, "b");
    assert_null(wait_for(&a));
    give(s, "a");
    end(s);
}

static void test_a_cancelled_head_lets_the_others_go_on(void **state)
{
    nrd_switcher *s = new_switcher(10, NRD_SWITCH_FOREVER, 10ull * FULL_NS, "");
    waiting b, a;
    (void)state;
    take(s, "a");
    assert_null(ask(s, "b", &b));
    const uint64_t until = nrd_now_ns() + 10ull * FULL_NS;
    do {
        assert_true(nrd_now_ns() < until);
        assert_null(ask(s, "a", &a));
        if (a.now) {
            give(s, "a");
        }
    } while (a.now);
    assert_true(nrd_switcher_cancel(s, &b.t));
    assert_false(nrd_switcher_cancel(s, &b.t));
    assert_null(wait_for(&a)); /* the first lease is still out: nobody has to go any more */
    give(s, "a");
    give(s, "a");
    assert_int_equal(core.n_loads, 1);
    end(s);
}

static void test_who_waits_too_long_is_told(void **state)
{
    nrd_switcher *s = new_switcher(10, NRD_SWITCH_FOREVER, FULL_NS / 20, "");
    waiting b;
    (void)state;
    take(s, "a");
    assert_null(ask(s, "b", &b));
    check_error(wait_for(&b), NRD_ERR_UNAVAILABLE, "in use");
    give(s, "a");
    use(s, "b");
    end(s);
}

static void test_a_failed_load_fails_who_waits_and_is_tried_again(void **state)
{
    nrd_switcher *s = new_switcher(20, NRD_SWITCH_FOREVER, 10ull * FULL_NS, "");
    waiting w[3];
    sem_t gate;
    (void)state;
    sem_init(&gate, 0, 0);
    core.gate = &gate;
    core.broken[0] = true;
    for (int i = 0; i < 3; i++) {
        assert_null(ask(s, "a", &w[i]));
    }
    sem_post(&gate);
    for (int i = 0; i < 3; i++) {
        check_error(wait_for(&w[i]), NRD_ERR_UNAVAILABLE, "no such file");
    }
    assert_int_equal(core.n_loads, 1);
    core.broken[0] = false;
    sem_post(&gate);
    use(s, "a");
    end(s);
    sem_destroy(&gate);
}

static void test_a_model_that_takes_more_than_was_said_is_counted_with_it(void **state)
{
    core.true_bytes[1] = 15;
    core.true_bytes[2] = 99;
    nrd_switcher *s = new_switcher(20, NRD_SWITCH_FOREVER, 10ull * FULL_NS, "");
    waiting w;
    (void)state;
    use(s, "a");
    use(s, "b"); /* 10 + 15 do not fit: a goes after all */
    assert_int_equal(info_of(s, "a").state, NRD_SWITCH_ABSENT);
    assert_int_equal(info_of(s, "b").bytes, 15);
    assert_null(ask(s, "c", &w)); /* not even alone */
    check_error(wait_for(&w), NRD_ERR_UNAVAILABLE, "--model-memory-gb");
    nrd_switcher_free(s);
    core.wrong = false;
}

static void test_an_unused_model_goes_after_its_time_and_a_request_may_say_which(void **state)
{
    nrd_switcher *s = new_switcher(40, FULL_NS / 50, 10ull * FULL_NS, "b");
    (void)state;
    use(s, "a");
    use(s, "b"); /* pinned */
    take(s, "c");
    nrd_switcher_release(s, nrd_switcher_find(s, "c"), NRD_SWITCH_FOREVER);
    wait_state(s, "a", NRD_SWITCH_ABSENT);
    assert_int_equal(info_of(s, "b").state, NRD_SWITCH_READY);
    assert_true(info_of(s, "c").left_ns == NRD_SWITCH_FOREVER);
    take(s, "c");
    nrd_switcher_release(s, nrd_switcher_find(s, "c"), 0);
    wait_state(s, "c", NRD_SWITCH_ABSENT);
    take(s, "a");
    assert_null(nrd_switcher_drop(s, nrd_switcher_find(s, "a"))); /* an order about one in use */
    assert_int_equal(info_of(s, "a").left_ns, 0);
    nrd_switcher_release(s, nrd_switcher_find(s, "a"), NRD_SWITCH_FOREVER);
    wait_state(s, "a", NRD_SWITCH_ABSENT);
    end(s);
}

static void test_sleep_frees_memory_after_the_last_request_and_wake_ends_it(void **state)
{
    nrd_switcher *s = new_switcher(40, NRD_SWITCH_FOREVER, 10ull * FULL_NS, "b");
    waiting sleep = {.t = {.done = on_done, .user = &sleep}}, w;
    bool now = true;
    (void)state;
    sem_init(&sleep.over, 0, 0);
    use(s, "b");
    take(s, "a");
    assert_null(nrd_switcher_sleep(s, NULL, &sleep.t, &now));
    assert_false(now);
    check_error(ask(s, "a", &w), NRD_ERR_UNAVAILABLE, "/wake_up");
    assert_true(nrd_switcher_is_asleep(s, NULL));
    wait_state(s, "b", NRD_SWITCH_ABSENT);
    assert_int_equal(sem_trywait(&sleep.over), -1);
    give(s, "a");
    assert_null(wait_for(&sleep));
    assert_int_equal(info_of(s, "a").state, NRD_SWITCH_ABSENT);
    assert_true(info_of(s, "a").was_ready && !info_of(s, "c").was_ready);
    assert_null(nrd_switcher_sleep(s, NULL, &sleep.t, &now)); /* again: it is so already */
    assert_true(now);
    nrd_switcher_wake(s, nrd_switcher_find(s, "a"));
    assert_false(nrd_switcher_is_asleep(s, NULL));
    use(s, "a");
    check_error(ask(s, "b", &w), NRD_ERR_UNAVAILABLE, "asleep");
    nrd_switcher_wake(s, NULL);
    assert_null(nrd_switcher_load(s, nrd_switcher_find(s, "b")));
    end(s);
}

static void test_a_model_is_forgotten_when_its_memory_is_free_and_may_come_back(void **state)
{
    const char *alias = "d.llm";
    const nrd_switch_spec d = {.name = "d", .load = "d", .aliases = &alias, .n_aliases = 1, .bytes = 7}, e = {.name = "e", .load = "a"};
    nrd_switcher *s = new_switcher(40, NRD_SWITCH_FOREVER, FULL_NS, "");
    waiting sleep = {.t = {.done = on_done, .user = &sleep}};
    (void)state;
    sem_init(&sleep.over, 0, 0);
    nrd_switch_model *m = nrd_switcher_find(s, "d");
    check_error(nrd_switcher_add(s, &d), NRD_ERR_UNAVAILABLE, "`d` is here already");
    check_error(nrd_switcher_add(s, &e), NRD_ERR_UNAVAILABLE, "`a` is here already"); /* its place in the core */
    check_error(nrd_switcher_forget(s, m), NRD_ERR_UNAVAILABLE, "in use");
    use(s, "d");
    take(s, "d");
    assert_null(nrd_switcher_sleep(s, m, &sleep.t, &sleep.now));
    assert_false(sleep.now);
    check_error(nrd_switcher_forget(s, m), NRD_ERR_UNAVAILABLE, "in use"); /* a request is under way */
    nrd_switcher_release(s, m, NRD_SWITCH_DEFAULT);
    assert_null(wait_for(&sleep));
    assert_null(nrd_switcher_forget(s, m));
    assert_null(nrd_switcher_find(s, "d"));
    assert_null(nrd_switcher_find(s, "d.llm"));
    size_t n = 0;
    for (nrd_switch_model *x = nrd_switcher_next(s, NULL); x; x = nrd_switcher_next(s, x)) {
        n += x != m;
    }
    assert_int_equal(n, N_MODELS - 1);
    nrd_switcher_wake(s, NULL); /* not this one */
    waiting w = {.t = {.done = on_done, .user = &w}};
    check_error(nrd_switcher_acquire(s, m, &w.t, &w.now), NRD_ERR_UNAVAILABLE, "asleep");
    assert_null(nrd_switcher_add(s, &d));
    assert_ptr_equal(nrd_switcher_find(s, "d.llm"), m);
    assert_int_equal(info_of(s, "d").bytes, 7);
    use(s, "d");
    end(s);
}

static void test_sleep_during_a_load_ends_in_sleep(void **state)
{
    nrd_switcher *s = new_switcher(40, NRD_SWITCH_FOREVER, 10ull * FULL_NS, "");
    waiting sleep = {.t = {.done = on_done, .user = &sleep}}, w;
    sem_t gate, begun;
    bool now = true;
    (void)state;
    sem_init(&sleep.over, 0, 0);
    sem_init(&gate, 0, 0);
    sem_init(&begun, 0, 0);
    core.gate = &gate;
    core.begun = &begun;
    assert_null(ask(s, "a", &w));
    sem_wait(&begun);
    assert_null(nrd_switcher_sleep(s, nrd_switcher_find(s, "a"), &sleep.t, &now));
    assert_false(now);
    check_error(wait_for(&w), NRD_ERR_UNAVAILABLE, "asleep");
    sem_post(&gate);
    assert_null(wait_for(&sleep));
    assert_int_equal(info_of(s, "a").state, NRD_SWITCH_ABSENT);
    end(s);
}

static void test_a_model_that_failed_while_it_served_is_loaded_again(void **state)
{
    nrd_switcher *s = new_switcher(40, NRD_SWITCH_FOREVER, 10ull * FULL_NS, "");
    (void)state;
    use(s, "a");
    pthread_mutex_lock(&core.mu);
    core.dead[0] = true;
    pthread_mutex_unlock(&core.mu);
    use(s, "a");
    assert_int_equal(core.n_loads, 2);
    assert_int_equal(core.n_unloads, 1);
    end(s);
}

static void test_who_cannot_wait_begins_the_load_once_and_asks_again(void **state)
{
    nrd_switcher *s = new_switcher(40, NRD_SWITCH_FOREVER, 10ull * FULL_NS, "");
    nrd_switch_model *a = nrd_switcher_find(s, "a");
    sem_t gate;
    (void)state;
    sem_init(&gate, 0, 0);
    core.gate = &gate;
    for (int i = 0; i < 3; i++) {
        check_error(nrd_switcher_acquire_now(s, a), NRD_ERR_UNAVAILABLE, "ask again");
    }
    sem_post(&gate);
    wait_state(s, "a", NRD_SWITCH_READY);
    assert_null(nrd_switcher_acquire_now(s, a));
    nrd_switcher_release(s, a, NRD_SWITCH_DEFAULT);
    assert_int_equal(core.n_loads, 1);
    end(s);
}

static void test_stop_during_a_load_answers_who_waits(void **state)
{
    nrd_switcher *s = new_switcher(10, NRD_SWITCH_FOREVER, 10ull * FULL_NS, "");
    waiting a, b, c;
    sem_t gate, begun;
    (void)state;
    sem_init(&gate, 0, 0);
    sem_init(&begun, 0, 0);
    core.gate = &gate;
    core.begun = &begun;
    assert_null(ask(s, "a", &a));
    sem_wait(&begun);
    assert_null(ask(s, "b", &b));
    nrd_switcher_stop(s);
    check_error(wait_for(&a), NRD_ERR_UNAVAILABLE, "shutting down");
    check_error(wait_for(&b), NRD_ERR_UNAVAILABLE, "shutting down");
    check_error(ask(s, "c", &c), NRD_ERR_UNAVAILABLE, "shutting down");
    sem_post(&gate);
    end(s);
    assert_int_equal(core.n_loads, 1);
}

/* ---- many threads ---- */

enum { N_THREADS = 12, N_ROUNDS = 150 };

typedef struct stormer {
    nrd_switcher *s;
    unsigned seed;
    int n_given, n_cancelled, n_refused;
} stormer;

static void *storm(void *arg)
{
    stormer *me = arg;
    for (int round = 0; round < N_ROUNDS; round++) {
        const char name[] = {(char)('a' + rand_r(&me->seed) % 3), '\0'};
        const size_t i = index_of(name);
        waiting w;
        nrd_error *err = ask(me->s, name, &w);
        if (err) {
            me->n_refused++;
            nrd_error_free(err);
            continue;
        }
        if (!w.now && rand_r(&me->seed) % 10 == 0 && nrd_switcher_cancel(me->s, &w.t)) {
            me->n_cancelled++;
            continue;
        }
        err = wait_for(&w);
        if (err) {
            me->n_refused++;
            nrd_error_free(err);
            continue;
        }
        pthread_mutex_lock(&core.mu);
        core.used[i]++;
        core.wrong = core.wrong || !core.loaded[i];
        pthread_mutex_unlock(&core.mu);
        if (rand_r(&me->seed) % 4 == 0) {
            nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
        }
        pthread_mutex_lock(&core.mu);
        core.used[i]--;
        pthread_mutex_unlock(&core.mu);
        nrd_switcher_release(me->s, nrd_switcher_find(me->s, name),
                             rand_r(&me->seed) % 8 ? NRD_SWITCH_DEFAULT : 0);
        me->n_given++;
    }
    return NULL;
}

static int run_storm(nrd_switcher *s, bool disturb)
{
    pthread_t threads[N_THREADS];
    stormer all[N_THREADS];
    int given = 0, others = 0;

    for (unsigned i = 0; i < N_THREADS; i++) {
        all[i] = (stormer){.s = s, .seed = i + 1};
        assert_int_equal(pthread_create(&threads[i], NULL, storm, &all[i]), 0);
    }
    for (int i = 0; disturb && i < 20; i++) {
        nrd_switch_model *m = nrd_switcher_find(s, (const char *const[]){"a", "b", "c"}[i % 3]);
        waiting sleep = {.t = {.done = on_done, .user = &sleep}};
        sem_init(&sleep.over, 0, 0);
        nrd_error *err = nrd_switcher_sleep(s, i % 4 ? m : NULL, &sleep.t, &sleep.now);
        assert_null(err);
        assert_null(wait_for(&sleep));
        nrd_switcher_wake(s, NULL);
        nrd_error_free(nrd_switcher_drop(s, m));
        nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
    }
    for (unsigned i = 0; i < N_THREADS; i++) {
        pthread_join(threads[i], NULL);
        given += all[i].n_given;
        others += all[i].n_cancelled + all[i].n_refused;
        assert_true(disturb || all[i].n_refused == 0);
    }
    assert_int_equal(given + others, N_THREADS * N_ROUNDS); /* each has one end */
    return given;
}

static void test_a_storm_over_three_models_of_which_one_fits_loses_nothing(void **state)
{
    nrd_switcher *s = new_switcher(10, NRD_SWITCH_FOREVER, 60ull * FULL_NS, "");
    (void)state;
    const int given = run_storm(s, false);
    end(s); /* a load may be under way until here */
    assert_true(given > N_THREADS * N_ROUNDS / 2);
    assert_true(core.n_loads < given); /* turns are shared */
}

static void test_a_storm_beside_orders_loses_nothing(void **state)
{
    nrd_switcher *s = new_switcher(20, FULL_NS / 1000, 60ull * FULL_NS, "");
    (void)state;
    (void)run_storm(s, true);
    end(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_so_many_models_come_and_go_and_no_more, setup),
        cmocka_unit_test_setup(test_so_many_may_wait_and_the_next_is_told_to_come_later, setup),
        cmocka_unit_test_setup(test_the_least_recently_used_model_goes, setup),
        cmocka_unit_test_setup(test_a_pinned_model_stays_and_what_cannot_fit_is_refused_at_once, setup),
        cmocka_unit_test_setup(test_a_model_in_use_is_waited_for_and_gives_no_new_leases_meanwhile, setup),
        cmocka_unit_test_setup(test_a_cancelled_head_lets_the_others_go_on, setup),
        cmocka_unit_test_setup(test_who_waits_too_long_is_told, setup),
        cmocka_unit_test_setup(test_a_failed_load_fails_who_waits_and_is_tried_again, setup),
        cmocka_unit_test_setup(test_a_model_that_takes_more_than_was_said_is_counted_with_it, setup),
        cmocka_unit_test_setup(test_an_unused_model_goes_after_its_time_and_a_request_may_say_which, setup),
        cmocka_unit_test_setup(test_sleep_frees_memory_after_the_last_request_and_wake_ends_it, setup),
        cmocka_unit_test_setup(test_a_model_is_forgotten_when_its_memory_is_free_and_may_come_back, setup),
        cmocka_unit_test_setup(test_sleep_during_a_load_ends_in_sleep, setup),
        cmocka_unit_test_setup(test_a_model_that_failed_while_it_served_is_loaded_again, setup),
        cmocka_unit_test_setup(test_who_cannot_wait_begins_the_load_once_and_asks_again, setup),
        cmocka_unit_test_setup(test_stop_during_a_load_answers_who_waits, setup),
        cmocka_unit_test_setup(test_a_storm_over_three_models_of_which_one_fits_loses_nothing, setup),
        cmocka_unit_test_setup(test_a_storm_beside_orders_loses_nothing, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
