/* SPDX-License-Identifier: Apache-2.0
 * executor/ranks/life.h - whether a worker of this host lives and gets on.
 * Stateless but for nrd_worker_life, which is its watcher's. Time is counted in looks, so that a machine which stood or was
 * too busy to let the watcher look does not make ranks appear lost. */
#ifndef NRD_EXECUTOR_RANKS_LIFE_H
#define NRD_EXECUTOR_RANKS_LIFE_H

#include "executor/ranks/segment.h"

typedef struct nrd_worker_life {
    uint32_t n_beats; /* seen */
    int64_t silent_ms;
} nrd_worker_life;

/* `ms` have gone since the last look. true: it is lost; out: how, in words. */
bool nrd_worker_stands_still(nrd_worker_life *w, const nrd_rank_life *life, int64_t ms, char *out, size_t size);

#endif
