/* SPDX-License-Identifier: Apache-2.0
 * engine/run/tower_queries.h - queries that read a tower's states, for tower_queries.c and tower_resampler.c. As tower_internal.h. */
#ifndef NRD_ENGINE_RUN_TOWER_QUERIES_H
#define NRD_ENGINE_RUN_TOWER_QUERIES_H

#include "engine/run/tower_internal.h"

/* Queries and what they read: themselves, or states. */
typedef struct nrd_query_attention {
    nrd_extra_product q, kv, dense; /* q: with kv's parts behind it where they read themselves */
    nrd_extra_weight norm, norm_bias;
} nrd_query_attention;

typedef struct nrd_query_layer {
    nrd_query_attention self, states; /* states: q.n 0 where the layer has none */
    nrd_extra_product up, down;
    nrd_extra_weight norm, norm_bias;
} nrd_query_layer;

struct nrd_tower_queries {
    nrd_query_layer *layers;
    nrd_extra_weight norm, norm_bias;
    void *start; /* [n, hidden] the learned rows */
    void *x, *delta, *out, *qkv, *kv, *up, *mid;
    nrd_extra_input in;
    int32_t *arrays;
    int32_t n_seen; /* what queries read: the states, and what is behind them */
    nrd_batch_view self, states; /* the queries among themselves; at the last one of what they read */
    nrd_batch_view seen;         /* what they read, to be written */
    nrd_kv_layer cache;
};

/* Room for t->s.queries and n_seen rows that they read; in_bytes: of the widest input of a product. Two views of the queries as one sequence, and the blocks
 * of one layer. */
nrd_error *nrd_queries_alloc(nrd_tower *t, int32_t n_seen, size_t in_bytes) NRD_MUST_USE;
/* y = p of n rows `from`. */
nrd_error *nrd_queries_multiply(nrd_tower *t, const nrd_extra_product *p, const void *from, int32_t n, void *to) NRD_MUST_USE;
/* The queries in `qkv` read the states: their keys and values lie side by side in `kv`, into `out`. */
nrd_error *nrd_queries_read_states(nrd_tower *t) NRD_MUST_USE;

#endif
