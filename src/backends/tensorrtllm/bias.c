/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/tensorrtllm/llm.h"

#include "base/json.h"
#include "base/limits.h"
#include "base/str.h"

#include <math.h>
#include <string.h>

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
