/* SPDX-License-Identifier: Apache-2.0
 * Tokens with and without recorded steps must be the same, and those with drafts. Arguments: engine folders with random
 * weights. Several sequences at once are compared in deterministic mode, where a row's result does
 * not depend on its neighbours; one alone also in the fast mode. Then the fast mode's log probabilities
 * against those of the deterministic one, whose kernels are plain, with prompts and single tokens in
 * one step; for 16-bit engines: with F8 activations the two differ by more (docs/performance). */
#include "nereid/executor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SEQS = 64, N_IN = 24, N_OUT = 160 };

typedef struct run {
    int32_t ids[MAX_SEQS][N_OUT];
    float log_probs[MAX_SEQS][N_OUT];
    int32_t n[MAX_SEQS];
} run;

static void check(nrd_error *err)
{
    if (err) {
        fprintf(stderr, "%s\n", nrd_exec_error_message(err));
        exit(2);
    }
}

/* Sequence i: greedy, or with a draw, a penalty, forbidden repetitions by turns. */
static void send(nrd_exec *x, int32_t i, int32_t vocab, bool features, uint64_t *id)
{
    int32_t ids[N_IN];
    nrd_exec_request q;
    uint32_t state = 12345u + (uint32_t)i * 977u;

    for (int32_t k = 0; k < N_IN; k++) {
        state = state * 1664525u + 1013904223u;
        ids[k] = (int32_t)((state >> 8) % (uint32_t)vocab);
    }
    nrd_exec_request_init(&q);
    q.input_ids = ids;
    q.n_input_ids = N_IN - i % 5;
    q.max_new_tokens = N_OUT - i % 7;
    q.end_id = -1;
    q.exclude_input_in_output = true;
    q.return_log_probs = true;
    q.client_id = (uint64_t)i;
    q.sampling.top_k = 1;
    if (features && i % 4 == 1) {
        q.sampling.top_k = 20;
        q.sampling.random_seed = (uint64_t)i;
    } else if (features && i % 4 == 2) {
        q.sampling.repetition_penalty = 1.3f;
    } else if (features && i % 4 == 3) {
        q.sampling.no_repeat_ngram_size = 2;
    }
    check(nrd_exec_enqueue(x, &q, id));
}

static const char *drafts; /* speculative_config of the executors opened next; NULL: none */

static void generate(const char *dir, int32_t n, bool deterministic, bool graphs, bool features,
                     int32_t max_num_tokens, double gpu_weights, run *out)
{
    nrd_exec_config c;
    nrd_exec_info info = {.size = sizeof info};
    nrd_exec *x = NULL;
    int32_t n_done = 0;

    memset(out, 0, sizeof *out);
    nrd_exec_config_init(&c);
    c.device = "cuda";
    c.deterministic = deterministic;
    c.cuda_graph_mode = graphs;
    c.speculative_config = drafts;
    c.gpu_weights_percent = gpu_weights;
    c.max_batch_size = MAX_SEQS;
    c.max_num_tokens = max_num_tokens;
    c.enable_chunked_context = true;
    c.normalize_log_probs = false; /* a greedy choice's would be zero */
    c.kv_cache_free_mem_fraction = 0.05;
    check(nrd_exec_open(&x, dir, &c));
    nrd_exec_get_info(x, &info);
    for (int32_t i = 0; i < n; i++) {
        uint64_t id;
        send(x, i, info.vocab, features, &id);
    }
    while (n_done < n) {
        nrd_exec_response *r = NULL;
        int32_t got = 0;
        check(nrd_exec_await(x, &r, 1, -1, &got));
        if (got == 0) {
            fprintf(stderr, "an answer is missing\n");
            exit(2);
        }
        if (r->error) {
            fprintf(stderr, "%s\n", nrd_exec_error_message(r->error));
            exit(2);
        }
        int32_t i = (int32_t)r->client_id;
        out->n[i] = r->beams[0].n_ids < N_OUT ? r->beams[0].n_ids : N_OUT;
        memcpy(out->ids[i], r->beams[0].ids, (size_t)out->n[i] * sizeof(int32_t));
        for (int32_t k = 0; k < r->beams[0].n_log_probs && k < N_OUT; k++) {
            out->log_probs[i][k] = r->beams[0].log_probs[k];
        }
        n_done++;
        nrd_exec_response_free(r);
    }
    nrd_exec_close(x);
}

/* Sequences whose tokens differ; prints so many and the largest difference of log probabilities. */
static int32_t differing(const run *a, const run *b, int32_t n)
{
    int32_t n_ids = 0, n_bad = 0;
    double worst = 0;

    for (int32_t i = 0; i < n; i++) {
        int32_t same = a->n[i] == b->n[i] && a->n[i] > 0;
        for (int32_t k = 0; same && k < a->n[i]; k++) {
            double d = (double)a->log_probs[i][k] - (double)b->log_probs[i][k];
            same = a->ids[i][k] == b->ids[i][k];
            d = d < 0 ? -d : d;
            worst = d > worst ? d : worst;
        }
        n_ids += a->n[i];
        n_bad += !same;
    }
    printf(", %d tokens: %d sequences differ, log probabilities by %.2g\n", n_ids, n_bad, worst);
    fflush(stdout);
    return n_bad;
}

static int32_t compare(const char *dir, int32_t n, bool deterministic, bool features)
{
    static run with, without;

    generate(dir, n, deterministic, true, features, 0, 1, &with);
    generate(dir, n, deterministic, false, features, 0, 1, &without);
    printf("%s: %d sequences%s%s", dir, n, deterministic ? ", deterministic" : "", features ? ", penalties and draws" : "");
    return differing(&with, &without, n);
}

/* Weights that come from host memory in every step, beside weights that are there: the same tokens. */
static int32_t compare_streamed(const char *dir, int32_t n, double gpu_weights, bool graphs)
{
    static run streamed, there;

    generate(dir, n, true, graphs, true, 100, gpu_weights, &streamed);
    generate(dir, n, true, graphs, true, 100, 1, &there);
    printf("%s: %d sequences, %g of the weights on the GPU%s", dir, n, gpu_weights, graphs ? ", recorded" : "");
    return differing(&streamed, &there, n);
}

/* Drafts from the text, whose lengths differ from sequence to sequence, in recorded steps: the tokens of steps that are neither. */
static int32_t compare_drafts(const char *dir, int32_t n, bool features)
{
    static run with, without;

    drafts = "{\"method\": \"ngram\", \"adaptive\": false, \"prompt_lookup_min\": 1, \"num_speculative_tokens\": 6}";
    generate(dir, n, true, true, features, 0, 1, &with);
    drafts = NULL;
    generate(dir, n, true, false, features, 0, 1, &without);
    printf("%s: %d sequences, drafts of mixed lengths, deterministic%s", dir, n, features ? ", penalties and draws" : "");
    return differing(&with, &without, n);
}

/* Up to the first token that differs, and it: from there on they speak of different texts. */
static int32_t compare_modes(const char *dir, int32_t n)
{
    static run fast, plain;
    int32_t n_ids = 0;
    double worst = 0, sum = 0;

    generate(dir, n, false, true, false, 100, 1, &fast);
    generate(dir, n, true, false, false, 100, 1, &plain);
    for (int32_t i = 0; i < n; i++) {
        bool same = true;
        for (int32_t k = 0; k < fast.n[i] && same; k++, n_ids++) {
            same = fast.ids[i][k] == plain.ids[i][k];
            double d = (double)fast.log_probs[i][k] - (double)plain.log_probs[i][k];
            d = d < 0 ? -d : d;
            worst = d > worst ? d : worst;
            sum += d;
        }
    }
    printf("%s: %d sequences, fast and deterministic, mixed steps: %d tokens, log probabilities "
           "by %.2g, in the mean %.2g\n", dir, n, n_ids, worst, sum / (n_ids ? n_ids : 1));
    fflush(stdout);
    return n_ids < n || !(sum / n_ids < 0.1);
}

int main(int argc, char **argv)
{
    int32_t n_bad = 0;
    if (argc == 3 && strcmp(argv[1], "modes") == 0) { /* that comparison alone */
        return compare_modes(argv[2], 50) != 0;
    }
    for (int i = 1; i < argc; i++) {
        n_bad += compare_modes(argv[i], 50);
        n_bad += compare(argv[i], 1, false, false);
        n_bad += compare(argv[i], 1, true, false);
        n_bad += compare(argv[i], 13, true, false);
        n_bad += compare(argv[i], 37, true, true);
        n_bad += compare_drafts(argv[i], 1, false);
        n_bad += compare_drafts(argv[i], 13, false);
        n_bad += compare_drafts(argv[i], 37, true);
        n_bad += compare_streamed(argv[i], 13, 0.4, true);
        n_bad += compare_streamed(argv[i], 13, 0, false);
        /* Neighbours may decide between near-equal tokens here: printed, not counted. */
        (void)compare(argv[i], 37, false, true);
    }
    return n_bad > 0 || argc < 2;
}
