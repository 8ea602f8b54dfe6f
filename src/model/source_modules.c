/* SPDX-License-Identifier: Apache-2.0
 * What stands behind the network in a folder: modules of sentence-transformers, and rows of the LM head that are a classifier.
 * Called by source_folder.c. */
#include "model/source_internal.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "model/needs.h"
#include "model/spec_classifier.h"
#include "model/spec_projection.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* 1_Pooling/config.json, as the sentence-transformers library writes it. */
static nrd_error *read_pooling(nrd_model_spec *spec, const nrd_json *o)
{
    static const struct {
        const char *key;
        nrd_spec_pooling pooling;
    } modes[] = {
        {"pooling_mode_cls_token", NRD_SPEC_POOL_FIRST},
        {"pooling_mode_mean_tokens", NRD_SPEC_POOL_MEAN},
        {"pooling_mode_lasttoken", NRD_SPEC_POOL_LAST},
    };
    int n = 0;

    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        if (nrd_json_get_bool(o, modes[i].key, false)) {
            spec->pooling = modes[i].pooling;
            n++;
        }
    }
    if (n != 1 || nrd_json_get_bool(o, "pooling_mode_max_tokens", false) ||
        nrd_json_get_bool(o, "pooling_mode_mean_sqrt_len_tokens", false) ||
        nrd_json_get_bool(o, "pooling_mode_weightedmean_tokens", false)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "a pooling other than one of cls_token, mean_tokens and lasttoken is "
                          "not supported");
    }
    return NULL;
}

/* The id of a token by its text: tokenizer.json's vocabulary, else its added tokens. */
static int64_t token_in(const nrd_json *tokenizer, const char *text)
{
    const nrd_json *added = nrd_json_get(tokenizer, "added_tokens");
    const nrd_json *id = nrd_json_get(nrd_json_get(nrd_json_get(tokenizer, "model"), "vocab"), text);

    for (size_t i = 0; !id && i < nrd_json_len(added); i++) {
        const nrd_json *a = nrd_json_at(added, i);
        id = !strcmp(nrd_json_get_str(a, "content", ""), text) ? nrd_json_get(a, "id") : NULL;
    }
    return nrd_json_int(id, -1);
}

static nrd_error *check_tokens(const nrd_source *s, const int64_t *ids, int n, const char *where)
{
    for (int i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= s->spec.vocab) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: %s names a token that the vocabulary of %d does not have", s->path,
                              where, s->spec.vocab);
        }
    }
    return NULL;
}

static nrd_error *take_tokens(nrd_source *s, const int64_t *ids, int n, const char *where)
{
    const int32_t small[2] = {(int32_t)ids[0], (int32_t)ids[1]};

    NRD_TRY(check_tokens(s, ids, n, where));
    nrd_classifier_from_tokens(&s->spec.classifier, small, n);
    return NULL;
}

/* classifier_from_token of config.json, as vLLM knows it: two tokens, and the score is the second's logit less the
 * first's. */
nrd_error *nrd_source_read_classifier_tokens(nrd_source *s, const nrd_json *config)
{
    static const char key[] = "classifier_from_token";
    const nrd_json *list = nrd_json_get(config, key);
    nrd_json_doc *tokenizer = NULL;
    nrd_error *err = NULL;
    int64_t ids[2];

    if (!list || nrd_json_is(list, NRD_JSON_NULL)) {
        return NULL;
    }
    if (!nrd_json_is(list, NRD_JSON_ARRAY) || nrd_json_len(list) != 2 ||
        (!nrd_json_get_bool(config, "is_original_qwen3_reranker", false) &&
         strcmp(nrd_json_get_str(config, "method", ""), "from_2_way_softmax") != 0)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s/config.json: %s must be two tokens, beside is_original_qwen3_reranker or the "
                          "method from_2_way_softmax", s->path, key);
    }
    NRD_TRY_GOTO(nrd_source_json(&tokenizer, s->path, "tokenizer.json"), err, done);
    for (size_t i = 0; i < 2; i++) {
        ids[i] = tokenizer ? token_in(nrd_json_root(tokenizer), nrd_json_str(nrd_json_at(list, i), "")) : -1;
    }
    NRD_TRY_GOTO(take_tokens(s, ids, 2, key), err, done);
    if (nrd_json_get_bool(config, "is_original_qwen3_reranker", false)) {
        snprintf(s->spec.classifier.prompt, sizeof s->spec.classifier.prompt, "qwen3");
    }
done:
    nrd_json_doc_free(tokenizer);
    return err;
}

/* sentence-transformers' LogitScore: the logit of one token, or two tokens' difference. */
static nrd_error *read_logit_score(nrd_source *s, const char *module)
{
    nrd_json_doc *config = NULL, *library = NULL;
    nrd_error *err = NULL;
    char name[256];

    snprintf(name, sizeof name, "%.200s/config.json", module);
    NRD_TRY_GOTO(nrd_source_json(&config, s->path, name), err, done);
    NRD_TRY_GOTO(nrd_source_json(&library, s->path, "config_sentence_transformers.json"), err, done);
    const nrd_json *root = config ? nrd_json_root(config) : NULL, *no = nrd_json_get(root, "false_token_id");
    const bool both = no && !nrd_json_is(no, NRD_JSON_NULL);
    const int64_t yes = nrd_json_get_int(root, "true_token_id", -1), ids[2] = {both ? nrd_json_int(no, -1) : yes, yes};
    NRD_TRY_GOTO(take_tokens(s, ids, both ? 2 : 1, name), err, done);
    snprintf(s->spec.classifier.prompt, sizeof s->spec.classifier.prompt, "chat");
    err = nrd_classifier_pair_function(&s->spec.classifier,
                                       library ? nrd_json_get_str(nrd_json_root(library), "activation_fn", NULL) : NULL);
done:
    nrd_json_doc_free(config);
    nrd_json_doc_free(library);
    return err;
}

/* sentence-transformers' Dense: a folder with a configuration and the weights of one product. */
static nrd_error *read_dense(nrd_source *s, const char *module)
{
    nrd_json_doc *config = NULL;
    nrd_error *err = NULL;
    char name[256];

    if (!*module || strchr(module, '/') || !strcmp(module, "..")) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s/modules.json: the path '%.80s' of a module is no folder's name", s->path, module);
    }
    snprintf(name, sizeof name, "%.200s/config.json", module);
    NRD_TRY(nrd_source_json(&config, s->path, name));
    err = config ? nrd_error_wrap(nrd_projection_from_dense(&s->spec, nrd_json_root(config)), "%s/%s", s->path, name)
                 : nrd_errorf(NRD_ERR_NOT_FOUND, "%s: there is no file %s, which modules.json names", s->path, name);
    nrd_json_doc_free(config);
    if (!err) {
        s->dense[s->spec.n_projections - 1] = strdup(module);
        err = s->dense[s->spec.n_projections - 1] ? NULL : nrd_error_no_memory();
    }
    return err;
}

/* The tensors of the modules Dense, as projection.1 and projection.2. */
nrd_error *nrd_source_add_dense(nrd_source *s)
{
    static const char *const names[NRD_SPEC_MAX_PROJECTIONS][2] = {{NRD_PROJECTION "1.weight", NRD_PROJECTION "1.bias"},
                                                                   {NRD_PROJECTION "2.weight", NRD_PROJECTION "2.bias"}};
    nrd_tensor_table *table = &s->ranks[0];

    for (int32_t i = 0; i < s->spec.n_projections; i++) {
        const size_t before = table->n;
        char name[256], *path = NULL;
        snprintf(name, sizeof name, "%.200s/model.safetensors", s->dense[i]);
        NRD_TRY(nrd_path_make(&path, s->path, name));
        const bool is_bin = !nrd_path_exists(path);
        if (is_bin) {
            free(path);
            snprintf(name, sizeof name, "%.200s/pytorch_model.bin", s->dense[i]);
            NRD_TRY(nrd_path_make(&path, s->path, name));
        }
        nrd_error *err = is_bin ? nrd_source_add_torch_bin(s, table, path) : nrd_source_add_safetensors(s, table, path);
        free(path);
        NRD_TRY(err);
        for (size_t k = before; k < table->n; k++) {
            const bool is_bias = !strcmp(table->tensors[k].name, "linear.bias");
            if (!is_bias && strcmp(table->tensors[k].name, "linear.weight") != 0) {
                return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s/%s: the tensor '%.80s' of a module Dense", s->path, name, table->tensors[k].name);
            }
            table->tensors[k].name = names[i][is_bias];
        }
    }
    return s->spec.n_projections > 0 ? nrd_table_finish(s, table) : NULL;
}

/* What sentence-transformers puts behind a model: modules.json lists it. Without the file its pooling is what the family
 * says. */
nrd_error *nrd_source_read_modules(nrd_source *s)
{
    nrd_error *err = NULL;
    nrd_json_doc *modules = NULL, *pooling = NULL;
    const nrd_json *list;

    NRD_TRY_GOTO(nrd_source_json(&modules, s->path, "modules.json"), err, done);
    list = modules ? nrd_json_root(modules) : NULL;
    for (size_t i = 0; i < nrd_json_len(list) && !err; i++) {
        const nrd_json *module = nrd_json_at(list, i);
        const char *type = nrd_json_get_str(module, "type", "");
        const char *name = strrchr(type, '.') ? strrchr(type, '.') + 1 : type;
        if (!strcmp(name, "LogitScore") && !s->spec.encoder) {
            err = read_logit_score(s, nrd_json_get_str(module, "path", ""));
        } else if (!strcmp(name, "Dense")) {
            err = read_dense(s, nrd_json_get_str(module, "path", ""));
        } else if (strcmp(name, "Transformer") && strcmp(name, "Pooling") && strcmp(name, "Normalize")) {
            err = nrd_errorf(NRD_ERR_UNSUPPORTED, "%s/modules.json: the module '%.80s' is not supported", s->path, type);
        }
    }
    if (err || !modules) {
        goto done;
    }
    NRD_TRY_GOTO(nrd_source_json(&pooling, s->path, "1_Pooling/config.json"), err, done);
    if (pooling) {
        err = nrd_error_wrap(read_pooling(&s->spec, nrd_json_root(pooling)), "%s/1_Pooling/config.json", s->path);
    }
done:
    nrd_json_doc_free(modules);
    nrd_json_doc_free(pooling);
    return err;
}
