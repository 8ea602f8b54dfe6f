/* SPDX-License-Identifier: Apache-2.0
 * Threads that are lent to the server run models themselves: which requests they run and which not,
 * and that every worker whose slot they used is there afterwards. */
#include "host.h"

#include "core/sched/worker.h"
#include "nereid/server.h"

#include <limits.h>
#include <stdatomic.h>

static const int32_t DATA[4] = {7, -1, 0, 42};

enum { TRIES = 400, SLOW_MS = 200, TIME_LIMIT_S = 240, NS_PER_S = 1000000000 };

/* ---- one request, and on which thread it ran ---- */

typedef struct sent {
    answers a;
    pthread_t thread;    /* of the response */
    const char *deepest; /* a place in that thread's stack */
} sent;

static _Atomic uint64_t waking_ns; /* what it costs a worker to wake who waits for the answer */

static void on_sent_response(TRITONSERVER_InferenceResponse *r, const uint32_t flags, void *userp)
{
    sent *s = userp;
    char here;
    s->thread = pthread_self();
    s->deepest = (const char *)((uintptr_t)&here);
    for (const uint64_t begin = nrd_now_ns();
         !nrd_lent_here()->is_lent && nrd_now_ns() - begin < waking_ns;) {
    }
    on_response(r, flags, &s->a);
}

static void on_sent_release(TRITONSERVER_InferenceRequest *r, const uint32_t flags, void *userp)
{
    on_release(r, flags, &((sent *)userp)->a);
}

/* parameter: NULL, or the name of an integer parameter with `value`. */
static TRITONSERVER_InferenceRequest *make(host *h, const char *model, sent *s,
                                           const char *parameter, int64_t value)
{
    answers_init(&s->a);
    TRITONSERVER_InferenceRequest *r = new_request(h, model, &s->a, DATA, 4, false);
    OK(TRITONSERVER_InferenceRequestSetReleaseCallback(r, on_sent_release, s));
    OK(TRITONSERVER_InferenceRequestSetResponseCallback(r, h->allocator, NULL, on_sent_response,
                                                        s));
    if (parameter) {
        OK(TRITONSERVER_InferenceRequestSetIntParameter(r, parameter, value));
    }
    return r;
}

/* Whether the calling thread ran it, and if it did, that it ended before the call returned. */
static bool ran_here(host *h, const char *model, sent *s, const char *parameter, int64_t value)
{
    TRITONSERVER_InferenceRequest *r = make(h, model, s, parameter, value);
    OK(TRITONSERVER_ServerInferAsync(h->server, r, NULL));
    pthread_mutex_lock(&s->a.mu);
    const bool ended = s->a.final;
    pthread_mutex_unlock(&s->a.mu);
    wait_done(&s->a);
    assert_null(s->a.error);
    assert_int_equal(s->a.n, 1);
    assert_memory_equal(s->a.last, DATA, sizeof DATA);
    const bool here = pthread_equal(s->thread, pthread_self());
    assert_true(ended || !here);
    answers_fini(&s->a);
    return here;
}

/* Plain requests until one ran here; a busy machine may take a while to be quick. false: none. */
static bool runs_here(host *h, const char *model)
{
    const uint64_t until = nrd_now_ns() + 60000000000ull;
    sent s;
    for (int i = 0; i < TRIES || nrd_now_ns() < until; i++) {
        if (ran_here(h, model, &s, NULL, 0)) {
            return true;
        }
    }
    return false;
}

static void never_runs_here(host *h, const char *model)
{
    sent s;
    for (int i = 0; i < TRIES; i++) {
        assert_false(ran_here(h, model, &s, NULL, 0));
    }
}

static void add_fickle(const host *h, const char *name, const char *more)
{
    char *text = nrd_xasprintf("backend: \"fickle\"\n"
                               "input [ { name: \"IN\" data_type: TYPE_INT32 dims: [ -1 ] } ]\n"
                               "output [ { name: \"OUT\" data_type: TYPE_INT32 dims: [ -1 ] } ]\n"
                               "%s\n",
                               more);
    char *exe = nrd_path_exe_dir();
    char *from = nrd_xasprintf("%s/../../backends/fickle/libtriton_fickle.so", exe);
    char *lib = realpath(from, NULL);
    char *to = nrd_xasprintf("%s/%s/libtriton_fickle.so", h->dir, name);
    add_model(h, name, text);
    assert_non_null(lib);
    assert_int_equal(symlink(lib, to), 0);
    free(to);
    free(lib);
    free(from);
    free(exe);
    free(text);
}

static int lend(void **state)
{
    (void)state;
    nrd_server_lend_thread(true);
    return 0;
}

static int end_lending(void **state)
{
    (void)state;
    nrd_server_lend_thread(false);
    return 0;
}

/* ---- which requests ---- */

static void test_only_a_lent_thread_runs_models(void **state)
{
    host h;
    (void)state;
    host_init(&h);
    add_identity(&h, "a", "");
    host_start(&h, NULL);
    assert_true(runs_here(&h, "a"));
    nrd_server_lend_thread(false);
    never_runs_here(&h, "a");
    nrd_server_lend_thread(true);
    assert_true(runs_here(&h, "a"));
    host_end(&h);
}

/* Whatever needs the queue, a worker of its own, or a backend that said nothing. */
static void test_only_models_that_allow_it(void **state)
{
    static const struct {
        const char *name, *more;
    } models[] = {
        {"delay", "max_batch_size: 0 dynamic_batching { max_queue_delay_microseconds: 1 }"},
        {"ordered", "dynamic_batching { preserve_ordering: true }"},
        {"sleeps", "parameters { key: \"execute_delay_ms\" value { string_value: \"1\" } }"},
        {"streams", "model_transaction_policy { decoupled: true }"},
    };
    host h;
    (void)state;
    host_init(&h);
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        add_identity(&h, models[i].name, models[i].more);
    }
    add_identity(&h, "batches", "dynamic_batching { }");
    host_start(&h, NULL);
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        never_runs_here(&h, models[i].name);
    }
    assert_true(runs_here(&h, "batches")); /* without a delay it is as good as none */
    host_end(&h);
}

static void test_no_rate_limited_model(void **state)
{
    host h;
    (void)state;
    host_init(&h);
    add_identity(&h, "a", "");
    TRITONSERVER_ServerOptions *o = host_options(&h);
    OK(TRITONSERVER_ServerOptionsSetRateLimiterMode(o, TRITONSERVER_RATE_LIMIT_EXEC_COUNT));
    host_start(&h, o);
    never_runs_here(&h, "a");
    host_end(&h);
}

static void test_no_large_request(void **state)
{
    enum { N = 64 * 1024 / 4 + 1 };
    static int32_t data[N];
    host h;
    sent s;
    (void)state;
    host_init(&h);
    add_identity(&h, "a", "");
    host_start(&h, NULL);
    for (int i = 0; i < 8; i++) {
        assert_true(runs_here(&h, "a"));
        answers_init(&s.a);
        TRITONSERVER_InferenceRequest *r = new_request(&h, "a", &s.a, data, N, false);
        OK(TRITONSERVER_InferenceRequestSetReleaseCallback(r, on_sent_release, &s));
        OK(TRITONSERVER_InferenceRequestSetResponseCallback(r, h.allocator, NULL, on_sent_response,
                                                            &s));
        OK(TRITONSERVER_ServerInferAsync(h.server, r, NULL));
        wait_done(&s.a);
        assert_null(s.a.error);
        assert_int_equal(s.a.n_last, N);
        assert_false(pthread_equal(s.thread, pthread_self()));
        answers_fini(&s.a);
    }
    host_end(&h);
}

/* One execution that was slow, or kept its request, and the thread is left alone for a while, each
 * time for longer. How many runs a crowded machine needs until one runs here says nothing, so that no
 * number of them makes good for a slow one. */
static void test_not_after_a_slow_run(void **state)
{
    static const struct {
        const char *how;
        int n_runs; /* by the model's own thread, at least */
    } slow[] = {{"sleep_us", 16 + 16}, {"release_later", 80 + 16}, {"sleep_us", 336 + 16}};
    const int many_runs = nrd_lent_limits.many_runs;
    host h;
    sent s;
    (void)state;
    nrd_lent_limits.many_runs = INT_MAX;
    host_init(&h);
    add_fickle(&h, "f", "");
    host_start(&h, NULL);
    for (int i = 0; i < 3; i++) {
        assert_true(runs_here(&h, "f"));
        ran_here(&h, "f", &s, slow[i].how, SLOW_MS * 1000);
        for (int k = 0; k < slow[i].n_runs; k++) {
            assert_false(ran_here(&h, "f", &s, NULL, 0));
        }
    }
    host_end(&h);
    nrd_lent_limits.many_runs = many_runs;
}

/* That a worker's run takes long because its answer wakes a thread is nothing of the model's. */
static void test_slow_wakes_are_not_the_models(void **state)
{
    const nrd_lent_bounds given = nrd_lent_limits;
    host h;
    (void)state;
    host_init(&h);
    add_fickle(&h, "f", "");
    nrd_lent_limits.quick_run_ns = NS_PER_S / 50;
    nrd_lent_limits.wake_ns = (uint64_t)TIME_LIMIT_S * NS_PER_S;
    waking_ns = nrd_lent_limits.quick_run_ns;
    host_start(&h, NULL);
    assert_true(runs_here(&h, "f"));
    host_end(&h);
    waking_ns = 0;
    nrd_lent_limits = given;
}

/* ---- steps of ensembles ---- */

/* All steps run here, and the stack does not grow with their number. */
static void test_steps_follow_without_recursion(void **state)
{
    enum { LONG = 10 };
    static const char *const models[LONG] = {"a", "b", "a", "c", "b", "c", "a", "b", "c", "b"};
    host h;
    (void)state;
    host_init(&h);
    add_identity(&h, "a", "");
    add_identity(&h, "b", "instance_group { count: 2 }");
    add_identity(&h, "c", "");
    add_steps(&h, "short", models, 2);
    add_steps(&h, "long", models, LONG);
    host_start(&h, NULL);
    assert_true(runs_here(&h, "short"));
    const uint64_t until = nrd_now_ns() + 60000000000ull;
    sent two, many;
    while (!ran_here(&h, "short", &two, NULL, 0) || !ran_here(&h, "long", &many, NULL, 0)) {
        assert_true(nrd_now_ns() < until); /* a busy machine sets threads aside, but not always */
    }
    assert_true(labs(two.deepest - many.deepest) < 2048);
    host_end(&h);
}

/* ---- statistics ---- */

static long long number_after(const char *text, const char *key)
{
    const char *at = strstr(text, key);
    assert_non_null(at);
    return atoll(at + strlen(key));
}

static char *statistics_of(host *h, const char *model)
{
    TRITONSERVER_Message *m;
    OK(TRITONSERVER_ServerModelStatistics(h->server, model, -1, &m));
    return message_text(m);
}

static void test_statistics_count_all(void **state)
{
    enum { N = 300 };
    host h;
    sent s;
    int n = 0, n_here = 0;
    (void)state;
    host_init(&h);
    add_identity(&h, "a", "");
    host_start(&h, NULL);
    while (n < N || n_here < N / 4) { /* a busy machine may take a while to be quick */
        n_here += ran_here(&h, "a", &s, NULL, 0);
        n++;
    }
    char *text = statistics_of(&h, "a");
    while (number_after(text, "\"execution_count\":") < n) { /* counted after the last answer */
        free(text);
        usleep(1000);
        text = statistics_of(&h, "a");
    }
    assert_int_equal(number_after(text, "\"execution_count\":"), n);
    assert_int_equal(number_after(text, "\"inference_count\":"), n);
    assert_int_equal(number_after(text, "\"success\":{\"count\":"), n);
    assert_int_equal(number_after(text, "\"queue\":{\"count\":"), n);
    free(text);
    text = metrics_text(&h);
    assert_int_equal(
        number_after(text, "nv_inference_pending_request_count{model=\"a\",version=\"1\"} "), 0);
    free(text);
    host_end(&h);
}

/* ---- a model that goes, a queue that fills, while its slot is lent ---- */

typedef struct slow_sender {
    host *h;
    atomic_bool is_sending;
    bool here;
    sent s;
} slow_sender;

/* Lends itself, waits until it runs the model, and runs it slowly. */
static void *send_slow(void *arg)
{
    slow_sender *c = arg;
    nrd_server_lend_thread(true);
    c->here = runs_here(c->h, "f");
    TRITONSERVER_InferenceRequest *r = make(c->h, "f", &c->s, "sleep_us", SLOW_MS * 1000);
    atomic_store(&c->is_sending, true);
    OK(TRITONSERVER_ServerInferAsync(c->h->server, r, NULL));
    wait_done(&c->s.a);
    c->here = c->here && pthread_equal(c->s.thread, pthread_self());
    assert_null(c->s.a.error);
    answers_fini(&c->s.a);
    return NULL;
}

static void start_slow(slow_sender *c, host *h, pthread_t *t)
{
    *c = (slow_sender){.h = h};
    atomic_init(&c->is_sending, false);
    assert_int_equal(pthread_create(t, NULL, send_slow, c), 0);
    while (!atomic_load(&c->is_sending)) {
        usleep(1000);
    }
    usleep(SLOW_MS * 1000 / 10); /* it is in its sleep now, or this test shows nothing */
}

/* What comes meanwhile waits for the slot, and its own worker runs it. */
static void test_queue_behind_a_lent_slot(void **state)
{
    host h;
    slow_sender c;
    pthread_t t;
    sent s[4];
    int n_here = 0;
    (void)state;
    host_init(&h);
    add_fickle(&h, "f", "");
    host_start(&h, NULL);
    for (int round = 0; round < 3 || n_here == 0; round++) { /* until one was not set aside */
        start_slow(&c, &h, &t);
        for (int i = 0; i < 4; i++) {
            TRITONSERVER_InferenceRequest *r = make(&h, "f", &s[i], NULL, 0);
            OK(TRITONSERVER_ServerInferAsync(h.server, r, NULL));
        }
        for (int i = 0; i < 4; i++) {
            wait_done(&s[i].a);
            assert_null(s[i].a.error);
            assert_false(pthread_equal(s[i].thread, pthread_self()));
            answers_fini(&s[i].a);
        }
        pthread_join(t, NULL);
        n_here += c.here;
    }
    host_end(&h);
}

static void test_model_goes_while_its_slot_is_lent(void **state)
{
    int n_here[2] = {0};
    (void)state;
    for (int round = 0; round < 4 || !n_here[0] || !n_here[1]; round++) { /* as above */
        host h;
        slow_sender c;
        pthread_t t;
        host_init(&h);
        add_fickle(&h, "f", "");
        TRITONSERVER_ServerOptions *o = host_options(&h);
        OK(TRITONSERVER_ServerOptionsSetModelControlMode(o, TRITONSERVER_MODEL_CONTROL_EXPLICIT));
        OK(TRITONSERVER_ServerOptionsSetStartupModel(o, "f"));
        host_start(&h, o);
        start_slow(&c, &h, &t);
        if (round % 2) {
            OK(TRITONSERVER_ServerLoadModel(h.server, "f")); /* a new one, the old one goes */
        } else {
            OK(TRITONSERVER_ServerUnloadModel(h.server, "f"));
        }
        pthread_join(t, NULL);
        n_here[round % 2] += c.here;
        host_end(&h); /* fails when the model cannot be unloaded in time */
    }
}

static void test_server_stops_while_a_slot_is_lent(void **state)
{
    host h;
    slow_sender c;
    pthread_t t;
    (void)state;
    host_init(&h);
    add_fickle(&h, "f", "");
    host_start(&h, NULL);
    start_slow(&c, &h, &t);
    OK(TRITONSERVER_ServerStop(h.server));
    pthread_join(t, NULL);
    host_end(&h);
}

/* A crowded machine sets threads aside for milliseconds: what is slow here takes much longer. */
static int give_time(void **state)
{
    (void)state;
    nrd_lent_limits.quick_run_ns = SLOW_MS * 1000000ull / 2;
    nrd_lent_limits.chain_ns = (uint64_t)TIME_LIMIT_S * NS_PER_S;
    return 0;
}

int main(void)
{
#define LENT(test) cmocka_unit_test_setup_teardown(test, lend, end_lending)
    const struct CMUnitTest tests[] = {
        LENT(test_only_a_lent_thread_runs_models),
        LENT(test_only_models_that_allow_it),
        LENT(test_no_rate_limited_model),
        LENT(test_no_large_request),
        LENT(test_not_after_a_slow_run),
        LENT(test_slow_wakes_are_not_the_models),
        LENT(test_steps_follow_without_recursion),
        LENT(test_statistics_count_all),
        cmocka_unit_test(test_queue_behind_a_lent_slot),
        cmocka_unit_test(test_model_goes_while_its_slot_is_lent),
        cmocka_unit_test(test_server_stops_while_a_slot_is_lent),
    };
    alarm(TIME_LIMIT_S);
    return cmocka_run_group_tests(tests, give_time, NULL);
}
