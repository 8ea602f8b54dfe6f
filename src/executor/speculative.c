/* SPDX-License-Identifier: Apache-2.0
 * nrd_exec_config.speculative_config, and the proposers that it gives to sequences. */
#include "executor/draft_model.h"
#include "executor/internal.h"

#include "base/json.h"
#include "base/mem.h"
#include "engine/decode/decode.h"
#include "engine/speculate/budget.h"
#include "engine/speculate/drafter.h"
#include "engine/speculate/proposer.h"
#include "engine/speculate/verify.h"

#include <string.h>

enum { MAX_MATCH = 64, DEFAULT_NGRAM = 8, DEFAULT_MODEL = 4, DEFAULT_MIN_MATCH = 2, DEFAULT_MAX_MATCH = 8 };

static nrd_error *read_int(const nrd_json *member, int32_t most, int32_t *out)
{
    const int64_t v = nrd_json_int(member, -1);
    if (v < 1 || v > most) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "speculative_config: %.40s must be a number from 1 to %d", member->key,
                          (int)most);
    }
    *out = (int32_t)v;
    return NULL;
}

static nrd_error *read_path(const nrd_json *member, char **out)
{
    const char *path = nrd_json_str(member, "");
    nrd_error *err = NULL;
    if (!path[0] || *out) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "speculative_config: model must be the path of an engine, a GGUF file, a "
                                               "Hugging Face or a checkpoint folder, once");
    }
    NRD_DUP_GOTO(*out, path, err, fail);
fail:
    return err;
}

/* One member; *known is false where the method has none of its name. */
static nrd_error *read_member(const nrd_json *m, bool is_model, nrd_exec_speculative *c, bool *known)
{
    *known = true;
    if (!strcmp(m->key, "method")) {
        return NULL;
    }
    if (!strcmp(m->key, "num_speculative_tokens")) {
        return read_int(m, NRD_MAX_PASSES, &c->max_draft);
    }
    if (!strcmp(m->key, "adaptive")) {
        c->always = !nrd_json_bool(m, true);
        return nrd_json_is(m, NRD_JSON_BOOL) ? NULL : nrd_errorf(NRD_ERR_INVALID_ARG, "speculative_config: adaptive must be "
                                                                                     "true or false");
    }
    if (is_model && !strcmp(m->key, "model")) {
        return read_path(m, &c->model);
    }
    if (!is_model && !strcmp(m->key, "prompt_lookup_min")) {
        return read_int(m, MAX_MATCH, &c->min_match);
    }
    if (!is_model && !strcmp(m->key, "prompt_lookup_max")) {
        return read_int(m, MAX_MATCH, &c->max_match);
    }
    *known = false;
    return NULL;
}

static nrd_error *read_members(const nrd_json *root, nrd_exec_speculative *c)
{
    const char *method = nrd_json_get_str(root, "method", NULL);

    if (!nrd_json_is(root, NRD_JSON_OBJECT) || !method) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "speculative_config must be an object with a method, like "
                                               "{\"method\": \"ngram\", \"num_speculative_tokens\": 8}");
    }
    const bool is_model = !strcmp(method, "draft_model");
    if (!is_model && strcmp(method, "ngram") != 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "speculative_config: method '%.40s' is not supported; known: ngram, "
                                               "draft_model", method);
    }
    *c = (nrd_exec_speculative){is_model ? DEFAULT_MODEL : DEFAULT_NGRAM, DEFAULT_MIN_MATCH, DEFAULT_MAX_MATCH, false, NULL};
    for (size_t i = 0; i < nrd_json_len(root); i++) {
        const nrd_json *m = nrd_json_at(root, i);
        bool known = false;
        NRD_TRY(read_member(m, is_model, c, &known));
        if (!known) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "speculative_config: '%.40s' is not known; known: method, "
                                                   "num_speculative_tokens, adaptive, %s",
                              m->key, is_model ? "model" : "prompt_lookup_min, prompt_lookup_max");
        }
    }
    if (is_model && !c->model) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "speculative_config: method 'draft_model' needs model, the draft model's path");
    }
    if (c->min_match > c->max_match) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "speculative_config: prompt_lookup_min is %d, more than prompt_lookup_max, %d",
                          c->min_match, c->max_match);
    }
    return NULL;
}

nrd_error *nrd_exec_speculative_read(const char *json, nrd_exec_speculative *out)
{
    nrd_json_doc *doc = NULL;

    *out = (nrd_exec_speculative){0};
    if (!json || !json[0]) {
        return NULL;
    }
    NRD_TRY(nrd_error_wrap(nrd_json_parse(&doc, json, strlen(json), &(nrd_json_limits){.max_bytes = 4096, .max_depth = 4}),
                           "speculative_config"));
    nrd_error *err = read_members(nrd_json_root(doc), out);
    nrd_json_doc_free(doc);
    if (err) {
        nrd_exec_speculative_fini(out);
    }
    return err;
}

void nrd_exec_speculative_fini(nrd_exec_speculative *c)
{
    free(c->model);
    *c = (nrd_exec_speculative){0};
}

nrd_error *nrd_exec_check_speculative_config(const char *json)
{
    nrd_exec_speculative unused;
    nrd_error *err = nrd_exec_speculative_read(json, &unused);
    nrd_exec_speculative_fini(&unused);
    return err;
}

size_t nrd_exec_speculative_bytes(const nrd_exec *x, int32_t max_total)
{
    return x->speculative.model           ? nrd_proposer_drafter_bytes()
           : x->speculative.max_draft > 0 ? nrd_proposer_ngram_bytes(max_total)
                                          : 0;
}

/* Where a draft could never be used there is no proposer: it would only keep a device from running ahead. */
nrd_error *nrd_exec_speculative_prepare(const nrd_exec *x, nrd_seq *q)
{
    const nrd_exec_speculative *c = &x->speculative;

    nrd_decode_prepare(q);
    if (c->max_draft == 0 || q->spec.proposer || !nrd_speculate_suits(q)) {
        return NULL;
    }
    const nrd_exec_request_state *r = q->req.owner;
    if (c->model && r->n_table_rows > 0) {
        return NULL; /* rows of a prompt table are not in the draft model's vocabulary */
    }
    NRD_TRY(c->model ? nrd_exec_draft_proposer(x, &q->spec.proposer)
                     : nrd_proposer_ngram(&q->spec.proposer, c->max_draft, c->min_match, c->max_match, q->req.max_total));
    q->spec.proposer->always = c->always;
    nrd_decode_prepare(q);
    return NULL;
}
