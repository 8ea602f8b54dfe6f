/* SPDX-License-Identifier: Apache-2.0
 * Calibrated scales of an 8-bit cache in a Hugging Face folder. A scale is of one type of cache; what the engine keeps is how
 * far keys and values go, which serves both types. Called by plan.c. */
#include "model/needs.h"
#include "model/plan_internal.h"

#include <stdio.h>
#include <string.h>

/* What stands behind the attention module's name, for keys and for values. */
static const char *const names[][2] = {
    {"k_scale", "v_scale"},               /* compressed-tensors */
    {"k_proj.k_scale", "v_proj.v_scale"}, /* ModelOpt */
    {"kv_scale", "kv_scale"},             /* AutoFP8 */
};

/* One number, for all heads. */
static bool is_one_number(const nrd_src_tensor *t)
{
    int64_t n = 1;
    for (int d = 0; t && d < t->n_dims; d++) {
        n = t->dims[d] == 1 ? n : 0;
    }
    return t && n == 1 && t->data && nrd_plan_is_float(t->dtype);
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
            t.parts[k] = (nrd_plan_part){.src = src, .n_rows = 1};
            found += is_one_number(src);
        }
        if (found == 2) {
            snprintf(name, sizeof name, NRD_LAYER_PREFIX NRD_KV_RANGE, layer);
            return nrd_plan_add(p, &t, name);
        }
    }
    return NULL;
}
