/* SPDX-License-Identifier: Apache-2.0
 * engine/run/extra_heads.h - heads beside the LM head, which read the same states of the last layer.
 *
 * Purpose   Medusa heads (model/medusa_heads.h) on the device: for some tokens of the runner's last step, the best tokens of
 *           each head. The states are where that step left them, so it must be the last one that was submitted.
 * Owner     The engine loop thread; uses the runner's stream and its memory for logits between steps.
 * Units     Rows: tokens whose states are asked for.
 * Errors    UNSUPPORTED: pipeline stages. UNAVAILABLE: no memory. Of run: the device is lost.
 */
#ifndef NRD_ENGINE_RUN_EXTRA_HEADS_H
#define NRD_ENGINE_RUN_EXTRA_HEADS_H

#include "engine/run/runner.h"
#include "model/medusa_heads.h"

typedef struct nrd_extra_heads nrd_extra_heads;

/* Borrows the runner; `from` until free, where the device maps weights in place. n_best: of each head. */
nrd_error *nrd_extra_heads_new(nrd_extra_heads **out, nrd_runner *runner, const nrd_medusa_heads *from, int32_t n_best,
                               nrd_dtype quantize) NRD_MUST_USE;
void nrd_extra_heads_free(nrd_extra_heads *h); /* NULL is fine; before the runner */
int32_t nrd_extra_heads_n(const nrd_extra_heads *h);
int32_t nrd_extra_heads_n_best(const nrd_extra_heads *h);
uint64_t nrd_extra_heads_bytes(const nrd_extra_heads *h); /* of weights */
/* tokens: [n] of the last step's packed tokens, n at most the runner's max_entries. *out_ids: [n, heads, n_best], best first,
 * until the next call; *was_recorded as nrd_step_result has it. Waits. */
nrd_error *nrd_extra_heads_run(nrd_extra_heads *h, const int32_t *tokens, int32_t n, const int32_t **out_ids,
                               bool *was_recorded) NRD_MUST_USE;

#endif
