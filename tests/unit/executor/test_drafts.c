/* SPDX-License-Identifier: Apache-2.0
 * Draft tokens through the executor: right and wrong ones change nothing but the number of steps, whatever runs
 * beside them; what is refused. */
#include "exec_checks.h"
#include "tiny_engine.h"

#include <math.h>

enum { N = 12, N_NEW = 20, PROMPT = 24, MAX_DRAFT = 8 };

static tiny_engine tiny;

typedef struct answer {
    int32_t ids[N_NEW], n;
    float log_probs[N_NEW];
    float *logits; /* [n, TINY_VOCAB] */
    nrd_perf_metrics perf;
    nrd_finish_reason finish;
} answer;

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

static int32_t prompts[N][PROMPT];

static nrd_exec_request ask(int i)
{
    nrd_exec_request r;
    nrd_exec_request_init(&r);
    for (int k = 0; k < PROMPT; k++) {
        prompts[i][k] = (i % 3 * 31 + k * 7 + (k > 12 ? i * 5 : 0)) % TINY_VOCAB;
    }
    r.input_ids = prompts[i];
    r.n_input_ids = PROMPT - i % 4;
    r.max_new_tokens = N_NEW;
    r.exclude_input_in_output = true;
    r.return_log_probs = true;
    r.return_generation_logits = true;
    r.streaming = i % 2;
    if (i % 3) {
        r.sampling.top_k = i % 3 == 1 ? 10 : 0;
        r.sampling.top_p = 0.95f;
        r.sampling.temperature = 1.2f;
        r.sampling.random_seed = (uint64_t)i * 11;
    }
    return r;
}

static void take(nrd_exec *x, uint64_t id, answer *out)
{
    *out = (answer){.logits = calloc((size_t)N_NEW * TINY_VOCAB, sizeof(float))};
    for (bool done = false; !done;) {
        nrd_exec_response *r = NULL;
        must(nrd_exec_await_id(x, id, &r, 60 * 1000 * 1000));
        must(r->error);
        const nrd_beam_output *b = &r->beams[0];
        assert_true(out->n + b->n_ids <= N_NEW);
        memcpy(out->ids + out->n, b->ids, (size_t)b->n_ids * sizeof *b->ids);
        memcpy(out->log_probs + out->n, b->log_probs, (size_t)b->n_log_probs * sizeof *b->log_probs);
        if (r->generation_logits) {
            memcpy(out->logits + out->n * TINY_VOCAB, r->generation_logits,
                   (size_t)r->n_generation_logits * TINY_VOCAB * sizeof(float));
        }
        out->n += b->n_ids;
        out->perf = r->perf;
        out->finish = b->finish_reason;
        done = r->is_final;
        nrd_exec_response_free(r);
    }
}

static answer alone[N];

static nrd_exec *open_exec(const nrd_exec_config *c)
{
    nrd_exec *x = NULL;
    must(nrd_exec_open(&x, tiny.dir, c));
    return x;
}

/* Drafts of which the first `right` tokens are those that come; -1: none. */
static void run(nrd_exec *x, const int *right, int n_draft, bool all)
{
    int32_t drafts[N][MAX_DRAFT];
    uint64_t ids[N];
    for (int i = 0; i < N; i++) {
        nrd_exec_request r = ask(i);
        for (int k = 0; k < n_draft; k++) {
            drafts[i][k] = k < right[i] ? alone[i].ids[k] : (alone[i].ids[k] + 1) % TINY_VOCAB;
        }
        if (right[i] >= 0) {
            r.draft_input_ids = drafts[i];
            r.n_draft_input_ids = n_draft;
        }
        must(nrd_exec_enqueue(x, &r, &ids[i]));
    }
    for (int i = 0; i < N; i++) {
        answer got;
        take(x, ids[i], &got);
        assert_int_equal(got.n, alone[i].n);
        assert_memory_equal(got.ids, alone[i].ids, (size_t)got.n * sizeof *got.ids);
        assert_memory_equal(got.log_probs, alone[i].log_probs, (size_t)got.n * sizeof(float));
        assert_memory_equal(got.logits, alone[i].logits, (size_t)got.n * TINY_VOCAB * sizeof(float));
        const int32_t n = got.perf.n_draft_tokens; /* a step with little room takes fewer */
        assert_true(n <= (right[i] >= 0 ? n_draft : 0));
        assert_int_equal(got.perf.n_accepted_draft_tokens, right[i] < n && n > 0 ? right[i] : n);
        if (all) {
            assert_int_equal(n, right[i] >= 0 ? n_draft : 0);
        }
        free(got.logits);
    }
}

/* Nothing is held any more, and closes. */
static void test_drafts_change_nothing_but_the_steps(void **state)
{
    static const int right[N] = {0, 8, 3, -1, 1, 8, 0, 2, -1, 7, 8, 5};
    (void)state;
    for (int mode = 0; mode < 6; mode++) {
        nrd_exec_config c = config();
        c.max_batch_size = mode == 5 ? 1 : 16;
        c.enable_kv_cache_reuse = mode & 1;
        c.enable_chunked_context = mode & 2;
        c.max_num_tokens = mode & 2 ? 32 : 256;
        c.policy = mode & 4 ? NRD_POLICY_MAX_UTILIZATION : NRD_POLICY_GUARANTEED_NO_EVICT;
        c.max_tokens_in_paged_kv_cache = mode == 4 ? 192 : 0;
        c.batching = mode == 3 ? NRD_BATCHING_STATIC : NRD_BATCHING_INFLIGHT;
        nrd_exec *x = open_exec(&c);
        for (int round = 0; round < 2; round++) {
            run(x, right, round ? MAX_DRAFT : 4, mode == 5);
        }
        close_empty(x);
    }
}

static int steps_of(nrd_exec *x, const nrd_exec_request *r)
{
    nrd_iter_stats st[64];
    uint64_t id;
    answer got;
    for (int i = 0; i < 64; i++) {
        st[i].size = sizeof st[i];
    }
    while (nrd_exec_take_iter_stats(x, st, 64) > 0) {
    }
    must(nrd_exec_enqueue(x, r, &id));
    take(x, id, &got);
    free(got.logits);
    int n = 0, more;
    for (int tries = 0; tries < 100; tries++) { /* the last step's record comes behind its answer */
        more = nrd_exec_take_iter_stats(x, st, 64);
        n += more;
        usleep(1000);
    }
    return n;
}

static void test_a_right_draft_saves_its_steps(void **state)
{
    nrd_exec_config c = config();
    nrd_exec *x = open_exec(&c);
    (void)state;
    nrd_exec_request r = ask(0);
    assert_int_equal(steps_of(x, &r), N_NEW);
    r.draft_input_ids = alone[0].ids;
    r.n_draft_input_ids = MAX_DRAFT;
    assert_int_equal(steps_of(x, &r), N_NEW - MAX_DRAFT);
    r.max_new_tokens = MAX_DRAFT + 1; /* as a client with a model of its own asks */
    assert_int_equal(steps_of(x, &r), 1);
    close_empty(x);
}

static void test_an_answer_ends_behind_its_draft(void **state)
{
    for (int right = 0; right <= MAX_DRAFT; right += 4) {
        for (int i = 0; i < 4; i++) { /* greedy and drawn, whole and in pieces */
            nrd_exec_config c = config();
            nrd_exec *x = open_exec(&c);
            int32_t draft[MAX_DRAFT];
            uint64_t id;
            answer got;
            for (int k = 0; k < MAX_DRAFT; k++) {
                draft[k] = (alone[i].ids[k] + (k >= right)) % TINY_VOCAB;
            }
            nrd_exec_request r = ask(i);
            r.draft_input_ids = draft;
            r.n_draft_input_ids = MAX_DRAFT;
            r.ends_behind_draft = true;
            must(nrd_exec_enqueue(x, &r, &id));
            take(x, id, &got);
            assert_int_equal(got.n, right + 1);
            assert_memory_equal(got.ids, alone[i].ids, (size_t)got.n * sizeof *got.ids);
            assert_int_equal(got.finish, NRD_FINISH_LENGTH);
            free(got.logits);
            r.n_draft_input_ids = 0; /* which has no meaning without a draft */
            must(nrd_exec_enqueue(x, &r, &id));
            take(x, id, &got);
            assert_int_equal(got.n, alone[i].n);
            free(got.logits);
            close_empty(x);
        }
    }
    (void)state;
}

/* Choices that depend on more than the last token: each is made as if the draft were right so far. */
static void set_feature(nrd_exec_request *r, int i)
{
    static const int32_t bad_ids[] = {40, 41, 42, 43, 44, 45, 46, 47}, bad_ends[] = {1, 2, 3, 4, 5, 6, 7, 8};
    r->sampling.repetition_penalty = i == 0 ? 1.4f : 1;
    r->sampling.presence_penalty = i == 1 ? 1 : 0;
    r->sampling.frequency_penalty = i == 2 ? 0.7f : 0;
    r->sampling.no_repeat_ngram_size = i == 3 ? 1 : 0;
    r->bad_words = i == 4 ? (nrd_phrases){bad_ids, bad_ends, 8} : (nrd_phrases){0};
    r->sampling.min_length = i == 5 ? N_NEW : 0;
    r->n_top_logprobs = i == 6 ? 3 : 0;
    if (i == 7) {
        r->sampling.top_k = 0;
        r->sampling.top_p = 0.95f;
        r->sampling.top_p_decay = 0.7f;
        r->sampling.top_p_min = 0.1f;
        r->sampling.temperature = 1.5f;
    }
}

static void test_a_draft_beside_what_looks_back(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        nrd_exec_config c = config();
        nrd_exec *x = open_exec(&c);
        uint64_t id;
        answer plain, got;
        nrd_exec_request r = ask(i == 2 ? 1 : 0);
        set_feature(&r, i);
        if (i == 5) {
            r.end_id = alone[0].ids[3]; /* where the answer would end */
        }
        must(nrd_exec_enqueue(x, &r, &id));
        take(x, id, &plain);
        r.draft_input_ids = plain.ids;
        r.n_draft_input_ids = MAX_DRAFT;
        for (int right = 0; right < 2; right++) {
            int32_t ids[MAX_DRAFT];
            memcpy(ids, plain.ids, sizeof ids);
            ids[5] = right ? ids[5] : (ids[5] + 1) % TINY_VOCAB;
            r.draft_input_ids = ids;
            must(nrd_exec_enqueue(x, &r, &id));
            take(x, id, &got);
            assert_int_equal(got.perf.n_draft_tokens, MAX_DRAFT);
            assert_int_equal(got.perf.n_accepted_draft_tokens, right ? MAX_DRAFT : 5);
            assert_int_equal(got.n, plain.n);
            assert_memory_equal(got.ids, plain.ids, sizeof got.ids);
            assert_memory_equal(got.log_probs, plain.log_probs, sizeof got.log_probs);
            free(got.logits);
        }
        free(plain.logits);
        close_empty(x);
    }
}

/* The guide goes along with the draft, and takes back what does not hold; where it leaves no choice, its own text comes. */
static void test_a_draft_beside_a_guide(void **state)
{
    static const char *const guides[] = {
        "[a-z]{20,30}", "(yes|no|perhaps){6}", "[0-9]+(,[0-9]+){9}",
        "{\"format\":{\"type\":\"triggered_tags\",\"triggers\":[\"<\"],\"at_least_one\":true,\"tags\":[{\"begin\":\"<\",\"content\":"
        "{\"type\":\"json_schema\",\"json_schema\":{\"type\":\"string\",\"maxLength\":9}},\"end\":\"\"}]}}"};
    (void)state;
    for (int i = 0; i < 8; i++) {
        nrd_exec_config c = config();
        c.guided_decoding_backend = "xgrammar";
        c.tokenizer_dir = tiny.dir;
        nrd_exec *x = open_exec(&c);
        uint64_t id;
        answer plain, got;
        nrd_exec_request r = ask(i % 2);
        r.guide_type = i / 2 < 3 ? "regex" : "structural_tag";
        r.guide = guides[i / 2];
        r.end_id = -1;
        must(nrd_exec_enqueue(x, &r, &id));
        take(x, id, &plain);
        for (int right = 0; right <= MAX_DRAFT; right += 4) {
            int32_t ids[MAX_DRAFT];
            memcpy(ids, plain.ids, sizeof ids);
            if (right < MAX_DRAFT) {
                ids[right] = (ids[right] + 1) % TINY_VOCAB;
            }
            r.draft_input_ids = ids;
            r.n_draft_input_ids = MAX_DRAFT;
            must(nrd_exec_enqueue(x, &r, &id));
            take(x, id, &got);
            assert_int_equal(got.n, plain.n);
            assert_memory_equal(got.ids, plain.ids, sizeof got.ids);
            assert_memory_equal(got.log_probs, plain.log_probs, sizeof got.log_probs);
            assert_int_equal(got.perf.n_draft_tokens, MAX_DRAFT);
            assert_true(got.perf.n_accepted_draft_tokens <= right);
            assert_true(i / 2 > 0 || got.perf.n_accepted_draft_tokens == right); /* nothing is forced there */
            free(got.logits);
        }
        free(plain.logits);
        close_empty(x);
    }
}

/* When its budget is used up the reasoning ends, also in the middle of a draft that holds; what follows is the same with
 * and without one. Forced tokens are certain. */
static void test_a_draft_beside_a_budget_for_reasoning(void **state)
{
    static const int32_t end[] = {91}, close[] = {7, 91, 9};
    nrd_exec_config c = config();
    nrd_exec *x = open_exec(&c);
    (void)state;
    for (int budget = 0; budget <= 6; budget += 3) {
        uint64_t id;
        answer plain, got;
        nrd_exec_request r = ask(1);
        const int n_free = budget > 0 ? budget : 1; /* the first token is chosen before any can be forced */
        r.return_generation_logits = false;
        r.reasoning_budget = budget;
        r.reasoning_open = true;
        r.reasoning_end = (nrd_exec_ids){end, 1};
        r.reasoning_close = (nrd_exec_ids){close, 3};
        must(nrd_exec_enqueue(x, &r, &id));
        take(x, id, &plain);
        assert_int_equal(plain.n, N_NEW);
        assert_memory_equal(plain.ids, alone[1].ids, (size_t)n_free * sizeof *plain.ids);
        assert_memory_equal(plain.ids + n_free, close, sizeof close);
        assert_true(plain.log_probs[n_free] == 0 && plain.log_probs[n_free + 2] == 0 && plain.log_probs[n_free - 1] < 0);
        r.draft_input_ids = alone[1].ids;
        r.n_draft_input_ids = MAX_DRAFT;
        must(nrd_exec_enqueue(x, &r, &id));
        take(x, id, &got);
        assert_int_equal(got.n, plain.n);
        assert_memory_equal(got.ids, plain.ids, sizeof got.ids);
        r.return_generation_logits = true;
        nrd_error *err = nrd_exec_enqueue(x, &r, &id);
        assert_non_null(strstr(nrd_exec_error_message(err), "return_generation_logits"));
        nrd_exec_error_free(err);
        free(plain.logits);
        free(got.logits);
    }
    close_empty(x);
}

/* The draft's own logits, equal to the model's: everything stays. Others: what comes is drawn anew, and the same
 * again with the same seed. */
static void test_logits_of_the_draft_decide(void **state)
{
    nrd_exec_config c = config();
    nrd_exec *x = open_exec(&c);
    uint64_t id;
    answer got[2];
    (void)state;
    nrd_exec_request r = ask(1);
    r.draft_input_ids = alone[1].ids;
    r.n_draft_input_ids = 4;
    r.draft_logits = alone[1].logits;
    must(nrd_exec_enqueue(x, &r, &id));
    take(x, id, &got[0]);
    assert_int_equal(got[0].perf.n_accepted_draft_tokens, 4);
    assert_memory_equal(got[0].ids, alone[1].ids, sizeof got[0].ids);
    for (int k = 0; k < 4; k++) {
        assert_true(fabsf(got[0].log_probs[k] - alone[1].log_probs[k]) < 1e-4f);
    }
    free(got[0].logits);
    float *wrong = calloc(4 * TINY_VOCAB, sizeof *wrong);
    const int32_t unlikely[4] = {90, 91, 92, 93};
    for (int k = 0; k < 4; k++) {
        wrong[k * TINY_VOCAB + unlikely[k]] = 20;
    }
    r.draft_input_ids = unlikely;
    r.draft_logits = wrong;
    for (int k = 0; k < 2; k++) {
        must(nrd_exec_enqueue(x, &r, &id));
        take(x, id, &got[k]);
        assert_int_equal(got[k].n, N_NEW);
        free(got[k].logits);
    }
    assert_memory_equal(got[0].ids, got[1].ids, sizeof got[0].ids);
    free(wrong);
    close_empty(x);
}

static void test_bad_drafts_are_refused_by_name(void **state)
{
    nrd_exec_config c = config();
    nrd_exec *x = open_exec(&c);
    int32_t ids[MAX_DRAFT + 1] = {1, 2, 3};
    float logits[3 * TINY_VOCAB] = {0};
    (void)state;
    for (int i = 0; i < 6; i++) {
        static const char *const words[] = {
            "draft_input_ids has 9 tokens, the engine was built with max_draft_len 8",
            "draft_input_ids needs beam_width 1, got 2",
            "draft_input_ids[1] is 96, expected 0 to 95",
            "draft_acceptance_threshold must be in [0, 1], got 1.5",
            "draft_logits has NaN for draft token 2",
            "draft_logits is given without draft_input_ids",
        };
        nrd_exec_request r = ask(0);
        uint64_t id;
        r.draft_input_ids = ids;
        r.n_draft_input_ids = i == 0 ? 9 : 3;
        r.return_generation_logits = false;
        r.sampling.beam_width = i == 1 ? 2 : 1;
        ids[1] = i == 2 ? TINY_VOCAB : 2;
        r.draft_acceptance_threshold = i == 3 ? 1.5f : -1;
        logits[2 * TINY_VOCAB + 5] = i == 4 ? NAN : 0;
        r.draft_logits = i >= 4 ? logits : NULL;
        r.n_draft_input_ids = i == 5 ? 0 : r.n_draft_input_ids;
        nrd_error *err = nrd_exec_enqueue(x, &r, &id);
        assert_non_null(err);
        assert_int_equal(nrd_exec_error_code(err), 3);
        assert_non_null(strstr(nrd_exec_error_message(err), words[i]));
        nrd_exec_error_free(err);
    }
    close_empty(x);
}

/* A text that repeats itself, and some that do not, together and alone: drafts from the text change nothing. */
static void test_ngram_drafts_change_nothing(void **state)
{
    enum { M = 8, LONG = 60 };
    int32_t text[M][PROMPT], want[M][LONG];
    (void)state;
    for (int speculative = 0; speculative < 2; speculative++) {
        nrd_exec_config c = config();
        c.max_batch_size = 16;
        c.speculative_config = speculative ? "{\"method\": \"ngram\", \"num_speculative_tokens\": 6}" : NULL;
        nrd_exec *x = open_exec(&c);
        int32_t n_drafted = 0, n_held = 0; /* of all rounds: a busy machine may find one of them not worth a draft */
        for (int round = 0; round < 1 + 2 * speculative; round++) {
            uint64_t ids[M];
            for (int i = 0; i < M; i++) {
                nrd_exec_request r;
                nrd_exec_request_init(&r);
                for (int k = 0; k < PROMPT; k++) {
                    text[i][k] = (i * 11 + (i % 2 ? k * k : k % 6) * 7) % TINY_VOCAB;
                }
                r.input_ids = text[i];
                r.n_input_ids = PROMPT;
                r.max_new_tokens = LONG;
                r.exclude_input_in_output = true;
                r.sampling.top_k = i % 4 == 3 ? 5 : 1;
                r.sampling.random_seed = (uint64_t)i;
                must(nrd_exec_enqueue(x, &r, &ids[i]));
            }
            for (int i = 0; i < M; i++) {
                nrd_exec_response *r = NULL;
                must(nrd_exec_await_id(x, ids[i], &r, 60 * 1000 * 1000));
                must(r->error);
                assert_int_equal(r->beams[0].n_ids, LONG);
                if (speculative) {
                    assert_memory_equal(r->beams[0].ids, want[i], sizeof want[i]);
                } else {
                    memcpy(want[i], r->beams[0].ids, sizeof want[i]);
                }
                n_drafted += r->perf.n_draft_tokens;
                n_held += r->perf.n_accepted_draft_tokens;
                nrd_exec_response_free(r);
            }
        }
        assert_true(speculative ? n_drafted > 0 && n_held <= n_drafted : n_drafted == 0);
        close_empty(x);
    }
}

/* Behind the draft that a request brings, the executor's own method guesses: here the model itself, which is always right. */
static void test_a_method_goes_on_behind_a_draft_of_the_request(void **state)
{
    enum { N_OWN = 3, N_METHOD = 2 };
    nrd_exec_config c = config();
    char *method = nrd_xasprintf("{\"method\": \"draft_model\", \"model\": \"%s\", \"num_speculative_tokens\": %d, \"adaptive\": false}",
                                 tiny.dir, N_METHOD);
    (void)state;
    c.speculative_config = method;
    nrd_exec *x = open_exec(&c);
    for (int right = 0; right <= N_OWN; right++) {
        for (int i = 0; i < 2; i++) { /* greedy, and drawn */
            int32_t draft[N_OWN];
            uint64_t id;
            answer got;
            nrd_exec_request r = ask(i);
            for (int k = 0; k < N_OWN; k++) {
                draft[k] = k < right ? alone[i].ids[k] : (alone[i].ids[k] + 1) % TINY_VOCAB;
            }
            r.draft_input_ids = draft;
            r.n_draft_input_ids = N_OWN;
            must(nrd_exec_enqueue(x, &r, &id));
            take(x, id, &got);
            assert_int_equal(got.n, N_NEW);
            assert_memory_equal(got.ids, alone[i].ids, sizeof got.ids);
            assert_true(got.perf.n_draft_tokens > N_OWN + 2 * N_METHOD);
            if (i == 0) {
                assert_int_equal(got.perf.n_draft_tokens - got.perf.n_accepted_draft_tokens, N_OWN - right);
            }
            free(got.logits);
        }
    }
    close_empty(x);
    free(method);
}

static void test_a_wrong_speculative_config_is_refused_by_name(void **state)
{
    static const char *const rows[][2] = {
        {"{\"method\": \"mlp_speculator\"}",
         "method 'mlp_speculator' is not supported; known: ngram, draft_model, lookahead, medusa, eagle, eagle3, mtp"},
        {"{\"method\": \"mtp\", \"model\": \"heads\"}",
         "'model' is not known; known: method, adaptive, eagle_choices, num_speculative_tokens, dynamic_tree_max_topK, max_draft_path_len"},
        {"{\"method\": \"mtp\", \"num_speculative_tokens\": 0}", "num_speculative_tokens must be a number from 1 to 64"},
        {"{\"method\": \"eagle3\"}", "method 'eagle3' without model takes the engine's own: '"},
        {"{\"method\": \"medusa\"}", "method 'medusa' without model takes the engine's own: '"},
        {"{\"method\": \"redrafter\"}", "method 'redrafter' without model takes the engine's own: '"},
        {"{\"method\": \"lookahead\", \"lookahead_window_size\": 64, \"lookahead_ngram_size\": 16}", "at most 256 can be"},
        {"{\"method\": \"lookahead\", \"lookahead_ngram_size\": 1}", "lookahead_ngram_size must be a number from 2 to 16"},
        {"{\"method\": \"lookahead\", \"model\": \"x\"}", "'model' is not known"},
        {"{\"num_speculative_tokens\": 3}", "must be an object with a method"},
        {"[1]", "must be an object with a method"},
        {"{\"method\": \"ngram\"", "speculative_config is no JSON object like {\"method\": \"ngram\"}: "},
        {"ngram", "speculative_config is no JSON object like {\"method\": \"ngram\"}: "},
        {"{\"method\": \"ngram\", \"num_speculative_tokens\": 65}", "num_speculative_tokens must be a number from 1 to 64, got 65"},
        {"{\"method\": \"ngram\", \"prompt_lookup_min\": \"2\"}", "prompt_lookup_min must be a number from 1 to 64, got \"2\""},
        {"{\"method\": \"ngram\", \"posterior_threshold\": 1.5}", "posterior_threshold must be a number from 0 to 1, got 1.5"},
        {"{\"method\": \"ngram\", \"prompt_lookup_min\": 9}", "prompt_lookup_min is 9, more than prompt_lookup_max, 8"},
        {"{\"method\": \"ngram\", \"model\": \"x\"}", "'model' is not known"},
        {"{\"method\": \"ngram\", \"quantization\": \"int8\"}", "'quantization' is not known"},
        {"{\"method\": \"eagle\", \"quantization\": \"q4_0\"}", "quantization 'q4_0' is not supported; known: int8, fp8"},
        {"{\"method\": \"medusa\", \"quantization\": 8}", "quantization '' is not supported"},
        {"{\"method\": \"ngram\", \"adaptive\": 1}", "adaptive must be true or false"},
        {"{\"method\": \"draft_model\"}", "method 'draft_model' needs model"},
        {"{\"method\": \"draft_model\", \"model\": \"\"}", "model must be the path of an engine"},
        {"{\"method\": \"draft_model\", \"model\": \"a\", \"model\": \"b\"}", "speculative_config: "},
        {"{\"method\": \"draft_model\", \"model\": \"a\", \"prompt_lookup_min\": 2}", "'prompt_lookup_min' is not known"},
        {"{\"method\": \"draft_model\", \"model\": \"/no/such\"}", "draft model: '/no/such' does not exist"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        nrd_exec_config c = config();
        nrd_exec *x = NULL;
        c.speculative_config = rows[i][0];
        nrd_error *err = nrd_exec_open(&x, tiny.dir, &c);
        assert_non_null(err);
        assert_non_null(strstr(nrd_exec_error_message(err), rows[i][1]));
        nrd_exec_error_free(err);
    }
}

static int setup(void **state)
{
    (void)state;
    tiny_build(&tiny, tiny_llama, 16);
    tiny_write_tokenizer(tiny.dir);
    nrd_exec_config c = config();
    c.max_batch_size = 1;
    nrd_exec *x = open_exec(&c);
    for (int i = 0; i < N; i++) {
        nrd_exec_request r = ask(i);
        uint64_t id;
        must(nrd_exec_enqueue(x, &r, &id));
        take(x, id, &alone[i]);
    }
    nrd_exec_close(x);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < N; i++) {
        free(alone[i].logits);
    }
    tiny_remove(&tiny);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_drafts_change_nothing_but_the_steps),
        cmocka_unit_test(test_a_right_draft_saves_its_steps),
        cmocka_unit_test(test_an_answer_ends_behind_its_draft),
        cmocka_unit_test(test_a_draft_beside_what_looks_back),
        cmocka_unit_test(test_a_draft_beside_a_guide),
        cmocka_unit_test(test_a_draft_beside_a_budget_for_reasoning),
        cmocka_unit_test(test_logits_of_the_draft_decide),
        cmocka_unit_test(test_bad_drafts_are_refused_by_name),
        cmocka_unit_test(test_ngram_drafts_change_nothing),
        cmocka_unit_test(test_a_method_goes_on_behind_a_draft_of_the_request),
        cmocka_unit_test(test_a_wrong_speculative_config_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
