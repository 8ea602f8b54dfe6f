/* SPDX-License-Identifier: Apache-2.0
 * Tells who calibrates what goes into the products of a layer, and into its cache. Steps of such a runner wait before each of
 * them. */
#include "base/mem.h"
#include "engine/run/blocks.h"
#include "engine/run/operations.h"

#include <stdlib.h>

nrd_error *nrd_run_check_inputs(const nrd_runner *r)
{
    nrd_device_info info;

    if (!r->cfg.on_input && !r->cfg.on_cache) {
        return NULL;
    }
    r->dev->ops->get_info(r->dev, &info);
    if (r->cfg.rank.size > 1) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "on_product_input and on_cache need one rank; there are %d", r->cfg.rank.size);
    }
    if (r->cfg.on_input && r->spec->has_experts && r->spec->moe.scale_input) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "on_product_input: the experts' inputs are scaled");
    }
    return r->cfg.on_cache && !info.host_is_device && !r->dev->ops->kv_rows
               ? nrd_errorf(NRD_ERR_UNSUPPORTED, "what goes into the cache is not told on '%s'; use the device \"cpu\"", info.name)
               : NULL;
}

nrd_error *nrd_run_init_inputs(nrd_runner *r)
{
    size_t most = 0;
    void *p = NULL;

    if (!r->cfg.on_cache || !r->dev->ops->kv_rows) {
        return NULL;
    }
    for (int32_t i = 0; i < r->spec->n_layers; i++) {
        const size_t row = 2 * (size_t)nrd_spec_kv_heads(r->spec, i) * (size_t)nrd_spec_kv_dim(r->spec, i);
        most = row > most ? row : most;
    }
    most *= (size_t)r->cfg.max_tokens;
    NRD_TRY(nrd_run_alloc(r, &p, most, sizeof(float), "activations"));
    r->kv_rows = p;
    NRD_TRY(r->dev->ops->alloc(r->dev, &p, NRD_MEM_HOST, most * sizeof(float), "activations"));
    r->kv_rows_host = p;
    return NULL;
}

static nrd_error *check_product(const nrd_product *p, int32_t layer)
{
    const nrd_dtype in = p->in_dtype;

    return in == NRD_DTYPE_F32 || in == NRD_DTYPE_BF16 || in == NRD_DTYPE_F16
               ? NULL
               : nrd_errorf(NRD_ERR_UNSUPPORTED, "on_product_input: the weights of layer %d are quantized", layer);
}

nrd_error *nrd_run_tell_input(nrd_runner *r, int32_t layer, int32_t position, const nrd_product *p, const void *x,
                              int32_t n_tokens)
{
    if (!r->cfg.on_input) {
        return NULL;
    }
    NRD_TRY(check_product(p, layer));
    NRD_TRY(r->dev->ops->stream_sync(r->stream));
    r->cfg.on_input(r->cfg.user, layer, -1, position, n_tokens, p->cols, x, p->in_dtype);
    return NULL;
}

nrd_error *nrd_run_tell_cache(nrd_runner *r, int32_t layer, const nrd_batch_view *v)
{
    const nrd_kv_layer *kv = &r->kv.layers[r->w.layers[layer].kv_layer];
    const int64_t keys = (int64_t)kv->n_kv_heads * kv->head_dim;
    int64_t stride = (int64_t)r->spec->n_heads * kv->head_dim + 2 * keys;
    const float *rows = (const float *)r->qkv + (stride - 2 * keys);

    if (!r->cfg.on_cache) {
        return NULL;
    }
    if (r->kv_rows) {
        const nrd_kv_rows_args a = {.batch = v, .kv = *kv, .out = r->kv_rows};
        stride = 2 * keys;
        rows = r->kv_rows_host;
        NRD_TRY(r->dev->ops->kv_rows(r->stream, &a));
        NRD_TRY(r->dev->ops->copy(r->stream, r->kv_rows_host, r->kv_rows, (size_t)(v->n_tokens * stride) * sizeof(float)));
    }
    NRD_TRY(r->dev->ops->stream_sync(r->stream));
    r->cfg.on_cache(r->cfg.user, layer, v->n_tokens, stride, rows, rows + keys);
    return NULL;
}

/* out: a row of x [n_tokens, cols] for each sorted pair, in the type of activations. */
static nrd_error *gather_pairs(nrd_runner *r, const nrd_product *p, const void *x, int32_t n_tokens, void *out)
{
    const nrd_weight rows = {.dtype = p->in_dtype, .layout = NRD_LAYOUT_ROWS, .rows = n_tokens, .cols = p->cols, .data = x,
                             .scale = 1, .data_bytes = (uint64_t)n_tokens * p->in_row_bytes};
    const nrd_embed_args a = {
        .n_tokens = n_tokens * r->pairs.top_k,
        .hidden = (int32_t)p->cols,
        .ids = r->pairs.token,
        .table = &rows,
        .scale = 1,
        .out = out,
        .out_dtype = r->act,
    };
    return r->dev->ops->embed(r->stream, &a);
}

nrd_error *nrd_run_tell_experts(nrd_runner *r, int32_t layer, int32_t position, const nrd_product *p, const void *x,
                                int32_t n_tokens, void *gathered)
{
    nrd_error *err = NULL;
    const nrd_dtype dtype = gathered ? r->act : p->in_dtype;
    const size_t row = gathered ? (size_t)p->cols * r->act_bytes : p->in_row_bytes;
    int32_t *first = NULL;

    if (!r->cfg.on_input) {
        return NULL;
    }
    NRD_TRY(check_product(p, layer));
    NRD_NEW_GOTO(first, (size_t)r->pairs.n_experts + 1, err, done);
    if (gathered) {
        NRD_TRY_GOTO(gather_pairs(r, p, x, n_tokens, gathered), err, done);
    }
    NRD_TRY_GOTO(r->dev->ops->copy(r->stream, first, r->pairs.first, ((size_t)r->pairs.n_experts + 1) * sizeof *first), err, done);
    NRD_TRY_GOTO(r->dev->ops->stream_sync(r->stream), err, done);
    for (int32_t e = 0; e < r->pairs.n_experts; e++) {
        const int32_t n = first[e + 1] - first[e];
        if (n > 0) {
            const uint8_t *rows = (const uint8_t *)(gathered ? gathered : x) + (size_t)first[e] * row;
            r->cfg.on_input(r->cfg.user, layer, e, position, n, p->cols, rows, dtype);
        }
    }
done:
    free(first);
    return err;
}
