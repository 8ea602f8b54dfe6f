/* SPDX-License-Identifier: Apache-2.0
 * Adapters through the executor: mixed batches give each sequence what it gets alone, bit for bit; blocks of
 * one adapter are not another's; small caches under load; what is refused. */
#include "exec_checks.h"
#include "tiny_engine.h"

#include "base/dtype.h"
#include "engine/lora_internal.h"
#include "formats/npy.h"

enum { LAYERS = 3, MODULES = 7, ROWS = LAYERS * MODULES, MAX_RANK = 12, WIDTH = MAX_RANK * (64 + 128), N_NEW = 16 };
enum { N_ADAPTERS = 12, PROMPT = 40 };

static tiny_engine tiny;

typedef struct rows {
    uint16_t weights[ROWS * WIDTH]; /* f16 */
    int32_t config[ROWS * 3];
} rows;

/* An adapter of its own for every id: ranks from 1 to MAX_RANK, some modules left out as zeros of rank 1. */
static void make_rows(rows *r, uint64_t id)
{
    static const int32_t dims[MODULES + 1][2] = {{0, 0}, {64, 64}, {64, 32}, {64, 32}, {64, 64}, {64, 96}, {96, 64}, {64, 96}};
    uint64_t x = id * 0x9E3779B97F4A7C15u + 1;
    *r = (rows){{0}, {0}};
    for (int i = 0; i < ROWS; i++) {
        int32_t module = 1 + i % MODULES, rank = 1 + (int32_t)((id + (uint64_t)i) % MAX_RANK);
        int32_t n = rank * (dims[module][0] + dims[module][1]);
        r->config[i * 3] = module;
        r->config[i * 3 + 1] = i / MODULES;
        r->config[i * 3 + 2] = rank;
        for (int32_t k = 0; k < n; k++) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            r->weights[(size_t)i * WIDTH + (size_t)k] = nrd_f32_to_f16(((float)(x >> 40) * 0x1p-24f - 0.5f) * 0.5f);
        }
    }
}

static nrd_exec_config config(void)
{
    nrd_exec_config c;
    nrd_exec_config_init(&c);
    c.device = "cpu";
    c.n_threads = 2;
    c.deterministic = true;
    c.enable_kv_cache_reuse = true;
    return c;
}

static nrd_exec *open_exec(const nrd_exec_config *c)
{
    nrd_exec *x = NULL;
    must(nrd_exec_open(&x, tiny.dir, c));
    return x;
}

static int32_t prompt[PROMPT];

static nrd_exec_request ask(uint64_t id, const rows *r)
{
    nrd_exec_request q;
    nrd_exec_request_init(&q);
    q.input_ids = prompt;
    q.n_input_ids = PROMPT;
    q.max_new_tokens = N_NEW;
    q.exclude_input_in_output = true;
    q.return_log_probs = true;
    q.lora_task_id = id;
    if (r) {
        q.lora_weights = r->weights;
        q.lora_config = r->config;
        q.lora_rows = ROWS;
        q.lora_width = WIDTH;
    }
    return q;
}

typedef struct answer {
    int32_t ids[N_NEW];
    float log_probs[N_NEW];
    int32_t n, n_reused;
} answer;

static void collect(nrd_exec *x, uint64_t id, answer *out)
{
    nrd_exec_response *r = NULL;
    must(nrd_exec_await_id(x, id, &r, 60 * 1000 * 1000));
    assert_non_null(r);
    must(r->error);
    assert_true(r->is_final);
    *out = (answer){.n = r->beams[0].n_ids, .n_reused = r->perf.kv_reused_blocks};
    assert_int_equal(out->n, N_NEW);
    memcpy(out->ids, r->beams[0].ids, sizeof out->ids);
    memcpy(out->log_probs, r->beams[0].log_probs, sizeof out->log_probs);
    nrd_exec_response_free(r);
}

static void run(nrd_exec *x, const nrd_exec_request *q, answer *out)
{
    uint64_t id;
    must(nrd_exec_enqueue(x, q, &id));
    collect(x, id, out);
}

static answer alone[N_ADAPTERS]; /* [0]: no adapter */

/* Each in an executor of its own. */
static int make_alone(void **state)
{
    (void)state;
    tiny_build(&tiny, tiny_llama, 8);
    for (int i = 0; i < PROMPT; i++) {
        prompt[i] = 3 + i * 7 % 90;
    }
    for (uint64_t a = 0; a < N_ADAPTERS; a++) {
        nrd_exec_config c = config();
        nrd_exec *x = open_exec(&c);
        rows *r = nrd_xmalloc(sizeof *r);
        make_rows(r, a);
        nrd_exec_request q = ask(a, a ? r : NULL);
        run(x, &q, &alone[a]);
        free(r);
        nrd_exec_close(x);
        for (uint64_t b = 0; b < a; b++) { /* they differ */
            assert_memory_not_equal(&alone[a], &alone[b], sizeof alone[a]);
        }
    }
    return 0;
}

static int remove_engine(void **state)
{
    (void)state;
    tiny_remove(&tiny);
    return 0;
}

static void assert_same(const answer *got, const answer *want)
{
    assert_memory_equal(got->ids, want->ids, sizeof got->ids);
    assert_memory_equal(got->log_probs, want->log_probs, sizeof got->log_probs);
}

static void no_pins(nrd_exec *x)
{
    nrd_exec_lora_stats s = {.size = sizeof s};
    for (int i = 0; i < 5000; i++) { /* a request is freed a moment after its answer */
        nrd_exec_lora_get_stats(x, &s);
        if (s.n_pinned == 0) {
            return;
        }
        usleep(1000);
    }
    fail_msg("%d uses of adapters are left", s.n_pinned);
}

static void bring(nrd_exec *x, uint64_t id)
{
    rows *r = nrd_xmalloc(sizeof *r);
    answer got;
    make_rows(r, id);
    nrd_exec_request q = ask(id, r);
    run(x, &q, &got);
    assert_same(&got, &alone[id]);
    free(r);
}

static void test_adapters_and_none_in_one_batch_get_what_each_gets_alone(void **state)
{
    nrd_exec_config c = config();
    nrd_exec *x = open_exec(&c);
    uint64_t ids[3 * N_ADAPTERS];
    (void)state;
    for (uint64_t a = 1; a < N_ADAPTERS; a++) { /* the first request brings the weights */
        bring(x, a);
    }
    for (uint64_t i = 0; i < 3 * N_ADAPTERS; i++) { /* then the id alone */
        nrd_exec_request q = ask(i % N_ADAPTERS, NULL);
        must(nrd_exec_enqueue(x, &q, &ids[i]));
    }
    for (uint64_t i = 0; i < 3 * N_ADAPTERS; i++) {
        answer got;
        collect(x, ids[i], &got);
        assert_same(&got, &alone[i % N_ADAPTERS]);
    }
    no_pins(x);
    nrd_exec_close(x);
}

static void test_blocks_are_reused_by_the_same_adapter_only(void **state)
{
    nrd_exec_config c = config();
    nrd_exec *x = open_exec(&c);
    rows *r = nrd_xmalloc(sizeof *r);
    answer got;
    (void)state;
    make_rows(r, 1);
    nrd_exec_request one = ask(1, r), none = ask(0, NULL);
    run(x, &none, &got);
    assert_int_equal(got.n_reused, 0);
    run(x, &one, &got);
    assert_int_equal(got.n_reused, 0);
    assert_same(&got, &alone[1]);
    run(x, &one, &got);
    assert_true(got.n_reused > 0);
    assert_same(&got, &alone[1]);
    one.lora_task_id = 77; /* another id, the same content */
    run(x, &one, &got);
    assert_true(got.n_reused > 0);
    make_rows(r, 2); /* the same id, other content */
    run(x, &one, &got);
    assert_int_equal(got.n_reused, 0);
    assert_same(&got, &alone[2]);
    run(x, &none, &got);
    assert_true(got.n_reused > 0);
    assert_same(&got, &alone[0]);
    free(r);
    nrd_exec_close(x);
}

/* ---- folders, and a cache that holds a few ---- */

static char folders[128];

static void write_folder(const char *parent, uint64_t id)
{
    char path[160];
    const int64_t w[3] = {1, ROWS, WIDTH}, k[3] = {1, ROWS, 3};
    rows *r = nrd_xmalloc(sizeof *r);
    make_rows(r, id);
    snprintf(path, sizeof path, "%s/%llu", parent, (unsigned long long)id);
    must(nrd_mkdirs(path));
    snprintf(path, sizeof path, "%s/%llu/model.lora_weights.npy", parent, (unsigned long long)id);
    must(nrd_npy_write(path, NRD_NPY_F16, w, 3, r->weights));
    snprintf(path, sizeof path, "%s/%llu/model.lora_config.npy", parent, (unsigned long long)id);
    must(nrd_npy_write(path, NRD_NPY_I32, k, 3, r->config));
    free(r);
}

static void make_folders(void)
{
    snprintf(folders, sizeof folders, "%s/adapters", tiny.dir);
    for (uint64_t a = 1; a < N_ADAPTERS; a++) {
        write_folder(folders, a);
    }
}

static void test_prefetched_folders_come_back_through_a_small_cache_under_load(void **state)
{
    enum { N = 150, AT_ONCE = 6 };
    nrd_exec_config c = config();
    nrd_exec_lora_stats s = {.size = sizeof s};
    uint64_t ids[N];
    (void)state;
    make_folders();
    c.lora_prefetch_dir = folders;
    nrd_exec *x = open_exec(&c);
    nrd_exec_lora_get_stats(x, &s);
    assert_int_equal(s.n_host, N_ADAPTERS - 1);
    nrd_exec_close(x);
    c.lora_cache_host_memory_bytes = s.host_bytes * 8 / (N_ADAPTERS - 1); /* about eight of eleven */
    x = open_exec(&c);
    nrd_exec_lora_get_stats(x, &s);
    assert_true(s.n_host > 2 && s.n_host < N_ADAPTERS - 1 && s.n_evicted_host > 0);
    for (int i = 0; i < N + AT_ONCE; i++) {
        if (i >= AT_ONCE) {
            answer got;
            collect(x, ids[i - AT_ONCE], &got);
            assert_same(&got, &alone[(i - AT_ONCE) * 5 % N_ADAPTERS]);
        }
        if (i < N) {
            nrd_exec_request q = ask((uint64_t)(i * 5 % N_ADAPTERS), NULL);
            nrd_error *err;
            while ((err = nrd_exec_enqueue(x, &q, &ids[i])) != NULL && nrd_exec_error_code(err) == 4) {
                nrd_exec_error_free(err); /* all of the cache is in use for a moment */
                usleep(1000);
            }
            must(err);
        }
    }
    nrd_exec_lora_get_stats(x, &s);
    assert_true(s.n_evicted_host > 20);
    no_pins(x);
    must(nrd_exec_lora_unload(x, 3));
    nrd_exec_request q = ask(3, NULL);
    must_fail(nrd_exec_enqueue(x, &q, &ids[0]), 2, "LoRA task 3 not found in cache. Please send LoRA weights with request");
    must_fail(nrd_exec_lora_unload(x, 3), 2, "LoRA task 3 not found");
    nrd_exec_close(x);
    c.lora_prefetch_dir = "/nowhere/at/all";
    must_fail(nrd_exec_open(&x, tiny.dir, &c), 2, "lora_prefetch_dir");
}

static void test_cancelled_and_cut_requests_let_their_adapters_go(void **state)
{
    nrd_exec_config c = config();
    nrd_exec *x = open_exec(&c);
    uint64_t ids[8];
    (void)state;
    bring(x, 1);
    for (int i = 0; i < 8; i++) {
        nrd_exec_request q = ask(1, NULL);
        q.max_new_tokens = 100;
        must(nrd_exec_enqueue(x, &q, &ids[i]));
    }
    for (int i = 0; i < 8; i++) {
        nrd_exec_response *r = NULL;
        nrd_exec_cancel(x, ids[i]);
        must(nrd_exec_await_id(x, ids[i], &r, 60 * 1000 * 1000));
        assert_true(r->is_final);
        nrd_exec_response_free(r);
    }
    no_pins(x);
    nrd_exec_request q = ask(1, NULL);
    must(nrd_exec_enqueue(x, &q, &ids[0]));
    must(nrd_exec_shutdown(x, 0));
    no_pins(x);
    nrd_exec_close(x);
}

/* ---- a device with room for two ---- */

static nrd_exec *open_with_two_slots(void)
{
    nrd_exec_config c = config();
    c.enable_lora = true;
    nrd_exec *x = open_exec(&c);
    x->adapters->n_slots = 2; /* nobody looks at it before the first request */
    for (uint64_t a = 1; a < N_ADAPTERS; a++) {
        bring(x, a);
    }
    return x;
}

static void test_requests_wait_for_room_and_all_of_them_run(void **state)
{
    enum { N = 120 };
    nrd_exec *x = open_with_two_slots();
    nrd_exec_lora_stats s = {.size = sizeof s};
    uint64_t ids[N];
    (void)state;
    for (int round = 0; round < 2; round++) {
        /* mixed, then most of them of one adapter, which goes past those that wait, but not for ever */
        for (int i = 0; i < N; i++) {
            nrd_exec_request q = ask(round == 0 ? (uint64_t)(i % N_ADAPTERS) : i % 10 == 9 ? 5 : i % 10 == 8 ? 6 : 1, NULL);
            must(nrd_exec_enqueue(x, &q, &ids[i]));
        }
        for (int i = 0; i < N; i++) {
            answer got;
            collect(x, ids[i], &got);
            assert_same(&got, &alone[round == 0 ? i % N_ADAPTERS : i % 10 == 9 ? 5 : i % 10 == 8 ? 6 : 1]);
        }
    }
    no_pins(x);
    nrd_exec_lora_get_stats(x, &s);
    assert_true(s.n_evicted_device > 0);
    nrd_exec_close(x);
}

static void test_requests_that_wait_for_room_can_be_cancelled_and_cut(void **state)
{
    enum { N = 33 };
    uint64_t ids[N];
    (void)state;
    for (int how = 0; how < 3; how++) { /* cancelled; cut by a shutdown; ended by one that waits */
        nrd_exec *x = open_with_two_slots();
        int n_finals = 0;
        for (int i = 0; i < N; i++) {
            nrd_exec_request q = ask((uint64_t)(1 + i % (N_ADAPTERS - 1)), NULL);
            must(nrd_exec_enqueue(x, &q, &ids[i]));
        }
        for (int i = N - 1; i >= 0 && how == 0; i--) {
            nrd_exec_cancel(x, ids[i]);
        }
        if (how > 0) {
            must(nrd_exec_shutdown(x, how == 1 ? 0 : -1));
        }
        for (int i = 0; i < N; i++) {
            nrd_exec_response *r = NULL;
            must(nrd_exec_await_id(x, ids[i], &r, 60 * 1000 * 1000));
            assert_non_null(r);
            n_finals += r->is_final && !r->error;
            nrd_exec_response_free(r);
        }
        assert_int_equal(n_finals, N);
        no_pins(x);
        nrd_exec_close(x);
    }
}

static void test_bad_adapters_are_refused_by_field_and_limit(void **state)
{
    nrd_exec_config c = config();
    uint64_t id;
    rows *r = nrd_xmalloc(sizeof *r);
    (void)state;
    c.lora_cache_max_adapter_size = 12;
    nrd_exec *x = open_exec(&c);
    make_rows(r, 1);
    nrd_exec_request q = ask(0, r);
    must_fail(nrd_exec_enqueue(x, &q, &id), 3, "need a lora_task_id above 0");
    q = ask(1, r);
    q.lora_config = NULL;
    must_fail(nrd_exec_enqueue(x, &q, &id), 3, "lora_weights is given without lora_config");
    q = ask(1, r);
    q.lora_weights = NULL;
    must_fail(nrd_exec_enqueue(x, &q, &id), 3, "lora_config is given without lora_weights");
    q = ask(1, r);
    q.lora_weights_dtype = NRD_DTYPE_I8;
    must_fail(nrd_exec_enqueue(x, &q, &id), 3, "lora_weights: type int8, expected FP16, BF16 or FP32");
    q = ask(1, r);
    q.lora_rows = 1000;
    must_fail(nrd_exec_enqueue(x, &q, &id), 3, "lora_weights: shape [1000,");
    q = ask(1, r);
    q.lora_width = 10;
    must_fail(nrd_exec_enqueue(x, &q, &id), 3, "an adapter of another model");
    q.lora_config_width = 5;
    must_fail(nrd_exec_enqueue(x, &q, &id), 3, "lora_config: rows of 5 numbers");
    r->config[2] = 13;
    q = ask(1, r);
    must_fail(nrd_exec_enqueue(x, &q, &id), 3, "lora_config: row 0 (attn_q of layer 0): rank 13, expected 1 to 12");
    r->config[2] = 2;
    r->config[0] = 4711;
    must_fail(nrd_exec_enqueue(x, &q, &id), 3, "module id 4711 is unknown");
    make_rows(r, 1);
    r->weights[3 * WIDTH + 5] = 0x7e00; /* NaN */
    must_fail(nrd_exec_enqueue(x, &q, &id), 3, "row 3 (attn_dense of layer 0): holds NaN");
    bring(x, 1); /* none of it is left, others go on */
    nrd_exec_close(x);
    c.lora_cache_max_adapter_size = 9999;
    must_fail(nrd_exec_open(&x, tiny.dir, &c), 3, "lora_cache_max_adapter_size");
    free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adapters_and_none_in_one_batch_get_what_each_gets_alone),
        cmocka_unit_test(test_blocks_are_reused_by_the_same_adapter_only),
        cmocka_unit_test(test_prefetched_folders_come_back_through_a_small_cache_under_load),
        cmocka_unit_test(test_cancelled_and_cut_requests_let_their_adapters_go),
        cmocka_unit_test(test_requests_wait_for_room_and_all_of_them_run),
        cmocka_unit_test(test_requests_that_wait_for_room_can_be_cancelled_and_cut),
        cmocka_unit_test(test_bad_adapters_are_refused_by_field_and_limit),
    };
    return cmocka_run_group_tests(tests, make_alone, remove_engine);
}
