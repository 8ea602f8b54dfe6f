/* SPDX-License-Identifier: Apache-2.0
 * Calibrated scales of an 8-bit cache in a Hugging Face folder. A scale is of one type of cache; what the engine keeps is how
 * far keys and values go, which serves both types. Called by plan.c. */
#include "model/needs.h"
#include "model/plan_internal.h"

#include "base/dtype.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* What stands behind the attention module's name, for keys and for values. */
static const char *const names[][2] = {
    {"k_scale", "v_scale"},               /* compressed-tensors */
    {"k_proj.k_scale", "v_proj.v_scale"}, /* ModelOpt */
    {"kv_scale", "kv_scale"},             /* AutoFP8 */
};

/* Finds the scale of a layer: the number itself, or of one for each head the largest, since the cache has one range for all. One
 * that is no number or not above 0 goes before all others, so that it is refused with the layer's range. *out_at: where it is, -1
 * without `t`. INVALID_ARG: neither one nor one for each of n_heads,
 * [n_heads] or [n_heads, 1, 1]. */
static nrd_error *find_scale(const nrd_src_tensor *t, int64_t n_heads, int64_t *out_at)
{
    float most = 0;
    int64_t n = 1;

    *out_at = -1;
    if (!t || !t->data || !nrd_plan_is_float(t->dtype)) {
        return NULL;
    }
    for (int d = 0; d < t->n_dims; d++) {
        n *= t->dims[d];
    }
    if (n != 1 && (n != n_heads || t->dims[0] != n)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has %lld scales; expected one, or one for each of %lld heads of keys",
                          t->name, (long long)n, (long long)n_heads);
    }
    const size_t size = t->data_bytes / (size_t)n;
    for (int64_t i = 0; i < n; i++) {
        float x;
        if (!nrd_dequantize_row(t->dtype, (const uint8_t *)t->data + (size_t)i * size, &x, 1)) {
            return NULL; /* a type that is no number */
        }
        if (*out_at < 0 || !(x > 0) || x > most) {
            most = x > 0 ? x : INFINITY; /* nothing is above that */
            *out_at = i;
        }
    }
    return NULL;
}

nrd_error *nrd_plan_add_kv_range(nrd_plan *p, const char *qkv, int32_t layer)
{
    const float top = nrd_source_kv_top(p->src);
    char name[NRD_PLAN_MAX_NAME];
    const char *end = strrchr(qkv, '.');

    for (end = end ? end - 1 : qkv; end > qkv && end[0] != '.'; end--) { /* ".q_proj.weight" is cut off */
    }
    for (size_t i = 0; top > 0 && i < sizeof names / sizeof names[0]; i++) {
        nrd_plan_tensor t = {.is_vector = true, .dtype = NRD_DTYPE_F32, .cols = 1, .n_parts = 2, .n_factors = 1,
                             .factors = {top}, .factor_rows = {2}};
        int found = 0;
        for (int k = 0; k < 2; k++) {
            snprintf(name, sizeof name, "%.*s.%s", (int)(end - qkv), qkv, names[i][k]);
            const nrd_src_tensor *src = nrd_plan_use(p, name);
            int64_t at;
            NRD_TRY(find_scale(src, p->spec.n_kv_heads, &at));
            t.parts[k] = (nrd_plan_part){.src = src, .row0 = at < 0 ? 0 : at, .n_rows = 1};
            found += at >= 0;
        }
        if (found == 2) {
            snprintf(name, sizeof name, NRD_LAYER_PREFIX NRD_KV_RANGE, layer);
            return nrd_plan_add(p, &t, name);
        }
    }
    return NULL;
}
