/* SPDX-License-Identifier: Apache-2.0
 * Load on a model of tensors over gRPC, by the client of `nereid bench serve`, which knows texts only: one thread, any number of
 * calls at a time.
 *
 *   grpc_load ADDRESS MODEL CALLS SECONDS BYTES           unary: each call follows the last one
 *   grpc_load ADDRESS MODEL STREAMS SECONDS BYTES ANSWERS streams: each request brings ANSWERS
 *
 * The input is FP32, [1, BYTES / 4]. Prints one line of JSON. Exit status 1: a call failed. */
#include "base/clock.h"
#include "tools/load/plugin/calls.h"
#include "tools/load/plugin/messages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SAMPLES = 8 << 20, TIMEOUT_S = 60 };

typedef struct load {
    void *client;
    char *body; /* of every request */
    size_t n_body;
    uint64_t end_ns, n_requests, n_failed;
    size_t n_open; /* calls or streams that go on */
    uint32_t *samples_us;
    size_t n_samples;
} load;

typedef struct slot { /* requests one after the other */
    load *l;
    uint64_t begin_ns;
} slot;

static void start(slot *s)
{
    s->begin_ns = nrd_now_ns();
    nrd_grpc_post(s->l->client, s, s->l->body, s->l->n_body);
}

static void on_piece(void *tag, int status, const char *data, size_t n)
{
    (void)tag;
    (void)status;
    (void)data;
    (void)n;
}

static void on_end(void *tag, int status, const char *why)
{
    slot *s = tag;
    load *l = s->l;
    const uint64_t now = nrd_now_ns();
    (void)status;

    if (why) {
        if (l->n_failed++ == 0) {
            fprintf(stderr, "%s\n", why);
        }
    } else {
        l->n_requests++;
        if (l->n_samples < MAX_SAMPLES) {
            l->samples_us[l->n_samples++] = (uint32_t)((now - s->begin_ns) / 1000);
        }
    }
    if (now < l->end_ns && l->n_failed == 0) {
        start(s);
    } else {
        l->n_open--;
    }
}

static char *make_body(const char *model, size_t size, bool streams, size_t *out_n)
{
    void *zeros = calloc(1, size + 1);
    const nrd_grpc_tensor input = {"INPUT0", "FP32", (int64_t)(size / 4), zeros, size};
    char *body = zeros ? nrd_grpc_request(model, &input, 1, streams, out_n) : NULL;
    free(zeros);
    return body;
}

static int by_value(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void print(load *l, double seconds, uint64_t answers)
{
    qsort(l->samples_us, l->n_samples, sizeof *l->samples_us, by_value);
    printf("{\"rate\": %.1f, \"answers_rate\": %.1f, \"p50_us\": %u, \"p99_us\": %u, \"failed\": %llu}\n",
           (double)l->n_requests / seconds, (double)(l->n_requests * answers) / seconds,
           l->n_samples ? l->samples_us[l->n_samples / 2] : 0, l->n_samples ? l->samples_us[l->n_samples * 99 / 100] : 0,
           (unsigned long long)l->n_failed);
}

int main(int argc, char **argv)
{
    load l = {0};
    char why[600];

    if (argc < 6) {
        fprintf(stderr, "grpc_load ADDRESS MODEL CALLS SECONDS BYTES [ANSWERS]\n");
        return 2;
    }
    const uint64_t answers = argc > 6 ? strtoull(argv[6], NULL, 10) : 1;
    const bool streams = argc > 6;
    const nrd_client_config config = {.url = argv[1],
                                      .path = streams ? "/inference.GRPCInferenceService/ModelStreamInfer"
                                                      : "/inference.GRPCInferenceService/ModelInfer",
                                      .headers = "",
                                      .timeout_s = TIMEOUT_S,
                                      .streams = streams,
                                      .piece = on_piece,
                                      .end = on_end};
    l.n_open = strtoul(argv[3], NULL, 10);
    l.body = make_body(argv[2], strtoul(argv[5], NULL, 10), streams, &l.n_body);
    l.samples_us = malloc(MAX_SAMPLES * sizeof *l.samples_us);
    slot *slots = calloc(l.n_open, sizeof *slots);
    if (!l.body || !l.samples_us || !slots || !nrd_grpc_open(&l.client, &config, why, sizeof why)) {
        fprintf(stderr, "%s\n", l.body && l.samples_us && slots ? why : "out of memory");
        return 2;
    }
    const uint64_t begin = nrd_now_ns();
    l.end_ns = begin + (uint64_t)(strtod(argv[4], NULL) * 1e9);
    for (size_t i = 0, n = l.n_open; i < n; i++) {
        slots[i].l = &l;
        start(&slots[i]);
    }
    while (l.n_open > 0) {
        nrd_grpc_wait(l.client, UINT64_MAX);
    }
    print(&l, (double)(nrd_now_ns() - begin) * 1e-9, answers);
    nrd_grpc_free(l.client);
    free(l.body);
    free(l.samples_us);
    free(slots);
    return l.n_failed ? 1 : 0;
}
