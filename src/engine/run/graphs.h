/* SPDX-License-Identifier: Apache-2.0
 * engine/run/graphs.h - recorded steps, found again by their shape.
 *
 * Purpose   A step of few rows is bound by the host, which enqueues some hundred operations; a
 *           graph replays them with one call. A graph fits every step that has the same key.
 * Owner     The runner; the engine loop thread.
 * Lifetime  A graph stays until it is the one unused for longest and room is needed, or until fini.
 *           Freeing one that still runs is the device's affair (CUDA defers it).
 */
#ifndef NRD_ENGINE_RUN_GRAPHS_H
#define NRD_ENGINE_RUN_GRAPHS_H

#include "nereid/device.h"

/* All that a recorded step depends on besides the contents of memory. */
typedef struct nrd_graph_key {
    int32_t rows, each, tree_words, ctx, n_top;
    int32_t adapter_rank; /* 0: no sequence has an adapter */
    const void *banned, *counts; /* arrays that move when they grow; NULL: not used */
} nrd_graph_key;

typedef struct nrd_graph_slot {
    nrd_graph_key key;
    nrd_graph *graph; /* NULL: seen once, not recorded */
    uint64_t used;
} nrd_graph_slot;

enum { NRD_GRAPHS_DEFAULT = 192, NRD_GRAPHS_MAX = 1024 };

typedef struct nrd_graphs {
    nrd_device *dev;
    nrd_graph_slot *slots;
    int32_t n, cap; /* cap 0: off */
    uint64_t now;
} nrd_graphs;

/* cap 0: NRD_GRAPHS_DEFAULT. Stays off where the device has no graphs. */
nrd_error *nrd_graphs_init(nrd_graphs *g, nrd_device *dev, int32_t cap);
void nrd_graphs_fini(nrd_graphs *g); /* leaves it off */

/* The rows that a step of n sequences is filled up to, at most `max`; 0: too many for a graph. */
int32_t nrd_graphs_rows(int32_t n, int32_t max);
/* The context length that a step is recorded for, at most `max`. */
int32_t nrd_graphs_ctx(int32_t ctx, int32_t max);

/* The slot of a key; *seen = false when it is new. */
nrd_graph_slot *nrd_graphs_get(nrd_graphs *g, const nrd_graph_key *key, bool *seen);

#endif
