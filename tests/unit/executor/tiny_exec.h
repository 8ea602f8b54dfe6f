/* SPDX-License-Identifier: Apache-2.0
 * An executor with a small random model on the CPU device, prompts for it, and their answers when each runs alone. */
#ifndef NRD_TEST_TINY_EXEC_H
#define NRD_TEST_TINY_EXEC_H

#include "exec_checks.h"
#include "tiny_engine.h"

static tiny_engine tiny;

static inline nrd_exec_config config(void)
{
    nrd_exec_config c;
    nrd_exec_config_init(&c);
    c.device = "cpu";
    c.n_threads = 2;
    c.deterministic = true;
    c.normalize_log_probs = false;
    return c;
}

static inline nrd_exec *open_exec(const nrd_exec_config *c)
{
    nrd_exec *x = NULL;
    must(nrd_exec_open(&x, tiny.dir, c));
    return x;
}

typedef struct result {
    int32_t ids[4 * TINY_MAX_SEQ], n;
    float log_probs[4 * TINY_MAX_SEQ];
    int32_t n_log_probs, n_responses, n_beams;
    float cum;
    nrd_finish_reason finish;
    nrd_perf_metrics perf;
} result;

/* Collects everything that request `id` says (sequence 0, best beam). */
static inline void collect(nrd_exec *x, uint64_t id, result *out)
{
    bool done = false;
    *out = (result){0};
    while (!done) {
        nrd_exec_response *r = NULL;
        must(nrd_exec_await_id(x, id, &r, 60 * 1000 * 1000));
        assert_non_null(r);
        must(r->error);
        if (r->sequence_index == 0 && r->n_beams > 0) {
            const nrd_beam_output *b = &r->beams[0];
            if (b->n_ids > 0) {
                memcpy(out->ids + out->n, b->ids, (size_t)b->n_ids * sizeof *b->ids);
            }
            out->n += b->n_ids;
            if (b->n_log_probs > 0) {
                memcpy(out->log_probs + out->n_log_probs, b->log_probs,
                       (size_t)b->n_log_probs * sizeof *b->log_probs);
            }
            out->n_log_probs += b->n_log_probs;
            out->cum = b->cum_log_prob;
            out->n_beams = r->n_beams;
            out->finish = b->finish_reason;
        }
        out->n_responses++;
        out->perf = r->perf;
        done = r->is_final;
        nrd_exec_response_free(r);
    }
}

static int32_t prompts[32][TINY_MAX_SEQ];

static inline void make_prompts(void)
{
    uint32_t s = 1;
    for (int p = 0; p < 32; p++) {
        for (int i = 0; i < TINY_MAX_SEQ; i++) {
            s = s * 1664525u + 1013904223u;
            /* the first 20 tokens are common to every four prompts */
            prompts[p][i] =
                i < 20 ? (p % 4 * 7 + i * 3) % TINY_VOCAB : (int32_t)(s >> 16) % TINY_VOCAB;
        }
    }
}

static inline nrd_exec_request ask(int p)
{
    nrd_exec_request r;
    nrd_exec_request_init(&r);
    r.input_ids = prompts[p % 32];
    r.n_input_ids = 5 + p * 7 % 60;
    r.max_new_tokens = 10 + p * 5 % 40;
    r.exclude_input_in_output = true;
    r.return_log_probs = true;
    r.streaming = p % 3 == 0;
    if (p % 2) { /* half of them draw */
        r.sampling.top_k = p % 4 == 1 ? 12 : 0;
        r.sampling.top_p = 0.9f;
        r.sampling.temperature = 1.3f;
        r.sampling.random_seed = (uint64_t)p;
    }
    if (p % 5 == 0) {
        r.sampling.repetition_penalty = 1.3f;
        r.sampling.frequency_penalty = 0.1f;
    }
    return r;
}

enum { N_MIXED = 24 };

static result alone[N_MIXED];

static inline void run_alone(void)
{
    nrd_exec_config c = config();
    c.max_batch_size = 1;
    nrd_exec *x = open_exec(&c);
    for (int p = 0; p < N_MIXED; p++) {
        nrd_exec_request r = ask(p);
        uint64_t id;
        must(nrd_exec_enqueue(x, &r, &id));
        collect(x, id, &alone[p]);
        assert_int_equal(alone[p].n, r.max_new_tokens);
        assert_int_equal(alone[p].n_log_probs, alone[p].n);
    }
    nrd_exec_close(x);
}

static inline int tiny_exec_setup(void **state)
{
    (void)state;
    tiny_build(&tiny, tiny_llama, 16);
    make_prompts();
    run_alone();
    return 0;
}

static inline int tiny_exec_teardown(void **state)
{
    (void)state;
    tiny_remove(&tiny);
    return 0;
}

#endif
