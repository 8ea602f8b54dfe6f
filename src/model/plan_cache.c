/* SPDX-License-Identifier: Apache-2.0
 * Calibrated scales of an 8-bit cache in a Hugging Face folder. A scale is of one type of cache; what the engine keeps is how
 * far keys and values go, which serves both types. Called by plan.c. */
#include "model/needs.h"
#include "model/plan_internal.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* What stands behind the attention module's name, for keys and for values. */
static const char *const names[][2] = {
    {"k_scale", "v_scale"},               /* compressed-tensors */
    {"k_proj.k_scale", "v_proj.v_scale"}, /* ModelOpt */
    {"kv_scale", "kv_scale"},             /* AutoFP8 */
};

/* The scales of a layer's keys, or values: one for each of the model's n_heads, or one for all of them, whose row is then taken n_own
 * times. *out: those of heads [first, first + n_own); src NULL without `t`, or where it holds no numbers. INVALID_ARG: of another
 * shape than one number, [n_heads] or [n_heads, 1, 1]. */
static nrd_error *find_scales(const nrd_src_tensor *t, int64_t n_heads, int64_t first, int64_t n_own, nrd_plan_part *out)
{
    *out = (nrd_plan_part){0};
    if (!t || !t->data || !nrd_plan_is_float(t->dtype)) {
        return NULL;
    }
    const int64_t n = (int64_t)nrd_src_tensor_numbers(t);
    if (n != 1 && (n != n_heads || t->dims[0] != n)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has %lld scales; expected one, or one for each of %lld heads of keys",
                          t->name, (long long)n, (long long)n_heads);
    }
    *out = n == 1 ? (nrd_plan_part){.src = t, .n_rows = n_own, .group_rows = 1}
                  : (nrd_plan_part){.src = t, .row0 = first, .n_rows = n_own};
    return NULL;
}

nrd_error *nrd_plan_add_kv_range(nrd_plan *p, const char *qkv, int32_t layer)
{
    const float top = nrd_source_kv_top(p->src);
    const int64_t n_heads = p->spec.n_kv_heads;
    char name[NRD_PLAN_MAX_NAME];
    const char *end = strrchr(qkv, '.');
    int64_t first, n_own;

    nrd_plan_own_kv_heads(p, &first, &n_own);
    for (end = end ? end - 1 : qkv; end > qkv && end[0] != '.'; end--) { /* ".q_proj.weight" is cut off */
    }
    for (size_t i = 0; top > 0 && i < sizeof names / sizeof names[0]; i++) {
        nrd_plan_tensor t = {.is_vector = true, .is_divided = true, .dtype = NRD_DTYPE_F32, .cols = 1, .n_parts = 2, .n_factors = 1,
                             .factors = {top}, .factor_rows = {2 * n_heads}}; /* of the source */
        for (int k = 0; k < 2; k++) {
            snprintf(name, sizeof name, "%.*s.%s", (int)(end - qkv), qkv, names[i][k]);
            NRD_TRY(find_scales(nrd_plan_use(p, name), n_heads, first, n_own, &t.parts[k]));
        }
        if (t.parts[0].src && t.parts[1].src) {
            snprintf(name, sizeof name, NRD_LAYER_PREFIX NRD_KV_RANGE, layer);
            return nrd_plan_add(p, &t, name);
        }
    }
    return NULL;
}
