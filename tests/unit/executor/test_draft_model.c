/* SPDX-License-Identifier: Apache-2.0
 * A draft model beside the model: greedy answers and drawn ones are those without it, whatever it guesses, and the model
 * itself as its draft guesses all right; what is refused. */
#include "exec_checks.h"
#include "tiny_engine.h"

enum { N = 32, N_NEW = 40, PROMPT = 50, DRAFT = 4 };

static const char other_llama[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"vocab_size\": 96,"
    " \"hidden_size\": 32, \"intermediate_size\": 64, \"num_hidden_layers\": 1,"
    " \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 16,"
    " \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0,"
    " \"max_position_embeddings\": 80, \"initializer_range\": 0.6, \"torch_dtype\": \"float32\","
    " \"tie_word_embeddings\": false, \"bos_token_id\": 1, \"eos_token_id\": 2}";

static tiny_engine model, other, larger_vocab;
static int32_t alone[N][N_NEW];

static nrd_exec *open_exec(const char *draft, const nrd_exec_config *more)
{
    nrd_exec *x = NULL;
    nrd_exec_config c = *more;
    char *json = draft ? nrd_xasprintf("{\"method\": \"draft_model\", \"model\": \"%s\", \"num_speculative_tokens\": %d, "
                                       "\"adaptive\": false}", draft, DRAFT)
                       : NULL;
    c.device = "cpu";
    c.n_threads = 2;
    c.deterministic = true;
    c.speculative_config = json;
    must(nrd_exec_open(&x, model.dir, &c));
    free(json);
    return x;
}

/* Every third prompt begins alike; two of three requests are drawn. */
static nrd_exec_request ask(int i, int32_t *prompt)
{
    nrd_exec_request r;
    nrd_exec_request_init(&r);
    for (int k = 0; k < PROMPT; k++) {
        prompt[k] = (i % 3 * 31 + k * 7 + (k > 35 ? i * 5 : 0)) % TINY_VOCAB;
    }
    r.input_ids = prompt;
    r.n_input_ids = PROMPT - i % 7;
    r.max_new_tokens = N_NEW;
    r.exclude_input_in_output = true;
    r.sampling.random_seed = (uint64_t)i;
    r.sampling.top_k = (const int32_t[]){1, 10, 0}[i % 3];
    r.sampling.top_p = i % 3 == 2 ? 0.9f : 0;
    return r;
}

typedef struct counts {
    int32_t n_drafted, n_held;
} counts;

/* `at_once` requests at a time. */
static counts run(nrd_exec *x, int at_once, int32_t (*out)[N_NEW])
{
    static int32_t prompts[N][PROMPT];
    counts all = {0};
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
            all.n_drafted += r->perf.n_draft_tokens;
            all.n_held += r->perf.n_accepted_draft_tokens;
            nrd_exec_response_free(r);
        }
    }
    return all;
}

static void expect_alone(int32_t (*got)[N_NEW])
{
    for (int i = 0; i < N; i++) {
        if (memcmp(got[i], alone[i], sizeof alone[i])) {
            fail_msg("request %d says something else with a draft model", i);
        }
    }
}

static void test_answers_are_those_without(void **state)
{
    static const int at_once[] = {1, 8, 32};
    (void)state;
    for (int mode = 0; mode < 6; mode++) {
        nrd_exec_config c;
        int32_t got[N][N_NEW];
        nrd_exec_config_init(&c);
        c.enable_kv_cache_reuse = mode & 1;
        c.enable_chunked_context = mode & 2;
        c.max_num_tokens = mode & 2 ? 64 : 256;
        c.policy = mode & 4 ? NRD_POLICY_MAX_UTILIZATION : NRD_POLICY_GUARANTEED_NO_EVICT;
        c.max_tokens_in_paged_kv_cache = mode == 5 ? 600 : 0;
        for (int k = 0; k < 3; k++) {
            nrd_exec *x = open_exec(mode == 3 ? model.dir : other.dir, &c);
            counts n = run(x, at_once[k], got);
            expect_alone(got);
            assert_true(n.n_drafted > N * 4 && n.n_held <= n.n_drafted);
            close_empty(x);
        }
    }
}

/* Greedy: all guesses hold, so that each step but the prompt's gives DRAFT + 1 tokens. */
static void test_the_model_as_its_own_draft_is_always_right(void **state)
{
    nrd_exec_config c;
    (void)state;
    nrd_exec_config_init(&c);
    for (int reuse = 0; reuse < 2; reuse++) {
        c.enable_kv_cache_reuse = reuse;
        nrd_exec *x = open_exec(model.dir, &c);
        for (int i = 0; i < N; i += 3) {
            int32_t prompt[PROMPT];
            nrd_exec_request r = ask(i, prompt);
            nrd_exec_response *o = NULL;
            uint64_t id;
            must(nrd_exec_enqueue(x, &r, &id));
            must(nrd_exec_await_id(x, id, &o, 60 * 1000 * 1000));
            must(o->error);
            assert_memory_equal(o->beams[0].ids, alone[i], sizeof alone[i]);
            assert_int_equal(o->perf.n_draft_tokens, o->perf.n_accepted_draft_tokens);
            /* One from the prompt, seven fives and what is left: of the last step's five one is chosen, not guessed. */
            assert_int_equal(o->perf.n_draft_tokens, (N_NEW - 1) / (DRAFT + 1) * DRAFT + (N_NEW - 1) % (DRAFT + 1) - 1);
            nrd_exec_response_free(o);
        }
        close_empty(x);
    }
}

/* Its weights and its cache are counted, and the cache is smaller for it. */
static void test_memory_is_counted(void **state)
{
    nrd_exec_config c;
    nrd_exec_info with = {.size = sizeof with}, without = {.size = sizeof without};
    (void)state;
    nrd_exec_config_init(&c);
    c.max_tokens_in_paged_kv_cache = 640;
    nrd_exec *x = open_exec(NULL, &c);
    nrd_exec_get_info(x, &without);
    nrd_exec_close(x);
    x = open_exec(model.dir, &c);
    nrd_exec_get_info(x, &with);
    nrd_exec_close(x);
    assert_int_equal(with.weight_bytes, 2 * without.weight_bytes);
    assert_int_equal(with.kv_cache_bytes, 2 * without.kv_cache_bytes);
}

static void test_another_vocabulary_is_refused(void **state)
{
    nrd_exec_config c;
    nrd_exec *x = NULL;
    (void)state;
    nrd_exec_config_init(&c);
    c.device = "cpu";
    char *json = nrd_xasprintf("{\"method\": \"draft_model\", \"model\": \"%s\"}", larger_vocab.dir);
    c.speculative_config = json;
    nrd_error *err = nrd_exec_open(&x, model.dir, &c);
    assert_non_null(err);
    assert_int_equal(nrd_exec_error_code(err), 3);
    assert_non_null(strstr(nrd_exec_error_message(err), "has a vocabulary of 97 tokens, the model one of 96"));
    nrd_exec_error_free(err);
    free(json);
}

/* The same size, but another word: by the tokenizer files, which both have. */
static void write_tokenizer(const tiny_engine *e, char last)
{
    nrd_str s = {0};
    nrd_str_puts(&s, "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
                     "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    for (int c = 'a'; c <= 'y'; c++) {
        nrd_str_printf(&s, "%s\"%c\":%d", c == 'a' ? "" : ",", c, c - 'a');
    }
    nrd_str_printf(&s, ",\"%c\":25}}}", last);
    char *path = nrd_path_join(e->dir, "tokenizer.json");
    tiny_check(nrd_file_write(path, s.data, s.len));
    free(path);
    nrd_str_fini(&s);
}

static void test_another_tokenizer_is_refused(void **state)
{
    (void)state;
    for (int same = 0; same < 2; same++) {
        nrd_exec_config c;
        nrd_exec *x = NULL;
        write_tokenizer(&model, 'z');
        write_tokenizer(&other, same ? 'z' : 'Z');
        nrd_exec_config_init(&c);
        c.device = "cpu";
        char *json = nrd_xasprintf("{\"method\": \"draft_model\", \"model\": \"%s\"}", other.dir);
        c.speculative_config = json;
        nrd_error *err = nrd_exec_open(&x, model.dir, &c);
        free(json);
        if (same) {
            must(err);
            nrd_exec_close(x);
            continue;
        }
        assert_non_null(err);
        assert_non_null(strstr(nrd_exec_error_message(err), "has another vocabulary: token 25 is 'Z', the model's is 'z'"));
        nrd_exec_error_free(err);
    }
}

static int setup(void **state)
{
    nrd_exec_config c;
    nrd_str wide = {0};
    (void)state;
    tiny_build(&model, tiny_llama, 16);
    tiny_seed = 8;
    tiny_build(&other, other_llama, 32);
    nrd_str_puts(&wide, other_llama);
    memcpy(strstr(wide.data, "96"), "97", 2);
    tiny_build(&larger_vocab, wide.data, 16);
    nrd_str_fini(&wide);
    nrd_exec_config_init(&c);
    c.max_batch_size = 1;
    nrd_exec *x = open_exec(NULL, &c);
    counts n = run(x, 1, alone);
    assert_int_equal(n.n_drafted, 0);
    close_empty(x);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tiny_remove(&model);
    tiny_remove(&other);
    tiny_remove(&larger_vocab);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_are_those_without),
        cmocka_unit_test(test_the_model_as_its_own_draft_is_always_right),
        cmocka_unit_test(test_memory_is_counted),
        cmocka_unit_test(test_another_vocabulary_is_refused),
        cmocka_unit_test(test_another_tokenizer_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
