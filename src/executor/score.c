/* SPDX-License-Identifier: Apache-2.0
 * Log probabilities of given tokens: a request whose answer is written where the caller waits. */
#include "executor/internal.h"

nrd_error *nrd_exec_score(nrd_exec *x, const int32_t *ids, int32_t n, int32_t top_k,
                          float *out_logprobs, int32_t *out_top_ids, float *out_top_logprobs)
{
    return nrd_exec_score_lora(x, 0, ids, n, top_k, out_logprobs, out_top_ids, out_top_logprobs);
}

static nrd_error *check_scored(const int32_t *ids, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        if (ids[i] < 0) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "score: token %d is negative", i);
        }
    }
    return NULL;
}

static nrd_error *run_score(nrd_exec *x, uint64_t lora_task_id, const int32_t *ids, int32_t n, nrd_exec_scores *job)
{
    nrd_exec_request_state *r = NULL;
    nrd_exec_response *o = NULL;
    uint64_t id = 0;

    NRD_TRY(nrd_exec_request_new_score(&r, x, lora_task_id, ids, n, job));
    NRD_TRY(nrd_exec_submit(x, r, &id));
    NRD_TRY(nrd_exec_await_id(x, id, &o, -1));
    nrd_exec_response_state *own = (nrd_exec_response_state *)(void *)o;
    nrd_error *err = own->pub.error;
    own->pub.error = NULL;
    nrd_exec_response_free(o);
    return err;
}

nrd_error *nrd_exec_score_rows(nrd_exec *x, const int32_t *ids, int32_t n,
                               void (*on_row)(void *user, int32_t position, const float *logits), void *user)
{
    return nrd_exec_score_rows_lora(x, 0, ids, n, on_row, user);
}

nrd_error *nrd_exec_score_rows_lora(nrd_exec *x, uint64_t lora_task_id, const int32_t *ids, int32_t n,
                                    void (*on_row)(void *user, int32_t position, const float *logits), void *user)
{
    nrd_exec_scores job = {.on_row = on_row, .user = user};
    if (!ids || n < 1 || !on_row) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "score: needs at least one token and somebody to tell");
    }
    NRD_TRY(check_scored(ids, n));
    return run_score(x, lora_task_id, ids, n, &job);
}

nrd_error *nrd_exec_score_lora(nrd_exec *x, uint64_t lora_task_id, const int32_t *ids, int32_t n,
                               int32_t top_k, float *out_logprobs, int32_t *out_top_ids,
                               float *out_top_logprobs)
{
    return nrd_exec_score_last(x, lora_task_id, ids, n, n, top_k, out_logprobs, out_top_ids, out_top_logprobs);
}

nrd_error *nrd_exec_score_last(nrd_exec *x, uint64_t lora_task_id, const int32_t *ids, int32_t n, int32_t n_last, int32_t top_k,
                               float *out_logprobs, int32_t *out_top_ids, float *out_top_logprobs)
{
    nrd_exec_scores job = {.log_probs = out_logprobs, .top_ids = out_top_ids, .top_log_probs = out_top_logprobs,
                              .top_k = top_k, .first = n - n_last};

    if (!ids || n < 1 || n_last < 1 || n_last > n || !out_logprobs || top_k < 0 || top_k > x->spec->vocab ||
        (top_k > 0 && (!out_top_ids || !out_top_logprobs))) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "score: needs at least one token and room for results");
    }
    NRD_TRY(check_scored(ids, n));
    out_logprobs[0] = 0; /* of the first token of all, which has nothing before it */
    for (int32_t k = 0; k < top_k; k++) {
        out_top_ids[k] = -1;
        out_top_logprobs[k] = 0;
    }
    return run_score(x, lora_task_id, ids, n, &job);
}
