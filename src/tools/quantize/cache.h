/* SPDX-License-Identifier: Apache-2.0
 * tools/quantize/cache.h - what an 8-bit KV cache must hold, and weights that make it even.
 *
 * Purpose   A cache of 8 bits has one scale for a head's keys and one for its values, so the head's largest channel decides how
 *           finely all are kept. Two changes of the weights leave every product as it was and make the channels alike. The
 *           two channels of a key that the rotation mixes are divided by a number, and the same ones of the queries that
 *           read this key are multiplied by it: q · k stays. A channel of the values is divided by a number, and the columns
 *           of the product behind attention that read it are multiplied by it. Where heads are normed behind the product,
 *           the norms' weights take the numbers of keys and queries.
 * Owner     One thread adds; then any may read.
 * Lifetime  nrd_qcache owns its arrays.
 * Sources   Lin et al., QServe (2024), for keys that are smoothed where attention reads them.
 */
#ifndef NRD_TOOLS_QUANTIZE_CACHE_H
#define NRD_TOOLS_QUANTIZE_CACHE_H

#include "base/error.h"
#include "model/spec.h"

#include <stdint.h>

/* Of one layer. */
typedef struct nrd_qcache {
    int32_t n_heads, head_dim; /* of keys and values; 0: the layer has no cache */
    int64_t n_tokens;
    int32_t *pair; /* [head_dim] the channel that the rotation mixes with this one; itself where it does not turn */
    float *keys;   /* [n_heads, head_dim] the largest length of the pair, which no rotation changes */
    float *values; /* [n_heads, head_dim] the largest |v| */
} nrd_qcache;

nrd_error *nrd_qcache_init(nrd_qcache *c, const nrd_model_spec *spec, int32_t layer) NRD_MUST_USE;
void nrd_qcache_fini(nrd_qcache *c);
/* keys, values: of n tokens, `stride` numbers from one to the next. */
void nrd_qcache_add(nrd_qcache *c, int32_t n, int64_t stride, const float *keys, const float *values);
/* As if each channel of the values had been divided by s [n_heads, head_dim]. */
void nrd_qcache_divide_values(nrd_qcache *c, const float *s);

/* The numbers for keys: out [n_heads, head_dim], or [head_dim] where all heads must have the same. What was seen is
 * divided by them; their geometric mean is about 1. */
void nrd_qcache_even_keys(nrd_qcache *c, bool shared, float *out);
/* The same for values: out [n_heads, head_dim]. */
void nrd_qcache_even_values(nrd_qcache *c, float *out);
/* The largest of `n` numbers, none negative; 1 where all are 0. */
float nrd_qcache_range(const float *x, int64_t n);

#endif
