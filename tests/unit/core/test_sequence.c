/* SPDX-License-Identifier: Apache-2.0
 * Sequences in one process: clients that start, continue, end, cancel and forget sequences at
 * random, over both strategies; every request must be answered once and released once. The seed
 * comes from NRD_SEED. */
#include "host.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>

typedef struct ask { /* one request; freed when both callbacks were made */
    atomic_int left, finals;
    _Atomic bool failed;
    char *error; /* of the last answer */
    int32_t value, echo;
    pthread_mutex_t mu;
    pthread_cond_t cond;
} ask;

static void down(ask *a)
{
    pthread_mutex_lock(&a->mu);
    atomic_fetch_sub(&a->left, 1);
    pthread_cond_signal(&a->cond);
    pthread_mutex_unlock(&a->mu);
}

static void released(TRITONSERVER_InferenceRequest *r, const uint32_t flags, void *userp)
{
    (void)flags;
    TRITONSERVER_InferenceRequestDelete(r);
    down(userp);
}

static void answered(TRITONSERVER_InferenceResponse *r, const uint32_t flags, void *userp)
{
    ask *a = userp;
    TRITONSERVER_Error *err = r ? TRITONSERVER_InferenceResponseError(r) : NULL;

    if (err) {
        atomic_store(&a->failed, true);
        free(a->error);
        a->error = nrd_xstrdup(TRITONSERVER_ErrorMessage(err));
        TRITONSERVER_ErrorDelete(err);
    } else if (r) {
        const char *name;
        TRITONSERVER_DataType dtype;
        const int64_t *shape;
        const void *base = NULL;
        uint64_t n_dims;
        size_t size = 0;
        TRITONSERVER_MemoryType type;
        int64_t id;
        void *up;
        OK(TRITONSERVER_InferenceResponseOutput(r, 0, &name, &dtype, &shape, &n_dims, &base, &size,
                                                &type, &id, &up));
        memcpy(&a->echo, base, sizeof a->echo);
    }
    if (r) {
        TRITONSERVER_InferenceResponseDelete(r);
    }
    if (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) {
        atomic_fetch_add(&a->finals, 1);
        down(a);
    }
}

static ask *send(host *h, const char *model, uint64_t id, const char *text, uint32_t flags,
                 int32_t value, uint64_t timeout_us, TRITONSERVER_InferenceRequest **out)
{
    const int64_t shape[2] = {1, 1};
    TRITONSERVER_InferenceRequest *r;
    ask *a = nrd_xcalloc(1, sizeof *a);

    pthread_mutex_init(&a->mu, NULL);
    pthread_cond_init(&a->cond, NULL);
    atomic_init(&a->left, 2);
    a->value = value;
    TRITONSERVER_Error *err = TRITONSERVER_InferenceRequestNew(&r, h->server, model, -1);
    if (!err) {
        OK(TRITONSERVER_InferenceRequestSetFlags(r, flags));
        OK(text ? TRITONSERVER_InferenceRequestSetCorrelationIdString(r, text)
                : TRITONSERVER_InferenceRequestSetCorrelationId(r, id));
        OK(TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(r, timeout_us));
        OK(TRITONSERVER_InferenceRequestAddInput(r, "IN", TRITONSERVER_TYPE_INT32, shape, 2));
        OK(TRITONSERVER_InferenceRequestAppendInputData(r, "IN", &a->value, sizeof a->value,
                                                        TRITONSERVER_MEMORY_CPU, 0));
        OK(TRITONSERVER_InferenceRequestSetReleaseCallback(r, released, a));
        OK(TRITONSERVER_InferenceRequestSetResponseCallback(r, h->allocator, NULL, answered, a));
        if (out) { /* a cancel may come after the release: it must find the object */
            *out = r;
        }
        err = TRITONSERVER_ServerInferAsync(h->server, r, NULL);
        if (err) {
            OK(TRITONSERVER_InferenceRequestDelete(r));
        }
    }
    if (err) { /* refused: no callback will come */
        if (out) {
            *out = NULL;
        }
        a->error = nrd_xstrdup(TRITONSERVER_ErrorMessage(err));
        TRITONSERVER_ErrorDelete(err);
        atomic_store(&a->failed, true);
        atomic_store(&a->left, 0);
        atomic_store(&a->finals, 1);
    }
    return a;
}

/* True: it was answered without an error. */
static bool finish(ask *a)
{
    pthread_mutex_lock(&a->mu);
    while (atomic_load(&a->left) > 0) {
        pthread_cond_wait(&a->cond, &a->mu);
    }
    pthread_mutex_unlock(&a->mu);
    assert_int_equal(atomic_load(&a->finals), 1);
    bool ok = !atomic_load(&a->failed);
    if (ok) {
        assert_int_equal(a->echo, a->value);
    } else {
        assert_non_null(a->error);
        if (getenv("NRD_TEST_LOG")) {
            print_message("%s\n", a->error);
        }
        if (!strstr(a->error, "must specify the START flag") && !strstr(a->error, "cancelled") &&
            !strstr(a->error, "timeout of the corresponding sequence") &&
            !strstr(a->error, "not found") && !strstr(a->error, "not at ready state") &&
            !strstr(a->error, "no available versions")) {
            print_error("unexpected: %s\n", a->error);
            fail();
        }
    }
    pthread_cond_destroy(&a->cond);
    pthread_mutex_destroy(&a->mu);
    free(a->error);
    free(a);
    return ok;
}

static uint32_t next_random(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return (uint32_t)(*s >> 16);
}

typedef struct worker {
    host *h;
    const char *model;
    uint64_t seed, id;
    int n_ok, n_failed;
    pthread_t thread;
} worker;

enum {
    START = TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
    END = TRITONSERVER_REQUEST_FLAG_SEQUENCE_END
};

/* Sequences one after the other, each with several requests on their way at once. */
static void *run_worker(void *arg)
{
    enum { SEQUENCES = 60, MOST = 6 };
    worker *w = arg;
    char text[32];

    for (int i = 0; i < SEQUENCES; i++) {
        uint32_t n = 1 + next_random(&w->seed) % MOST, kind = next_random(&w->seed) % 8;
        ask *asks[MOST];
        snprintf(text, sizeof text, "seq-%u-%d", (unsigned)w->id, i);
        for (uint32_t k = 0; k < n; k++) {
            uint32_t flags = (k == 0 && kind != 7 ? START : 0) |
                             (k + 1 == n && kind != 6 ? END : 0); /* 6: forgotten, 7: not begun */
            uint64_t timeout = kind == 5 ? 2000 : 0;
            asks[k] = send(w->h, w->model, w->id * 1000 + (uint64_t)i + 1, kind % 2 ? text : NULL,
                           flags, (int32_t)(i * 10 + (int)k), timeout, NULL);
        }
        for (uint32_t k = 0; k < n; k++) {
            *(finish(asks[k]) ? &w->n_ok : &w->n_failed) += 1;
        }
    }
    return NULL;
}

static uint64_t seed(void)
{
    const char *text = getenv("NRD_SEED");
    unsigned long long v = nrd_now_ns();
    if (text) {
        assert_true(nrd_parse_u64(text, &v));
    }
    print_message("NRD_SEED=%llu\n", v);
    return v | 1;
}

static const char *const configs[] = {
    "max_batch_size: 2 sequence_batching { max_sequence_idle_microseconds: 50000 direct { } "
    "control_input [ { name: \"START\" control [ { kind: CONTROL_SEQUENCE_START "
    "int32_false_true: [ 0, 1 ] } ] } ] "
    "state [ { input_name: \"A\" output_name: \"B\" data_type: TYPE_INT32 dims: [ 1 ] } ] }",
    "max_batch_size: 4 sequence_batching { max_sequence_idle_microseconds: 50000 "
    "oldest { max_candidate_sequences: 3 max_queue_delay_microseconds: 200 "
    "preserve_ordering: true } control_input [ { name: \"ID\" control [ { kind: "
    "CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } ] } ] } "
    "instance_group [ { count: 2 kind: KIND_CPU } ]",
};

static void stress(const char *config, bool replace)
{
    enum { N = 6 };
    host h;
    worker w[N];
    uint64_t s = seed();
    int ok = 0, failed = 0;

    host_init(&h);
    add_identity(&h, "m", config);
    TRITONSERVER_ServerOptions *o = host_options(&h);
    if (replace) {
        OK(TRITONSERVER_ServerOptionsSetModelControlMode(o, TRITONSERVER_MODEL_CONTROL_EXPLICIT));
        OK(TRITONSERVER_ServerOptionsSetStartupModel(o, "m"));
    }
    host_start(&h, o);
    for (int i = 0; i < N; i++) {
        w[i] =
            (worker){.h = &h, .model = "m", .seed = s + (uint64_t)i * 7919, .id = (uint64_t)i + 1};
        assert_int_equal(pthread_create(&w[i].thread, NULL, run_worker, &w[i]), 0);
    }
    for (int i = 0; replace && i < 10; i++) {
        usleep(20000);
        OK(TRITONSERVER_ServerLoadModel(h.server, "m"));
        if (i % 3 == 2) {
            OK(TRITONSERVER_ServerUnloadModel(h.server, "m"));
            usleep(5000);
            OK(TRITONSERVER_ServerLoadModel(h.server, "m"));
        }
    }
    for (int i = 0; i < N; i++) {
        assert_int_equal(pthread_join(w[i].thread, NULL), 0);
        ok += w[i].n_ok;
        failed += w[i].n_failed;
    }
    print_message("%d answered, %d refused\n", ok, failed);
    assert_true(replace ? ok > 0 : ok > failed);
    host_end(&h); /* waits for the sequences that were forgotten */
}

static void test_direct_slots_account_for_every_request(void **state)
{
    (void)state;
    stress(configs[0], false);
}

static void test_oldest_slots_account_for_every_request(void **state)
{
    (void)state;
    stress(configs[1], false);
}

static void test_models_are_replaced_while_sequences_live(void **state)
{
    (void)state;
    stress(configs[0], true);
    stress(configs[1], true);
}

static void test_cancelling_ends_the_sequence_and_frees_its_slot(void **state)
{
    host h;
    TRITONSERVER_InferenceRequest *r[3];
    ask *a[4];
    (void)state;

    host_init(&h);
    add_identity(&h, "m",
                 "max_batch_size: 1 sequence_batching { max_sequence_idle_microseconds: 60000000 "
                 "oldest { max_candidate_sequences: 1 } } "
                 "parameters { key: \"execute_delay_ms\" value { string_value: \"300\" } }");
    host_start(&h, NULL);
    a[0] = send(&h, "m", 1, NULL, START, 1, 0, &r[0]);
    a[1] = send(&h, "m", 1, NULL, 0, 2, 0, &r[1]);           /* waits in the slot */
    a[2] = send(&h, "m", 2, NULL, START | END, 3, 0, &r[2]); /* waits for the slot */
    OK(TRITONSERVER_InferenceRequestCancel(r[1]));
    assert_false(finish(a[1]));
    assert_true(finish(a[0]));
    assert_true(finish(a[2])); /* the slot was given up at once, not after a minute */
    a[3] = send(&h, "m", 1, NULL, END, 4, 0, NULL);
    assert_false(finish(a[3]));
    host_end(&h);
}

static void test_draining_refuses_new_sequences_only(void **state)
{
    host h;
    ask *a;
    pthread_t t;
    (void)state;

    host_init(&h);
    add_identity(&h, "m",
                 "max_batch_size: 2 sequence_batching { max_sequence_idle_microseconds: "
                 "60000000 direct { } }");
    host_start(&h, NULL);
    assert_true(finish(send(&h, "m", 1, NULL, START, 1, 0, NULL)));
    assert_int_equal(
        pthread_create(&t, NULL, (void *(*)(void *))(void *)TRITONSERVER_ServerStop, h.server), 0);
    for (int i = 0; i < 1000; i++) { /* until the server has begun to stop */
        a = send(&h, "m", 2, NULL, START | END, 1, 0, NULL);
        bool refused = atomic_load(&a->failed);
        if (refused) {
            assert_non_null(strstr(a->error, "has stopped accepting new inference requests"));
            free(a->error);
            a->error = nrd_xstrdup("cancelled");
        }
        finish(a);
        if (refused) {
            break;
        }
        assert_true(i < 999);
        usleep(1000);
    }
    assert_true(finish(send(&h, "m", 1, NULL, 0, 5, 0, NULL)));
    assert_true(finish(send(&h, "m", 1, NULL, END, 6, 0, NULL)));
    assert_int_equal(pthread_join(t, NULL), 0);
    host_end(&h);
}

/* Address sanitizers reserve more addresses than any limit that is of use here. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
static size_t address_space(void)
{
    char line[64] = "";
    unsigned long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");

    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    fclose(f);
    *strchr(line, ' ') = '\0';
    assert_true(nrd_parse_u64(line, &pages));
    return (size_t)pages * (size_t)sysconf(_SC_PAGESIZE);
}

static void infer_of_sequence(host *h, uint64_t id, uint32_t flags, const int32_t *data, size_t n,
                              answers *a)
{
    TRITONSERVER_InferenceRequest *r = new_request(h, "m", a, data, (int64_t)n, true);

    OK(TRITONSERVER_InferenceRequestSetCorrelationId(r, id));
    OK(TRITONSERVER_InferenceRequestSetFlags(r, flags));
    OK(TRITONSERVER_ServerInferAsync(h->server, r, NULL));
    wait_done(a);
}

/* The first slot has nothing to run, so it needs a null request as large as the second one's. */
static void test_a_batch_that_memory_cannot_hold_fails_alone(void **state)
{
    const size_t n = (size_t)1 << 28;
    struct rlimit was, limit;
    host h;
    answers a;
    int32_t one = 1;

    (void)state;
    host_init(&h);
    add_identity(&h, "m", configs[0]);
    host_start(&h, NULL);
    answers_init(&a);
    infer_of_sequence(&h, 1, START, &one, 1, &a);
    assert_null(a.error);
    answers_fini(&a);

    int32_t *large = mmap(NULL, n * sizeof *large, PROT_READ,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_ptr_not_equal(large, MAP_FAILED);
    assert_int_equal(getrlimit(RLIMIT_AS, &was), 0);
    limit = was;
    limit.rlim_cur = address_space() + n; /* a quarter of what is needed */
    assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
    answers_init(&a);
    infer_of_sequence(&h, 2, START, large, n, &a);
    assert_int_equal(setrlimit(RLIMIT_AS, &was), 0);
    munmap(large, n * sizeof *large);
    assert_non_null(a.error);
    assert_non_null(strstr(a.error, "out of memory"));
    answers_fini(&a);

    answers_init(&a);
    infer_of_sequence(&h, 1, END, &one, 1, &a);
    assert_null(a.error);
    answers_fini(&a);
    host_end(&h);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        cmocka_unit_test(test_a_batch_that_memory_cannot_hold_fails_alone),
#endif
        cmocka_unit_test(test_direct_slots_account_for_every_request),
        cmocka_unit_test(test_oldest_slots_account_for_every_request),
        cmocka_unit_test(test_models_are_replaced_while_sequences_live),
        cmocka_unit_test(test_cancelling_ends_the_sequence_and_frees_its_slot),
        cmocka_unit_test(test_draining_refuses_new_sequences_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
