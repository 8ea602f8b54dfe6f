/* SPDX-License-Identifier: Apache-2.0
 * Sums and counts of one model, under one lock, and their JSON for the statistics endpoints. Called
 * when requests end, batches were executed, responses were sent, and by the response cache; the
 * metric series (model_metrics.c) are updated by the same calls. */
#include "core/statistics.h"

#include "core/cancel.h"
#include "core/instance_internal.h"
#include "core/memory.h"
#include "core/model_internal.h"
#include "core/model_metrics.h"
#include "core/request_internal.h"
#include "core/statistics_internal.h"
#include "core/trace.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void nrd_stats_init(nrd_stats *s)
{
    memset(s, 0, sizeof *s);
    pthread_mutex_init(&s->mu, NULL);
}

void nrd_stats_fini(nrd_stats *s)
{
    free(s->batches);
    free(s->responses);
    pthread_mutex_destroy(&s->mu);
}

static void add(nrd_duration *d, uint64_t ns)
{
    d->count++;
    d->ns += ns;
}

static uint64_t minus(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

void nrd_stats_success(nrd_model *m, uint64_t batch_size, uint64_t request_ns, uint64_t queue_ns,
                       uint64_t input_ns, uint64_t infer_ns, uint64_t output_ns)
{
    nrd_stats *s = &m->stats;
    const uint64_t now_ms = nrd_wall_us() / 1000u;

    pthread_mutex_lock(&s->mu);
    s->last_inference_ms = now_ms;
    s->inference_count += batch_size;
    add(&s->success, request_ns);
    add(&s->queue, queue_ns);
    add(&s->input, input_ns);
    add(&s->infer, infer_ns);
    add(&s->output, output_ns);
    pthread_mutex_unlock(&s->mu);
    nrd_model_metrics_success(
        m->metrics, batch_size,
        (const uint64_t[5]){request_ns, queue_ns, input_ns, infer_ns, output_ns});
}

void nrd_stats_cache_hit(nrd_request *r, uint64_t lookup_ns)
{
    nrd_stats *s = &r->model->stats;
    const uint64_t total = nrd_now_ns() - r->start_ns, queue = r->queue_ns - r->start_ns;

    pthread_mutex_lock(&s->mu);
    add(&s->success, total);
    add(&s->cache_hit, lookup_ns);
    s->queue.ns += queue;
    s->queue.count++;
    pthread_mutex_unlock(&s->mu);
    if (r->step_sums) {
        atomic_fetch_add(&r->step_sums->queue_ns, queue);
    }
    nrd_model_metrics_cache_hit(r->model->metrics, total, queue, lookup_ns);
}

void nrd_stats_cache_miss(nrd_model *m, uint64_t ns)
{
    nrd_stats *s = &m->stats;

    pthread_mutex_lock(&s->mu);
    s->success.ns += ns;
    add(&s->cache_miss, ns);
    pthread_mutex_unlock(&s->mu);
    nrd_model_metrics_cache_miss(m->metrics, ns);
}

void nrd_stats_failure(nrd_model *m, uint64_t request_ns, nrd_fail_reason reason)
{
    pthread_mutex_lock(&m->stats.mu);
    add(&m->stats.fail, request_ns);
    pthread_mutex_unlock(&m->stats.mu);
    nrd_model_metrics_failure(m->metrics, reason);
}

void nrd_stats_batch(nrd_model *m, uint64_t batch_size, uint64_t input_ns, uint64_t infer_ns,
                     uint64_t output_ns)
{
    nrd_stats *s = &m->stats;
    size_t i = 0;

    pthread_mutex_lock(&s->mu);
    s->execution_count++;
    while (i < s->n_batches && s->batches[i].batch_size < batch_size) {
        i++;
    }
    if (i == s->n_batches || s->batches[i].batch_size != batch_size) {
        nrd_batch_stat *grown = realloc(s->batches, (s->n_batches + 1) * sizeof *grown);
        if (!grown) { /* a figure is lost, and no request */
            pthread_mutex_unlock(&s->mu);
            return;
        }
        s->batches = grown;
        memmove(s->batches + i + 1, s->batches + i, (s->n_batches - i) * sizeof *s->batches);
        s->n_batches++;
        s->batches[i] = (nrd_batch_stat){.batch_size = batch_size};
    }
    add(&s->batches[i].input, input_ns);
    add(&s->batches[i].infer, infer_ns);
    add(&s->batches[i].output, output_ns);
    pthread_mutex_unlock(&s->mu);
    nrd_model_metrics_batch(m->metrics);
}

void nrd_stats_request(nrd_model *m, nrd_request *r, bool success, uint64_t exec_start_ns,
                       uint64_t compute_start_ns, uint64_t compute_end_ns, uint64_t exec_end_ns)
{
    if (r->is_null) {
        return;
    }
    uint64_t now = nrd_now_ns();
    uint64_t queue = minus(exec_start_ns, r->queue_ns),
             input = minus(compute_start_ns, exec_start_ns);
    uint64_t infer = minus(compute_end_ns, compute_start_ns),
             output = minus(exec_end_ns, compute_end_ns);

    if (r->trace) {
        nrd_trace_report(r->trace, TRITONSERVER_TRACE_COMPUTE_START, exec_start_ns);
        nrd_trace_report(r->trace, TRITONSERVER_TRACE_COMPUTE_INPUT_END, compute_start_ns);
        nrd_trace_report(r->trace, TRITONSERVER_TRACE_COMPUTE_OUTPUT_START, compute_end_ns);
        nrd_trace_report(r->trace, TRITONSERVER_TRACE_COMPUTE_END, exec_end_ns);
    }
    if (!success) {
        nrd_stats_failure(m, now - r->start_ns,
                          r->cancel && nrd_cancel_is_set(r->cancel) ? NRD_FAIL_CANCELED
                                                                    : NRD_FAIL_BACKEND);
        return;
    }
    nrd_stats_success(m, r->batch_size ? r->batch_size : 1, now - r->start_ns, queue, input, infer,
                      output);
    if (r->model && r->step_sums) { /* the sums end with the release */
        atomic_fetch_add(&r->step_sums->queue_ns, queue);
        atomic_fetch_add(&r->step_sums->input_ns, input);
        atomic_fetch_add(&r->step_sums->infer_ns, infer);
        atomic_fetch_add(&r->step_sums->output_ns, output);
    }
}

nrd_error *nrd_stats_response(nrd_model *m, uint64_t index, nrd_resp_outcome outcome,
                              uint64_t start_ns, uint64_t output_start_ns, uint64_t end_ns)
{
    enum { MAX_INDEX = 4096 }; /* later responses share the last line: memory stays bounded */
    nrd_stats *s = &m->stats;
    uint64_t infer_end = output_start_ns ? output_start_ns : end_ns;

    if (start_ns > infer_end) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "Response start cannot happen after compute output start");
    }
    if (infer_end > end_ns) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "Compute output start cannot happen after response end");
    }
    size_t i = index < MAX_INDEX ? (size_t)index : MAX_INDEX;
    pthread_mutex_lock(&s->mu);
    if (i >= s->n_responses) {
        nrd_response_stat *grown = realloc(s->responses, (i + 1) * sizeof *grown);
        if (!grown) {
            pthread_mutex_unlock(&s->mu);
            return nrd_error_no_memory();
        }
        s->responses = grown;
        memset(s->responses + s->n_responses, 0, (i + 1 - s->n_responses) * sizeof *s->responses);
        s->n_responses = i + 1;
    }
    nrd_response_stat *r = &s->responses[i];
    if (outcome != NRD_RESP_CANCEL) {
        add(&r->infer, infer_end - start_ns);
        if (output_start_ns) {
            add(&r->output, end_ns - infer_end);
        }
    }
    nrd_duration *of[] = {&r->success, &r->fail, &r->empty, &r->cancel};
    add(of[outcome], end_ns - start_ns);
    pthread_mutex_unlock(&s->mu);
    return NULL;
}

static void put_duration(nrd_str *out, const char *name, const nrd_duration *d, bool comma)
{
    nrd_str_printf(out, "\"%s\":{\"count\":%" PRIu64 ",\"ns\":%" PRIu64 "}%s", name, d->count,
                   d->ns, comma ? "," : "");
}

static void put_usage(nrd_str *out, nrd_attr *const *usage, uint32_t n, bool *first)
{
    for (uint32_t i = 0; i < n; i++) {
        nrd_str_printf(out, "%s{\"type\":\"%s\",\"id\":%" PRId64 ",\"byte_size\":%zu}",
                       *first ? "" : ",", TRITONSERVER_MemoryTypeString(usage[i]->memory_type),
                       usage[i]->memory_type_id, usage[i]->byte_size);
        *first = false;
    }
}

void nrd_stats_json(nrd_model *m, nrd_str *out)
{
    nrd_stats *s = &m->stats;
    bool first = true;

    nrd_str_puts(out, "{\"name\":");
    nrd_json_put_cstr(out, m->name);
    pthread_mutex_lock(&s->mu);
    nrd_str_printf(out,
                   ",\"version\":\"%" PRId64 "\",\"last_inference\":%" PRIu64
                   ",\"inference_count\":%" PRIu64 ",\"execution_count\":%" PRIu64
                   ",\"inference_stats\":{",
                   m->version, s->last_inference_ms, s->inference_count, s->execution_count);
    put_duration(out, "success", &s->success, true);
    put_duration(out, "fail", &s->fail, true);
    put_duration(out, "queue", &s->queue, true);
    put_duration(out, "compute_input", &s->input, true);
    put_duration(out, "compute_infer", &s->infer, true);
    put_duration(out, "compute_output", &s->output, true);
    put_duration(out, "cache_hit", &s->cache_hit, true);
    put_duration(out, "cache_miss", &s->cache_miss, false);
    nrd_str_puts(out, "},\"response_stats\":{");
    for (size_t i = 0; i < s->n_responses; i++) {
        const nrd_response_stat *r = &s->responses[i];
        nrd_str_printf(out, "%s\"%zu\":{", i ? "," : "", i);
        put_duration(out, "compute_infer", &r->infer, true);
        put_duration(out, "compute_output", &r->output, true);
        put_duration(out, "success", &r->success, true);
        put_duration(out, "fail", &r->fail, true);
        put_duration(out, "empty_response", &r->empty, true);
        put_duration(out, "cancel", &r->cancel, false);
        nrd_str_putc(out, '}');
    }
    nrd_str_puts(out, "},\"batch_stats\":[");
    for (size_t i = 0; i < s->n_batches; i++) {
        const nrd_batch_stat *b = &s->batches[i];
        nrd_str_printf(out, "%s{\"batch_size\":%" PRIu64 ",", i ? "," : "", b->batch_size);
        put_duration(out, "compute_input", &b->input, true);
        put_duration(out, "compute_infer", &b->infer, true);
        put_duration(out, "compute_output", &b->output, false);
        nrd_str_putc(out, '}');
    }
    pthread_mutex_unlock(&s->mu);
    nrd_str_puts(out, "],\"memory_usage\":[");
    pthread_mutex_lock(&m->mu);
    put_usage(out, m->usage, m->n_usage, &first);
    for (uint32_t i = 0; i < m->n_instances; i++) {
        put_usage(out, m->instances[i]->usage, m->instances[i]->n_usage, &first);
    }
    pthread_mutex_unlock(&m->mu);
    nrd_str_puts(out, "]}");
}
