/* SPDX-License-Identifier: Apache-2.0
 * Guided answers do not depend on how a step runs: with recorded steps or without, with masks that are
 * made while the device computes or known already. Prints the ids, so that their text can be looked at.
 *
 *   guided_check ENGINE TOKENIZER [DEVICE]        cuda */
#include "nereid/executor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 24, N_OUT = 100 };

typedef struct run {
    int32_t ids[N][N_OUT], n[N];
} run;

static const char *const guides[][2] = {
    {"regex", "[0-9]{4}-[a-f]{2,9}\\. the quick brown fox jumps over [a-z ]{5,20}!"},
    {"json_schema", "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":12},"
                    "\"identification\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":999}},"
                    "\"required\":[\"name\",\"identification\"],\"additionalProperties\":false}"},
    {"ebnf_grammar", "root ::= \"the \" (\"lazy dog\" | \"quick brown fox\") [0-9]{3}"},
    {NULL, NULL},
};

static void check(nrd_error *err)
{
    if (err) {
        fprintf(stderr, "%s\n", nrd_exec_error_message(err));
        exit(2);
    }
}

static void send(nrd_exec *x, int32_t i)
{
    int32_t ids[8];
    nrd_exec_request q;
    uint64_t id;

    for (int32_t k = 0; k < 8; k++) {
        ids[k] = 10 + (i * 7 + k * 13) % 200;
    }
    nrd_exec_request_init(&q);
    q.input_ids = ids;
    q.n_input_ids = 8;
    q.max_new_tokens = N_OUT;
    q.end_id = 1;
    q.exclude_input_in_output = true;
    q.client_id = (uint64_t)i;
    q.guide_type = guides[i % 4][0];
    q.guide = guides[i % 4][1];
    q.sampling.top_k = i < N / 2 ? 1 : 40;
    q.sampling.random_seed = (uint64_t)i;
    q.sampling.repetition_penalty = i % 8 < 4 ? 1.0f : 1.2f;
    check(nrd_exec_enqueue(x, &q, &id));
}

static void generate(nrd_exec *x, run *out)
{
    memset(out, 0, sizeof *out);
    for (int32_t i = 0; i < N; i++) {
        send(x, i);
    }
    for (int32_t n_done = 0; n_done < N; n_done++) {
        nrd_exec_response *r = NULL;
        int32_t got = 0;
        check(nrd_exec_await(x, &r, 1, -1, &got));
        if (got == 0 || r->error) {
            fprintf(stderr, "%s\n", got ? nrd_exec_error_message(r->error) : "an answer is missing");
            exit(2);
        }
        int32_t i = (int32_t)r->client_id;
        out->n[i] = r->beams[0].n_ids < N_OUT ? r->beams[0].n_ids : N_OUT;
        memcpy(out->ids[i], r->beams[0].ids, (size_t)out->n[i] * sizeof(int32_t));
        nrd_exec_response_free(r);
    }
}

static int32_t n_different(const char *name, const run *a, const run *b)
{
    int32_t n = 0;
    for (int32_t i = 0; i < N; i++) {
        n += a->n[i] != b->n[i] || memcmp(a->ids[i], b->ids[i], (size_t)a->n[i] * sizeof(int32_t)) != 0;
    }
    fprintf(stderr, "%s: %d of %d answers differ\n", name, n, N);
    return n;
}

static nrd_exec *open_engine(char **argv, const char *device, bool graphs)
{
    nrd_exec_config c;
    nrd_exec *x = NULL;
    nrd_exec_config_init(&c);
    c.device = device;
    c.deterministic = true;
    c.cuda_graph_mode = graphs;
    c.max_batch_size = N;
    c.kv_cache_free_mem_fraction = 0.05;
    c.guided_decoding_backend = "xgrammar";
    c.tokenizer_dir = argv[2];
    check(nrd_exec_open(&x, argv[1], &c));
    return x;
}

int main(int argc, char **argv)
{
    static run fresh, known, plain;
    const char *device = argc > 3 ? argv[3] : "cuda";
    if (argc < 3) {
        fprintf(stderr, "usage: guided_check ENGINE TOKENIZER [DEVICE]\n");
        return 2;
    }
    nrd_exec *x = open_engine(argv, device, true);
    generate(x, &fresh);
    generate(x, &known);
    nrd_exec_close(x);
    x = open_engine(argv, device, false);
    generate(x, &plain);
    nrd_exec_close(x);
    for (int32_t i = 0; i < N; i++) {
        printf("%d %s", i, guides[i % 4][0] ? guides[i % 4][0] : "free");
        for (int32_t k = 0; k < fresh.n[i]; k++) {
            printf(" %d", fresh.ids[i][k]);
        }
        printf("\n");
    }
    return n_different("masks known", &fresh, &known) + n_different("no recorded steps", &fresh, &plain) > 0;
}
