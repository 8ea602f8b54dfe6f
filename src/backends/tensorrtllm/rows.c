/* SPDX-License-Identifier: Apache-2.0
 * The rows of a request: from its tensors and parameters to the executor. */
#include "backends/tensorrtllm/llm.h"
#include "backends/tensorrtllm/request_params.h"

#include "base/clock.h"
#include "base/limits.h"
#include "nereid/server.h"

#include <string.h>

#pragma weak nrd_backend_request_times /* in this server only */

/* The server's queue is the way to the engine's: what it says of time holds there too. Another server tells
 * the timeout only. */
static TRITONSERVER_Error *read_times(const nrd_llm_request *q, nrd_exec_request *e)
{
    uint64_t start_by = 0, end_by = 0, timeout_us = 0;

    if (nrd_backend_request_times) {
        nrd_backend_request_times(q->triton, &start_by, &end_by);
    } else {
        NRD_TB_TRY(TRITONBACKEND_InferenceRequestTimeoutMicroseconds(q->triton, &timeout_us));
        end_by = timeout_us && timeout_us < UINT64_MAX / 2000u ? q->exec_start_ns + timeout_us * 1000u : 0;
    }
    e->start_by_ns = (int64_t)(start_by < INT64_MAX ? start_by : 0);
    e->deadline_ns = (int64_t)(end_by < INT64_MAX ? end_by : 0);
    return NULL;
}

/* Tokens that the row's text begins with, which an answer echoes. */
static int32_t n_begin_of(const nrd_llm_instance *inst, const nrd_exec_request *e)
{
    return inst->info.max_encoder_input_len == 0   ? e->n_input_ids
           : e->n_decoder_input_ids > 0            ? e->n_decoder_input_ids
           : inst->info.encoder_feature_size > 0   ? e->n_input_ids
                                                   : inst->info.n_begin;
}

/* *n_sequences counts those of the request's rows so far: all of them stay in memory until the last row
 * is answered. A number that the executor refuses is left to it. */
static TRITONSERVER_Error *row_init(nrd_llm_row *row, const nrd_llm_instance *inst,
                                    const nrd_exec_request *e, int32_t *n_sequences)
{
    const int32_t n = e->sampling.num_return_sequences;

    if (e->kind == NRD_REQUEST_CONTEXT_ONLY && !(row->request->wants & LLM_OUT_CONTEXT_PARAMS)) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "request_type context_only: output tensor 'context_phase_params' must be requested");
    }
    row->n_sequences = n > 0 && n <= NRD_LIMIT_RETURN_SEQUENCES ? n : 1;
    *n_sequences += row->n_sequences;
    if (*n_sequences > NRD_LIMIT_REQUEST_SEQUENCES) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "num_return_sequences: the rows up to this one ask for %d sequences, "
                             "a request may have %d",
                             *n_sequences, NRD_LIMIT_REQUEST_SEQUENCES);
    }
    row->streaming = e->streaming && !e->pooling;
    row->exclude_input = e->exclude_input_in_output || e->pooling;
    row->return_log_probs = e->return_log_probs;
    row->return_context_logits = e->return_context_logits;
    row->return_generation_logits = e->return_generation_logits;
    row->return_perf_metrics = e->return_perf_metrics;
    row->n_input_ids = n_begin_of(inst, e);
    row->n_prompt = e->n_input_ids;
    row->end_id = e->end_id;
    row->n_top = e->n_top_logprobs;
    row->n_beams = e->sampling.beam_width;
    row->wants_labels = e->pooling == NRD_POOLING_LABELS;
    if (e->streaming && e->sampling.beam_width <= 1 && inst->model->has_stream_state &&
        (row->request->wants & LLM_OUT_STREAM_STATE)) {
        row->tails = calloc((size_t)row->n_sequences, sizeof *row->tails);
        if (!row->tails) {
            return nrd_tb_error(nrd_error_no_memory());
        }
    }
    if (e->streaming && e->sampling.beam_width <= 1 && e->return_log_probs && (row->request->wants & LLM_OUT_OUTPUT_LOG_PROBS)) {
        row->probs = calloc((size_t)row->n_sequences, sizeof *row->probs);
        if (!row->probs) {
            return nrd_tb_error(nrd_error_no_memory());
        }
    }
    return NULL;
}

/* Hands one row over. The lock is held over enqueue so that the row's answer cannot come before its
 * id is stored; the executor only copies and queues. */
static TRITONSERVER_Error *enqueue_row(nrd_llm_instance *inst, nrd_llm_row *row,
                                       nrd_exec_request *e, const char *adapter_dir)
{
    e->client_id = (uint64_t)(uintptr_t)row;
    NRD_TB_TRY(nrd_llm_claim(row->request, e)); /* before anything is taken for it */
    nrd_error *err = adapter_dir ? nrd_llm_adapter_ensure(inst, e->lora_task_id, adapter_dir) : NULL;
    if (!err) {
        err = nrd_exec_prepare_lora(inst->exec, e);
    }
    if (!err) {
        err = nrd_exec_prepare_images(inst->exec, e);
        row->n_input_ids = n_begin_of(inst, e);
    }
    if (!err) {
        pthread_mutex_lock(&inst->mu);
        e->is_stopped = row->request->is_stopped; /* while its pictures were read */
        err = nrd_exec_enqueue(inst->exec, e, &row->exec_id);
        pthread_mutex_unlock(&inst->mu);
    }
    nrd_exec_release_images(inst->exec, e);
    nrd_exec_release_lora(inst->exec, e);
    if (!err) {
        return NULL;
    }
    nrd_llm_note_loss(inst);
    row->error_reason = nrd_exec_error_reason(err);
    TRITONSERVER_Error *out = nrd_tb_errorf(
        (TRITONSERVER_Error_Code)nrd_exec_error_code(err),
        "Executor failed process requestId %s due to the following error: %s",
        row->request->id[0] ? row->request->id : "0", nrd_exec_error_message(err));
    nrd_exec_error_free(err);
    return out;
}
void nrd_llm_run_rows(nrd_llm_instance *inst, nrd_llm_request *q, nrd_tb_inputs *in)
{
    const int32_t n = q->n_rows;
    int32_t n_sequences = 0;

    q->compute_start_ns = nrd_now_ns();
    for (int32_t i = 0; i < n; i++) {
        nrd_llm_row *row = &q->rows[i];
        nrd_exec_request e;
        const char *adapter_dir = NULL;
        TRITONSERVER_Error *err = nrd_llm_convert(inst, in, n, i, &in->arena, &e);
        if (!err) {
            err = nrd_llm_read_request_params(q->triton, inst->info.vocab, &in->arena, &e, &adapter_dir);
        }
        if (!err) {
            err = read_times(q, &e);
        }
        if (!err) {
            err = row_init(row, inst, &e, &n_sequences);
        }
        if (!err) {
            err = nrd_llm_read_counts(in, n, i, row);
        }
        if (!err) {
            q->n_input_tokens = e.n_input_ids; /* the last row's, as in the original's histogram */
            err = enqueue_row(inst, row, &e, adapter_dir);
        }
        if (err) {
            nrd_llm_respond_error(inst, row, err);
        }
    }
}
void nrd_llm_fail_rows(nrd_llm_instance *inst, nrd_llm_request *q, TRITONSERVER_Error *err)
{
    const int32_t n = q->n_rows; /* q is freed with its last row */

    q->compute_start_ns = nrd_now_ns();
    for (int32_t i = 0; i < n; i++) {
        nrd_llm_respond_error(inst, &q->rows[i],
                              TRITONSERVER_ErrorNew(TRITONSERVER_ErrorCode(err), TRITONSERVER_ErrorMessage(err)));
    }
    TRITONSERVER_ErrorDelete(err);
}
