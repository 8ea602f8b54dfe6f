/* SPDX-License-Identifier: Apache-2.0
 * Models with layers that keep a state of each sequence: whoever runs beside a sequence, in whatever pieces its prompt
 * comes and however often it is paused, its answer is the same to the bit; and what such models cannot do is refused by
 * name. */
#include "exec_checks.h"
#include "tiny_engine.h"

#define SIZES                                                                                      \
    "\"vocab_size\": 96, \"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 4,"    \
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"max_position_embeddings\": 160,"      \
    " \"initializer_range\": 0.6, \"torch_dtype\": \"float32\", \"bos_token_id\": 1, \"eos_token_id\": 2"
#define TYPES(state) "\"layer_types\": [\"" state "\", \"" state "\", \"full_attention\", \"" state "\"]"
#define MAMBA                                                                                      \
    "\"mamba_n_heads\": 4, \"mamba_d_head\": 32, \"mamba_expand\": 2, \"mamba_d_state\": 20, \"mamba_n_groups\": 2"

static const struct model {
    const char *name, *config;
} models[] = {
    {"lfm2", "{\"model_type\": \"lfm2\", \"block_auto_adjust_ff_dim\": false, " SIZES ", " TYPES("conv") "}"},
    {"bamba", "{\"model_type\": \"bamba\", \"attn_layer_indices\": [1], " SIZES ", " MAMBA "}"},
    {"falcon_h1", "{\"model_type\": \"falcon_h1\", \"mamba_d_ssm\": 128, \"key_multiplier\": 0.7, " SIZES ", " MAMBA "}"},
    {"recurrent_gemma", "{\"model_type\": \"recurrent_gemma\", \"block_types\": [\"recurrent\", \"attention\"],"
                        " \"attention_window_size\": 24, \"hidden_activation\": \"gelu_pytorch_tanh\", " SIZES "}"},
    {"mamba", "{\"model_type\": \"mamba\", " SIZES "}"}, /* no layer with attention */
    {"nemotron_h", "{\"model_type\": \"nemotron_h\", \"hybrid_override_pattern\": \"M-*M\", \"mamba_num_heads\": 4,"
                   " \"mamba_head_dim\": 32, \"n_groups\": 2, \"ssm_state_size\": 20, \"head_dim\": 16, " SIZES "}"},
};
enum { N_MODELS = sizeof models / sizeof *models, N = 16 };

static tiny_engine engines[N_MODELS], draft;
static int32_t prompts[N][TINY_MAX_SEQ];

static nrd_exec_config config(void)
{
    nrd_exec_config c;
    nrd_exec_config_init(&c);
    c.device = "cpu";
    c.n_threads = 2;
    c.max_beam_width = 1;
    c.normalize_log_probs = false;
    c.deterministic = true; /* of a matrix unit it must be asked */
    return c;
}

static nrd_exec *open_exec(int model, const nrd_exec_config *c)
{
    nrd_exec *x = NULL;
    must(nrd_exec_open(&x, engines[model].dir, c));
    return x;
}

typedef struct answer {
    int32_t ids[3][TINY_MAX_SEQ], n[3]; /* of each choice */
    float cum[3];
    int32_t n_paused, n_reused, n_drafted, n_held;
} answer;

/* Half of them draw, some have three choices; all begin alike, so that there would be something to reuse. */
static nrd_exec_request ask(int p)
{
    nrd_exec_request r;
    nrd_exec_request_init(&r);
    r.input_ids = prompts[p];
    r.n_input_ids = 3 + p * 11 % 60;
    r.max_new_tokens = 8 + p * 5 % 40;
    r.exclude_input_in_output = true;
    r.return_log_probs = true;
    if (p % 2) {
        r.sampling.top_k = 12;
        r.sampling.temperature = 1.3f;
        r.sampling.random_seed = (uint64_t)p;
    }
    r.sampling.num_return_sequences = p % 4 == 1 ? 3 : 1;
    return r;
}

static void collect(nrd_exec *x, uint64_t id, answer *out)
{
    bool done = false;
    memset(out, 0, sizeof *out);
    while (!done) {
        nrd_exec_response *r = NULL;
        must(nrd_exec_await_id(x, id, &r, 120 * 1000 * 1000));
        assert_non_null(r);
        must(r->error);
        const int32_t s = r->sequence_index;
        for (int32_t b = 0; b < r->n_beams; b++) {
            memcpy(out->ids[s] + out->n[s], r->beams[b].ids, (size_t)r->beams[b].n_ids * sizeof(int32_t));
            out->n[s] += r->beams[b].n_ids;
            out->cum[s] = r->beams[b].cum_log_prob;
        }
        out->n_paused += r->perf.n_paused;
        out->n_drafted += r->perf.n_draft_tokens;
        out->n_held += r->perf.n_accepted_draft_tokens;
        out->n_reused = r->perf.kv_reused_blocks;
        done = r->is_final;
        nrd_exec_response_free(r);
    }
}

static void run(int model, const nrd_exec_config *c, bool together, answer *out)
{
    nrd_exec *x = open_exec(model, c);
    uint64_t ids[N];
    for (int p = 0; p < N; p++) {
        nrd_exec_request r = ask(p);
        must(nrd_exec_enqueue(x, &r, &ids[p]));
        if (!together) {
            collect(x, ids[p], &out[p]);
        }
    }
    for (int p = 0; p < N && together; p++) {
        collect(x, ids[p], &out[p]);
    }
    close_empty(x);
}

static uint64_t state_bytes(int model)
{
    nrd_exec_config c = config();
    nrd_exec *x = open_exec(model, &c);
    const uint64_t n = nrd_runner_state_bytes(x->runner) / 16; /* of 16 sequences */
    close_empty(x);
    return n;
}

static void same_as(int model, const nrd_exec_config *c, const answer *want, int32_t *out_paused)
{
    answer got[N];
    int32_t n_paused = 0;
    run(model, c, true, got);
    for (int p = 0; p < N; p++) {
        assert_memory_equal(got[p].ids, want[p].ids, sizeof got[p].ids);
        assert_memory_equal(got[p].cum, want[p].cum, sizeof got[p].cum);
        n_paused += got[p].n_paused;
    }
    if (out_paused) {
        *out_paused = n_paused;
    }
}

static void test_answers_do_not_depend_on_neighbours_pieces_or_pauses(void **state)
{
    static answer alone[N];
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        nrd_exec_config c = config();
        int32_t n_paused = 0;
        print_message("%s\n", models[m].name);
        c.max_batch_size = 1; /* the same slot for all, one after the other */
        run(m, &c, false, alone);
        assert_int_not_equal(alone[1].ids[0][3], alone[3].ids[0][3]);
        c = config();
        same_as(m, &c, alone, NULL);
        c.enable_chunked_context = true;
        c.max_num_tokens = 20;
        c.enable_kv_cache_reuse = true;
        same_as(m, &c, alone, NULL);
        c.state_cache_bytes = 1; /* no snapshot fits: there is no reuse */
        same_as(m, &c, alone, NULL);
        c = config();
        c.policy = NRD_POLICY_MAX_UTILIZATION;
        c.max_tokens_in_paged_kv_cache = 240;
        same_as(m, &c, alone, &n_paused);
        assert_true(n_paused > 0);
    }
}

/* Three chats turn by turn, all of which begin alike: each prompt is the one before, its answer and more. out: of each
 * turn of each chat. Returns the blocks that were not computed again. */
enum { CHATS = 3, TURNS = 4, TURN_NEW = 9, TURN_SAID = 7, FIRST = 22 };

static int64_t chat(int model, const nrd_exec_config *c, answer *out, nrd_iter_stats *last)
{
    nrd_exec *x = open_exec(model, c);
    static int32_t text[CHATS][TINY_MAX_SEQ];
    int32_t n[CHATS];
    int64_t n_reused = 0;

    for (int k = 0; k < CHATS; k++) {
        n[k] = FIRST;
        memcpy(text[k], prompts[k], sizeof text[k]);
    }
    for (int turn = 0; turn < TURNS; turn++) {
        uint64_t ids[CHATS];
        for (int k = 0; k < CHATS; k++) {
            nrd_exec_request r = ask(0);
            r.input_ids = text[k];
            r.n_input_ids = n[k];
            r.max_new_tokens = TURN_NEW;
            must(nrd_exec_enqueue(x, &r, &ids[k]));
        }
        for (int k = 0; k < CHATS; k++) {
            answer *a = &out[turn * CHATS + k];
            collect(x, ids[k], a);
            memcpy(text[k] + n[k], a->ids[0], (size_t)a->n[0] * sizeof(int32_t));
            n[k] += a->n[0];
            for (int i = 0; i < TURN_SAID; i++) {
                text[k][n[k]++] = (turn * 29 + k * 13 + i * 5) % TINY_VOCAB;
            }
            n_reused += a->n_reused;
        }
    }
    for (nrd_iter_stats s; nrd_exec_take_iter_stats(x, &s, 1) > 0;) {
        *last = s;
    }
    close_empty(x);
    return n_reused;
}

static void test_a_chat_goes_on_from_the_state_of_its_last_turn(void **state)
{
    static answer alone[CHATS * TURNS], got[CHATS * TURNS];
    nrd_iter_stats last = {0};
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        nrd_exec_config c = config();
        print_message("%s\n", models[m].name);
        c.iter_stats_max_iterations = 4096;
        assert_int_equal(chat(m, &c, alone, &last), 0);
        c.enable_kv_cache_reuse = true;
        const int64_t n_reused = chat(m, &c, got, &last);
        for (int i = 0; i < CHATS * TURNS; i++) {
            assert_memory_equal(got[i].ids, alone[i].ids, sizeof got[i].ids);
            assert_memory_equal(got[i].cum, alone[i].cum, sizeof got[i].cum);
        }
        /* Of a prompt that goes on from an answer at most two blocks of 4, beside what is new, are computed again. */
        assert_true(n_reused >= CHATS * ((FIRST + TURN_NEW) / 4 - 2 + (FIRST + 2 * TURN_NEW + TURN_SAID) / 4 - 2 +
                                         (FIRST + 3 * TURN_NEW + 2 * TURN_SAID) / 4 - 2));
        assert_true(last.kept_states > 0 && last.max_states == 4 * 16);
        /* Room for two snapshots, of three chats: nothing changes but the time. */
        c.state_cache_bytes = 2 * state_bytes(m);
        assert_true(chat(m, &c, got, &last) < n_reused);
        assert_int_equal(last.max_states, 2);
        assert_true(last.kv_unusable_blocks > 0);
        for (int i = 0; i < CHATS * TURNS; i++) {
            assert_memory_equal(got[i].ids, alone[i].ids, sizeof got[i].ids);
        }
    }
}

/* Where a prompt leaves what the cache has, its state is kept: the third that begins alike goes on from there. */
static void test_the_third_prompt_that_begins_alike_reuses_the_beginning(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        nrd_exec_config c = config();
        answer a;
        c.enable_kv_cache_reuse = true;
        nrd_exec *x = open_exec(m, &c);
        for (int p = 0; p < 4; p++) { /* 20 tokens are the same */
            nrd_exec_request r = ask(0);
            uint64_t id;
            r.input_ids = prompts[p];
            r.n_input_ids = 50;
            must(nrd_exec_enqueue(x, &r, &id));
            collect(x, id, &a);
            assert_int_equal(a.n_reused, p < 2 ? 0 : 5);
        }
        close_empty(x);
    }
}

/* A draft that does not hold is taken back by a copy of the state, whoever guesses and whatever runs beside it. */
static void test_answers_with_drafts_are_those_without(void **state)
{
    static answer alone[N], got[N];
    int32_t held[3] = {0}, n_paused = 0;
    char *const of_model = nrd_xasprintf("{\"method\": \"draft_model\", \"model\": \"%s\", \"adaptive\": false, "
                                         "\"num_speculative_tokens\": 3}", draft.dir);
    const char *const methods[] = {of_model, "{\"method\": \"ngram\", \"adaptive\": false, \"prompt_lookup_min\": 1, "
                                             "\"num_speculative_tokens\": 5}", "{\"method\": \"ngram\"}"};
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        nrd_exec_config c = config();
        print_message("%s\n", models[m].name);
        run(m, &c, true, alone);
        for (int i = 0; i < 3; i++) {
            int32_t n_drafted = 0, n_held = 0;
            c = config();
            c.speculative_config = methods[i];
            c.enable_chunked_context = i == 0;
            c.max_num_tokens = i == 0 ? 40 : 0;
            c.enable_kv_cache_reuse = i == 1;
            c.policy = i == 1 ? NRD_POLICY_MAX_UTILIZATION : NRD_POLICY_GUARANTEED_NO_EVICT;
            c.max_tokens_in_paged_kv_cache = i == 1 ? 240 : 0;
            run(m, &c, i < 2, got);
            for (int p = 0; p < N; p++) {
                assert_memory_equal(got[p].ids, alone[p].ids, sizeof got[p].ids);
                n_paused += got[p].n_paused;
                n_drafted += got[p].n_drafted;
                n_held += got[p].n_held;
            }
            print_message("%d of %d tokens held, %d pauses so far\n", n_held, n_drafted, n_paused);
            assert_true(i == 2 || n_held < n_drafted);
            held[i] += n_held; /* of one model few hold, or none pauses, and which are guessed depends on who runs beside it */
        }
    }
    assert_true(held[0] > 0 && held[1] > 0 && n_paused > 0);
    free(of_model);
}

static void test_what_takes_a_token_back_is_refused(void **state)
{
    nrd_exec *x = NULL;
    nrd_exec_config c = config();
    (void)state;

    c.max_beam_width = 0; /* the engine's: 4 */
    must_fail(nrd_exec_open(&x, engines[0].dir, &c), NRD_ERR_UNSUPPORTED, "max_beam_width is 4: lfm2 models");
    c = config();
    c.speculative_config = "{\"method\": \"lookahead\"}";
    must_fail(nrd_exec_open(&x, engines[0].dir, &c), NRD_ERR_UNSUPPORTED, "speculative decoding: lfm2 models");
    c.speculative_config = "{\"method\": \"mtp\", \"dynamic_tree_max_topK\": 2}";
    must_fail(nrd_exec_open(&x, engines[0].dir, &c), NRD_ERR_UNSUPPORTED, "leave out dynamic_tree_max_topK");
    c.speculative_config = NULL;
    x = open_exec(0, &c);
    nrd_exec_request r = ask(0);
    uint64_t id;
    r.draft_input_ids = prompts[1];
    r.n_draft_input_ids = 3;
    must_fail(nrd_exec_enqueue(x, &r, &id), NRD_ERR_UNSUPPORTED, "draft_input_ids: lfm2 models");
    close_empty(x);
}

/* Layers with a state have no part in the cache. */
static void test_only_layers_with_attention_have_a_cache(void **state)
{
    nrd_exec_config c = config();
    (void)state;
    nrd_exec *x = open_exec(0, &c);
    const size_t one = nrd_runner_kv_block_bytes(x->runner);
    assert_true(one > 0);
    assert_int_equal(one, x->dev->ops->kv_block_bytes(x->dev, nrd_runner_kv_dtype(x->runner), x->info.tokens_per_block, 2, 16));
    /* three layers, two tokens of 64 numbers, 16 sequences */
    assert_int_equal(nrd_runner_state_bytes(x->runner), (size_t)3 * 2 * 64 * 16 * sizeof(float));
    close_empty(x);
}

static int setup(void **state)
{
    (void)state;
    tiny_build(&draft, tiny_llama, 4);
    for (int m = 0; m < N_MODELS; m++) {
        tiny_build(&engines[m], models[m].config, 4);
    }
    for (int p = 0; p < N; p++) {
        for (int i = 0; i < TINY_MAX_SEQ; i++) {
            prompts[p][i] = i < 20 ? i * 3 % TINY_VOCAB : (p * 31 + i * i * 7) % TINY_VOCAB;
        }
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        tiny_remove(&engines[m]);
    }
    tiny_remove(&draft);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_do_not_depend_on_neighbours_pieces_or_pauses),
        cmocka_unit_test(test_a_chat_goes_on_from_the_state_of_its_last_turn),
        cmocka_unit_test(test_the_third_prompt_that_begins_alike_reuses_the_beginning),
        cmocka_unit_test(test_answers_with_drafts_are_those_without),
        cmocka_unit_test(test_what_takes_a_token_back_is_refused),
        cmocka_unit_test(test_only_layers_with_attention_have_a_cache),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
