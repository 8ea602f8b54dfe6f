/* SPDX-License-Identifier: Apache-2.0
 * Vectors of texts from two engines of the same encoder, for instance one on a GPU and one on the CPU: together in a
 * batch and one at a time.
 *
 *   embed_check ENGINE DEVICE ENGINE DEVICE TOLERANCE        of vectors of length 1
 *
 * A device may compute engines of float32 in 16 bits: with a tolerance below 1e-4 it is told not to. */
#include "nereid/executor.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 48, MOST = 80, MOST_WIDTH = 4096 };

typedef struct vectors {
    float v[N][MOST_WIDTH];
    int32_t width;
} vectors;

static void check(nrd_error *err)
{
    if (err) {
        fprintf(stderr, "%s\n", nrd_exec_error_message(err));
        exit(2);
    }
}

static void send(nrd_exec *x, int32_t i)
{
    static const nrd_pooling kinds[] = {NRD_POOLING_FIRST, NRD_POOLING_MEAN, NRD_POOLING_LAST};
    int32_t ids[MOST];
    nrd_exec_request q;
    uint64_t id;

    nrd_exec_request_init(&q);
    for (int32_t k = 0; k < MOST; k++) {
        ids[k] = 10 + (i * 37 + k * 13 + k * k) % 200;
    }
    q.input_ids = ids;
    q.n_input_ids = 1 + i * 29 % MOST;
    q.pooling = kinds[i % 3];
    q.client_id = (uint64_t)i;
    check(nrd_exec_enqueue(x, &q, &id));
}

static void receive(nrd_exec *x, vectors *out)
{
    nrd_exec_response *r = NULL;
    int32_t got = 0;
    double square = 0;

    check(nrd_exec_await(x, &r, 1, -1, &got));
    if (got == 0 || r->error || !r->embedding || r->n_embedding > MOST_WIDTH) {
        fprintf(stderr, "%s\n", got && r->error ? nrd_exec_error_message(r->error) : "a vector is missing");
        exit(2);
    }
    for (int32_t k = 0; k < r->n_embedding; k++) {
        square += (double)r->embedding[k] * (double)r->embedding[k];
    }
    out->width = r->n_embedding;
    for (int32_t k = 0; k < r->n_embedding; k++) {
        out->v[r->client_id][k] = (float)((double)r->embedding[k] / sqrt(square));
    }
    nrd_exec_response_free(r);
}

static void embed(const char *engine, const char *device, bool exact, vectors *together, vectors *alone)
{
    nrd_exec_config c;
    nrd_exec *x = NULL;

    nrd_exec_config_init(&c);
    c.device = device;
    c.compute_dtype = exact ? NRD_DTYPE_F32 : NRD_DTYPE_NONE;
    c.kv_cache_free_mem_fraction = 0.02;
    check(nrd_exec_open(&x, engine, &c));
    for (int32_t i = 0; i < N; i++) {
        send(x, i);
    }
    for (int32_t i = 0; i < N; i++) {
        receive(x, together);
    }
    for (int32_t i = 0; i < N; i++) {
        send(x, i);
        receive(x, alone);
    }
    nrd_exec_close(x);
}

static int differ(const char *what, const vectors *a, const vectors *b, double tolerance)
{
    double worst = a->width == b->width ? 0 : INFINITY;

    for (int32_t i = 0; i < N; i++) {
        for (int32_t k = 0; k < a->width && k < b->width; k++) {
            const double d = fabs((double)a->v[i][k] - (double)b->v[i][k]);
            worst = d <= worst ? worst : d; /* NaN is worse than all */
        }
    }
    const int bad = !(worst <= tolerance);
    printf("%s %s: %d vectors of %d numbers within %.2g\n", bad ? "FAIL" : "ok  ", what, N, a->width, worst);
    return bad;
}

int main(int argc, char **argv)
{
    static vectors first, first_alone, second, second_alone;

    if (argc != 6) {
        fprintf(stderr, "usage: embed_check ENGINE DEVICE ENGINE DEVICE TOLERANCE\n");
        return 2;
    }
    const double tolerance = atof(argv[5]);
    embed(argv[1], argv[2], tolerance < 1e-4, &first, &first_alone);
    embed(argv[3], argv[4], false, &second, &second_alone);
    return differ("beside others and alone", &first, &first_alone, tolerance) +
               differ("the other engine's", &first, &second, tolerance) +
               differ("the other engine's, alone", &first_alone, &second_alone, tolerance) > 0;
}
