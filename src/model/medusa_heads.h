/* SPDX-License-Identifier: Apache-2.0
 * model/medusa_heads.h - Medusa heads on disk: small networks that say what comes behind the next token.
 *
 * Purpose   Head h reads the last layer's normed state x of a token, passes it through layers x + silu(W x + b), and a
 *           matrix gives logits of the token h + 2 places further: of the vocabulary's rows, or of the tokens that a map names.
 * Forms     A folder with medusa_lm_head.safetensors, medusa_lm_head.pt or model.safetensors, and config.json with
 *           medusa_num_heads and medusa_num_layers (num_heads and num_hidden_layers) where they are to be checked: tensors
 *           <h>.<l>.linear.{weight,bias} and <h>.<layers>.weight, with or without "medusa_heads." before; or
 *           blocks.<h>.layers.<l>.{weight,bias} and lm_heads.<h>.weight. Biases may be missing. One matrix for all heads is
 *           lm_heads.0.weight or lm_head.weight; without any the LM head is the model's own. token_map (int64) says the token of each
 *           row of the matrix. A checkpoint folder of TensorRT-LLM: in rank0.safetensors
 *           medusa_heads.<h>.medusa_layers.<l>.linear.{weight,bias} and medusa_heads.<h>.lm_head.weight, not divided.
 * Owner     Immutable after open; any thread may read. Weights borrow from it until close.
 * Errors    NOT_FOUND: no such file or tensor. INVALID_ARG: file, tensor, expected, got. UNSUPPORTED: a type.
 * Sources   Cai et al., "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads", ICML 2024.
 */
#ifndef NRD_MODEL_MEDUSA_HEADS_H
#define NRD_MODEL_MEDUSA_HEADS_H

#include "base/error.h"
#include "nereid/device.h"

enum { NRD_MEDUSA_MAX_HEADS = 16, NRD_MEDUSA_MAX_LAYERS = 8 };

typedef struct nrd_medusa_heads nrd_medusa_heads;

bool nrd_medusa_heads_are_in(const char *path); /* something that open would read */
/* hidden, vocab: of the model that they are for. */
nrd_error *nrd_medusa_heads_open(nrd_medusa_heads **out, const char *path, int64_t hidden, int64_t vocab) NRD_MUST_USE;
void nrd_medusa_heads_close(nrd_medusa_heads *m); /* NULL is fine */
int32_t nrd_medusa_heads_n(const nrd_medusa_heads *m);
int32_t nrd_medusa_heads_n_layers(const nrd_medusa_heads *m);
/* As rows in host memory: [hidden, hidden], [hidden], [rows, hidden]; types as in model/heads_file.h. bias NULL: none. lm_head NULL: the
 * model's; the same pointer for all heads where they share it. */
const nrd_weight *nrd_medusa_heads_linear(const nrd_medusa_heads *m, int32_t head, int32_t layer);
const nrd_weight *nrd_medusa_heads_bias(const nrd_medusa_heads *m, int32_t head, int32_t layer);
const nrd_weight *nrd_medusa_heads_lm_head(const nrd_medusa_heads *m, int32_t head);
int32_t nrd_medusa_heads_rows(const nrd_medusa_heads *m); /* of each matrix: tokens that can be guessed */
int32_t nrd_medusa_heads_token(const nrd_medusa_heads *m, int32_t row); /* 0 for what is no row */
void nrd_medusa_heads_keep(nrd_medusa_heads *m, int32_t n); /* the first n > 0 heads; more than there are: all */
/* Writes them into a folder, under the names that they have. */
nrd_error *nrd_medusa_heads_write(const nrd_medusa_heads *m, const char *dir) NRD_MUST_USE;

#endif
