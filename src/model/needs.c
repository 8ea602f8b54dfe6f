/* SPDX-License-Identifier: Apache-2.0
 * The table of weights that the runner needs, and the checks against it: names and shapes for each
 * layer, scales of an 8-bit KV cache, the number of ranks. The build calls it with its plan, the
 * runner with the opened engine; each gives a function that finds a weight's shape. */
#include "model/needs.h"

#include "base/dtype.h"
#include "base/str.h"

#include <stdio.h>
#include <string.h>

enum { MAX_NAME = 128 };

#define VECTOR(name, rows, when)                                                                   \
    {name, true, false, false, false, rows, NRD_DIM_ONE, NRD_SHARD_NONE, when, NRD_NEED_ALWAYS}
#define NORM(stem, when, bias_when)                                                                \
    VECTOR(stem ".weight", NRD_DIM_HIDDEN, when), VECTOR(stem ".bias", NRD_DIM_HIDDEN, bias_when)
/* bias_shard: the bias of a product whose columns are divided is whole in every rank. */
#define LINEAR(stem, rows, cols, shard, bias_shard, when, bias_when, form)                         \
    {stem ".weight", true, true, false, false, rows, cols, shard, when, form},                     \
    {                                                                                              \
        stem ".bias", true, false, false, false, rows, NRD_DIM_ONE, bias_shard, bias_when, form    \
    }
#define QKV(stem, rows, form)                                                                      \
    LINEAR(stem, rows, NRD_DIM_HIDDEN, NRD_SHARD_QKV, NRD_SHARD_QKV, NRD_WHEN_QKV,                 \
           NRD_WHEN_QKV_BIAS, form)
#define ONCE(name, linear, at_least, rows, cols, shard, when, form)                                \
    {name, false, linear, at_least, false, rows, cols, shard, when, form}
/* From the embedding to one of a token's other states, and from there to what the head reads. */
#define OF_STATE(name)                                                                             \
    ONCE("transformer.altup." name ".weight", true, false, NRD_DIM_HIDDEN, NRD_DIM_HIDDEN, NRD_SHARD_NONE, NRD_WHEN_ALTUP, NRD_NEED_ALWAYS)
#define OF_ALTUP(name, linear, rows, cols)                                                         \
    {name, true, linear, false, false, rows, cols, NRD_SHARD_NONE, NRD_WHEN_ALTUP, NRD_NEED_ALWAYS}
#define OF_LATENT(name, linear, rows, cols, shard, when)                                           \
    {"attention." name ".weight", true, linear, false, false, rows, cols, shard, when, NRD_NEED_ALWAYS}
/* Of a layer that reads pictures, in front of the one that it is counted with. */
#define OF_PICTURES(name, linear, rows, cols, shard)                                               \
    {NRD_PICTURE name, true, linear, false, false, rows, cols, shard, NRD_WHEN_PICTURES, NRD_NEED_ALWAYS}
/* Of layers with experts; `stacked`: each expert's own. */
#define OF_EXPERTS(name, linear, stacked, rows, cols, shard, when)                                 \
    {"mlp." name, true, linear, false, stacked, rows, cols, shard, when, NRD_NEED_EXPERTS}

/* Of columns of a product. */
#define COLUMNS(name, cols)                                                                         \
    {name, true, false, false, false, cols, NRD_DIM_ONE, NRD_SHARD_NONE, NRD_WHEN_ALWAYS, NRD_NEED_IF_THERE}

static const nrd_need needs[] = { /* [0]: the embedding */
    ONCE("transformer.vocab_embedding.weight", false, true, NRD_DIM_VOCAB, NRD_DIM_EMBED,
         NRD_SHARD_NONE, NRD_WHEN_TOKENS, NRD_NEED_ALWAYS),
    ONCE("transformer.conv1.weight", true, false, NRD_DIM_HIDDEN, NRD_DIM_CONV1, NRD_SHARD_NONE, NRD_WHEN_SOUND,
         NRD_NEED_ALWAYS),
    ONCE("transformer.conv1.bias", false, false, NRD_DIM_HIDDEN, NRD_DIM_ONE, NRD_SHARD_NONE, NRD_WHEN_SOUND,
         NRD_NEED_ALWAYS),
    ONCE("transformer.conv2.weight", true, false, NRD_DIM_HIDDEN, NRD_DIM_CONV2, NRD_SHARD_NONE, NRD_WHEN_SOUND,
         NRD_NEED_ALWAYS),
    ONCE("transformer.conv2.bias", false, false, NRD_DIM_HIDDEN, NRD_DIM_ONE, NRD_SHARD_NONE, NRD_WHEN_SOUND,
         NRD_NEED_ALWAYS),
    ONCE("mtp.fc.weight", true, false, NRD_DIM_HIDDEN, NRD_DIM_TWO_HIDDEN, NRD_SHARD_NONE, NRD_WHEN_MTP, NRD_NEED_ALWAYS),
    ONCE("mtp.embed_layernorm.weight", false, false, NRD_DIM_HIDDEN, NRD_DIM_ONE, NRD_SHARD_NONE, NRD_WHEN_MTP, NRD_NEED_ALWAYS),
    ONCE("mtp.state_layernorm.weight", false, false, NRD_DIM_HIDDEN, NRD_DIM_ONE, NRD_SHARD_NONE, NRD_WHEN_MTP, NRD_NEED_ALWAYS),
    ONCE("mtp.final_layernorm.weight", false, false, NRD_DIM_HIDDEN, NRD_DIM_ONE, NRD_SHARD_NONE, NRD_WHEN_MTP, NRD_NEED_ALWAYS),
    ONCE("transformer.position_embedding.weight", false, false, NRD_DIM_POSITIONS, NRD_DIM_EMBED,
         NRD_SHARD_NONE, NRD_WHEN_POSITIONS, NRD_NEED_ALWAYS),
    ONCE("transformer.type_embedding.weight", false, false, NRD_DIM_TOKEN_TYPES, NRD_DIM_EMBED, NRD_SHARD_NONE,
         NRD_WHEN_TOKEN_TYPES, NRD_NEED_ALWAYS),
    ONCE("transformer.ln_embed.weight", false, false, NRD_DIM_EMBED, NRD_DIM_ONE, NRD_SHARD_NONE,
         NRD_WHEN_EMBED_NORM, NRD_NEED_ALWAYS),
    ONCE("transformer.ln_embed.bias", false, false, NRD_DIM_EMBED, NRD_DIM_ONE, NRD_SHARD_NONE,
         NRD_WHEN_EMBED_NORM_BIAS, NRD_NEED_ALWAYS),
    ONCE("transformer.embed_projection.weight", true, false, NRD_DIM_HIDDEN, NRD_DIM_EMBED, NRD_SHARD_NONE, NRD_WHEN_EMBED_PROJECTION,
         NRD_NEED_ALWAYS),
    ONCE("transformer.embed_projection.bias", false, false, NRD_DIM_HIDDEN, NRD_DIM_ONE, NRD_SHARD_NONE, NRD_WHEN_EMBED_PROJECTION,
         NRD_NEED_ALWAYS),
    ONCE("transformer.per_layer_embedding.weight", false, true, NRD_DIM_PER_LAYER_VOCAB, NRD_DIM_PER_LAYER_ALL, NRD_SHARD_NONE,
         NRD_WHEN_LAYER_INPUTS, NRD_NEED_ALWAYS),
    ONCE("transformer.per_layer.projection.weight", true, false, NRD_DIM_PER_LAYER_ALL, NRD_DIM_HIDDEN, NRD_SHARD_NONE,
         NRD_WHEN_LAYER_INPUTS, NRD_NEED_ALWAYS),
    ONCE("transformer.per_layer.norm.weight", false, false, NRD_DIM_PER_LAYER, NRD_DIM_ONE, NRD_SHARD_NONE, NRD_WHEN_LAYER_INPUTS,
         NRD_NEED_ALWAYS),
    OF_STATE("in_1"), OF_STATE("in_2"), OF_STATE("in_3"), OF_STATE("out_1"), OF_STATE("out_2"), OF_STATE("out_3"),
    ONCE("transformer.rel_attn_table.weight", false, false, NRD_DIM_REL_BUCKETS, NRD_DIM_HEADS, NRD_SHARD_COLS,
         NRD_WHEN_REL_BIAS, NRD_NEED_ALWAYS),
    NORM("input_layernorm", NRD_WHEN_PRE_NORMS, NRD_WHEN_PRE_NORM_BIAS),
    QKV("attention.qkv", NRD_DIM_QKV, NRD_NEED_STACKED),
    QKV("attention.q", NRD_DIM_Q, NRD_NEED_SPLIT),
    QKV("attention.k", NRD_DIM_KV, NRD_NEED_SPLIT),
    QKV("attention.v", NRD_DIM_KV, NRD_NEED_SPLIT),
    {"attention.q_layernorm.weight", true, false, false, false, NRD_DIM_Q_NORM, NRD_DIM_ONE, NRD_SHARD_Q_NORM,
     NRD_WHEN_QK_NORM, NRD_NEED_ALWAYS},
    {"attention.k_layernorm.weight", true, false, false, false, NRD_DIM_K_NORM, NRD_DIM_ONE, NRD_SHARD_K_NORM,
     NRD_WHEN_QK_NORM, NRD_NEED_ALWAYS},
    {"attention.q_layernorm.bias", true, false, false, false, NRD_DIM_Q_NORM, NRD_DIM_ONE, NRD_SHARD_Q_NORM,
     NRD_WHEN_QK_NORM_BIAS, NRD_NEED_ALWAYS},
    {"attention.k_layernorm.bias", true, false, false, false, NRD_DIM_K_NORM, NRD_DIM_ONE, NRD_SHARD_K_NORM,
     NRD_WHEN_QK_NORM_BIAS, NRD_NEED_ALWAYS},
    OF_LATENT("q_a", true, NRD_DIM_Q_RANK, NRD_DIM_HIDDEN, NRD_SHARD_NONE, NRD_WHEN_LATENT_Q),
    OF_LATENT("q_a_layernorm", false, NRD_DIM_Q_RANK, NRD_DIM_ONE, NRD_SHARD_NONE, NRD_WHEN_LATENT_Q),
    OF_LATENT("q_b", true, NRD_DIM_Q, NRD_DIM_Q_INPUT, NRD_SHARD_ROWS, NRD_WHEN_LATENT),
    OF_LATENT("kv_a", true, NRD_DIM_LATENT, NRD_DIM_HIDDEN, NRD_SHARD_NONE, NRD_WHEN_LATENT),
    OF_LATENT("kv_a_layernorm", false, NRD_DIM_KV_RANK, NRD_DIM_ONE, NRD_SHARD_NONE, NRD_WHEN_LATENT),
    OF_LATENT("k_b", false, NRD_DIM_KEYS, NRD_DIM_KV_RANK, NRD_SHARD_ROWS, NRD_WHEN_LATENT),
    OF_LATENT("v_b", false, NRD_DIM_VALUES, NRD_DIM_KV_RANK, NRD_SHARD_ROWS, NRD_WHEN_LATENT),
    {NRD_QUERY, true, true, false, false, NRD_DIM_Q, NRD_DIM_HIDDEN, NRD_SHARD_ROWS, NRD_WHEN_SHARED_KV, NRD_NEED_ALWAYS},
    LINEAR("attention.dense", NRD_DIM_HIDDEN, NRD_DIM_VALUES, NRD_SHARD_COLS, NRD_SHARD_NONE,
           NRD_WHEN_ALWAYS, NRD_WHEN_DENSE_BIAS, NRD_NEED_ALWAYS),
    {NRD_OF_PICTURE "qkv.weight", true, true, false, false, NRD_DIM_QKV, NRD_DIM_HIDDEN, NRD_SHARD_QKV, NRD_WHEN_PICTURE_ROWS, NRD_NEED_ALWAYS},
    {NRD_OF_PICTURE "qkv.bias", true, false, false, false, NRD_DIM_QKV, NRD_DIM_ONE, NRD_SHARD_QKV, NRD_WHEN_PICTURE_ROWS, NRD_NEED_IF_THERE},
    {NRD_OF_PICTURE "dense.weight", true, true, false, false, NRD_DIM_HIDDEN, NRD_DIM_Q, NRD_SHARD_COLS, NRD_WHEN_PICTURE_ROWS, NRD_NEED_ALWAYS},
    {NRD_OF_PICTURE "fc.weight", true, true, false, false, NRD_DIM_INTER, NRD_DIM_HIDDEN, NRD_SHARD_ROWS, NRD_WHEN_PICTURE_ROWS, NRD_NEED_ALWAYS},
    {NRD_OF_PICTURE "gate.weight", true, true, false, false, NRD_DIM_INTER, NRD_DIM_HIDDEN, NRD_SHARD_ROWS, NRD_WHEN_PICTURE_ROWS, NRD_NEED_ALWAYS},
    {NRD_OF_PICTURE "proj.weight", true, true, false, false, NRD_DIM_HIDDEN, NRD_DIM_INTER, NRD_SHARD_COLS, NRD_WHEN_PICTURE_ROWS, NRD_NEED_ALWAYS},
    VECTOR("attention.inner_layernorm.weight", NRD_DIM_VALUES, NRD_WHEN_INNER_NORMS),
    VECTOR("attention.inner_layernorm.bias", NRD_DIM_VALUES, NRD_WHEN_INNER_NORM_BIAS),
    VECTOR("mlp.inner_layernorm.weight", NRD_DIM_INTER, NRD_WHEN_INNER_NORMS),
    VECTOR("mlp.inner_layernorm.bias", NRD_DIM_INTER, NRD_WHEN_INNER_NORM_BIAS),
    {"attention.gate.weight", true, true, false, false, NRD_DIM_Q, NRD_DIM_HIDDEN, NRD_SHARD_ROWS, NRD_WHEN_ATTN_GATE,
     NRD_NEED_ALWAYS},
    {NRD_KV_RANGE, true, false, false, false, NRD_DIM_KV_RANGE, NRD_DIM_ONE, NRD_SHARD_NONE, NRD_WHEN_ALWAYS,
     NRD_NEED_IF_THERE},
    {NRD_KV_SCALE, true, false, false, false, NRD_DIM_ONE, NRD_DIM_ONE, NRD_SHARD_NONE, NRD_WHEN_ALWAYS,
     NRD_NEED_IF_THERE},
    COLUMNS(NRD_ORDER_QKV, NRD_DIM_HIDDEN),
    COLUMNS(NRD_ORDER_DENSE, NRD_DIM_VALUES),
    COLUMNS(NRD_ORDER_UP, NRD_DIM_HIDDEN),
    COLUMNS(NRD_ORDER_DOWN, NRD_DIM_INTER),
    COLUMNS(NRD_COLUMNS_QKV, NRD_DIM_HIDDEN),
    COLUMNS(NRD_COLUMNS_DENSE, NRD_DIM_VALUES),
    COLUMNS(NRD_COLUMNS_UP, NRD_DIM_HIDDEN),
    COLUMNS(NRD_COLUMNS_DOWN, NRD_DIM_INTER),
    COLUMNS(NRD_INT8_INPUT_QKV, NRD_DIM_ONE),
    COLUMNS(NRD_INT8_INPUT_DENSE, NRD_DIM_ONE),
    COLUMNS(NRD_INT8_INPUT_UP, NRD_DIM_ONE),
    COLUMNS(NRD_INT8_INPUT_DOWN, NRD_DIM_ONE),
    {NRD_SINKS, true, false, false, false, NRD_DIM_HEADS, NRD_DIM_ONE, NRD_SHARD_ROWS, NRD_WHEN_SINK_LOGITS,
     NRD_NEED_ALWAYS},
    LINEAR(NRD_RECURRENT "in", NRD_DIM_RECURRENT_IN, NRD_DIM_HIDDEN, NRD_SHARD_NONE, NRD_SHARD_NONE, NRD_WHEN_RECURRENT,
           NRD_WHEN_RECURRENT_PROJ_BIAS, NRD_NEED_ALWAYS),
    LINEAR(NRD_RECURRENT "gate", NRD_DIM_RECURRENT_INNER, NRD_DIM_HIDDEN, NRD_SHARD_NONE, NRD_SHARD_NONE,
           NRD_WHEN_RECURRENT_GATE, NRD_WHEN_RECURRENT_GATE_BIAS, NRD_NEED_ALWAYS),
    {NRD_RECURRENT "beta.weight", true, true, false, false, NRD_DIM_RECURRENT_HEADS, NRD_DIM_HIDDEN, NRD_SHARD_NONE,
     NRD_WHEN_DELTA, NRD_NEED_ALWAYS},
    {NRD_RECURRENT "alpha.weight", true, true, false, false, NRD_DIM_RECURRENT_HEADS, NRD_DIM_HIDDEN, NRD_SHARD_NONE,
     NRD_WHEN_DELTA, NRD_NEED_ALWAYS},
    {NRD_RECURRENT "conv.weight", true, false, false, false, NRD_DIM_RECURRENT_CHANNELS, NRD_DIM_RECURRENT_KERNEL,
     NRD_SHARD_NONE, NRD_WHEN_RECURRENT, NRD_NEED_ALWAYS},
    VECTOR(NRD_RECURRENT "conv.bias", NRD_DIM_RECURRENT_CHANNELS, NRD_WHEN_RECURRENT_CONV_BIAS),
    VECTOR(NRD_RECURRENT "A", NRD_DIM_RECURRENT_HEADS, NRD_WHEN_RECURRENT_RATES),
    {NRD_RECURRENT "A_states", true, false, false, false, NRD_DIM_RECURRENT_INNER, NRD_DIM_RECURRENT_STATE, NRD_SHARD_NONE,
     NRD_WHEN_MAMBA, NRD_NEED_ALWAYS},
    VECTOR(NRD_RECURRENT "D", NRD_DIM_RECURRENT_HEADS, NRD_WHEN_SSM),
    {NRD_RECURRENT "x_dt.weight", true, true, false, false, NRD_DIM_RECURRENT_DT, NRD_DIM_RECURRENT_INNER, NRD_SHARD_NONE,
     NRD_WHEN_MAMBA, NRD_NEED_ALWAYS},
    {NRD_RECURRENT "x_bc.weight", true, true, false, false, NRD_DIM_RECURRENT_BC, NRD_DIM_RECURRENT_INNER, NRD_SHARD_NONE,
     NRD_WHEN_MAMBA, NRD_NEED_ALWAYS},
    {NRD_RECURRENT "dt.weight", true, true, false, false, NRD_DIM_RECURRENT_INNER, NRD_DIM_RECURRENT_DT, NRD_SHARD_NONE,
     NRD_WHEN_MAMBA, NRD_NEED_ALWAYS},
    {NRD_RECURRENT "in_gate.weight", true, false, false, false, NRD_DIM_RECURRENT_INNER, NRD_DIM_RECURRENT_HEAD, NRD_SHARD_NONE,
     NRD_WHEN_RG_LRU, NRD_NEED_ALWAYS},
    {NRD_RECURRENT "decay_gate.weight", true, false, false, false, NRD_DIM_RECURRENT_INNER, NRD_DIM_RECURRENT_HEAD, NRD_SHARD_NONE,
     NRD_WHEN_RG_LRU, NRD_NEED_ALWAYS},
    VECTOR(NRD_RECURRENT "in_gate.bias", NRD_DIM_RECURRENT_INNER, NRD_WHEN_RG_LRU),
    VECTOR(NRD_RECURRENT "decay_gate.bias", NRD_DIM_RECURRENT_INNER, NRD_WHEN_RG_LRU),
    VECTOR(NRD_RECURRENT "decay", NRD_DIM_RECURRENT_INNER, NRD_WHEN_RG_LRU),
    VECTOR(NRD_RECURRENT "dt_norm.weight", NRD_DIM_RECURRENT_DT, NRD_WHEN_MAMBA_NORMS),
    VECTOR(NRD_RECURRENT "bc_norm.weight", NRD_DIM_RECURRENT_STATE, NRD_WHEN_MAMBA_NORMS),
    VECTOR(NRD_RECURRENT "c_norm.weight", NRD_DIM_RECURRENT_STATE, NRD_WHEN_MAMBA_C_NORM),
    VECTOR(NRD_RECURRENT "dt_bias", NRD_DIM_RECURRENT_HEADS, NRD_WHEN_RECURRENT_HEADS),
    VECTOR(NRD_RECURRENT "norm.weight", NRD_DIM_RECURRENT_NORM, NRD_WHEN_GATED_NORM),
    LINEAR(NRD_RECURRENT "out", NRD_DIM_HIDDEN, NRD_DIM_RECURRENT_INNER, NRD_SHARD_NONE, NRD_SHARD_NONE,
           NRD_WHEN_RECURRENT, NRD_WHEN_RECURRENT_PROJ_BIAS, NRD_NEED_ALWAYS),
    VECTOR("post_attention_layernorm.weight", NRD_DIM_HIDDEN, NRD_WHEN_POST_NORMS),
    OF_ALTUP("altup.router_norm.weight", false, NRD_DIM_HIDDEN, NRD_DIM_ONE),
    OF_ALTUP("altup.router.weight", false, NRD_DIM_ALTUP_STATES, NRD_DIM_HIDDEN),
    OF_ALTUP("altup.predict.weight", false, NRD_DIM_ALTUP_PAIRS, NRD_DIM_ALTUP_STATES),
    OF_ALTUP("altup.correct.weight", false, NRD_DIM_ALTUP_STATES, NRD_DIM_ALTUP_STATES),
    OF_ALTUP("altup.scale", false, NRD_DIM_HIDDEN, NRD_DIM_ONE),
    OF_ALTUP("laurel.left.weight", true, NRD_DIM_LAUREL, NRD_DIM_HIDDEN),
    OF_ALTUP("laurel.right.weight", true, NRD_DIM_HIDDEN, NRD_DIM_LAUREL),
    OF_ALTUP("laurel.norm.weight", false, NRD_DIM_HIDDEN, NRD_DIM_ONE),
    {"per_layer.gate.weight", true, true, false, false, NRD_DIM_PER_LAYER, NRD_DIM_HIDDEN, NRD_SHARD_NONE, NRD_WHEN_LAYER_INPUTS,
     NRD_NEED_ALWAYS},
    {"per_layer.proj.weight", true, true, false, false, NRD_DIM_HIDDEN, NRD_DIM_PER_LAYER, NRD_SHARD_NONE, NRD_WHEN_LAYER_INPUTS,
     NRD_NEED_ALWAYS},
    VECTOR("per_layer.post_norm.weight", NRD_DIM_HIDDEN, NRD_WHEN_LAYER_INPUTS),
    VECTOR(NRD_LAYER_SCALE, NRD_DIM_ONE, NRD_WHEN_LAYER_SCALE),
    NORM("cross_attention_layernorm", NRD_WHEN_CROSS, NRD_WHEN_CROSS_NORM_BIAS),
    LINEAR("cross_attention.q", NRD_DIM_Q, NRD_DIM_HIDDEN, NRD_SHARD_NONE, NRD_SHARD_NONE, NRD_WHEN_CROSS,
           NRD_WHEN_CROSS_Q_BIAS, NRD_NEED_ALWAYS),
    LINEAR("cross_attention.k", NRD_DIM_KV, NRD_DIM_HIDDEN, NRD_SHARD_NONE, NRD_SHARD_NONE, NRD_WHEN_CROSS,
           NRD_WHEN_CROSS_Q_BIAS, NRD_NEED_ALWAYS),
    LINEAR("cross_attention.v", NRD_DIM_KV, NRD_DIM_HIDDEN, NRD_SHARD_NONE, NRD_SHARD_NONE, NRD_WHEN_CROSS,
           NRD_WHEN_CROSS_Q_BIAS, NRD_NEED_ALWAYS),
    LINEAR("cross_attention.dense", NRD_DIM_HIDDEN, NRD_DIM_Q, NRD_SHARD_NONE, NRD_SHARD_NONE, NRD_WHEN_CROSS,
           NRD_WHEN_CROSS_DENSE_BIAS, NRD_NEED_ALWAYS),
    OF_PICTURES("input_layernorm.weight", false, NRD_DIM_HIDDEN, NRD_DIM_ONE, NRD_SHARD_NONE),
    OF_PICTURES("q.weight", true, NRD_DIM_Q, NRD_DIM_HIDDEN, NRD_SHARD_ROWS),
    OF_PICTURES("k.weight", true, NRD_DIM_KV, NRD_DIM_HIDDEN, NRD_SHARD_KV),
    OF_PICTURES("v.weight", true, NRD_DIM_KV, NRD_DIM_HIDDEN, NRD_SHARD_KV),
    OF_PICTURES("q_layernorm.weight", false, NRD_DIM_Q_NORM, NRD_DIM_ONE, NRD_SHARD_Q_NORM),
    OF_PICTURES("k_layernorm.weight", false, NRD_DIM_K_NORM, NRD_DIM_ONE, NRD_SHARD_K_NORM),
    OF_PICTURES("dense.weight", true, NRD_DIM_HIDDEN, NRD_DIM_Q, NRD_SHARD_COLS),
    OF_PICTURES("attention_gate", false, NRD_DIM_ONE, NRD_DIM_ONE, NRD_SHARD_NONE),
    OF_PICTURES("post_layernorm.weight", false, NRD_DIM_HIDDEN, NRD_DIM_ONE, NRD_SHARD_NONE),
    OF_PICTURES("fc.weight", true, NRD_DIM_INTER, NRD_DIM_HIDDEN, NRD_SHARD_ROWS),
    OF_PICTURES("gate.weight", true, NRD_DIM_INTER, NRD_DIM_HIDDEN, NRD_SHARD_ROWS),
    OF_PICTURES("proj.weight", true, NRD_DIM_HIDDEN, NRD_DIM_INTER, NRD_SHARD_COLS),
    OF_PICTURES("mlp_gate", false, NRD_DIM_ONE, NRD_DIM_ONE, NRD_SHARD_NONE),
    NORM("post_layernorm", NRD_WHEN_MLP_NORM, NRD_WHEN_MLP_NORM_BIAS),
    LINEAR("mlp.fc", NRD_DIM_INTER, NRD_DIM_HIDDEN, NRD_SHARD_ROWS, NRD_SHARD_ROWS, NRD_WHEN_ALWAYS,
           NRD_WHEN_MLP_BIAS, NRD_NEED_DENSE),
    LINEAR("mlp.gate", NRD_DIM_INTER, NRD_DIM_HIDDEN, NRD_SHARD_ROWS, NRD_SHARD_ROWS, NRD_WHEN_GATED,
           NRD_WHEN_GATE_BIAS, NRD_NEED_DENSE),
    LINEAR("mlp.proj", NRD_DIM_HIDDEN, NRD_DIM_INTER, NRD_SHARD_COLS, NRD_SHARD_NONE,
           NRD_WHEN_ALWAYS, NRD_WHEN_MLP_BIAS, NRD_NEED_DENSE),
    {NRD_XIELU_P, true, false, false, false, NRD_DIM_ONE, NRD_DIM_ONE, NRD_SHARD_NONE, NRD_WHEN_XIELU, NRD_NEED_DENSE},
    {NRD_XIELU_N, true, false, false, false, NRD_DIM_ONE, NRD_DIM_ONE, NRD_SHARD_NONE, NRD_WHEN_XIELU, NRD_NEED_DENSE},
    OF_EXPERTS("router.weight", true, false, NRD_DIM_EXPERTS, NRD_DIM_HIDDEN, NRD_SHARD_NONE, NRD_WHEN_EXPERTS),
    OF_EXPERTS(NRD_SCORE_BIAS, false, false, NRD_DIM_EXPERTS, NRD_DIM_ONE, NRD_SHARD_NONE, NRD_WHEN_SCORE_BIAS),
    OF_EXPERTS("experts.fc.weight", true, true, NRD_DIM_EXPERT_INTER, NRD_DIM_HIDDEN, NRD_SHARD_ROWS,
               NRD_WHEN_EXPERTS),
    OF_EXPERTS("experts.gate.weight", true, true, NRD_DIM_EXPERT_INTER, NRD_DIM_HIDDEN, NRD_SHARD_ROWS,
               NRD_WHEN_EXPERTS_GATED),
    OF_EXPERTS("experts.proj.weight", true, true, NRD_DIM_HIDDEN, NRD_DIM_EXPERT_INTER, NRD_SHARD_COLS,
               NRD_WHEN_EXPERTS),
    OF_EXPERTS("router.bias", false, false, NRD_DIM_EXPERTS, NRD_DIM_ONE, NRD_SHARD_NONE, NRD_WHEN_EXPERT_BIAS),
    OF_EXPERTS("experts.fc.bias", false, true, NRD_DIM_EXPERT_INTER, NRD_DIM_ONE, NRD_SHARD_ROWS, NRD_WHEN_EXPERT_BIAS),
    OF_EXPERTS("experts.gate.bias", false, true, NRD_DIM_EXPERT_INTER, NRD_DIM_ONE, NRD_SHARD_ROWS, NRD_WHEN_EXPERT_BIAS),
    OF_EXPERTS("experts.proj.bias", false, true, NRD_DIM_HIDDEN, NRD_DIM_ONE, NRD_SHARD_NONE, NRD_WHEN_EXPERT_BIAS),
    OF_EXPERTS(NRD_SUM_BIAS, false, false, NRD_DIM_HIDDEN, NRD_DIM_ONE, NRD_SHARD_NONE, NRD_WHEN_EXPERTS_SUM_BIAS),
    OF_EXPERTS("shared.fc.weight", true, false, NRD_DIM_SHARED_INTER, NRD_DIM_HIDDEN, NRD_SHARD_ROWS, NRD_WHEN_SHARED),
    OF_EXPERTS("shared.gate.weight", true, false, NRD_DIM_SHARED_INTER, NRD_DIM_HIDDEN, NRD_SHARD_ROWS, NRD_WHEN_SHARED_GATED),
    OF_EXPERTS("shared.proj.weight", true, false, NRD_DIM_HIDDEN, NRD_DIM_SHARED_INTER, NRD_SHARD_COLS, NRD_WHEN_SHARED),
    OF_EXPERTS("shared_router.weight", true, false, NRD_DIM_ONE, NRD_DIM_HIDDEN, NRD_SHARD_NONE, NRD_WHEN_SHARED_GATE),
    VECTOR(NRD_ROUTER_NORM, NRD_DIM_HIDDEN, NRD_WHEN_EXPERTS_BEHIND),
    VECTOR(NRD_EXPERT_SCALE, NRD_DIM_EXPERTS, NRD_WHEN_EXPERTS_BEHIND),
    VECTOR("mlp.experts_norm.weight", NRD_DIM_HIDDEN, NRD_WHEN_EXPERTS_BESIDE),
    VECTOR("mlp.experts_post_norm.weight", NRD_DIM_HIDDEN, NRD_WHEN_EXPERTS_BEHIND),
    VECTOR("mlp.dense_post_norm.weight", NRD_DIM_HIDDEN, NRD_WHEN_EXPERTS_BEHIND),
    VECTOR("post_feedforward_layernorm.weight", NRD_DIM_HIDDEN, NRD_WHEN_POST_NORMS),
    ONCE("transformer.ln_f.weight", false, false, NRD_DIM_HIDDEN, NRD_DIM_ONE, NRD_SHARD_NONE,
         NRD_WHEN_FINAL_NORM, NRD_NEED_ALWAYS),
    ONCE("transformer.ln_f.bias", false, false, NRD_DIM_HIDDEN, NRD_DIM_ONE, NRD_SHARD_NONE,
         NRD_WHEN_FINAL_NORM_BIAS, NRD_NEED_ALWAYS),
    /* without one the embedding is the head */
    ONCE("lm_head.weight", true, true, NRD_DIM_VOCAB_PART, NRD_DIM_HIDDEN, NRD_SHARD_VOCAB,
         NRD_WHEN_ALWAYS, NRD_NEED_IF_THERE),
    ONCE("lm_head.bias", false, true, NRD_DIM_VOCAB_PART, NRD_DIM_ONE, NRD_SHARD_VOCAB,
         NRD_WHEN_LM_HEAD_BIAS, NRD_NEED_ALWAYS),
    ONCE(NRD_PROJECTION "1.weight", false, false, NRD_DIM_PROJECTION_1, NRD_DIM_HIDDEN, NRD_SHARD_NONE, NRD_WHEN_PROJECTION_1,
         NRD_NEED_ALWAYS),
    ONCE(NRD_PROJECTION "1.bias", false, false, NRD_DIM_PROJECTION_1, NRD_DIM_ONE, NRD_SHARD_NONE, NRD_WHEN_PROJECTION_1_BIAS,
         NRD_NEED_ALWAYS),
    ONCE(NRD_PROJECTION "2.weight", false, false, NRD_DIM_PROJECTION_2, NRD_DIM_PROJECTION_1, NRD_SHARD_NONE, NRD_WHEN_PROJECTION_2,
         NRD_NEED_ALWAYS),
    ONCE(NRD_PROJECTION "2.bias", false, false, NRD_DIM_PROJECTION_2, NRD_DIM_ONE, NRD_SHARD_NONE, NRD_WHEN_PROJECTION_2_BIAS,
         NRD_NEED_ALWAYS),
    ONCE(NRD_CLASSIFIER "dense.weight", false, false, NRD_DIM_HIDDEN, NRD_DIM_HIDDEN, NRD_SHARD_NONE,
         NRD_WHEN_CLASSIFIER_DENSE, NRD_NEED_ALWAYS),
    ONCE(NRD_CLASSIFIER "dense.bias", false, false, NRD_DIM_HIDDEN, NRD_DIM_ONE, NRD_SHARD_NONE,
         NRD_WHEN_CLASSIFIER_DENSE_BIAS, NRD_NEED_ALWAYS),
    ONCE(NRD_CLASSIFIER "norm.weight", false, false, NRD_DIM_HIDDEN, NRD_DIM_ONE, NRD_SHARD_NONE,
         NRD_WHEN_CLASSIFIER_NORM, NRD_NEED_ALWAYS),
    ONCE(NRD_CLASSIFIER "norm.bias", false, false, NRD_DIM_HIDDEN, NRD_DIM_ONE, NRD_SHARD_NONE,
         NRD_WHEN_CLASSIFIER_NORM_BIAS, NRD_NEED_ALWAYS),
    ONCE(NRD_CLASSIFIER "out.weight", false, false, NRD_DIM_LABELS, NRD_DIM_HIDDEN, NRD_SHARD_NONE,
         NRD_WHEN_CLASSIFIER, NRD_NEED_ALWAYS),
    ONCE(NRD_CLASSIFIER "out.bias", false, false, NRD_DIM_LABELS, NRD_DIM_ONE, NRD_SHARD_NONE,
         NRD_WHEN_CLASSIFIER_BIAS, NRD_NEED_ALWAYS),
    ONCE("rope_factors", false, true, NRD_DIM_ROPE_HALF, NRD_DIM_ONE, NRD_SHARD_NONE,
         NRD_WHEN_ROPE_FACTORS, NRD_NEED_ALWAYS),
};
enum { N_NEEDS = (int)(sizeof needs / sizeof needs[0]) };

const nrd_need *nrd_need_of(const char *name)
{
    for (int i = 0; i < N_NEEDS; i++) {
        if (!strcmp(needs[i].name, name)) {
            return &needs[i];
        }
    }
    return NULL;
}

const nrd_need *nrd_need_of_full(const char *name)
{
    const char *layers = "transformer.layers.", *rest = name;
    if (!strncmp(name, layers, strlen(layers))) {
        rest = strchr(name + strlen(layers), '.');
        rest = rest ? rest + 1 : name;
    }
    return nrd_need_of(rest);
}

/* A norm in front of attention or MLP where there are only those behind, or one behind where there are only those in front. */
static bool is_other_norm(const nrd_need *n, bool has_state)
{
    const char *const front[] = {"input_layernorm.", "post_layernorm."}, *const behind[] = {"post_attention_layernorm.",
                                                                                          "post_feedforward_layernorm."};
    const char *const *other = has_state ? behind : front;
    return nrd_str_has_prefix(n->name, other[0]) || nrd_str_has_prefix(n->name, other[1]);
}

bool nrd_need_is_in(const nrd_need *n, const nrd_model_spec *s, int32_t layer)
{
    const bool of_attention = nrd_str_has_prefix(n->name, NRD_ATTENTION);
    const bool of_state = nrd_str_has_prefix(n->name, NRD_RECURRENT);
    const bool of_mlp = nrd_str_has_prefix(n->name, "mlp.") || nrd_str_has_prefix(n->name, "post_layernorm.");
    const bool of_mixer = of_attention || of_state || nrd_str_has_prefix(n->name, "input_layernorm.");

    if (nrd_str_has_prefix(n->name, NRD_PICTURE) && !s->layer_is_behind_gap[layer]) {
        return false;
    }
    if (s->norms_by_kind && is_other_norm(n, s->layer_is_recurrent[layer])) {
        return false;
    }
    if (layer == 0 && s->no_first_norm && nrd_str_has_prefix(n->name, "input_layernorm.")) {
        return false;
    }
    if (s->n_shared_kv > 0 && of_attention) {
        const bool of_own = n->shard == NRD_SHARD_QKV || n->shard == NRD_SHARD_K_NORM || !strcmp(n->name, NRD_KV_RANGE) ||
                            !strcmp(n->name, NRD_KV_SCALE);
        const bool has_own = nrd_spec_layer_has_cache(s, layer);
        if ((of_own && !has_own) || (has_own && !strcmp(n->name, NRD_QUERY))) {
            return false;
        }
    }
    if ((of_mixer && s->layer_has_no_mixer[layer]) || (of_mlp && s->layer_has_no_mlp[layer]) ||
        (of_attention && !nrd_spec_layer_has_attention(s, layer)) || (of_state && !s->layer_is_recurrent[layer])) {
        return false;
    }
    return n->form == NRD_NEED_DENSE     ? !nrd_spec_layer_has_experts(s, layer) || s->moe.beside_mlp
           : n->form == NRD_NEED_EXPERTS ? nrd_spec_layer_has_experts(s, layer)
                                         : true;
}

nrd_shard nrd_need_shard(const nrd_need *n, const nrd_model_spec *s)
{
    return n != &needs[0] || !s->parallel_embedding ? n->shard
           : s->embedding_by_columns                ? NRD_SHARD_COLS
                                                    : NRD_SHARD_VOCAB;
}

/* `s` is the rank's. */
static nrd_error *check_one(const nrd_model_spec *s, int32_t rank, const nrd_need *n, const char *name,
                            nrd_need_shape *shape, const void *weights)
{
    int64_t rows, cols, want_rows = nrd_dim_of(s, n->rows), want_cols = nrd_dim_of(s, n->cols);

    if (n == &needs[0] && s->embedding_by_columns) {
        want_cols /= s->tp_size;
    } else if (n == &needs[0] && s->parallel_embedding) {
        want_rows = nrd_dim_of(s, NRD_DIM_VOCAB_PART);
    }
    want_rows *= n->is_stacked ? nrd_spec_own_experts(s, rank) : 1;
    if (!shape(weights, name, &rows, &cols)) {
        return n->form == NRD_NEED_IF_THERE
                   ? NULL
                   : nrd_errorf(NRD_ERR_NOT_FOUND, "weight '%s' is missing; expected [%lld, %lld]",
                                name, (long long)want_rows, (long long)want_cols);
    }
    if (want_cols == 1) { /* a vector, however it lies */
        rows *= cols;
        cols = 1;
    }
    if (cols != want_cols || rows < want_rows || (rows > want_rows && !n->at_least)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "weight '%s' has shape [%lld, %lld], expected "
                          "[%lld, %lld]%s", name, (long long)rows, (long long)cols,
                          (long long)want_rows, (long long)want_cols,
                          n->at_least ? " or more rows" : "");
    }
    return NULL;
}

static nrd_error *check_layer(const nrd_model_spec *s, int32_t rank, int32_t layer, nrd_need_shape *shape,
                              const void *weights)
{
    const nrd_model_spec own = nrd_spec_of_layer(s, layer);
    char name[MAX_NAME];
    int64_t rows, cols;

    snprintf(name, sizeof name, NRD_LAYER_PREFIX "attention.qkv.weight", layer);
    bool stacked = shape(weights, name, &rows, &cols);
    snprintf(name, sizeof name, NRD_LAYER_PREFIX "attention.q.weight", layer);
    stacked = stacked || !shape(weights, name, &rows, &cols);
    for (const nrd_need *n = needs; n < needs + N_NEEDS; n++) {
        if (!n->is_layered || !nrd_when_holds(s, n->when) || !nrd_need_is_in(n, s, layer) ||
            n->form == (stacked ? NRD_NEED_SPLIT : NRD_NEED_STACKED)) {
            continue;
        }
        snprintf(name, sizeof name, NRD_LAYER_PREFIX "%s", layer, n->name);
        NRD_TRY(check_one(&own, rank, n, name, shape, weights));
    }
    return NULL;
}

/* A head that is not there is the embedding. */
static bool has_head(nrd_need_shape *shape, const void *weights)
{
    int64_t rows, cols;
    return shape(weights, "lm_head.weight", &rows, &cols);
}

bool nrd_need_is_of(const nrd_need *n, const nrd_model_spec *m, int32_t rank)
{
    if (n->is_layered || n->when == NRD_WHEN_ROPE_FACTORS) {
        return true;
    }
    const bool front = strstr(n->name, "_embedding.") || strstr(n->name, ".ln_embed.") ||
                       nrd_str_has_prefix(n->name, NRD_CLASSIFIER) || nrd_str_has_prefix(n->name, NRD_PROJECTION);
    return front ? nrd_spec_is_first(m, rank) : nrd_spec_is_last(m, rank);
}

nrd_error *nrd_needs_check(const nrd_model_spec *model, int32_t rank, nrd_need_shape *shape,
                           const void *weights)
{
    const nrd_model_spec s = nrd_spec_of_rank(model, rank);
    const bool head_is_embedding = nrd_spec_is_last(model, rank) && !has_head(shape, weights);
    for (const nrd_need *n = needs; n < needs + N_NEEDS; n++) {
        const bool is_head = head_is_embedding && n == &needs[0];
        if (!n->is_layered && nrd_when_holds(&s, n->when) && (is_head || nrd_need_is_of(n, model, rank))) {
            NRD_TRY(check_one(&s, rank, n, n->name, shape, weights));
        }
    }
    for (int32_t i = 0; i < s.n_layers; i++) {
        NRD_TRY(check_layer(&s, rank, i, shape, weights));
    }
    return NULL;
}

nrd_error *nrd_needs_kv_scales(const nrd_model_spec *s, int32_t rank, nrd_dtype kv_dtype, nrd_need_shape *shape,
                               const void *weights)
{
    const int32_t n_layers = nrd_spec_of_rank(s, rank).n_layers;
    char name[MAX_NAME];
    int64_t rows, cols;

    if (nrd_spec_is_latent(s) && (kv_dtype == NRD_DTYPE_I8 || kv_dtype == NRD_DTYPE_F8_E4M3)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "kv_cache_dtype %s is not supported with latent attention; take float16, "
                          "bfloat16 or float32", nrd_dtype_name(kv_dtype));
    }
    for (int32_t i = 0; kv_dtype == NRD_DTYPE_I8 && i < n_layers; i++) {
        if (!nrd_spec_layer_has_cache(s, nrd_spec_first_layer(s, rank) + i)) {
            continue;
        }
        snprintf(name, sizeof name, NRD_LAYER_PREFIX NRD_KV_RANGE, i);
        if (shape(weights, name, &rows, &cols)) {
            continue;
        }
        snprintf(name, sizeof name, NRD_LAYER_PREFIX NRD_KV_SCALE, i);
        if (!shape(weights, name, &rows, &cols)) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "kv_cache_dtype int8 needs a calibrated scale in "
                              "each layer, and '%s' is missing; nereid quantize --kv_cache_dtype int8 "
                              "makes one, or take float16 or bfloat16, or on a GPU fp8, which need none", name);
        }
    }
    return NULL;
}
