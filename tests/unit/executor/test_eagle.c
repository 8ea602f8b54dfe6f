/* SPDX-License-Identifier: Apache-2.0
 * EAGLE heads: answers are those without them, guesses do not depend on who else is there, and what is refused. That they are
 * what the papers' formulas say is tests/tools/test_eagle.py's affair. */
#include "exec_checks.h"
#include "tiny_eagle.h"

#include "base/file.h"
#include "model/eagle_heads.h"

enum { N = 24, N_NEW = 40, PROMPT = 40 };

static tiny_engine model;
static char heads_dir[] = "/tmp/nrd-eagle-XXXXXX";
static int32_t alone[N][N_NEW];

static nrd_error *open_with(nrd_exec **x, const char *method, const char *more, const nrd_exec_config *with)
{
    nrd_exec_config c = *with;
    char *json = method ? nrd_xasprintf("{\"method\": \"%s\", \"model\": \"%s\"%s}", method, heads_dir, more) : NULL;
    c.device = "cpu";
    c.n_threads = 2;
    c.deterministic = true;
    c.speculative_config = json;
    nrd_error *err = nrd_exec_open(x, model.dir, &c);
    free(json);
    return err;
}

static nrd_exec_request ask(int i, int32_t *prompt)
{
    nrd_exec_request r;
    nrd_exec_request_init(&r);
    for (int k = 0; k < PROMPT; k++) {
        prompt[k] = (i % 3 * 31 + k * 7 + (k > 25 ? i * 5 : 0)) % TINY_VOCAB;
    }
    r.input_ids = prompt;
    r.n_input_ids = PROMPT - i % 7;
    r.max_new_tokens = N_NEW;
    r.exclude_input_in_output = true;
    r.sampling.random_seed = (uint64_t)i;
    r.sampling.top_k = (const int32_t[]){1, 10, 0}[i % 3];
    r.sampling.top_p = i % 3 == 2 ? 0.9f : 0;
    r.sampling.repetition_penalty = i % 5 == 4 ? 1.2f : 1;
    return r;
}

typedef struct counts {
    int32_t drafted, held;
} counts;

static void run(nrd_exec *x, int at_once, int32_t (*out)[N_NEW], counts *each)
{
    static int32_t prompts[N][PROMPT];
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
            assert_int_equal(r->beams[0].n_ids, N_NEW);
            memcpy(out[i], r->beams[0].ids, sizeof out[i]);
            each[i] = (counts){r->perf.n_draft_tokens, r->perf.n_accepted_draft_tokens};
            nrd_exec_response_free(r);
        }
    }
}

/* want: the guesses of each request, or NULL. */
static void check_run(const char *method, const char *more, const nrd_exec_config *c, int at_once, counts *each, const counts *want)
{
    nrd_exec *x = NULL;
    int32_t got[N][N_NEW];
    must(open_with(&x, method, more, c));
    run(x, at_once, got, each);
    for (int k = 0; k < N; k++) {
        if (memcmp(got[k], alone[k], sizeof alone[k])) {
            fail_msg("%s, %d at a time: request %d says something else", method, at_once, k);
        }
        if (want && memcmp(&each[k], &want[k], sizeof each[k])) {
            fail_msg("%s, %d at a time: %d of %d guesses of request %d held, alone %d of %d", method, at_once, each[k].held,
                     each[k].drafted, k, want[k].held, want[k].drafted);
        }
    }
    close_empty(x);
}

#define TREE ", \"adaptive\": false, \"num_speculative_tokens\": 14, \"dynamic_tree_max_topK\": 4, \"max_draft_path_len\": 3"

static void check_method(const char *method)
{
    nrd_exec_config c;
    counts each[N], first[N];
    int32_t drafted = 0, held = 0;
    nrd_exec_config_init(&c);
    check_run(method, ", \"adaptive\": false", &c, 1, first, NULL);
    for (int i = 0; i < N; i++) {
        drafted += first[i].drafted;
        held += first[i].held;
    }
    assert_true(drafted > N * N_NEW && held > 0);
    check_run(method, ", \"adaptive\": false", &c, 8, each, first);
    check_run(method, ", \"adaptive\": false, \"num_speculative_tokens\": 7", &c, N, each, NULL);
    check_run(method, "", &c, 8, each, NULL);
    check_run(method, TREE, &c, 1, first, NULL);
    check_run(method, TREE, &c, 3, each, NULL);
    check_run(method, ", \"adaptive\": false, \"eagle_choices\": [[0], [1], [0, 0], [0, 2], [1, 0], [0, 0, 0]]", &c, 8, each, NULL);
    check_run(method, ", \"dynamic_tree_max_topK\": 5", &c, 8, each, NULL);
    c.enable_kv_cache_reuse = true;
    check_run(method, ", \"adaptive\": false", &c, 1, each, NULL);
    check_run(method, ", \"adaptive\": false", &c, 8, each, NULL);
    c.policy = NRD_POLICY_MAX_UTILIZATION; /* pauses: the states of what is computed again are there again */
    c.max_tokens_in_paged_kv_cache = 3 * TINY_MAX_SEQ;
    c.enable_chunked_context = true;
    check_run(method, ", \"adaptive\": false", &c, N, each, NULL);
    check_run(method, TREE, &c, N, each, NULL);
}

static void test_answers_are_those_without_and_guesses_do_not_depend_on_others(void **state)
{
    (void)state;
    tiny_write_eagle(heads_dir, tiny_eagle1, NULL, NULL, false);
    check_method("eagle");
    tiny_write_eagle(heads_dir, tiny_eagle3, NULL, NULL, false);
    check_method("eagle3");
}

static uint64_t weight_bytes(const char *more)
{
    nrd_exec_config c;
    nrd_exec *x = NULL;
    nrd_exec_config_init(&c);
    must(open_with(&x, "eagle3", more, &c));
    const uint64_t bytes = x->info.weight_bytes;
    close_empty(x);
    return bytes;
}

static void test_heads_of_bytes_take_a_quarter_of_float32(void **state)
{
    static const char bytes[] = ", \"adaptive\": false, \"quantization\": \"int8\"";
    int64_t numbers = 0;
    nrd_exec_config c;
    counts each[N];

    (void)state;
    nrd_exec_config_init(&c);
    tiny_write_eagle(heads_dir, tiny_eagle3, NULL, NULL, false);
    for (const tiny_part *p = tiny_eagle3; p->name; p++) {
        numbers += p->rows * p->cols;
    }
    check_run("eagle3", bytes, &c, 8, each, NULL);
    assert_true(weight_bytes("") - weight_bytes(bytes) == 3 * (uint64_t)numbers);
}

/* ---- what is refused ---- */

static void expect_refused(const char *method, const char *words)
{
    nrd_exec_config c;
    nrd_exec *x = NULL;
    nrd_exec_config_init(&c);
    nrd_error *err = open_with(&x, method, "", &c);
    if (!err) {
        fail_msg("taken, expected: %s", words);
    }
    if (!strstr(nrd_exec_error_message(err), words)) {
        fail_msg("%s, expected: %s", nrd_exec_error_message(err), words);
    }
    nrd_exec_error_free(err);
}

static void test_heads_of_other_sizes_are_refused_by_tensor(void **state)
{
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        const tiny_part *parts = kind ? tiny_eagle3 : tiny_eagle1;
        const char *method = kind ? "eagle3" : "eagle";
        for (const tiny_part *p = parts; p->name; p++) {
            if (strcmp(p->name, "fc.bias")) {
                tiny_write_eagle(heads_dir, parts, p->name, NULL, false);
                expect_refused(method, strstr(p->name, "hidden_norm") ? "use the method 'eagle'" : p->name);
            }
            tiny_write_eagle(heads_dir, parts, NULL, p->name, false);
            expect_refused(method, p->name);
        }
    }
    tiny_write_eagle(heads_dir, tiny_eagle3, NULL, NULL, true);
    expect_refused("eagle3", "d2t[49] is 47; with 49 it must be a token of the model, from 87 to 95");
    tiny_write_eagle(heads_dir, tiny_eagle3, NULL, NULL, false);
    expect_refused("eagle", "use the method 'eagle3'");
}

static void test_configurations_of_heads_are_refused_by_key(void **state)
{
    static const struct {
        const char *more, *words;
    } rows[] = {
        {", \"draft_vocab_size\": 97", "draft_vocab_size is 97, expected 1 to 96"},
        {", \"draft_vocab_size\": 0", "draft_vocab_size is 0"},
        {", \"draft_vocab_size\": 50, \"eagle_config\": {\"eagle_aux_hidden_state_layer_ids\": [0, 1]}", "must be 3 numbers"},
        {", \"draft_vocab_size\": 50, \"eagle_config\": {\"eagle_aux_hidden_state_layer_ids\": [0, 1, 3]}", "into layer 3"},
        {", \"draft_vocab_size\": 50, \"eagle_config\": {\"eagle_aux_hidden_state_layer_ids\": [-1, 1, 2]}", "into layer -1"},
        {", \"draft_vocab_size\": 50, \"sliding_window\": ", "config.json"},
    };
    (void)state;
    tiny_write_eagle(heads_dir, tiny_eagle3, NULL, NULL, false);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        tiny_put_eagle_config(heads_dir, rows[i].more);
        expect_refused("eagle3", rows[i].words);
    }
    nrd_exec_config c;
    nrd_exec *x = NULL;
    nrd_exec_config_init(&c);
    c.device = "cpu";
    c.speculative_config = "{\"method\": \"eagle\"}";
    nrd_error *err = nrd_exec_open(&x, model.dir, &c);
    assert_non_null(err);
    assert_non_null(strstr(nrd_exec_error_message(err), "method 'eagle' without model takes the engine's own: '"));
    nrd_exec_error_free(err);
}

static int set_up(void **state)
{
    nrd_exec_config c;
    nrd_exec *x = NULL;
    counts unused[N];
    (void)state;
    tiny_build(&model, tiny_llama, 16);
    if (!mkdtemp(heads_dir)) {
        return -1;
    }
    nrd_exec_config_init(&c);
    must(open_with(&x, NULL, "", &c));
    run(x, 1, alone, unused);
    close_empty(x);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    tiny_remove(&model);
    nrd_dir_remove(heads_dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_are_those_without_and_guesses_do_not_depend_on_others),
        cmocka_unit_test(test_heads_of_bytes_take_a_quarter_of_float32),
        cmocka_unit_test(test_heads_of_other_sizes_are_refused_by_tensor),
        cmocka_unit_test(test_configurations_of_heads_are_refused_by_key),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
