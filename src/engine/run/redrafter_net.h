/* SPDX-License-Identifier: Apache-2.0
 * engine/run/redrafter_net.h - a recurrent drafter (model/redrafter_heads.h) on the device.
 *
 * Purpose   For some sequences of the runner's last step, the best tokens behind the one that was chosen, and then behind guesses: each
 *           pass takes some guesses one token further. The states of sequences are where the step left them, so it must be the
 *           last one that was submitted.
 * Owner     The engine loop thread; uses the runner's stream and its memory for logits between steps.
 * Order     begin, run ... for every draft, before the runner's submit.
 * Units     Rows: guesses that go on. Parents are rows of the pass before.
 * Errors    UNSUPPORTED: pipeline stages. UNAVAILABLE: no memory. Of begin and run: the device is lost.
 * Sources   Cheng et al., "Recurrent Drafter for Fast Speculative Decoding in Large Language Models", 2024.
 */
#ifndef NRD_ENGINE_RUN_REDRAFTER_NET_H
#define NRD_ENGINE_RUN_REDRAFTER_NET_H

#include "engine/run/runner.h"
#include "model/redrafter_heads.h"

typedef struct nrd_redrafter_net nrd_redrafter_net;

typedef struct nrd_redrafter_row {
    int32_t sequence; /* number in begin's tokens */
    int32_t parent;   /* row of the pass before whose state it goes on from; -1: none, the first token of a draft */
    int32_t token;    /* the one that it reads */
} nrd_redrafter_row;

/* Borrows the runner; `from` until free, where the device maps weights in place. max_rows: of a pass, at most the runner's rows of logits. n_best: of each row. */
nrd_error *nrd_redrafter_net_new(nrd_redrafter_net **out, nrd_runner *runner, const nrd_redrafter_heads *from, int32_t max_rows,
                                 int32_t n_best, nrd_dtype quantize) NRD_MUST_USE;
void nrd_redrafter_net_free(nrd_redrafter_net *e); /* NULL is fine; before the runner */
uint64_t nrd_redrafter_net_bytes(const nrd_redrafter_net *e); /* of weights */
/* tokens: [n] of the last step's packed tokens, n at most the runner's max_entries. Read by the first run. */
nrd_error *nrd_redrafter_net_begin(nrd_redrafter_net *e, const int32_t *tokens, int32_t n) NRD_MUST_USE;
/* *out_ids, *out_log_probs: [n, n_best], best first, until the next call; *was_recorded as nrd_step_result has it. Waits. */
nrd_error *nrd_redrafter_net_run(nrd_redrafter_net *e, const nrd_redrafter_row *rows, int32_t n, const int32_t **out_ids,
                                 const float **out_log_probs, bool *was_recorded) NRD_MUST_USE;

#endif
