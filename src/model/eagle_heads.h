/* SPDX-License-Identifier: Apache-2.0
 * model/eagle_heads.h - EAGLE heads on disk: one decoder layer that goes on from the states of a larger model.
 *
 * Purpose   EAGLE-1: x = fc [embedding of the token ; the model's last normed state before it], a decoder layer without a norm
 *           before attention, the model's LM head. EAGLE-3: fc fuses the states of three layers into one; the layer's q, k and v
 *           read [normed embedding ; normed state], twice as wide; a norm and an LM head of its own follow, which may know a
 *           part of the vocabulary only.
 * Forms     A folder with config.json, and model.safetensors or pytorch_model.bin with the published names: fc.weight,
 *           layers.0.* or midlayer.*, with "model." before them or not; embed_tokens.weight and lm_head.weight where they are not the
 *           model's; for EAGLE-3 also norm.weight, layers.0.hidden_norm.weight, and d2t where it has a vocabulary of its own.
 * Owner     Immutable after open; any thread may read. Weights borrow from it until close.
 * Errors    NOT_FOUND: no such file or tensor. INVALID_ARG: file, tensor, expected, got. UNSUPPORTED: a type, a part of a
 *           network that such layers do not have here.
 * Sources   Li et al., "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty", ICML 2024; Li et al., "EAGLE-3:
 *           Scaling up Inference Acceleration of Large Language Models via Training-Time Test", 2025.
 */
#ifndef NRD_MODEL_EAGLE_HEADS_H
#define NRD_MODEL_EAGLE_HEADS_H

#include "base/error.h"
#include "model/spec.h"
#include "nereid/device.h"

enum { NRD_EAGLE_STATES = 3 }; /* that EAGLE-3 fuses */

/* Folder of heads inside a checkpoint or an engine. */
#define NRD_EAGLE_FOLDER "eagle"

typedef enum { NRD_EAGLE_ANY, NRD_EAGLE_1, NRD_EAGLE_3 } nrd_eagle_kind;

typedef struct nrd_eagle_heads nrd_eagle_heads;

/* As rows in host memory, F32, F16 or BF16; data NULL: there is none. Vectors are one row. */
typedef struct nrd_eagle_weights {
    nrd_weight fc, fc_bias;                /* [hidden, 2 hidden], or [hidden, 3 hidden of the model] */
    nrd_weight q, k, v, o;                 /* q, k, v: [rows, hidden], or [rows, 2 hidden] */
    nrd_weight q_bias, k_bias, v_bias, o_bias;
    nrd_weight gate, up, down;
    nrd_weight embed_norm, state_norm;     /* EAGLE-3: before q, k and v */
    nrd_weight mlp_norm, final_norm;       /* final_norm: EAGLE-3 */
    nrd_weight embed, lm_head;             /* data NULL: the model's */
} nrd_eagle_weights;

bool nrd_eagle_heads_are_in(const char *dir); /* in the folder NRD_EAGLE_FOLDER of a checkpoint or an engine */
/* model: what they are for. kind: which is expected. */
nrd_error *nrd_eagle_heads_open(nrd_eagle_heads **out, const char *dir, const nrd_model_spec *model,
                                nrd_eagle_kind kind) NRD_MUST_USE;
void nrd_eagle_heads_close(nrd_eagle_heads *e); /* NULL is fine */
bool nrd_eagle_heads_is_3(const nrd_eagle_heads *e);
/* Of the one layer; vocab is that of its LM head. */
const nrd_model_spec *nrd_eagle_heads_spec(const nrd_eagle_heads *e);
const nrd_eagle_weights *nrd_eagle_heads_weights(const nrd_eagle_heads *e);
/* EAGLE-3: the layers of the model whose inputs are fused. */
const int32_t *nrd_eagle_heads_layers(const nrd_eagle_heads *e);
/* The model's token for one of the LM head's rows. */
int32_t nrd_eagle_heads_token(const nrd_eagle_heads *e, int32_t row);
/* Copies their files into the folder NRD_EAGLE_FOLDER of `dir`, which is made. */
nrd_error *nrd_eagle_heads_copy(const nrd_eagle_heads *e, const char *dir) NRD_MUST_USE;

#endif
