/* SPDX-License-Identifier: Apache-2.0
 * Threads that go on with the next step of an ensemble and change places for that: every place
 * keeps its thread, whatever comes and goes. A place without one shows as a model that does not
 * answer, or whose unloading never ends (the alarm then ends the test). */
#include "host.h"

#include "nereid/server.h"

#include <dirent.h>
#include <stdatomic.h>

static const int32_t DATA[4] = {7, -1, 0, 42};

enum { STEPS = 3, CLIENTS = 4, TIME_LIMIT_S = 240 };

static void add_three(const host *h, const char *name, const char *a, const char *b, const char *c)
{
    const char *const models[STEPS] = {a, b, c};
    add_steps(h, name, models, STEPS);
}

/* Threads that have changed places at least once: their name tells. */
static int n_moved(void)
{
    DIR *d = opendir("/proc/self/task");
    int n = 0;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        char path[64 + sizeof e->d_name], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", e->d_name);
        FILE *f = e->d_name[0] == '.' ? NULL : fopen(path, "r");
        if (f) {
            n += fgets(name, sizeof name, f) && strcmp(name, "instances\n") == 0;
            fclose(f);
        }
    }
    closedir(d);
    return n;
}

static void expect_answer(host *h, const char *model)
{
    answers a;
    answers_init(&a);
    infer(h, model, &a, DATA, 4, false);
    assert_null(a.error);
    assert_int_equal(a.n, 1);
    assert_memory_equal(a.last, DATA, sizeof DATA);
    answers_fini(&a);
}

/* Until threads change places; a busy machine may take a while to be prompt. */
static void run_until_moved(host *h, const char *model, int n)
{
    const uint64_t until = nrd_now_ns() + TIME_LIMIT_S * 500000000ull;
    do {
        expect_answer(h, model);
    } while (n_moved() < n && nrd_now_ns() < until);
    assert_true(n_moved() >= n);
}

static void test_threads_change_places(void **state)
{
    host h;
    (void)state;

    host_init(&h);
    add_identity(&h, "a", "");
    add_identity(&h, "b", "instance_group { count: 2 }");
    add_identity(&h, "c", "");
    add_three(&h, "abc", "a", "b", "c");
    add_three(&h, "cba", "c", "b", "a");
    host_start(&h, NULL);
    run_until_moved(&h, "abc", 3);
    for (int i = 0; i < 300; i++) {
        expect_answer(&h, i % 2 ? "abc" : "cba");
        expect_answer(&h, i % 3 == 0 ? "a" : i % 3 == 1 ? "b" : "c");
    }
    host_end(&h);
}

/* The thread of `a` goes on with the slow step: somebody else must then be there for `a`. */
static void test_slow_step_holds_up_nobody(void **state)
{
    enum { SLOW_MS = 400, PROBES = 10 };
    host h;
    answers slow;
    (void)state;

    host_init(&h);
    add_identity(&h, "a", "");
    add_identity(&h, "b", "");
    add_identity(&h, "slow",
                 "parameters { key: \"execute_delay_ms\" value { string_value: "
                 "\"400\" } }");
    add_three(&h, "aba", "a", "b", "a");
    add_three(&h, "baslow", "b", "a", "slow");
    host_start(&h, NULL);
    run_until_moved(&h, "aba", 2);
    for (int round = 0; round < 3; round++) {
        const uint64_t start = nrd_now_ns();
        int in_time = 0;
        answers_init(&slow);
        TRITONSERVER_InferenceRequest *r = new_request(&h, "baslow", &slow, DATA, 4, false);
        OK(TRITONSERVER_ServerInferAsync(h.server, r, NULL));
        while (nrd_now_ns() - start < SLOW_MS * 1000000ull / 4) {
            usleep(1000); /* its first steps are over, the slow one runs */
        }
        for (int i = 0; i < PROBES; i++) {
            expect_answer(&h, "a");
            expect_answer(&h, "b");
            in_time += nrd_now_ns() - start < SLOW_MS * 1000000ull * 3 / 4;
        }
        wait_done(&slow);
        assert_null(slow.error);
        assert_true(nrd_now_ns() - start >= SLOW_MS * 1000000ull);
        answers_fini(&slow);
        assert_true(in_time > 0);
    }
    host_end(&h);
}

typedef struct client {
    host *h;
    unsigned seed;
    atomic_bool *stop;
    int n_ok, n_refused, n_wrong;
} client;

static void *run_client(void *arg)
{
    static const char *const models[] = {"ab", "ba", "aslow", "bslow", "a", "b"};
    enum { BURST = 4 };
    client *c = arg;

    nrd_server_lend_thread(c->seed % 2 == 0); /* half of them run steps themselves */
    while (!atomic_load(c->stop)) {
        answers a[BURST];
        bool sent[BURST];
        for (int i = 0; i < BURST; i++) {
            const char *model = models[(unsigned)rand_r(&c->seed) % 6u];
            TRITONSERVER_InferenceRequest *r;
            const int64_t shape[1] = {4};
            answers_init(&a[i]);
            sent[i] = false;
            TRITONSERVER_Error *err = TRITONSERVER_InferenceRequestNew(&r, c->h->server, model, -1);
            if (!err) {
                OK(TRITONSERVER_InferenceRequestAddInput(r, "IN", TRITONSERVER_TYPE_INT32, shape,
                                                         1));
                OK(TRITONSERVER_InferenceRequestAppendInputData(r, "IN", DATA, sizeof DATA,
                                                                TRITONSERVER_MEMORY_CPU, 0));
                OK(TRITONSERVER_InferenceRequestSetReleaseCallback(r, on_release, &a[i]));
                OK(TRITONSERVER_InferenceRequestSetResponseCallback(r, c->h->allocator, NULL,
                                                                    on_response, &a[i]));
                err = TRITONSERVER_ServerInferAsync(c->h->server, r, NULL);
                sent[i] = !err;
                if (err) {
                    OK(TRITONSERVER_InferenceRequestDelete(r));
                }
            }
            TRITONSERVER_ErrorDelete(err);
        }
        for (int i = 0; i < BURST; i++) {
            if (sent[i]) {
                wait_done(&a[i]);
                const bool right = a[i].n == 1 && !a[i].error && a[i].n_last == 4 &&
                                   memcmp(a[i].last, DATA, sizeof DATA) == 0;
                c->n_ok += right;
                c->n_wrong += !right && !a[i].error; /* an error: a step's model was away */
            }
            c->n_refused += !sent[i] || a[i].error;
            answers_fini(&a[i]);
        }
    }
    return NULL;
}

static void test_models_come_and_go_below_running_chains(void **state)
{
    static const char *const all[] = {"ab", "ba", "aslow", "bslow"};
    host h;
    client c[CLIENTS];
    pthread_t t[CLIENTS];
    atomic_bool stop;
    int n_ok = 0, n_refused = 0;
    (void)state;

    host_init(&h);
    add_identity(&h, "a", "instance_group { count: 2 }");
    add_identity(&h, "b", "");
    add_identity(&h, "slow",
                 "parameters { key: \"execute_delay_ms\" value { string_value: "
                 "\"3\" } }");
    add_identity(&h, "lazy", "max_batch_size: 0 dynamic_batching { }");
    add_three(&h, "ab", "a", "b", "a");
    add_three(&h, "ba", "b", "a", "b");
    add_three(&h, "aslow", "a", "slow", "b");
    add_three(&h, "bslow", "b", "lazy", "slow");
    TRITONSERVER_ServerOptions *o = host_options(&h);
    OK(TRITONSERVER_ServerOptionsSetModelControlMode(o, TRITONSERVER_MODEL_CONTROL_EXPLICIT));
    for (int i = 0; i < 4; i++) {
        OK(TRITONSERVER_ServerOptionsSetStartupModel(o, all[i]));
    }
    host_start(&h, o);
    run_until_moved(&h, "ab", 2);
    atomic_init(&stop, false);
    for (int i = 0; i < CLIENTS; i++) {
        c[i] = (client){.h = &h, .seed = (unsigned)i + 1, .stop = &stop};
        assert_int_equal(pthread_create(&t[i], NULL, run_client, &c[i]), 0);
    }
    const uint64_t until = nrd_now_ns() + 4000000000ull;
    for (int i = 0; nrd_now_ns() < until; i++) {
        const char *model = i % 3 == 0 ? "a" : i % 3 == 1 ? "b" : "slow";
        usleep(20000);
        if (i % 4 == 3) {
            OK(TRITONSERVER_ServerUnloadModelAndDependents(h.server, all[i / 4 % 4]));
            usleep(5000);
            OK(TRITONSERVER_ServerLoadModel(h.server, all[i / 4 % 4]));
        } else {
            OK(TRITONSERVER_ServerLoadModel(h.server, model)); /* a new one, the old one goes */
        }
    }
    atomic_store(&stop, true);
    for (int i = 0; i < CLIENTS; i++) {
        pthread_join(t[i], NULL);
        assert_int_equal(c[i].n_wrong, 0);
        n_ok += c[i].n_ok;
        n_refused += c[i].n_refused;
    }
    print_message("%d answered, %d while a model was away\n", n_ok, n_refused);
    assert_true(n_ok > 100);
    for (int i = 0; i < 4; i++) {
        OK(TRITONSERVER_ServerLoadModel(h.server, all[i]));
    }
    for (int i = 0; i < 50; i++) { /* every place is still taken */
        expect_answer(&h, all[i % 4]);
    }
    host_end(&h); /* fails when a model cannot be unloaded in 10 s */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_change_places),
        cmocka_unit_test(test_slow_step_holds_up_nobody),
        cmocka_unit_test(test_models_come_and_go_below_running_chains),
    };
    alarm(TIME_LIMIT_S);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
