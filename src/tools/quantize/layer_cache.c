/* SPDX-License-Identifier: Apache-2.0
 * The cache's channels made alike: which rows and columns of a layer take the numbers (cache.h). */
#include "base/mem.h"
#include "tools/quantize/layer_internal.h"

#include <stdlib.h>

/* Queries of a group read one key: what its channels are divided by, their own are multiplied by. */
static nrd_error *even_keys(nrd_qwork *w)
{
    nrd_error *err = NULL;
    const nrd_qlayer *y = w->layer;
    const int32_t d = w->spec->head_dim, group = w->spec->n_heads / w->spec->n_kv_heads;
    const int64_t n_keys = (int64_t)w->spec->n_kv_heads * d, n_queries = (int64_t)w->spec->n_heads * d;
    const bool shared = y->keys.n_rows == d && n_keys != d; /* one norm for all heads */
    float *of_keys = NULL, *of_queries = NULL;

    if (y->queries.n == 0 || y->keys.n == 0) {
        return NULL;
    }
    NRD_NEW_GOTO(of_keys, n_keys, err, done);
    NRD_NEW_GOTO(of_queries, n_queries, err, done);
    nrd_qcache_even_keys(w->cache, shared, of_keys);
    for (int64_t i = 0; i < n_queries; i++) {
        of_queries[i] = 1 / of_keys[shared ? i % d : i / d / group * d + i % d];
    }
    for (int i = 0; i < y->keys.n; i++) {
        NRD_TRY_GOTO(nrd_qwork_divide(w, &y->keys.list[i], of_keys), err, done);
    }
    for (int i = 0; i < y->queries.n; i++) {
        NRD_TRY_GOTO(nrd_qwork_divide(w, &y->queries.list[i], of_queries), err, done);
    }
done:
    free(of_keys);
    free(of_queries);
    return err;
}

static nrd_error *even_values(nrd_qwork *w)
{
    nrd_error *err = NULL;
    const nrd_qmaker *makers = w->layer->makers[NRD_PRODUCT_DENSE];
    const nrd_src_tensor *dense = w->layer->dense;
    const bool turned = w->layer->dense_turned;
    const int32_t d = w->spec->head_dim, group = w->spec->n_heads / w->spec->n_kv_heads;
    const int64_t n = (int64_t)w->spec->n_kv_heads * d, cols = (int64_t)w->spec->n_heads * d;
    float *of_values = NULL, *of_cols = NULL, *x = NULL;

    if (!makers[0].src || makers[0].n_rows != n || !dense || dense->dims[!turned] != cols || w->spec->clip_qkv > 0) {
        return NULL;
    }
    NRD_NEW_GOTO(of_values, n, err, done);
    NRD_NEW_GOTO(of_cols, cols, err, done);
    nrd_qcache_even_values(w->cache, of_values);
    for (int64_t c = 0; c < cols; c++) {
        of_cols[c] = of_values[c / d / group * d + c % d];
    }
    for (int i = 0; i < NRD_QMAKERS; i++) {
        NRD_TRY_GOTO(nrd_qwork_divide(w, &makers[i], of_values), err, done);
    }
    NRD_TRY_GOTO(nrd_qwork_floats(w, dense, turned, &x), err, done);
    for (int64_t k = 0; k < dense->dims[turned] * cols; k++) {
        x[k] *= of_cols[k % cols];
    }
    if (w->inputs && w->inputs[NRD_PRODUCT_DENSE].n_tokens > 0) {
        nrd_qinput_divide(&w->inputs[NRD_PRODUCT_DENSE], w->math, of_cols);
    }
done:
    free(of_values);
    free(of_cols);
    return err;
}

nrd_error *nrd_qwork_even_cache(nrd_qwork *w, bool values)
{
    if (!w->cache || w->cache->n_tokens == 0) {
        return NULL;
    }
    NRD_TRY(even_keys(w));
    return values ? even_values(w) : NULL;
}

nrd_error *nrd_qwork_scale_cache(nrd_qwork *w)
{
    nrd_error *err = NULL;
    const float top = w->settings->cache_dtype == NRD_DTYPE_I8 ? 127.0f : 448.0f;

    if (!w->cache || w->cache->n_tokens == 0) {
        return NULL;
    }
    const int32_t n = w->cache->n_heads, d = w->cache->head_dim;
    NRD_NEW_GOTO(w->out->cache_scales, (size_t)n * 2, err, fail);
    w->out->n_cache_heads = n;
    for (int32_t h = 0; h < n; h++) {
        w->out->cache_scales[h] = nrd_qcache_range(w->cache->keys + (int64_t)h * d, d) / top;
        w->out->cache_scales[n + h] = nrd_qcache_range(w->cache->values + (int64_t)h * d, d) / top;
    }
fail:
    return err;
}
