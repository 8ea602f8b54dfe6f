/* SPDX-License-Identifier: Apache-2.0
 * model/needs.h - which weights the runner asks of an engine, with their shapes.
 *
 * Purpose   One table for both sides: the build checks its plan against it before anything is
 *           written, so that no engine is made which cannot be opened; the runner asks for no weight
 *           that is not a row here.
 * Owner     Constant data and pure functions, any thread.
 * Errors    NOT_FOUND: a weight is missing. INVALID_ARG: another shape. UNSUPPORTED: ranks.
 */
#ifndef NRD_MODEL_NEEDS_H
#define NRD_MODEL_NEEDS_H

#include "base/error.h"
#include "model/arch.h"
#include "model/spec.h"

#include <stdbool.h>
#include <stdint.h>

#define NRD_LAYER_PREFIX "transformer.layers.%d."

typedef enum {
    NRD_NEED_ALWAYS,
    NRD_NEED_STACKED, /* q, k, v in one tensor: where attention.qkv.weight is there */
    NRD_NEED_SPLIT,   /* q, k, v apart: where attention.q.weight is there instead */
    NRD_NEED_IF_THERE,
    NRD_NEED_DENSE,   /* in layers that have an MLP */
    NRD_NEED_EXPERTS, /* in layers that have experts instead */
} nrd_need_form;

/* One number a layer: a value of an 8-bit cache times this is the key's or value's number. */
#define NRD_KV_SCALE "attention.kv_cache_scaling_factor"
/* In its place, how far the keys of each of the rank's heads go, and then their values. The largest code of the cache's type stands for it, so
 * that one calibration serves both types of 8 bits. */
#define NRD_KV_RANGE "attention.kv_cache_range"

/* Of layers with experts, behind "mlp.": float32, whatever the rest is. */
#define NRD_SCORE_BIAS "router.e_score_correction_bias"
#define NRD_SUM_BIAS "experts_bias"

/* The queries of a layer without keys and values of its own. */
#define NRD_QUERY "attention.query.weight"
/* What the state behind a layer is multiplied by. */
#define NRD_LAYER_SCALE "layer_scale"
/* Of experts beside an MLP: what the router's input is multiplied by, behind its norm; each expert's factor. */
#define NRD_ROUTER_NORM "mlp.router_norm.weight"
#define NRD_EXPERT_SCALE "mlp.expert_scale"
/* A number for each head in the softmax's denominator; float32, whatever the rest is. */
#define NRD_SINKS "attention.sinks"
/* Beside a weight of these stems, where its columns are in another order than its input's: float32 numbers of columns, which are
 * exact below 2^24; the product reads column k of its input as that of its k-th number. Parts of a product share one. */
#define NRD_ORDER ".order"
#define NRD_ORDER_QKV "attention.qkv" NRD_ORDER
#define NRD_ORDER_DENSE "attention.dense" NRD_ORDER
#define NRD_ORDER_UP "mlp.fc" NRD_ORDER
#define NRD_ORDER_DOWN "mlp.proj" NRD_ORDER
/* Likewise: float32 numbers by which columns of the input are multiplied before the product. A rank that has some columns of the
 * weight has the numbers of these. */
#define NRD_COLUMNS ".prequant_scaling_factor"
#define NRD_COLUMNS_QKV "attention.qkv" NRD_COLUMNS
#define NRD_COLUMNS_DENSE "attention.dense" NRD_COLUMNS
#define NRD_COLUMNS_UP "mlp.fc" NRD_COLUMNS
#define NRD_COLUMNS_DOWN "mlp.proj" NRD_COLUMNS
/* Likewise, one number that is not 0: the int8 weights of the product were made for its input in int8. Where quant_algo is
 * NRD_ALGO_W8A8 all were, and this is not there. */
#define NRD_INT8_INPUT ".int8_input"
#define NRD_INT8_INPUT_QKV "attention.qkv" NRD_INT8_INPUT
#define NRD_INT8_INPUT_DENSE "attention.dense" NRD_INT8_INPUT
#define NRD_INT8_INPUT_UP "mlp.fc" NRD_INT8_INPUT
#define NRD_INT8_INPUT_DOWN "mlp.proj" NRD_INT8_INPUT
/* Two numbers of the activation xIELU, before their softplus. */
#define NRD_XIELU_P "mlp.act_fn.alpha_p"
#define NRD_XIELU_N "mlp.act_fn.alpha_n"

/* Of layers with a state instead of attention. All but the products are float32, whatever the rest is. */
#define NRD_RECURRENT "recurrent."
#define NRD_ATTENTION "attention."
/* Of a layer that reads pictures, by the name of the one behind it (nrd_model_spec.layer_is_behind_gap). */
#define NRD_PICTURE "picture."
/* Of a layer, for a picture's embeddings (nrd_model_spec.picture_rows). */
#define NRD_OF_PICTURE "of_picture."

/* Of the head for labels, which the first rank computes on the host; never quantized. */
#define NRD_CLASSIFIER "classifier."
#define NRD_PROJECTION "projection."

typedef struct nrd_need {
    const char *name; /* of a layer: what follows NRD_LAYER_PREFIX */
    bool is_layered;
    bool is_linear;   /* used by linear() */
    bool at_least;    /* more rows than these are fine: padding */
    bool is_stacked;  /* as many times these rows as the rank has experts */
    nrd_dim rows, cols;
    nrd_shard shard;
    nrd_when when;    /* of models for which this does not hold it is not asked for */
    nrd_need_form form;
} nrd_need;

/* The row of a name as in the table; NULL: not needed. */
const nrd_need *nrd_need_of(const char *name);
/* The same by the full name of a weight of a checkpoint. */
const nrd_need *nrd_need_of_full(const char *name);
/* Whether a layer of `spec` has this weight of layers, as far as that depends on the layer. */
/* How ranks divide it. */
nrd_shard nrd_need_shard(const nrd_need *need, const nrd_model_spec *spec);
bool nrd_need_is_in(const nrd_need *need, const nrd_model_spec *spec, int32_t layer);

/* The shape of a weight by its full name; false: there is none. */
typedef bool nrd_need_shape(const void *weights, const char *name, int64_t *rows, int64_t *cols);

/* Whether a rank's pipeline stage has this weight: the embedding is the first one's, final norm and head are the
 * last one's; a head for labels, which needs little time, is the first one's. Without a head of its own the last stage has the embedding for it. */
bool nrd_need_is_of(const nrd_need *need, const nrd_model_spec *spec, int32_t rank);

/* Whether `weights` has all that the runner of this rank of `spec` asks for. */
nrd_error *nrd_needs_check(const nrd_model_spec *spec, int32_t rank, nrd_need_shape *shape,
                           const void *weights) NRD_MUST_USE;

/* UNSUPPORTED where latent rows would be kept in 8 bits, and where the cache would be int8 and a layer has neither NRD_KV_RANGE nor
 * NRD_KV_SCALE: with a wrong scale the answers are nonsense. `kv_dtype` NONE: the device's choice, which is never int8. */
nrd_error *nrd_needs_kv_scales(const nrd_model_spec *spec, int32_t rank, nrd_dtype kv_dtype,
                               nrd_need_shape *shape, const void *weights) NRD_MUST_USE;

#endif
