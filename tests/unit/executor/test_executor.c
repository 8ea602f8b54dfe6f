/* SPDX-License-Identifier: Apache-2.0
 * Door 3 with a small random model on the CPU device. */
#include "executor/internal.h"
#include "nereid/executor.h"

#include "base/limits.h"
#include "tiny_engine.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <time.h>

#include <cmocka.h>

static tiny_engine tiny;

/* ---- counting allocations ---- */

static atomic_int counting;
static atomic_long n_allocations;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CAN_COUNT 1
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);

void *malloc(size_t n)
{
    n_allocations += counting;
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    n_allocations += counting;
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    n_allocations += counting;
    return __libc_realloc(p, n);
}
#else
#define CAN_COUNT 0
#endif

/* ---- helpers ---- */

static void must(nrd_error *err)
{
    if (err) {
        print_error("%s\n", nrd_exec_error_message(err));
    }
    assert_null(err);
}

static void must_fail(nrd_error *err, int code, const char *part)
{
    assert_non_null(err);
    if (!strstr(nrd_exec_error_message(err), part)) {
        print_error("got: %s\nwant: %s\n", nrd_exec_error_message(err), part);
    }
    assert_int_equal(nrd_exec_error_code(err), code);
    assert_non_null(strstr(nrd_exec_error_message(err), part));
    nrd_exec_error_free(err);
}

static nrd_exec_config config(void)
{
    nrd_exec_config c;
    nrd_exec_config_init(&c);
    c.device = "cpu";
    c.n_threads = 2;
    c.deterministic = true;
    c.normalize_log_probs = false;
    return c;
}

static nrd_exec *open_exec(const nrd_exec_config *c)
{
    nrd_exec *x = NULL;
    must(nrd_exec_open(&x, tiny.dir, c));
    return x;
}

typedef struct result {
    int32_t ids[4 * TINY_MAX_SEQ], n;
    float log_probs[4 * TINY_MAX_SEQ];
    int32_t n_log_probs, n_responses, n_beams;
    float cum;
    nrd_finish_reason finish;
    nrd_perf_metrics perf;
} result;

/* Collects everything that request `id` says (sequence 0, best beam). */
static void collect(nrd_exec *x, uint64_t id, result *out)
{
    bool done = false;
    *out = (result){0};
    while (!done) {
        nrd_exec_response *r = NULL;
        must(nrd_exec_await_id(x, id, &r, 60 * 1000 * 1000));
        assert_non_null(r);
        must(r->error);
        if (r->sequence_index == 0 && r->n_beams > 0) {
            const nrd_beam_output *b = &r->beams[0];
            if (b->n_ids > 0) {
                memcpy(out->ids + out->n, b->ids, (size_t)b->n_ids * sizeof *b->ids);
            }
            out->n += b->n_ids;
            if (b->n_log_probs > 0) {
                memcpy(out->log_probs + out->n_log_probs, b->log_probs,
                       (size_t)b->n_log_probs * sizeof *b->log_probs);
            }
            out->n_log_probs += b->n_log_probs;
            out->cum = b->cum_log_prob;
            out->n_beams = r->n_beams;
            out->finish = b->finish_reason;
        }
        out->n_responses++;
        out->perf = r->perf;
        done = r->is_final;
        nrd_exec_response_free(r);
    }
}

static int32_t prompts[32][TINY_MAX_SEQ];

static void make_prompts(void)
{
    uint32_t s = 1;
    for (int p = 0; p < 32; p++) {
        for (int i = 0; i < TINY_MAX_SEQ; i++) {
            s = s * 1664525u + 1013904223u;
            /* the first 20 tokens are common to every four prompts */
            prompts[p][i] =
                i < 20 ? (p % 4 * 7 + i * 3) % TINY_VOCAB : (int32_t)(s >> 16) % TINY_VOCAB;
        }
    }
}

static nrd_exec_request ask(int p)
{
    nrd_exec_request r;
    nrd_exec_request_init(&r);
    r.input_ids = prompts[p % 32];
    r.n_input_ids = 5 + p * 7 % 60;
    r.max_new_tokens = 10 + p * 5 % 40;
    r.exclude_input_in_output = true;
    r.return_log_probs = true;
    r.streaming = p % 3 == 0;
    if (p % 2) { /* half of them draw */
        r.sampling.top_k = p % 4 == 1 ? 12 : 0;
        r.sampling.top_p = 0.9f;
        r.sampling.temperature = 1.3f;
        r.sampling.random_seed = (uint64_t)p;
    }
    if (p % 5 == 0) {
        r.sampling.repetition_penalty = 1.3f;
        r.sampling.frequency_penalty = 0.1f;
    }
    return r;
}

enum { N_MIXED = 24 };

static void run_alone(result *out)
{
    nrd_exec_config c = config();
    c.max_batch_size = 1;
    nrd_exec *x = open_exec(&c);
    for (int p = 0; p < N_MIXED; p++) {
        nrd_exec_request r = ask(p);
        uint64_t id;
        must(nrd_exec_enqueue(x, &r, &id));
        collect(x, id, &out[p]);
        assert_int_equal(out[p].n, r.max_new_tokens);
        assert_int_equal(out[p].n_log_probs, out[p].n);
    }
    nrd_exec_close(x);
}

/* All at once; the same tokens and, bit for bit, the same log probabilities. */
static bool overlapped; /* as with a device that runs beside the host */

static void run_together(const nrd_exec_config *c, const result *want, int32_t *out_paused)
{
    nrd_exec *x = open_exec(c);
    x->overlap = overlapped; /* the loop reads it first when the first request is there */
    uint64_t ids[N_MIXED];
    int32_t n_paused = 0;
    for (int round = 0; round < 2; round++) {
        for (int p = 0; p < N_MIXED; p++) {
            nrd_exec_request r = ask(p);
            must(nrd_exec_enqueue(x, &r, &ids[p]));
        }
        for (int p = 0; p < N_MIXED; p++) {
            result got;
            collect(x, ids[p], &got);
            assert_int_equal(got.n, want[p].n);
            assert_memory_equal(got.ids, want[p].ids, (size_t)got.n * sizeof *got.ids);
            assert_memory_equal(got.log_probs, want[p].log_probs, (size_t)got.n * sizeof(float));
            assert_true(got.cum == want[p].cum);
            n_paused += got.perf.n_paused;
        }
    }
    nrd_exec_close(x);
    if (out_paused) {
        *out_paused = n_paused;
    }
}

static result alone[N_MIXED];

static void test_batch_does_not_change_tokens(void **state)
{
    nrd_exec_config c = config();
    (void)state;
    run_together(&c, alone, NULL);
}

/* Without the switch too: a CPU computes every row by itself. So a request may ask for it there. */
static void test_a_cpu_is_deterministic_by_itself(void **state)
{
    nrd_exec_config c = config();
    (void)state;
    c.deterministic = false;
    for (int mode = 0; mode < 4; mode++) {
        c.enable_chunked_context = mode & 1;
        c.max_num_tokens = mode & 1 ? 40 : 0;
        c.enable_kv_cache_reuse = mode & 2;
        c.n_threads = 1 + mode;
        run_together(&c, alone, NULL);
    }
    nrd_exec *x = open_exec(&c);
    nrd_exec_request r = ask(3);
    result got;
    uint64_t id;
    r.deterministic = true;
    must(nrd_exec_enqueue(x, &r, &id));
    collect(x, id, &got);
    assert_memory_equal(got.ids, alone[3].ids, (size_t)got.n * sizeof *got.ids);
    snprintf(x->info.device, sizeof x->info.device, "%s", "cuda:0"); /* as a device that has to be told */
    must_fail(nrd_exec_enqueue(x, &r, &id), 3, "deterministic: on this device");
    nrd_exec_close(x);
}

static void test_chunked_context_does_not_change_tokens(void **state)
{
    nrd_exec_config c = config();
    (void)state;
    c.enable_chunked_context = true;
    c.max_batch_size = 6;
    c.max_beam_width = 1;
    c.max_num_tokens = 20;
    run_together(&c, alone, NULL);
}

static void test_prefix_reuse_does_not_change_tokens(void **state)
{
    nrd_exec_config c = config();
    (void)state;
    c.enable_kv_cache_reuse = true;
    run_together(&c, alone, NULL);
}

static void test_pauses_do_not_change_tokens(void **state)
{
    nrd_exec_config c = config();
    int32_t n_paused = 0;
    (void)state;
    c.policy = NRD_POLICY_MAX_UTILIZATION;
    c.max_tokens_in_paged_kv_cache = 240;
    c.max_beam_width = 1;
    run_together(&c, alone, &n_paused);
    assert_true(n_paused > 0);
    c.enable_kv_cache_reuse = true;
    c.enable_chunked_context = true;
    c.max_num_tokens = 40;
    run_together(&c, alone, &n_paused);
    assert_true(n_paused > 0);
    c.kv_cache_host_memory_bytes = 1 << 20;
    run_together(&c, alone, NULL);
}

static void test_static_batches_do_not_change_tokens(void **state)
{
    nrd_exec_config c = config();
    (void)state;
    c.batching = NRD_BATCHING_STATIC;
    c.max_batch_size = 5;
    run_together(&c, alone, NULL);
}

static void test_steps_enqueued_ahead_do_not_change_tokens(void **state)
{
    int32_t n_paused = 0;
    nrd_exec_config c = config();
    (void)state;
    overlapped = true;
    run_together(&c, alone, NULL);
    c.policy = NRD_POLICY_MAX_UTILIZATION;
    c.max_tokens_in_paged_kv_cache = 240;
    c.max_beam_width = 1;
    c.enable_kv_cache_reuse = true;
    c.enable_chunked_context = true;
    c.max_num_tokens = 40;
    run_together(&c, alone, &n_paused);
    assert_true(n_paused > 0);
    c.kv_cache_host_memory_bytes = 1 << 20;
    run_together(&c, alone, NULL);
    overlapped = false;
}

/* Without log probabilities the device keeps the logits to itself where every row allows it. */
static void test_tokens_without_log_probs_are_those_with_them(void **state)
{
    nrd_exec_config c = config();
    (void)state;
    nrd_exec *x = open_exec(&c);
    for (int whole = 0; whole < 2; whole++) { /* with rows that draw from the whole vocabulary */
        uint64_t ids[N_MIXED];
        for (int p = 0; p < N_MIXED; p++) {
            nrd_exec_request r = ask(p);
            r.return_log_probs = false;
            if (whole || p % 4 != 3) {
                must(nrd_exec_enqueue(x, &r, &ids[p]));
            }
        }
        for (int p = 0; p < N_MIXED; p++) {
            result got;
            if (whole || p % 4 != 3) {
                collect(x, ids[p], &got);
                assert_int_equal(got.n, alone[p].n);
                assert_memory_equal(got.ids, alone[p].ids, (size_t)got.n * sizeof *got.ids);
                assert_int_equal(got.n_log_probs, 0);
            }
        }
    }
    nrd_exec_close(x);
}

static void test_reused_blocks_are_counted(void **state)
{
    nrd_exec_config c = config();
    result a, b;
    uint64_t id;
    (void)state;
    c.enable_kv_cache_reuse = true;
    nrd_exec *x = open_exec(&c);
    nrd_exec_request r = ask(0);
    r.n_input_ids = 30; /* one block of 16 and a part */
    r.max_new_tokens = 1;
    must(nrd_exec_enqueue(x, &r, &id));
    collect(x, id, &a);
    assert_int_equal(a.perf.kv_reused_blocks, 0);
    assert_int_equal(a.perf.kv_new_blocks, 2);
    must(nrd_exec_enqueue(x, &r, &id));
    collect(x, id, &b);
    assert_int_equal(b.perf.kv_reused_blocks, 1);
    assert_int_equal(b.perf.kv_new_blocks, 1);
    r.cache_salt = "another tenant";
    must(nrd_exec_enqueue(x, &r, &id));
    collect(x, id, &b);
    assert_int_equal(b.perf.kv_reused_blocks, 0);
    nrd_exec_close(x);
}

/* The cache holds four of these prompts, host memory the others: each is computed once, and what
 * comes back is what went. */
static void test_blocks_come_back_from_host_memory(void **state)
{
    enum { N = 12, LONG = 64 };
    nrd_exec_config c = config();
    nrd_exec_info info = {.size = sizeof info};
    result first[N], again;
    uint64_t id;
    (void)state;
    c.enable_kv_cache_reuse = true;
    c.max_batch_size = 1;
    c.max_beam_width = 1;
    c.max_tokens_in_paged_kv_cache = 320;
    c.kv_cache_host_memory_bytes = 4 << 20;
    nrd_exec *x = open_exec(&c);
    nrd_exec_get_info(x, &info);
    assert_true(info.n_kv_blocks < N * LONG / info.tokens_per_block);
    assert_true(info.n_kv_host_blocks > N * LONG / info.tokens_per_block);
    for (int round = 0; round < 3; round++) {
        for (int p = 0; p < N; p++) {
            nrd_exec_request r = ask(p);
            r.n_input_ids = LONG;
            r.max_new_tokens = 8;
            must(nrd_exec_enqueue(x, &r, &id));
            collect(x, id, round ? &again : &first[p]);
            if (round) {
                assert_int_equal(again.perf.kv_reused_blocks, LONG / info.tokens_per_block - 1);
                assert_int_equal(again.n, first[p].n);
                assert_memory_equal(again.ids, first[p].ids, (size_t)again.n * sizeof(int32_t));
                assert_memory_equal(again.log_probs, first[p].log_probs,
                                    (size_t)again.n * sizeof(float));
            }
        }
    }
    nrd_exec_close(x);
}

/* ---- what an answer holds ---- */

static void test_answer_echoes_the_prompt_unless_told_otherwise(void **state)
{
    nrd_exec_config c = config();
    nrd_exec *x = open_exec(&c);
    nrd_exec_request r = ask(2);
    uint64_t id;
    result got;
    (void)state;
    r.exclude_input_in_output = false;
    r.streaming = false;
    must(nrd_exec_enqueue(x, &r, &id));
    collect(x, id, &got);
    assert_int_equal(got.n, r.n_input_ids + r.max_new_tokens);
    assert_int_equal(got.n_log_probs, r.max_new_tokens);
    assert_memory_equal(got.ids, r.input_ids, (size_t)r.n_input_ids * sizeof *got.ids);
    assert_memory_equal(got.ids + r.n_input_ids, alone[2].ids,
                        (size_t)alone[2].n * sizeof *got.ids);
    r.streaming = true; /* never echoes */
    must(nrd_exec_enqueue(x, &r, &id));
    collect(x, id, &got);
    assert_int_equal(got.n, r.max_new_tokens);
    assert_int_equal(got.n_responses, r.max_new_tokens);
    nrd_exec_close(x);
}

static void test_end_token_ends_and_is_left_out_and_stop_phrase_stays(void **state)
{
    nrd_exec_config c = config();
    nrd_exec *x = open_exec(&c);
    nrd_exec_request r = ask(2);
    uint64_t id;
    result got;
    int32_t first = 0;
    (void)state;
    r.end_id = alone[2].ids[5];
    while (alone[2].ids[first] != r.end_id) {
        first++;
    }
    for (int streaming = 0; streaming < 2; streaming++) {
        r.streaming = streaming;
        must(nrd_exec_enqueue(x, &r, &id));
        collect(x, id, &got);
        assert_int_equal(got.n, first);
        assert_int_equal(got.finish, NRD_FINISH_END_ID);
    }
    r.sampling.min_length = 8; /* the end may not come so early */
    must(nrd_exec_enqueue(x, &r, &id));
    collect(x, id, &got);
    assert_true(got.n >= 8);
    for (int32_t i = 0; i < 8; i++) {
        assert_int_not_equal(got.ids[i], r.end_id);
    }
    r.sampling.min_length = 0;
    r.end_id = -1;
    int32_t words[2] = {alone[2].ids[6], alone[2].ids[7]}, ends[1] = {2};
    r.stop_words = (nrd_phrases){words, ends, 1};
    must(nrd_exec_enqueue(x, &r, &id));
    collect(x, id, &got);
    assert_int_equal(got.finish, NRD_FINISH_STOP_WORDS);
    assert_true(got.n >= 2 && got.n <= 8);
    assert_memory_equal(got.ids + got.n - 2, words, sizeof words);
    nrd_exec_close(x);
}

static void test_bad_words_and_repeated_ngrams_never_come(void **state)
{
    nrd_exec_config c = config();
    nrd_exec *x = open_exec(&c);
    nrd_exec_request r = ask(2);
    uint64_t id;
    result got;
    int32_t words[3] = {alone[2].ids[0], alone[2].ids[2], alone[2].ids[3]}, ends[2] = {1, 3};
    (void)state;
    r.bad_words = (nrd_phrases){words, ends, 2};
    must(nrd_exec_enqueue(x, &r, &id));
    collect(x, id, &got);
    for (int32_t i = 0; i < got.n; i++) {
        assert_int_not_equal(got.ids[i], words[0]);
        assert_false(i > 0 && got.ids[i - 1] == words[1] && got.ids[i] == words[2]);
    }
    r = ask(4);
    r.max_new_tokens = 80;
    r.sampling.no_repeat_ngram_size = 2;
    must(nrd_exec_enqueue(x, &r, &id));
    collect(x, id, &got);
    for (int32_t i = 1; i < got.n; i++) {
        for (int32_t k = 1; k < i; k++) {
            assert_false(got.ids[k - 1] == got.ids[i - 1] && got.ids[k] == got.ids[i]);
        }
    }
    nrd_exec_close(x);
}

static void test_bias_moves_the_choice(void **state)
{
    nrd_exec_config c = config();
    nrd_exec *x = open_exec(&c);
    nrd_exec_request r = ask(2);
    float bias[TINY_VOCAB] = {0};
    uint64_t id;
    result got;
    (void)state;
    bias[17] = 1000;
    r.embedding_bias = bias;
    must(nrd_exec_enqueue(x, &r, &id));
    collect(x, id, &got);
    for (int32_t i = 0; i < got.n; i++) {
        assert_int_equal(got.ids[i], 17);
    }
    nrd_exec_close(x);
}

static void test_bias_of_few_tokens_is_that_of_a_vector(void **state)
{
    enum { N = 4 };
    const int32_t ids[N] = {60, 3, 60, 17};
    const float values[N] = {-50, 4, 6, 5}; /* of equal ids the last one holds */
    float all[TINY_VOCAB] = {[3] = 4, [17] = 5, [60] = 6};
    nrd_exec_config c = config();
    nrd_exec *x = open_exec(&c);
    nrd_exec_request r = ask(2);
    uint64_t id;
    result plain, dense, sparse;
    (void)state;
    r.sampling.num_return_sequences = 2;
    must(nrd_exec_enqueue(x, &r, &id));
    collect(x, id, &plain);
    r.embedding_bias = all;
    must(nrd_exec_enqueue(x, &r, &id));
    collect(x, id, &dense);
    r.embedding_bias = NULL;
    r.bias_ids = ids;
    r.bias_values = values;
    r.n_bias = N;
    must(nrd_exec_enqueue(x, &r, &id));
    collect(x, id, &sparse);
    assert_int_equal(dense.n, sparse.n);
    assert_memory_equal(dense.ids, sparse.ids, (size_t)dense.n * sizeof *dense.ids);
    assert_true(plain.n != dense.n || memcmp(plain.ids, dense.ids, (size_t)dense.n * sizeof *dense.ids));
    nrd_exec_close(x);
}

static void test_sequences_of_one_request_differ_and_repeat(void **state)
{
    nrd_exec_config c = config();
    int32_t seen[2][4][64], n[2][4];
    (void)state;
    for (int round = 0; round < 2; round++) {
        c.max_batch_size = round ? 2 : 8;
        nrd_exec *x = open_exec(&c);
        nrd_exec_request r = ask(1);
        uint64_t id;
        int n_final = 0, n_seq_final = 0;
        r.sampling.num_return_sequences = 4;
        r.streaming = false;
        must(nrd_exec_enqueue(x, &r, &id));
        while (!n_final) {
            nrd_exec_response *o;
            must(nrd_exec_await_id(x, id, &o, -1));
            int s = o->sequence_index;
            n[round][s] = o->beams[0].n_ids;
            memcpy(seen[round][s], o->beams[0].ids, (size_t)o->beams[0].n_ids * sizeof(int32_t));
            n_seq_final += o->is_sequence_final;
            n_final += o->is_final;
            nrd_exec_response_free(o);
        }
        assert_int_equal(n_seq_final, 4);
        assert_int_equal(n[round][0], alone[1].n); /* the first is what one alone would be */
        assert_memory_equal(seen[round][0], alone[1].ids, (size_t)alone[1].n * sizeof(int32_t));
        nrd_exec_close(x);
    }
    for (int s = 0; s < 4; s++) {
        assert_int_equal(n[0][s], n[1][s]);
        assert_memory_equal(seen[0][s], seen[1][s], (size_t)n[0][s] * sizeof(int32_t));
        for (int o = 0; o < s; o++) {
            assert_memory_not_equal(seen[0][s], seen[0][o], (size_t)n[0][s] * sizeof(int32_t));
        }
    }
}

static void test_scores_agree_with_generation(void **state)
{
    nrd_exec_config c = config();
    nrd_exec *x = open_exec(&c);
    (void)state;
    nrd_exec_request r = ask(2);
    int32_t all[TINY_MAX_SEQ], n = r.n_input_ids + alone[2].n, top[TINY_MAX_SEQ * 2];
    float lp[TINY_MAX_SEQ], top_lp[TINY_MAX_SEQ * 2];
    memcpy(all, r.input_ids, (size_t)r.n_input_ids * sizeof *all);
    memcpy(all + r.n_input_ids, alone[2].ids, (size_t)alone[2].n * sizeof *all);
    must(nrd_exec_score(x, all, n, 2, lp, top, top_lp));
    for (int32_t i = 0; i < alone[2].n; i++) {
        int32_t at = r.n_input_ids + i;
        assert_true(fabsf(lp[at] - alone[2].log_probs[i]) < 1e-3f);
        assert_int_equal(top[at * 2], alone[2].ids[i]); /* greedy took the best */
        assert_true(top_lp[at * 2] >= top_lp[at * 2 + 1]);
    }
    nrd_exec_close(x);
}

typedef struct watch {
    int32_t n_rows, best[TINY_MAX_SEQ], vocab;
    int32_t tokens[8][NRD_PRODUCTS], cols[NRD_PRODUCTS], cached[8];
    bool all_finite;
} watch;

static void watch_row(void *user, int32_t position, const float *logits)
{
    watch *w = user;
    assert_int_equal(position, w->n_rows++);
    for (int32_t i = 1; i < w->vocab; i++) {
        w->best[position] = logits[i] > logits[w->best[position]] ? i : w->best[position];
    }
}

static void watch_input(void *user, int32_t layer, int32_t expert, nrd_exec_product product, int32_t n_tokens, int32_t cols,
                        const float *x)
{
    watch *w = user;
    assert_int_equal(expert, -1);
    w->tokens[layer][product] += n_tokens;
    w->cols[product] = cols;
    for (int32_t i = 0; i < n_tokens * cols; i++) {
        w->all_finite = w->all_finite && isfinite(x[i]);
    }
}

static void watch_cache(void *user, int32_t layer, int32_t n_tokens, int64_t stride, const float *keys, const float *values)
{
    watch *w = user;
    w->cached[layer] += n_tokens;
    w->all_finite = w->all_finite && isfinite(keys[(n_tokens - 1) * stride]) && isfinite(values[(n_tokens - 1) * stride]);
}

static void test_rows_and_inputs_of_products_are_told(void **state)
{
    watch w = {.all_finite = true};
    nrd_exec_config c = config();
    c.on_product_input = watch_input;
    c.on_product_input_user = &w;
    c.on_cache = watch_cache;
    nrd_exec *x = open_exec(&c);
    nrd_exec_request r = ask(2);
    nrd_exec_info info = {.size = sizeof info};
    (void)state;
    nrd_exec_get_info(x, &info);
    memset(w.tokens, 0, sizeof w.tokens); /* without those of warming up */
    memset(w.cached, 0, sizeof w.cached);
    w.vocab = info.vocab;
    must(nrd_exec_score_rows(x, r.input_ids, r.n_input_ids, watch_row, &w));
    assert_int_equal(w.n_rows, r.n_input_ids);
    assert_int_equal(w.best[r.n_input_ids - 1], alone[2].ids[0]); /* greedy takes it */
    assert_true(w.all_finite);
    for (int32_t layer = 0; layer < info.n_layers; layer++) {
        for (int p = 0; p < NRD_PRODUCTS; p++) {
            assert_int_equal(w.tokens[layer][p], r.n_input_ids);
        }
        assert_int_equal(w.cached[layer], r.n_input_ids);
    }
    assert_true(w.cols[NRD_PRODUCT_QKV] == info.hidden && w.cols[NRD_PRODUCT_UP] == info.hidden);
    nrd_error *err = nrd_exec_score_rows(x, r.input_ids, 0, watch_row, &w);
    assert_non_null(err);
    nrd_exec_error_free(err);
    nrd_exec_close(x);
}

static void embed(nrd_exec *x, nrd_exec_request r, nrd_pooling pooling, float *out, int32_t *out_n)
{
    nrd_exec_response *o;
    uint64_t id;
    r.pooling = pooling;
    r.max_new_tokens = 0;
    r.return_log_probs = false;
    must(nrd_exec_enqueue(x, &r, &id));
    must(nrd_exec_await_id(x, id, &o, -1));
    must(o->error);
    assert_true(o->is_final && o->embedding && o->n_embedding <= TINY_MAX_SEQ * 8);
    assert_int_equal(o->beams[0].n_ids, 0);
    memcpy(out, o->embedding, (size_t)o->n_embedding * sizeof *out);
    *out_n = o->n_embedding;
    nrd_exec_response_free(o);
}

static float far_apart(const float *a, const float *b, int32_t n)
{
    float d = 0;
    for (int32_t i = 0; i < n; i++) {
        d = fabsf(a[i] - b[i]) > d ? fabsf(a[i] - b[i]) : d;
    }
    return d;
}

/* What a token's state is depends on those before it alone: the mean over a prompt is that of the
 * last states of its beginnings. Blocks from the cache and prompts in chunks change nothing. */
static void test_pooled_states_of_a_prompt_and_its_beginnings(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        nrd_exec_config c = config();
        float last[TINY_MAX_SEQ * 8], mean[TINY_MAX_SEQ * 8], sum[TINY_MAX_SEQ * 8] = {0};
        int32_t width = 0;
        c.enable_kv_cache_reuse = kind > 0;
        c.enable_chunked_context = kind == 2;
        if (kind == 2) {
            c.max_num_tokens = 7;
            c.max_batch_size = 4;
            c.max_beam_width = 1;
        }
        nrd_exec *x = open_exec(&c);
        nrd_exec_request r = ask(2);
        int32_t n = r.n_input_ids;
        for (int32_t i = 1; i <= n; i++) {
            r.n_input_ids = i;
            embed(x, r, NRD_POOLING_LAST, last, &width);
            for (int32_t k = 0; k < width; k++) {
                sum[k] += last[k] / (float)n;
            }
        }
        embed(x, r, NRD_POOLING_MEAN, mean, &width);
        assert_true(width > 0 && far_apart(mean, sum, width) < 2e-3f);
        assert_true(far_apart(mean, last, width) > 1e-2f);
        embed(x, r, NRD_POOLING_LAST, sum, &width);
        assert_true(far_apart(last, sum, width) < 2e-3f);
        nrd_exec_close(x);
    }
}

static void test_pooling_goes_beside_generation_and_refuses_what_it_cannot_give(void **state)
{
    nrd_exec_config c = config();
    nrd_exec *x = open_exec(&c);
    nrd_exec_request r = ask(2);
    float one[TINY_MAX_SEQ * 8], beside[TINY_MAX_SEQ * 8];
    int32_t width = 0;
    uint64_t id, pooled;
    nrd_exec_response *o;
    nrd_error *err;

    (void)state;
    embed(x, r, NRD_POOLING_MEAN, one, &width);
    r.streaming = false;
    must(nrd_exec_enqueue(x, &r, &id));
    r.pooling = NRD_POOLING_MEAN;
    r.return_log_probs = false;
    must(nrd_exec_enqueue(x, &r, &pooled));
    must(nrd_exec_await_id(x, pooled, &o, -1));
    memcpy(beside, o->embedding, (size_t)width * sizeof(float));
    nrd_exec_response_free(o);
    assert_true(far_apart(one, beside, width) < 2e-3f);
    must(nrd_exec_await_id(x, id, &o, -1));
    assert_null(o->embedding);
    assert_int_equal(o->beams[0].n_ids, r.n_input_ids * !r.exclude_input_in_output + alone[2].n);
    nrd_exec_response_free(o);
    r.sampling.num_return_sequences = 2;
    err = nrd_exec_enqueue(x, &r, &id);
    assert_non_null(strstr(nrd_exec_error_message(err), "num_return_sequences"));
    nrd_exec_error_free(err);
    r.sampling.num_return_sequences = 1;
    r.pooling = (nrd_pooling)(NRD_POOLING_MODEL + 1);
    err = nrd_exec_enqueue(x, &r, &id);
    assert_int_equal(nrd_exec_error_code(err), NRD_ERR_INVALID_ARG);
    nrd_exec_error_free(err);
    nrd_exec_close(x);
}

static void test_beams_are_sorted_and_their_sums_are_true(void **state)
{
    nrd_exec_config c = config();
    nrd_exec *x = open_exec(&c);
    (void)state;
    for (int w = 2; w <= 4; w++) {
        nrd_exec_request r = ask(2);
        nrd_exec_response *o;
        uint64_t id;
        r.streaming = false;
        r.sampling.beam_width = w;
        must(nrd_exec_enqueue(x, &r, &id));
        must(nrd_exec_await_id(x, id, &o, -1));
        must(o->error);
        assert_true(o->is_final);
        assert_int_equal(o->n_beams, w);
        assert_true(o->beams[0].cum_log_prob >= alone[2].cum - 1e-3f);
        for (int b = 0; b < w; b++) {
            int32_t all[TINY_MAX_SEQ], n = r.n_input_ids + o->beams[b].n_ids;
            float lp[TINY_MAX_SEQ], sum = 0;
            memcpy(all, r.input_ids, (size_t)r.n_input_ids * sizeof *all);
            memcpy(all + r.n_input_ids, o->beams[b].ids, (size_t)o->beams[b].n_ids * sizeof *all);
            must(nrd_exec_score(x, all, n, 0, lp, NULL, NULL));
            for (int32_t i = r.n_input_ids; i < n; i++) {
                sum += lp[i];
            }
            assert_true(fabsf(sum - o->beams[b].cum_log_prob) < 1e-2f);
            assert_true(b == 0 || o->beams[b].cum_log_prob <= o->beams[b - 1].cum_log_prob);
        }
        nrd_exec_response_free(o);
    }
    nrd_exec_close(x);
}

static void test_logits_of_prompt_and_choices_meet(void **state)
{
    nrd_exec_config c = config();
    nrd_exec *x = open_exec(&c);
    nrd_exec_request r = ask(2);
    nrd_exec_response *o;
    uint64_t id;
    (void)state;
    r.streaming = false;
    r.return_context_logits = r.return_generation_logits = true;
    must(nrd_exec_enqueue(x, &r, &id));
    must(nrd_exec_await_id(x, id, &o, -1));
    must(o->error);
    assert_int_equal(o->vocab, TINY_VOCAB);
    assert_int_equal(o->n_generation_logits, r.max_new_tokens);
    const float *last = o->context_logits + (size_t)(r.n_input_ids - 1) * TINY_VOCAB;
    assert_memory_equal(last, o->generation_logits, TINY_VOCAB * sizeof(float));
    for (int32_t i = 0; i < r.max_new_tokens; i++) {
        const float *row = o->generation_logits + (size_t)i * TINY_VOCAB;
        for (int32_t v = 0; v < TINY_VOCAB; v++) {
            assert_true(row[v] <= row[o->beams[0].ids[i]]);
        }
    }
    nrd_exec_response_free(o);
    nrd_exec_close(x);
}

static double log_softmax(const float *row, int32_t token)
{
    double most = row[0], sum = 0;
    for (int32_t v = 1; v < TINY_VOCAB; v++) {
        most = row[v] > most ? row[v] : most;
    }
    for (int32_t v = 0; v < TINY_VOCAB; v++) {
        sum += exp((double)row[v] - most);
    }
    return row[token] - most - log(sum);
}

/* Each hypothesis has the logits of its own path, whichever beams it came by. */
static void test_logits_of_beams_are_those_of_their_paths(void **state)
{
    nrd_exec_config c = config();
    nrd_exec *x = open_exec(&c);
    int32_t seen[TINY_MAX_SEQ], n_seen = 0, n_short = 0;
    (void)state;
    for (int round = 0; round < 12; round++) {
        nrd_exec_request r = ask(2);
        nrd_exec_response *o;
        uint64_t id;
        r.streaming = false;
        r.return_generation_logits = r.return_log_probs = true;
        r.exclude_input_in_output = true;
        r.sampling.beam_width = 2 + round % 3;
        r.sampling.num_return_sequences = r.sampling.beam_width == 4 ? 3 : 1;
        r.end_id = round < 3 ? -1 : seen[round % n_seen]; /* hypotheses of several lengths */
        must(nrd_exec_enqueue(x, &r, &id));
        must(nrd_exec_await_id(x, id, &o, -1));
        must(o->error);
        assert_int_equal(o->n_beams, r.sampling.beam_width == 4 ? 3 : r.sampling.beam_width);
        int32_t longest = 0;
        for (int32_t i = 0; round == 0 && i < o->beams[0].n_ids; i++) {
            seen[n_seen++] = o->beams[0].ids[i];
        }
        for (int b = 0; b < o->n_beams; b++) {
            longest = o->beams[b].n_ids > longest ? o->beams[b].n_ids : longest;
        }
        assert_int_equal(o->n_generation_logits, longest);
        for (int b = 0; b < o->n_beams; b++) {
            const nrd_beam_output *beam = &o->beams[b];
            const float *rows = o->generation_logits + (size_t)b * (size_t)longest * TINY_VOCAB;
            for (int32_t i = 0; i < longest; i++) {
                const float *row = rows + (size_t)i * TINY_VOCAB;
                for (int32_t v = 0; i >= beam->n_ids && v < TINY_VOCAB; v++) {
                    assert_true(row[v] >= 0 && row[v] <= 0);
                }
                assert_true(i >= beam->n_ids || fabs(log_softmax(row, beam->ids[i]) - (double)beam->log_probs[i]) < 1e-3);
            }
            n_short += beam->n_ids < longest;
            /* The same path computed in one piece, as a prompt. */
            int32_t all[TINY_MAX_SEQ];
            memcpy(all, r.input_ids, (size_t)r.n_input_ids * sizeof *all);
            memcpy(all + r.n_input_ids, beam->ids, (size_t)beam->n_ids * sizeof *all);
            nrd_exec_request whole = ask(2);
            nrd_exec_response *w;
            whole.streaming = false;
            whole.return_context_logits = true;
            whole.input_ids = all;
            whole.n_input_ids = r.n_input_ids + beam->n_ids - 1;
            whole.max_new_tokens = 1;
            must(nrd_exec_enqueue(x, &whole, &id));
            must(nrd_exec_await_id(x, id, &w, -1));
            must(w->error);
            const float *want = w->context_logits + (size_t)(r.n_input_ids - 1) * TINY_VOCAB;
            for (int32_t i = 0; i < beam->n_ids * TINY_VOCAB; i++) {
                assert_true(fabsf(rows[i] - want[i]) < 1e-2f);
            }
            nrd_exec_response_free(w);
        }
        nrd_exec_response_free(o);
    }
    assert_true(n_short > 0);
    nrd_exec_close(x);
}

static void test_top_log_probs_come_with_each_token(void **state)
{
    nrd_exec_config c = config();
    nrd_exec *x = open_exec(&c);
    nrd_exec_request r = ask(2);
    nrd_exec_response *o;
    uint64_t id;
    (void)state;
    r.streaming = false;
    r.n_top_logprobs = 3;
    must(nrd_exec_enqueue(x, &r, &id));
    must(nrd_exec_await_id(x, id, &o, -1));
    const nrd_beam_output *b = &o->beams[0];
    assert_int_equal(b->n_log_probs, r.max_new_tokens);
    for (int32_t i = 0; i < b->n_log_probs; i++) {
        assert_int_equal(b->top_ids[i * 3], b->ids[i]);
        assert_true(b->top_log_probs[i * 3] >= b->top_log_probs[i * 3 + 1]);
        assert_true(fabsf(b->top_log_probs[i * 3] - b->log_probs[i]) < 1e-5f);
    }
    nrd_exec_response_free(o);
    nrd_exec_close(x);
}

/* ---- refusing, cancelling, ending ---- */

static void test_bad_requests_are_refused_by_name(void **state)
{
    nrd_exec_config c = config();
    nrd_exec *x = open_exec(&c);
    nrd_exec_request r = ask(2);
    uint64_t id;
    int32_t negative[2] = {1, -5};
    (void)state;
    r.n_input_ids = TINY_MAX_SEQ;
    must_fail(nrd_exec_enqueue(x, &r, &id), 3,
              "Prompt length (160) exceeds maximum input length (159). Set log level to info and "
              "check TRTLLM logs for how maximum input length is set");
    r = ask(2);
    r.input_ids = negative;
    r.n_input_ids = 2;
    must_fail(nrd_exec_enqueue(x, &r, &id), 3, "input_ids[1] is -5");
    r = ask(2);
    r.bias_ids = negative;
    r.bias_values = (const float[2]){1, 1};
    r.n_bias = 2;
    must_fail(nrd_exec_enqueue(x, &r, &id), 3, "logit_bias has the token id -5");
    r.n_bias = NRD_LIMIT_LOGIT_BIAS + 1;
    must_fail(nrd_exec_enqueue(x, &r, &id), 3, "logit_bias has 4097 entries, at most 4096");
    r.n_bias = 1;
    r.embedding_bias = r.bias_values;
    must_fail(nrd_exec_enqueue(x, &r, &id), 3, "logit_bias and embedding_bias are both given");
    r = ask(2);
    r.sampling.temperature = -1;
    must_fail(nrd_exec_enqueue(x, &r, &id), 3, "temperature");
    r = ask(2);
    r.sampling.beam_width = 9;
    must_fail(nrd_exec_enqueue(x, &r, &id), 3, "beam_width (9) exceeds max_beam_width (4)");
    r = ask(2);
    r.max_new_tokens = 0;
    must_fail(nrd_exec_enqueue(x, &r, &id), 3, "max_new_tokens");
    r = ask(2);
    r.lora_task_id = 3;
    must_fail(nrd_exec_enqueue(x, &r, &id), 2, "LoRA task 3 not found in cache. Please send LoRA weights with request");
    r = ask(2);
    r.guide_type = "json";
    must_fail(nrd_exec_enqueue(x, &r, &id), 5, "guided decoding");
    r = ask(2); /* too long together: cut, no error */
    r.n_input_ids = 150;
    r.max_new_tokens = 1000;
    result got;
    must(nrd_exec_enqueue(x, &r, &id));
    collect(x, id, &got);
    assert_int_equal(got.n, 10);
    assert_int_equal(got.finish, NRD_FINISH_LENGTH);
    nrd_exec_response *o;
    must_fail(nrd_exec_await_id(x, 12345, &o, -1), 2, "12345");
    nrd_exec_close(x);
}

static void test_cache_too_small_for_one_sequence_is_refused_at_open(void **state)
{
    nrd_exec_config c = config();
    nrd_exec *x = NULL;
    (void)state;
    c.max_tokens_in_paged_kv_cache = 64;
    must_fail(nrd_exec_open(&x, tiny.dir, &c), 3, "max_tokens_in_paged_kv_cache 64");
    assert_null(x);
    c = config();
    c.decoding_mode = NRD_DECODING_MEDUSA;
    must_fail(nrd_exec_open(&x, tiny.dir, &c), 2, "medusa"); /* an engine without heads */
    must_fail(nrd_exec_open(&x, "/nonexistent", NULL), 2, "/nonexistent");
}

/* Asks for 150 tokens and cancels at the third. False where the engine, which waits for nobody, had made
 * all of them before the cancellation came. */
static bool is_cancelled_in_time(nrd_exec *x)
{
    nrd_exec_request r = ask(0);
    nrd_exec_response *o;
    uint64_t id;
    int32_t n = 0;
    nrd_finish_reason reason = NRD_FINISH_LENGTH;
    bool done = false;
    r.n_input_ids = 5;
    r.max_new_tokens = 150;
    r.streaming = true;
    must(nrd_exec_enqueue(x, &r, &id));
    while (!done) {
        must(nrd_exec_await_id(x, id, &o, -1));
        n += o->beams[0].n_ids;
        done = o->is_final;
        reason = o->beams[0].finish_reason;
        nrd_exec_response_free(o);
        if (n == 3) {
            nrd_exec_cancel(x, id);
        }
    }
    nrd_exec_cancel(x, id); /* over: no effect */
    if (n == 150) {
        assert_int_equal(reason, NRD_FINISH_LENGTH);
        return false;
    }
    assert_int_equal(reason, NRD_FINISH_CANCELLED);
    assert_true(n >= 3 && n < 150);
    return true;
}

static void test_cancelled_request_ends_with_what_it_has(void **state)
{
    nrd_exec_config c = config();
    nrd_exec *x = open_exec(&c);
    bool cancelled = false;
    (void)state;
    for (int round = 0; round < 100 && !cancelled; round++) {
        cancelled = is_cancelled_in_time(x);
    }
    assert_true(cancelled);
    nrd_exec_close(x);
}

static void test_queue_limit_and_shutdown(void **state)
{
    nrd_exec_config c = config();
    (void)state;
    c.max_batch_size = 1;
    c.max_queue_size = 4;
    nrd_exec *x = open_exec(&c);
    nrd_exec_request r = ask(0);
    uint64_t id;
    int n_accepted = 0, n_final = 0;
    nrd_error *err = NULL;
    r.n_input_ids = 5;
    r.max_new_tokens = 100;
    r.streaming = false;
    while (!(err = nrd_exec_enqueue(x, &r, &id))) {
        n_accepted++;
        assert_true(n_accepted < 1000);
    }
    must_fail(err, 4, "Maximum queue size of 4 has been reached, please try again later");
    must(nrd_exec_shutdown(x, -1));
    must_fail(nrd_exec_enqueue(x, &r, &id), 4, "shutting down");
    while (!nrd_exec_is_done(x)) {
        nrd_exec_response *out[8];
        int32_t n;
        must(nrd_exec_await(x, out, 8, -1, &n));
        for (int32_t i = 0; i < n; i++) {
            n_final += out[i]->is_final;
            assert_int_equal(out[i]->beams[0].n_ids, 100);
            nrd_exec_response_free(out[i]);
        }
    }
    assert_int_equal(n_final, n_accepted);
    nrd_exec_close(x);
}

static void test_shutdown_in_time_cuts_what_runs(void **state)
{
    nrd_exec_config c = config();
    nrd_exec *x = open_exec(&c);
    uint64_t id;
    int n_final = 0;
    (void)state;
    for (int p = 0; p < 30; p++) {
        nrd_exec_request r = ask(p);
        must(nrd_exec_enqueue(x, &r, &id));
    }
    must(nrd_exec_shutdown(x, 1000));
    while (!nrd_exec_is_done(x)) {
        nrd_exec_response *out[4];
        int32_t n;
        must(nrd_exec_await(x, out, 4, 0, &n));
        for (int32_t i = 0; i < n; i++) {
            n_final += out[i]->is_final;
            nrd_exec_response_free(out[i]);
        }
    }
    assert_int_equal(n_final, 30);
    nrd_exec_close(x);
}

/* ---- a device that dies ---- */

static nrd_device_ops dying_ops;
static nrd_error *(*real_linear)(nrd_stream *s, const nrd_linear_args *a);
static atomic_int linears_left;

static nrd_error *dying_linear(nrd_stream *s, const nrd_linear_args *a)
{
    if (atomic_fetch_sub(&linears_left, 1) <= 0) {
        return nrd_errorf(NRD_ERR_INTERNAL, "the device fell off the bus");
    }
    return real_linear(s, a);
}

static void test_lost_device_fails_what_is_in_flight_and_nothing_hangs(void **state)
{
    (void)state;
    for (int ahead = 0; ahead < 2; ahead++) {
        nrd_exec_config c = config();
        c.max_batch_size = 4;
        nrd_exec *x = open_exec(&c);
        uint64_t ids[10];
        nrd_error *err = NULL;
        x->overlap = ahead;
        dying_ops = *x->dev->ops;
        real_linear = dying_ops.linear;
        dying_ops.linear = dying_linear;
        linears_left = 400;
        x->dev->ops = &dying_ops;
        int n_accepted = 0;
        for (; n_accepted < 10; n_accepted++) {
            nrd_exec_request r = ask(n_accepted);
            r.streaming = false;
            err = nrd_exec_enqueue(x, &r, &ids[n_accepted]);
            if (err) {
                break; /* it died already */
            }
        }
        int n_failed = 0;
        for (int i = 0; i < n_accepted; i++) {
            nrd_exec_response *o = NULL;
            must(nrd_exec_await_id(x, ids[i], &o, 60 * 1000 * 1000));
            assert_non_null(o);
            assert_true(o->is_final);
            if (o->error) {
                assert_int_equal(nrd_exec_error_code(o->error), 4);
                assert_non_null(strstr(nrd_exec_error_message(o->error), "fell off the bus"));
                n_failed++;
            }
            nrd_exec_response_free(o);
        }
        assert_true(n_failed > 0);
        nrd_exec_error_free(err);
        nrd_exec_request r = ask(1);
        must_fail(nrd_exec_enqueue(x, &r, &ids[0]), 4, "the engine was lost");
        nrd_exec_close(x);
    }
}

static nrd_error *dying_copy(nrd_stream *s, void *dst, const void *src, size_t bytes)
{
    (void)s;
    (void)dst;
    (void)src;
    (void)bytes;
    return nrd_errorf(NRD_ERR_INTERNAL, "the device fell off the bus");
}

static void test_device_lost_before_a_step_is_lost_too(void **state)
{
    (void)state;
    nrd_exec_config c = config();
    nrd_exec *x = open_exec(&c);
    nrd_exec_response *o = NULL;
    float bias[TINY_VOCAB] = {1};
    uint64_t id = 0;
    assert_null(nrd_exec_health(x));
    dying_ops = *x->dev->ops;
    dying_ops.copy = dying_copy;
    x->dev->ops = &dying_ops;
    nrd_exec_request r = ask(1);
    r.embedding_bias = bias; /* uploaded before its first step */
    must(nrd_exec_enqueue(x, &r, &id));
    must(nrd_exec_await_id(x, id, &o, 60 * 1000 * 1000));
    assert_non_null(o);
    assert_true(o->is_final && o->error);
    nrd_exec_response_free(o);
    must_fail(nrd_exec_health(x), 4, "the engine was lost: the device fell off the bus");
    must_fail(nrd_exec_enqueue(x, &r, &id), 4, "the engine was lost");
    nrd_exec_close(x);
}

/* ---- steady steps ---- */

typedef struct steps_seen {
    int32_t n, n_prompts;
    uint64_t last;         /* number of the last step */
    uint64_t first_prompt; /* of the first one with a prompt */
} steps_seen;

static void see_steps(nrd_exec *x, steps_seen *s)
{
    nrd_iter_stats st[16];
    for (int32_t got; (got = nrd_exec_take_iter_stats(x, st, 16)) > 0; s->n += got) {
        for (int32_t i = 0; i < got; i++) {
            assert_int_equal(st[i].kv_used_blocks + st[i].kv_free_blocks, st[i].kv_max_blocks);
            if (st[i].n_context > 0 && s->n_prompts == 0) {
                s->first_prompt = st[i].iteration;
            }
            s->n_prompts += st[i].n_context;
        }
        s->last = st[got - 1].iteration;
    }
}

static void wait_iterations(nrd_exec *x, int32_t n)
{
    steps_seen s = {0};
    for (see_steps(x, &s); s.n < n; see_steps(x, &s)) {
        struct timespec t = {0, 200000};
        nanosleep(&t, NULL); /* waiting for the state above, not for time */
    }
}

static void take_all(nrd_exec *x, uint64_t id)
{
    for (bool end = false; !end;) {
        nrd_exec_response *o;
        must(nrd_exec_await_id(x, id, &o, -1));
        end = o->is_final;
        nrd_exec_response_free(o);
    }
}

enum { STEADY = 150, WARM = 40, COUNTED = 95, COUNTED_MIN = 70 }; /* passes NRD_ATTN_MIN_SHARED */

/* Counts the allocations from the time when WARM answers were taken to that when COUNTED more were.
 * Gives false where the engine, which waits for nobody, was so far ahead of this thread that few steps
 * lay between the two, or that a request may have begun or ended there. */
static bool count_steady(nrd_exec *x, long *out)
{
    uint64_t ids[8];
    nrd_exec_response *o;
    steps_seen s = {0};
    see_steps(x, &s);
    s.n_prompts = 0; /* what came before was an earlier round's */
    for (int p = 0; p < 8; p++) {
        nrd_exec_request r = ask(p);
        r.n_input_ids = 8;
        r.max_new_tokens = STEADY;
        r.streaming = p == 0;
        must(nrd_exec_enqueue(x, &r, &ids[p]));
    }
    int32_t n = 0;
    for (; n < WARM; n++) {
        must(nrd_exec_await_id(x, ids[0], &o, -1));
        nrd_exec_response_free(o);
    }
    see_steps(x, &s);
    uint64_t before = s.last;
    bool all_began = s.n_prompts == 8;
    n_allocations = 0;
    counting = 1;
    for (; n < WARM + COUNTED; n++) {
        must(nrd_exec_await_id(x, ids[0], &o, -1));
        nrd_exec_response_free(o);
    }
    counting = 0;
    *out = n_allocations;
    see_steps(x, &s);
    /* A step's answers leave before the step is on record: one more than the last may have ended. */
    bool steady = all_began && s.last - before >= COUNTED_MIN &&
                  s.last + 1 < s.first_prompt + STEADY - 1;
    for (int p = 0; p < 8; p++) {
        take_all(x, ids[p]);
    }
    return steady;
}

static void test_decode_steps_allocate_nothing(void **state)
{
    nrd_exec_config c = config();
    uint64_t id;
    long n = -1;
    (void)state;
    if (!CAN_COUNT) {
        skip();
    }
    c.enable_kv_cache_reuse = true;
    nrd_exec *x = open_exec(&c);
    nrd_exec_request first = ask(0);
    first.max_new_tokens = STEADY;
    first.streaming = true;
    must(nrd_exec_enqueue(x, &first, &id));
    wait_iterations(x, STEADY); /* answers pile up: from then on there is one for every step below, */
    take_all(x, id);            /* however late this thread takes it */
    bool steady = false;
    for (int round = 0; round < 100 && !steady; round++) {
        steady = count_steady(x, &n);
    }
    assert_true(steady);
    assert_int_equal(n, 0);
    nrd_exec_close(x);
}

static const nrd_profile_row *profile_find(const nrd_profile_row *rows, int32_t n, const char *name,
                                           bool has_prompts)
{
    for (int32_t i = 0; i < n; i++) {
        if (!strcmp(rows[i].operation, name) && rows[i].has_prompts == has_prompts) {
            return &rows[i];
        }
    }
    return NULL;
}

static void test_profile_splits_steps_into_operations(void **state)
{
    nrd_exec_config c = config();
    nrd_exec_info info = {.size = sizeof info};
    nrd_profile_row rows[64];
    int32_t n = 0;
    result plain, timed;
    uint64_t id;
    (void)state;

    nrd_exec *x = open_exec(&c);
    nrd_exec_request r = ask(0);
    r.max_new_tokens = 60;
    must(nrd_exec_enqueue(x, &r, &id));
    collect(x, id, &plain);
    must_fail(nrd_exec_profile(x, rows, 64, &n, false), NRD_ERR_UNSUPPORTED, "profile_every");
    nrd_exec_close(x);

    c.profile_every = 5;
    x = open_exec(&c);
    nrd_exec_get_info(x, &info);
    must(nrd_exec_enqueue(x, &r, &id));
    collect(x, id, &timed);
    assert_int_equal(timed.n, plain.n);
    assert_memory_equal(timed.ids, plain.ids, (size_t)plain.n * sizeof *plain.ids);
    must(nrd_exec_shutdown(x, -1));

    must(nrd_exec_profile(x, rows, 64, &n, true));
    const nrd_profile_row *step = profile_find(rows, n, "step", false);
    const nrd_profile_row *attention = profile_find(rows, n, "attention", false);
    const nrd_profile_row *up = profile_find(rows, n, "up", false);
    const nrd_profile_row *prompt = profile_find(rows, n, "step", true);
    assert_non_null(step);
    assert_non_null(attention);
    assert_non_null(up);
    assert_non_null(prompt);
    assert_int_equal(prompt->n_calls, 1);
    assert_int_equal(attention->n_steps, 12); /* 60 steps, each fifth of them by operation */
    assert_int_equal(step->n_calls, 60 - 1 - 12);
    assert_int_equal(attention->n_calls, 12 * info.n_layers);
    assert_int_equal(up->n_calls, 12 * info.n_layers);
    assert_true(step->seconds > 0 && attention->seconds > 0 && up->flops > 0);
    assert_true(attention->bytes > 0 && attention->seconds < step->seconds * 60);
    must(nrd_exec_profile(x, rows, 64, &n, false));
    assert_int_equal(n, 0); /* it was reset */
    nrd_exec_close(x);
}

static int setup(void **state)
{
    (void)state;
    tiny_build(&tiny, tiny_llama, 16);
    make_prompts();
    run_alone(alone);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tiny_remove(&tiny);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch_does_not_change_tokens),
        cmocka_unit_test(test_a_cpu_is_deterministic_by_itself),
        cmocka_unit_test(test_chunked_context_does_not_change_tokens),
        cmocka_unit_test(test_prefix_reuse_does_not_change_tokens),
        cmocka_unit_test(test_pauses_do_not_change_tokens),
        cmocka_unit_test(test_static_batches_do_not_change_tokens),
        cmocka_unit_test(test_steps_enqueued_ahead_do_not_change_tokens),
        cmocka_unit_test(test_tokens_without_log_probs_are_those_with_them),
        cmocka_unit_test(test_reused_blocks_are_counted),
        cmocka_unit_test(test_blocks_come_back_from_host_memory),
        cmocka_unit_test(test_answer_echoes_the_prompt_unless_told_otherwise),
        cmocka_unit_test(test_end_token_ends_and_is_left_out_and_stop_phrase_stays),
        cmocka_unit_test(test_bad_words_and_repeated_ngrams_never_come),
        cmocka_unit_test(test_bias_moves_the_choice),
        cmocka_unit_test(test_bias_of_few_tokens_is_that_of_a_vector),
        cmocka_unit_test(test_sequences_of_one_request_differ_and_repeat),
        cmocka_unit_test(test_scores_agree_with_generation),
        cmocka_unit_test(test_rows_and_inputs_of_products_are_told),
        cmocka_unit_test(test_pooled_states_of_a_prompt_and_its_beginnings),
        cmocka_unit_test(test_pooling_goes_beside_generation_and_refuses_what_it_cannot_give),
        cmocka_unit_test(test_beams_are_sorted_and_their_sums_are_true),
        cmocka_unit_test(test_logits_of_prompt_and_choices_meet),
        cmocka_unit_test(test_logits_of_beams_are_those_of_their_paths),
        cmocka_unit_test(test_top_log_probs_come_with_each_token),
        cmocka_unit_test(test_bad_requests_are_refused_by_name),
        cmocka_unit_test(test_cache_too_small_for_one_sequence_is_refused_at_open),
        cmocka_unit_test(test_cancelled_request_ends_with_what_it_has),
        cmocka_unit_test(test_queue_limit_and_shutdown),
        cmocka_unit_test(test_shutdown_in_time_cuts_what_runs),
        cmocka_unit_test(test_lost_device_fails_what_is_in_flight_and_nothing_hangs),
        cmocka_unit_test(test_device_lost_before_a_step_is_lost_too),
        cmocka_unit_test(test_decode_steps_allocate_nothing),
        cmocka_unit_test(test_profile_splits_steps_into_operations),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
