/* SPDX-License-Identifier: Apache-2.0
 * Draws have the model's distribution, whatever guesses: tokens from the best three each, 20,000 answers for each way to guess. The
 * first three tokens of an answer make 27 cases, which are compared with the probabilities that the model gives them, by chi-square. */
#include "exec_checks.h"
#include "tiny_methods.h"

#include "base/hash.h"
#include "nereid/device.h"

#include <math.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { N_DRAWS = 2000, N_WAYS = 2 }; /* the others run in test_mix */
#else
enum { N_DRAWS = 20000, N_WAYS = TINY_METHODS };
#endif
enum { PROMPT = 100, TOP = 3, N_COUNTED = 3, N_NEW = 6, ROWS = 13, ANSWERS = 27, AT_ONCE = 500, N_GIVEN = 2 };
enum { SEED = 11 }; /* of a prompt behind which every way guesses right now and then, and no answer is very rare */
#define TEMPERATURE 2.0
#define CHI_AT_1_PERCENT 45.64 /* of 26 degrees of freedom */

static int32_t prompt[PROMPT + N_COUNTED];
/* The best three behind the prompt (row 0), behind each first token a (1 + a), and behind each second b (4 + 3a + b), with
 * their probabilities among themselves. */
static int32_t likely[ROWS][TOP];
static double p[ROWS][TOP];
static int32_t plain[N_DRAWS][N_NEW]; /* answers without drafts */

static void look(nrd_exec *x, int32_t n, int row)
{
    float log_probs[PROMPT + N_COUNTED], top[TOP * (PROMPT + N_COUNTED)];
    int32_t ids[TOP * (PROMPT + N_COUNTED)];
    double sum = 0;
    prompt[n] = 0; /* whatever: its place is asked about */
    must(nrd_exec_score(x, prompt, n + 1, TOP, log_probs, ids, top));
    for (int k = 0; k < TOP; k++) {
        likely[row][k] = ids[TOP * n + k];
        p[row][k] = exp((double)(top[TOP * n + k] - top[TOP * n]) / TEMPERATURE);
        sum += p[row][k];
    }
    for (int k = 0; k < TOP; k++) {
        p[row][k] /= sum;
    }
}

static void make_prompt(nrd_exec *x, uint64_t seed)
{
    for (int k = 0; k < PROMPT; k++) {
        prompt[k] = (int32_t)(nrd_hash_u64(seed, (uint64_t)k) % TINY_VOCAB);
    }
    look(x, PROMPT, 0);
    for (int a = 0; a < TOP; a++) {
        prompt[PROMPT] = likely[0][a];
        look(x, PROMPT + 1, 1 + a);
        for (int b = 0; b < TOP; b++) {
            prompt[PROMPT + 1] = likely[1 + a][b];
            look(x, PROMPT + 2, 4 + 3 * a + b);
        }
    }
}

/* How many of the draws begin with the likely tokens 9a + 3b + c. */
static double expected(int begin)
{
    const int a = begin / 9, b = begin / 3 % 3;
    return p[0][a] * p[1 + a][b] * p[4 + 3 * a + b][begin % 3] * N_DRAWS;
}

static nrd_exec *open_exec(const char *speculative)
{
    nrd_exec *x = NULL;
    nrd_exec_config c;
    nrd_exec_config_init(&c);
    c.device = "cpu";
    c.n_threads = 1;
    c.deterministic = c.enable_kv_cache_reuse = true;
    c.speculative_config = speculative;
    must(nrd_exec_open(&x, tiny_all.dir, &c));
    return x;
}

static int32_t draw(const double *q, uint64_t seed, uint32_t number)
{
    const double u = (double)nrd_sample_uniform(seed, number);
    return u < q[0] ? 0 : u < q[0] + q[1] ? 1 : 2;
}

/* Two tokens of a draft, drawn from other distributions of the same three tokens, which go along as logits. */
static void give_draft(nrd_exec_request *r, uint64_t seed, int32_t *ids, float *logits)
{
    static const double given[N_GIVEN][TOP] = {{0.2, 0.5, 0.3}, {0.1, 0.3, 0.6}};
    int row = 0;
    for (int i = 0; i < N_GIVEN; i++) {
        const int32_t chosen = draw(given[i], nrd_hash_u64(seed, 99), (uint32_t)i);
        for (int k = 0; k < TINY_VOCAB; k++) {
            logits[i * TINY_VOCAB + k] = -100;
        }
        for (int k = 0; k < TOP; k++) {
            logits[i * TINY_VOCAB + likely[row][k]] = (float)(TEMPERATURE * log(given[i][k]));
        }
        ids[i] = likely[row][chosen];
        row = 1 + chosen;
    }
    r->draft_input_ids = ids;
    r->draft_logits = logits;
    r->n_draft_input_ids = N_GIVEN;
}

static int begin_of(const int32_t *ids)
{
    int at[N_COUNTED], row = 0;
    for (int k = 0; k < N_COUNTED; k++) {
        for (at[k] = 0; at[k] < TOP && likely[row][at[k]] != ids[k]; at[k]++) {
        }
        assert_true(at[k] < TOP);
        row = k == 0 ? 1 + at[0] : 4 + 3 * at[0] + at[1];
    }
    return 9 * at[0] + 3 * at[1] + at[2];
}

/* All draws; how many drafted tokens held. Closes x. */
static int32_t draw_all(nrd_exec *x, bool give, int32_t (*out)[N_NEW])
{
    static int32_t ids[AT_ONCE][N_GIVEN];
    static float logits[AT_ONCE][N_GIVEN * TINY_VOCAB];
    int32_t n_held = 0;
    for (int first = 0; first < N_DRAWS; first += AT_ONCE) {
        uint64_t request[AT_ONCE];
        for (int i = 0; i < AT_ONCE; i++) {
            nrd_exec_request r;
            nrd_exec_request_init(&r);
            r.input_ids = prompt;
            r.n_input_ids = PROMPT;
            r.max_new_tokens = N_NEW;
            r.exclude_input_in_output = true;
            r.sampling.top_k = TOP;
            r.sampling.temperature = (float)TEMPERATURE;
            r.sampling.random_seed = (uint64_t)(first + i);
            if (give) {
                give_draft(&r, r.sampling.random_seed, ids[i], logits[i]);
            }
            must(nrd_exec_enqueue(x, &r, &request[i]));
        }
        for (int i = 0; i < AT_ONCE; i++) {
            nrd_exec_response *o = NULL;
            must(nrd_exec_await_id(x, request[i], &o, 60 * 1000 * 1000));
            must(o->error);
            memcpy(out[first + i], o->beams[0].ids, sizeof *out);
            n_held += o->perf.n_accepted_draft_tokens;
            nrd_exec_response_free(o);
        }
    }
    close_empty(x);
    return n_held;
}

static void expect_distribution(int32_t (*answers)[N_NEW], const char *what)
{
    int seen[ANSWERS] = {0};
    double chi = 0;
    for (int i = 0; i < N_DRAWS; i++) {
        seen[begin_of(answers[i])]++;
    }
    for (int i = 0; i < ANSWERS; i++) {
        assert_true(expected(i) > 5); /* else chi-square says little */
        chi += (seen[i] - expected(i)) * (seen[i] - expected(i)) / expected(i);
    }
    if (chi >= CHI_AT_1_PERCENT) {
        fail_msg("%s: chi-square %.1f", what, chi);
    }
}

/* With the same seed an answer is the one without drafts; where sums are added in another order, a draw that falls on the
 * border of two tokens may fall on the other side. */
static void test_draws_have_the_model_s_distribution_with_each_method(void **state)
{
    static int32_t got[N_DRAWS][N_NEW];
    (void)state;
    expect_distribution(plain, "without drafts");
    for (int i = 0; i < N_WAYS; i++) {
        const tiny_method *m = &tiny_methods[i];
        char *json = tiny_method_json(m);
        const int32_t n_held = draw_all(open_exec(json), false, got);
        int32_t n_other = 0;
        for (int k = 0; k < N_DRAWS; k++) {
            n_other += memcmp(got[k], plain[k], sizeof got[k]) != 0;
        }
        expect_distribution(got, json);
        if (n_other > (m->trees ? N_DRAWS / 1000 : 0)) {
            fail_msg("%s: %d of %d draws are others", json, n_other, N_DRAWS);
        }
        if (n_held == 0 && strstr(json, "\"adaptive\": false")) {
            fail_msg("%s: no drafted token held", json);
        }
        free(json);
    }
}

static void test_draws_behind_logits_of_a_draft_have_the_model_s_distribution(void **state)
{
    static int32_t got[N_DRAWS][N_NEW];
    (void)state;
    const int32_t n_held = draw_all(open_exec(NULL), true, got);
    expect_distribution(got, "drafts with logits");
    assert_true(n_held > N_DRAWS / 2 && n_held < 2 * N_DRAWS);
}

static int setup(void **state)
{
    (void)state;
    tiny_methods_make();
    nrd_exec *x = open_exec(NULL);
    make_prompt(x, SEED);
    assert_int_equal(draw_all(x, false, plain), 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tiny_methods_remove();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_draws_have_the_model_s_distribution_with_each_method),
        cmocka_unit_test(test_draws_behind_logits_of_a_draft_have_the_model_s_distribution),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
