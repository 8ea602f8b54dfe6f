/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/quantize/cache.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST 1024.0f /* a channel that is nearly always 0 is not made larger than this, nor another smaller */

/* Which rotation a layer's heads have. */
static nrd_rope_spec rope_of(const nrd_model_spec *m, int32_t layer)
{
    nrd_rope_spec r = m->layer_is_sliding[layer] && m->rope_local.kind != NRD_ROPE_NONE ? m->rope_local : m->rope;
    r.kind = m->layer_has_no_rope[layer] ? NRD_ROPE_NONE : r.kind;
    return r;
}

nrd_error *nrd_qcache_init(nrd_qcache *c, const nrd_model_spec *m, int32_t layer)
{
    nrd_error *err = NULL;
    const nrd_rope_spec rope = rope_of(m, layer);
    const int32_t half = rope.rotary_dim / 2, head_dim = nrd_spec_head_dim(m, layer), n_heads = nrd_spec_own_kv_heads(m, layer);

    *c = (nrd_qcache){0};
    if (nrd_spec_is_latent(m) || !nrd_spec_layer_has_cache(m, layer)) {
        return NULL;
    }
    NRD_NEW_GOTO(c->pair, head_dim, err, fail);
    NRD_NEW_GOTO(c->keys, (size_t)n_heads * (size_t)head_dim, err, fail);
    NRD_NEW_GOTO(c->values, (size_t)n_heads * (size_t)head_dim, err, fail);
    c->n_heads = n_heads;
    c->head_dim = head_dim;
    for (int32_t d = 0; d < head_dim; d++) {
        const bool turns = rope.kind != NRD_ROPE_NONE && d < 2 * half;
        c->pair[d] = !turns ? d : rope.kind == NRD_ROPE_INTERLEAVED ? d ^ 1 : d < half ? d + half : d - half;
    }
    return NULL;

fail:
    nrd_qcache_fini(c);
    return err;
}

void nrd_qcache_fini(nrd_qcache *c)
{
    free(c->pair);
    free(c->keys);
    free(c->values);
    *c = (nrd_qcache){0};
}

void nrd_qcache_add(nrd_qcache *c, int32_t n, int64_t stride, const float *keys, const float *values)
{
    for (int32_t t = 0; t < n; t++) {
        for (int32_t i = 0; i < c->n_heads * c->head_dim; i++) {
            const int32_t d = i % c->head_dim, other = i - d + c->pair[d];
            const float k = keys[t * stride + i], v = fabsf(values[t * stride + i]);
            const float length = other == i ? fabsf(k) : hypotf(k, keys[t * stride + other]);
            c->keys[i] = length > c->keys[i] ? length : c->keys[i];
            c->values[i] = v > c->values[i] ? v : c->values[i];
        }
    }
    c->n_tokens += n;
}

static void divide(float *x, const float *s, int64_t n, int64_t period)
{
    for (int64_t i = 0; i < n; i++) {
        x[i] /= s[i % period];
    }
}

void nrd_qcache_divide_values(nrd_qcache *c, const float *s)
{
    const int64_t n = (int64_t)c->n_heads * c->head_dim;
    divide(c->values, s, n, n);
}

/* x[n], none negative, over their geometric mean. */
static void even(float *x, int32_t n)
{
    double sum = 0;
    int32_t seen = 0;
    for (int32_t i = 0; i < n; i++) {
        sum += x[i] > 0 ? log((double)x[i]) : 0;
        seen += x[i] > 0;
    }
    const float mean = seen ? (float)exp(sum / seen) : 1;
    for (int32_t i = 0; i < n; i++) {
        x[i] = fminf(fmaxf(x[i] / mean, 1 / MOST), MOST);
    }
}

void nrd_qcache_even_keys(nrd_qcache *c, bool shared, float *out)
{
    const int32_t n = c->n_heads * c->head_dim, period = shared ? c->head_dim : n;
    for (int32_t i = 0; i < n; i++) {
        out[i % period] = i < period ? c->keys[i] : fmaxf(out[i % period], c->keys[i]);
    }
    even(out, period);
    divide(c->keys, out, n, period);
}

void nrd_qcache_even_values(nrd_qcache *c, float *out)
{
    const int32_t n = c->n_heads * c->head_dim;
    memcpy(out, c->values, (size_t)n * sizeof *out);
    even(out, n);
    divide(c->values, out, n, n);
}

float nrd_qcache_range(const float *x, int64_t n)
{
    float most = 0;
    for (int64_t i = 0; i < n; i++) {
        most = x[i] > most ? x[i] : most;
    }
    return most > 0 ? most : 1;
}
