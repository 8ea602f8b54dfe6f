/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/tensorrtllm/llm.h"

#include "base/json.h"
#include "base/limits.h"
#include "base/str.h"

#include <math.h>
#include <string.h>

/* What is added to the logit of a token that is not to come: no other value makes up for it, and unlike an infinity it can
 * be told and computed with. */
static const float never = -1e9f;

static TRITONSERVER_Error *read_entries(const nrd_json *root, nrd_arena *arena, nrd_exec_request *out)
{
    if (root->type != NRD_JSON_OBJECT) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "logit_bias must be an object of token ids and numbers");
    }
    if (root->n > NRD_LIMIT_LOGIT_BIAS) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "logit_bias has %zu entries, at most %d are allowed", (size_t)root->n,
                             NRD_LIMIT_LOGIT_BIAS);
    }
    int32_t *ids = nrd_arena_alloc(arena, (root->n + 1) * sizeof *ids);
    float *values = nrd_arena_alloc(arena, (root->n + 1) * sizeof *values);
    if (!ids || !values) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    for (size_t i = 0; i < root->n; i++) {
        const nrd_json *v = &root->child[i];
        const double x = nrd_json_num(v, NAN);
        long long id;
        if (!nrd_parse_i64(v->key, &id) || id < 0 || id > INT32_MAX) {
            return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "logit_bias: '%.40s' is no token id",
                                 v->key);
        }
        if (!isfinite(x)) {
            return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                                 "logit_bias: the value of token %.40s is no number", v->key);
        }
        ids[i] = (int32_t)id;
        values[i] = (float)x;
    }
    out->bias_ids = ids;
    out->bias_values = values;
    out->n_bias = (int32_t)root->n;
    return NULL;
}

TRITONSERVER_Error *nrd_llm_read_bias(const char *text, nrd_arena *arena, nrd_exec_request *out)
{
    const nrd_json_limits limits = {
        .max_bytes = 64 * (size_t)NRD_LIMIT_LOGIT_BIAS,
        .max_depth = 2,
        .max_nodes = 8 * (size_t)NRD_LIMIT_LOGIT_BIAS,
    };
    nrd_json_doc *doc = NULL;
    nrd_error *err = nrd_json_parse(&doc, text, strlen(text), &limits);

    if (err) {
        return nrd_tb_error(nrd_error_wrap(err, "logit_bias"));
    }
    TRITONSERVER_Error *out_err = read_entries(nrd_json_root(doc), arena, out);
    nrd_json_doc_free(doc);
    return out_err;
}

/* Fills `bias` from the list, and from what the request adds to the logits of tokens on it. */
static TRITONSERVER_Error *fill_allowed(const nrd_json *list, int32_t vocab, const nrd_exec_request *in, float *bias)
{
    if (list->type != NRD_JSON_ARRAY || list->n == 0) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, NRD_LLM_ALLOWED " must be a list of at least one token id");
    }
    for (int32_t i = 0; i < vocab; i++) {
        bias[i] = never;
    }
    for (size_t i = 0; i < list->n; i++) {
        const int64_t id = nrd_json_int(&list->child[i], -1);
        if (id < 0 || id >= vocab) {
            return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, NRD_LLM_ALLOWED ": element %zu is no token id from 0 to %d (the "
                                 "model's vocabulary)", i, vocab - 1);
        }
        bias[id] = in->embedding_bias ? in->embedding_bias[id] : 0;
    }
    for (int32_t i = 0; i < in->n_bias; i++) {
        const int32_t id = in->bias_ids[i];
        if (id >= vocab) {
            return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "logit_bias has the token id %d, expected 0 to %d (the model's vocabulary)",
                                 id, vocab - 1);
        }
        bias[id] = bias[id] > never ? in->bias_values[i] : never;
    }
    return NULL;
}

TRITONSERVER_Error *nrd_llm_allow_only(const char *text, int32_t vocab, nrd_arena *arena, nrd_exec_request *out)
{
    const nrd_json_limits limits = {.max_bytes = 16 * ((size_t)vocab + 1), .max_depth = 2, .max_nodes = (size_t)vocab + 1};
    nrd_json_doc *doc = NULL;

    if (out->embedding_bias && out->n_bias > 0) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "logit_bias and embedding_bias are both given");
    }
    nrd_error *err = nrd_json_parse(&doc, text, strlen(text), &limits);
    if (err) {
        return nrd_tb_error(nrd_error_wrap(err, NRD_LLM_ALLOWED));
    }
    float *bias = nrd_arena_alloc(arena, (size_t)vocab * sizeof *bias);
    TRITONSERVER_Error *out_err = bias ? fill_allowed(nrd_json_root(doc), vocab, out, bias) : nrd_tb_error(nrd_error_no_memory());
    nrd_json_doc_free(doc);
    if (!out_err) {
        out->embedding_bias = bias;
        out->bias_ids = NULL;
        out->bias_values = NULL;
        out->n_bias = 0;
    }
    return out_err;
}
