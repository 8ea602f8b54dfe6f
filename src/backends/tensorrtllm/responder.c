/* SPDX-License-Identifier: Apache-2.0
 * The thread of an instance that awaits the executor: answers, cancellations, statistics. */
#include "backends/tensorrtllm/llm.h"
#include "backends/tensorrtllm/metric_table.h"

#include "base/clock.h"

enum { MAX_RESPONSES = 64, MAX_ITERATIONS = 32 };

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
            nrd_tb_log_error(nrd_llm_error(err), "waiting for the engine");
            break;
        }
        for (int32_t i = 0; i < n; i++) {
            if (r[i]->error) {
                nrd_llm_note_loss(inst);
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
            nrd_llm_note_loss(inst); /* also where no request hears of it */
        }
    }
    report_iterations(inst);
    return NULL;
}

TRITONSERVER_Error *nrd_llm_responder_start(nrd_llm_instance *inst)
{
    if (pthread_create(&inst->responder, NULL, responder_main, inst)) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "cannot start the responder thread");
    }
    inst->responder_runs = true;
    return NULL;
}

void nrd_llm_responder_stop(nrd_llm_instance *inst)
{
    if (inst->responder_runs) {
        nrd_tb_log_error(nrd_llm_error(nrd_exec_shutdown(inst->exec, 0)), "engine shutdown");
        pthread_join(inst->responder, NULL);
        inst->responder_runs = false;
    }
}
