/* SPDX-License-Identifier: Apache-2.0
 * The tower of CogVLM and CogVLM2: layers whose norms are behind attention and MLP (EVA-02; Fang et al., 2023), then, in CogVLM2, a product of
 * 2 x 2 patches, and a gated MLP. What is between two sublayers is in x; no delta is left. */
#include "base/mem.h"
#include "engine/run/tower_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- weights ---- */

static nrd_error *load_layer(nrd_tower *t, int32_t i)
{
    static const char *const names[] = {"attention.query_key_value", "mlp.fc1", "mlp.fc2"};
    nrd_tower_layer *y = &t->layers[i];
    char stem[96];

    snprintf(stem, sizeof stem, "transformer.layers.%d.%s", i, names[0]);
    for (int k = 0; k < 3; k++) {
        NRD_TRY(nrd_tower_load_third(t, y, stem, k));
    }
    snprintf(stem, sizeof stem, "transformer.layers.%d.attention.dense", i);
    NRD_TRY(nrd_tower_load_heads(t, y, *nrd_tower_find(t, stem, "weight"), nrd_tower_find(t, stem, "bias"), 3, &y->dense));
    snprintf(stem, sizeof stem, "transformer.layers.%d.%s", i, names[1]);
    NRD_TRY(nrd_tower_load_product(t, stem, &y->up));
    snprintf(stem, sizeof stem, "transformer.layers.%d.%s", i, names[2]);
    NRD_TRY(nrd_tower_load_product(t, stem, &y->down));
    snprintf(stem, sizeof stem, "transformer.layers.%d.input_layernorm", i);
    NRD_TRY(nrd_tower_load_norm(t, stem, &y->norm1, &y->norm1_bias));
    snprintf(stem, sizeof stem, "transformer.layers.%d.post_attention_layernorm", i);
    return nrd_tower_load_norm(t, stem, &y->norm2, &y->norm2_bias);
}

nrd_error *nrd_tower_cogvlm_load(nrd_tower *t)
{
    NRD_TRY(nrd_tower_load_product(t, "embeddings.patch_embedding", &t->patch));
    for (int32_t i = 0; i < t->s.n_layers; i++) {
        NRD_TRY(load_layer(t, i));
    }
    NRD_TRY(t->s.shuffle ? nrd_tower_load_squares(t, "conv", t->s.shuffle) : NULL);
    NRD_TRY(nrd_tower_load_product(t, "linear_proj.linear_proj", &t->project1));
    NRD_TRY(nrd_tower_load_norm(t, "linear_proj.norm1", &t->post_norm, &t->post_norm_bias));
    NRD_TRY(nrd_tower_load_product(t, "linear_proj.gate_proj", &t->gate_up));
    NRD_TRY(nrd_tower_load_product(t, "linear_proj.dense_h_to_4h", &t->gate_up));
    return nrd_tower_load_product(t, "linear_proj.dense_4h_to_h", &t->project2);
}

/* ---- a picture ---- */

/* out [n, hidden] = the norm of rows. */
static nrd_error *norm(nrd_tower *t, void *rows, int32_t n, int32_t hidden, float eps, const nrd_extra_weight *weight, const nrd_extra_weight *bias,
                       void *out)
{
    const nrd_norm_args a = {.kind = NRD_NORM_LAYER, .eps = eps, .n_tokens = n, .hidden = hidden, .residual = rows, .weight = &weight->w,
                             .bias = &bias->w, .out = out, .out_dtype = t->r->act, .act_dtype = t->r->act};
    return t->r->dev->ops->norm(t->r->stream, &a);
}

/* x += the norm of delta. */
static nrd_error *add_normed(nrd_tower *t, const nrd_extra_weight *weight, const nrd_extra_weight *bias)
{
    NRD_TRY(norm(t, t->delta, t->n, t->s.hidden, t->s.norm_eps, weight, bias, t->normed));
    return nrd_extra_add(t->r, t->x, t->normed, t->n, t->s.hidden);
}

static nrd_error *run_layer(nrd_tower *t, const nrd_tower_layer *y)
{
    NRD_TRY(nrd_extra_multiply(t->r, &y->qkv.product, &t->in, t->x, t->n, t->qkv, t->r->act, 0));
    NRD_TRY(nrd_tower_attend(t, &t->view, &y->dense.product));
    NRD_TRY(nrd_tower_multiply(t, &y->dense, t->att, t->n, t->delta));
    NRD_TRY(add_normed(t, &y->norm1, &y->norm1_bias));
    NRD_TRY(nrd_extra_multiply(t->r, &y->up.product, &t->in, t->x, t->n, t->up, t->r->act, 0));
    NRD_TRY(nrd_tower_activate(t, t->s.act, false, t->n, t->s.inter, &y->down.product));
    NRD_TRY(nrd_tower_multiply(t, &y->down, t->mid, t->n, t->delta));
    return add_normed(t, &y->norm2, &y->norm2_bias);
}

/* A row that is learned, by its name. */
static nrd_error *put_learned(const nrd_tower *t, const char *name, uint8_t *row)
{
    const size_t hidden = (size_t)t->r->spec->hidden;
    nrd_error *err = NULL;
    float *numbers = NULL;

    NRD_NEW_GOTO(numbers, hidden, err, done);
    nrd_weight_row(nrd_vision_weight(t->from, name), 0, numbers);
    nrd_tower_row(t, numbers, hidden, row);
done:
    free(numbers);
    return err;
}

nrd_error *nrd_tower_cogvlm_run(nrd_tower *t, void *rows)
{
    nrd_runner *r = t->r;
    const int32_t n = nrd_vision_n_base_rows(&t->s) - 2, hidden = r->spec->hidden;
    const size_t row = (size_t)hidden * r->act_bytes;
    const void *patches = (uint8_t *)t->x + (size_t)t->s.hidden * r->act_bytes;
    const nrd_act_args gelu = {.kind = NRD_ACT_GELU_ERF, .n_tokens = n, .inter = hidden, .x = t->normed, .act_dtype = r->act, .out = t->delta,
                               .out_dtype = r->act};

    for (int32_t i = 0; i < t->s.n_layers; i++) {
        NRD_TRY(run_layer(t, &t->layers[i]));
    }
    if (t->s.shuffle) {
        NRD_TRY(nrd_extra_multiply(r, &t->merge.product, &t->in, patches, n, t->att, r->act, 0));
        patches = t->att;
    }
    NRD_TRY(nrd_extra_multiply(r, &t->project1.product, &t->in, patches, n, t->delta, r->act, 0));
    NRD_TRY(norm(t, t->delta, n, hidden, 1e-5f, &t->post_norm, &t->post_norm_bias, t->normed));
    NRD_TRY(r->dev->ops->act(r->stream, &gelu));
    NRD_TRY(nrd_extra_multiply(r, &t->gate_up.product, &t->in, t->delta, n, t->up, r->act, 0));
    NRD_TRY(nrd_tower_activate(t, NRD_ACT_SILU, true, n, t->s.projector_inter, &t->project2.product));
    NRD_TRY(nrd_tower_multiply(t, &t->project2, t->mid, n, t->delta));
    NRD_TRY(put_learned(t, "boi", rows));
    NRD_TRY(r->dev->ops->copy(r->stream, (uint8_t *)rows + row, t->delta, (size_t)n * row));
    NRD_TRY(put_learned(t, "eoi", (uint8_t *)rows + (size_t)(n + 1) * row));
    return r->dev->ops->stream_sync(r->stream);
}
