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

#include "base/error.h"
#include "nereid/device.h"

/* What a step is filled up to. */
typedef struct nrd_graph_shape {
    int32_t rows;   /* sequences; 0: such steps are not recorded */
    int32_t tokens; /* of all */
    int32_t each;   /* of one, at most; rows * each == tokens: all have as many */
} nrd_graph_shape;

/* All that a recorded step depends on besides the contents of memory. */
typedef struct nrd_graph_key {
    nrd_graph_shape shape;
    int32_t tree_words, ctx, n_top;
    int32_t two_steps;    /* 1: with the rough head (rough_head.h) */
    int32_t n_outputs;    /* of a network that guesses; else 0 */
    int32_t adapter_rank; /* 0: no sequence has an adapter */
    const void *banned, *counts, *outputs; /* arrays that move when they grow, or with the step; NULL: not used */
} nrd_graph_key;

typedef struct nrd_graph_slot {
    nrd_graph_key key;
    nrd_graph *graph; /* NULL: seen once, not recorded */
    uint64_t used;
} nrd_graph_slot;

enum { NRD_GRAPHS_DEFAULT = 192, NRD_GRAPHS_MAX = 1024 };
/* Sequences that fill up a step of sequences with different numbers of tokens, two and more, at most: nrd_graphs_rows adds fewer
 * than twice as many tokens. */
enum { NRD_GRAPHS_FILL = 32 };

typedef struct nrd_graphs {
    nrd_device *dev;
    nrd_stream *stream;
    nrd_graph_slot *slots;
    int32_t n, cap; /* cap 0: off */
    uint64_t now;
    void (*on_warning)(void *user, const char *message);
    void *user;
} nrd_graphs;

/* cap 0: NRD_GRAPHS_DEFAULT. on_warning: told why recording was given up; or NULL. Stays off where the device has no graphs. */
nrd_error *nrd_graphs_init(nrd_graphs *g, nrd_device *dev, nrd_stream *stream, int32_t cap,
                           void (*on_warning)(void *user, const char *message), void *user) NRD_MUST_USE;
void nrd_graphs_fini(nrd_graphs *g); /* leaves it off */

/* The rows that a step of n sequences is filled up to, at most `max`; 0: too many for a graph. */
int32_t nrd_graphs_rows(int32_t n, int32_t max);
/* The shape of a step of n sequences with n_tokens in all, the longest with so many of them. Single tokens are filled up with
 * sequences like them, and where all have as many tokens nothing may have to be. Else the tokens go up to nrd_graphs_rows, the longest
 * sequence's to a power of two, and there are up to max_rows + NRD_GRAPHS_FILL sequences, so that those that fill up have room for
 * the tokens that do: as many as any n_tokens that go up to the same need, since every shape takes milliseconds to record. */
nrd_graph_shape nrd_graphs_shape(int32_t n, int32_t n_tokens, int32_t longest, int32_t max_rows, int32_t max_tokens);
/* The context length that a step is recorded for, at most `max`. */
int32_t nrd_graphs_ctx(int32_t ctx, int32_t max);

/* How a step ran. */
typedef enum nrd_graphs_how {
    NRD_GRAPHS_AT_ONCE,  /* recorded where it was not, as when there is time for it */
    NRD_GRAPHS_IF_AGAIN, /* recorded when its shape comes a second time: many come once, and recording takes longer than enqueueing */
    NRD_GRAPHS_AS_IT_IS,
} nrd_graphs_how;

/* Enqueues what `body` does, by a graph if there is one for the key, or as `how` says. Where recording goes wrong body's operations
 * are enqueued as they are, and nothing is recorded any more. *is_recording, if not NULL: the next step of the key will take less time. */
nrd_error *nrd_graphs_run(nrd_graphs *g, const nrd_graph_key *key, nrd_graphs_how how, nrd_error *(*body)(void *user), void *user,
                          bool *is_recording) NRD_MUST_USE;

#endif
