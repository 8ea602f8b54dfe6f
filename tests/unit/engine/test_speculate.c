/* SPDX-License-Identifier: Apache-2.0
 * How far drafts hold: the tokens are those that come without a draft, or have their distribution. */
#include "engine/speculate/proposer.h"
#include "engine/speculate/typical.h"
#include "engine/speculate/verify.h"

#include "base/hash.h"
#include "engine/decode/decode.h"
#include "nereid/device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB = 6, DRAFT = 2, TOTAL = 16 };

typedef struct fixture {
    nrd_seq q;
    int32_t tokens[TOTAL];
    float log_probs[TOTAL];
    float logits[(DRAFT + 1) * VOCAB], guessed[DRAFT * VOCAB];
    int32_t chosen[DRAFT + 1];
    float lp[DRAFT + 1];
    nrd_step_result result;
} fixture;

static void must(nrd_error *err)
{
    assert_null(err);
}

static void begin(fixture *f, const nrd_sampling *s, const int32_t *draft, bool with_logits, float threshold)
{
    memset(&f->q, 0, sizeof f->q);
    f->q.req.width = 1;
    f->q.req.n_prompt = 1;
    f->q.req.max_total = TOTAL;
    f->q.req.end_id = -1;
    f->q.req.sampling = *s;
    f->q.req.want_log_probs = true;
    f->q.dec.tokens = f->tokens;
    f->q.dec.log_probs = f->log_probs;
    f->q.spec.asked = true; /* as a request's own drafts are */
    must(nrd_proposer_of_request(&f->q.spec.proposer, draft, DRAFT, with_logits ? f->guessed : NULL, VOCAB, threshold));
    nrd_decode_prepare(&f->q);
    assert_true(f->q.dec.needs_host);
    assert_int_equal(f->q.spec.proposer->propose(f->q.spec.proposer, &f->q, f->tokens + 1, 8), DRAFT);
    f->result = (nrd_step_result){
        .ids = f->chosen,
        .log_probs = f->lp,
        .log_probs_norm = f->lp,
        .logits = f->logits,
        .logits_stride = VOCAB,
    };
}

static int accept(fixture *f, int32_t *out_accepted)
{
    nrd_draft_accept a;
    nrd_seq_finish finish = nrd_speculate_accept(&f->q, &f->result, 0, DRAFT, NULL, &a);
    const int32_t n_new = a.n_new;
    *out_accepted = a.n_accepted;
    nrd_proposer_free(f->q.spec.proposer);
    f->q.spec.proposer = NULL;
    assert_int_equal(nrd_seq_n_generated(&f->q), n_new);
    return finish == NRD_SEQ_FINISH_NONE ? n_new : -n_new - 1;
}

static nrd_sampling sampling(float temperature, int32_t top_k, float top_p)
{
    return (nrd_sampling){.top_k = top_k, .top_p = top_p, .top_p_decay = 1, .temperature = temperature,
                          .repetition_penalty = 1, .top_p_reset_id = -1};
}

static void test_ids_hold_up_to_the_first_that_is_wrong(void **state)
{
    static const struct {
        int32_t draft[DRAFT], chosen[DRAFT + 1], n, accepted;
    } rows[] = {
        {{3, 4}, {3, 4, 5}, 3, 2},
        {{3, 4}, {3, 1, 5}, 2, 1},
        {{3, 4}, {2, 4, 5}, 1, 0},
    };
    const nrd_sampling s = sampling(1, 1, 0);
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        fixture f = {0};
        int32_t accepted;
        memcpy(f.chosen, rows[i].chosen, sizeof f.chosen);
        begin(&f, &s, rows[i].draft, false, -1);
        assert_int_equal(accept(&f, &accepted), rows[i].n);
        assert_int_equal(accepted, rows[i].accepted);
        assert_memory_equal(f.tokens + 1, rows[i].chosen, (size_t)rows[i].n * sizeof(int32_t));
    }
}

static void test_an_end_token_in_the_draft_ends(void **state)
{
    const nrd_sampling s = sampling(1, 1, 0);
    const int32_t draft[DRAFT] = {3, 4};
    fixture f = {.chosen = {3, 4, 5}};
    int32_t accepted;
    (void)state;
    begin(&f, &s, draft, false, -1);
    f.q.req.end_id = 4;
    assert_int_equal(accept(&f, &accepted), -1 - 1); /* one token, and over */
    assert_int_equal(accepted, 2);
}

static void test_a_proposer_guesses_the_first_tokens_only(void **state)
{
    const nrd_sampling s = sampling(1, 1, 0);
    const int32_t draft[DRAFT] = {3, 4};
    fixture f = {.chosen = {3, 4, 5}};
    int32_t accepted, out[8];
    (void)state;
    begin(&f, &s, draft, false, -1);
    assert_int_equal(f.q.spec.proposer->propose(f.q.spec.proposer, &f.q, out, 1), 1);
    f.q.dec.n_known = 2;
    assert_int_equal(f.q.spec.proposer->propose(f.q.spec.proposer, &f.q, out, 8), 0);
    f.q.dec.n_known = 1;
    accept(&f, &accepted);
}

/* Softmax at a temperature over the best k. */
static void softmax(const float *logits, float temperature, int32_t top_k, double *out)
{
    double total = 0;
    for (int i = 0; i < VOCAB; i++) {
        int better = 0;
        for (int k = 0; k < VOCAB; k++) {
            better += logits[k] > logits[i];
        }
        out[i] = top_k > 0 && better >= top_k ? 0 : exp((double)logits[i] / (double)temperature);
        total += out[i];
    }
    for (int i = 0; i < VOCAB; i++) {
        out[i] /= total;
    }
}

static int32_t draw(const double *p, float u)
{
    double sum = 0;
    for (int32_t i = 0; i < VOCAB; i++) {
        sum += p[i];
        if (p[i] > 0 && sum > (double)u) {
            return i;
        }
    }
    return VOCAB - 1;
}

/* The first and the second token of many runs, drawn through a draft of another distribution. */
static void test_rejection_keeps_the_distribution(void **state)
{
    enum { RUNS = 60000 };
    static const float logits[3 * VOCAB] = {0.1f, 1.2f, -0.4f, 0.8f, -2, 0.3f, 1, -1, 0.5f, 0.2f, 0, 1.4f, 0, 0, 0, 0, 0, 0};
    static const float guessed[2 * VOCAB] = {1, 0.2f, 0.4f, -1, 0.1f, 0.9f, -0.3f, 0.7f, 0.5f, 1.2f, -1, 0.4f};
    (void)state;
    for (int mode = 0; mode < 2; mode++) {
        const float temperature = mode ? 0.7f : 1.3f;
        const int32_t top_k = mode ? 4 : 0;
        double p[2][VOCAB], q[2][VOCAB];
        int seen[2][VOCAB] = {{0}}, n_second = 0, n_accepted = 0;
        for (int i = 0; i < 2; i++) {
            softmax(logits + i * VOCAB, temperature, top_k, p[i]);
            softmax(guessed + i * VOCAB, temperature, top_k, q[i]);
        }
        for (int run = 0; run < RUNS; run++) {
            nrd_sampling s = sampling(temperature, top_k, top_k ? 0 : 0.99999f);
            fixture f = {0};
            int32_t accepted, n;
            s.seed = (uint64_t)run * 7919 + 1;
            const uint64_t other = nrd_hash_u64(s.seed, 99);
            const int32_t tokens[DRAFT] = {draw(q[0], nrd_sample_uniform(other, 0)),
                                           draw(q[1], nrd_sample_uniform(other, 1))};
            memcpy(f.logits, logits, sizeof f.logits);
            memcpy(f.guessed, guessed, sizeof f.guessed);
            begin(&f, &s, tokens, true, -1);
            n = accept(&f, &accepted);
            assert_true(n >= 1);
            assert_true(f.log_probs[0] <= 0);
            seen[0][f.tokens[1]]++;
            n_accepted += accepted;
            if (n > 1) {
                seen[1][f.tokens[2]]++;
                n_second++;
            }
        }
        for (int i = 0; i < VOCAB; i++) {
            const double all[2] = {RUNS, n_second};
            for (int k = 0; k < 2; k++) {
                double sigma = sqrt(p[k][i] * (1 - p[k][i]) / all[k]);
                assert_true(fabs(seen[k][i] / all[k] - p[k][i]) <= 4.5 * sigma + 1e-4);
            }
        }
        assert_true(n_accepted > RUNS / 3); /* more than the model's own draws would hit */
    }
}

static void test_thresholds(void **state)
{
    static const float high[3 * VOCAB] = {0, 3, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0};
    static const float flat[2 * VOCAB] = {0};
    const nrd_sampling greedy = sampling(1, 1, 0);
    const int32_t wrong[DRAFT] = {0, 0};
    (void)state;
    for (int i = 0; i < 3; i++) {
        const float threshold = (const float[]){0.0f, 0.1f, 1.0f}[i];
        fixture f = {.chosen = {1, 2, 5}};
        int32_t accepted;
        memcpy(f.logits, high, sizeof f.logits);
        memcpy(f.guessed, flat, sizeof f.guessed);
        begin(&f, &greedy, wrong, true, threshold);
        int32_t n = accept(&f, &accepted); /* p is 0.04, q 0.17 */
        assert_int_equal(accepted, i < 2 ? 2 : 0);
        assert_int_equal(n, i < 2 ? 3 : 1);
        assert_int_equal(f.tokens[1], i < 2 ? 0 : 1); /* the model's best in the place of what went */
        assert_int_equal(f.tokens[n], i < 2 ? 5 : 1);
    }
}

/* ---- typical acceptance ---- */

static float noise(uint64_t i)
{
    return nrd_sample_uniform(17, i) * 8 - 4;
}

/* The definition: p(x) >= min(threshold, alpha exp(-H)). */
static bool is_typical(const nrd_typical *t, const float *logits, int32_t x)
{
    double p[VOCAB], total = 0, entropy = 0;
    for (int i = 0; i < VOCAB; i++) {
        total += p[i] = exp((double)logits[i] / (double)t->temperature);
    }
    for (int i = 0; i < VOCAB; i++) {
        p[i] /= total;
        entropy -= p[i] * log(p[i]);
    }
    return p[x] >= fmin((double)t->threshold, (double)t->alpha * exp(-entropy));
}

static int32_t longest_below(const nrd_typical *t, const nrd_token_tree *tree, float (*logits)[VOCAB], int32_t node)
{
    int32_t best = 0;
    for (int32_t i = 0; i < tree->n; i++) {
        if (tree->parent[i] == node && is_typical(t, logits[1 + node], tree->ids[i])) {
            const int32_t below = 1 + longest_below(t, tree, logits, i);
            best = below > best ? below : best;
        }
    }
    return best;
}

static void test_the_longest_typical_path_of_a_tree_stays(void **state)
{
    int32_t n_long = 0;
    (void)state;
    for (uint64_t round = 0; round < 2000; round++) {
        const nrd_typical t = {0.02f + 0.4f * nrd_sample_uniform(3, round), 0.05f + 0.9f * nrd_sample_uniform(4, round),
                               0.4f + nrd_sample_uniform(5, round)};
        nrd_token_tree tree = {0};
        float logits[13][VOCAB];
        int32_t lengths[12], n = 0;
        for (int i = 0; i < 13 * VOCAB; i++) {
            logits[i / VOCAB][i % VOCAB] = noise(round * 200 + (uint64_t)i);
        }
        for (uint64_t i = 0; i < 40 && tree.n < 12; i++) {
            const int32_t parent = (int32_t)(nrd_sample_uniform(6, round * 99 + i) * (float)(tree.n + 1)) - 1;
            (void)nrd_tree_add(&tree, 12, parent, (int32_t)(nrd_sample_uniform(7, round * 99 + i) * VOCAB));
        }
        nrd_typical_lengths(&t, logits[0], VOCAB, VOCAB, tree.ids, tree.parent, tree.n, lengths);
        for (int32_t node = -1, at; (at = nrd_typical_next(lengths, tree.parent, tree.n, node)) >= 0; node = at) {
            assert_int_equal(tree.parent[at], node);
            assert_int_equal(lengths[at], longest_below(&t, &tree, logits, node));
            n++;
        }
        assert_int_equal(n, longest_below(&t, &tree, logits, -1));
        n_long += n > 2;
        assert_true(fabs(exp((double)nrd_typical_log_prob(logits[0], VOCAB, t.temperature, 2)) -
                         exp((double)logits[0][2] / (double)t.temperature) / (exp((double)logits[0][0] / (double)t.temperature) +
                         exp((double)logits[0][1] / (double)t.temperature) + exp((double)logits[0][2] / (double)t.temperature) +
                         exp((double)logits[0][3] / (double)t.temperature) + exp((double)logits[0][4] / (double)t.temperature) +
                         exp((double)logits[0][5] / (double)t.temperature))) < 1e-6);
    }
    assert_true(n_long > 100);
}

/* Of drawn answers only, and where nothing but the logits decides. */
static void test_a_draft_stays_where_it_is_typical(void **state)
{
    static const struct {
        float temperature, third; /* the logit of the draft's tokens; the others have 0 */
        bool biased;
        int32_t accepted;
    } rows[] = {
        {1, 0, false, 2}, /* six that are alike: p = 1/6 is above 0.09 */
        {1, -1, false, 2}, /* p = 0.0686, exp(-H) = 0.19, 0.3 of it 0.0567 */
        {1, -2, false, 0}, /* p = 0.026 */
        {2, -2, false, 2}, /* p = 0.0686 again */
        {1, 0, true, 0},
    };
    const int32_t draft[DRAFT] = {3, 3};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const nrd_sampling s = sampling(rows[i].temperature, VOCAB, 0);
        fixture f = {.chosen = {1, 2, 4}};
        int32_t accepted;
        for (int k = 0; k <= DRAFT; k++) {
            f.logits[k * VOCAB + 3] = rows[i].third;
        }
        begin(&f, &s, draft, false, -1);
        f.q.spec.proposer->posterior_threshold = 0.09f;
        f.q.spec.proposer->posterior_alpha = 0.3f;
        if (rows[i].biased) {
            f.q.run.bias.n = 1;
        }
        const int32_t n = accept(&f, &accepted);
        assert_int_equal(accepted, rows[i].accepted);
        assert_int_equal(n, accepted + 1);
        assert_int_equal(f.tokens[n], f.chosen[accepted]); /* behind what stays the model's own draw */
        if (accepted > 0) {
            const float p = expf(rows[i].third) / (5 + expf(rows[i].third));
            assert_true(fabsf(f.log_probs[0] - logf(p)) < 1e-5f);
        }
    }
    const nrd_sampling greedy = sampling(1, 1, 0);
    fixture f = {.chosen = {1, 2, 4}};
    int32_t accepted;
    begin(&f, &greedy, draft, false, -1);
    f.q.spec.proposer->posterior_threshold = 0.09f;
    f.q.spec.proposer->posterior_alpha = 0.3f;
    assert_int_equal(accept(&f, &accepted), 1);
    assert_int_equal(accepted, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ids_hold_up_to_the_first_that_is_wrong),
        cmocka_unit_test(test_an_end_token_in_the_draft_ends),
        cmocka_unit_test(test_a_proposer_guesses_the_first_tokens_only),
        cmocka_unit_test(test_rejection_keeps_the_distribution),
        cmocka_unit_test(test_the_longest_typical_path_of_a_tree_stays),
        cmocka_unit_test(test_a_draft_stays_where_it_is_typical),
        cmocka_unit_test(test_thresholds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
