/* SPDX-License-Identifier: Apache-2.0
 * The whole core in one process: a repository of identity models, requests through the C API. */
#include "host.h"

static const int32_t DATA[] = {3, 1, 4, 1, 5};

/* Waits until `what` shows up in a text: figures are written after the last answer. */
static void wait_text(host *h, char *(*text_of)(host *h), const char *what)
{
    for (int i = 0; i < 2000; i++) {
        char *text = text_of(h);
        bool there = strstr(text, what) != NULL;
        if (!there && i == 1999) {
            print_error("no '%s' in\n%s\n", what, text);
        }
        free(text);
        if (there) {
            return;
        }
        usleep(1000);
    }
    fail();
}

static void test_one_model_answers_with_its_input(void **state)
{
    host h;
    answers a;
    (void)state;

    host_init(&h);
    add_identity(&h, "one", "max_batch_size: 0");
    host_start(&h, NULL);
    answers_init(&a);
    infer(&h, "one", &a, DATA, 5, false);
    assert_null(a.error);
    assert_int_equal(a.n, 1);
    assert_int_equal(a.n_last, 5);
    assert_memory_equal(a.last, DATA, sizeof DATA);
    assert_int_equal(a.n_dims, 1);
    answers_fini(&a);
    wait_text(&h, metrics_text, "nv_inference_request_success{model=\"one\",version=\"1\"} 1\n");
    wait_text(&h, metrics_text, "nv_inference_count{model=\"one\",version=\"1\"} 1\n");
    wait_text(&h, metrics_text, "nv_inference_exec_count{model=\"one\",version=\"1\"} 1\n");
    wait_text(
        &h, metrics_text, "nv_inference_request_failure{model=\"one\",reason=\"REJECTED\",version=\"1\"} 0\n");
    wait_text(&h, metrics_text, "nv_inference_pending_request_count{model=\"one\",version=\"1\"} 0\n");
    host_end(&h);
}

static void test_bad_requests_are_refused_in_known_words(void **state)
{
    host h;
    answers a;
    TRITONSERVER_InferenceRequest *r;
    const int64_t shape[] = {1, 5}, big[] = {9, 5}, flat[] = {1};
    (void)state;

    host_init(&h);
    add_identity(&h, "m", "max_batch_size: 8");
    host_start(&h, NULL);
    answers_init(&a);
    REFUSED(TRITONSERVER_InferenceRequestNew(&r, h.server, "x", -1), NOT_FOUND,
            "Request for unknown model: 'x' is not found");
    REFUSED(TRITONSERVER_InferenceRequestNew(&r, h.server, "m", 7), NOT_FOUND,
            "Request for unknown model: 'm' version 7 is not found");

    r = new_request(&h, "m", &a, DATA, 5, true);
    REFUSED(TRITONSERVER_InferenceRequestAddInput(r, "IN", TRITONSERVER_TYPE_INT32, shape, 2),
            INVALID_ARG, "[request id: 42] input 'IN' already exists in request");
    OK(TRITONSERVER_InferenceRequestAddInput(r, "Y", TRITONSERVER_TYPE_INT32, shape, 2));
    REFUSED(TRITONSERVER_ServerInferAsync(h.server, r, NULL), INVALID_ARG,
            "expected 1 inputs but got 2 inputs for model 'm'. Got input(s) ['IN','Y']");
    OK(TRITONSERVER_InferenceRequestRemoveInput(r, "IN"));
    REFUSED(TRITONSERVER_ServerInferAsync(h.server, r, NULL), INVALID_ARG,
            "unexpected inference input 'Y' for model 'm'");
    OK(TRITONSERVER_InferenceRequestRemoveAllInputs(r));
    REFUSED(TRITONSERVER_ServerInferAsync(h.server, r, NULL), INVALID_ARG,
            "but missing required input(s) ['IN']. Please provide all required input(s).");
    OK(TRITONSERVER_InferenceRequestAddInput(r, "IN", TRITONSERVER_TYPE_INT32, big, 2));
    REFUSED(TRITONSERVER_ServerInferAsync(h.server, r, NULL), INVALID_ARG,
            "inference request batch-size must be <= 8 for 'm'");
    OK(TRITONSERVER_InferenceRequestRemoveAllInputs(r));
    OK(TRITONSERVER_InferenceRequestAddInput(r, "IN", TRITONSERVER_TYPE_FP32, shape, 2));
    REFUSED(TRITONSERVER_ServerInferAsync(h.server, r, NULL), INVALID_ARG,
            "inference input 'IN' data-type is 'FP32', but model 'm' expects 'INT32'");
    OK(TRITONSERVER_InferenceRequestRemoveAllInputs(r));
    OK(TRITONSERVER_InferenceRequestAddInput(r, "IN", TRITONSERVER_TYPE_INT32, flat, 1));
    REFUSED(TRITONSERVER_ServerInferAsync(h.server, r, NULL), INVALID_ARG,
            "unexpected shape for input 'IN' for model 'm'. Expected [-1,-1], got [1]. NOTE:");
    OK(TRITONSERVER_InferenceRequestRemoveAllInputs(r));
    OK(TRITONSERVER_InferenceRequestAddInput(r, "IN", TRITONSERVER_TYPE_INT32, shape, 2));
    OK(TRITONSERVER_InferenceRequestAppendInputData(r, "IN", DATA, 8, TRITONSERVER_MEMORY_CPU, 0));
    REFUSED(TRITONSERVER_ServerInferAsync(h.server, r, NULL), INVALID_ARG,
            "input byte size mismatch for input 'IN' for model 'm'. Expected 20, got 8");
    OK(TRITONSERVER_InferenceRequestAddRequestedOutput(r, "Q"));
    REFUSED(TRITONSERVER_ServerInferAsync(h.server, r, NULL), INVALID_ARG,
            "unexpected inference output 'Q' for model 'm'");
    assert_false(a.released);
    OK(TRITONSERVER_InferenceRequestDelete(r));
    answers_fini(&a);
    host_end(&h);
}

/* Two identity models in a row. */
static void add_chain(const host *h, const char *first, const char *second, const char *third)
{
    nrd_str s = {0};
    nrd_str_puts(&s, "platform: \"ensemble\"\n"
                     "input [ { name: \"IN\" data_type: TYPE_INT32 dims: [ -1 ] } ]\n"
                     "output [ { name: \"OUT\" data_type: TYPE_INT32 dims: [ -1 ] } ]\n"
                     "ensemble_scheduling { step [\n");
    const char *const models[] = {first, second, third};
    for (int i = 0; i < 3; i++) {
        nrd_str_printf(
            &s,
            "%s{ model_name: \"%s\" model_version: -1 input_map { key: \"IN\" value: \"%s\" } "
            "output_map { key: \"OUT\" value: \"%s\" } }\n",
            i ? "," : "", models[i],
            i == 0   ? "IN"
            : i == 1 ? "t1"
                     : "t2",
            i == 0   ? "t1"
            : i == 1 ? "t2"
                     : "OUT");
    }
    nrd_str_puts(&s, "] }\n");
    add_model(h, "chain", nrd_str_cstr(&s));
    nrd_str_fini(&s);
}

static void test_ensemble_passes_tensors_through_its_steps(void **state)
{
    host h;
    answers a;
    char *text;
    TRITONSERVER_Message *m;
    (void)state;

    host_init(&h);
    add_identity(&h, "a", "");
    add_identity(&h, "b", "");
    add_identity(&h, "c", "");
    add_chain(&h, "a", "b", "c");
    host_start(&h, NULL);
    answers_init(&a);
    infer(&h, "chain", &a, DATA, 5, false);
    assert_null(a.error);
    assert_int_equal(a.n, 1);
    assert_memory_equal(a.last, DATA, sizeof DATA);
    assert_true(a.has_sequence_params);
    answers_fini(&a);
    wait_text(&h, metrics_text, "nv_inference_request_success{model=\"chain\",version=\"1\"} 1\n");
    wait_text(&h, metrics_text, "nv_inference_request_success{model=\"a\",version=\"1\"} 1\n");
    wait_text(&h, metrics_text, "nv_inference_exec_count{model=\"chain\",version=\"1\"} 1\n");
    OK(TRITONSERVER_ServerModelConfig(h.server, "chain", -1, 1, &m));
    text = message_text(m);
    assert_non_null(strstr(text, "\"input_map\":{\"IN\":\"t1\"}"));
    assert_non_null(strstr(text, "\"model_version\":-1"));
    free(text);

    enum { N = 2000 }; /* what the steps add, as information */
    uint64_t start = nrd_now_ns();
    for (int i = 0; i < N; i++) {
        answers_init(&a);
        infer(&h, "a", &a, DATA, 5, false);
        answers_fini(&a);
    }
    uint64_t single = (nrd_now_ns() - start) / N;
    start = nrd_now_ns();
    for (int i = 0; i < N; i++) {
        answers_init(&a);
        infer(&h, "chain", &a, DATA, 5, false);
        answers_fini(&a);
    }
    uint64_t chain = (nrd_now_ns() - start) / N;
    print_message("single model %.1f us, ensemble of three %.1f us per request\n",
                  (double)single / 1e3, (double)chain / 1e3);
    host_end(&h);
}

static void test_decoupled_step_streams_through_the_ensemble(void **state)
{
    host h;
    answers a;
    uint32_t flags = 0;
    (void)state;

    host_init(&h);
    add_identity(&h, "a", "");
    add_identity(&h, "b",
                 "model_transaction_policy { decoupled: true } "
                 "parameters { key: \"responses\" value { string_value: \"5\" } }");
    add_identity(&h, "c", "");
    add_chain(&h, "a", "b", "c");
    host_start(&h, NULL);
    OK(TRITONSERVER_ServerModelTransactionProperties(h.server, "chain", -1, &flags, NULL));
    assert_int_equal(flags, TRITONSERVER_TXN_DECOUPLED);
    for (int i = 0; i < 50; i++) {
        answers_init(&a);
        infer(&h, "chain", &a, DATA, 5, false);
        assert_null(a.error);
        assert_int_equal(a.n, 5);
        answers_fini(&a);
    }
    host_end(&h);
}

static void test_error_of_a_step_names_the_ensemble(void **state)
{
    host h;
    answers a;
    (void)state;

    host_init(&h);
    add_identity(&h, "a", "");
    add_identity(&h, "b", "");
    add_model(&h, "c",
              "backend: \"identity\" max_batch_size: 0\n"
              "input { name: \"IN\" data_type: TYPE_INT32 dims: 4 }\n"
              "output { name: \"OUT\" data_type: TYPE_INT32 dims: 4 }\n");
    add_chain(&h, "a", "b", "c");
    host_start(&h, NULL);
    answers_init(&a);
    infer(&h, "chain", &a, DATA, 5, false);
    assert_non_null(a.error);
    assert_non_null(strstr(a.error,
                           "in ensemble 'chain', [request id: 42] unexpected shape for input "
                           "'IN' for model 'c'. Expected [4], got [5]."));
    answers_fini(&a);
    wait_text(&h, metrics_text,
                "nv_inference_request_failure{model=\"chain\",reason=\"OTHER\",version=\"1\"} 1\n");
    host_end(&h);
}

static void test_cancel_reaches_running_and_queued_requests(void **state)
{
    enum { N = 4 };
    host h;
    answers a[N], e;
    TRITONSERVER_InferenceRequest *r[N], *re;
    (void)state;

    host_init(&h);
    add_identity(&h, "a", "");
    add_identity(&h, "slow",
                 "parameters { key: \"execute_delay_ms\" value { string_value: \"20000\" } }");
    add_identity(&h, "c", "");
    add_chain(&h, "a", "slow", "c");
    host_start(&h, NULL);
    uint64_t start = nrd_now_ns();
    for (int i = 0; i < N; i++) {
        answers_init(&a[i]);
        r[i] = new_request(&h, "slow", &a[i], DATA, 5, false);
        OK(TRITONSERVER_ServerInferAsync(h.server, r[i], NULL));
    }
    wait_text(&h, metrics_text, "nv_inference_pending_request_count{model=\"slow\",version=\"1\"} 3\n");
    answers_init(&e);
    re = new_request(&h, "chain", &e, DATA, 5, false);
    REFUSED(TRITONSERVER_InferenceRequestCancel(re), INTERNAL,
            "before calling TRITONSERVER_InferAsync");
    OK(TRITONSERVER_ServerInferAsync(h.server, re, NULL));
    wait_text(&h, metrics_text, "nv_inference_pending_request_count{model=\"slow\",version=\"1\"} 4\n");
    for (int i = N - 1; i > 0; i--) { /* those that wait, while the first one runs */
        OK(TRITONSERVER_InferenceRequestCancel(r[i]));
        wait_done(&a[i]);
        assert_int_equal(a[i].code, TRITONSERVER_ERROR_CANCELLED);
    }
    OK(TRITONSERVER_InferenceRequestCancel(re));
    wait_done(&e);
    assert_int_equal(e.code, TRITONSERVER_ERROR_CANCELLED);
    OK(TRITONSERVER_InferenceRequestCancel(r[0]));
    wait_done(&a[0]);
    assert_int_equal(a[0].code, TRITONSERVER_ERROR_CANCELLED);
    assert_true(nrd_now_ns() - start < 10000000000ull);
    for (int i = 0; i < N; i++) {
        answers_fini(&a[i]);
    }
    answers_fini(&e);
    wait_text(
        &h, metrics_text, "nv_inference_request_failure{model=\"slow\",reason=\"CANCELED\",version=\"1\"} 5\n");
    wait_text(
        &h, metrics_text, "nv_inference_request_failure{model=\"chain\",reason=\"CANCELED\",version=\"1\"} 1\n");
    host_end(&h);
}

static void test_dynamic_batcher_puts_requests_together(void **state)
{
    enum { N = 8 };
    host h;
    answers a[N];
    TRITONSERVER_Message *m;
    (void)state;

    host_init(&h);
    add_identity(&h, "m",
                 "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 5000000 }");
    host_start(&h, NULL);
    for (int i = 0; i < N; i++) { /* the eighth fills the batch, nobody waits five seconds */
        answers_init(&a[i]);
        TRITONSERVER_InferenceRequest *r = new_request(&h, "m", &a[i], DATA, 5, true);
        OK(TRITONSERVER_ServerInferAsync(h.server, r, NULL));
    }
    for (int i = 0; i < N; i++) {
        wait_done(&a[i]);
        assert_null(a[i].error);
        assert_int_equal(a[i].n_dims, 2);
        answers_fini(&a[i]);
    }
    wait_text(&h, metrics_text, "nv_inference_exec_count{model=\"m\",version=\"1\"} 1\n");
    wait_text(&h, metrics_text, "nv_inference_count{model=\"m\",version=\"1\"} 8\n");
    OK(TRITONSERVER_ServerModelStatistics(h.server, "m", -1, &m));
    char *text = message_text(m);
    assert_non_null(strstr(text, "\"batch_stats\":[{\"batch_size\":8,"));
    free(text);
    host_end(&h);
}

static void test_queue_limit_and_queue_timeout_reject(void **state)
{
    host h;
    answers a[4];
    TRITONSERVER_InferenceRequest *r[4];
    (void)state;

    host_init(&h);
    add_identity(&h, "m",
                 "max_batch_size: 1 dynamic_batching { default_queue_policy { max_queue_size: 2 "
                 "default_timeout_microseconds: 100000 } } "
                 "parameters { key: \"execute_delay_ms\" value { string_value: \"600\" } }");
    host_start(&h, NULL);
    for (int i = 0; i < 4; i++) {
        answers_init(&a[i]);
        r[i] = new_request(&h, "m", &a[i], DATA, 5, true);
    }
    OK(TRITONSERVER_ServerInferAsync(h.server, r[0], NULL));
    wait_text(&h, metrics_text, "nv_inference_pending_request_count{model=\"m\",version=\"1\"} 0\n");
    OK(TRITONSERVER_ServerInferAsync(h.server, r[1], NULL));
    OK(TRITONSERVER_ServerInferAsync(h.server, r[2], NULL));
    REFUSED(TRITONSERVER_ServerInferAsync(h.server, r[3], NULL), UNAVAILABLE,
            "[request id: 42] Exceeds maximum queue size");
    OK(TRITONSERVER_InferenceRequestDelete(r[3]));
    wait_done(&a[1]);
    wait_done(&a[2]);
    assert_string_equal(a[1].error, "[request id: 42] Request timeout expired");
    assert_int_equal(a[1].code, TRITONSERVER_ERROR_UNAVAILABLE);
    wait_done(&a[0]);
    assert_null(a[0].error);
    wait_text(&h, metrics_text,
                "nv_inference_request_failure{model=\"m\",reason=\"REJECTED\",version=\"1\"} 3\n");
    for (int i = 0; i < 4; i++) {
        answers_fini(&a[i]);
    }
    host_end(&h);
}

static char *index_text(host *h)
{
    TRITONSERVER_Message *m;
    OK(TRITONSERVER_ServerModelIndex(h->server, 0, &m));
    return message_text(m);
}

static void test_models_come_and_go_under_explicit_control(void **state)
{
    host h;
    answers a;
    bool ready = true;
    TRITONSERVER_ServerOptions *o;
    TRITONSERVER_InferenceRequest *r;
    (void)state;

    host_init(&h);
    add_identity(&h, "a", "");
    add_identity(&h, "b", "");
    add_identity(&h, "c", "");
    add_chain(&h, "a", "b", "c");
    add_model(&h, "bad", "backend: \"identity\"\nnonsense: 1\n");
    o = host_options(&h);
    OK(TRITONSERVER_ServerOptionsSetModelControlMode(o, TRITONSERVER_MODEL_CONTROL_EXPLICIT));
    host_start(&h, o);
    wait_text(&h, index_text, "{\"name\":\"a\"}");
    REFUSED(TRITONSERVER_ServerLoadModel(h.server, "none"), INTERNAL,
            "failed to load 'none', failed to poll from model repository");
    REFUSED(TRITONSERVER_ServerLoadModel(h.server, "../x"), INVALID_ARG, "path traversal");
    REFUSED(TRITONSERVER_ServerLoadModel(h.server, "bad"), INVALID_ARG,
            "Message type \"inference.ModelConfig\" has no field named \"nonsense\".");
    OK(TRITONSERVER_ServerUnloadModel(h.server, "bad"));
    OK(TRITONSERVER_ServerLoadModel(h.server, "chain")); /* brings its steps along */
    wait_text(&h, index_text, "{\"name\":\"b\",\"version\":\"1\",\"state\":\"READY\"}");
    OK(TRITONSERVER_ServerIsReady(h.server, &ready));
    assert_true(ready);
    answers_init(&a);
    infer(&h, "chain", &a, DATA, 5, false);
    assert_null(a.error);
    answers_fini(&a);
    OK(TRITONSERVER_ServerLoadModel(h.server, "b")); /* again: replaces the running one */
    answers_init(&a);
    infer(&h, "chain", &a, DATA, 5, false);
    assert_null(a.error);
    answers_fini(&a);
    OK(TRITONSERVER_ServerUnloadModel(h.server, "b"));
    wait_text(
        &h, index_text, "{\"name\":\"b\",\"version\":\"1\",\"state\":\"UNAVAILABLE\",\"reason\":\"unloaded\"}");
    wait_text(&h, index_text, "ensemble 'chain' depends on 'b' which has no loaded version.");
    REFUSED(TRITONSERVER_InferenceRequestNew(&r, h.server, "b", -1), NOT_FOUND,
            "Request for unknown model: 'b' has no available versions");
    OK(TRITONSERVER_ServerModelIsReady(h.server, "chain", -1, &ready));
    assert_false(ready);
    REFUSED(TRITONSERVER_ServerPollModelRepository(h.server), UNAVAILABLE, "polling is disabled");

    const char *json =
        "{\"backend\":\"identity\",\"max_batch_size\":4,"
        "\"input\":[{\"name\":\"IN\",\"data_type\":\"TYPE_INT32\",\"dims\":[-1]}],"
        "\"output\":[{\"name\":\"OUT\",\"data_type\":\"TYPE_INT32\",\"dims\":[\"-1\"]}]}";
    TRITONSERVER_Parameter *p =
        TRITONSERVER_ParameterNew("config", TRITONSERVER_PARAMETER_STRING, json);
    const TRITONSERVER_Parameter *list[] = {p};
    OK(TRITONSERVER_ServerLoadModelWithParameters(h.server, "c", list, 1));
    TRITONSERVER_ParameterDelete(p);
    uint32_t flags;
    OK(TRITONSERVER_ServerModelBatchProperties(h.server, "c", -1, &flags, NULL));
    assert_int_equal(flags, TRITONSERVER_BATCH_FIRST_DIM);
    host_end(&h);
}

static void test_order_is_kept_and_priority_goes_first(void **state)
{
    enum { N = 6 };
    host h;
    answers a[N];
    int order[N], n_done = 0;
    (void)state;

    host_init(&h);
    add_identity(&h, "m",
                 "max_batch_size: 1 instance_group { count: 1 kind: KIND_CPU } dynamic_batching { "
                 "priority_levels: 2 default_priority_level: 2 } "
                 "parameters { key: \"execute_delay_ms\" value { string_value: \"100\" } }");
    host_start(&h, NULL);
    for (int i = 0; i < N; i++) { /* the first one runs; of those that wait, odd ones go first */
        answers_init(&a[i]);
        TRITONSERVER_InferenceRequest *r = new_request(&h, "m", &a[i], DATA, 5, true);
        OK(TRITONSERVER_InferenceRequestSetPriorityUInt64(r, i % 2 ? 1 : 0));
        OK(TRITONSERVER_ServerInferAsync(h.server, r, NULL));
        if (i == 0) {
            wait_text(&h, metrics_text, "nv_inference_pending_request_count{model=\"m\",version=\"1\"} 0\n");
        }
    }
    while (n_done < N) {
        for (int i = 0; i < N; i++) {
            bool seen = false;
            for (int k = 0; k < n_done; k++) {
                seen = seen || order[k] == i;
            }
            pthread_mutex_lock(&a[i].mu);
            if (!seen && a[i].final) {
                order[n_done++] = i;
            }
            pthread_mutex_unlock(&a[i].mu);
        }
        usleep(1000);
    }
    const int expected[N] = {0, 1, 3, 5, 2, 4};
    assert_memory_equal(order, expected, sizeof order);
    for (int i = 0; i < N; i++) {
        wait_done(&a[i]);
        answers_fini(&a[i]);
    }
    host_end(&h);
}

static void test_preserve_ordering_holds_back_later_batches(void **state)
{
    enum { N = 40 };
    host h;
    answers a[N];
    (void)state;

    host_init(&h);
    add_identity(&h, "m",
                 "max_batch_size: 4 instance_group { count: 3 kind: KIND_CPU } "
                 "dynamic_batching { preserve_ordering: true }");
    host_start(&h, NULL);
    for (int i = 0; i < N; i++) {
        answers_init(&a[i]);
        TRITONSERVER_InferenceRequest *r = new_request(&h, "m", &a[i], DATA, 5, true);
        OK(TRITONSERVER_ServerInferAsync(h.server, r, NULL));
    }
    wait_done(&a[N - 1]);
    for (int i = 0; i < N; i++) { /* the last one is answered after all others */
        pthread_mutex_lock(&a[i].mu);
        assert_true(a[i].final);
        pthread_mutex_unlock(&a[i].mu);
        wait_done(&a[i]);
        answers_fini(&a[i]);
    }
    host_end(&h);
}

static void test_polling_follows_the_folders(void **state)
{
    host h;
    answers a;
    char *cmd;
    (void)state;

    host_init(&h);
    add_identity(&h, "a", "");
    TRITONSERVER_ServerOptions *o = host_options(&h);
    OK(TRITONSERVER_ServerOptionsSetModelControlMode(o, TRITONSERVER_MODEL_CONTROL_POLL));
    host_start(&h, o);
    REFUSED(TRITONSERVER_ServerLoadModel(h.server, "a"), UNAVAILABLE,
            "explicit model load / unload is not allowed if polling is enabled");
    add_identity(&h, "b", "");
    add_identity(&h, "a", "max_batch_size: 2");
    OK(TRITONSERVER_ServerPollModelRepository(h.server));
    answers_init(&a);
    infer(&h, "b", &a, DATA, 5, false);
    assert_null(a.error);
    answers_fini(&a);
    answers_init(&a);
    infer(&h, "a", &a, DATA, 5, true); /* batches now */
    assert_null(a.error);
    answers_fini(&a);
    cmd = nrd_xasprintf("rm -r '%s/b'", h.dir);
    assert_int_equal(system(cmd), 0);
    free(cmd);
    OK(TRITONSERVER_ServerPollModelRepository(h.server));
    wait_text(&h, index_text, "[{\"name\":\"a\",\"version\":\"1\",\"state\":\"READY\"}]"); /* b is gone */
    host_end(&h);
}

static void on_labelled(TRITONSERVER_InferenceResponse *r, const uint32_t flags, void *userp)
{
    const char *label = NULL, *none = "";
    OK(TRITONSERVER_InferenceResponseOutputClassificationLabel(r, 0, 1, &label));
    OK(TRITONSERVER_InferenceResponseOutputClassificationLabel(r, 0, 3, &none));
    assert_string_equal(label, "dog");
    assert_null(none);
    on_response(r, flags, userp);
}

static void test_classes_have_the_names_of_the_label_file(void **state)
{
    host h;
    answers a;
    char *path;
    (void)state;

    host_init(&h);
    add_model(&h, "m",
              "backend: \"identity\" input { name: \"IN\" data_type: TYPE_INT32 dims: -1 }\n"
              "output { name: \"OUT\" data_type: TYPE_INT32 dims: -1 label_filename: \"l.txt\" }");
    path = nrd_xasprintf("%s/m/l.txt", h.dir);
    assert_null(nrd_file_write(path, "cat\ndog\ncow\n", 12));
    free(path);
    host_start(&h, NULL);
    answers_init(&a);
    TRITONSERVER_InferenceRequest *r = new_request(&h, "m", &a, DATA, 5, false);
    OK(TRITONSERVER_InferenceRequestSetResponseCallback(r, h.allocator, NULL, on_labelled, &a));
    OK(TRITONSERVER_ServerInferAsync(h.server, r, NULL));
    wait_done(&a);
    assert_null(a.error);
    answers_fini(&a);
    host_end(&h);
}

static void test_rate_limiter_lets_sharers_run_one_at_a_time(void **state)
{
    enum { N = 6 };
    host h;
    answers a[N];
    (void)state;

    host_init(&h);
    add_identity(
        &h, "m",
        "instance_group { count: 3 kind: KIND_CPU rate_limiter { resources [ { name: \"R\" "
        "count: 2 } ] } } "
        "parameters { key: \"execute_delay_ms\" value { string_value: \"50\" } }");
    TRITONSERVER_ServerOptions *o = host_options(&h);
    OK(TRITONSERVER_ServerOptionsSetRateLimiterMode(o, TRITONSERVER_RATE_LIMIT_EXEC_COUNT));
    OK(TRITONSERVER_ServerOptionsAddRateLimiterResource(o, "r", 1, -1));
    REFUSED(TRITONSERVER_ServerNew(&h.server, o), INTERNAL, "failed to load all models");
    OK(TRITONSERVER_ServerOptionsAddRateLimiterResource(o, "r", 3, 0));
    host_start(&h, o); /* three of R: one instance at a time, as each needs two */
    uint64_t start = nrd_now_ns();
    for (int i = 0; i < N; i++) {
        answers_init(&a[i]);
        TRITONSERVER_InferenceRequest *r = new_request(&h, "m", &a[i], DATA, 5, false);
        OK(TRITONSERVER_ServerInferAsync(h.server, r, NULL));
    }
    for (int i = 0; i < N; i++) {
        wait_done(&a[i]);
        assert_null(a[i].error);
        answers_fini(&a[i]);
    }
    assert_true(nrd_now_ns() - start >= N * 50 * 1000000ull);
    host_end(&h);
}

static void test_server_does_not_start_when_a_model_is_broken(void **state)
{
    host h;
    (void)state;

    host_init(&h);
    add_identity(&h, "good", "");
    add_identity(&h, "bad", "dynamic_batching { preferred_batch_size: 4 }");
    TRITONSERVER_ServerOptions *o = host_options(&h);
    REFUSED(TRITONSERVER_ServerNew(&h.server, o), INTERNAL, "failed to load all models");
    OK(TRITONSERVER_ServerOptionsSetExitOnError(o, false));
    OK(TRITONSERVER_ServerNew(&h.server, o));
    bool ready = false;
    OK(TRITONSERVER_ServerIsReady(h.server, &ready));
    assert_true(ready); /* a configuration that is wrong counts as no model, as in Triton */
    OK(TRITONSERVER_ServerModelIsReady(h.server, "good", -1, &ready));
    assert_true(ready);
    OK(TRITONSERVER_ServerOptionsDelete(o));
    host_end(&h);
}

static void test_stop_waits_for_requests_in_flight(void **state)
{
    host h;
    answers a;
    (void)state;

    host_init(&h);
    add_identity(&h, "slow",
                 "parameters { key: \"execute_delay_ms\" value { string_value: \"300\" } }");
    host_start(&h, NULL);
    answers_init(&a);
    TRITONSERVER_InferenceRequest *r = new_request(&h, "slow", &a, DATA, 5, false);
    OK(TRITONSERVER_ServerInferAsync(h.server, r, NULL));
    OK(TRITONSERVER_ServerStop(h.server));
    assert_true(a.final && a.released);
    assert_null(a.error);
    REFUSED(TRITONSERVER_ServerModelIsReady(h.server, "slow", -1, &a.final), UNAVAILABLE,
            "Server not ready");
    answers_fini(&a);
    host_end(&h);
}

typedef struct storm {
    host *h;
    unsigned seed;
    int n_ok, n_other;
} storm;

static void *run_storm(void *arg)
{
    storm *s = arg;
    for (int i = 0; i < 200; i++) {
        answers a;
        answers_init(&a);
        TRITONSERVER_InferenceRequest *r;
        const char *model = rand_r(&s->seed) % 2 ? "chain" : "b";
        TRITONSERVER_Error *err = TRITONSERVER_InferenceRequestNew(&r, s->h->server, model, -1);
        if (err) { /* being reloaded */
            TRITONSERVER_ErrorDelete(err);
            s->n_other++;
            answers_fini(&a);
            continue;
        }
        OK(TRITONSERVER_InferenceRequestDelete(r));
        r = NULL;
        err = TRITONSERVER_InferenceRequestNew(&r, s->h->server, model, -1);
        if (!err) {
            OK(TRITONSERVER_InferenceRequestAddInput(r, "IN", TRITONSERVER_TYPE_INT32,
                                                     (int64_t[]){5}, 1));
            OK(TRITONSERVER_InferenceRequestAppendInputData(r, "IN", DATA, sizeof DATA,
                                                            TRITONSERVER_MEMORY_CPU, 0));
            OK(TRITONSERVER_InferenceRequestSetReleaseCallback(r, on_release, &a));
            OK(TRITONSERVER_InferenceRequestSetResponseCallback(r, s->h->allocator, NULL,
                                                                on_response, &a));
            err = TRITONSERVER_ServerInferAsync(s->h->server, r, NULL);
            if (err) {
                OK(TRITONSERVER_InferenceRequestDelete(r));
            }
        }
        if (err) {
            TRITONSERVER_ErrorDelete(err);
            s->n_other++;
        } else {
            wait_done(&a);
            s->n_ok += a.error == NULL;
            s->n_other += a.error != NULL;
        }
        answers_fini(&a);
    }
    return NULL;
}

static void test_requests_survive_models_being_replaced(void **state)
{
    enum { N = 3 };
    host h;
    storm s[N];
    pthread_t t[N];
    int total = 0;
    (void)state;

    host_init(&h);
    add_identity(&h, "a", "");
    add_identity(&h, "b",
                 "model_transaction_policy { decoupled: true } instance_group { count: 2 }");
    add_identity(&h, "c", "");
    add_chain(&h, "a", "b", "c");
    TRITONSERVER_ServerOptions *o = host_options(&h);
    OK(TRITONSERVER_ServerOptionsSetModelControlMode(o, TRITONSERVER_MODEL_CONTROL_EXPLICIT));
    OK(TRITONSERVER_ServerOptionsSetStartupModel(o, "chain"));
    host_start(&h, o);
    for (int i = 0; i < N; i++) {
        s[i] = (storm){.h = &h, .seed = (unsigned)i};
        assert_int_equal(pthread_create(&t[i], NULL, run_storm, &s[i]), 0);
    }
    for (int i = 0; i < 10; i++) {
        OK(TRITONSERVER_ServerLoadModel(h.server, i % 2 ? "a" : "b"));
    }
    OK(TRITONSERVER_ServerUnloadModelAndDependents(h.server, "chain"));
    OK(TRITONSERVER_ServerLoadModel(h.server, "chain"));
    for (int i = 0; i < N; i++) {
        pthread_join(t[i], NULL);
        assert_int_equal(s[i].n_ok + s[i].n_other, 200);
        total += s[i].n_ok;
    }
    assert_true(total > 0);
    host_end(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_model_answers_with_its_input),
        cmocka_unit_test(test_bad_requests_are_refused_in_known_words),
        cmocka_unit_test(test_ensemble_passes_tensors_through_its_steps),
        cmocka_unit_test(test_decoupled_step_streams_through_the_ensemble),
        cmocka_unit_test(test_error_of_a_step_names_the_ensemble),
        cmocka_unit_test(test_cancel_reaches_running_and_queued_requests),
        cmocka_unit_test(test_dynamic_batcher_puts_requests_together),
        cmocka_unit_test(test_queue_limit_and_queue_timeout_reject),
        cmocka_unit_test(test_models_come_and_go_under_explicit_control),
        cmocka_unit_test(test_order_is_kept_and_priority_goes_first),
        cmocka_unit_test(test_preserve_ordering_holds_back_later_batches),
        cmocka_unit_test(test_polling_follows_the_folders),
        cmocka_unit_test(test_classes_have_the_names_of_the_label_file),
        cmocka_unit_test(test_rate_limiter_lets_sharers_run_one_at_a_time),
        cmocka_unit_test(test_server_does_not_start_when_a_model_is_broken),
        cmocka_unit_test(test_stop_waits_for_requests_in_flight),
        cmocka_unit_test(test_requests_survive_models_being_replaced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
