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

nrd_error *nrd_graphs_init(nrd_graphs *g, nrd_device *dev, nrd_stream *stream, int32_t cap,
                           void (*on_warning)(void *user, const char *message), void *user)
{
    const nrd_device_ops *ops = dev->ops;
    nrd_error *err = NULL;

    *g = (nrd_graphs){.dev = dev, .stream = stream, .on_warning = on_warning, .user = user};
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

static int32_t power_of_two(int32_t n)
{
    int32_t power = 1;
    while (power < n) {
        power *= 2;
    }
    return power;
}

/* The fewest tokens that are filled up to so many. */
static int32_t fewest(int32_t tokens)
{
    int32_t least = tokens > ROWS_STEP ? tokens - ROWS_STEP : 0;
    for (int i = 0; i < N_BUCKETS && buckets[i] < tokens; i++) {
        least = buckets[i] > least ? buckets[i] : least;
    }
    return least + 1;
}

/* Sequences that fill up any step of n sequences to these tokens. */
static int32_t n_filling(int32_t n, int32_t tokens, int32_t each)
{
    const int32_t least = fewest(tokens), n_tokens = least > n ? least : n + 1;
    return (tokens - n_tokens + each - 1) / each;
}

nrd_graph_shape nrd_graphs_shape(int32_t n, int32_t n_tokens, int32_t longest, int32_t max_rows, int32_t max_tokens)
{
    nrd_graph_shape s = {.each = longest};
    const int32_t most = max_rows < max_tokens / longest ? max_rows : max_tokens / longest, rows = nrd_graphs_rows(n, most);
    if (longest == 1 || (n_tokens == n * longest && rows == n)) {
        s.rows = rows;
        s.tokens = rows * longest;
        return s;
    }
    s.each = power_of_two(longest);
    s.tokens = nrd_graphs_rows(n_tokens, max_tokens);
    s.rows = s.tokens > 0 ? nrd_graphs_rows(n + n_filling(n, s.tokens, s.each), max_rows + NRD_GRAPHS_FILL) : 0;
    return s;
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
    return a->shape.rows == b->shape.rows && a->shape.tokens == b->shape.tokens && a->shape.each == b->shape.each &&
           a->tree_words == b->tree_words && a->ctx == b->ctx && a->n_top == b->n_top && a->n_outputs == b->n_outputs &&
           a->adapter_rank == b->adapter_rank && a->two_steps == b->two_steps && a->banned == b->banned && a->counts == b->counts && a->outputs == b->outputs;
}

/* The slot of a key; *seen = false when it is new. */
static nrd_graph_slot *slot_of(nrd_graphs *g, const nrd_graph_key *key, bool *seen)
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

static nrd_error *record(nrd_graphs *g, nrd_error *(*body)(void *user), void *user, nrd_graph **out)
{
    const nrd_device_ops *ops = g->dev->ops;
    nrd_graph *graph = NULL;

    NRD_TRY(ops->graph_begin(g->stream));
    nrd_error *err = body(user);
    nrd_error *end = ops->graph_end(g->stream, &graph); /* also after an error: recording must end */
    if (err) {
        nrd_error_free(end);
        if (graph) {
            ops->graph_free(graph);
        }
        return err;
    }
    *out = graph;
    return end;
}

nrd_error *nrd_graphs_run(nrd_graphs *g, const nrd_graph_key *key, nrd_graphs_how how, nrd_error *(*body)(void *user), void *user,
                          bool *is_recording)
{
    bool seen = false;
    nrd_graph_slot *slot = slot_of(g, key, &seen);

    if (is_recording) {
        *is_recording = !slot->graph && how != NRD_GRAPHS_AS_IT_IS;
    }
    if (how == NRD_GRAPHS_AS_IT_IS || (how == NRD_GRAPHS_IF_AGAIN && !seen)) {
        return body(user);
    }
    nrd_error *err = slot->graph ? NULL : record(g, body, user, &slot->graph);
    if (err) {
        if (g->on_warning) {
            g->on_warning(g->user, nrd_error_message(err));
        }
        nrd_error_free(err);
        NRD_TRY(g->dev->ops->stream_sync(g->stream)); /* graphs may be running */
        nrd_graphs_fini(g);
        return body(user);
    }
    return g->dev->ops->graph_launch(g->stream, slot->graph);
}
