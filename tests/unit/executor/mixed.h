/* SPDX-License-Identifier: Apache-2.0
 * Requests with a random mix of features, and what each says alone. */
#ifndef NRD_TEST_MIXED_H
#define NRD_TEST_MIXED_H

#include "exec_checks.h"
#include "tiny_methods.h"

#include "base/dtype.h"
#include "base/hash.h"

/* A sanitizer makes each request ten times as slow. */
#if defined(__SANITIZE_THREAD__)
enum { N = 60, N_EACH = 30 };
#elif defined(__SANITIZE_ADDRESS__)
enum { N = 200, N_EACH = 30 };
#else
enum { N = 200, N_EACH = 60 }; /* N_EACH: once for each way to guess */
#endif
enum { MAX_PROMPT = 70, MAX_DRAFT = 8, TABLE_ROWS = 4 };
enum { LAYERS = 3, MODULES = 7, LORA_ROWS = LAYERS * MODULES, N_ADAPTERS = 3, MAX_RANK = 4, LORA_WIDTH = MAX_RANK * (64 + 128) };

static char tokenizer_dir[] = "/tmp/nrd-mix-XXXXXX"; /* printable characters, of guides */

static struct adapter {
    uint16_t weights[LORA_ROWS * LORA_WIDTH]; /* f16 */
    int32_t config[LORA_ROWS * 3];
} adapters[N_ADAPTERS];

/* ---- requests ---- */

/* Everything that a request points to. */
typedef struct mixed {
    nrd_exec_request r;
    int32_t prompt[MAX_PROMPT], draft[MAX_DRAFT], stop_ids[3], stop_ends[2], bad_ids[3], bad_ends[2], bias_ids[3];
    float bias_values[3];
    nrd_kv_retention_range range;
    float table[TABLE_ROWS * HIDDEN];
    uint64_t extra_ids[MAX_PROMPT];
} mixed;

static uint64_t state_of_dice;

static inline int32_t roll(int32_t n)
{
    state_of_dice = nrd_hash_u64(state_of_dice, 0x9e37);
    return (int32_t)(state_of_dice >> 33) % n;
}

static inline void fill_sampling(mixed *m)
{
    nrd_sampling_config *s = &m->r.sampling;
    if (roll(2)) {
        s->top_k = roll(3) ? 2 + roll(30) : 0;
        s->top_p = s->top_k == 0 || roll(2) ? 0.5f + (float)roll(50) / 100 : 0;
        s->temperature = 0.5f + (float)roll(15) / 10;
        s->random_seed = (uint64_t)roll(1 << 20);
        s->min_p = roll(4) ? 0 : 0.02f;
        s->top_p_decay = s->top_p > 0 && roll(4) == 0 ? 0.9f : 1;
    }
    s->repetition_penalty = roll(5) ? 1 : 1.3f;
    s->presence_penalty = roll(6) ? 0 : 0.5f;
    s->frequency_penalty = roll(6) ? 0 : 0.2f;
    s->min_length = roll(4) ? 0 : roll(10);
    s->no_repeat_ngram_size = roll(8) ? 0 : 2 + roll(2);
    if (roll(6) == 0) {
        s->beam_width = 2 + roll(3);
        s->length_penalty = (float)roll(3) / 2;
        s->beam_search_diversity_rate = roll(2) ? 0 : 0.5f;
        s->early_stopping = roll(2);
    } else if (roll(6) == 0) {
        s->num_return_sequences = 2 + roll(3);
    }
}

/* Every adapter has its own ranks and values. */
static inline void make_adapters(void)
{
    static const int32_t dims[MODULES + 1][2] = {{0, 0}, {64, 64}, {64, 32}, {64, 32}, {64, 64}, {64, 96}, {96, 64}, {64, 96}};
    for (int a = 0; a < N_ADAPTERS; a++) {
        for (int i = 0; i < LORA_ROWS; i++) {
            const int32_t module = 1 + i % MODULES, rank = 1 + (a + i) % MAX_RANK;
            const int32_t n = rank * (dims[module][0] + dims[module][1]);
            int32_t *row = adapters[a].config + 3 * i;
            row[0] = module;
            row[1] = i / MODULES;
            row[2] = rank;
            for (int32_t k = 0; k < n; k++) {
                adapters[a].weights[i * LORA_WIDTH + k] = nrd_f32_to_f16(((float)roll(1000) / 1000 - 0.5f) * 0.5f);
            }
        }
    }
}

/* Adapters come with every request: the first one brings them. */
static inline void fill_adapter(nrd_exec_request *r)
{
    const int32_t a = roll(N_ADAPTERS);
    r->lora_task_id = 1 + (uint64_t)a;
    r->lora_weights = adapters[a].weights;
    r->lora_config = adapters[a].config;
    r->lora_rows = LORA_ROWS;
    r->lora_width = LORA_WIDTH;
}

static inline void fill_guide(nrd_exec_request *r)
{
    static const char *const texts[] = {"[a-z]{3,30}", "(yes|no|perhaps)+", "[0-9]+(,[0-9]+)*"};
    r->guide_type = "regex";
    r->guide = texts[roll(3)];
    r->end_id = -1;
}

static inline void fill_table(mixed *m)
{
    nrd_exec_request *r = &m->r;
    const int32_t family = roll(2);
    for (int k = 0; k < TABLE_ROWS * HIDDEN; k++) { /* two tables, which are equal wherever they come */
        m->table[k] = (float)((k * (family + 3)) % 17) / 17 - 0.5f;
    }
    for (int32_t k = 0; k < r->n_input_ids; k += 5) {
        m->prompt[k] = TINY_VOCAB + k / 5 % TABLE_ROWS;
        m->extra_ids[k] = (uint64_t)family;
    }
    r->prompt_embedding_table = m->table;
    r->prompt_table_dtype = NRD_DTYPE_F32;
    r->prompt_vocab_size = TABLE_ROWS;
    r->prompt_table_extra_ids = roll(2) ? m->extra_ids : NULL;
}

static inline void fill(mixed *m, int i)
{
    nrd_exec_request *r = &m->r;
    memset(m, 0, sizeof *m);
    state_of_dice = (uint64_t)i * 77 + 5;
    nrd_exec_request_init(r);
    r->n_input_ids = 1 + roll(MAX_PROMPT);
    const int32_t family = roll(4); /* prompts with a common beginning */
    for (int32_t k = 0; k < r->n_input_ids; k++) {
        m->prompt[k] = k < 40 ? (family * 13 + k * 5) % TINY_VOCAB : roll(TINY_VOCAB);
    }
    r->input_ids = m->prompt;
    r->max_new_tokens = 1 + roll(30);
    r->streaming = roll(2);
    r->exclude_input_in_output = roll(2);
    r->end_id = roll(2) ? roll(TINY_VOCAB) : -1;
    r->priority = (float)roll(11) / 10;
    fill_sampling(m);
    const bool beams = r->sampling.beam_width > 1;
    r->return_log_probs = roll(2);
    r->n_top_logprobs = beams || roll(4) ? 0 : 1 + roll(4);
    r->return_context_logits = roll(6) == 0;
    r->return_generation_logits = !beams && roll(6) == 0;
    if (roll(4) == 0) {
        m->stop_ids[0] = roll(TINY_VOCAB);
        m->stop_ids[1] = roll(TINY_VOCAB);
        m->stop_ids[2] = roll(TINY_VOCAB);
        m->stop_ends[0] = 1;
        m->stop_ends[1] = 3;
        r->stop_words = (nrd_phrases){m->stop_ids, m->stop_ends, 2};
    }
    if (roll(4) == 0) {
        m->bad_ids[0] = roll(TINY_VOCAB);
        m->bad_ids[1] = roll(TINY_VOCAB);
        m->bad_ids[2] = roll(TINY_VOCAB);
        m->bad_ends[0] = 2;
        m->bad_ends[1] = 3;
        r->bad_words = (nrd_phrases){m->bad_ids, m->bad_ends, 2};
    }
    if (roll(5) == 0) {
        for (int k = 0; k < 3; k++) {
            m->bias_ids[k] = roll(30) + k * 31;
            m->bias_values[k] = (float)roll(10) - 5;
        }
        r->bias_ids = m->bias_ids;
        r->bias_values = m->bias_values;
        r->n_bias = 3;
    }
    if (roll(5) == 0) {
        m->range = (nrd_kv_retention_range){roll(4), -1, roll(101), roll(2) ? -1 : roll(50)};
        r->retention_ranges = &m->range;
        r->n_retention_ranges = 1;
    }
    if (roll(4) == 0) {
        fill_adapter(r);
    }
    if (roll(5) == 0) {
        fill_table(m);
    }
    if (!beams && roll(6) == 0) {
        fill_guide(r);
    }
    r->cache_salt = roll(5) ? NULL : roll(2) ? "one" : "two";
    if (!beams && roll(3) == 0) {
        r->n_draft_input_ids = 1 + roll(MAX_DRAFT);
        for (int k = 0; k < r->n_draft_input_ids; k++) {
            m->draft[k] = roll(TINY_VOCAB);
        }
        r->draft_input_ids = m->draft;
    }
    if (!beams && r->sampling.num_return_sequences == 1 && !r->return_log_probs && !r->n_top_logprobs &&
        !r->return_context_logits && !r->return_generation_logits && !r->n_draft_input_ids && !r->guide_type &&
        roll(3) == 0) {
        r->pooling = roll(2) ? NRD_POOLING_LAST : NRD_POOLING_MEAN;
    }
}

/* ---- answers ---- */

/* Sums of all that a request's answers say, by sequence and kind: neither the order of sequences nor the cut of a
 * stream into pieces matters. */
enum { IDS, LOG_PROBS, TOP, ENDS, CONTEXT, LOGITS, KINDS };
typedef struct sum {
    uint64_t of[8][KINDS];
    int32_t n_final, n_drafted;
} sum;

static inline void add(uint64_t *h, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    for (size_t i = 0; i < bytes; i++) {
        *h = nrd_hash_u64(*h, p[i]);
    }
}

static inline void add_response(sum *s, const nrd_exec_response *r)
{
    uint64_t *h = s->of[r->sequence_index];
    for (int32_t b = 0; b < r->n_beams; b++) {
        const nrd_beam_output *o = &r->beams[b];
        const size_t n = (size_t)o->n_log_probs;
        add(&h[IDS], o->ids, (size_t)o->n_ids * sizeof *o->ids);
        add(&h[LOG_PROBS], o->log_probs, o->log_probs ? n * sizeof *o->log_probs : 0);
        add(&h[TOP], o->top_ids, o->top_ids ? n * (size_t)r->n_top * sizeof *o->top_ids : 0);
        if (r->is_sequence_final) {
            add(&h[LOG_PROBS], &o->cum_log_prob, sizeof o->cum_log_prob);
            add(&h[ENDS], &o->finish_reason, sizeof o->finish_reason);
        }
    }
    add(&h[CONTEXT], r->context_logits, r->context_logits ? (size_t)r->n_input_ids * (size_t)r->vocab * sizeof(float) : 0);
    add(&h[LOGITS], r->generation_logits,
        r->generation_logits ? (size_t)r->n_generation_logits * (size_t)r->vocab * sizeof(float) : 0);
    add(&h[ENDS], r->embedding, (size_t)r->n_embedding * sizeof(float));
    s->n_final += r->is_final;
    s->n_drafted += r->is_final ? r->perf.n_draft_tokens : 0;
}

static inline void take(nrd_exec *x, uint64_t id, int i, sum *s)
{
    memset(s, 0, sizeof *s);
    while (!s->n_final) {
        nrd_exec_response *r = NULL;
        must(nrd_exec_await_id(x, id, &r, 120 * 1000 * 1000));
        assert_non_null(r);
        if (r->error) {
            fail_msg("request %d: %s", i, nrd_exec_error_message(r->error));
        }
        add_response(s, r);
        nrd_exec_response_free(r);
    }
}

/* ---- the runs ---- */

static sum alone[N];
static mixed requests[N];

static inline nrd_exec *open_exec(const nrd_exec_config *more)
{
    nrd_exec *x = NULL;
    nrd_exec_config c = *more;
    c.device = "cpu";
    c.n_threads = 2;
    c.normalize_log_probs = false;
    c.deterministic = true; /* of a matrix unit it must be asked */
    if (c.kv_transfer_timeout_ms == 0) {
        c.kv_transfer_timeout_ms = 3600 * 1000; /* a sanitizer may need minutes between a prompt and who goes on with it */
    }
    c.guided_decoding_backend = "xgrammar";
    c.tokenizer_dir = tokenizer_dir;
    must(nrd_exec_open(&x, tiny_all.dir, &c));
    return x;
}

static inline void close_unpinned(nrd_exec *x)
{
    nrd_exec_lora_stats lora = {.size = sizeof lora};
    must(nrd_exec_shutdown(x, -1));
    nrd_exec_lora_get_stats(x, &lora);
    assert_int_equal(lora.n_host, N_ADAPTERS);
    assert_int_equal(lora.n_pinned, 0);
    close_empty(x);
}

/* Nodes of a token tree see the same tokens at other places of the cache, so that sums over them are added in another
 * order: logits differ in their last bits, what is said does not. */
static inline bool is_same(const sum *a, const sum *b, bool bits)
{
    for (int i = 0; i < 8; i++) {
        const uint64_t *x = a->of[i], *y = b->of[i];
        if (x[IDS] != y[IDS] || x[ENDS] != y[ENDS] || x[CONTEXT] != y[CONTEXT] ||
            (bits && memcmp(x, y, sizeof a->of[i]))) {
            return false;
        }
    }
    return a->n_final == b->n_final;
}

static inline int mixed_setup(void **state)
{
    nrd_exec_config c;
    (void)state;
    tiny_prompt_rows = TABLE_ROWS;
    tiny_methods_make();
    assert_non_null(mkdtemp(tokenizer_dir));
    tiny_write_tokenizer(tokenizer_dir);
    make_adapters();
    nrd_exec_config_init(&c);
    nrd_exec *x = open_exec(&c);
    for (int i = 0; i < N; i++) {
        uint64_t id;
        fill(&requests[i], i);
        must(nrd_exec_enqueue(x, &requests[i].r, &id));
        take(x, id, i, &alone[i]);
    }
    close_unpinned(x);
    return 0;
}

static inline int mixed_teardown(void **state)
{
    (void)state;
    tiny_methods_remove();
    char *path = nrd_path_join(tokenizer_dir, "tokenizer.json");
    unlink(path);
    free(path);
    return rmdir(tokenizer_dir);
}

#endif
