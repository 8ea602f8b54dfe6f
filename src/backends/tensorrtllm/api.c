/* SPDX-License-Identifier: Apache-2.0
 * The TRITONBACKEND entry points of the model "tensorrt_llm". */
#include "backends/tensorrtllm/llm.h"
#include "backends/tensorrtllm/metric_table.h"
#include "backends/tensorrtllm/places.h"
#include "backends/tensorrtllm/reader.h"
#include "backends/tensorrtllm/request_params.h"

#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/str.h"
#include "nereid/llm_tensors.h"
#include "nereid/server.h"

#include <string.h>

#pragma weak nrd_backend_model_failed /* in this server only */
#pragma weak nrd_backend_ignore_input
#pragma weak nrd_backend_request_times
#pragma weak nrd_server_claim
#pragma weak nrd_server_unclaim
#pragma weak nrd_backend_claim_join
#pragma weak nrd_server_count_tokens

enum { MAX_RESPONSES = 64, MAX_ITERATIONS = 32 };

static TRITONSERVER_Error *exec_error(nrd_error *err)
{
    if (!err) {
        return NULL;
    }
    TRITONSERVER_Error *out = TRITONSERVER_ErrorNew((TRITONSERVER_Error_Code)nrd_exec_error_code(err),
                                                    nrd_exec_error_message(err));
    nrd_exec_error_free(err);
    return out;
}

/* Once the engine is lost, the model is no longer ready. Before the requests hear it, so that a client
 * that was told finds it so. */
static void note_loss(nrd_llm_instance *inst)
{
    TRITONBACKEND_Model *model = NULL;
    nrd_error *err = nrd_exec_health(inst->exec);

    if (err && nrd_backend_model_failed) {
        nrd_tb_log_error(TRITONBACKEND_ModelInstanceModel(inst->triton, &model), "a lost engine");
        nrd_backend_model_failed(model, nrd_exec_error_message(err));
    }
    nrd_exec_error_free(err);
}

/* ---- the responder: answers, cancellations, statistics ---- */

static void cancel_abandoned(nrd_llm_instance *inst)
{
    pthread_mutex_lock(&inst->mu);
    for (nrd_llm_request *q = inst->requests; q; q = q->next) {
        bool gone = false;
        TRITONSERVER_Error *err = TRITONBACKEND_ResponseFactoryIsCancelled(q->factory, &gone);
        TRITONSERVER_ErrorDelete(err);
        for (int32_t i = 0; gone && i < q->n_rows; i++) {
            nrd_exec_cancel(inst->exec, q->rows[i].exec_id);
        }
    }
    pthread_mutex_unlock(&inst->mu);
}

static void report_iterations(nrd_llm_instance *inst)
{
    const bool is_static = inst->model->exec_config.batching == NRD_BATCHING_STATIC;
    nrd_iter_stats stats[MAX_ITERATIONS];
    int32_t n;

    pthread_mutex_lock(&inst->mu);
    const bool idle = inst->requests == NULL;
    pthread_mutex_unlock(&inst->mu);
    do {
        for (int32_t i = 0; i < MAX_ITERATIONS; i++) {
            stats[i].size = sizeof stats[i];
        }
        n = nrd_exec_take_iter_stats(inst->exec, stats, MAX_ITERATIONS);
        for (int32_t i = 0; i < n; i++) {
            nrd_llm_metrics_iteration(inst->metrics, &stats[i], is_static);
            nrd_llm_metrics_step(inst->metrics, &stats[i]);
            nrd_llm_draft_metrics_step(inst->draft_metrics, &stats[i]);
        }
    } while (n == MAX_ITERATIONS);
    nrd_llm_lora_metrics_update(inst->lora_metrics, inst->exec);
    nrd_llm_picture_metrics_update(inst->picture_metrics, inst->exec);
    nrd_llm_metrics_handovers(inst->metrics, inst->exec);
    nrd_llm_handover_metrics_update(inst->handover_metrics, inst->exec);
    if (idle) {
        nrd_llm_metrics_idle(inst->metrics, is_static);
    }
}

static void *responder_main(void *arg)
{
    nrd_llm_instance *inst = arg;
    const nrd_llm_model *m = inst->model;
    uint64_t cancel_ns = (uint64_t)m->cancellation_check_period_ms * 1000000u;
    uint64_t stats_ns = (uint64_t)m->stats_check_period_ms * 1000000u;
    uint64_t last_cancel = 0, last_stats = 0;
    int64_t wait_us = (int64_t)((cancel_ns < stats_ns ? cancel_ns : stats_ns) / 1000u);
    nrd_exec_response *r[MAX_RESPONSES];

    while (!nrd_exec_is_done(inst->exec)) {
        int32_t n = 0;
        nrd_error *err = nrd_exec_await(inst->exec, r, MAX_RESPONSES, wait_us, &n);
        if (err) {
            nrd_tb_log_error(exec_error(err), "waiting for the engine");
            break;
        }
        for (int32_t i = 0; i < n; i++) {
            if (r[i]->error) {
                note_loss(inst);
            }
            nrd_llm_respond(inst, r[i]);
        }
        uint64_t now = nrd_now_ns();
        if (now - last_cancel >= cancel_ns) {
            last_cancel = now;
            cancel_abandoned(inst);
        }
        if (now - last_stats >= stats_ns) {
            last_stats = now;
            report_iterations(inst);
            note_loss(inst); /* also where no request hears of it */
        }
    }
    report_iterations(inst);
    return NULL;
}

/* ---- requests ---- */

/* Whether a running request has this id. The caller holds inst->mu. */
static bool has_id(const nrd_llm_instance *inst, const char *id)
{
    const nrd_llm_request *q = inst->requests;
    while (q && (q->is_answered || strcmp(q->id, id))) {
        q = q->next;
    }
    return q != NULL;
}

/* Cancels the running requests of this id. Repositories up to v0.9 hear it when there is none. */
static TRITONSERVER_Error *cancel_id(nrd_llm_instance *inst, const char *id)
{
    if (!id[0]) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "%s",
                             inst->model->rules.has_unique_ids
                                 ? "Cannot send stop request without specifying a request_id"
                                 : "Trying to stop a request but request ID is not provided");
    }
    pthread_mutex_lock(&inst->mu);
    const bool is_active = has_id(inst, id);
    for (nrd_llm_request *q = inst->requests; q; q = q->next) {
        const bool is_meant = !strcmp(q->id, id);
        q->is_stopped = q->is_stopped || is_meant;
        for (int32_t i = 0; is_meant && i < q->n_rows; i++) {
            nrd_exec_cancel(inst->exec, q->rows[i].exec_id);
        }
    }
    pthread_mutex_unlock(&inst->mu);
    if (is_active || !inst->model->rules.has_unique_ids) {
        return NULL;
    }
    return nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL,
                         "Received stop request for requestId %s but it's not active (might be completed "
                         "already).",
                         id);
}

/* A request with stop = true ends the running requests of the same id and gets an empty answer. */
static TRITONSERVER_Error *stop_requests(nrd_llm_instance *inst, TRITONBACKEND_Request *request,
                                         const char *id)
{
    TRITONBACKEND_Response *t = NULL;

    NRD_TB_TRY(cancel_id(inst, id));
    TRITONSERVER_Error *err = TRITONBACKEND_ResponseNew(&t, request);
    if (!err) {
        err = TRITONBACKEND_ResponseSend(t, TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL);
    }
    nrd_tb_log_error(err, "cannot answer a stop request");
    nrd_tb_log_error(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL),
                     "cannot release a request");
    return NULL;
}

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
    if (nrd_server_claim) { /* before anything is taken for it */
        NRD_TB_TRY(nrd_server_claim(&row->request->claim, nrd_exec_request_bytes(inst->exec, e),
                                    "what the engine keeps for it"));
    }
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
    note_loss(inst);
    row->error_reason = nrd_exec_error_reason(err);
    TRITONSERVER_Error *out = nrd_tb_errorf(
        (TRITONSERVER_Error_Code)nrd_exec_error_code(err),
        "Executor failed process requestId %s due to the following error: %s",
        row->request->id[0] ? row->request->id : "0", nrd_exec_error_message(err));
    nrd_exec_error_free(err);
    return out;
}

/* Repositories up to v0.9 refuse an id that is in flight; later ones let a stop end all of them. */
static TRITONSERVER_Error *link_request(nrd_llm_instance *inst, nrd_llm_request *q)
{
    pthread_mutex_lock(&inst->mu);
    const bool is_taken = inst->model->rules.has_unique_ids && q->id[0] && has_id(inst, q->id);
    if (!is_taken) {
        q->next = inst->requests;
        if (q->next) {
            q->next->prev = q;
        }
        inst->requests = q;
    }
    pthread_mutex_unlock(&inst->mu);
    return is_taken ? nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL,
                                    "requestId %s is already in progress, request is ignored.", q->id)
                    : NULL;
}

static TRITONSERVER_Error *count_rows(const nrd_llm_instance *inst, const nrd_tb_inputs *in,
                                      int64_t *out_rows)
{
    *out_rows = 1;
    if (inst->model->config.max_batch_size <= 0) {
        return NULL;
    }
    for (uint32_t i = 0; i < in->n; i++) {
        int64_t b = in->t[i].n_dims > 0 ? in->t[i].shape[0] : 1;
        if (i > 0 && b != *out_rows) {
            return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                                 "input '%s' has a batch of %lld, the others of %lld", in->t[i].name,
                                 (long long)b, (long long)*out_rows);
        }
        *out_rows = b;
    }
    if (*out_rows < 1 || *out_rows > NRD_LIMIT_REQUEST_ROWS) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "the batch is %lld, expected 1 to %d", (long long)*out_rows, NRD_LIMIT_REQUEST_ROWS);
    }
    if (*out_rows > 1 && !inst->model->config.decoupled) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "Batch size > 1 requires the decoupled transaction policy.");
    }
    return NULL;
}

void nrd_llm_count_tokens(nrd_llm_request *q, int64_t n)
{
    if (nrd_server_count_tokens && n > 0) {
        nrd_server_count_tokens(&q->claim, (uint64_t)n);
    }
}

void nrd_llm_unclaim(nrd_llm_request *q)
{
    if (q->claim.bytes > 0 || q->claim.account) {
        nrd_server_unclaim(&q->claim, NRD_CLAIM_ALL);
    }
}

static void free_request(nrd_llm_request *q)
{
    if (q->factory) {
        nrd_tb_log_error(TRITONBACKEND_ResponseFactoryDelete(q->factory), "response factory");
    }
    nrd_llm_unclaim(q);
    free(q->rows);
    free(q->id);
    free(q);
}

/* Answers a request that never ran, and ends it. Takes `err` always. */
static void refuse_request(nrd_llm_instance *inst, nrd_llm_request *q, TRITONSERVER_Error *err)
{
    uint64_t now = nrd_now_ns();

    nrd_tb_send_error(q->triton, err);
    nrd_tb_log_error(TRITONBACKEND_ModelInstanceReportStatistics(inst->triton, q->triton, false,
                                                                 q->exec_start_ns, now, now, now),
                     "statistics");
    nrd_tb_log_error(TRITONBACKEND_RequestRelease(q->triton, TRITONSERVER_REQUEST_RELEASE_ALL),
                     "cannot release a request");
    free_request(q);
}

/* Hands over the rows. From the last one's enqueue on, the responder may free q at any moment. */
static void run_rows(nrd_llm_instance *inst, nrd_llm_request *q, nrd_tb_inputs *in)
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
            q->n_input_tokens = e.n_input_ids; /* the last row's, as in the original's histogram */
            err = enqueue_row(inst, row, &e, adapter_dir);
        }
        if (err) {
            nrd_llm_respond_error(inst, row, err);
        }
    }
}

/* Everything that a request needs before its rows run; the last step puts it into the table. */
static TRITONSERVER_Error *begin_request(nrd_llm_instance *inst, nrd_llm_request *q,
                                         const nrd_tb_inputs *in, const char *id)
{
    int64_t n_rows = 0;

    NRD_TB_TRY(nrd_llm_wants(&inst->model->rules, q->triton, &q->wants));
    NRD_TB_TRY(count_rows(inst, in, &n_rows));
    NRD_TB_TRY(TRITONBACKEND_ResponseFactoryNew(&q->factory, q->triton));
    q->id = strdup(id);
    q->rows = calloc((size_t)n_rows, sizeof *q->rows);
    if (nrd_backend_claim_join) {
        nrd_backend_claim_join(&q->claim, q->triton);
    }
    if (!q->id || !q->rows) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    q->n_rows = (int32_t)n_rows;
    for (int32_t i = 0; i < q->n_rows; i++) {
        q->rows[i].request = q;
        q->rows[i].index = i;
    }
    return link_request(inst, q);
}

/* ---- requests with pictures: from Execute to the thread that reads them ---- */

typedef struct picture_job {
    nrd_llm_job job;
    nrd_llm_request *q;
    nrd_tb_inputs in;
} picture_job;

static bool has_pictures(TRITONBACKEND_Request *request, const nrd_tb_inputs *in)
{
    uint32_t n = 0;
    const char *key = "";
    TRITONSERVER_ParameterType type;
    const void *value;
    TRITONSERVER_Error *err = TRITONBACKEND_RequestParameterCount(request, &n);
    bool found = nrd_tb_find(in, "image_files") != NULL;

    for (uint32_t i = 0; !err && !found && i < n; i++) {
        err = TRITONBACKEND_RequestParameter(request, i, &key, &type, &value);
        found = !err && !strcmp(key, NRD_LLM_IMAGES);
    }
    TRITONSERVER_ErrorDelete(err); /* nrd_llm_read_request_params finds it again */
    return found;
}

/* As the server's queue says of those that wait there. */
static TRITONSERVER_Error *check_wanted(const nrd_llm_request *q)
{
    uint64_t start_by = 0, end_by = 0;
    bool gone = false;

    NRD_TB_TRY(TRITONBACKEND_ResponseFactoryIsCancelled(q->factory, &gone));
    if (gone) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_CANCELLED, "Request was cancelled");
    }
    if (nrd_backend_request_times) {
        nrd_backend_request_times(q->triton, &start_by, &end_by);
    }
    return start_by && start_by <= nrd_now_ns() ? nrd_tb_errorf(TRITONSERVER_ERROR_UNAVAILABLE, "Request timeout expired") : NULL;
}

static void fail_rows(nrd_llm_instance *inst, nrd_llm_request *q, TRITONSERVER_Error *err)
{
    const int32_t n = q->n_rows; /* q is freed with its last row */

    q->compute_start_ns = nrd_now_ns();
    for (int32_t i = 0; i < n; i++) {
        nrd_llm_respond_error(inst, &q->rows[i],
                              TRITONSERVER_ErrorNew(TRITONSERVER_ErrorCode(err), TRITONSERVER_ErrorMessage(err)));
    }
    TRITONSERVER_ErrorDelete(err);
}

static void run_pictures(void *user, nrd_llm_job *job, bool is_over)
{
    picture_job *p = (picture_job *)job; /* its first field */
    TRITONSERVER_Error *err = is_over ? nrd_tb_errorf(TRITONSERVER_ERROR_UNAVAILABLE, "the model is being unloaded")
                                      : check_wanted(p->q);

    if (err) {
        fail_rows(user, p->q, err);
    } else {
        run_rows(user, p->q, &p->in);
    }
    nrd_tb_inputs_fini(&p->in);
    free(p);
}

static int32_t max_pictures_waiting(const nrd_llm_instance *inst)
{
    const int32_t n = inst->model->exec_config.max_queue_size;
    return n > 0 && n < NRD_LIMIT_PICTURES_WAITING ? n : NRD_LIMIT_PICTURES_WAITING;
}

/* Takes *in on success, and the rows of q always: an error is theirs. */
static void push_pictures(nrd_llm_instance *inst, nrd_llm_request *q, nrd_tb_inputs *in)
{
    picture_job *p = calloc(1, sizeof *p);
    nrd_error *err = p ? NULL : nrd_error_no_memory();

    if (p) {
        *p = (picture_job){.q = q, .in = *in};
        err = nrd_llm_reader_push(inst->reader, &p->job);
    }
    if (err) {
        fail_rows(inst, q, nrd_tb_error(err));
        free(p);
    } else {
        *in = (nrd_tb_inputs){0};
    }
}

/* Always takes the request: an error becomes its answer. */
static void run_request(nrd_llm_instance *inst, TRITONBACKEND_Request *request)
{
    nrd_tb_inputs in = {0};
    nrd_llm_request *q = calloc(1, sizeof *q);
    const char *id = "";
    int64_t stop = 0;

    if (!q) {
        nrd_tb_send_error(request, nrd_tb_error(nrd_error_no_memory()));
        nrd_tb_log_error(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL),
                         "cannot release a request");
        return;
    }
    q->instance = inst;
    q->triton = request;
    q->exec_start_ns = nrd_now_ns();
    TRITONSERVER_Error *err = TRITONBACKEND_RequestId(request, &id);
    if (!err) {
        err = nrd_tb_inputs_read(&in, request);
    }
    const nrd_tb_tensor *stop_tensor = err ? NULL : nrd_tb_find(&in, "stop");
    const bool is_stop = stop_tensor && nrd_tb_get_i64(stop_tensor, 0, &stop) && stop;
    const bool sees = !err && !is_stop && has_pictures(request, &in);
    if (is_stop) {
        err = stop_requests(inst, request, id);
    } else if (sees && !nrd_llm_reader_has_room(inst->reader)) {
        err = nrd_tb_errorf(TRITONSERVER_ERROR_UNAVAILABLE, /* as the executor's queue */
                            "Maximum queue size of %d has been reached, please try again later", max_pictures_waiting(inst));
    } else if (!err) {
        err = begin_request(inst, q, &in, id);
    }
    if (err) {
        refuse_request(inst, q, err);
    } else if (is_stop) {
        free_request(q);
    } else if (sees) {
        push_pictures(inst, q, &in);
    } else {
        run_rows(inst, q, &in);
    }
    nrd_tb_inputs_fini(&in);
}

/* ---- entry points ---- */

TRITONSERVER_Error *TRITONBACKEND_Initialize(TRITONBACKEND_Backend *backend)
{
    (void)backend;
    nrd_tb_use_server_log();
    return NULL;
}

static void model_free(nrd_llm_model *m)
{
    if (m) {
        nrd_llm_params_fini(m);
        nrd_tb_config_fini(&m->config);
        free(m);
    }
}

TRITONSERVER_Error *TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model *model)
{
    nrd_llm_model *m = calloc(1, sizeof *m);
    if (!m) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    TRITONSERVER_Error *err = nrd_tb_config_load(&m->config, model);
    if (!err) {
        err = nrd_llm_params_read(m);
    }
    if (!err && nrd_backend_ignore_input) { /* published clients send it; nothing depends on it */
        err = nrd_backend_ignore_input(model, "output_log_probs", TRITONSERVER_TYPE_BOOL);
    }
    if (!err) {
        nrd_llm_describe(m, model);
        err = TRITONBACKEND_ModelSetState(model, m);
    }
    if (err) {
        model_free(m);
    }
    return err;
}

TRITONSERVER_Error *TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model *model)
{
    void *m = NULL;
    NRD_TB_TRY(TRITONBACKEND_ModelState(model, &m));
    model_free(m);
    return NULL;
}

static void instance_free(nrd_llm_instance *inst)
{
    nrd_llm_reader_free(inst->reader); /* it uses the engine */
    if (inst->responder_runs) {
        nrd_tb_log_error(exec_error(nrd_exec_shutdown(inst->exec, 0)), "engine shutdown");
        pthread_join(inst->responder, NULL);
    }
    if (inst->exec) {
        nrd_exec_close(inst->exec);
    }
    nrd_llm_metrics_free(inst->metrics);
    nrd_llm_rank_metrics_free(inst->rank_metrics);
    nrd_llm_metric_set_free(inst->lora_metrics);
    nrd_llm_metric_set_free(inst->draft_metrics);
    nrd_llm_metric_set_free(inst->picture_metrics);
    nrd_llm_metric_set_free(inst->handover_metrics);
    pthread_mutex_destroy(&inst->mu);
    free(inst);
}

/* Where this instance's ranks are. */
static TRITONSERVER_Error *find_places(const nrd_llm_instance *inst, nrd_llm_places *out)
{
    const nrd_tb_config *c = &inst->model->config;
    const char *name = "";
    TRITONSERVER_InstanceGroupKind kind;

    NRD_TB_TRY(TRITONBACKEND_ModelInstanceName(inst->triton, &name));
    const int32_t number = nrd_llm_instance_number(name);
    NRD_TB_TRY(nrd_llm_place_list("gpu_device_ids", nrd_tb_config_param(c, "gpu_device_ids"), number, out->device_ids,
                                  &out->n_device_ids));
    NRD_TB_TRY(nrd_llm_place_list("participant_ids", nrd_tb_config_param(c, "participant_ids"), number,
                                  out->participant_ids, &out->n_participant_ids));
    NRD_TB_TRY(TRITONBACKEND_ModelInstanceKind(inst->triton, &kind));
    if (out->n_device_ids == 0 && kind == TRITONSERVER_INSTANCEGROUPKIND_GPU) {
        out->n_device_ids = 1;
        return TRITONBACKEND_ModelInstanceDeviceId(inst->triton, &out->device_ids[0]);
    }
    return NULL;
}

static TRITONSERVER_Error *open_engine(nrd_llm_instance *inst)
{
    nrd_exec_config c = inst->model->exec_config;
    nrd_llm_places places = {0};

    NRD_TB_TRY(find_places(inst, &places));
    c.device_ids = places.device_ids;
    c.n_device_ids = places.n_device_ids;
    c.participant_ids = places.participant_ids;
    c.n_participant_ids = places.n_participant_ids;
    return exec_error(nrd_exec_open(&inst->exec, inst->model->engine_dir, &c));
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance *instance)
{
    TRITONBACKEND_Model *model = NULL;
    nrd_llm_instance *inst = calloc(1, sizeof *inst);
    if (!inst) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    TRITONSERVER_Error *err = TRITONBACKEND_ModelInstanceModel(instance, &model);

    pthread_mutex_init(&inst->mu, NULL);
    inst->triton = instance;
    if (!err) {
        err = TRITONBACKEND_ModelState(model, (void **)&inst->model);
    }
    if (!err) {
        err = open_engine(inst);
    }
    if (!err) {
        err = nrd_tb_error(nrd_llm_reader_new(&inst->reader, max_pictures_waiting(inst), run_pictures, inst));
    }
    if (!err) {
        inst->info.size = sizeof inst->info;
        nrd_exec_get_info(inst->exec, &inst->info);
        err = nrd_llm_adapters_load(inst);
    }
    if (!err) {
        err = nrd_llm_metrics_new(&inst->metrics, inst);
    }
    if (!err) {
        err = nrd_llm_rank_metrics_new(&inst->rank_metrics, inst);
    }
    if (!err) {
        err = nrd_llm_lora_metrics_new(&inst->lora_metrics, inst);
    }
    if (!err) {
        err = nrd_llm_draft_metrics_new(&inst->draft_metrics, inst);
    }
    if (!err) {
        err = nrd_llm_picture_metrics_new(&inst->picture_metrics, inst);
    }
    if (!err) {
        err = nrd_llm_handover_metrics_new(&inst->handover_metrics, inst);
    }
    if (!err) {
        nrd_iter_stats start = {.size = sizeof start,
                                .max_active = inst->info.max_batch_size,
                                .kv_max_blocks = inst->info.n_kv_blocks,
                                .kv_free_blocks = inst->info.n_kv_blocks,
                                .kv_tokens_per_block = inst->info.tokens_per_block,
                                .mem_reserved_bytes = inst->info.weight_bytes + inst->info.kv_cache_bytes +
                                                      inst->info.state_bytes};
        nrd_llm_metrics_iteration(inst->metrics, &start,
                                  inst->model->exec_config.batching == NRD_BATCHING_STATIC);
        if (pthread_create(&inst->responder, NULL, responder_main, inst)) {
            err = nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "cannot start the responder thread");
        } else {
            inst->responder_runs = true;
            err = TRITONBACKEND_ModelInstanceSetState(instance, inst);
        }
    }
    if (err) {
        instance_free(inst);
    }
    return err;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance *instance)
{
    nrd_llm_instance *inst = NULL;
    NRD_TB_TRY(TRITONBACKEND_ModelInstanceState(instance, (void **)&inst));
    if (inst) {
        instance_free(inst);
    }
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance *instance,
                                                       TRITONBACKEND_Request **requests,
                                                       const uint32_t request_count)
{
    nrd_llm_instance *inst = NULL;
    NRD_TB_TRY(TRITONBACKEND_ModelInstanceState(instance, (void **)&inst));
    for (uint32_t i = 0; i < request_count; i++) {
        run_request(inst, requests[i]);
    }
    return NULL;
}

/* Asked for by the readiness endpoints, of servers of Triton too. */
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReady(TRITONBACKEND_ModelInstance *instance)
{
    nrd_llm_instance *inst = NULL;
    NRD_TB_TRY(TRITONBACKEND_ModelInstanceState(instance, (void **)&inst));
    return exec_error(nrd_exec_health(inst->exec));
}
