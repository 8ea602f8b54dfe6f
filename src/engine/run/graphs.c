/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/run/graphs.h"

#include "base/error.h"
#include "base/mem.h"

#include <stdlib.h>

/* Rows that steps are filled up to: at most half of a step is padding up to 8 rows, a third up to 128;
 * from there on the tiles of products, 64 rows. */
static const int32_t buckets[] = {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128};
enum {
    N_BUCKETS = sizeof buckets / sizeof buckets[0],
    ROWS_STEP = 64,
    MAX_ROWS = 2048,
    MIN_CTX = 256,
};

nrd_error *nrd_graphs_init(nrd_graphs *g, nrd_device *dev, int32_t cap)
{
    const nrd_device_ops *ops = dev->ops;
    nrd_error *err = NULL;

    *g = (nrd_graphs){.dev = dev};
    if (!ops->graph_begin || !ops->graph_end || !ops->graph_launch || !ops->graph_free) {
        return NULL;
    }
    cap = cap <= 0 ? NRD_GRAPHS_DEFAULT : cap > NRD_GRAPHS_MAX ? NRD_GRAPHS_MAX : cap;
    NRD_NEW_GOTO(g->slots, cap, err, fail);
    g->cap = cap;
fail:
    return err;
}

void nrd_graphs_fini(nrd_graphs *g)
{
    for (int32_t i = 0; i < g->n; i++) {
        if (g->slots[i].graph) {
            g->dev->ops->graph_free(g->slots[i].graph);
        }
    }
    free(g->slots);
    *g = (nrd_graphs){0};
}

int32_t nrd_graphs_rows(int32_t n, int32_t max)
{
    int32_t rows = 0;
    if (n > max || n > MAX_ROWS) {
        return 0;
    }
    for (int32_t i = N_BUCKETS - 1; i >= 0 && n <= buckets[i]; i--) {
        rows = buckets[i];
    }
    rows = rows > 0 ? rows : (n + ROWS_STEP - 1) / ROWS_STEP * ROWS_STEP;
    return rows < max ? rows : max;
}

int32_t nrd_graphs_ctx(int32_t ctx, int32_t max)
{
    int64_t c = MIN_CTX;
    while (c < ctx) {
        c *= 2;
    }
    return c < max ? (int32_t)c : max > ctx ? max : ctx;
}

static bool same(const nrd_graph_key *a, const nrd_graph_key *b)
{
    return a->rows == b->rows && a->each == b->each && a->tree_words == b->tree_words && a->ctx == b->ctx && a->n_top == b->n_top &&
           a->adapter_rank == b->adapter_rank &&
           a->banned == b->banned && a->counts == b->counts;
}

nrd_graph_slot *nrd_graphs_get(nrd_graphs *g, const nrd_graph_key *key, bool *seen)
{
    nrd_graph_slot *oldest = &g->slots[0];

    g->now++;
    for (int32_t i = 0; i < g->n; i++) {
        nrd_graph_slot *s = &g->slots[i];
        if (same(&s->key, key)) {
            s->used = g->now;
            *seen = true;
            return s;
        }
        oldest = s->used < oldest->used ? s : oldest;
    }
    if (g->n < g->cap) {
        oldest = &g->slots[g->n++];
    } else if (oldest->graph) {
        g->dev->ops->graph_free(oldest->graph);
    }
    *oldest = (nrd_graph_slot){.key = *key, .used = g->now};
    *seen = false;
    return oldest;
}
