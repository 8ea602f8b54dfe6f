/* SPDX-License-Identifier: Apache-2.0
 * A recorded chain of dependent operations, on devices that record: every launch gives what the calls give. */
#include "ops/harness.h"

enum { N = 5, HIDDEN = 1024, LAYERS = 6, ROUNDS = 12 };

typedef struct chain {
    nrd_weight w[LAYERS], norm;
    void *residual, *h, *y;
} chain;

static void enqueue(const target *t, const chain *c)
{
    const nrd_dtype act = kind->acts[0];

    for (int i = 0; i < LAYERS; i++) {
        nrd_norm_args na = {.eps = 1e-5f,
                            .n_tokens = N,
                            .hidden = HIDDEN,
                            .delta = i ? c->y : NULL,
                            .residual = c->residual,
                            .weight = &c->norm,
                            .out = c->h,
                            .out_dtype = act,
                            .act_dtype = act};
        nrd_linear_args la = {.n_tokens = N,
                              .x = c->h,
                              .x_dtype = act,
                              .n_parts = 1,
                              .w = {&c->w[i]},
                              .y = c->y,
                              .y_dtype = act};
        ok(t->ops->norm(t->s, &na));
        ok(t->ops->linear(t->s, &la));
    }
}

void check_graph(void)
{
    const target *t = &targets[0];
    const nrd_dtype act = kind->acts[0];
    const size_t bytes = nrd_row_bytes(act, HIDDEN) * N;
    nrd_graph *graph = NULL;
    chain c;
    char *first = host(bytes), *got = host(bytes);

    if (!t->ops->graph_begin) {
        return;
    }
    const nrd_weight norm = weight_new(NRD_DTYPE_F32, HIDDEN, 1, 1);
    const void *x = host_as(act, N * HIDDEN, 1);
    c.norm = weight_on(t, &norm, false);
    for (int i = 0; i < LAYERS; i++) {
        const nrd_weight w = weight_new(act, HIDDEN, HIDDEN, 0.03f);
        c.w[i] = weight_on(t, &w, true);
    }
    c.residual = dev_out(t, bytes);
    c.h = dev_out(t, bytes);
    c.y = dev_out(t, bytes);
    ok(t->ops->reserve(t->s, 64, 8, HIDDEN, 1024, 1000));
    case_name("graph of %d operations", 2 * LAYERS);
    for (int round = 0; round < ROUNDS; round++) {
        ok(t->ops->copy(t->s, c.residual, x, bytes));
        if (round == 1) {
            sync(t);
            ok(t->ops->graph_begin(t->s));
        }
        if (round < 2) {
            enqueue(t, &c);
        }
        if (round == 1) {
            ok(t->ops->graph_end(t->s, &graph));
        }
        if (round > 0) {
            ok(t->ops->graph_launch(t->s, graph));
        }
        dev_get(t, round ? got : first, c.y, bytes);
        if (round > 0) {
            same_bytes(t, "launch", got, first, bytes);
        }
    }
    t->ops->graph_free(graph);
    case_end();
}
