/* SPDX-License-Identifier: Apache-2.0
 * Executor responses -> Triton responses. Runs on the instance's responder thread only, but for
 * nrd_llm_respond_error, which Execute calls for rows that were never accepted. */
#include "backends/tensorrtllm/llm.h"

#include "base/clock.h"
#include "base/dtype.h"
#include "base/log.h"
#include "nereid/server.h"

#include <string.h>

#define I32 TRITONSERVER_TYPE_INT32
#define F32 TRITONSERVER_TYPE_FP32

typedef struct perf_output {
    const char *name;
    TRITONSERVER_DataType dtype;
} perf_output;

/* In the order of put_perf's values. */
static const perf_output perf_outputs[] = {
    {"kv_cache_alloc_new_blocks", I32},
    {"kv_cache_reused_blocks", I32},
    {"kv_cache_alloc_total_blocks", I32},
    {"arrival_time_ns", TRITONSERVER_TYPE_INT64},
    {"first_scheduled_time_ns", TRITONSERVER_TYPE_INT64},
    {"first_token_time_ns", TRITONSERVER_TYPE_INT64},
    {"last_token_time_ns", TRITONSERVER_TYPE_INT64},
    {"total_accepted_draft_tokens", I32},
    {"total_draft_tokens", I32},
    {"acceptance_rate", F32},
};
enum { N_PERF = sizeof perf_outputs / sizeof *perf_outputs };

TRITONSERVER_Error *nrd_llm_wants(const nrd_llm_rules *rules, TRITONBACKEND_Request *request,
                                  uint32_t *out)
{
    static const struct {
        const char *name;
        uint32_t bit;
    } table[] = {
        {"output_ids", LLM_OUT_OUTPUT_IDS},
        {"sequence_length", LLM_OUT_SEQUENCE_LENGTH},
        {"cum_log_probs", LLM_OUT_CUM_LOG_PROBS},
        {"output_log_probs", LLM_OUT_OUTPUT_LOG_PROBS},
        {"context_logits", LLM_OUT_CONTEXT_LOGITS},
        {"generation_logits", LLM_OUT_GENERATION_LOGITS},
        {"batch_index", LLM_OUT_BATCH_INDEX},
        {"sequence_index", LLM_OUT_SEQUENCE_INDEX},
        {"stream_state", LLM_OUT_STREAM_STATE},
        {"context_phase_params", LLM_OUT_CONTEXT_PARAMS},
        {"num_input_tokens", LLM_OUT_NUM_INPUT},
        {"num_output_tokens", LLM_OUT_NUM_OUTPUT},
    };
    uint32_t n = 0;
    *out = 0;
    NRD_TB_TRY(TRITONBACKEND_RequestOutputCount(request, &n));
    for (uint32_t i = 0; i < n; i++) {
        const char *name = NULL;
        NRD_TB_TRY(TRITONBACKEND_RequestOutputName(request, i, &name));
        for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
            *out |= strcmp(name, table[k].name) ? 0 : table[k].bit;
        }
        for (size_t k = 0; k < N_PERF; k++) {
            *out |= strcmp(name, perf_outputs[k].name) ? 0 : LLM_OUT_PERF;
        }
    }
    for (size_t k = 0; k < (rules->has_sequence_length ? 2u : 1u); k++) {
        if (!(*out & table[k].bit)) {
            return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                                 "output tensor '%s' must be requested", table[k].name);
        }
    }
    return NULL;
}

static TRITONSERVER_Error *put(TRITONBACKEND_Response *t, const char *name,
                               TRITONSERVER_DataType dtype, int64_t d1, int64_t d2, int64_t d3,
                               uint32_t n_dims, void **out)
{
    int64_t shape[] = {1, d1, d2, d3};
    size_t n = (size_t)d1 * (size_t)(n_dims > 2 ? d2 : 1) * (size_t)(n_dims > 3 ? d3 : 1);
    return nrd_tb_output(t, name, dtype, shape, n_dims, n * TRITONSERVER_DataTypeByteSize(dtype), out);
}

static TRITONSERVER_Error *put_i32(TRITONBACKEND_Response *t, const char *name, int32_t v)
{
    int32_t *out;
    NRD_TB_TRY(put(t, name, I32, 1, 0, 0, 2, (void **)&out));
    *out = v;
    return NULL;
}

/* output_ids [1, beams, longest] padded with -1, sequence_length [1, beams]. Where no length is sent,
 * the padding is decoded too. */
static TRITONSERVER_Error *put_ids(const nrd_llm_row *row, TRITONBACKEND_Response *t,
                                   const nrd_exec_response *r)
{
    const bool has_length = row->request->instance->model->rules.has_sequence_length;
    const int32_t pad = has_length ? -1 : row->end_id;
    int32_t longest = 0, *ids, *lengths = NULL;
    for (int32_t b = 0; b < r->n_beams; b++) {
        longest = r->beams[b].n_ids > longest ? r->beams[b].n_ids : longest;
    }
    NRD_TB_TRY(put(t, "output_ids", I32, r->n_beams, longest, 0, 3, (void **)&ids));
    if (has_length) {
        NRD_TB_TRY(put(t, "sequence_length", I32, r->n_beams, 0, 0, 2, (void **)&lengths));
    }
    for (int32_t b = 0; b < r->n_beams; b++) {
        const nrd_beam_output *beam = &r->beams[b];
        for (int32_t i = 0; i < longest; i++) {
            *ids++ = i < beam->n_ids ? beam->ids[i] : pad;
        }
        if (lengths) {
            lengths[b] = beam->n_ids;
        }
    }
    return NULL;
}

/* num_input_tokens and num_output_tokens [1, 1] in each response. As the published model has it, the second is the size of this
 * response's output_ids: of all beams, as long as the longest, with the prompt where it is echoed. */
static TRITONSERVER_Error *put_counts(const nrd_llm_row *row, TRITONBACKEND_Response *t, const nrd_exec_response *r)
{
    int32_t longest = 0;
    for (int32_t b = 0; b < r->n_beams; b++) {
        longest = r->beams[b].n_ids > longest ? r->beams[b].n_ids : longest;
    }
    if (row->return_num_input && (row->request->wants & LLM_OUT_NUM_INPUT)) {
        NRD_TB_TRY(put_i32(t, "num_input_tokens", row->n_prompt));
    }
    return row->return_num_output && (row->request->wants & LLM_OUT_NUM_OUTPUT)
               ? put_i32(t, "num_output_tokens", r->n_beams * longest)
               : NULL;
}

/* How many log probabilities the longest beam of an answer has, or zeros in their place. */
static int32_t count_log_probs(const nrd_llm_row *row, const nrd_exec_response *r)
{
    const bool echoed = !row->streaming && !row->exclude_input;
    int32_t longest = 0;

    if (!row->return_log_probs &&
        row->request->instance->model->rules.dummy_log_probs == LLM_DUMMY_OF_PROMPT) {
        return row->n_input_ids;
    }
    for (int32_t b = 0; b < r->n_beams; b++) {
        int32_t n = row->return_log_probs ? r->beams[b].n_log_probs
                                          : r->beams[b].n_ids - (echoed ? row->n_input_ids : 0);
        longest = n > longest ? n : longest;
    }
    return longest;
}

/* As the published backend does it, each answer of a stream has those of all tokens so far. */
static TRITONSERVER_Error *put_probs_so_far(nrd_llm_probs *so_far, TRITONBACKEND_Response *t, const nrd_beam_output *beam)
{
    const int32_t n = so_far->n + beam->n_log_probs;
    float *out;

    if (n > so_far->cap) {
        const int32_t cap = n < 32 ? 64 : 2 * n;
        float *more = realloc(so_far->p, (size_t)cap * sizeof *more);
        if (!more) {
            return nrd_tb_error(nrd_error_no_memory());
        }
        so_far->p = more;
        so_far->cap = cap;
    }
    for (int32_t i = 0; i < beam->n_log_probs; i++) {
        so_far->p[so_far->n++] = beam->log_probs[i];
    }
    NRD_TB_TRY(put(t, "output_log_probs", F32, 1, n, 0, 3, (void **)&out));
    for (int32_t i = 0; i < n; i++) {
        out[i] = so_far->p[i];
    }
    return NULL;
}

/* Asked for with return_log_probs. Repositories up to v0.13 get zeros otherwise. */
static TRITONSERVER_Error *put_log_probs(const nrd_llm_row *row, TRITONBACKEND_Response *t,
                                         const nrd_exec_response *r)
{
    const uint32_t wants = row->request->wants;
    const int32_t longest = count_log_probs(row, r);
    float *out;

    if (!row->return_log_probs &&
        row->request->instance->model->rules.dummy_log_probs == LLM_DUMMY_NONE) {
        return NULL;
    }
    if (wants & LLM_OUT_CUM_LOG_PROBS) {
        NRD_TB_TRY(put(t, "cum_log_probs", F32, r->n_beams, 0, 0, 2, (void **)&out));
        for (int32_t b = 0; b < r->n_beams; b++) {
            out[b] = row->return_log_probs ? r->beams[b].cum_log_prob : 0;
        }
    }
    if (row->probs) {
        return put_probs_so_far(&row->probs[r->sequence_index], t, r->beams);
    }
    if (wants & LLM_OUT_OUTPUT_LOG_PROBS) {
        NRD_TB_TRY(put(t, "output_log_probs", F32, r->n_beams, longest, 0, 3, (void **)&out));
        for (int32_t b = 0; b < r->n_beams; b++) {
            const nrd_beam_output *beam = &r->beams[b];
            for (int32_t i = 0; i < longest; i++) {
                *out++ = !row->return_log_probs     ? 0
                         : i < beam->n_log_probs ? beam->log_probs[i]
                                                 : -1;
            }
        }
    }
    return NULL;
}

/* top_log_prob_ids and top_log_probs [1, tokens, k], best first; only with the parameter top_logprobs. */
static TRITONSERVER_Error *put_top(const nrd_llm_row *row, TRITONBACKEND_Response *t,
                                   const nrd_exec_response *r)
{
    const nrd_beam_output *b = r->beams;
    size_t n = r->n_beams > 0 && b->top_ids ? (size_t)b->n_log_probs * (size_t)row->n_top : 0;
    int32_t *ids;
    float *probs;
    if (n == 0) {
        return NULL;
    }
    NRD_TB_TRY(put(t, "top_log_prob_ids", I32, b->n_log_probs, row->n_top, 0, 3, (void **)&ids));
    NRD_TB_TRY(put(t, "top_log_probs", F32, b->n_log_probs, row->n_top, 0, 3, (void **)&probs));
    memcpy(ids, b->top_ids, n * sizeof *ids);
    memcpy(probs, b->top_log_probs, n * sizeof *probs);
    return NULL;
}

/* Only with the parameter prompt_logprobs. */
static TRITONSERVER_Error *put_prompt_probs(TRITONBACKEND_Response *t, const nrd_exec_response *r)
{
    const size_t n = (size_t)r->n_input_ids, n_top = n * (size_t)r->n_prompt_top;
    void *out;

    NRD_TB_TRY(put(t, "prompt_log_probs", F32, r->n_input_ids, 0, 0, 2, &out));
    memcpy(out, r->prompt_log_probs, n * sizeof *r->prompt_log_probs);
    NRD_TB_TRY(put(t, "prompt_log_prob_ranks", I32, r->n_input_ids, 0, 0, 2, &out));
    memcpy(out, r->prompt_ranks, n * sizeof *r->prompt_ranks);
    if (n_top == 0) {
        return NULL;
    }
    NRD_TB_TRY(put(t, "prompt_top_log_prob_ids", I32, r->n_input_ids, r->n_prompt_top, 0, 3, &out));
    memcpy(out, r->prompt_top_ids, n_top * sizeof *r->prompt_top_ids);
    NRD_TB_TRY(put(t, "prompt_top_log_probs", F32, r->n_input_ids, r->n_prompt_top, 0, 3, &out));
    memcpy(out, r->prompt_top_log_probs, n_top * sizeof *r->prompt_top_log_probs);
    return NULL;
}

/* n floats in the type that the model declares. */
static void copy_logits(bool as_f16, void *out, const float *from, size_t n)
{
    uint16_t *halves = out;

    if (!as_f16) {
        memcpy(out, from, n * sizeof *from);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        halves[i] = nrd_f32_to_f16(from[i]);
    }
}

static TRITONSERVER_Error *put_logits(const nrd_llm_row *row, TRITONBACKEND_Response *t,
                                      const nrd_exec_response *r, bool dummies)
{
    static const float none = 0;
    const uint32_t wants = row->request->wants;
    const bool half = row->request->instance->model->f16_logits;
    const TRITONSERVER_DataType type = half ? TRITONSERVER_TYPE_FP16 : F32;
    void *out;

    if ((wants & LLM_OUT_CONTEXT_LOGITS) && (r->context_logits || dummies)) {
        const float *from = r->context_logits ? r->context_logits : &none;
        const int64_t rows = r->context_logits ? r->n_input_ids : 1;
        const int64_t width = r->context_logits ? r->vocab : 1;
        NRD_TB_TRY(put(t, "context_logits", type, rows, width, 0, 3, &out));
        copy_logits(half, out, from, (size_t)rows * (size_t)width);
    }
    if ((wants & LLM_OUT_GENERATION_LOGITS) && (r->generation_logits || dummies)) {
        const float *from = r->generation_logits ? r->generation_logits : &none;
        const int64_t beams = r->generation_logits ? r->n_beams : 1;
        const int64_t rows = r->generation_logits ? r->n_generation_logits : 1;
        const int64_t width = r->generation_logits ? r->vocab : 1;
        NRD_TB_TRY(put(t, "generation_logits", type, beams, rows, width, 4, &out));
        copy_logits(half, out, from, (size_t)beams * (size_t)rows * (size_t)width);
    }
    return NULL;
}

/* embedding [1, hidden] or label_logits [1, labels]; only with the parameter pooling. */
static TRITONSERVER_Error *put_embedding(const nrd_llm_row *row, TRITONBACKEND_Response *t, const nrd_exec_response *r)
{
    float *out;
    NRD_TB_TRY(put(t, row->wants_labels ? "label_logits" : "embedding", F32, r->n_embedding, 0, 0, 2, (void **)&out));
    memcpy(out, r->embedding, (size_t)r->n_embedding * sizeof *out);
    return NULL;
}

/* context_phase_params [1, bytes] of a context_only request. */
static TRITONSERVER_Error *put_context_params(TRITONBACKEND_Response *t, const nrd_exec_response *r)
{
    uint8_t *out;
    NRD_TB_TRY(put(t, "context_phase_params", TRITONSERVER_TYPE_UINT8, (int64_t)r->n_context_phase_params, 0, 0, 2, (void **)&out));
    memcpy(out, r->context_phase_params, r->n_context_phase_params);
    return NULL;
}

static TRITONSERVER_Error *put_perf(const nrd_llm_row *row, TRITONBACKEND_Response *t,
                                    const nrd_exec_response *r)
{
    const nrd_perf_metrics *p = &r->perf;
    const int64_t values[N_PERF] = {p->kv_new_blocks,    p->kv_reused_blocks, p->kv_total_blocks,
                                    p->arrival_ns,       p->first_scheduled_ns,
                                    p->first_token_ns,   p->last_token_ns,
                                    p->n_accepted_draft_tokens, p->n_draft_tokens, 0};
    for (size_t k = 0; k < N_PERF; k++) {
        void *out;
        if (!nrd_tb_wants(row->request->triton, perf_outputs[k].name)) {
            continue;
        }
        NRD_TB_TRY(put(t, perf_outputs[k].name, perf_outputs[k].dtype, 1, 0, 0, 2, &out));
        if (perf_outputs[k].dtype == I32) {
            *(int32_t *)out = (int32_t)values[k];
        } else if (perf_outputs[k].dtype == F32) {
            *(float *)out = p->n_draft_tokens
                                ? (float)p->n_accepted_draft_tokens / (float)p->n_draft_tokens
                                : 0;
        } else {
            *(int64_t *)out = values[k];
        }
    }
    return NULL;
}

/* [is_last, ids before this piece]; afterwards the piece joins the tail. */
static TRITONSERVER_Error *put_stream_state(const nrd_llm_row *row, TRITONBACKEND_Response *t,
                                            const nrd_exec_response *r)
{
    nrd_llm_tail *tail = &row->tails[r->sequence_index];
    const nrd_beam_output *beam = &r->beams[0];
    int32_t *out;

    NRD_TB_TRY(put(t, "stream_state", I32, 1 + tail->n, 0, 0, 2, (void **)&out));
    out[0] = r->is_final || r->is_sequence_final;
    memcpy(out + 1, tail->ids, (size_t)tail->n * sizeof *out);
    for (int32_t i = 0; i < beam->n_ids; i++) {
        if (tail->n == LLM_STREAM_TAIL) {
            tail->n--;
            memmove(tail->ids, tail->ids + 1, (size_t)tail->n * sizeof *tail->ids);
        }
        tail->ids[tail->n++] = beam->ids[i];
    }
    return NULL;
}

/* Where time ended what the client asked for, it hears so: there are fewer tokens, and no error. */
static TRITONSERVER_Error *put_timed_out(TRITONBACKEND_Response *t, const nrd_exec_response *r)
{
    bool timed_out = false;
    for (int32_t b = 0; b < r->n_beams; b++) {
        timed_out = timed_out || r->beams[b].finish_reason == NRD_FINISH_TIMED_OUT;
    }
    return timed_out ? TRITONBACKEND_ResponseSetBoolParameter(t, NRD_SERVER_TIMED_OUT, true) : NULL;
}

static TRITONSERVER_Error *fill(const nrd_llm_instance *inst, const nrd_llm_row *row,
                                TRITONBACKEND_Response *t, const nrd_exec_response *r)
{
    const nrd_llm_request *q = row->request;
    const nrd_llm_rules *rules = &inst->model->rules;

    NRD_TB_TRY(put_ids(row, t, r));
    NRD_TB_TRY(put_counts(row, t, r));
    NRD_TB_TRY(put_timed_out(t, r));
    NRD_TB_TRY(put_log_probs(row, t, r));
    if (r->prompt_log_probs) {
        NRD_TB_TRY(put_prompt_probs(t, r));
    }
    if (row->n_top > 0) {
        NRD_TB_TRY(put_top(row, t, r));
    }
    if (r->embedding) {
        NRD_TB_TRY(put_embedding(row, t, r));
    }
    NRD_TB_TRY(put_logits(row, t, r, rules->has_dummy_logits));
    if ((q->wants & LLM_OUT_BATCH_INDEX) && (q->n_rows > 1 || !rules->has_sequence_index)) {
        NRD_TB_TRY(put_i32(t, "batch_index", row->index));
    }
    if ((q->wants & LLM_OUT_SEQUENCE_INDEX) && row->n_sequences > 1) {
        NRD_TB_TRY(put_i32(t, "sequence_index", r->sequence_index));
    }
    if (row->tails) {
        NRD_TB_TRY(put_stream_state(row, t, r));
    }
    if (r->context_phase_params) {
        NRD_TB_TRY(put_context_params(t, r));
    }
    if ((q->wants & LLM_OUT_PERF) && row->return_perf_metrics && r->is_final) {
        NRD_TB_TRY(put_perf(row, t, r));
    }
    if (r->no_speech_prob >= 0 && r->is_final) {
        NRD_TB_TRY(TRITONBACKEND_ResponseSetDoubleParameter(t, NRD_LLM_NO_SPEECH_PROB, (double)r->no_speech_prob));
    }
    if (row->return_perf_metrics && r->is_final) { /* also where a release has no such outputs */
        NRD_TB_TRY(TRITONBACKEND_ResponseSetIntParameter(
            t, NRD_LLM_FINISH_REASON, r->n_beams > 0 ? (int64_t)r->beams[0].finish_reason : 0));
        NRD_TB_TRY(TRITONBACKEND_ResponseSetIntParameter(t, NRD_LLM_PROMPT_TOKENS, row->n_input_ids));
        NRD_TB_TRY(TRITONBACKEND_ResponseSetIntParameter(t, NRD_LLM_TOKENS_PER_BLOCK,
                                                         inst->info.tokens_per_block));
        NRD_TB_TRY(TRITONBACKEND_ResponseSetIntParameter(t, NRD_LLM_MAX_INPUT, inst->info.max_input_len));
    }
    return NULL;
}

static void finish_request(nrd_llm_instance *inst, nrd_llm_request *q)
{
    const uint64_t now = nrd_now_ns(), computed = q->compute_end_ns ? q->compute_end_ns : now;

    pthread_mutex_lock(&inst->mu);
    const bool ok = !q->has_failed;
    if (q->prev) {
        q->prev->next = q->next;
    } else {
        inst->requests = q->next;
    }
    if (q->next) {
        q->next->prev = q->prev;
    }
    pthread_mutex_unlock(&inst->mu);

    nrd_llm_metrics_request(inst->metrics, q->n_input_tokens, q->n_output_tokens, (double)(now - q->exec_start_ns) / 1e6,
                            ok ? q->rows[0].finish_reason : NRD_FINISH_ERROR);
    nrd_tb_log_error(TRITONBACKEND_ModelInstanceReportStatistics(inst->triton, q->triton, ok,
                                                                 q->exec_start_ns, q->compute_start_ns,
                                                                 computed, now),
                     "statistics");
    nrd_tb_log_error(TRITONBACKEND_ModelInstanceReportBatchStatistics(inst->triton, 1, q->exec_start_ns,
                                                                      q->compute_start_ns, computed, now),
                     "statistics");
    nrd_tb_log_error(TRITONBACKEND_ResponseFactoryDelete(q->factory), "response factory");
    nrd_tb_release(q->triton);
    nrd_llm_unclaim(q);
    for (int32_t i = 0; i < q->n_rows; i++) {
        for (int32_t k = 0; q->rows[i].probs && k < q->rows[i].n_sequences; k++) {
            free(q->rows[i].probs[k].p);
        }
        free(q->rows[i].probs);
        free(q->rows[i].tails);
    }
    free(q->rows);
    free(q->id);
    free(q);
}

/* Sends and, with the last answer of the last row, ends the request. Takes `err` always. */
static void send(nrd_llm_instance *inst, nrd_llm_row *row, TRITONBACKEND_Response *t, bool is_final,
                 TRITONSERVER_Error *err)
{
    nrd_llm_request *q = row->request;
    bool is_last = false;

    pthread_mutex_lock(&inst->mu); /* Execute answers rows that were refused, this thread the others */
    q->has_failed = q->has_failed || err;
    if (is_final && !row->is_done) {
        row->is_done = true;
        q->n_rows_done++;
        is_last = q->n_rows_done == q->n_rows;
        q->is_answered = is_last; /* before the client knows: it may use the id at once */
    }
    pthread_mutex_unlock(&inst->mu);
    if (t && err && row->error_reason) {
        nrd_tb_log_error(TRITONBACKEND_ResponseSetStringParameter(t, NRD_LLM_ERROR_REASON,
                                                                  row->error_reason),
                         "cannot tell an error's reason");
    }
    if (t) {
        nrd_tb_log_error(TRITONBACKEND_ResponseSend(
                             t, is_last ? TRITONSERVER_RESPONSE_COMPLETE_FINAL : 0, err),
                         "cannot send a response");
    } else if (is_last) { /* there is no memory for a response: the client hears that it was the last */
        nrd_tb_log_error(TRITONBACKEND_ResponseFactorySendFlags(q->factory, TRITONSERVER_RESPONSE_COMPLETE_FINAL),
                         "cannot end a request");
    }
    TRITONSERVER_ErrorDelete(err);
    if (is_last) {
        finish_request(inst, q);
    }
}

/* Times as the client of a stream sees them; a request that is answered at once gives its time to
 * the first token and one mean time between tokens. */
static void observe_times(nrd_llm_instance *inst, nrd_llm_row *row, const nrd_exec_response *r,
                          int64_t n_new)
{
    const nrd_perf_metrics *p = &r->perf;

    if (r->error || n_new <= 0 || row->n_sequences > 1) {
        return;
    }
    if (row->streaming) {
        uint64_t now = nrd_now_ns();
        if (row->last_ns == 0) {
            nrd_llm_metrics_first_token(inst->metrics, (double)(now - row->request->exec_start_ns) / 1e6);
        }
        for (int64_t i = 0; row->last_ns > 0 && i < n_new; i++) {
            nrd_llm_metrics_next_token(inst->metrics, (double)(now - row->last_ns) / 1e6 / (double)n_new);
        }
        row->last_ns = now;
    } else if (r->is_final && p->first_token_ns > p->arrival_ns) {
        nrd_llm_metrics_first_token(inst->metrics,
                                    (double)(p->first_token_ns - p->arrival_ns) / 1e6);
        if (n_new > 1 && p->last_token_ns > p->first_token_ns) {
            nrd_llm_metrics_next_token(inst->metrics, (double)(p->last_token_ns - p->first_token_ns) / 1e6 /
                                                      (double)(n_new - 1));
        }
    }
}

void nrd_llm_respond(nrd_llm_instance *inst, nrd_exec_response *r)
{
    nrd_llm_row *row = (nrd_llm_row *)(uintptr_t)r->client_id;
    nrd_llm_request *q = row->request;
    TRITONBACKEND_Response *t = NULL;
    q->compute_end_ns = nrd_now_ns(); /* what follows until the request's end is its output */
    TRITONSERVER_Error *err = TRITONBACKEND_ResponseNewFromFactory(&t, q->factory);

    if (!err && r->error) {
        row->error_reason = nrd_exec_error_reason(r->error);
        err = nrd_tb_errorf((TRITONSERVER_Error_Code)nrd_exec_error_code(r->error),
                            "Encountered error for requestId %llu: %s", (unsigned long long)r->id,
                            nrd_exec_error_message(r->error));
    } else if (!err) {
        err = fill(inst, row, t, r);
    }
    if (r->is_final && !r->error) { /* what makes no tokens, as an embedding, is whole */
        row->finish_reason = r->n_beams > 0 ? r->beams[0].finish_reason : NRD_FINISH_END_ID;
    }
    int64_t n_new = 0;
    for (int32_t b = 0; b < r->n_beams; b++) {
        bool echoed = !row->streaming && !row->exclude_input;
        n_new += r->beams[b].n_ids - (echoed ? row->n_input_ids : 0);
    }
    q->n_output_tokens += n_new;
    if (!r->error) {
        nrd_llm_count_tokens(q, n_new + (row->is_counted ? 0 : row->n_input_ids));
        row->is_counted = true;
    }
    observe_times(inst, row, r, r->n_beams > 1 ? n_new / r->n_beams : n_new);
    if (r->is_final && !r->error) {
        nrd_llm_metrics_phases(inst->metrics, &r->perf);
    }
    send(inst, row, t, r->is_final, err);
    nrd_exec_response_free(r);
}

void nrd_llm_respond_error(nrd_llm_instance *inst, nrd_llm_row *row, TRITONSERVER_Error *err)
{
    TRITONBACKEND_Response *t = NULL;
    nrd_tb_log_error(TRITONBACKEND_ResponseNewFromFactory(&t, row->request->factory),
                     "cannot make a response");
    send(inst, row, t, true, err);
}
