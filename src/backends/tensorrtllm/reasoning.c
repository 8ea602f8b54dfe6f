/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/tensorrtllm/llm.h"

#include "base/json.h"

#include <string.h>

enum { MAX_IDS = 64 }; /* of a list; the executor says which may have fewer */

static TRITONSERVER_Error *read_ids(const nrd_json *root, const char *name, nrd_arena *arena, nrd_exec_ids *out)
{
    const nrd_json *list = nrd_json_get(root, name);
    if (!list) {
        return NULL;
    }
    if (list->type != NRD_JSON_ARRAY || list->n > MAX_IDS) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, NRD_LLM_REASONING ": %s must be a list of at most %d ids", name, MAX_IDS);
    }
    int32_t *ids = nrd_arena_alloc(arena, (list->n + 1) * sizeof *ids);
    if (!ids) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    for (size_t i = 0; i < list->n; i++) {
        const int64_t id = nrd_json_int(&list->child[i], -1);
        if (id < 0 || id > INT32_MAX) {
            return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, NRD_LLM_REASONING ": %s must be a list of token ids", name);
        }
        ids[i] = (int32_t)id;
    }
    *out = (nrd_exec_ids){ids, (int32_t)list->n};
    return NULL;
}

static TRITONSERVER_Error *read_rule(const nrd_json *root, nrd_arena *arena, nrd_exec_request *out)
{
    const int64_t budget = nrd_json_int(nrd_json_get(root, "budget"), -1);
    const nrd_json *open = nrd_json_get(root, "open");
    if (!nrd_json_is(root, NRD_JSON_OBJECT) || budget < 0 || budget > INT32_MAX) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, NRD_LLM_REASONING " must be an object with a budget of 0 to %d tokens", INT32_MAX);
    }
    NRD_TB_TRY(read_ids(root, "begin", arena, &out->reasoning_begin));
    NRD_TB_TRY(read_ids(root, "end", arena, &out->reasoning_end));
    NRD_TB_TRY(read_ids(root, "close", arena, &out->reasoning_close));
    out->reasoning_open = nrd_json_is(open, NRD_JSON_BOOL) && open->boolean;
    out->reasoning_budget = (int32_t)budget;
    return NULL;
}

TRITONSERVER_Error *nrd_llm_read_reasoning(const char *text, nrd_arena *arena, nrd_exec_request *out)
{
    const nrd_json_limits limits = {.max_bytes = 8192, .max_depth = 3, .max_nodes = 4 * MAX_IDS + 16};
    nrd_json_doc *doc = NULL;
    nrd_error *err = nrd_json_parse(&doc, text, strlen(text), &limits);

    if (err) {
        return nrd_tb_error(nrd_error_wrap(err, NRD_LLM_REASONING));
    }
    TRITONSERVER_Error *out_err = read_rule(nrd_json_root(doc), arena, out);
    nrd_json_doc_free(doc);
    return out_err;
}
