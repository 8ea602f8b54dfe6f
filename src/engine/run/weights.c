/* SPDX-License-Identifier: Apache-2.0
 * Loads an engine's weights in the order of the network, by the names of the table of needs
 * (model/needs.h); what is there and its shapes are checked before the first is loaded. With
 * float32 arithmetic, weights are dequantized on the host first, and the copies live as long as
 * the weights. */
#include "engine/run/weights.h"

#include "base/dtype.h"
#include "base/mem.h"
#include "engine/run/loader.h"
#include "model/needs.h"

#include <stdio.h>
#include <stdlib.h>

enum { LAYER_WEIGHTS = 48 /* at most */ };

/* What layers have inputs of their own from. */
static nrd_error *load_layer_inputs(nrd_loader *l)
{
    nrd_weights *ws = l->ws;

    if (!nrd_spec_has_layer_inputs(l->spec)) {
        return NULL;
    }
    NRD_TRY(nrd_loader_get(l, 0, "transformer.per_layer_embedding.weight", &ws->per_layer_embed));
    NRD_TRY(nrd_loader_product(l, &ws->per_layer_proj, 0, "transformer.per_layer.projection.weight"));
    return nrd_loader_get(l, 0, "transformer.per_layer.norm.weight", &ws->per_layer_norm);
}

/* What stands before the first layer and behind the last where tokens have several states. */
static nrd_error *load_altup(nrd_loader *l)
{
    nrd_weights *ws = l->ws;
    char name[NRD_LOADER_NAME];

    if (!nrd_spec_has_altup(l->spec)) {
        return NULL;
    }
    for (int k = 0; k < NRD_SPEC_ALTUP_STATES - 1; k++) {
        snprintf(name, sizeof name, "transformer.altup.in_%d.weight", k + 1);
        NRD_TRY(nrd_loader_product(l, &ws->altup_in[k], 0, name));
        snprintf(name, sizeof name, "transformer.altup.out_%d.weight", k + 1);
        NRD_TRY(nrd_loader_product(l, &ws->altup_out[k], 0, name));
    }
    return NULL;
}

static void take_plain_input(nrd_loader *l, nrd_product *p)
{
    p->in_dtype = l->ws->act_dtype;
    p->in_row_bytes = (size_t)p->cols * nrd_dtype_block_bytes(l->ws->act_dtype);
    p->in_row_scale = false;
    l->ws->max_in_row_bytes = p->in_row_bytes > l->ws->max_in_row_bytes ? p->in_row_bytes : l->ws->max_in_row_bytes;
}

/* An encoder's states are written once for all layers, in a form that suits them all. */
static void share_states(nrd_loader *l)
{
    nrd_product *first = &l->ws->layers[0].cross_kv;
    bool alike = true;

    for (int32_t i = 1; l->spec->cross_attention && i < l->n_layers; i++) {
        alike = alike && l->ws->layers[i].cross_kv.in_dtype == first->in_dtype;
    }
    for (int32_t i = 0; !alike && i < l->n_layers; i++) {
        take_plain_input(l, &l->ws->layers[i].cross_kv);
    }
}

/* Which layers are streamed, by the engine file's bytes. */
static nrd_error *choose_streamed(const nrd_loader *l, double share, bool *streamed)
{
    uint64_t *bytes = NULL, total = 0;
    nrd_error *err = NULL;

    NRD_NEW_GOTO(bytes, l->n_layers, err, done);
    for (size_t i = 0; i < nrd_engine_n_weights(l->engine); i++) {
        const char *name;
        int layer = -1;
        const uint64_t n = nrd_engine_weight_at(l->engine, i, &name)->data_bytes;
        total += n;
        if (sscanf(name, NRD_LAYER_PREFIX, &layer) == 1 && layer >= 0 && layer < l->n_layers) {
            bytes[layer] += n;
        }
    }
    if (nrd_weight_stream_choose(bytes, l->n_layers, total, share, streamed) > 0) {
        err = nrd_weight_stream_new(&l->ws->streamed, l->ws->dev, l->n_layers);
    }
done:
    free(bytes);
    return err;
}

/* The matrices among those that were loaded from number `first` on. The states of an encoder or a picture are multiplied before the
 * layers run: those matrices stay. */
static nrd_error *stream_layer(nrd_loader *l, int32_t i, size_t first)
{
    const nrd_layer *y = &l->ws->layers[i];
    const nrd_product *stays = y->picture.kv.n > 0 ? &y->picture.kv : &y->cross_kv; /* no layer has both */
    nrd_weight *w[LAYER_WEIGHTS];
    int32_t n = 0;

    for (size_t k = first; k < l->ws->n_loaded; k++) {
        nrd_loaded *x = &l->ws->loaded[k];
        if (x->owned && x->w.cols > 1 && &x->w != stays->w[0] && &x->w != stays->w[1]) {
            w[n++] = &x->w;
        }
    }
    return nrd_weight_stream_take(l->ws->streamed, l->stream, i, w, n);
}

static nrd_error *load_layers(nrd_loader *l, double streamed_share)
{
    bool *streamed = NULL;
    nrd_error *err = NULL;

    NRD_NEW_GOTO(streamed, l->n_layers, err, done);
    if (streamed_share > 0) {
        NRD_TRY_GOTO(choose_streamed(l, streamed_share, streamed), err, done);
    }
    for (int32_t i = 0; i < l->n_layers; i++) {
        const size_t first = l->ws->n_loaded;
        NRD_TRY_GOTO(nrd_loader_layer(l, i, &l->ws->layers[i]), err, done);
        NRD_ASSERT(l->ws->n_loaded - first <= LAYER_WEIGHTS, "the bound covers each layer, not their sum alone");
        NRD_TRY_GOTO(streamed[i] ? stream_layer(l, i, first) : NULL, err, done);
    }
    err = l->ws->streamed ? nrd_weight_stream_finish(l->ws->streamed, l->stream) : NULL;
done:
    free(streamed);
    return err;
}

static nrd_error *load_rope_factors(nrd_loader *l)
{
    const nrd_weight *f = nrd_engine_weight(l->engine, "rope_factors");
    void *host = NULL;
    nrd_weight w;
    if (!f) {
        return NULL;
    }
    NRD_TRY(nrd_loader_dequantize(f, "rope_factors", &host, &w));
    l->ws->rope_factors = host;
    return NULL;
}

/* The convolutions of an encoder that hears, as products over three rows. */
static nrd_error *load_convolutions(nrd_loader *l)
{
    nrd_weights *ws = l->ws;

    if (l->spec->n_mels == 0) {
        return NULL;
    }
    NRD_TRY(nrd_loader_add_part(l, &ws->conv1, 0, "transformer.conv1.weight", "transformer.conv1.bias"));
    nrd_loader_finish_product(l, &ws->conv1);
    NRD_TRY(nrd_loader_add_part(l, &ws->conv2, 0, "transformer.conv2.weight", "transformer.conv2.bias"));
    nrd_loader_finish_product(l, &ws->conv2);
    return NULL;
}

/* What an MTP layer has around its layer. */
static nrd_error *load_mtp(nrd_loader *l)
{
    nrd_weights *ws = l->ws;

    NRD_TRY(nrd_loader_add_part(l, &ws->mtp_fc, 0, "mtp.fc.weight", NULL));
    nrd_loader_finish_product(l, &ws->mtp_fc);
    NRD_TRY(nrd_loader_get(l, 0, "mtp.embed_layernorm.weight", &ws->mtp_embed_norm));
    NRD_TRY(nrd_loader_get(l, 0, "mtp.state_layernorm.weight", &ws->mtp_state_norm));
    return nrd_loader_get(l, 0, "mtp.final_layernorm.weight", &ws->final_norm);
}

static nrd_error *load_head(nrd_loader *l)
{
    nrd_weights *ws = l->ws;
    const nrd_model_spec *m = l->spec;
    const char *head = nrd_engine_weight(l->engine, "lm_head.weight")
                           ? "lm_head.weight"
                           : "transformer.vocab_embedding.weight";

    if (m->n_mels > 0 || m->mtp || m->embed_width > 0) { /* knows no tokens, has its model's, or none that is as wide as the state */
        return NULL;
    }
    NRD_TRY(nrd_loader_get_as(l, head, true, &ws->lm_head.w[0]));
    NRD_TRY(nrd_loader_get(l, 0, "lm_head.bias", &ws->lm_head.bias[0]));
    if (ws->lm_head.bias[0] && m->logits_scale != 1.0f && m->logits_scale != 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "logits_scale together with a bias on lm_head");
    }
    ws->lm_head.n = 1;
    nrd_loader_finish_product(l, &ws->lm_head);
    if (ws->lm_head.in_dtype == NRD_DTYPE_ACT_Q8) { /* the product rounds with less loss (nrd_linear_args.x), which counts most here */
        take_plain_input(l, &ws->lm_head);
        ws->lm_head.rounds_input = true;
    }
    return NULL;
}

/* Multiplying the last norm's output scales the logits: logits_scale costs nothing this way. */
static nrd_error *load_final_norm(nrd_loader *l, const char *name, const nrd_weight **out)
{
    if (!nrd_engine_weight(l->engine, name) || l->spec->logits_scale == 1.0f || l->spec->logits_scale == 0) {
        return nrd_loader_get(l, 0, name, out);
    }
    return nrd_loader_get_times(l, name, l->spec->logits_scale, out);
}

/* Norms of the sum stand behind attention and MLP. What stands behind a sublayer stands before the next one: so
 * the forward pass knows one order only, and the last norm is the final one. */
static void chain_norms(nrd_loader *l)
{
    nrd_weights *ws = l->ws;
    const bool first_is_normed = ws->embed_proj.n == 0; /* else a product stands between the embeddings' norm and it */
    const nrd_weight *before = first_is_normed ? ws->embed_norm : NULL, *before_bias = first_is_normed ? ws->embed_norm_bias : NULL;

    for (int32_t i = 0; i < l->n_layers; i++) {
        nrd_layer *y = &ws->layers[i];
        const nrd_weight *behind = y->mlp_norm, *behind_bias = y->mlp_norm_bias;
        y->mlp_norm = y->cross_norm ? y->cross_norm : y->attn_norm;
        y->mlp_norm_bias = y->cross_norm ? y->cross_norm_bias : y->attn_norm_bias;
        if (y->cross_norm) {
            y->cross_norm = y->attn_norm;
            y->cross_norm_bias = y->attn_norm_bias;
        }
        y->attn_norm = before;
        y->attn_norm_bias = before_bias;
        before = behind;
        before_bias = behind_bias;
    }
    if (first_is_normed) {
        ws->embed_norm = ws->embed_norm_bias = NULL;
    }
    ws->final_norm = before;
    ws->final_norm_bias = before_bias;
}

static nrd_error *load_all(nrd_loader *l, double streamed_share)
{
    nrd_weights *ws = l->ws;
    const nrd_model_spec *m = l->spec;

    NRD_TRY(load_convolutions(l));
    NRD_TRY(nrd_loader_get(l, 0, "transformer.vocab_embedding.weight", &ws->embed));
    NRD_TRY(nrd_loader_get(l, 0, "transformer.position_embedding.weight", &ws->pos_embed));
    NRD_TRY(nrd_loader_get(l, 0, "transformer.type_embedding.weight", &ws->type_embed));
    NRD_TRY(nrd_loader_get(l, 0, "transformer.ln_embed.weight", &ws->embed_norm));
    NRD_TRY(nrd_loader_get(l, 0, "transformer.ln_embed.bias", &ws->embed_norm_bias));
    if (m->embed_width > 0) {
        NRD_TRY(nrd_loader_add_part(l, &ws->embed_proj, 0, "transformer.embed_projection.weight", "transformer.embed_projection.bias"));
        nrd_loader_finish_product(l, &ws->embed_proj);
    }
    NRD_TRY(load_layer_inputs(l));
    NRD_TRY(load_altup(l));
    NRD_TRY(load_layers(l, streamed_share));
    share_states(l);
    if (!nrd_spec_is_last(m, l->rank)) {
        return load_rope_factors(l);
    }
    if (m->mtp) {
        NRD_TRY(load_mtp(l));
    } else if (m->sum_norms) {
        chain_norms(l);
    } else {
        NRD_TRY(load_final_norm(l, "transformer.ln_f.weight", &ws->final_norm));
        NRD_TRY(load_final_norm(l, "transformer.ln_f.bias", &ws->final_norm_bias));
    }
    NRD_TRY(load_head(l));
    return load_rope_factors(l);
}

static bool engine_shape(const void *engine, const char *name, int64_t *rows, int64_t *cols)
{
    const nrd_weight *w = nrd_engine_weight(engine, name);
    if (w) {
        *rows = w->rows;
        *cols = w->cols;
    }
    return w != NULL;
}

nrd_error *nrd_weights_load(nrd_weights *out, nrd_stream *s, nrd_device *dev, const nrd_engine *e,
                            const nrd_weights_config *config)
{
    nrd_error *err = NULL;
    const nrd_model_spec *m = nrd_engine_spec(e);
    nrd_loader l = {.ws = out,
                .stream = s,
                .engine = e,
                .spec = m,
                .rank = config->rank,
                .n_layers = nrd_spec_of_rank(m, config->rank).n_layers,
                .kv_dtype = config->kv_dtype,
                .compute_f32 = config->compute_f32};

    *out = (nrd_weights){.dev = dev, .act_dtype = config->act_dtype};
    NRD_TRY(nrd_needs_check(m, config->rank, engine_shape, e));
    NRD_TRY(nrd_needs_kv_scales(m, config->rank, config->kv_dtype, engine_shape, e));
    out->cap_loaded = (size_t)l.n_layers * LAYER_WEIGHTS + 32;
    NRD_NEW_GOTO(out->layers, l.n_layers, err, fail);
    NRD_NEW_GOTO(out->loaded, out->cap_loaded, err, fail);
    NRD_TRY_GOTO(load_all(&l, config->streamed_share), err, fail);
    NRD_TRY_GOTO(dev->ops->stream_sync(s), err, fail);
    return NULL;

fail:
    nrd_weights_unload(out);
    return err;
}

void nrd_weights_unload(nrd_weights *w)
{
    nrd_weight_stream_free(w->streamed);
    for (size_t i = 0; i < w->n_loaded; i++) {
        if (w->loaded[i].owned) {
            w->dev->ops->weight_unload(w->dev, &w->loaded[i].w);
        }
        free(w->loaded[i].host);
    }
    free(w->loaded);
    free(w->layers);
    free(w->rope_factors);
    free(w->orders);
    free(w->scales);
    *w = (nrd_weights){0};
}
