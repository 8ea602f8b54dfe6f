/* SPDX-License-Identifier: Apache-2.0
 * The table of weights that the runner needs, and the checks against it: names and shapes for each
 * layer, scales of an 8-bit KV cache, the number of ranks. The build calls it with its plan, the
 * runner with the opened engine; each gives a function that finds a weight's shape. */
#include "model/needs.h"

#include <stdio.h>
#include <string.h>

enum { MAX_NAME = 128 };

#define NORM(name, when) {name, true, false, false, NRD_DIM_HIDDEN, NRD_DIM_ONE, when, NRD_NEED_ALWAYS}
#define LINEAR(stem, rows, cols, when, bias_when, form)                                            \
    {stem ".weight", true, true, false, rows, cols, when, form},                                   \
    {                                                                                              \
        stem ".bias", true, false, false, rows, NRD_DIM_ONE, bias_when, form                       \
    }

static const nrd_need needs[] = {
    {"transformer.vocab_embedding.weight", false, false, true, NRD_DIM_VOCAB, NRD_DIM_HIDDEN,
     NRD_WHEN_ALWAYS, NRD_NEED_ALWAYS},
    {"transformer.position_embedding.weight", false, false, false, NRD_DIM_POSITIONS,
     NRD_DIM_HIDDEN, NRD_WHEN_POSITIONS, NRD_NEED_ALWAYS},
    NORM("input_layernorm.weight", NRD_WHEN_ALWAYS),
    NORM("input_layernorm.bias", NRD_WHEN_LAYER_NORM),
    LINEAR("attention.qkv", NRD_DIM_QKV, NRD_DIM_HIDDEN, NRD_WHEN_ALWAYS, NRD_WHEN_QKV_BIAS,
           NRD_NEED_STACKED),
    LINEAR("attention.q", NRD_DIM_Q, NRD_DIM_HIDDEN, NRD_WHEN_ALWAYS, NRD_WHEN_QKV_BIAS,
           NRD_NEED_SPLIT),
    LINEAR("attention.k", NRD_DIM_KV, NRD_DIM_HIDDEN, NRD_WHEN_ALWAYS, NRD_WHEN_QKV_BIAS,
           NRD_NEED_SPLIT),
    LINEAR("attention.v", NRD_DIM_KV, NRD_DIM_HIDDEN, NRD_WHEN_ALWAYS, NRD_WHEN_QKV_BIAS,
           NRD_NEED_SPLIT),
    {"attention.q_layernorm.weight", true, false, false, NRD_DIM_HEAD, NRD_DIM_ONE,
     NRD_WHEN_QK_NORM, NRD_NEED_ALWAYS},
    {"attention.k_layernorm.weight", true, false, false, NRD_DIM_HEAD, NRD_DIM_ONE,
     NRD_WHEN_QK_NORM, NRD_NEED_ALWAYS},
    LINEAR("attention.dense", NRD_DIM_HIDDEN, NRD_DIM_Q, NRD_WHEN_ALWAYS, NRD_WHEN_DENSE_BIAS,
           NRD_NEED_ALWAYS),
    {NRD_KV_SCALE, true, false, false, NRD_DIM_ONE, NRD_DIM_ONE, NRD_WHEN_ALWAYS, NRD_NEED_IF_THERE},
    NORM("post_attention_layernorm.weight", NRD_WHEN_POST_NORMS),
    NORM("post_layernorm.weight", NRD_WHEN_ALWAYS),
    NORM("post_layernorm.bias", NRD_WHEN_LAYER_NORM),
    LINEAR("mlp.fc", NRD_DIM_INTER, NRD_DIM_HIDDEN, NRD_WHEN_ALWAYS, NRD_WHEN_MLP_BIAS,
           NRD_NEED_ALWAYS),
    LINEAR("mlp.gate", NRD_DIM_INTER, NRD_DIM_HIDDEN, NRD_WHEN_GATED, NRD_WHEN_GATE_BIAS,
           NRD_NEED_ALWAYS),
    LINEAR("mlp.proj", NRD_DIM_HIDDEN, NRD_DIM_INTER, NRD_WHEN_ALWAYS, NRD_WHEN_MLP_BIAS,
           NRD_NEED_ALWAYS),
    NORM("post_feedforward_layernorm.weight", NRD_WHEN_POST_NORMS),
    {"transformer.ln_f.weight", false, false, false, NRD_DIM_HIDDEN, NRD_DIM_ONE, NRD_WHEN_ALWAYS,
     NRD_NEED_ALWAYS},
    {"transformer.ln_f.bias", false, false, false, NRD_DIM_HIDDEN, NRD_DIM_ONE,
     NRD_WHEN_LAYER_NORM, NRD_NEED_ALWAYS},
    /* without one the embedding is the head */
    {"lm_head.weight", false, true, true, NRD_DIM_VOCAB_PART, NRD_DIM_HIDDEN, NRD_WHEN_ALWAYS,
     NRD_NEED_IF_THERE},
    {"lm_head.bias", false, false, true, NRD_DIM_VOCAB_PART, NRD_DIM_ONE, NRD_WHEN_LM_HEAD_BIAS,
     NRD_NEED_ALWAYS},
    {"rope_factors", false, false, true, NRD_DIM_ROPE_HALF, NRD_DIM_ONE, NRD_WHEN_ROPE_FACTORS,
     NRD_NEED_ALWAYS},
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

static nrd_error *check_one(const nrd_model_spec *s, const nrd_need *n, const char *name,
                            nrd_need_shape *shape, const void *weights)
{
    int64_t rows, cols, want_rows = nrd_dim_of(s, n->rows), want_cols = nrd_dim_of(s, n->cols);

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

static nrd_error *check_layer(const nrd_model_spec *s, int32_t layer, nrd_need_shape *shape,
                              const void *weights)
{
    char name[MAX_NAME];
    int64_t rows, cols;

    snprintf(name, sizeof name, NRD_LAYER_PREFIX "attention.qkv.weight", layer);
    bool stacked = shape(weights, name, &rows, &cols);
    snprintf(name, sizeof name, NRD_LAYER_PREFIX "attention.q.weight", layer);
    stacked = stacked || !shape(weights, name, &rows, &cols);
    for (const nrd_need *n = needs; n < needs + N_NEEDS; n++) {
        if (!n->is_layered || !nrd_when_holds(s, n->when) ||
            n->form == (stacked ? NRD_NEED_SPLIT : NRD_NEED_STACKED)) {
            continue;
        }
        snprintf(name, sizeof name, NRD_LAYER_PREFIX "%s", layer, n->name);
        NRD_TRY(check_one(s, n, name, shape, weights));
    }
    return NULL;
}

nrd_error *nrd_needs_check(const nrd_model_spec *model, nrd_need_shape *shape, const void *weights)
{
    NRD_TRY(nrd_needs_stages(model->pp_size));
    const nrd_model_spec s = nrd_spec_of_rank(model);
    for (const nrd_need *n = needs; n < needs + N_NEEDS; n++) {
        if (!n->is_layered && nrd_when_holds(&s, n->when)) {
            NRD_TRY(check_one(&s, n, n->name, shape, weights));
        }
    }
    for (int32_t i = 0; i < s.n_layers; i++) {
        NRD_TRY(check_layer(&s, i, shape, weights));
    }
    return NULL;
}

nrd_error *nrd_needs_kv_scales(const nrd_model_spec *s, nrd_dtype kv_dtype, nrd_need_shape *shape,
                               const void *weights)
{
    char name[MAX_NAME];
    int64_t rows, cols;

    for (int32_t i = 0; kv_dtype == NRD_DTYPE_I8 && i < s->n_layers; i++) {
        snprintf(name, sizeof name, NRD_LAYER_PREFIX NRD_KV_SCALE, i);
        if (!shape(weights, name, &rows, &cols)) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "kv_cache_dtype int8 needs a calibrated scale in "
                              "each layer, and '%s' is missing; take float16 or bfloat16, or on a "
                              "GPU fp8, which need none", name);
        }
    }
    return NULL;
}

nrd_error *nrd_needs_stages(int32_t pp_size)
{
    return pp_size <= 1 ? NULL
                        : nrd_errorf(NRD_ERR_UNSUPPORTED, "pp_size %d: an engine of several pipeline stages "
                                     "cannot be run; tp_size divides a model over ranks", pp_size);
}
