/* SPDX-License-Identifier: Apache-2.0
 * Medusa heads: what they say is what their formula says, answers are those without them, and what is refused. */
#include "exec_checks.h"
#include "tiny_engine.h"

#include "engine/run/extra_heads.h"
#include "executor/medusa_model.h"
#include "executor/tree_choices.h"
#include "formats/safetensors.h"

#include <math.h>

enum { N = 24, N_NEW = 40, PROMPT = 40, HIDDEN = 64, HEADS = 3, LAYERS = 2, BEST = 5 };

static tiny_engine model;
static char heads_dir[] = "/tmp/nrd-medusa-XXXXXX";
static int32_t alone[N][N_NEW];
static float linear[HEADS][LAYERS][HIDDEN][HIDDEN], bias[HEADS][LAYERS][HIDDEN], lm_head[HEADS][TINY_VOCAB][HIDDEN];

static float pseudo(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / (float)(1 << 24) - 0.5f;
}

static void make_heads(void)
{
    uint32_t state = 5;
    for (int h = 0; h < HEADS; h++) {
        for (int i = 0; i < LAYERS * HIDDEN * HIDDEN; i++) {
            linear[h][i / (HIDDEN * HIDDEN)][i / HIDDEN % HIDDEN][i % HIDDEN] = 0.3f * pseudo(&state);
        }
        for (int i = 0; i < LAYERS * HIDDEN; i++) {
            bias[h][i / HIDDEN][i % HIDDEN] = pseudo(&state);
        }
        for (int i = 0; i < TINY_VOCAB * HIDDEN; i++) {
            lm_head[h][i / HIDDEN][i % HIDDEN] = pseudo(&state);
        }
    }
}

static void put_all(nrd_safetensors_writer *w, const char *linear_form, const char *head_form, int64_t vocab, bool data)
{
    char name[96];
    for (int h = 0; h < HEADS; h++) {
        for (int l = 0; l < LAYERS; l++) {
            for (int b = 0; b < 2; b++) {
                snprintf(name, sizeof name, linear_form, h, l, b ? "bias" : "weight");
                must(data ? nrd_safetensors_writer_write(w, b ? (void *)bias[h][l] : (void *)linear[h][l],
                                                         b ? sizeof bias[h][l] : sizeof linear[h][l])
                          : nrd_safetensors_writer_add(w, name, NRD_DTYPE_F32, (const int64_t[]){HIDDEN, HIDDEN}, b ? 1 : 2));
            }
        }
        snprintf(name, sizeof name, head_form, h, LAYERS);
        must(data ? nrd_safetensors_writer_write(w, lm_head[h], (size_t)vocab * sizeof lm_head[h][0])
                  : nrd_safetensors_writer_add(w, name, NRD_DTYPE_F32, (const int64_t[]){vocab, HIDDEN}, 2));
    }
}

static void write_heads(const char *file, const char *linear_form, const char *head_form, int64_t vocab)
{
    nrd_safetensors_writer *w = NULL;
    char *path = nrd_path_join(heads_dir, file);
    must(nrd_safetensors_writer_open(&w, path));
    put_all(w, linear_form, head_form, vocab, false);
    must(nrd_safetensors_writer_begin(w));
    put_all(w, linear_form, head_form, vocab, true);
    must(nrd_safetensors_writer_commit(w));
    free(path);
}

static void remove_file(const char *file)
{
    char *path = nrd_path_join(heads_dir, file);
    unlink(path);
    free(path);
}

static nrd_error *open_with(nrd_exec **x, const char *json, const nrd_exec_config *more)
{
    nrd_exec_config c = *more;
    c.device = "cpu";
    c.n_threads = 2;
    c.deterministic = true;
    c.speculative_config = json;
    return nrd_exec_open(x, model.dir, &c);
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

static nrd_exec_response *answer(nrd_exec *x, const nrd_exec_request *r)
{
    nrd_exec_response *o = NULL;
    uint64_t id;
    must(nrd_exec_enqueue(x, r, &id));
    must(nrd_exec_await_id(x, id, &o, 60 * 1000 * 1000));
    must(o->error);
    return o;
}

/* ---- the formula ---- */

/* The best tokens of a head for a state. */
static void best_of(const float *state, int head, int32_t *out)
{
    double x[HIDDEN], y[HIDDEN], logits[TINY_VOCAB];
    for (int i = 0; i < HIDDEN; i++) {
        x[i] = (double)state[i];
    }
    for (int l = 0; l < LAYERS; l++) {
        for (int i = 0; i < HIDDEN; i++) {
            double v = (double)bias[head][l][i];
            for (int k = 0; k < HIDDEN; k++) {
                v += (double)linear[head][l][i][k] * x[k];
            }
            y[i] = x[i] + v / (1 + exp(-v));
        }
        memcpy(x, y, sizeof x);
    }
    for (int i = 0; i < TINY_VOCAB; i++) {
        logits[i] = 0;
        for (int k = 0; k < HIDDEN; k++) {
            logits[i] += (double)lm_head[head][i][k] * x[k];
        }
    }
    for (int n = 0; n < BEST; n++) {
        out[n] = 0;
        for (int i = 1; i < TINY_VOCAB; i++) {
            out[n] = logits[i] > logits[out[n]] ? i : out[n];
        }
        logits[out[n]] = -INFINITY;
    }
}

static void test_heads_say_what_their_formula_says(void **state)
{
    nrd_exec_config c;
    nrd_exec *x = NULL;
    nrd_medusa_heads *file = NULL;
    nrd_extra_heads *heads = NULL;
    (void)state;
    nrd_exec_config_init(&c);
    must(open_with(&x, NULL, &c));
    must(nrd_medusa_heads_open(&file, heads_dir, HIDDEN, TINY_VOCAB));
    assert_int_equal(nrd_medusa_heads_n(file), HEADS);
    assert_int_equal(nrd_medusa_heads_n_layers(file), LAYERS);
    must(nrd_extra_heads_new(&heads, x->runner, file, BEST, NRD_DTYPE_NONE));
    for (int i = 0; i < N; i++) {
        int32_t prompt[PROMPT];
        const int32_t *ids = NULL;
        nrd_exec_request r = ask(i, prompt);
        r.max_new_tokens = 1;
        r.sampling.top_k = 1;
        r.sampling.repetition_penalty = 1;
        r.pooling = NRD_POOLING_LAST;
        nrd_exec_response *o = answer(x, &r);
        float normed[HIDDEN];
        memcpy(normed, o->embedding, sizeof normed);
        nrd_exec_response_free(o);
        r.pooling = NRD_POOLING_NONE;
        nrd_exec_response_free(answer(x, &r));
        /* The loop has nothing to do now: its last step is this prompt's. */
        bool was_recorded;
        must(nrd_extra_heads_run(heads, (const int32_t[]){r.n_input_ids - 1}, 1, &ids, &was_recorded));
        for (int h = 0; h < HEADS; h++) {
            int32_t want[BEST];
            best_of(normed, h, want);
            assert_memory_equal(ids + h * BEST, want, sizeof want);
        }
    }
    nrd_extra_heads_free(heads);
    nrd_medusa_heads_close(file);
    close_empty(x);
}

/* ---- answers ---- */

static int32_t run(nrd_exec *x, int at_once, int32_t (*out)[N_NEW])
{
    static int32_t prompts[N][PROMPT];
    int32_t n_drafted = 0;
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
            n_drafted += r->perf.n_draft_tokens;
            nrd_exec_response_free(r);
        }
    }
    return n_drafted;
}

static void test_answers_are_those_without(void **state)
{
    static const char *const more[] = {"", ", \"adaptive\": false, \"medusa_choices\": [[1], [0], [0, 0], [0, 2], [1, 0], [0, 0, 0]]",
                                       ", \"adaptive\": false, \"medusa_choices\": \"{0}, {0, 0}, {0, 0, 0}\"",
                                       ", \"adaptive\": false, \"num_speculative_tokens\": 20"};
    (void)state;
    for (int i = 0; i < 4; i++) {
        char *json = nrd_xasprintf("{\"method\": \"medusa\", \"model\": \"%s\"%s}", heads_dir, more[i]);
        nrd_exec_config c;
        nrd_exec_config_init(&c);
        c.enable_kv_cache_reuse = i & 1;
        for (int at_once = 1; at_once <= N; at_once = at_once == 1 ? 8 : N + (at_once == N)) {
            nrd_exec *x = NULL;
            int32_t got[N][N_NEW];
            must(open_with(&x, json, &c));
            const int32_t n_drafted = run(x, at_once, got);
            assert_true(i == 0 || n_drafted > N * N_NEW / 2);
            for (int k = 0; k < N; k++) {
                if (memcmp(got[k], alone[k], sizeof alone[k])) {
                    fail_msg("request %d says something else with Medusa heads", k);
                }
            }
            close_empty(x);
        }
        free(json);
    }
}

/* Heads that say what the model says: the trained weights of this language are its own answers. Head h's matrix has for each
 * token the state behind it, so that it finds the token that came h + 2 places later in the one text it was made for. */
static void test_right_guesses_save_steps(void **state)
{
    enum { SAID = 24 };
    nrd_exec_config c;
    nrd_exec *x = NULL;
    int32_t prompt[PROMPT + SAID], n;
    float kept[HEADS][TINY_VOCAB][HIDDEN];
    (void)state;
    nrd_exec_config_init(&c);
    must(open_with(&x, NULL, &c));
    nrd_exec_request r = ask(0, prompt);
    n = r.n_input_ids;
    memcpy(prompt + n, alone[0], SAID * sizeof *prompt);
    memcpy(kept, lm_head, sizeof kept);
    memset(lm_head, 0, sizeof lm_head);
    memset(linear, 0, sizeof linear);
    memset(bias, 0, sizeof bias);
    for (int at = n - 1; at + HEADS + 1 < n + SAID; at++) {
        r.n_input_ids = at + 1;
        r.pooling = NRD_POOLING_LAST;
        nrd_exec_response *o = answer(x, &r);
        double square = 0;
        for (int k = 0; k < HIDDEN; k++) {
            square += (double)o->embedding[k] * (double)o->embedding[k];
        }
        for (int h = 0; h < HEADS; h++) {
            for (int k = 0; k < HIDDEN; k++) {
                lm_head[h][prompt[at + h + 2]][k] += (float)((double)o->embedding[k] / sqrt(square));
            }
        }
        nrd_exec_response_free(o);
    }
    close_empty(x);
    write_heads("medusa_lm_head.safetensors", "%d.%d.linear.%s", "%d.%d.weight", TINY_VOCAB);
    char *json = nrd_xasprintf("{\"method\": \"medusa\", \"model\": \"%s\", \"adaptive\": false}", heads_dir);
    must(open_with(&x, json, &c));
    r = ask(0, prompt);
    r.max_new_tokens = SAID;
    nrd_exec_response *o = answer(x, &r);
    assert_memory_equal(o->beams[0].ids, alone[0], SAID * sizeof(int32_t));
    assert_true(o->perf.n_accepted_draft_tokens > SAID / 3);
    nrd_exec_response_free(o);
    close_empty(x);
    free(json);
    make_heads();
    assert_memory_equal(kept, lm_head, sizeof kept);
    write_heads("medusa_lm_head.safetensors", "%d.%d.linear.%s", "%d.%d.weight", TINY_VOCAB);
}

/* ---- files ---- */

static void test_a_checkpoint_s_heads_are_the_same(void **state)
{
    nrd_medusa_heads *a = NULL, *b = NULL, *c = NULL;
    char *again = nrd_path_join(heads_dir, "again"), *file = nrd_path_join(heads_dir, "rank0.safetensors");
    (void)state;
    must(nrd_medusa_heads_open(&a, heads_dir, HIDDEN, TINY_VOCAB));
    write_heads("rank0.safetensors", "medusa_heads.%d.medusa_layers.%d.linear.%s", "medusa_heads.%d.lm_head.weight", TINY_VOCAB);
    must(nrd_medusa_heads_open(&b, file, HIDDEN, TINY_VOCAB));
    must(nrd_mkdirs(again));
    must(nrd_medusa_heads_write(b, again));
    must(nrd_medusa_heads_open(&c, again, HIDDEN, TINY_VOCAB));
    assert_true(nrd_medusa_heads_are_in(again) && nrd_medusa_heads_are_in(file) && !nrd_medusa_heads_are_in(model.dir));
    for (int h = 0; h < HEADS; h++) {
        assert_memory_equal(nrd_medusa_heads_lm_head(a, h)->data, nrd_medusa_heads_lm_head(b, h)->data, sizeof lm_head[h]);
        assert_memory_equal(nrd_medusa_heads_lm_head(a, h)->data, nrd_medusa_heads_lm_head(c, h)->data, sizeof lm_head[h]);
        assert_memory_equal(nrd_medusa_heads_bias(c, h, 1)->data, bias[h][1], sizeof bias[h][1]);
        assert_memory_equal(nrd_medusa_heads_linear(c, h, 1)->data, linear[h][1], sizeof linear[h][1]);
    }
    nrd_medusa_heads_close(a);
    nrd_medusa_heads_close(b);
    nrd_medusa_heads_close(c);
    remove_file("again/medusa_lm_head.safetensors");
    rmdir(again);
    remove_file("rank0.safetensors");
    free(again);
    free(file);
}

static void expect_refused(const char *json, const char *words)
{
    nrd_exec_config c;
    nrd_exec *x = NULL;
    nrd_exec_config_init(&c);
    nrd_error *err = open_with(&x, json, &c);
    if (!err) {
        fail_msg("%s was taken", json);
    }
    if (!strstr(nrd_exec_error_message(err), words)) {
        fail_msg("%s: %s", json, nrd_exec_error_message(err));
    }
    nrd_exec_error_free(err);
}

static void test_bad_choices_and_heads_are_refused_by_name(void **state)
{
    static const struct {
        const char *choices, *words;
    } rows[] = {
        {"[[0], [1, 0]]", "medusa_choices are no tree: a choice of 2 ranks that begins with 1"},
        {"[[0], [0]]", "a choice of 1 ranks that ends with 0 comes twice"},
        {"[[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]]", "choice 3 has 4 ranks, expected 1 to 3"},
        {"[[20]]", "choice 0 has the rank 20, expected 0 to 19"},
        {"[[-1]]", "character 3 begins '-1"},
        {"[[]]", "choice 0 has 0 ranks"},
        {"[]", "choice 0 has 0 ranks"},
        {"\"{0}, {1\"", "expected lists of numbers"},
        {"\"{0}; {1}\"", "expected lists of numbers"},
        {"7", "expected lists of numbers like {0}, {1}, {0, 0}; character 1 begins '7'"},
        {"\"\"", "expected lists of numbers"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *json = nrd_xasprintf("{\"method\": \"medusa\", \"model\": \"%s\", \"medusa_choices\": %s}", heads_dir, rows[i].choices);
        expect_refused(json, rows[i].words);
        free(json);
    }
    nrd_str many = {0};
    for (int i = 0; i <= NRD_MAX_TREE; i++) {
        nrd_str_printf(&many, "%s[%d]", i ? ", " : "", i);
    }
    char *json = nrd_xasprintf("{\"method\": \"medusa\", \"model\": \"%s\", \"medusa_choices\": [%s]}", heads_dir, many.data);
    expect_refused(json, "medusa_choices has more than 256 choices");
    free(json);
    nrd_str_fini(&many);
    json = nrd_xasprintf("{\"method\": \"medusa\", \"model\": \"%s\"}", model.dir);
    expect_refused(json, "has no Medusa heads");
    free(json);
    expect_refused("{\"method\": \"medusa\"}", "has no Medusa heads"); /* the engine's own */
    write_heads("medusa_lm_head.safetensors", "%d.%d.linear.%s", "%d.%d.weight", TINY_VOCAB - 1);
    json = nrd_xasprintf("{\"method\": \"medusa\", \"model\": \"%s\"}", heads_dir);
    expect_refused(json, "0.2.weight has 2 dimensions, the first of 95 and the second of 64; expected 96 and 64");
    free(json);
    write_heads("medusa_lm_head.safetensors", "%d.%d.linear.%s", "%d.%d.weight", TINY_VOCAB);
}

/* Any text is an error or a tree. */
static void test_any_text_of_choices_is_a_tree_or_refused(void **state)
{
    static const char letters[] = "{}[],, 0012349-;";
    uint32_t dice = 3;
    int n_trees = 0;
    (void)state;
    for (int run = 0; run < 50000; run++) {
        char text[40];
        nrd_medusa_choices c;
        const int n = run % (int)sizeof text;
        for (int i = 0; i < n; i++) {
            pseudo(&dice);
            text[i] = run % 2 && i % 4 == 0 ? '{' : run % 2 && i % 4 == 2 ? '}' : run % 2 && i % 4 == 3 ? ',' : letters[dice >> 28];
        }
        text[n] = 0;
        nrd_error *err = nrd_exec_tree_choices(&c, "medusa_choices", text, HEADS);
        if (err) {
            assert_int_equal(nrd_exec_error_code(err), 3);
            nrd_exec_error_free(err);
            continue;
        }
        n_trees++;
        assert_true(c.n > 0 && c.n <= NRD_MAX_TREE);
        for (int32_t i = 0; i < c.n; i++) {
            assert_true(c.parent[i] < i && c.parent[i] >= -1 && c.depth[i] >= 1 && c.depth[i] <= HEADS);
            assert_true(c.rank[i] >= 0 && c.rank[i] < NRD_MEDUSA_MAX_RANK);
        }
    }
    assert_true(n_trees > 100);
}

/* Parents before children, the likeliest first, nothing twice. */
static void test_the_default_choices_are_a_tree(void **state)
{
    (void)state;
    for (int n_heads = 1; n_heads <= 5; n_heads++) {
        nrd_medusa_choices c;
        int32_t depths[6] = {0};
        nrd_medusa_choices_default(&c, n_heads, NRD_MEDUSA_DEFAULT_NODES);
        assert_int_equal(c.n, n_heads == 1 ? NRD_MEDUSA_MAX_RANK : NRD_MEDUSA_DEFAULT_NODES);
        for (int32_t i = 0; i < c.n; i++) {
            assert_true(c.parent[i] < i && c.depth[i] == (c.parent[i] < 0 ? 1 : c.depth[c.parent[i]] + 1));
            assert_true(c.depth[i] <= n_heads && c.rank[i] < NRD_MEDUSA_MAX_RANK);
            for (int32_t k = 0; k < i; k++) {
                assert_true(c.parent[k] != c.parent[i] || c.rank[k] != c.rank[i]);
            }
            depths[c.depth[i]]++;
        }
        assert_true(n_heads < 4 || (depths[1] >= 4 && depths[4] >= 1));
    }
}

static int setup(void **state)
{
    nrd_exec_config c;
    nrd_exec *x = NULL;
    (void)state;
    tiny_build(&model, tiny_llama, 16);
    assert_non_null(mkdtemp(heads_dir));
    make_heads();
    write_heads("medusa_lm_head.safetensors", "%d.%d.linear.%s", "%d.%d.weight", TINY_VOCAB);
    nrd_exec_config_init(&c);
    must(open_with(&x, NULL, &c));
    assert_int_equal(run(x, 1, alone), 0);
    close_empty(x);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tiny_remove(&model);
    remove_file("medusa_lm_head.safetensors");
    return rmdir(heads_dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heads_say_what_their_formula_says),
        cmocka_unit_test(test_answers_are_those_without),
        cmocka_unit_test(test_right_guesses_save_steps),
        cmocka_unit_test(test_a_checkpoint_s_heads_are_the_same),
        cmocka_unit_test(test_bad_choices_and_heads_are_refused_by_name),
        cmocka_unit_test(test_any_text_of_choices_is_a_tree_or_refused),
        cmocka_unit_test(test_the_default_choices_are_a_tree),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
