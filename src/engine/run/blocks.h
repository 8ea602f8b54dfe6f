/* SPDX-License-Identifier: Apache-2.0
 * engine/run/blocks.h - what layers are made of: attention, MLP, experts, states, and what stands beside them.
 *
 * Owner     The engine loop thread.
 * Order     Each block reads what is behind its norm and leaves what it adds in delta.
 */
#ifndef NRD_ENGINE_RUN_BLOCKS_H
#define NRD_ENGINE_RUN_BLOCKS_H

#include "engine/run/runner_internal.h"

/* ---- attention.c ---- */

/* x of one layer, behind its norm: delta = what attention makes of it. */
nrd_error *nrd_run_attend(nrd_runner *r, const nrd_batch *b, int32_t layer, const void *x) NRD_MUST_USE;
/* Of r->qkv: the rotation, the cache, and att = attention of a layer's heads. */
nrd_error *nrd_run_attend_heads(nrd_runner *r, const nrd_batch_view *v, int32_t layer) NRD_MUST_USE;
/* What a layer adds from the encoder's states: from x behind its norm to delta. */
nrd_error *nrd_run_cross_attention(nrd_runner *r, const nrd_batch *b, int32_t layer, const void *x) NRD_MUST_USE;

/* ---- mlp.c ---- */

/* x of one layer, behind its norm: delta = what the MLP makes of it, or the experts in its place. */
nrd_error *nrd_run_mlp(nrd_runner *r, const nrd_batch *b, int32_t layer, const void *x) NRD_MUST_USE;

/* ---- joined.c ---- */

void nrd_run_init_joined(nrd_runner *r);
/* All layers of a step of one token, whose embedding is in x; no delta is left. *done false: not this step, not this model or not this
 * device, and nothing was done. */
nrd_error *nrd_run_joined_layers(nrd_runner *r, const nrd_batch *b, bool *done) NRD_MUST_USE;

/* ---- experts.c, experts_beside.c ---- */

nrd_error *nrd_run_init_experts(nrd_runner *r) NRD_MUST_USE;
void nrd_run_free_experts(nrd_runner *r);
/* The two parts of nrd_run_experts: the choice, from x as the router wants it; delta = what the chosen experts make of x, as their
 * first product wants it. */
nrd_error *nrd_run_route(nrd_runner *r, int32_t layer, int32_t n_tokens, const void *x) NRD_MUST_USE;
nrd_error *nrd_run_routed(nrd_runner *r, int32_t layer, int32_t n_tokens, const void *x) NRD_MUST_USE;
/* delta, which the MLP left, = the sum of it and of what the experts beside it make of x, each normed (experts_beside.c). */
nrd_error *nrd_run_experts_beside(nrd_runner *r, int32_t layer, int32_t n_tokens) NRD_MUST_USE;
/* Experts that read what attention reads, before it: the last layer's delta goes into x, and what they make of x waits in `beside`, each
 * rank's own part, until it is added to the delta that the MLP left (experts_beside.c). Both use delta, normed and what MLPs use. */
nrd_error *nrd_run_experts_before(nrd_runner *r, int32_t layer, int32_t n_tokens, bool has_delta,
                                  const nrd_weight *delta_weight) NRD_MUST_USE;
/* Nothing where the model has no such experts. */
nrd_error *nrd_run_add_experts_before(nrd_runner *r, int32_t n_tokens) NRD_MUST_USE;
/* delta = what the layer's experts make of x, as their router wants it. */
nrd_error *nrd_run_experts(nrd_runner *r, int32_t layer, int32_t n_tokens, const void *x) NRD_MUST_USE;

/* ---- latent.c ---- */

nrd_error *nrd_run_init_latent(nrd_runner *r) NRD_MUST_USE;
void nrd_run_free_latent(nrd_runner *r);
/* att = attention of x, which is behind its norm, as the product `dense` wants it. */
nrd_error *nrd_run_latent(nrd_runner *r, const nrd_batch_view *v, int32_t layer, const void *x) NRD_MUST_USE;

/* ---- recurrent.c ---- */

nrd_error *nrd_run_init_recurrent(nrd_runner *r) NRD_MUST_USE;
void nrd_run_free_recurrent(nrd_runner *r);
/* Snapshots into the slots of sequences that start from them, before a step; or the slots' states into snapshots, behind
 * it. */
nrd_error *nrd_run_copy_states(nrd_runner *r, const nrd_plan *p, bool load) NRD_MUST_USE;
/* delta = what a layer with a state makes of x, behind its norm. */
nrd_error *nrd_run_recurrent(nrd_runner *r, const nrd_batch_view *v, int32_t layer, const void *x) NRD_MUST_USE;

/* ---- layer_inputs.c: nothing where no layer has an input of its own ---- */

nrd_error *nrd_run_init_layer_inputs(nrd_runner *r) NRD_MUST_USE;
void nrd_run_free_layer_inputs(nrd_runner *r);
/* The inputs of all layers, from the tokens and their embeddings, which are in x. */
nrd_error *nrd_run_embed_layer_inputs(nrd_runner *r, const nrd_batch *b) NRD_MUST_USE;
/* delta = what the layer makes of its input, gated by the state x, before its norm. */
nrd_error *nrd_run_layer_input(nrd_runner *r, int32_t n_tokens, int32_t layer, const void *x) NRD_MUST_USE;

/* ---- altup.c ---- */

nrd_error *nrd_run_init_altup(nrd_runner *r) NRD_MUST_USE;
void nrd_run_free_altup(nrd_runner *r);
/* All layers of tokens that have several states, whose embeddings are in x; x becomes what the final norm reads, and no delta is
 * left. */
nrd_error *nrd_run_altup_layers(nrd_runner *r, const nrd_batch *b) NRD_MUST_USE;

/* ---- adapters.c ---- */

/* Adds to y = product p of x in this layer; position: NRD_LORA_AT_*. Nothing where no sequence of the step
 * has an adapter. */
nrd_error *nrd_run_adapters(nrd_runner *r, const nrd_batch *b, int32_t layer, int32_t position,
                            const nrd_product *p, const void *x, void *y) NRD_MUST_USE;

/* ---- picture_layers.c ---- */

/* The layer in front of this one: x += delta, and delta = what it adds behind that. */
nrd_error *nrd_run_picture_layer(nrd_runner *r, const nrd_batch *b, int32_t layer) NRD_MUST_USE;

/* ---- picture_weights.c ---- */

nrd_error *nrd_run_init_stretches(nrd_runner *r) NRD_MUST_USE;
void nrd_run_find_pictures(nrd_runner *r, const nrd_batch *b); /* in the step that is enqueued next */
/* y [n_tokens, rows] = p of x in its input's type; of a picture's embeddings the other product, which reads the same and is as large. */
nrd_error *nrd_run_split_product(nrd_runner *r, const nrd_product *p, const nrd_product *of_picture, const void *x, int32_t n_tokens,
                                 void *y) NRD_MUST_USE;

/* ---- taps.c ---- */

nrd_error *nrd_run_init_taps(nrd_runner *r) NRD_MUST_USE;
/* Whether rank 0 keeps what goes into `layer`. */
bool nrd_run_is_tapped(const nrd_runner *r, int32_t layer);
/* x is what goes into `layer`. Nothing where this is not asked for. */
nrd_error *nrd_run_tap(nrd_runner *r, int32_t layer, int32_t n_tokens) NRD_MUST_USE;
/* Behind the last layer, whose delta is added already where none is left. */
nrd_error *nrd_run_tap_final(nrd_runner *r, int32_t n_tokens) NRD_MUST_USE;
/* Whether a step's layers leave a delta that its first final norm has to add. */
bool nrd_run_head_adds_delta(const nrd_runner *r);

/* ---- inputs.c ---- */

nrd_error *nrd_run_check_inputs(const nrd_runner *r) NRD_MUST_USE;
nrd_error *nrd_run_init_inputs(nrd_runner *r) NRD_MUST_USE;
/* Tells cfg.on_input what goes into product p: once it has been computed, so this waits. Nothing without on_input. */
nrd_error *nrd_run_tell_input(nrd_runner *r, int32_t layer, int32_t position, const nrd_product *p, const void *x,
                              int32_t n_tokens) NRD_MUST_USE;
/* The same of the chosen experts' product, expert by expert, behind the choice. x [n_tokens, cols], whose rows are put into
 * `gathered` [n_pairs, cols] of activations first; gathered NULL: x has one row for each sorted pair. */
nrd_error *nrd_run_tell_experts(nrd_runner *r, int32_t layer, int32_t position, const nrd_product *p, const void *x,
                                int32_t n_tokens, void *gathered) NRD_MUST_USE;
/* Tells cfg.on_cache what rope_kv has put into the cache: where the host reads the device's memory, r->qkv has it, too. Waits.
 * Nothing without on_cache. */
nrd_error *nrd_run_tell_cache(nrd_runner *r, int32_t layer, const nrd_batch_view *v) NRD_MUST_USE;

#endif
