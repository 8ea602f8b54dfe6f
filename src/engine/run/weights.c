#include "engine/run/weights.h"

#include "base/dtype.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

typedef struct nrd_loaded {
    nrd_weight w;
    bool owned; /* by the device */
    void *host; /* dequantized copy, or NULL */
} nrd_loaded;

typedef struct loader {
    nrd_weights *ws;
    nrd_stream *stream;
    const nrd_engine *engine;
    const nrd_model_spec *spec;
    bool compute_f32;
} loader;

enum { MAX_NAME = 128 };

/* A float32 copy in host rows, with every scale applied. */
static nrd_error *dequantize(const nrd_weight *w, const char *name, void **out_host,
                             nrd_weight *out)
{
    size_t n = 0, bytes = 0;

    NRD_TRY(nrd_weight_check(w, name));
    if (w->rows < 0 || w->cols <= 0 || !nrd_size_mul((size_t)w->rows, (size_t)w->cols, &n) ||
        !nrd_size_mul(n, sizeof(float), &bytes)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "weight %s has bad sizes", name);
    }
    float *dst = nrd_aligned_zalloc(64, bytes ? bytes : 64);
    if (!dst) {
        return nrd_error_no_memory();
    }
    for (int64_t r = 0; r < w->rows; r++) {
        nrd_weight_row(w, r, dst + (size_t)r * (size_t)w->cols);
    }
    *out = *w;
    out->dtype = NRD_DTYPE_F32;
    out->layout = NRD_LAYOUT_ROWS;
    out->data = dst;
    out->scales = NULL;
    out->scale = 1;
    out->data_bytes = bytes;
    *out_host = dst;
    return NULL;
}

static nrd_error *load(loader *l, const char *name, bool is_linear, bool required,
                       const nrd_weight **out)
{
    nrd_weights *ws = l->ws;
    const nrd_weight *src = nrd_engine_weight(l->engine, name);
    nrd_weight f32;

    *out = NULL;
    if (!src) {
        return required ? nrd_errorf(NRD_ERR_NOT_FOUND, "the engine has no weight %s", name) : NULL;
    }
    NRD_ASSERT(ws->n_loaded < ws->cap_loaded, "the bound covers every layer's weights");
    nrd_loaded *slot = &ws->loaded[ws->n_loaded];
    *slot = (nrd_loaded){0};
    if (l->compute_f32 && src->dtype != NRD_DTYPE_F32) {
        NRD_TRY(dequantize(src, name, &slot->host, &f32));
        src = &f32;
    }
    nrd_error *err = ws->dev->ops->weight_load(l->stream, src, is_linear, &slot->w, &slot->owned);
    if (err) {
        free(slot->host);
        return nrd_error_wrap(err, "weight %s", name);
    }
    ws->n_loaded++;
    *out = &slot->w;
    return NULL;
}

static nrd_error *load_layer(loader *l, int32_t layer, const char *name, bool is_linear,
                             bool required, const nrd_weight **out)
{
    char full[MAX_NAME];
    snprintf(full, sizeof full, "transformer.layers.%d.%s", layer, name);
    return load(l, full, is_linear, required, out);
}

static nrd_error *check_vector(const nrd_weight *w, int64_t n, const char *what, int32_t layer)
{
    if (w && w->rows * w->cols != n) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "layer %d: %s has %lld elements, expected %lld",
                          layer, what, (long long)(w->rows * w->cols), (long long)n);
    }
    return NULL;
}

/* Sums up the parts and settles the input type. */
static nrd_error *finish_product(loader *l, nrd_product *p, int64_t rows, int64_t cols,
                                 const char *what, int32_t layer)
{
    nrd_device *dev = l->ws->dev;
    p->cols = cols;
    p->rows = 0;
    for (int32_t i = 0; i < p->n; i++) {
        if (p->w[i]->cols != cols) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "layer %d: %s has %lld columns, expected %lld",
                              layer, what, (long long)p->w[i]->cols, (long long)cols);
        }
        if (p->bias[i] && p->bias[i]->rows * p->bias[i]->cols != p->w[i]->rows) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "layer %d: bias of %s does not fit its rows",
                              layer, what);
        }
        p->rows += p->w[i]->rows;
        size_t row_bytes = 0;
        bool scale = false;
        nrd_dtype in = dev->ops->linear_input(dev, p->w[i], l->ws->act_dtype, &row_bytes, &scale);
        if (i == 0) {
            p->in_dtype = in;
            p->in_row_bytes = row_bytes;
            p->in_row_scale = scale;
        } else if (in != p->in_dtype) {
            /* Parts that want different inputs: plain activations suit them all. */
            p->in_dtype = l->ws->act_dtype;
            p->in_row_bytes = (size_t)cols * nrd_dtype_block_bytes(l->ws->act_dtype);
            p->in_row_scale = false;
        }
    }
    if (p->rows != rows) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "layer %d: %s has %lld rows, expected %lld", layer,
                          what, (long long)p->rows, (long long)rows);
    }
    if (p->in_row_bytes > l->ws->max_in_row_bytes) {
        l->ws->max_in_row_bytes = p->in_row_bytes;
    }
    return NULL;
}

static nrd_error *add_part(loader *l, nrd_product *p, int32_t layer, const char *weight,
                           const char *bias, bool has_bias)
{
    NRD_TRY(load_layer(l, layer, weight, true, true, &p->w[p->n]));
    NRD_TRY(load_layer(l, layer, bias, false, has_bias, &p->bias[p->n]));
    p->n++;
    return NULL;
}

static nrd_error *load_attention(loader *l, int32_t i, nrd_layer *y)
{
    const nrd_model_spec *m = l->spec;
    int64_t q = (int64_t)m->n_heads * m->head_dim, kv = (int64_t)m->n_kv_heads * m->head_dim;
    char full[MAX_NAME];

    snprintf(full, sizeof full, "transformer.layers.%d.attention.qkv.weight", i);
    if (nrd_engine_weight(l->engine, full)) {
        NRD_TRY(add_part(l, &y->qkv, i, "attention.qkv.weight", "attention.qkv.bias", m->qkv_bias));
    } else {
        NRD_TRY(add_part(l, &y->qkv, i, "attention.q.weight", "attention.q.bias", m->qkv_bias));
        NRD_TRY(add_part(l, &y->qkv, i, "attention.k.weight", "attention.k.bias", m->qkv_bias));
        NRD_TRY(add_part(l, &y->qkv, i, "attention.v.weight", "attention.v.bias", m->qkv_bias));
    }
    NRD_TRY(finish_product(l, &y->qkv, q + 2 * kv, m->hidden, "attention.qkv", i));
    NRD_TRY(load_layer(l, i, "attention.q_layernorm.weight", false, m->qk_norm, &y->q_norm));
    NRD_TRY(load_layer(l, i, "attention.k_layernorm.weight", false, m->qk_norm, &y->k_norm));
    NRD_TRY(check_vector(y->q_norm, m->head_dim, "attention.q_layernorm", i));
    NRD_TRY(check_vector(y->k_norm, m->head_dim, "attention.k_layernorm", i));
    NRD_TRY(
        add_part(l, &y->dense, i, "attention.dense.weight", "attention.dense.bias", m->dense_bias));
    return finish_product(l, &y->dense, m->hidden, q, "attention.dense", i);
}

static nrd_error *load_mlp(loader *l, int32_t i, nrd_layer *y)
{
    const nrd_model_spec *m = l->spec;
    NRD_TRY(add_part(l, &y->up, i, "mlp.fc.weight", "mlp.fc.bias", m->mlp_bias));
    if (m->gated_mlp) {
        NRD_TRY(add_part(l, &y->up, i, "mlp.gate.weight", "mlp.gate.bias", m->mlp_bias));
    }
    NRD_TRY(finish_product(l, &y->up, (m->gated_mlp ? 2 : 1) * (int64_t)m->inter, m->hidden,
                           "mlp.fc", i));
    NRD_TRY(add_part(l, &y->down, i, "mlp.proj.weight", "mlp.proj.bias", m->mlp_bias));
    return finish_product(l, &y->down, m->hidden, m->inter, "mlp.proj", i);
}

static nrd_error *load_one_layer(loader *l, int32_t i, nrd_layer *y)
{
    const nrd_model_spec *m = l->spec;
    NRD_TRY(load_layer(l, i, "input_layernorm.weight", false, true, &y->attn_norm));
    NRD_TRY(load_layer(l, i, "input_layernorm.bias", false, false, &y->attn_norm_bias));
    NRD_TRY(load_attention(l, i, y));
    if (m->post_norms) {
        NRD_TRY(
            load_layer(l, i, "post_attention_layernorm.weight", false, true, &y->post_attn_norm));
        NRD_TRY(
            load_layer(l, i, "post_feedforward_layernorm.weight", false, true, &y->post_mlp_norm));
    }
    NRD_TRY(load_layer(l, i, "post_layernorm.weight", false, true, &y->mlp_norm));
    NRD_TRY(load_layer(l, i, "post_layernorm.bias", false, false, &y->mlp_norm_bias));
    NRD_TRY(check_vector(y->attn_norm, m->hidden, "input_layernorm", i));
    NRD_TRY(check_vector(y->mlp_norm, m->hidden, "post_layernorm", i));
    return load_mlp(l, i, y);
}

static nrd_error *load_rope_factors(loader *l)
{
    const nrd_weight *f = nrd_engine_weight(l->engine, "rope_factors");
    void *host = NULL;
    nrd_weight w;
    if (!f) {
        return NULL;
    }
    NRD_TRY(dequantize(f, "rope_factors", &host, &w));
    l->ws->rope_factors = host;
    int64_t need = l->spec->rope.rotary_dim / 2;
    if (f->rows * f->cols < need) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "rope_factors has %lld elements, expected %lld",
                          (long long)(f->rows * f->cols), (long long)need);
    }
    return NULL;
}

/* Multiplying the last norm's output scales the logits: logits_scale costs nothing this way. */
static nrd_error *load_final_norm(loader *l, const char *name, bool required,
                                  const nrd_weight **out)
{
    const nrd_weight *src = nrd_engine_weight(l->engine, name);
    void *host = NULL;
    nrd_weight w;
    if (!src || l->spec->logits_scale == 1.0f || l->spec->logits_scale == 0) {
        return load(l, name, false, required, out);
    }
    NRD_TRY(dequantize(src, name, &host, &w));
    for (int64_t i = 0; i < w.rows * w.cols; i++) {
        ((float *)host)[i] *= l->spec->logits_scale;
    }
    nrd_loaded *slot = &l->ws->loaded[l->ws->n_loaded];
    *slot = (nrd_loaded){.host = host};
    NRD_TRY(l->ws->dev->ops->weight_load(l->stream, &w, false, &slot->w, &slot->owned));
    l->ws->n_loaded++;
    *out = &slot->w;
    return NULL;
}

static nrd_error *load_all(loader *l)
{
    nrd_weights *ws = l->ws;
    const nrd_model_spec *m = l->spec;
    const char *head = nrd_engine_weight(l->engine, "lm_head.weight")
                           ? "lm_head.weight"
                           : "transformer.vocab_embedding.weight";

    NRD_TRY(load(l, "transformer.vocab_embedding.weight", false, true, &ws->embed));
    NRD_TRY(load(l, "transformer.position_embedding.weight", false, m->learned_positions,
                 &ws->pos_embed));
    if (ws->embed->cols != m->hidden || ws->embed->rows < m->vocab) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "vocab_embedding is [%lld, %lld], expected [%d, %d]",
                          (long long)ws->embed->rows, (long long)ws->embed->cols, m->vocab,
                          m->hidden);
    }
    for (int32_t i = 0; i < m->n_layers; i++) {
        NRD_TRY(load_one_layer(l, i, &ws->layers[i]));
    }
    NRD_TRY(load_final_norm(l, "transformer.ln_f.weight", true, &ws->final_norm));
    NRD_TRY(load_final_norm(l, "transformer.ln_f.bias", false, &ws->final_norm_bias));
    NRD_TRY(load(l, head, true, true, &ws->lm_head.w[0]));
    NRD_TRY(load(l, "lm_head.bias", false, m->lm_head_bias, &ws->lm_head.bias[0]));
    if (ws->lm_head.bias[0] && m->logits_scale != 1.0f && m->logits_scale != 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "logits_scale together with a bias on lm_head");
    }
    ws->lm_head.n = 1;
    NRD_TRY(finish_product(l, &ws->lm_head, ws->lm_head.w[0]->rows, m->hidden, "lm_head", -1));
    if (ws->lm_head.rows < m->vocab) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "lm_head has %lld rows, expected %d",
                          (long long)ws->lm_head.rows, m->vocab);
    }
    return load_rope_factors(l);
}

nrd_error *nrd_weights_load(nrd_weights *out, nrd_stream *s, nrd_device *dev, const nrd_engine *e,
                            nrd_dtype act_dtype, bool compute_f32)
{
    nrd_error *err = NULL;
    const nrd_model_spec *m = nrd_engine_spec(e);
    loader l = {.ws = out, .stream = s, .engine = e, .spec = m, .compute_f32 = compute_f32};

    *out = (nrd_weights){.dev = dev, .act_dtype = act_dtype};
    if (m->tp_size > 1 || m->pp_size > 1) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED,
                          "this engine was built for %d x %d ranks (tp x pp); only 1 x 1 runs",
                          m->tp_size, m->pp_size);
    }
    out->cap_loaded = (size_t)m->n_layers * 24 + 16;
    NRD_NEW_GOTO(out->layers, m->n_layers, err, fail);
    NRD_NEW_GOTO(out->loaded, out->cap_loaded, err, fail);
    NRD_TRY_GOTO(load_all(&l), err, fail);
    NRD_TRY_GOTO(dev->ops->stream_sync(s), err, fail);
    return NULL;

fail:
    nrd_weights_unload(out);
    return err;
}

void nrd_weights_unload(nrd_weights *w)
{
    for (size_t i = 0; i < w->n_loaded; i++) {
        if (w->loaded[i].owned) {
            w->dev->ops->weight_unload(w->dev, &w->loaded[i].w);
        }
        free(w->loaded[i].host);
    }
    free(w->loaded);
    free(w->layers);
    free(w->rope_factors);
    *w = (nrd_weights){0};
}
