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
    if (!info.host_is_device && r->cfg.on_input && r->spec->has_experts) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "what goes into experts is not told on '%s'; use the device \"cpu\"", info.name);
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

static nrd_error *check_product(const nrd_runner *r, const nrd_product *p, int32_t layer)
{
    return p->in_dtype == r->act
               ? NULL
               : nrd_errorf(NRD_ERR_UNSUPPORTED, "on_product_input: the weights of layer %d are quantized", layer);
}

nrd_error *nrd_run_tell_input(nrd_runner *r, int32_t layer, int32_t position, const nrd_product *p, const void *x,
                              int32_t n_tokens)
{
    if (!r->cfg.on_input) {
        return NULL;
    }
    NRD_TRY(check_product(r, p, layer));
    NRD_TRY(r->dev->ops->stream_sync(r->stream));
    r->cfg.on_input(r->cfg.user, layer, -1, position, n_tokens, p->cols, x, r->act);
    return NULL;
}

nrd_error *nrd_run_tell_cache(nrd_runner *r, int32_t layer, const nrd_batch_view *v)
{
    const nrd_kv_layer *kv = &r->kv_layers[r->w.layers[layer].kv_layer];
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

/* Row i of an expert's input, where experts share the rows of x. */
static void take_row(const nrd_runner *r, int32_t pair, const float *x, int64_t cols, float *out)
{
    const int32_t token = r->pairs.token[pair];
    const float by = r->spec->moe.scale_input ? r->pairs.weight[token] : 1;
    for (int64_t c = 0; c < cols; c++) {
        out[c] = by * x[token * cols + c];
    }
}

nrd_error *nrd_run_tell_experts(nrd_runner *r, int32_t layer, int32_t position, const nrd_product *p, const void *x,
                                bool x_sorted)
{
    nrd_error *err = NULL;
    const int64_t cols = p->cols;
    float *rows = NULL;
    int32_t most = 0;

    if (!r->cfg.on_input) {
        return NULL;
    }
    NRD_TRY(check_product(r, p, layer));
    NRD_TRY(r->dev->ops->stream_sync(r->stream));
    for (int32_t e = 0; e < r->pairs.n_experts; e++) {
        const int32_t n = r->pairs.first[e + 1] - r->pairs.first[e];
        most = n > most ? n : most;
    }
    if (!x_sorted) {
        NRD_NEW_GOTO(rows, (size_t)most * (size_t)cols, err, done);
    }
    for (int32_t e = 0; e < r->pairs.n_experts; e++) {
        const int32_t first = r->pairs.first[e], n = r->pairs.first[e + 1] - first;
        for (int32_t i = 0; i < n && rows; i++) {
            take_row(r, first + i, x, cols, rows + i * cols);
        }
        if (n > 0) {
            r->cfg.on_input(r->cfg.user, layer, e, position, n, cols, rows ? rows : (const float *)x + first * cols, r->act);
        }
    }
done:
    free(rows);
    return err;
}
