/* SPDX-License-Identifier: Apache-2.0 */
#include "model/spec_projection.h"

#include <stdio.h>
#include <string.h>

enum { MAX_SIZE = 1 << 20 };

/* Classes of torch, and what they are called here. */
static const struct {
    const char *class, *act;
} acts[] = {{"Identity", "none"}, {"Tanh", "tanh"}, {"GELU", "gelu"}, {"ReLU", "relu"}, {"SiLU", "silu"}};

static bool is_act(const char *name)
{
    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++) {
        if (!strcmp(acts[i].act, name)) {
            return true;
        }
    }
    return false;
}

nrd_error *nrd_projection_spec_check(const nrd_model_spec *s)
{
    for (int32_t i = 0; i < s->n_projections; i++) {
        const nrd_projection_spec *p = &s->projections[i];
        if (p->size < 1 || p->size > MAX_SIZE) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "projection %d: 'out_features' must be between 1 and %d, got %d", i + 1, (int)MAX_SIZE,
                              p->size);
        }
        if (!is_act(p->act)) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "projection %d: the activation '%s' is not supported", i + 1, p->act);
        }
    }
    return NULL;
}

void nrd_projection_spec_put(const nrd_model_spec *s, nrd_str *o)
{
    nrd_str_putc(o, '[');
    for (int32_t i = 0; i < s->n_projections; i++) {
        const nrd_projection_spec *p = &s->projections[i];
        nrd_str_printf(o, "%s{\"size\": %d, \"bias\": %s, \"act\": \"%s\"}", i ? ", " : "", p->size, p->bias ? "true" : "false", p->act);
    }
    nrd_str_putc(o, ']');
}

nrd_error *nrd_projection_add(nrd_model_spec *s, int64_t size, bool bias, const char *act)
{
    if (s->n_projections == NRD_SPEC_MAX_PROJECTIONS) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "more than %d products behind the pooled state", (int)NRD_SPEC_MAX_PROJECTIONS);
    }
    nrd_projection_spec *p = &s->projections[s->n_projections++];
    p->size = size < 1 || size > MAX_SIZE ? 0 : (int32_t)size;
    p->bias = bias;
    snprintf(p->act, sizeof p->act, "%.15s", act);
    return NULL;
}

nrd_error *nrd_projection_spec_read(const nrd_json *list, nrd_model_spec *s)
{
    for (size_t i = 0; i < nrd_json_len(list); i++) {
        const nrd_json *o = nrd_json_at(list, i);
        NRD_TRY(nrd_projection_add(s, nrd_json_get_int(o, "size", 0), nrd_json_get_bool(o, "bias", false), nrd_json_get_str(o, "act", "none")));
    }
    return NULL;
}

nrd_error *nrd_projection_from_dense(nrd_model_spec *s, const nrd_json *c)
{
    const char *class = nrd_json_get_str(c, "activation_function", "torch.nn.modules.activation.Tanh");
    const char *name = strrchr(class, '.') ? strrchr(class, '.') + 1 : class, *act = NULL;
    const int64_t in = s->n_projections > 0 ? s->projections[s->n_projections - 1].size : s->hidden;

    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++) {
        act = !strcmp(acts[i].class, name) ? acts[i].act : act;
    }
    if (!act) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "activation_function '%.80s' is not supported", class);
    }
    if (nrd_json_get_int(c, "in_features", 0) != in) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "in_features is %lld, expected %lld", (long long)nrd_json_get_int(c, "in_features", 0),
                          (long long)in);
    }
    return nrd_projection_add(s, nrd_json_get_int(c, "out_features", 0), nrd_json_get_bool(c, "bias", true), act);
}
