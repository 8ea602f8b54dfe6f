/* SPDX-License-Identifier: Apache-2.0
 * Heads for labels: limits, reading and writing them as JSON, and the keys of Hugging Face's config.json about
 * labels. Called by model/spec.c and model/arch_hf.c. */
#include "model/spec_classifier.h"

#include <stdio.h>
#include <string.h>

static const char *const function_names[] = {
    [NRD_LABELS_SOFTMAX] = "softmax", [NRD_LABELS_SIGMOID] = "sigmoid", [NRD_LABELS_PLAIN] = "none"};
static const char *const pooling_names[] = {
    [NRD_SPEC_POOL_FIRST] = "first", [NRD_SPEC_POOL_MEAN] = "mean", [NRD_SPEC_POOL_LAST] = "last"};
static const char *const act_names[] = {"tanh", "gelu", "gelu_tanh", "relu", "silu"};

#define COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))

const char *nrd_label_function_name(nrd_label_function f)
{
    return function_names[f];
}

nrd_error *nrd_classifier_spec_check(const nrd_model_spec *s)
{
    const nrd_classifier_spec *c = &s->classifier;
    bool known = !c->dense;

    if (c->n_labels < 0 || c->n_labels > NRD_SPEC_MAX_LABELS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "num_labels must be between 0 and %d, got %d", (int)NRD_SPEC_MAX_LABELS,
                          c->n_labels);
    }
    for (int i = 0; i < COUNT(act_names); i++) {
        known = known || !strcmp(c->act, act_names[i]);
    }
    if (c->n_labels > 0 && !known) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "the activation '%s' of a classifier is not supported", c->act);
    }
    if (c->difference && c->n_labels != 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "a difference of two numbers is one label, not %d", c->n_labels);
    }
    return NULL;
}

/* ---- names ---- */

/* The name of label i, "" where it has none; no more of them are there than fit. */
static nrd_error *add_label(nrd_classifier_spec *c, size_t *at, const char *name, size_t n)
{
    if (strlen(name) != n) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the name of a label holds a zero byte");
    }
    if (n + 1 > sizeof c->labels - *at) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "id2label: names of more than %zu bytes together", sizeof c->labels);
    }
    memcpy(c->labels + *at, name, n + 1);
    *at += n + 1;
    return NULL;
}

void nrd_classifier_put_labels(const nrd_classifier_spec *c, nrd_str *o)
{
    const char *name = c->labels;

    nrd_str_putc(o, '[');
    for (int32_t i = 0; i < c->n_labels; i++, name += strlen(name) + 1) {
        nrd_str_puts(o, i ? ", " : "");
        nrd_json_put_cstr(o, name);
    }
    nrd_str_putc(o, ']');
}

/* ---- checkpoints and engines ---- */

void nrd_classifier_spec_put(const nrd_classifier_spec *c, nrd_str *o)
{
    nrd_str_puts(o, "{\n      \"labels\": ");
    nrd_classifier_put_labels(c, o);
    nrd_str_printf(o, ",\n      \"pooling\": \"%s\",\n      \"dense\": %s,\n      \"dense_bias\": %s",
                   pooling_names[c->pooling], c->dense ? "true" : "false", c->dense_bias ? "true" : "false");
    nrd_str_printf(o, ",\n      \"act\": \"%s\",\n      \"norm\": %s,\n      \"norm_bias\": %s,\n      \"bias\": %s", c->act,
                   c->norm ? "true" : "false", c->norm_bias ? "true" : "false", c->bias ? "true" : "false");
    nrd_str_printf(o, ",\n      \"from_tokens\": %s,\n      \"prompt\": \"%s\"", c->from_tokens ? "true" : "false", c->prompt);
    nrd_str_printf(o, ",\n      \"difference\": %s,\n      \"function\": \"%s\",\n      \"pair_function\": \"%s\"\n    }",
                   c->difference ? "true" : "false", function_names[c->function], function_names[c->pair_function]);
}

static nrd_error *get_name(const nrd_json *o, const char *key, const char *const *names, int n, int *out)
{
    const char *v = nrd_json_get_str(o, key, names[0]);
    for (*out = 0; *out < n; (*out)++) {
        if (!strcmp(v, names[*out])) {
            return NULL;
        }
    }
    return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' has the unknown value '%.40s'", key, v);
}

nrd_error *nrd_classifier_spec_read(const nrd_json *o, nrd_classifier_spec *c)
{
    const nrd_json *labels = nrd_json_get(o, "labels");
    int function = 0, pair = 0, pooling = 0;
    size_t at = 0;

    if (!o) {
        return NULL;
    }
    if (!nrd_json_is(labels, NRD_JSON_ARRAY) || nrd_json_len(labels) == 0 || nrd_json_len(labels) > NRD_SPEC_MAX_LABELS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'labels' must be a list of 1 to %d names", (int)NRD_SPEC_MAX_LABELS);
    }
    c->n_labels = (int32_t)nrd_json_len(labels);
    for (int32_t i = 0; i < c->n_labels; i++) {
        const nrd_json *name = nrd_json_at(labels, (size_t)i);
        if (!nrd_json_is(name, NRD_JSON_STRING)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "labels[%d] must be a string", i);
        }
        NRD_TRY(add_label(c, &at, name->str, name->n));
    }
    NRD_TRY(get_name(o, "pooling", pooling_names, COUNT(pooling_names), &pooling));
    NRD_TRY(get_name(o, "function", function_names, COUNT(function_names), &function));
    NRD_TRY(get_name(o, "pair_function", function_names, COUNT(function_names), &pair));
    c->pooling = (nrd_spec_pooling)pooling;
    c->function = (nrd_label_function)function;
    c->pair_function = (nrd_label_function)pair;
    c->dense = nrd_json_get_bool(o, "dense", false);
    c->dense_bias = nrd_json_get_bool(o, "dense_bias", false);
    snprintf(c->act, sizeof c->act, "%.15s", nrd_json_get_str(o, "act", ""));
    c->norm = nrd_json_get_bool(o, "norm", false);
    c->norm_bias = nrd_json_get_bool(o, "norm_bias", false);
    c->bias = nrd_json_get_bool(o, "bias", false);
    c->difference = nrd_json_get_bool(o, "difference", false);
    c->from_tokens = nrd_json_get_bool(o, "from_tokens", false);
    snprintf(c->prompt, sizeof c->prompt, "%.15s", nrd_json_get_str(o, "prompt", ""));
    return NULL;
}

/* ---- Hugging Face ---- */

/* The name of label i: its entry in id2label, else transformers' own. */
static nrd_error *hf_label(nrd_classifier_spec *c, const nrd_json *names, int32_t i, size_t *at)
{
    char key[24];

    snprintf(key, sizeof key, "%d", i);
    const nrd_json *name = nrd_json_get(names, key);
    if (nrd_json_is(name, NRD_JSON_STRING)) {
        return add_label(c, at, name->str, name->n);
    }
    snprintf(key, sizeof key, "LABEL_%d", i);
    return add_label(c, at, key, strlen(key));
}

static nrd_error *hf_function(nrd_classifier_spec *c, const nrd_json *config)
{
    const char *problem = nrd_json_get_str(config, "problem_type", "");

    c->function = c->n_labels == 1 ? NRD_LABELS_SIGMOID : NRD_LABELS_SOFTMAX;
    if (!strcmp(problem, "multi_label_classification")) {
        c->function = NRD_LABELS_SIGMOID;
    } else if (!strcmp(problem, "regression")) {
        c->function = NRD_LABELS_PLAIN;
    } else if (*problem && strcmp(problem, "single_label_classification") != 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "problem_type '%.40s' is not supported", problem);
    }
    return NULL;
}

nrd_error *nrd_classifier_pair_function(nrd_classifier_spec *c, const char *name)
{
    c->pair_function = c->n_labels == 1 ? NRD_LABELS_SIGMOID : NRD_LABELS_PLAIN;
    if (!name) {
        return NULL;
    }
    if (nrd_str_has_suffix(name, ".Sigmoid")) {
        c->pair_function = NRD_LABELS_SIGMOID;
    } else if (nrd_str_has_suffix(name, ".Identity")) {
        c->pair_function = NRD_LABELS_PLAIN;
    } else if (nrd_str_has_suffix(name, ".Softmax")) {
        c->pair_function = NRD_LABELS_SOFTMAX;
    } else {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "the activation_fn '%.80s' of scores is not supported", name);
    }
    return NULL;
}

nrd_error *nrd_classifier_from_hf(nrd_classifier_spec *c, const nrd_json *config)
{
    const nrd_json *names = nrd_json_get(config, "id2label");
    const int64_t given = nrd_json_is(names, NRD_JSON_OBJECT) && nrd_json_len(names) > 0 ? (int64_t)nrd_json_len(names) : 2;
    const int64_t n = nrd_json_get_int(config, "num_labels", given);
    size_t at = 0;

    if (n < 1 || n > NRD_SPEC_MAX_LABELS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "num_labels must be between 1 and %d, got %lld", (int)NRD_SPEC_MAX_LABELS,
                          (long long)n);
    }
    c->n_labels = (int32_t)n;
    for (int32_t i = 0; i < c->n_labels; i++) {
        NRD_TRY(hf_label(c, names, i, &at));
    }
    const char *name = nrd_json_get_str(nrd_json_get(config, "sentence_transformers"), "activation_fn", NULL);
    NRD_TRY(hf_function(c, config));
    return nrd_classifier_pair_function(
        c, name ? name : nrd_json_get_str(config, "sbert_ce_default_activation_function", NULL));
}

void nrd_classifier_from_tokens(nrd_classifier_spec *c, const int32_t *ids, int n)
{
    *c = (nrd_classifier_spec){.n_labels = 1,
                               .from_tokens = true,
                               .difference = n == 2,
                               .token_ids = {ids[0], n == 2 ? ids[1] : 0},
                               .pooling = NRD_SPEC_POOL_LAST,
                               .function = NRD_LABELS_SIGMOID,
                               .pair_function = NRD_LABELS_SIGMOID,
                               .labels = "LABEL_0"};
}
