/* SPDX-License-Identifier: Apache-2.0
 * device/cpu/prefix.h - which sequences of a step begin with the same cache blocks.
 *
 * Purpose   Requests with a common beginning (a system prompt, the history of a chat) share its
 *           blocks of the KV cache. Attention of sequences with one new token each reads such
 *           blocks once for several of them: their query rows sit side by side in one tile.
 * Owner     One for each stream; filled where a step's first attention is enqueued, from the block
 *           table as it is then, and read by all threads until the stream is synchronized.
 */
#ifndef NRD_DEVICE_CPU_PREFIX_H
#define NRD_DEVICE_CPU_PREFIX_H

#include "base/error.h"
#include "nereid/device.h"

typedef struct nrd_cpu_group {
    int32_t first, n; /* in members */
    int32_t n_blocks; /* all members have these many in common, full before their new token */
} nrd_cpu_group;

typedef struct nrd_cpu_prefix {
    int32_t n_groups;
    nrd_cpu_group *groups; /* [cap] */
    int32_t *members;      /* [cap] sequences, group after group */
    int32_t *group_of;     /* [cap] of a sequence; -1: none */
    int32_t cap;
    nrd_batch_view view; /* what it was made from; n_seqs 0: nothing */
} nrd_cpu_prefix;

/* Takes the memory for n sequences now, if there is less; what was filled in is forgotten then. */
nrd_error *nrd_cpu_prefix_reserve(nrd_cpu_prefix *p, int32_t n) NRD_MUST_USE;
/* Groups of two or more whose common blocks hold at least min_tokens. */
nrd_error *nrd_cpu_prefix_fill(nrd_cpu_prefix *p, const nrd_batch_view *view, int32_t block_tokens,
                               int32_t min_tokens) NRD_MUST_USE;
bool nrd_cpu_prefix_is_of(const nrd_cpu_prefix *p, const nrd_batch_view *view);
void nrd_cpu_prefix_fini(nrd_cpu_prefix *p);

#endif
