/* SPDX-License-Identifier: Apache-2.0
 * Single keys of config.json. */
#include "model/hf_keys.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_KEY = 64 };

const nrd_json *nrd_hf_get(const nrd_json *o, const char *keys)
{
    char key[MAX_KEY];
    for (const char *at = keys; *at;) {
        size_t n = strcspn(at, "|");
        snprintf(key, sizeof key, "%.*s", (int)n, at);
        const nrd_json *v = nrd_json_get(o, key);
        if (v && !nrd_json_is(v, NRD_JSON_NULL)) {
            return v;
        }
        at += n + (at[n] == '|');
    }
    return NULL;
}

nrd_error *nrd_hf_wrong_value(const nrd_json *v, const char *expected)
{
    nrd_str got = {0};

    nrd_json_put(&got, v, -1);
    nrd_error *err = nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' must be %s, got %.60s", v->key, expected, nrd_str_cstr(&got));
    nrd_str_fini(&got);
    return err;
}

nrd_error *nrd_hf_int(const nrd_json *o, const char *keys, int64_t fallback, int32_t *out)
{
    const nrd_json *v = nrd_hf_get(o, keys);
    int64_t i = v ? nrd_json_int(v, INT64_MIN) : fallback;
    if (i < INT32_MIN || i > INT32_MAX) {
        if (!v) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "'%.*s' is missing", (int)strcspn(keys, "|"), keys);
        }
        return nrd_hf_wrong_value(v, "a whole number of 32 bits");
    }
    *out = (int32_t)i;
    return NULL;
}

nrd_error *nrd_hf_refuse(const nrd_json *c, const char *key)
{
    const nrd_json *v = nrd_hf_get(c, key);
    bool no = !v || (nrd_json_is(v, NRD_JSON_BOOL) && !nrd_json_bool(v, false)) ||
              (nrd_json_num(v, 1) >= 0 && nrd_json_num(v, 1) <= 0);
    return no ? NULL : nrd_errorf(NRD_ERR_UNSUPPORTED, "'%s' in this configuration is not supported", key);
}

nrd_error *nrd_hf_scale(const nrd_json *c, const char *key, double *out)
{
    const nrd_json *v = nrd_hf_get(c, key);
    double x = v ? nrd_json_num(v, 0) : *out;
    if (!(x > 0) || !isfinite(x)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' must be above 0, got %g", key, x);
    }
    *out = x;
    return NULL;
}

nrd_error *nrd_hf_layer_types(nrd_model_spec *s, const nrd_json *types)
{
    if (nrd_json_len(types) != (size_t)s->n_layers) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "'layer_types' has %zu entries, expected one for each of %d layers",
                          nrd_json_len(types), s->n_layers);
    }
    for (int32_t i = 0; i < s->n_layers; i++) {
        const char *t = nrd_json_str(nrd_json_at(types, (size_t)i), "");
        if (strcmp(t, "sliding_attention") && strcmp(t, "full_attention")) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "layer_types[%d]: '%s' is not supported", i, t);
        }
        s->layer_is_sliding[i] = t[0] == 's';
    }
    return NULL;
}
