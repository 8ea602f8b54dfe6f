/* SPDX-License-Identifier: Apache-2.0
 * Batches over a server without a port whose endpoint is a function here: states, cancellation, answers that say "not now",
 * room that ends, and what a second server finds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/mem.h"
#include "frontends/openai/batches.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char folder[] = "/tmp/test-batches-XXXXXX";
static nrd_options options;
static nrd_keys *keys;
static nrd_http_server *server;
static nrd_file_store *files;
static nrd_batches *batches;
static atomic_int n_asked, n_busy, most_busy, busy_answers;
static atomic_bool parks;
static nrd_http_request *parked[64];
static atomic_int n_parked;

/* ---- the endpoint ---- */

static void reply(nrd_http_request *req)
{
    static const char ok[] = "{\"a\":\n1,\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":3}}";
    static const char bad[] = "{\"error\":{\"message\":\"bad\"}}";
    const bool is_bad = req->body && memmem(req->body, req->body_n, "\"bad\"", 5);
    atomic_fetch_sub(&n_busy, 1);
    nrd_http_reply(req, is_bad ? 400 : 200, "application/json", NULL, is_bad ? bad : ok, is_bad ? sizeof bad - 1 : sizeof ok - 1);
}

static void answer(void *user, nrd_http_request *req)
{
    (void)user;
    atomic_fetch_add(&n_asked, 1);
    const int busy = atomic_fetch_add(&n_busy, 1) + 1;
    int most = atomic_load(&most_busy);
    while (busy > most && !atomic_compare_exchange_weak(&most_busy, &most, busy)) {
    }
    if (atomic_fetch_sub(&busy_answers, 1) > 0) {
        atomic_fetch_sub(&n_busy, 1);
        nrd_http_reply(req, 503, NULL, NULL, "{}", 2);
    } else if (atomic_load(&parks)) {
        nrd_http_request_ref(req);
        parked[atomic_fetch_add(&n_parked, 1)] = req;
    } else {
        reply(req);
    }
}

static void unused(nrd_http_request *req, void *user)
{
    (void)req;
    (void)user;
}

/* ---- a server ---- */

static void begin(uint64_t max_bytes)
{
    const nrd_file_limits limits = {.dir = folder, .max_files = 20, .max_bytes = max_bytes, .max_file_bytes = 16 << 20};
    const nrd_http_config cfg = {.name = "test", .n_threads = 2, .max_body_bytes = 1, .handle = unused, .no_port = true};
    assert_null(nrd_keys_new(&keys, &options));
    assert_null(nrd_http_server_start(&server, &cfg));
    assert_null(nrd_file_store_new(&files, &limits));
    assert_null(nrd_batches_new(&batches, files, keys, 4));
    const nrd_batch_asks asks = {.server = server, .handle = {answer, answer, answer, answer}};
    assert_null(nrd_batches_start(batches, &asks));
}

static void finish(void)
{
    nrd_batches_drain(batches);
    nrd_batches_stop(batches);
    for (int i = atomic_exchange(&n_parked, 0); i > 0; i--) {
        nrd_http_request_unref(parked[i - 1]);
    }
    nrd_http_server_free(server);
    nrd_batches_free(batches);
    nrd_file_store_free(files);
    nrd_keys_free(keys);
}

static int setup(void **state)
{
    (void)state;
    nrd_options_init(&options);
    snprintf(folder, sizeof folder, "/tmp/test-batches-XXXXXX");
    atomic_store(&n_asked, 0);
    atomic_store(&n_busy, 0);
    atomic_store(&most_busy, 0);
    atomic_store(&busy_answers, 0);
    atomic_store(&parks, false);
    return mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    nrd_dir_remove(folder);
    nrd_options_fini(&options);
    return 0;
}

/* n lines of a file, with this method. */
static nrd_file_info upload(int n, const char *prompt, const char *method)
{
    nrd_file_draft *d = NULL;
    nrd_file_info f;
    nrd_str text = {0};
    for (int i = 0; i < n; i++) {
        nrd_str_printf(&text, "{\"custom_id\":\"%d\",\"method\":\"%s\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"%s\"}}\n", i, method, prompt);
    }
    assert_null(nrd_file_draft_new(&d, files, true));
    assert_null(nrd_file_draft_write(d, nrd_str_cstr(&text), text.len));
    assert_null(nrd_file_draft_commit(d, "-", "in", "batch", 0, &f));
    nrd_str_fini(&text);
    return f;
}

static nrd_error *create_of(const nrd_file_info *f, char id[NRD_FILE_ID])
{
    nrd_str body = {0}, out = {0};
    nrd_json_doc *doc = NULL;
    nrd_str_printf(&body, "{\"input_file_id\":\"%s\",\"endpoint\":\"/v1/completions\",\"completion_window\":\"1h\"}", f->id);
    assert_null(nrd_json_parse(&doc, body.data, body.len, NULL));
    nrd_error *err = nrd_batches_create(batches, "-", nrd_json_root(doc), &out);
    nrd_json_doc_free(doc);
    if (!err) {
        assert_null(nrd_json_parse(&doc, out.data, out.len, NULL));
        snprintf(id, NRD_FILE_ID, "%s", nrd_json_get_str(nrd_json_root(doc), "id", ""));
        nrd_json_doc_free(doc);
    }
    nrd_str_fini(&body);
    nrd_str_fini(&out);
    return err;
}

static void create(int n, const char *prompt, char id[NRD_FILE_ID])
{
    const nrd_file_info f = upload(n, prompt, "POST");
    assert_null(create_of(&f, id));
}

static nrd_json_doc *show(const char *id)
{
    nrd_str out = {0};
    nrd_json_doc *doc = NULL;
    assert_null(nrd_batches_show(batches, "-", id, &out));
    assert_null(nrd_json_parse(&doc, out.data, out.len, NULL));
    nrd_str_fini(&out);
    return doc;
}

/* The batch once it has this state. The caller frees it. */
static nrd_json_doc *wait_for(const char *id, const char *status)
{
    for (int i = 0; i < 20000; i++) {
        nrd_json_doc *doc = show(id);
        if (!strcmp(nrd_json_get_str(nrd_json_root(doc), "status", ""), status)) {
            return doc;
        }
        nrd_json_doc_free(doc);
        usleep(1000);
    }
    fail_msg("%s is not %s", id, status);
    return NULL;
}

static void wait_int(atomic_int *v, int least)
{
    for (int i = 0; i < 20000 && atomic_load(v) < least; i++) {
        usleep(1000);
    }
    assert_true(atomic_load(v) >= least);
}

static int count(const nrd_json_doc *doc, const char *name)
{
    return (int)nrd_json_get_int(nrd_json_get(nrd_json_root(doc), "request_counts"), name, -1);
}

/* Lines of a file that the batch names, all of which have this text. */
static int lines_of(const nrd_json_doc *doc, const char *which, const char *text)
{
    const char *id = nrd_json_get_str(nrd_json_root(doc), which, NULL);
    nrd_file_info f;
    nrd_batch_text t;
    int n = 0, fd;
    bool more = true;
    if (!id) {
        return 0;
    }
    assert_null(nrd_file_store_open(files, "-", id, &fd, &f));
    nrd_batch_reader r = {.fd = fd};
    for (;;) {
        assert_null(nrd_batch_next(&r, &t, NULL, &more));
        if (!more) {
            break;
        }
        assert_non_null(memmem(t.text, t.n, text, strlen(text)));
        n++;
    }
    nrd_batch_reader_fini(&r);
    close(fd);
    return n;
}

/* ---- tests ---- */

static void test_every_line_is_answered_and_few_at_a_time(void **state)
{
    char id[NRD_FILE_ID], failing[NRD_FILE_ID];
    (void)state;
    begin(1 << 20);
    create(200, "x", id);
    create(5, "bad", failing);
    nrd_json_doc *doc = wait_for(id, "completed");
    assert_int_equal(count(doc, "completed"), 200);
    assert_int_equal(lines_of(doc, "output_file_id", "\"status_code\":200"), 200);
    assert_int_equal(lines_of(doc, "error_file_id", ""), 0);
    assert_int_equal(nrd_json_get_int(nrd_json_get(nrd_json_root(doc), "usage"), "output_tokens", 0), 600);
    nrd_json_doc_free(doc);
    doc = wait_for(failing, "completed");
    assert_int_equal(count(doc, "failed"), 5);
    assert_int_equal(lines_of(doc, "error_file_id", "\"status_code\":400"), 5);
    nrd_json_doc_free(doc);
    assert_in_range(atomic_load(&most_busy), 1, 4);
    finish();
}

static void test_not_now_is_asked_again(void **state)
{
    char id[NRD_FILE_ID];
    (void)state;
    begin(1 << 20);
    atomic_store(&busy_answers, 10);
    create(6, "x", id);
    nrd_json_doc *doc = wait_for(id, "completed");
    assert_int_equal(count(doc, "completed"), 6);
    assert_int_equal(atomic_load(&n_asked), 16);
    nrd_json_doc_free(doc);
    finish();
}

static void test_cancelling_ends_what_is_under_way(void **state)
{
    char id[NRD_FILE_ID];
    nrd_str out = {0};
    (void)state;
    begin(1 << 20);
    atomic_store(&parks, true);
    create(50, "x", id);
    wait_int(&n_parked, 4);
    assert_null(nrd_batches_cancel(batches, "-", id, &out));
    assert_non_null(strstr(out.data, "\"status\":\"cancelling\""));
    nrd_json_doc *doc = wait_for(id, "cancelled");
    assert_int_equal(lines_of(doc, "error_file_id", "batch_cancelled"), 50);
    nrd_json_doc_free(doc);
    nrd_str_clear(&out);
    nrd_error *err = nrd_batches_cancel(batches, "-", id, &out);
    assert_int_equal(nrd_error_get_code(err), NRD_ERR_INVALID_ARG);
    nrd_error_free(err);
    err = nrd_batches_cancel(batches, "another", id, &out);
    assert_int_equal(nrd_error_get_code(err), NRD_ERR_NOT_FOUND);
    nrd_error_free(err);
    nrd_str_fini(&out);
    finish();
}

static void test_answers_without_room_end_a_batch(void **state)
{
    char id[NRD_FILE_ID];
    (void)state;
    begin(12000);
    create(60, "x", id);
    nrd_json_doc *doc = wait_for(id, "failed");
    const nrd_json *fault = nrd_json_at(nrd_json_get(nrd_json_get(nrd_json_root(doc), "errors"), "data"), 0);
    assert_string_equal(nrd_json_get_str(fault, "code", ""), NRD_FILE_NO_ROOM);
    assert_int_equal(lines_of(doc, "output_file_id", "\"status_code\":200"), count(doc, "completed"));
    assert_in_range(count(doc, "completed"), 1, 59);
    nrd_json_doc_free(doc);
    finish();
}

static void test_the_next_server_goes_on(void **state)
{
    char id[NRD_FILE_ID], ended[NRD_FILE_ID];
    (void)state;
    begin(1 << 20);
    create(3, "x", ended);
    nrd_json_doc_free(wait_for(ended, "completed"));
    atomic_store(&n_asked, 0);
    create(40, "x", id);
    wait_int(&n_asked, 8);
    atomic_store(&parks, true);
    finish();
    nrd_str out = {0};

    atomic_store(&parks, false);
    begin(1 << 20);
    nrd_json_doc *doc = wait_for(id, "completed");
    assert_int_equal(count(doc, "completed"), 40);
    assert_int_equal(lines_of(doc, "output_file_id", "\"status_code\":200"), 40);
    nrd_json_doc_free(doc);
    doc = wait_for(ended, "completed");
    assert_int_equal(lines_of(doc, "output_file_id", "\"status_code\":200"), 3);
    nrd_json_doc_free(doc);
    assert_null(nrd_batches_list(batches, "-", "", 1, &out));
    assert_non_null(strstr(out.data, "\"has_more\":true"));
    nrd_str_fini(&out);
    finish();
}

/* Two threads ask and cancel while batches run: for the thread sanitizer. */
static void *ask_much(void *arg)
{
    for (int i = 0; i < 200; i++) {
        nrd_str out = {0};
        nrd_error_free(nrd_batches_list(batches, "-", "", 100, &out));
        nrd_str_clear(&out);
        nrd_error_free(i % 50 == 49 ? nrd_batches_cancel(batches, "-", arg, &out) : nrd_batches_show(batches, "-", arg, &out));
        nrd_str_fini(&out);
        usleep(200);
    }
    return NULL;
}

static void test_many_may_ask_meanwhile(void **state)
{
    char id[6][NRD_FILE_ID];
    pthread_t t[2];
    (void)state;
    begin(1 << 20);
    for (int i = 0; i < 6; i++) {
        create(100, "x", id[i]);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&t[i], NULL, ask_much, id[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(t[i], NULL);
    }
    for (int i = 2; i < 6; i++) {
        nrd_json_doc_free(wait_for(id[i], "completed"));
    }
    finish();
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

/* limits: BATCH_LINES, BATCH_ERRORS */
static void test_a_batch_of_too_many_lines_fails_and_so_many_errors_are_told(void **state)
{
    char id[NRD_FILE_ID];
    (void)state;
    begin(1 << 25);
    create(NRD_LIMIT_BATCH_LINES + 1, "", id);
    nrd_json_doc *doc = wait_for(id, "failed");
    const nrd_json *told = nrd_json_get(nrd_json_get(nrd_json_root(doc), "errors"), "data");
    assert_int_equal(nrd_json_len(told), 1);
    assert_string_equal(nrd_json_get_str(&told->child[0], "code", ""), "too_many_requests");
    nrd_json_doc_free(doc);
    assert_int_equal(n_asked, 0);
    const nrd_file_info f = upload(NRD_LIMIT_BATCH_ERRORS + 50, "", "GET");
    assert_null(create_of(&f, id));
    doc = wait_for(id, "failed");
    told = nrd_json_get(nrd_json_get(nrd_json_root(doc), "errors"), "data");
    assert_int_equal(nrd_json_len(told), NRD_LIMIT_BATCH_ERRORS);
    nrd_json_doc_free(doc);
    finish();
}

/* limits: BATCHES */
static void test_so_many_batches_are_kept_and_none_under_way_is_forgotten(void **state)
{
    static char ids[NRD_LIMIT_BATCHES + 1][NRD_FILE_ID];
    nrd_str out = {0};
    (void)state;
    begin(1 << 25);
    const nrd_file_info f = upload(1, "", "POST"), wrong = upload(1, "", "GET");
    assert_null(create_of(&wrong, ids[0]));
    nrd_json_doc_free(wait_for(ids[0], "failed"));
    atomic_store(&parks, true); /* the others do not end */
    for (int i = 1; i <= NRD_LIMIT_BATCHES; i++) {
        assert_null(create_of(&f, ids[i]));
    }
    nrd_error *err = nrd_batches_show(batches, "-", ids[0], &out); /* the one that had ended made room */
    assert_non_null(err);
    nrd_error_free(err);
    err = create_of(&f, ids[0]);
    assert_non_null(err);
    assert_int_equal(nrd_error_get_code(err), NRD_ERR_INVALID_ARG);
    assert_non_null(strstr(nrd_error_message(err), "1024 batches are under way"));
    nrd_error_free(err);
    nrd_json_doc_free(show(ids[1]));
    nrd_str_fini(&out);
    finish();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_every_line_is_answered_and_few_at_a_time),
        T(test_not_now_is_asked_again),
        T(test_cancelling_ends_what_is_under_way),
        T(test_answers_without_room_end_a_batch),
        T(test_the_next_server_goes_on),
        T(test_many_may_ask_meanwhile),
        T(test_a_batch_of_too_many_lines_fails_and_so_many_errors_are_told),
        T(test_so_many_batches_are_kept_and_none_under_way_is_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
