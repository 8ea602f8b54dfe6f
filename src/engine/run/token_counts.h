/* SPDX-License-Identifier: Apache-2.0
 * engine/run/token_counts.h - how often a sequence has said each token, for penalties.
 *
 * Purpose   A row for each slot, which is filled from what the sequence has said before its first choice there; and one for
 *           each draft token of a step, filled as if the draft were right so far.
 * Owner     The runner; the engine loop thread.
 * Lifetime  Memory is taken for the first sequence with a penalty, and freed with the runner.
 */
#ifndef NRD_ENGINE_RUN_TOKEN_COUNTS_H
#define NRD_ENGINE_RUN_TOKEN_COUNTS_H

#include "base/error.h"

#include <stdint.h>

struct nrd_runner;
struct nrd_plan_entry;

typedef struct nrd_token_counts {
    uint16_t *rows;          /* [nrd_run_max_rows, vocab] */
    int32_t *ids, *ids_host; /* what is counted next; NULL where the device reads the host's memory */
} nrd_token_counts;

/* Fills a slot's occurrences, and those behind each token of the entry's draft. Seldom without drafts (once for each
 * sequence with a penalty), so it may wait. */
nrd_error *nrd_run_init_counts(struct nrd_runner *r, const struct nrd_plan_entry *e) NRD_MUST_USE;
void nrd_run_free_counts(struct nrd_runner *r);

#endif
