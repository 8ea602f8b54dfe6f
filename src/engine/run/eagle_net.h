/* SPDX-License-Identifier: Apache-2.0
 * engine/run/eagle_net.h - the layer of EAGLE heads, or an MTP layer, on the device, and the states that it goes on from.
 *
 * Purpose   Place j of a sequence (in the numbers of its KV blocks) holds two things: the state that the model had at its token
 *           j, and the layer's key and value of that state together with the token behind it, j + 1. A pass computes keys and values of
 *           some places, and for some of them the best tokens that may come next: those behind token j + 1. What a pass gives
 *           can be the state of the next one, for a guess behind a guess.
 *           An MTP layer (model/spec.h, mtp) is EAGLE's with other parts: x = product of [normed embedding ; normed state], then a
 *           layer of the model's own form, a norm, and the model's LM head. What goes on from a guess is x behind the layer.
 * Owner     The engine loop thread; uses the runner's stream, and its memory for logits, between steps.
 * Order     new, alloc; for every step: keep, copy_block, run ..., then the runner's submit.
 * Units     Places: block * block_tokens + token in the block; those behind the last block are outputs of passes.
 * Errors    UNSUPPORTED: pipeline stages. UNAVAILABLE: no memory. Of keep, copy_block and run: the device is lost.
 * Sources   Li et al., "EAGLE", ICML 2024; Li et al., "EAGLE-3", 2025; DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024.
 */
#ifndef NRD_ENGINE_RUN_EAGLE_NET_H
#define NRD_ENGINE_RUN_EAGLE_NET_H

#include "engine/run/runner.h"
#include "model/eagle_heads.h"

typedef struct nrd_eagle_net nrd_eagle_net;

typedef struct nrd_eagle_net_config {
    int32_t max_tokens;  /* of a pass */
    int32_t max_entries; /* sequences of a pass */
    int32_t max_rows;    /* outputs of a pass, at most max_tokens */
    int32_t n_outputs;   /* of several passes, that are kept; at least max_rows */
    int32_t n_best;      /* tokens of each output */
    nrd_dtype quantize;  /* matrices of EAGLE heads that come in more bits: I8, F8_E4M3; NONE: as they come */
} nrd_eagle_net_config;

/* Rows [row, row + n) of the last step's packed tokens; the first one's place. */
typedef struct nrd_eagle_span {
    int32_t row, place, n;
} nrd_eagle_span;

typedef struct nrd_eagle_pass {
    const nrd_plan *plan;  /* entry: places [start, start + n) of a sequence whose token j is the one behind place j; row is -1 */
    const int32_t *states; /* [n_tokens] place of each one's state */
    const int32_t *rows;   /* [n_rows] packed tokens that have an output */
    int32_t n_rows;
    int32_t first_output;  /* number of the first row's output, which takes the place of an older one */
} nrd_eagle_pass;

/* What a pass found, until the next one. */
typedef struct nrd_eagle_found {
    const int32_t *ids;     /* [n_rows, n_best] the model's tokens, best first */
    const float *log_probs;
    bool was_recorded;      /* nrd_step_result.was_recorded */
} nrd_eagle_found;

/* The states of its steps that heads read (nrd_runner_config.taps). from NULL: an MTP layer. */
nrd_runner_taps nrd_eagle_net_taps(const nrd_eagle_heads *from, const nrd_model_spec *model);
/* Borrows the runner, and the heads or, where from is NULL, the MTP layer's engine until free. */
nrd_error *nrd_eagle_net_new(nrd_eagle_net **out, nrd_runner *runner, const nrd_eagle_heads *from, const nrd_engine *mtp,
                             const nrd_eagle_net_config *cfg) NRD_MUST_USE;
void nrd_eagle_net_free(nrd_eagle_net *e); /* NULL is fine; before the runner */
size_t nrd_eagle_net_block_bytes(const nrd_eagle_net *e); /* a block's states, keys and values */
nrd_error *nrd_eagle_net_alloc(nrd_eagle_net *e, int32_t n_blocks) NRD_MUST_USE;
uint64_t nrd_eagle_net_weight_bytes(const nrd_eagle_net *e);
/* The place of an output. */
int32_t nrd_eagle_net_output(const nrd_eagle_net *e, int32_t output);

/* Keeps states of the last step that was submitted, of n_tokens packed tokens. */
nrd_error *nrd_eagle_net_keep(nrd_eagle_net *e, int32_t n_tokens, const nrd_eagle_span *spans, int32_t n_spans) NRD_MUST_USE;
nrd_error *nrd_eagle_net_copy_block(nrd_eagle_net *e, int32_t from, int32_t to) NRD_MUST_USE; /* its states */
/* Waits. On a device with graphs a pass is recorded when its shape comes a second time. */
nrd_error *nrd_eagle_net_run(nrd_eagle_net *e, const nrd_eagle_pass *p, nrd_eagle_found *out) NRD_MUST_USE;

#endif
