/* SPDX-License-Identifier: Apache-2.0
 * model/families/recurrent.h - what families with a state share.
 *
 * Purpose   Short forms of weight rules of Mamba-2's layers, and the reading of their GGUF keys.
 * Owner     Constant data and pure functions, any thread.
 */
#ifndef NRD_MODEL_FAMILIES_RECURRENT_H
#define NRD_MODEL_FAMILIES_RECURRENT_H

#include "model/families/family.h"
#include "model/needs.h"

#define BLOCK "blk.*."

#define MAMBA2(at)                                                                                 \
    RULE(NRD_RECURRENT "in", at "in_proj", 0), RULE(NRD_RECURRENT "conv", at "conv1d", 0),         \
        {NRD_RECURRENT "A", {at "A_log"}, NRD_RULE_NEGATIVE_EXP},                                  \
        {NRD_RECURRENT "D", {at "D"}, 0}, {NRD_RECURRENT "dt_bias", {at "dt_bias"}, 0},            \
        RULE_WEIGHT(NRD_RECURRENT "norm", at "norm"), RULE(NRD_RECURRENT "out", at "out_proj", 0)

#define GGUF_MAMBA2                                                                                \
    RULE(NRD_RECURRENT "in", BLOCK "ssm_in", 0), RULE(NRD_RECURRENT "conv", BLOCK "ssm_conv1d", 0), \
        {NRD_RECURRENT "A", {BLOCK "ssm_a"}, 0}, {NRD_RECURRENT "D", {BLOCK "ssm_d"}, 0},          \
        {NRD_RECURRENT "dt_bias", {BLOCK "ssm_dt.bias"}, 0},                                       \
        RULE_WEIGHT(NRD_RECURRENT "norm", BLOCK "ssm_norm"), RULE(NRD_RECURRENT "out", BLOCK "ssm_out", 0)

/* Mamba's, whose parts other families call otherwise; its norms and A are apart. */
#define MAMBA(at, in, conv, x, dt, a, d, out)                                                      \
    RULE(NRD_RECURRENT "in", at in, 0), RULE(NRD_RECURRENT "conv", at conv, 0),                    \
        {NRD_RECURRENT "x_dt.weight", {at x ".weight"}, NRD_RULE_DT_ROWS},                         \
        {NRD_RECURRENT "x_bc.weight", {at x ".weight"}, NRD_RULE_BC_ROWS},                         \
        RULE_WEIGHT(NRD_RECURRENT "dt", at dt), {NRD_RECURRENT "dt_bias", {at dt ".bias"}, 0},     \
        {NRD_RECURRENT "D", {at d}, 0}, RULE(NRD_RECURRENT "out", at out, 0)

/* layer_types[i] is `name`, or what transformers 5 calls all such, where a layer has a state; or one of attention. */
nrd_error *nrd_hf_state_layers(nrd_model_spec *spec, const nrd_json *types, const char *name) NRD_MUST_USE;
/* Sizes of Mamba-2 under the keys of Bamba, Granite 4.0 and Falcon-H1. */
nrd_error *nrd_hf_mamba2(nrd_model_spec *spec, const nrd_json *config) NRD_MUST_USE;
/* `arch`: general.architecture, before the keys. Layers without the convolution's tensor have no state. */
void nrd_gguf_mamba2(nrd_model_spec *spec, const nrd_gguf *file, const char *arch);
/* A layer has a state where it has this tensor. */
void nrd_gguf_recurrent_layers(nrd_model_spec *spec, const nrd_gguf *file, const char *tensor);

#endif
