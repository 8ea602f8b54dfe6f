/* SPDX-License-Identifier: Apache-2.0
 * Requests of chosen lengths go through the engine, and its own record of each step says how long it took: from the end
 * of the step before to its own end, so that what lies between two steps is in it. */
#include "tools/bench_steps.h"

#include "base/hash.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum {
    NEW_TOKENS = 12,  /* of each request that generates */
    FIRST = 3,        /* of them, that are not measured: all must be under way */
    REPEATS = 3,      /* of each prompt; the median counts */
    MAX_STEPS = 4096, /* of a run */
    LEAST = 16,       /* tokens of the shortest prompt */
    MAX_NAPS = 1000,  /* of a millisecond */
};

typedef struct run {
    nrd_exec *x;
    nrd_exec_info info;
    uint64_t random;
    nrd_iter_stats *steps; /* [MAX_STEPS] of the last run */
    int32_t n_steps;
} run;

static nrd_error *send(run *r, int32_t n_in, int32_t n_out)
{
    nrd_exec_request q;
    nrd_error *err = NULL;
    uint64_t id;
    int32_t *ids = NULL;

    NRD_NEW_GOTO(ids, (size_t)n_in, err, fail);
    for (int32_t i = 0; i < n_in; i++) {
        r->random = nrd_hash_u64(r->random, 1);
        ids[i] = (int32_t)(r->random % (uint64_t)r->info.vocab);
    }
    nrd_exec_request_init(&q);
    q.input_ids = ids;
    q.n_input_ids = n_in;
    q.max_new_tokens = n_out;
    q.exclude_input_in_output = true;
    err = nrd_exec_enqueue(r->x, &q, &id);
fail:
    free(ids);
    return err;
}

/* Takes n answers. */
static nrd_error *receive(run *r, int32_t n)
{
    nrd_error *err = NULL;
    while (n > 0) {
        nrd_exec_response *got[16];
        int32_t k = 0;
        NRD_TRY(nrd_exec_await(r->x, got, 16, -1, &k));
        for (int32_t i = 0; i < k; i++) {
            if (got[i]->error && !err) {
                err = nrd_errorf((nrd_error_code)nrd_exec_error_code(got[i]->error), "%s",
                                 nrd_exec_error_message(got[i]->error));
            }
            n -= got[i]->is_final;
            nrd_exec_response_free(got[i]);
        }
    }
    return err;
}

static void take_steps(run *r)
{
    for (int32_t i = 0; i < MAX_STEPS; i++) {
        r->steps[i].size = sizeof *r->steps;
    }
    r->n_steps = nrd_exec_take_iter_stats(r->x, r->steps, MAX_STEPS);
}

/* Milliseconds of step i. */
static double step_ms(const run *r, int32_t i)
{
    const double since = i > 0 ? (double)(r->steps[i].timestamp_us - r->steps[i - 1].timestamp_us) / 1e3 : 0;
    return i > 0 && since > 0 ? since : r->steps[i].iteration_ms;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *v, int32_t n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n > 0 ? v[n / 2] : 0;
}

/* n sequences whose contexts are about `context` long; 0: no step had them all. */
static nrd_error *measure_generation(run *r, int32_t n, int32_t context, double *out_ms)
{
    double v[MAX_STEPS];
    int32_t n_seen = 0, k = 0;

    take_steps(r);
    for (int32_t i = 0; i < n; i++) {
        NRD_TRY(send(r, context - NEW_TOKENS / 2, NEW_TOKENS));
    }
    NRD_TRY(receive(r, n));
    take_steps(r);
    for (int32_t i = 0; i < r->n_steps; i++) {
        if (r->steps[i].n_context == 0 && r->steps[i].n_generation == n && ++n_seen > FIRST) {
            v[k++] = step_ms(r, i);
        }
    }
    *out_ms = median(v, k);
    return NULL;
}

static nrd_error *measure_prompt(run *r, int32_t tokens, double *out_ms)
{
    double v[REPEATS];
    int32_t n = 0;
    for (int32_t i = 0; i < REPEATS; i++) {
        NRD_TRY(send(r, tokens, 1));
        NRD_TRY(receive(r, 1));
        for (int32_t naps = 0; n <= i && naps < MAX_NAPS; naps++) { /* a step is noted a moment after its answer */
            take_steps(r);
            for (int32_t k = 0; k < r->n_steps && n <= i; k++) {
                if (r->steps[k].n_context_tokens == tokens) {
                    v[n++] = r->steps[k].iteration_ms;
                }
            }
            const struct timespec nap = {0, 1000000};
            nanosleep(&nap, NULL);
        }
        if (n <= i) {
            return nrd_errorf(NRD_ERR_UNAVAILABLE, "a prompt of %d tokens was not computed in one step", tokens);
        }
    }
    *out_ms = median(v, n);
    return NULL;
}

/* What tokens before a piece of a prompt cost it: a long prompt beside a sequence that generates, so that it comes in
 * pieces of mixed_context_tokens, of which the first and the last are compared. */
static nrd_error *measure_pairs(run *r, int32_t context, double *out_us)
{
    const int32_t piece = r->info.mixed_context_tokens, pieces = piece > 0 ? context / piece : 0;
    double v[REPEATS];

    *out_us = 0;
    if (pieces < 2) {
        return NULL;
    }
    for (int32_t k = 0; k < REPEATS; k++) {
        double first = 0, last = 0;
        int32_t n = 0;
        take_steps(r);
        NRD_TRY(send(r, LEAST, pieces + 2 * NEW_TOKENS));
        NRD_TRY(send(r, pieces * piece, 1));
        NRD_TRY(receive(r, 2));
        take_steps(r);
        for (int32_t i = 1; i < r->n_steps; i++) { /* the first step may have taken another piece */
            if (r->steps[i].n_context_tokens == piece && r->steps[i].n_generation == 1) {
                first = n++ == 0 ? step_ms(r, i) : first;
                last = step_ms(r, i);
            }
        }
        v[k] = n > 1 ? (last - first) * 1e3 / ((double)piece * piece * (n - 1)) : 0;
    }
    *out_us = median(v, REPEATS);
    *out_us = *out_us > 0 ? *out_us : 0;
    return NULL;
}

static nrd_error *generation(run *r, int32_t max_sequences, int32_t longest, nrd_step_table *t)
{
    const int64_t room = (int64_t)r->info.n_kv_blocks * r->info.tokens_per_block;

    printf("%10s %10s %12s\n", "sequences", "context", "ms a step");
    for (int32_t n = 1; n > 0 && n <= max_sequences; n *= 2) {
        for (int32_t context = 2 * LEAST; context <= longest; context *= 4) {
            double ms = 0;
            if ((int64_t)n * (context + NEW_TOKENS + r->info.tokens_per_block) > room) {
                break;
            }
            NRD_TRY(measure_generation(r, n, context, &ms));
            if (ms > 0) {
                printf("%10d %10d %12.3f\n", n, context, ms);
                if (!nrd_step_table_add(t, n, context, ms)) {
                    return nrd_errorf(NRD_ERR_INVALID_ARG, "more than %d levels", NRD_STEP_LEVELS);
                }
            }
        }
    }
    return t->n_generation > 0 ? NULL
                               : nrd_errorf(NRD_ERR_UNAVAILABLE, "no step could be measured: the KV cache has room for "
                                            "%lld tokens, sequences have at most %d", (long long)room, r->info.max_seq_len);
}

static nrd_error *prompts(run *r, int32_t longest, nrd_step_table *t)
{
    printf("%10s %10s %12s\n", "prompt", "", "ms a step");
    for (int32_t n = LEAST; n <= longest && n <= r->info.max_num_tokens && t->n_prompts < NRD_STEP_LEVELS; n *= 2) {
        double ms = 0;
        NRD_TRY(measure_prompt(r, n, &ms));
        printf("%10d %10s %12.3f\n", n, "", ms);
        t->prompt_tokens[t->n_prompts] = n;
        t->prompt_ms[t->n_prompts++] = ms;
    }
    NRD_TRY(measure_pairs(r, longest, &t->pair_us));
    printf("%10s %10s %12.6f us a token of a prompt, for each token before\n", "", "", t->pair_us);
    return NULL;
}

nrd_error *nrd_bench_steps(nrd_exec *x, int32_t max_sequences, int32_t max_context, nrd_step_table *out)
{
    run r = {.x = x, .info = {.size = sizeof r.info}};
    nrd_error *err = NULL;

    nrd_exec_get_info(x, &r.info);
    const int32_t fits = (r.info.max_seq_len < r.info.max_input_len ? r.info.max_seq_len : r.info.max_input_len) - NEW_TOKENS;
    const int32_t longest = max_context > 0 && max_context < fits ? max_context : fits;
    const int32_t rows = max_sequences < r.info.max_batch_size ? max_sequences : r.info.max_batch_size;
    if (longest < 2 * LEAST) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "contexts of at least %d tokens are measured, but %d fit", 2 * LEAST, longest);
    }
    *out = (nrd_step_table){
        .tp_size = r.info.tp_size,
        .pp_size = r.info.pp_size,
        .max_batch_size = r.info.max_batch_size,
        .max_num_tokens = r.info.max_num_tokens,
        .max_seq_len = r.info.max_seq_len,
        .mixed_context_tokens = r.info.mixed_context_tokens,
        .even_context_tokens = r.info.even_context_tokens,
        .n_blocks = r.info.n_kv_blocks,
        .block_tokens = r.info.tokens_per_block,
    };
    snprintf(out->device, sizeof out->device, "%s", r.info.device);
    NRD_NEW_GOTO(r.steps, MAX_STEPS, err, done);
    NRD_TRY_GOTO(generation(&r, rows, longest, out), err, done);
    err = prompts(&r, longest, out);
done:
    free(r.steps);
    return err;
}
