/* SPDX-License-Identifier: Apache-2.0
 * Reads PEFT folders. The configuration is checked first: whatever would change the result and is not
 * computed here is refused by its name. Then every tensor of the file must be lora_A, lora_B or, with
 * use_dora, lora_magnitude_vector of a linear module; modules are found by the names in the families' weight maps (model/families). Called by lora_files.c. */
#include "model/peft.h"

#include "base/dtype.h"
#include "base/file.h"
#include "base/mem.h"
#include "formats/safetensors.h"
#include "formats/torch_bin.h"
#include "model/arch.h"

#include <math.h>
#include <regex.h>
#include <stdio.h>
#include <string.h>

enum { MAX_CONFIG = 4 << 20, MAX_NAME = 384, MAX_PATTERN = 4096 };

typedef struct tensor {
    const char *name;
    nrd_dtype dtype;
    int n_dims;
    const int64_t *dims;
    const void *data;
} tensor;

enum { PART_A, PART_B, PART_MAGNITUDE, N_PARTS };
static const char *const part_names[N_PARTS] = {"lora_A", "lora_B", "lora_magnitude_vector"};

typedef struct pair {
    char name[MAX_NAME]; /* of the module: "model.layers.0.self_attn.q_proj" */
    tensor part[N_PARTS];
    float scale;
} pair;

struct nrd_peft {
    const char *dir; /* the caller's */
    nrd_json_doc *doc;
    const nrd_json *config;
    nrd_safetensors *st;
    nrd_torch_bin *bin;
    pair *pairs;
    size_t n;
    nrd_lora_pair_in *out;
};

/* ---- the configuration ---- */

static bool is_set(const nrd_json *v)
{
    if (!v || nrd_json_is(v, NRD_JSON_NULL)) {
        return false;
    }
    if (nrd_json_is(v, NRD_JSON_BOOL)) {
        return nrd_json_bool(v, false);
    }
    return !(nrd_json_is(v, NRD_JSON_ARRAY) || nrd_json_is(v, NRD_JSON_OBJECT)) || nrd_json_len(v) > 0;
}

static nrd_error *check_initial(const nrd_peft *p)
{
    static const char *const changes_base[] = {"pissa", "olora", "corda", "loftq"};
    const char *init = nrd_json_get_str(p->config, "init_lora_weights", "");
    for (size_t i = 0; i < sizeof changes_base / sizeof changes_base[0]; i++) {
        if (nrd_str_has_prefix(init, changes_base[i])) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: init_lora_weights '%.40s' changes the base weights, which "
                              "serving keeps as they are; convert the adapter to a plain LoRA", p->dir, init);
        }
    }
    return NULL;
}

static nrd_error *check_config(const nrd_peft *p)
{
    static const struct {
        const char *key, *what;
    } refused[] = {
        {"modules_to_save", "whole modules beside the adapter"},
        {"lora_bias", "biases of the low-rank matrices"},
        {"trainable_token_indices", "rows of embeddings"},
        {"layer_replication", "repeated layers"},
        {"target_parameters", "adapters of parameters"},
        {"alora_invocation_tokens", "activated LoRA"},
        {"use_qalora", "QA-LoRA"},
        {"use_bdlora", "block-diagonal LoRA"},
        {"arrow_config", "Arrow routing"},
    };
    const char *type = nrd_json_get_str(p->config, "peft_type", "LORA");
    const char *bias = nrd_json_get_str(p->config, "bias", "none");

    if (strcmp(type, "LORA") != 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: peft_type '%.40s' is not supported, only LORA", p->dir, type);
    }
    if (strcmp(bias, "none") != 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: bias '%.40s': adapters that train biases are not supported, merge it "
                          "into its base model", p->dir, bias);
    }
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        if (is_set(nrd_json_get(p->config, refused[i].key))) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: %s (%s) is not supported, merge the adapter into its base model",
                              p->dir, refused[i].key, refused[i].what);
        }
    }
    int64_t r = nrd_json_get_int(p->config, "r", 0);
    double alpha = nrd_json_get_num(p->config, "lora_alpha", NAN);
    if (r < 1 || r > INT32_MAX) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: r must be a whole number of at least 1, got %lld", p->dir,
                          (long long)r);
    }
    if (!isfinite(alpha)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: lora_alpha must be a number", p->dir);
    }
    return check_initial(p);
}

/* Python's classes and groups in POSIX words. False: too long. */
static bool posix_pattern(char out[MAX_PATTERN], const char *head, const char *python)
{
    size_t at = (size_t)snprintf(out, MAX_PATTERN, "%s", head);
    for (const char *s = python; *s; s++) {
        const char *put = NULL;
        size_t used = 2;
        char one[3] = {*s, 0, 0};
        if (s[0] == '\\' && s[1]) {
            put = s[1] == 'd' ? "[0-9]" : s[1] == 'w' ? "[A-Za-z0-9_]" : NULL;
            one[1] = s[1];
        } else if (!strncmp(s, "(?:", 3)) {
            put = "(";
            used = 3;
        } else {
            used = 1;
        }
        put = put ? put : one;
        if (at + strlen(put) + 3 > MAX_PATTERN) {
            return false;
        }
        at += (size_t)snprintf(out + at, MAX_PATTERN - at, "%s", put);
        s += used - 1;
    }
    snprintf(out + at, MAX_PATTERN - at, ")$");
    return true;
}

/* Does the whole name match, behind `head`? */
static nrd_error *matches(const nrd_peft *p, const char *key, const char *head, const char *python, const char *name,
                          bool *out)
{
    char pattern[MAX_PATTERN];
    regex_t re;

    *out = false;
    if (!posix_pattern(pattern, head, python) || regcomp(&re, pattern, REG_EXTENDED | REG_NOSUB)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: %s: the pattern '%.100s' cannot be read (POSIX extended syntax, \\d, "
                          "\\w and (?: ) can)", p->dir, key, python);
    }
    *out = regexec(&re, name, 0, NULL, 0) == 0;
    regfree(&re);
    return NULL;
}

/* The value of the first pattern that fits the end of the module's name, or `otherwise`. */
static nrd_error *by_pattern(const nrd_peft *p, const char *key, const char *name, double otherwise, double *out)
{
    const nrd_json *patterns = nrd_json_get(p->config, key);
    *out = otherwise;
    for (size_t i = 0; i < nrd_json_len(patterns) && nrd_json_is(patterns, NRD_JSON_OBJECT); i++) {
        const nrd_json *v = nrd_json_at(patterns, i);
        const char *python = v->key[0] == '^' ? v->key + 1 : v->key;
        bool fits = false;
        NRD_TRY(matches(p, key, v->key[0] == '^' ? "^(" : "^(.*\\.)?(", python, name, &fits));
        if (fits) {
            *out = nrd_json_num(v, NAN);
            return NULL;
        }
    }
    return NULL;
}

/* Whether target_modules names this module; PEFT leaves others out. */
static nrd_error *is_target(const nrd_peft *p, const char *name, bool *out)
{
    const nrd_json *t = nrd_json_get(p->config, "target_modules");
    const char *one = nrd_json_str(t, NULL);
    *out = !is_set(t) || (one && !strcmp(one, "all-linear"));
    if (*out) {
        return NULL;
    }
    if (one) {
        return matches(p, "target_modules", "^(", one, name, out);
    }
    size_t n = strlen(name);
    for (size_t i = 0; i < nrd_json_len(t) && !*out; i++) {
        const char *end = nrd_json_str(nrd_json_at(t, i), "");
        size_t k = strlen(end);
        *out = k > 0 && k <= n && !strcmp(name + n - k, end) && (k == n || name[n - k - 1] == '.');
    }
    return NULL;
}

/* ---- tensors ---- */

static nrd_error *refuse_tensor(const nrd_peft *p, const char *name)
{
    const char *what = strstr(name, "lora_embedding_") ? "an adapter of the embeddings"
                       : strstr(name, ".bias") ? "a bias"
                                               : "a whole weight (modules_to_save)";
    return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: tensor '%.200s' is %s, which is not supported; merge the adapter into "
                      "its base model", p->dir, name, what);
}

/* "base_model.model.<module>.lora_A[.<adapter>].weight" -> module, and which part of it; magnitudes also without what
 * follows the module. */
static bool parse_name(const char *name, char out[MAX_NAME], int *part)
{
    static const char head[] = "base_model.model.";
    static const char *const marks[N_PARTS] = {".lora_A.", ".lora_B.", ".lora_magnitude_vector"};
    const char *at = NULL, *from = name;
    for (*part = 0; *part < N_PARTS && !(at = strstr(name, marks[*part])); ++*part) {
    }
    if (!at || (!nrd_str_has_suffix(at, ".weight") && strcmp(at, marks[PART_MAGNITUDE]) != 0)) {
        return false;
    }
    from = nrd_str_has_prefix(name, head) ? name + sizeof head - 1 : name;
    if (at <= from || at - from >= MAX_NAME) {
        return false;
    }
    snprintf(out, MAX_NAME, "%.*s", (int)(at - from), from);
    return true;
}

static nrd_error *add_tensor(nrd_peft *p, const tensor *t)
{
    char name[MAX_NAME];
    int part = 0;
    size_t i = 0;

    if (!parse_name(t->name, name, &part)) {
        return refuse_tensor(p, t->name);
    }
    const int n_dims = part == PART_MAGNITUDE ? 1 : 2;
    if (t->n_dims != n_dims) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: tensor '%.200s' has %d dimensions, expected %d (a linear module)",
                          p->dir, t->name, t->n_dims, n_dims);
    }
    while (i < p->n && strcmp(p->pairs[i].name, name) != 0) {
        i++;
    }
    pair *at = &p->pairs[i];
    if (i == p->n) {
        p->n++;
        snprintf(at->name, sizeof at->name, "%s", name);
    }
    tensor *slot = &at->part[part];
    if (slot->name) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: %s comes twice for module %.200s", p->dir, part_names[part], name);
    }
    *slot = *t;
    return NULL;
}

static nrd_error *read_tensors(nrd_peft *p)
{
    char *st = NULL, *bin = NULL;
    nrd_error *err = NULL;
    size_t n = 0;

    NRD_TRY_GOTO(nrd_path_make(&st, p->dir, "adapter_model.safetensors"), err, done);
    NRD_TRY_GOTO(nrd_path_make(&bin, p->dir, "adapter_model.bin"), err, done);
    if (nrd_path_exists(st)) {
        NRD_TRY_GOTO(nrd_safetensors_open(&p->st, st), err, done);
        n = nrd_safetensors_n(p->st);
    } else if (nrd_path_exists(bin)) {
        NRD_TRY_GOTO(nrd_torch_bin_open(&p->bin, bin), err, done);
        n = nrd_torch_bin_n(p->bin);
    } else {
        err = nrd_errorf(NRD_ERR_NOT_FOUND, "%s: neither adapter_model.safetensors nor adapter_model.bin", p->dir);
        goto done;
    }
    if (n > (size_t)NRD_SPEC_MAX_LAYERS * NRD_LORA_POSITIONS * 4) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "%s: %zu tensors, expected at most %d", p->dir, n,
                         NRD_SPEC_MAX_LAYERS * NRD_LORA_POSITIONS * 4);
        goto done;
    }
    NRD_NEW_GOTO(p->pairs, n, err, done);
    for (size_t i = 0; i < n && !err; i++) {
        if (p->st) {
            const nrd_safetensor *t = nrd_safetensors_at(p->st, i);
            err = add_tensor(p, &(tensor){t->name, t->dtype, t->n_dims, t->dims, t->data});
        } else {
            const nrd_torch_tensor *t = nrd_torch_bin_at(p->bin, i);
            err = add_tensor(p, &(tensor){t->name, t->dtype, t->n_dims, t->dims, t->data});
        }
    }
done:
    free(st);
    free(bin);
    return err;
}

/* All parts of a module are there, and no other; magnitudes are as many as outputs. */
static nrd_error *check_parts(const nrd_peft *p, const pair *q)
{
    const bool is_dora = nrd_json_get_bool(p->config, "use_dora", false);
    const tensor *m = &q->part[PART_MAGNITUDE], *b = &q->part[PART_B];

    for (int i = 0; i < (is_dora ? N_PARTS : PART_MAGNITUDE); i++) {
        if (!q->part[i].name) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: module %.200s has no %s", p->dir, q->name, part_names[i]);
        }
    }
    if (m->name && !is_dora) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: module %.200s has a lora_magnitude_vector, but adapter_config.json has no "
                          "use_dora", p->dir, q->name);
    }
    if (m->name && m->dims[0] != b->dims[0]) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: module %.200s: lora_magnitude_vector has %lld numbers, lora_B %lld rows", p->dir,
                          q->name, (long long)m->dims[0], (long long)b->dims[0]);
    }
    return NULL;
}

/* Shapes agree with each other and with the configuration's rank; then the scale. */
static nrd_error *settle(nrd_peft *p, pair *q)
{
    const tensor *a = &q->part[PART_A], *b = &q->part[PART_B];
    double r = 0, alpha = 0;
    bool target = false;

    NRD_TRY(check_parts(p, q));
    NRD_TRY(is_target(p, q->name, &target));
    if (!target) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: module %.200s is none of target_modules", p->dir, q->name);
    }
    NRD_TRY(by_pattern(p, "rank_pattern", q->name, (double)nrd_json_get_int(p->config, "r", 0), &r));
    NRD_TRY(by_pattern(p, "alpha_pattern", q->name, nrd_json_get_num(p->config, "lora_alpha", NAN), &alpha));
    if ((double)a->dims[0] != r || a->dims[0] != b->dims[1] || a->dtype != b->dtype || !isfinite(alpha)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: module %.200s: lora_A [%lld, %lld] and lora_B [%lld, %lld] do not fit "
                          "rank %g and each other", p->dir, q->name, (long long)a->dims[0], (long long)a->dims[1],
                          (long long)b->dims[0], (long long)b->dims[1], r);
    }
    q->scale = (float)(nrd_json_get_bool(p->config, "use_rslora", false) ? alpha / sqrt(r) : alpha / r);
    return NULL;
}

nrd_error *nrd_peft_open(nrd_peft **out, const char *dir)
{
    nrd_error *err = NULL;
    nrd_peft *p = NULL;
    char *path = NULL;
    const nrd_json_limits limits = {.max_bytes = MAX_CONFIG};

    *out = NULL;
    NRD_TRY_GOTO(nrd_path_make(&path, dir, "adapter_config.json"), err, fail);
    NRD_NEW_GOTO(p, 1, err, fail);
    p->dir = dir;
    NRD_TRY_GOTO(nrd_json_parse_file(&p->doc, path, &limits), err, fail);
    p->config = nrd_json_root(p->doc);
    NRD_TRY_GOTO(check_config(p), err, fail);
    NRD_TRY_GOTO(read_tensors(p), err, fail);
    for (size_t i = 0; i < p->n; i++) {
        NRD_TRY_GOTO(settle(p, &p->pairs[i]), err, fail);
    }
    free(path);
    *out = p;
    return NULL;

fail:
    free(path);
    nrd_peft_close(p);
    return err;
}

void nrd_peft_close(nrd_peft *p)
{
    if (!p) {
        return;
    }
    nrd_json_doc_free(p->doc);
    nrd_safetensors_close(p->st);
    nrd_torch_bin_close(p->bin);
    free(p->pairs);
    free(p->out);
    free(p);
}

/* ---- names of modules ---- */

/* `pattern` without ".weight", '*' = the layer, behind `prefix`. */
static bool is_name(const char *prefix, const char *pattern, const char *name, int32_t *layer)
{
    size_t n = strlen(prefix), len;
    const char *star = strchr(pattern, '*');
    char *end = NULL;

    if (strncmp(name, prefix, n) != 0 || !star) {
        return false;
    }
    name += n;
    len = (size_t)(star - pattern);
    if (strncmp(name, pattern, len) != 0 || name[len] < '0' || name[len] > '9') {
        return false;
    }
    long v = strtol(name + len, &end, 10);
    const char *rest = star + 1, *tail = strstr(rest, ".weight");
    if (!tail || v > NRD_SPEC_MAX_LAYERS) {
        return false;
    }
    *layer = (int32_t)v;
    return strlen(end) == (size_t)(tail - rest) && !strncmp(end, rest, (size_t)(tail - rest));
}

/* Which module is the i-th source of a rule; -1: none that adapters can have. Where the rows of a source
 * are not those of the product (halves, groups), a pair for it would have to be taken apart. */
static int32_t module_of_rule(const nrd_weight_rule *r, int i)
{
    static const struct {
        const char *dst;
        int32_t one, many;
    } modules[] = {
        {"attention.qkv.weight", 0, 1}, {"attention.dense.weight", 4, 4}, {"mlp.fc.weight", 5, 5},
        {"mlp.proj.weight", 6, 6},      {"mlp.gate.weight", 7, 7},
    };
    for (size_t k = 0; k < sizeof modules / sizeof modules[0]; k++) {
        if (!strcmp(r->dst, modules[k].dst) && !(r->flags & ~(uint32_t)(NRD_RULE_TRANSPOSE | NRD_RULE_IF_THERE))) {
            return r->src[1] ? modules[k].many + i : modules[k].one;
        }
    }
    return -1;
}

/* The module that a family knows under this name; -1: none. */
static int32_t module_in(const nrd_arch *arch, const char *name, int32_t *layer)
{
    for (const nrd_weight_rule *r = arch->hf_rules; r->dst; r++) {
        for (int i = 0; i < 3 && r->src[i]; i++) {
            for (const char *const *prefix = arch->hf_prefixes; *prefix; prefix++) {
                bool nested = nrd_str_has_prefix(*prefix, "model.") && nrd_str_has_prefix(r->src[i], "model.");
                int32_t id = module_of_rule(r, i);
                if (id >= 0 && is_name(*prefix, r->src[i] + (nested ? 6 : 0), name, layer)) {
                    return id;
                }
            }
        }
    }
    return -1;
}

static int32_t find_module(const char *model_type, const char *name, int32_t *layer)
{
    const nrd_arch *arch;
    if (model_type) {
        arch = nrd_arch_by_model_type(model_type);
        return arch ? module_in(arch, name, layer) : -1;
    }
    for (int i = 0; (arch = nrd_arch_at(i)) != NULL; i++) {
        int32_t id = module_in(arch, name, layer);
        if (id >= 0) {
            return id;
        }
    }
    return -1;
}

nrd_error *nrd_peft_pairs(nrd_peft *p, const char *model_type, const nrd_lora_pair_in **out, int32_t *out_n)
{
    nrd_error *err = NULL;

    *out = NULL;
    *out_n = 0;
    free(p->out);
    NRD_NEW_GOTO(p->out, p->n, err, fail);
    for (size_t i = 0; i < p->n; i++) {
        const pair *q = &p->pairs[i];
        const tensor *a = &q->part[PART_A], *b = &q->part[PART_B];
        int32_t layer = 0, id = find_module(model_type, q->name, &layer);
        if (id < 0) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: module '%.200s' is no linear module of a layer of %s models",
                              p->dir, q->name, model_type ? model_type : "known");
        }
        p->out[i] = (nrd_lora_pair_in){
            .name = q->name,
            .module = id,
            .layer = layer,
            .rank = a->dims[0] <= INT32_MAX ? (int32_t)a->dims[0] : INT32_MAX,
            .dtype = a->dtype,
            .scale = q->scale,
            .in = a->dims[1],
            .out = b->dims[0],
            .a = a->data,
            .b = b->data,
            .gain = q->part[PART_MAGNITUDE].data,
            .gain_dtype = q->part[PART_MAGNITUDE].dtype,
            .is_magnitude = q->part[PART_MAGNITUDE].name != NULL,
        };
    }
    *out = p->out;
    *out_n = (int32_t)p->n;
fail:
    return err;
}
