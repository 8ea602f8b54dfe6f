/* SPDX-License-Identifier: Apache-2.0
 * What readers ask for while a folder is opened: fields of its configuration, and the parts of a weight. */
#include "model/quant/quant_internal.h"

#include <ctype.h>
#include <regex.h>
#include <stdio.h>
#include <string.h>

enum { MAX_PATTERN = 256 };

nrd_quant_settings *nrd_quant_settings_of(nrd_quant *q)
{
    return &q->settings;
}

/* ---- fields ---- */

nrd_error *nrd_quant_refuse(const char *field, const nrd_json *value, const char *known)
{
    char number[32];
    snprintf(number, sizeof number, "%g", nrd_json_num(value, 0));
    return nrd_errorf(NRD_ERR_UNSUPPORTED, "quantization_config: %s '%s' is not supported; known: %s", field,
                      nrd_json_str(value, nrd_json_is_number(value) ? number : nrd_json_type_name(value)), known);
}

nrd_error *nrd_quant_int(const nrd_json *config, const char *key, int64_t fallback, int64_t low, int64_t high,
                         int64_t *out)
{
    const nrd_json *v = nrd_json_get(config, key);
    bool given = v && !nrd_json_is(v, NRD_JSON_NULL);
    *out = given ? nrd_json_int(v, INT64_MIN) : fallback;
    if (*out < low || *out > high) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "quantization_config: '%s' must be a whole number from %lld to %lld, got "
                          "%s %g", key, (long long)low, (long long)high, nrd_json_type_name(v), nrd_json_num(v, 0));
    }
    return NULL;
}

int64_t nrd_quant_columns_by_name(nrd_quant *q, const char *stem)
{
    static const char *const of_state[] = {".q_proj", ".k_proj", ".v_proj", ".qkv_proj", ".gate_proj", ".up_proj", ".gate_up_proj"};
    const nrd_json *text = nrd_json_get(q->settings.model, "text_config");
    const nrd_json *c = nrd_json_is(text, NRD_JSON_OBJECT) ? text : q->settings.model;
    const int64_t hidden = nrd_json_get_int(c, "hidden_size", 0), heads = nrd_json_get_int(c, "num_attention_heads", 0);
    const int64_t inter = nrd_json_get_int(c, "intermediate_size", 0);
    const int64_t head_dim = nrd_json_get_int(c, "head_dim", heads > 0 ? hidden / heads : 0);
    int64_t cols = !strcmp(stem, "lm_head") ? hidden : 0;

    for (size_t i = 0; i < sizeof of_state / sizeof of_state[0]; i++) {
        cols = nrd_str_has_suffix(stem, of_state[i]) ? hidden : cols;
    }
    if (nrd_str_has_suffix(stem, ".o_proj") && heads > 0 && heads < INT32_MAX && head_dim > 0 && head_dim < INT32_MAX) {
        cols = heads * head_dim;
    } else if (nrd_str_has_suffix(stem, ".down_proj")) {
        cols = strstr(stem, ".experts.") ? nrd_json_get_int(c, "moe_intermediate_size", inter) : inter;
    }
    return cols > 0 && cols <= INT32_MAX ? cols : 0;
}

/* A target that begins with "re:" is an expression of Python, which must match from the name's start. Those that POSIX writes alike are
 * understood, in bounds; others match nothing. */
static bool compile(const char *pattern, regex_t *out)
{
    char text[MAX_PATTERN + 8];
    static const char *const otherwise[] = {"{", "}", "(?", "*?", "+?", "??", "*+", "++", "?+", "**"};

    for (size_t i = 0; i < sizeof otherwise / sizeof otherwise[0]; i++) {
        if (strlen(pattern) > MAX_PATTERN || strstr(pattern, otherwise[i])) {
            return false;
        }
    }
    for (const char *at = strchr(pattern, '\\'); at; at = strchr(at + 2, '\\')) {
        if (at[1] == '\0' || isalnum((unsigned char)at[1])) { /* a class of characters, or what was matched before */
            return false;
        }
    }
    snprintf(text, sizeof text, "^(%s)", pattern);
    return regcomp(out, text, REG_EXTENDED | REG_NOSUB) == 0;
}

bool nrd_quant_understands(const char *pattern)
{
    regex_t re;

    if (!compile(pattern, &re)) {
        return false;
    }
    regfree(&re);
    return true;
}

bool nrd_quant_matches(const char *pattern, const char *stem)
{
    regex_t re;

    if (!compile(pattern, &re)) {
        return false;
    }
    const bool found = regexec(&re, stem, 0, NULL, 0) == 0;
    regfree(&re);
    return found;
}

/* ---- parts ---- */

nrd_src_tensor *nrd_quant_find(const nrd_quant *q, const char *name)
{
    size_t low = 0, high = q->n_table;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int order = strcmp(q->table[mid].name, name);
        if (order == 0) {
            return &q->table[mid];
        }
        low = order < 0 ? mid + 1 : low;
        high = order > 0 ? mid : high;
    }
    return NULL;
}

void nrd_quant_try(nrd_quant *q, const char *stem, const char *suffix, nrd_quant_weight *w, nrd_src_tensor *out)
{
    char name[NRD_QUANT_MAX_NAME];
    *out = (nrd_src_tensor){0};
    if ((size_t)snprintf(name, sizeof name, "%s%s", stem, suffix) >= sizeof name) {
        return;
    }
    nrd_src_tensor *t = nrd_quant_find(q, name);
    if (t) {
        *out = *t;
        q->taken[t - q->table] = 1;
        w->file_bytes += t->data_bytes;
    }
}

void nrd_quant_try_any(nrd_quant *q, const char *suffix, nrd_src_tensor *out)
{
    size_t i = 0;

    while (i < q->n_table && !nrd_str_has_suffix(q->table[i].name, suffix)) {
        i++;
    }
    *out = i < q->n_table ? q->table[i] : (nrd_src_tensor){0};
}

nrd_error *nrd_quant_take(nrd_quant *q, const char *stem, const char *suffix, nrd_quant_weight *w,
                          nrd_src_tensor *out)
{
    nrd_quant_try(q, stem, suffix, w, out);
    return out->data ? NULL : nrd_errorf(NRD_ERR_NOT_FOUND, "tensor '%s%s' is missing or empty; the weight of '%s' "
                                         "needs it by quant_method '%s'", stem, suffix, stem, q->reader->method);
}
