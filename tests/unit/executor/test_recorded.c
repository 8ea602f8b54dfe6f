/* SPDX-License-Identifier: Apache-2.0
 * Steps that a device records and runs again (recording_cpu.h) give what they give without, whatever the lengths of drafts. */
#include "recording_cpu.h"

#include "exec_checks.h"
#include "tiny_eagle.h"

#include "base/file.h"
#include "device/device.h"
#include "engine/run/batch.h"

enum { N = 24, N_NEW = 110, PROMPT = 40 };

static tiny_engine model;
static char eagle_dir[] = "/tmp/nrd-recorded-XXXXXX";
static int32_t plain[N][N_NEW];
static int32_t n_ahead; /* graphs of an executor that was just opened; n_recorded counts those behind them */

static nrd_exec_request ask(int i, int32_t *prompt)
{
    nrd_exec_request r;
    nrd_exec_request_init(&r);
    for (int k = 0; k < PROMPT; k++) {
        prompt[k] = (i % 3 * 31 + k % (5 + i % 4) * 7) % TINY_VOCAB;
    }
    r.input_ids = prompt;
    r.n_input_ids = PROMPT - i % 7;
    r.max_new_tokens = N_NEW - i % 5;
    r.exclude_input_in_output = true;
    r.sampling.random_seed = (uint64_t)i;
    r.sampling.top_k = (const int32_t[]){1, 10, 0}[i % 3];
    r.sampling.top_p = i % 3 == 2 ? 0.9f : 0;
    r.sampling.repetition_penalty = i % 5 == 4 ? 1.2f : 1;
    r.sampling.no_repeat_ngram_size = i % 7 == 3 ? 2 : 0;
    return r;
}

static void run(const char *speculative, bool records, int at_once, int32_t (*out)[N_NEW])
{
    static int32_t prompts[N][PROMPT];
    nrd_exec_config c;
    nrd_exec *x = NULL;
    nrd_exec_config_init(&c);
    c.device = "cpu";
    c.n_threads = 1;
    c.deterministic = true;
    c.speculative_config = speculative;
    c.max_batch_size = 8;
    records_steps = records;
    n_recorded = 0;
    must(nrd_exec_open(&x, model.dir, &c));
    n_ahead = n_recorded;
    n_recorded = n_launched = n_mixed = 0;
    for (int first = 0; first < N; first += at_once) {
        uint64_t ids[N];
        for (int i = first; i < first + at_once && i < N; i++) {
            nrd_exec_request r = ask(i, prompts[i]);
            must(nrd_exec_enqueue(x, &r, &ids[i]));
        }
        for (int i = first; i < first + at_once && i < N; i++) {
            nrd_exec_response *r = NULL;
            must(nrd_exec_await_id(x, ids[i], &r, 60 * 1000 * 1000));
            must(r->error);
            memcpy(out[i], r->beams[0].ids, (size_t)r->beams[0].n_ids * sizeof out[i][0]);
            nrd_exec_response_free(r);
        }
    }
    close_empty(x);
}

static void check_texts(const char *speculative, int at_once)
{
    int32_t got[N][N_NEW] = {{0}};
    run(speculative, true, at_once, got);
    for (int i = 0; i < N; i++) {
        if (memcmp(got[i], plain[i], sizeof got[i])) {
            fail_msg("%s, %d at a time: request %d says something else", speculative ? speculative : "no drafts", at_once, i);
        }
    }
}

/* mixed: drafts of a step have different lengths. */
static void check(const char *speculative, int at_once, bool mixed)
{
    check_texts(speculative, at_once);
    if (n_launched < 2 * n_recorded || (mixed && n_mixed < 10) || (!mixed && n_mixed > 0)) {
        fail_msg("%s, %d at a time: %d graphs, launched %d times, %d of them mixed", speculative ? speculative : "no drafts", at_once,
                 n_recorded, n_launched, n_mixed);
    }
}

static void test_steps_without_drafts(void **state)
{
    (void)state;
    check(NULL, 1, false);
    check(NULL, 7, false);
    check(NULL, N, false);
}

static void test_drafts_of_any_lengths(void **state)
{
    static const char ngram[] = "{\"method\": \"ngram\", \"adaptive\": false, \"prompt_lookup_min\": 1, \"num_speculative_tokens\": 6}";
    (void)state;
    check(ngram, 1, false);
    check(ngram, 3, true);
    check(ngram, 8, true);
    check(ngram, N, true);
}

/* Where drafts are chains, steps with as many tokens as most have need not be recorded while requests wait. */
static void test_steps_with_drafts_are_recorded_ahead(void **state)
{
    int32_t got[N][N_NEW];
    (void)state;
    for (int at_once = 1; at_once <= 8; at_once += 7) {
        run("{\"method\": \"ngram\", \"adaptive\": false, \"prompt_lookup_min\": 1}", true, at_once, got);
        if (n_recorded >= n_ahead || n_launched < 4 * n_recorded) {
            fail_msg("%d at a time: %d graphs before the requests, %d more, launched %d times", at_once, n_ahead, n_recorded, n_launched);
        }
    }
}

static void test_networks_that_guess(void **state)
{
    char *chain = nrd_xasprintf("{\"method\": \"eagle3\", \"model\": \"%s\", \"adaptive\": false, \"num_speculative_tokens\": 3}", eagle_dir);
    char *tree = nrd_xasprintf("{\"method\": \"eagle3\", \"model\": \"%s\", \"adaptive\": false, \"num_speculative_tokens\": 9,"
                               " \"dynamic_tree_max_topK\": 3, \"max_draft_path_len\": 3}", eagle_dir);
    (void)state;
    check(chain, 1, false);
    check(chain, N, true);
    check(tree, 1, false);
    check(tree, N, true);
    free(chain);
    free(tree);
}

static void test_heads_beside_the_models(void **state)
{
    char *medusa = nrd_xasprintf("{\"method\": \"medusa\", \"model\": \"%s\", \"adaptive\": false, \"num_speculative_tokens\": 12}", model.dir);
    char *redrafter = nrd_xasprintf("{\"method\": \"redrafter\", \"model\": \"%s/redrafter\", \"adaptive\": false,"
                                    " \"num_speculative_tokens\": 4}", model.dir);
    (void)state;
    tiny_write_medusa(model.dir);
    tiny_write_redrafter(model.dir);
    for (int at_once = 1; at_once <= N; at_once += N - 1) {
        check(medusa, at_once, at_once > 1);
        check(redrafter, at_once, at_once > 1);
    }
    free(medusa);
    free(redrafter);
}

/* Drafts come and go by what steps take here; where they rest, steps are planned ahead. */
static void test_drafts_that_are_left_out_at_times(void **state)
{
    static const char *const methods[] = {"ngram", "eagle3", "medusa", "redrafter", "lookahead"};
    (void)state;
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        const char *of = i == 1 ? eagle_dir : model.dir;
        char *json = i == 0 || i == 4 ? nrd_xasprintf("{\"method\": \"%s\"}", methods[i])
                                      : nrd_xasprintf("{\"method\": \"%s\", \"model\": \"%s%s\"}", methods[i], of, i == 3 ? "/redrafter" : "");
        check_texts(json, 1);
        check_texts(json, N);
        free(json);
    }
}

/* What is recorded while an engine is loaded, with nobody in it, reads the states of encoders too. */
static void test_a_step_of_nobody_reads_states(void **state)
{
    const nrd_batch_limits lim = {
        .max_tokens = 64, .max_entries = 8, .max_fill = NRD_GRAPHS_FILL, .max_rows = 8, .block_tokens = 16, .max_blocks = 4, .max_cross_blocks = 2,
        .vocab = TINY_VOCAB,
    };
    const nrd_device_config config = {.n_threads = 1};
    const nrd_plan nobody = {0};
    nrd_device *dev = NULL;
    nrd_stream *stream = NULL;
    nrd_batch b;
    (void)state;
    records_steps = true;
    must(nrd_cpu_open(&dev, &config));
    must(dev->ops->stream_new(dev, &stream));
    must(nrd_batch_init(&b, dev, &lim));
    const nrd_batch_pad pad = {.shape = {.rows = 4, .tokens = 4, .each = 1}, .ctx = 64, .stride = 4, .mem = b.mem};
    must(nrd_batch_fill(&b, stream, &nobody, &pad, NULL));
    assert_int_equal(b.view.n_seqs, 4);
    assert_int_equal(b.cross.n_seqs, 4);
    assert_int_equal(b.cross.max_ctx_len, 32);
    nrd_batch_fini(&b);
    dev->ops->stream_free(stream);
    dev->ops->close(dev);
}

static int set_up(void **state)
{
    (void)state;
    tiny_build(&model, tiny_llama, 16);
    if (!mkdtemp(eagle_dir)) {
        return -1;
    }
    tiny_put_eagle_config(eagle_dir, tiny_eagle3_config);
    tiny_write_eagle(eagle_dir, tiny_eagle3, NULL, NULL, false);
    run(NULL, false, 1, plain);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    tiny_remove(&model);
    nrd_dir_remove(eagle_dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_without_drafts),
        cmocka_unit_test(test_drafts_of_any_lengths),
        cmocka_unit_test(test_steps_with_drafts_are_recorded_ahead),
        cmocka_unit_test(test_networks_that_guess),
        cmocka_unit_test(test_heads_beside_the_models),
        cmocka_unit_test(test_drafts_that_are_left_out_at_times),
        cmocka_unit_test(test_a_step_of_nobody_reads_states),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
