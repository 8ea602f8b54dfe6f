/* SPDX-License-Identifier: Apache-2.0
 * model/redrafter_heads.h - a recurrent drafter on disk: a small RNN that goes on from the last state of a larger model.
 *
 * Purpose   With the model's normed last state c of a token and the embedding E of the tokens that follow it: s = silu(W E + U s + b),
 *           from s = 0 on (without the RNN: s = s + E); x = P [c ; s] + p, or [c ; s] where exit_dim is 2 hidden; layers
 *           x = x + silu(L x + l); a matrix of the vocabulary's rows gives logits of the token behind.
 * Forms     A folder with config.json (hidden_size, exit_dim, num_draft_layers, rnn, vocab_size), and model.safetensors, model.pt or
 *           pytorch_model.bin with input_proj, rnn_u, rnn_w, lm_head.<l>.linear and lm_head.<layers> (input_projs and lm_heads are
 *           read too). A checkpoint folder of TensorRT-LLM: drafter.input_proj, drafter.rnn_u, drafter.rnn_w,
 *           drafter.layers.<l>.linear and drafter.lm_head in rank0.safetensors, not divided, and redrafter_* in config.json.
 * Owner     Immutable after open; any thread may read. Weights borrow from it until close.
 * Errors    NOT_FOUND: no such file or tensor. INVALID_ARG: file, tensor or field, expected, got. UNSUPPORTED: a type.
 * Sources   Cheng et al., "Recurrent Drafter for Fast Speculative Decoding in Large Language Models", 2024.
 */
#ifndef NRD_MODEL_REDRAFTER_HEADS_H
#define NRD_MODEL_REDRAFTER_HEADS_H

#include "base/error.h"
#include "nereid/device.h"

enum { NRD_REDRAFTER_MAX_LAYERS = 8, NRD_REDRAFTER_MAX_EXIT = 1 << 17 };
enum { NRD_REDRAFTER_MAX_BEAMS = 20, NRD_REDRAFTER_MAX_LEN = 10, NRD_REDRAFTER_BEAMS = 5, NRD_REDRAFTER_LEN = 5 };

/* Folder of a drafter inside a checkpoint or an engine. */
#define NRD_REDRAFTER_FOLDER "redrafter"

typedef struct nrd_redrafter_heads nrd_redrafter_heads;

/* As rows in host memory, F32, F16 or BF16; data NULL: there is none. Vectors are one row. */
typedef struct nrd_redrafter_weights {
    nrd_weight proj, proj_bias;            /* [exit, 2 hidden]; none where exit is 2 hidden */
    nrd_weight rnn_u, rnn_u_bias, rnn_w;   /* [hidden, hidden]; none without the RNN */
    nrd_weight linear[NRD_REDRAFTER_MAX_LAYERS], bias[NRD_REDRAFTER_MAX_LAYERS]; /* [exit, exit] */
    nrd_weight lm_head;                    /* [vocab, exit] */
} nrd_redrafter_weights;

typedef struct nrd_redrafter_sizes {
    int32_t exit, n_layers;
    bool rnn;
    int32_t n_beams, length; /* of the search that it was converted for, or NRD_REDRAFTER_BEAMS and _LEN */
} nrd_redrafter_sizes;

/* Something that open would read: a drafter's folder, or a checkpoint with one. */
bool nrd_redrafter_heads_are_in(const char *dir);
/* dir: a drafter's folder, a checkpoint, or what has one in its folder NRD_REDRAFTER_FOLDER. hidden, vocab: of the model. */
nrd_error *nrd_redrafter_heads_open(nrd_redrafter_heads **out, const char *dir, int64_t hidden, int64_t vocab) NRD_MUST_USE;
void nrd_redrafter_heads_close(nrd_redrafter_heads *h); /* NULL is fine */
const nrd_redrafter_sizes *nrd_redrafter_heads_sizes(const nrd_redrafter_heads *h);
const nrd_redrafter_weights *nrd_redrafter_heads_weights(const nrd_redrafter_heads *h);
/* Writes the first form into the folder NRD_REDRAFTER_FOLDER of `dir`, which is made; 0: n_beams, length as they are. */
nrd_error *nrd_redrafter_heads_write(const nrd_redrafter_heads *h, const char *dir, int32_t n_beams, int32_t length) NRD_MUST_USE;

#endif
