/* SPDX-License-Identifier: Apache-2.0
 * transform_config of compressed-tensors: rotations (QuaRot, Ashkboos et al., 2024; SpinQuant, Liu et al., 2024).
 *   weight_input, weight_output  were made before the weights were rounded: what one turns another turns back
 *   q_attn with k_cache          queries and keys alike, which leaves their products as they are
 *   input                        what a module's input is multiplied by: STEM.GROUP_input.weight [n, n] over the root of n, for each n
 *                                columns; one module's file has it for all. The weight is multiplied by it instead, and is plain then
 * Others are refused by their location. Source: compressed-tensors 0.20, transform/. */
#include "base/mem.h"
#include "model/quant/quant.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_SIZE = NRD_QUANT_MAX_ROTATION };

static const nrd_json *groups_of(nrd_quant *q)
{
    return nrd_quant_settings_of(q)->rotations;
}

static bool is_input(const nrd_json *one)
{
    return !strcmp(nrd_json_get_str(one, "location", ""), "input");
}

/* Names, expressions, or Linear: all that are multiplied. */
static bool names_it(const nrd_json *list, const char *stem)
{
    for (size_t i = 0; i < nrd_json_len(list); i++) {
        const char *name = nrd_json_str(nrd_json_at(list, i), "");
        if (!strncmp(name, "re:", 3) ? nrd_quant_matches(name + 3, stem)
                                     : !strcmp(name, stem) || (!strcmp(name, "Linear") && !nrd_str_has_suffix(stem, "embed_tokens"))) {
            return true;
        }
    }
    return false;
}

static nrd_error *check_names(const nrd_json *list)
{
    for (size_t i = 0; i < nrd_json_len(list); i++) {
        const char *name = nrd_json_str(nrd_json_at(list, i), "");
        if (!strncmp(name, "re:", 3) && !nrd_quant_understands(name + 3)) {
            return nrd_quant_refuse("transform_config: targets", nrd_json_at(list, i), "names, Linear, expressions that POSIX has");
        }
    }
    return NULL;
}

/* One group's places. */
static nrd_error *check_group(const nrd_json *group, const nrd_json *cache)
{
    const bool is_hadamard = strstr(nrd_json_get_str(group, "type", ""), "hadamard") && !nrd_json_get_bool(group, "randomize", false);
    const nrd_json *all = nrd_json_get(group, "apply"), *q = NULL, *k = NULL;

    for (size_t i = 0; i < nrd_json_len(all); i++) {
        const nrd_json *one = nrd_json_at(all, i), *at = nrd_json_get(one, "location");
        const char *name = nrd_json_str(at, "");
        const bool is_q = !strcmp(name, "q_attn"), is_k = !strcmp(name, "k_cache");
        if ((is_q && q) || (is_k && k) || (is_input(one) && !is_hadamard) ||
            (!is_q && !is_k && !is_input(one) && strcmp(name, "weight_input") != 0 && strcmp(name, "weight_output") != 0)) {
            return nrd_quant_refuse("transform_config: location", at, "weight_input, weight_output, input of a hadamard, q_attn with k_cache");
        }
        if (is_input(one)) {
            NRD_TRY(check_names(nrd_json_get(one, "targets")));
            NRD_TRY(check_names(nrd_json_get(one, "ignore")));
        }
        q = is_q ? one : q;
        k = is_k ? one : k;
    }
    const bool are_alike = q && k && nrd_json_get_bool(q, "inverse", false) == nrd_json_get_bool(k, "inverse", false) && is_hadamard;
    if ((q || k) && (!are_alike || nrd_json_is(cache, NRD_JSON_OBJECT))) { /* a cache's scales are for keys that were turned */
        return nrd_quant_refuse("transform_config: location", nrd_json_get(q ? q : k, "location"),
                                "q_attn and k_cache of one hadamard, without kv_cache_scheme");
    }
    return NULL;
}

nrd_error *nrd_quant_check_rotations(nrd_quant *q, const nrd_json *config)
{
    const nrd_json *groups = nrd_json_get(nrd_json_get(config, "transform_config"), "config_groups");

    for (size_t i = 0; nrd_json_is(groups, NRD_JSON_OBJECT) && i < nrd_json_len(groups); i++) {
        NRD_TRY(check_group(&groups->child[i], nrd_json_get(config, "kv_cache_scheme")));
    }
    nrd_quant_settings_of(q)->rotations = nrd_json_is(groups, NRD_JSON_OBJECT) ? groups : NULL;
    return NULL;
}

/* The place that turns a module's input, and its group; INVALID_ARG: there are two. */
static nrd_error *find(nrd_quant *q, const char *stem, const nrd_json **out_group, const nrd_json **out)
{
    const nrd_json *groups = groups_of(q);

    *out = *out_group = NULL;
    for (size_t g = 0; g < nrd_json_len(groups); g++) {
        const nrd_json *all = nrd_json_get(&groups->child[g], "apply");
        for (size_t i = 0; i < nrd_json_len(all); i++) {
            const nrd_json *one = nrd_json_at(all, i);
            if (!is_input(one) || !names_it(nrd_json_get(one, "targets"), stem) || names_it(nrd_json_get(one, "ignore"), stem)) {
                continue;
            }
            if (*out) {
                return nrd_errorf(NRD_ERR_INVALID_ARG, "transform_config turns the input of '%s' twice", stem);
            }
            *out = one;
            *out_group = &groups->child[g];
        }
    }
    return NULL;
}

nrd_error *nrd_quant_read_rotation(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    const nrd_json *group, *one;
    char suffix[128];
    nrd_src_tensor t;
    nrd_error *err = NULL;

    NRD_TRY(find(q, stem, &group, &one));
    if (!one) {
        return NULL;
    }
    if ((size_t)snprintf(suffix, sizeof suffix, ".%s_input.weight", group->key) >= sizeof suffix) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "transform_config has a group with a name of more than 100 bytes");
    }
    nrd_quant_try(q, stem, suffix, w, &t);
    if (!t.data) {
        nrd_quant_try_any(q, suffix, &t);
    }
    if (!t.data) {
        return nrd_errorf(NRD_ERR_NOT_FOUND, "tensor '%s%s' is missing, and no other module has one", stem, suffix);
    }
    const int64_t n = t.dims[0];
    NRD_TRY(nrd_quant_shape(&t, NRD_DTYPE_NONE, n, n));
    if (n > MAX_SIZE || w->cols % n) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "tensor '%s' turns %lld columns at a time, expected at most %d that divide the %lld of '%s'", t.name,
                          (long long)n, MAX_SIZE, (long long)w->cols, stem);
    }
    const bool is_inverse = nrd_json_get_bool(one, "inverse", false);
    NRD_NEW_GOTO(w->rotation, n * n, err, done);
    w->rotation_size = n;
    w->int8_input = false;
    for (int64_t i = 0; i < n * n; i++) {
        w->rotation[i] = nrd_quant_element(&t, is_inverse ? i : i % n * n + i / n) / sqrtf((float)n);
        if (!isfinite(w->rotation[i])) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has a number that is not finite", t.name);
        }
    }
done:
    return err;
}

nrd_error *nrd_quant_check_unrotated(nrd_quant *q, const nrd_src_tensor *t)
{
    const nrd_json *group, *one;
    char stem[NRD_QUANT_MAX_NAME];
    const size_t len = strlen(t->name), end = strlen(".weight");

    if (!groups_of(q) || t->n_dims != 2 || !nrd_str_has_suffix(t->name, ".weight") || nrd_str_has_suffix(t->name, "_input.weight") ||
        len - end >= sizeof stem) {
        return NULL;
    }
    memcpy(stem, t->name, len - end);
    stem[len - end] = '\0';
    NRD_TRY(find(q, stem, &group, &one));
    return one ? nrd_errorf(NRD_ERR_UNSUPPORTED, "transform_config turns the input of '%s', whose weight is not quantized", stem) : NULL;
}

void nrd_quant_turn(const nrd_quant_weight *w, float *row)
{
    const int64_t n = w->rotation_size;
    float turned[MAX_SIZE];

    for (float *at = row, *end = row + w->cols; at < end; at += n) {
        const float *v = w->rotation;
        memset(turned, 0, (size_t)n * sizeof *turned);
        for (int64_t c = 0; c < n; c++, v += n) {
            for (int64_t i = 0; i < n; i++) { /* numbers that do not wait for each other: vectors */
                turned[i] += v[i] * at[c];
            }
        }
        memcpy(at, turned, (size_t)n * sizeof *at);
    }
}
