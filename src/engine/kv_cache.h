/* SPDX-License-Identifier: Apache-2.0
 * engine/kv_cache.h - which sequence holds which block of the paged KV cache.
 *
 * Purpose   Bookkeeping only: block ids, reference counts, prefix reuse, eviction. No device memory
 *           here; the runner owns the memory that the ids name.
 * Owner     The engine loop thread. Not thread-safe: no other thread may call in.
 * Units     Lengths in tokens, capacities in blocks; one block = block_tokens tokens of all layers.
 * Errors    Only creation makes error objects. Functions on the token path answer true or false;
 *           false = not enough free blocks, and then nothing has changed.
 * Lifetime  A block is free, held (references > 0), or cached (in the prefix tree, no references).
 *           Cached blocks are taken when free ones run out: lowest retention priority first, then
 *           least recently used, children before parents. With host blocks (numbers from n_blocks
 *           on), what was taken from the tree moves there while there is room, and back when a
 *           sequence needs it; sequences hold device blocks only.
 *           A freed block may still be read or written by steps that are already enqueued; its
 *           next user's step comes later on the same stream, so order protects both.
 * Sources   Paged attention (Kwon et al., SOSP 2023, section 4).
 */
#ifndef NRD_ENGINE_KV_CACHE_H
#define NRD_ENGINE_KV_CACHE_H

#include "base/error.h"
#include "engine/prefix_tree.h"
#include "engine/state_cache.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct nrd_kv nrd_kv;

typedef struct nrd_kv_config {
    int32_t n_blocks, block_tokens;
    bool reuse;            /* keep a prefix tree */
    int32_t n_host_blocks; /* further ones in host memory; needs reuse */
    int32_t n_states;      /* > 0: layers have a state, of which so many snapshots can be kept; needs reuse */
} nrd_kv_config;

enum { NRD_KV_PRIORITY_DEFAULT = 35, NRD_KV_PRIORITY_MAX = 100 };

/* The blocks of one sequence (or beam). blocks[i] holds tokens [i*bt, (i+1)*bt); -1 = dropped. */
typedef struct nrd_kv_table {
    int32_t *blocks; /* owns; [cap] */
    int32_t cap, n_blocks;
    int32_t n_dropped;   /* leading blocks looked at by nrd_kv_drop_window */
    int32_t n_published; /* leading blocks that are nodes of the tree */
} nrd_kv_table;

/* How long published blocks are worth keeping. */
typedef struct nrd_kv_range {
    int32_t start, end; /* tokens; end < 0: of the prompt */
    int32_t priority;
    int64_t duration_ms; /* < 0: for ever */
} nrd_kv_range;
typedef struct nrd_kv_retention {
    const nrd_kv_range *ranges; /* borrows */
    int32_t n_ranges, n_prompt;
    int32_t decode_priority;
    int64_t decode_duration_ms;
} nrd_kv_retention;

/* What identifies the content of a sequence's blocks. */
typedef struct nrd_kv_content {
    nrd_prefix_key key;
    const int32_t *tokens;
    const uint64_t *extra; /* per token, for the first n_extra tokens, or NULL */
    int32_t n_extra;
    const nrd_kv_retention *retention; /* NULL: defaults */
} nrd_kv_content;

typedef struct nrd_kv_stats {
    int32_t n_blocks, n_free, n_cached, n_held;
    int64_t n_alloc_total, n_reused_total, n_missed_total, n_evicted_total;
    int32_t n_host_blocks;
    int64_t n_offloaded_total, n_onboarded_total; /* moves to host memory, and back */
    int32_t n_states, n_states_kept;
    int64_t n_unusable_total; /* blocks with the right content that could not be shared: no state was kept behind them */
    int64_t now_ms;                               /* nrd_kv_set_time */
} nrd_kv_stats;

typedef struct nrd_kv_match {
    int32_t n_blocks;      /* whole blocks that can be shared */
    int32_t n_cached;      /* of those, not held by anyone now (they count as available) */
    int32_t n_host;        /* of those, in host memory: each needs an available block */
    int32_t partial_block; /* block to copy for a partial match, maybe a host one; -1: none */
    int32_t n_partial;     /* tokens of it that match */
    int32_t n_matched;     /* whole blocks that have the content; more than n_blocks where there are states */
    int32_t state;         /* snapshot behind the last of n_blocks; -1: none */
} nrd_kv_match;

nrd_error *nrd_kv_new(nrd_kv **out, const nrd_kv_config *cfg) NRD_MUST_USE;
void nrd_kv_free(nrd_kv *kv);
void nrd_kv_set_time(nrd_kv *kv, int64_t now_ms); /* for retention durations; monotonic */

int32_t nrd_kv_block_tokens(const nrd_kv *kv);
int32_t nrd_kv_n_available(const nrd_kv *kv); /* free + cached */
void nrd_kv_get_stats(const nrd_kv *kv, nrd_kv_stats *out);

nrd_error *nrd_kv_table_init(nrd_kv_table *t, int32_t cap) NRD_MUST_USE;
void nrd_kv_table_fini(nrd_kv_table *t); /* must hold no blocks */

/* How much of the first n_max tokens is in the tree. Where layers have a state only up to a block with a snapshot, and
 * no part of a block. Changes nothing. */
void nrd_kv_find(const nrd_kv *kv, const nrd_kv_content *c, int32_t n_max, nrd_kv_match *out);
/* Takes the whole blocks of a match into an empty table. The partial block gets a reference that
 * the caller gives back with nrd_kv_unref once its copy is enqueued. */
void nrd_kv_attach(nrd_kv *kv, nrd_kv_table *t, const nrd_kv_content *c, const nrd_kv_match *m);
void nrd_kv_unref(nrd_kv *kv, int32_t block);

/* The snapshots of states (engine/state_cache.h), NULL: none are kept. Blocks that leave the tree lose theirs. */
nrd_states *nrd_kv_states(const nrd_kv *kv);

/* Pairs (from, to) of blocks whose content has to move between host and device, in the order in
 * which to copy them before the next step; they stay until nrd_kv_moves_done. */
const int32_t (*nrd_kv_moves(const nrd_kv *kv, int32_t *out_n))[2];
void nrd_kv_moves_done(nrd_kv *kv);
int32_t nrd_kv_max_moves(const nrd_kv *kv); /* that can be pending at a time */

/* Blocks that are missing for n_tokens tokens. */
int32_t nrd_kv_n_missing(const nrd_kv *kv, const nrd_kv_table *t, int32_t n_tokens);
bool nrd_kv_extend(nrd_kv *kv, nrd_kv_table *t, int32_t n_tokens);

/* Makes the empty table `dst` hold the first n_tokens tokens of `src`: whole blocks are shared; a
 * last part is to be copied from *out_src to *out_dst (-1, -1: nothing to copy). */
bool nrd_kv_fork(nrd_kv *kv, nrd_kv_table *dst, const nrd_kv_table *src, int32_t n_tokens,
                 int32_t *out_src, int32_t *out_dst);

/* Lets go of blocks whose tokens are all below first_needed, except those of the first n_sink. */
void nrd_kv_drop_window(nrd_kv *kv, nrd_kv_table *t, int32_t first_needed, int32_t n_sink);

/* Puts the whole blocks among the first n_computed tokens into the tree. Where the tree already has
 * the same content, the table takes that block and lets go of its own. */
void nrd_kv_publish(nrd_kv *kv, nrd_kv_table *t, const nrd_kv_content *c, int32_t n_computed);

void nrd_kv_release(nrd_kv *kv, nrd_kv_table *t); /* the table is empty afterwards */

/* Asserts that every block is accounted for by exactly these tables, the tree, or the free list,
 * given n_extra_refs references that are held outside of tables. Slow. */
void nrd_kv_check(const nrd_kv *kv, const nrd_kv_table *const *tables, int32_t n_tables,
                  int32_t n_extra_refs);

#endif
