/* SPDX-License-Identifier: Apache-2.0
 * Which weights each kind of tower has, and the memory that their changed copies take. */
#include "base/mem.h"
#include "engine/run/tower_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a layer adds is multiplied by weights of its numbers: lambda_1 behind attention, lambda_2 behind the MLP. */
static nrd_error *load_scaled(nrd_tower *t, nrd_tower_layer *y, const char *stem, int32_t layer, int k, nrd_extra_product *to)
{
    nrd_error *err = NULL;
    float *by = NULL;
    char name[64];

    snprintf(name, sizeof name, "encoder.layers.%d.lambda_%d", layer, k);
    NRD_NEW_GOTO(by, t->s.hidden, err, done);
    nrd_weight_row(nrd_vision_weight(t->from, name), 0, by);
    err = nrd_tower_load_scaled(t, y, stem, by, k == 2, to);
done:
    free(by);
    return err;
}

static nrd_error *load_fixed_layer(nrd_tower *t, int32_t i)
{
    static const char *const names[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj",
                                        "mlp.fc1", "mlp.fc2"};
    nrd_tower_layer *y = &t->layers[i];
    nrd_extra_product *const to[] = {&y->qkv, &y->qkv, &y->qkv, &y->dense, &y->up, &y->down};
    const bool stacked = t->s.queries.n > 0 && !t->s.latent;
    char stem[96];

    snprintf(stem, sizeof stem, "encoder.layers.%d.layer_norm1", i);
    NRD_TRY(nrd_tower_load_norm(t, stem, &y->norm1, &y->norm1_bias));
    snprintf(stem, sizeof stem, "encoder.layers.%d.layer_norm2", i);
    NRD_TRY(nrd_tower_load_norm(t, stem, &y->norm2, &y->norm2_bias));
    for (int k = 0; k < 3 && stacked; k++) {
        snprintf(stem, sizeof stem, "encoder.layers.%d.self_attn.qkv", i);
        NRD_TRY(nrd_tower_load_third(t, y, stem, k));
    }
    for (size_t k = stacked ? 3 : 0; k < sizeof names / sizeof names[0]; k++) {
        snprintf(stem, sizeof stem, "encoder.layers.%d.%s", i, names[k]);
        if (t->s.bare_class && !stacked && (k == 3 || k == 5)) {
            NRD_TRY(load_scaled(t, y, stem, i, k == 3 ? 1 : 2, to[k]));
            continue;
        }
        NRD_TRY(k < 4 ? nrd_tower_load_heads(t, y, *nrd_tower_find(t, stem, "weight"), nrd_tower_find(t, stem, "bias"), (int)k, to[k])
                      : nrd_tower_load_product(t, stem, to[k]));
    }
    return NULL;
}

/* Gemma's norms store their weight less 1. The decoder scales all its embeddings, and shall not scale a picture's rows. */
static nrd_error *load_pool_norm(nrd_tower *t)
{
    const nrd_weight *from = nrd_vision_weight(t->from, "projector.mm_soft_emb_norm.weight");
    const float scale = t->r->spec->embed_scale > 0 ? t->r->spec->embed_scale : 1;
    nrd_error *err = NULL;

    NRD_NEW_GOTO(t->pool_weight, t->s.hidden, err, fail);
    nrd_weight_row(from, 0, t->pool_weight);
    for (int32_t i = 0; i < t->s.hidden; i++) {
        t->pool_weight[i] = (1 + t->pool_weight[i]) / scale;
    }
    nrd_weight w = *from;
    w.dtype = NRD_DTYPE_F32;
    w.data = t->pool_weight;
    w.data_bytes = (size_t)t->s.hidden * sizeof *t->pool_weight;
    err = nrd_extra_weight_load(t->r, &w, NRD_TOWER_POOL, &t->pool_norm);
    t->bytes += t->pool_norm.bytes;
fail:
    return err;
}

/* A vector, divided by what the decoder multiplies its embeddings by; *keep owns it. */
static nrd_error *shrink(const nrd_tower *t, const nrd_weight *from, float **keep, nrd_weight *out)
{
    const float scale = t->r->spec->embed_scale > 0 ? t->r->spec->embed_scale : 1;
    nrd_error *err = NULL;

    NRD_NEW_GOTO(*keep, from->cols, err, fail);
    nrd_weight_row(from, 0, *keep);
    for (int64_t i = 0; i < from->cols; i++) {
        (*keep)[i] /= scale;
    }
    *out = *from;
    out->dtype = NRD_DTYPE_F32;
    out->data = *keep;
    out->data_bytes = (size_t)from->cols * sizeof **keep;
fail:
    return err;
}

/* A norm and one product with a bias (PaliGemma); the decoder shall not scale what comes of them. */
static nrd_error *load_shrunk(nrd_tower *t)
{
    nrd_weight weight, bias, of_product;

    NRD_TRY(shrink(t, nrd_tower_find(t, "post_layernorm", "weight"), &t->shrunk[0], &weight));
    NRD_TRY(shrink(t, nrd_tower_find(t, "post_layernorm", "bias"), &t->shrunk[1], &bias));
    NRD_TRY(shrink(t, nrd_tower_find(t, "projector.linear", "bias"), &t->shrunk[2], &of_product));
    NRD_TRY(nrd_extra_weight_load(t->r, &weight, NRD_TOWER_POOL, &t->post_norm));
    NRD_TRY(nrd_extra_weight_load(t->r, &bias, NRD_TOWER_POOL, &t->post_norm_bias));
    NRD_TRY(nrd_extra_product_add(t->r, nrd_tower_find(t, "projector.linear", "weight"), &of_product, NRD_TOWER_POOL, &t->project1));
    t->bytes += t->post_norm.bytes + t->post_norm_bias.bytes + t->project1.weight[0].bytes + t->project1.bias[0].bytes;
    return NULL;
}

/* Stored as it is multiplied from the right: rows become columns. */
static nrd_error *load_projection(nrd_tower *t)
{
    const nrd_weight *from = nrd_vision_weight(t->from, "projector.mm_input_projection_weight");
    const size_t rows = (size_t)from->rows, cols = (size_t)from->cols, bytes = from->data_bytes / (rows * cols);
    const uint8_t *data = from->data;
    nrd_error *err = NULL;

    NRD_NEW_GOTO(t->projection, from->data_bytes, err, fail);
    for (size_t i = 0; i < rows * cols; i++) {
        memcpy(t->projection + (i % cols * rows + i / cols) * bytes, data + i * bytes, bytes);
    }
    nrd_weight w = *from;
    w.rows = from->cols;
    w.cols = from->rows;
    w.data = t->projection;
    err = nrd_extra_product_add(t->r, &w, NULL, NRD_TOWER_POOL, &t->project1);
    t->bytes += t->project1.weight[0].bytes;
fail:
    return err;
}

static nrd_error *load_grid_layer(nrd_tower *t, int32_t i)
{
    nrd_tower_layer *y = &t->layers[i];
    char stem[96];

    snprintf(stem, sizeof stem, "blocks.%d.norm1", i);
    NRD_TRY(nrd_tower_load_norm(t, stem, &y->norm1, &y->norm1_bias));
    snprintf(stem, sizeof stem, "blocks.%d.norm2", i);
    NRD_TRY(nrd_tower_load_norm(t, stem, &y->norm2, &y->norm2_bias));
    for (int k = 0; k < 3; k++) {
        nrd_weight bias;
        snprintf(stem, sizeof stem, "blocks.%d.attn.%s", i, t->s.apart ? (const char *const[]){"q", "k", "v"}[k] : "qkv");
        const nrd_weight *w = nrd_tower_find(t, stem, "weight"), *b = nrd_tower_find(t, stem, "bias");
        bias = b ? nrd_tower_third(b, t->s.hidden, t->s.apart ? -1 : k) : (nrd_weight){0};
        NRD_TRY(nrd_tower_load_heads(t, y, nrd_tower_third(w, t->s.hidden, t->s.apart ? -1 : k), b ? &bias : NULL, k, &y->qkv));
    }
    snprintf(stem, sizeof stem, "blocks.%d.attn.proj", i);
    NRD_TRY(nrd_tower_load_heads(t, y, *nrd_tower_find(t, stem, "weight"), nrd_tower_find(t, stem, "bias"), 3, &y->dense));
    if (t->s.gated) {
        snprintf(stem, sizeof stem, "blocks.%d.mlp.gate_proj", i);
        NRD_TRY(nrd_tower_load_product(t, stem, &y->up));
    }
    snprintf(stem, sizeof stem, "blocks.%d.mlp.%s", i, t->s.gated ? "up_proj" : "fc1");
    NRD_TRY(nrd_tower_load_product(t, stem, &y->up));
    snprintf(stem, sizeof stem, "blocks.%d.mlp.%s", i, t->s.gated ? "down_proj" : "fc2");
    return nrd_tower_load_product(t, stem, &y->down);
}

static nrd_error *load_plain_end(nrd_tower *t)
{
    if (t->s.merge > 1) {
        NRD_TRY(nrd_tower_load_norm(t, "projector.norm", &t->post_norm, &t->post_norm_bias));
        NRD_TRY(nrd_tower_load_squares(t, "projector.patch_merger.merging_layer", t->s.merge));
    }
    NRD_TRY(nrd_tower_load_product(t, "projector.linear_1", &t->project1));
    return nrd_tower_load_product(t, "projector.linear_2", &t->project2);
}

static nrd_error *load_deep(nrd_tower *t, int32_t i)
{
    nrd_tower_merger *m = &t->deep[i];
    char stem[96];

    snprintf(stem, sizeof stem, "deepstack.%d.ln_q", i);
    NRD_TRY(nrd_tower_load_norm(t, stem, &m->norm, &m->norm_bias));
    snprintf(stem, sizeof stem, "deepstack.%d.mlp.0", i);
    NRD_TRY(nrd_tower_load_product(t, stem, &m->product1));
    snprintf(stem, sizeof stem, "deepstack.%d.mlp.2", i);
    return nrd_tower_load_product(t, stem, &m->product2);
}

static nrd_error *load_grid(nrd_tower *t)
{
    nrd_error *err = NULL;

    NRD_TRY(nrd_tower_load_product(t, "patch_embed.proj", &t->patch));
    for (int32_t i = 0; i < t->s.n_layers; i++) {
        NRD_TRY(load_grid_layer(t, i));
    }
    if (t->s.plain) {
        NRD_TRY(nrd_tower_load_norm(t, "pre_norm", &t->pre_norm, &t->pre_norm_bias));
        return load_plain_end(t);
    }
    if (t->s.n_deep > 0) {
        NRD_NEW_GOTO(t->deep, t->s.n_deep, err, fail);
    }
    for (int32_t i = 0; i < t->s.n_deep; i++) {
        NRD_TRY(load_deep(t, i));
    }
    NRD_TRY(nrd_tower_load_norm(t, "merger.ln_q", &t->post_norm, &t->post_norm_bias));
    NRD_TRY(nrd_tower_load_product(t, "merger.mlp.0", &t->project1));
    err = nrd_tower_load_product(t, "merger.mlp.2", &t->project2);
fail:
    return err;
}

static nrd_error *load_fixed(nrd_tower *t)
{
    NRD_TRY(nrd_tower_load_product(t, "embeddings.patch_embedding", &t->patch));
    NRD_TRY(nrd_tower_has_pre_norm(t) ? nrd_tower_load_norm(t, "pre_layrnorm", &t->pre_norm, &t->pre_norm_bias) : NULL);
    for (int32_t i = 0; i < t->s.n_layers; i++) {
        NRD_TRY(load_fixed_layer(t, i));
    }
    if (t->s.latent) {
        return nrd_tower_latent_load(t);
    }
    if (t->s.resampled) {
        return nrd_tower_resampler_load(t);
    }
    if (t->s.queries.n) {
        return nrd_tower_queries_load(t);
    }
    if (t->s.pool) {
        NRD_TRY(nrd_tower_load_norm(t, "post_layernorm", &t->post_norm, &t->post_norm_bias));
        NRD_TRY(load_pool_norm(t));
        return load_projection(t);
    }
    if (t->s.one_product && t->s.projector_bias) {
        return load_shrunk(t);
    }
    if (t->s.one_product) {
        NRD_TRY(nrd_tower_load_norm(t, "post_layernorm", &t->post_norm, &t->post_norm_bias));
        return nrd_tower_load_product(t, "projector.modality_projection.proj", &t->project1);
    }
    NRD_TRY(t->s.shuffle && !t->s.separated ? nrd_tower_load_norm(t, "projector.layer_norm", &t->post_norm, &t->post_norm_bias) : NULL);
    NRD_TRY(nrd_tower_load_product(t, "projector.linear_1", &t->project1));
    return nrd_tower_load_product(t, "projector.linear_2", &t->project2);
}

nrd_error *nrd_tower_load(nrd_tower *t)
{
    nrd_error *err = NULL;

    if (t->s.bare || t->s.swin.n_stages) {
        return t->s.bare ? nrd_tower_bare_load(t) : nrd_tower_swin_load(t);
    }
    NRD_NEW_GOTO(t->layers, nrd_tower_n_layers(t), err, fail);
    return t->s.post_normed ? nrd_tower_cogvlm_load(t) : t->s.read_by_layers ? nrd_tower_mllama_load(t) : t->s.sandwiched ? nrd_tower_gemma4_load(t) : t->s.any_size ? load_grid(t) : load_fixed(t);
fail:
    return err;
}

static void unload_layer(nrd_tower *t, nrd_tower_layer *y)
{
    nrd_extra_weight *const norms[] = {&y->norm1, &y->norm1_bias, &y->norm2, &y->norm2_bias, &y->behind1, &y->behind2, &y->q_norm, &y->k_norm};
    nrd_extra_product *const products[] = {&y->qkv, &y->dense, &y->up, &y->down};
    for (size_t k = 0; k < sizeof norms / sizeof norms[0]; k++) {
        nrd_extra_weight_unload(t->r, norms[k]);
    }
    for (int k = 0; k < 4; k++) {
        nrd_extra_product_unload(t->r, products[k]);
        free(y->sorted[k]);
    }
    for (int k = 0; k < NRD_TOWER_N_PARTS; k++) {
        nrd_extra_product_unload(t->r, &y->parts[k]);
    }
    for (int k = 0; k < NRD_TOWER_PADDED; k++) {
        free(y->padded[k]);
    }
    for (int k = 0; k < 4; k++) {
        free(y->scaled[k]);
    }
    for (int k = 0; k < 6; k++) {
        free(y->gathered[k]);
    }
}

void nrd_tower_unload(nrd_tower *t)
{
    nrd_extra_weight *const norms[] = {&t->pre_norm, &t->pre_norm_bias, &t->post_norm, &t->post_norm_bias, &t->pool_norm};

    for (int32_t i = 0; t->layers && i < nrd_tower_n_layers(t); i++) {
        unload_layer(t, &t->layers[i]);
    }
    for (int32_t i = 0; t->deep && i < t->s.n_deep; i++) {
        nrd_extra_weight_unload(t->r, &t->deep[i].norm);
        nrd_extra_weight_unload(t->r, &t->deep[i].norm_bias);
        nrd_extra_product_unload(t->r, &t->deep[i].product1);
        nrd_extra_product_unload(t->r, &t->deep[i].product2);
    }
    nrd_extra_product_unload(t->r, &t->patch);
    nrd_extra_product_unload(t->r, &t->merge);
    nrd_extra_product_unload(t->r, &t->project1);
    nrd_extra_product_unload(t->r, &t->project2);
    nrd_extra_product_unload(t->r, &t->gate_up);
    for (size_t i = 0; i < sizeof norms / sizeof norms[0]; i++) {
        nrd_extra_weight_unload(t->r, norms[i]);
    }
    for (int32_t k = 0; k < NRD_VISION_MAX_DEEP + 1; k++) {
        free(t->parts[k]);
    }
    for (int32_t k = 0; k < t->s.n_taken; k++) {
        nrd_extra_product_unload(t->r, &t->project_taken[k]);
    }
    free(t->layers);
    free(t->deep);
    free(t->pool_weight);
    for (int k = 0; k < 3; k++) {
        free(t->shrunk[k]);
    }
    free(t->projection);
}
