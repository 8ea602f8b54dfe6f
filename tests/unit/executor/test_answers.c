/* SPDX-License-Identifier: Apache-2.0
 * What an answer holds: its tokens, their log probabilities and logits, beams, pooled states, rows told on the way. */
#include "tiny_exec.h"

#include <math.h>

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
    for (int32_t n_last = 1; n_last <= n; n_last++) { /* the last alone are as among all */
        float some[TINY_MAX_SEQ + 1], some_top[TINY_MAX_SEQ * 2];
        int32_t some_ids[TINY_MAX_SEQ * 2];
        some[n_last] = -77;
        must(nrd_exec_score_last(x, 0, all, n, n_last, 2, some, some_ids, some_top));
        for (int32_t i = 0; i < n_last; i++) {
            assert_true(fabsf(some[i] - lp[n - n_last + i]) < 1e-4f);
            assert_int_equal(some_ids[i * 2], top[(n - n_last + i) * 2]);
        }
        assert_true(some[n_last] < -76);
    }
    for (int32_t n_last = 0; n_last <= n + 1; n_last += n + 1) {
        nrd_error *err = nrd_exec_score_last(x, 0, all, n, n_last, 0, lp, NULL, NULL);
        assert_non_null(err);
        nrd_exec_error_free(err);
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
                        const void *x, nrd_dtype dtype)
{
    watch *w = user;
    assert_int_equal(expert, -1);
    assert_int_equal(dtype, NRD_DTYPE_F32);
    w->tokens[layer][product] += n_tokens;
    w->cols[product] = cols;
    for (int32_t i = 0; i < n_tokens * cols; i++) {
        w->all_finite = w->all_finite && isfinite(((const float *)x)[i]);
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
/* Shorter than the engine allows, with a cache for that; never longer. */
static void test_sequences_can_be_shorter_than_the_engine_allows(void **state)
{
    nrd_exec_info all = {.size = sizeof all}, some = all, more = all;
    nrd_exec_config c = config();
    (void)state;
    c.max_batch_size = 1;
    nrd_exec *x = open_exec(&c);
    nrd_exec_get_info(x, &all);
    nrd_exec_close(x);
    c.max_seq_len = 2 * all.max_seq_len;
    x = open_exec(&c);
    nrd_exec_get_info(x, &more);
    nrd_exec_close(x);
    assert_int_equal(more.max_seq_len, all.max_seq_len);
    c.max_seq_len = 24;
    x = open_exec(&c);
    nrd_exec_get_info(x, &some);
    assert_int_equal(some.max_seq_len, 24);
    assert_true(some.n_kv_blocks < all.n_kv_blocks);
    nrd_exec_request r = ask(2);
    uint64_t id;
    result got;
    r.max_new_tokens = 40;
    must(nrd_exec_enqueue(x, &r, &id));
    collect(x, id, &got);
    assert_int_equal(got.n, 24 - r.n_input_ids);
    assert_memory_equal(got.ids, alone[2].ids, (size_t)got.n * sizeof *got.ids);
    nrd_exec_close(x);
}

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answer_echoes_the_prompt_unless_told_otherwise),
        cmocka_unit_test(test_end_token_ends_and_is_left_out_and_stop_phrase_stays),
        cmocka_unit_test(test_bad_words_and_repeated_ngrams_never_come),
        cmocka_unit_test(test_bias_moves_the_choice),
        cmocka_unit_test(test_bias_of_few_tokens_is_that_of_a_vector),
        cmocka_unit_test(test_sequences_of_one_request_differ_and_repeat),
        cmocka_unit_test(test_scores_agree_with_generation),
        cmocka_unit_test(test_rows_and_inputs_of_products_are_told),
        cmocka_unit_test(test_sequences_can_be_shorter_than_the_engine_allows),
        cmocka_unit_test(test_pooled_states_of_a_prompt_and_its_beginnings),
        cmocka_unit_test(test_pooling_goes_beside_generation_and_refuses_what_it_cannot_give),
        cmocka_unit_test(test_beams_are_sorted_and_their_sums_are_true),
        cmocka_unit_test(test_logits_of_prompt_and_choices_meet),
        cmocka_unit_test(test_logits_of_beams_are_those_of_their_paths),
        cmocka_unit_test(test_top_log_probs_come_with_each_token),
    };
    return cmocka_run_group_tests(tests, tiny_exec_setup, tiny_exec_teardown);
}
