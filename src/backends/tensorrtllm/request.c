/* SPDX-License-Identifier: Apache-2.0
 * A Triton request from Execute until its rows are handed over. */
#include "backends/tensorrtllm/llm.h"

#include "base/clock.h"
#include "base/limits.h"

#include <string.h>

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
    nrd_tb_release(request);
    return NULL;
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
    nrd_tb_release(q->triton);
    free_request(q);
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
    nrd_llm_claim_join(q);
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
void nrd_llm_run(nrd_llm_instance *inst, TRITONBACKEND_Request *request)
{
    nrd_tb_inputs in = {0};
    nrd_llm_request *q = calloc(1, sizeof *q);
    const char *id = "";
    int64_t stop = 0;

    if (!q) {
        nrd_tb_refuse(request, nrd_tb_error(nrd_error_no_memory()));
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
    const bool sees = !err && !is_stop && nrd_llm_has_pictures(request, &in);
    if (is_stop) {
        err = stop_requests(inst, request, id);
    } else if (!err) {
        err = sees ? nrd_llm_pictures_check_room(inst) : NULL;
        err = err ? err : begin_request(inst, q, &in, id);
    }
    if (err) {
        refuse_request(inst, q, err);
    } else if (is_stop) {
        free_request(q);
    } else if (sees) {
        nrd_llm_push_pictures(inst, q, &in);
    } else {
        nrd_llm_run_rows(inst, q, &in);
    }
    nrd_tb_inputs_fini(&in);
}
