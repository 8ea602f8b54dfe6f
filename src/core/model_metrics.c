/* SPDX-License-Identifier: Apache-2.0
 * The metric series of one model: which families the settings ask for, their labels, and the
 * functions that update them. Made when a model is loaded, updated by statistics.c and the
 * schedulers, freed with the model. */
#include "core/model_metrics.h"

#include "core/context.h"
#include "core/metrics.h"
#include "core/model_internal.h"
#include "core/options.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/metric.h"
#include "base/number.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    M_SUCCESS,
    M_FAILURE, /* one series per reason, kept apart */
    M_COUNT,
    M_EXEC_COUNT,
    M_REQUEST_US,
    M_QUEUE_US,
    M_INPUT_US,
    M_INFER_US,
    M_OUTPUT_US,
    M_PENDING,
    M_LOAD_SECS,
    M_FIRST_RESPONSE,
    M_REQUEST_SUM,
    M_QUEUE_SUM,
    M_INPUT_SUM,
    M_INFER_SUM,
    M_OUTPUT_SUM,
    M_CACHE_HITS,
    M_CACHE_MISSES,
    M_CACHE_HIT_US,
    M_CACHE_MISS_US,
    M_CACHE_HIT_SUM,
    M_CACHE_MISS_SUM,
    N_SERIES,
};

typedef enum {
    ALWAYS,
    IF_COUNTERS,
    IF_HISTOGRAMS,
    IF_SUMMARIES,
    IF_CACHE_COUNTERS,
    IF_CACHE_SUMMARIES,
} when;

static const struct {
    const char *name, *help;
    nrd_metric_kind kind;
    when on;
} families[N_SERIES] = {
    [M_SUCCESS] = {"nv_inference_request_success",
                   "Number of successful inference requests, all batch sizes", NRD_METRIC_COUNTER,
                   ALWAYS},
    [M_FAILURE] = {"nv_inference_request_failure",
                   "Number of failed inference requests, all batch sizes", NRD_METRIC_COUNTER,
                   ALWAYS},
    [M_COUNT] = {"nv_inference_count",
                 "Number of inferences performed (does not include cached requests)",
                 NRD_METRIC_COUNTER, ALWAYS},
    [M_EXEC_COUNT] = {"nv_inference_exec_count",
                      "Number of model executions performed (does not include cached requests)",
                      NRD_METRIC_COUNTER, ALWAYS},
    [M_REQUEST_US] = {"nv_inference_request_duration_us",
                      "Cumulative inference request duration in microseconds (includes cached "
                      "requests)",
                      NRD_METRIC_COUNTER, IF_COUNTERS},
    [M_QUEUE_US] = {"nv_inference_queue_duration_us",
                    "Cumulative inference queuing duration in microseconds (includes cached "
                    "requests)",
                    NRD_METRIC_COUNTER, IF_COUNTERS},
    [M_INPUT_US] = {"nv_inference_compute_input_duration_us",
                    "Cumulative compute input duration in microseconds (does not include cached "
                    "requests)",
                    NRD_METRIC_COUNTER, IF_COUNTERS},
    [M_INFER_US] = {"nv_inference_compute_infer_duration_us",
                    "Cumulative compute inference duration in microseconds (does not include "
                    "cached requests)",
                    NRD_METRIC_COUNTER, IF_COUNTERS},
    [M_OUTPUT_US] = {"nv_inference_compute_output_duration_us",
                     "Cumulative inference compute output duration in microseconds (does not "
                     "include cached requests)",
                     NRD_METRIC_COUNTER, IF_COUNTERS},
    [M_PENDING] = {"nv_inference_pending_request_count",
                   "Instantaneous number of pending requests awaiting execution per-model.",
                   NRD_METRIC_GAUGE, ALWAYS},
    [M_LOAD_SECS] = {"nv_model_load_duration_secs", "Model load time in seconds", NRD_METRIC_GAUGE,
                     ALWAYS},
    [M_FIRST_RESPONSE] = {"nv_inference_first_response_histogram_ms",
                          "Duration from request to first response in milliseconds",
                          NRD_METRIC_HISTOGRAM, IF_HISTOGRAMS},
    [M_REQUEST_SUM] = {"nv_inference_request_summary_us",
                       "Summary of inference request duration in microseconds (includes cached "
                       "requests)",
                       NRD_METRIC_SUMMARY, IF_SUMMARIES},
    [M_QUEUE_SUM] = {"nv_inference_queue_summary_us",
                     "Summary of inference queuing duration in microseconds (includes cached "
                     "requests)",
                     NRD_METRIC_SUMMARY, IF_SUMMARIES},
    [M_INPUT_SUM] = {"nv_inference_compute_input_summary_us",
                     "Cumulative compute input duration in microseconds (does not include cached "
                     "requests)",
                     NRD_METRIC_SUMMARY, IF_SUMMARIES},
    [M_INFER_SUM] = {"nv_inference_compute_infer_summary_us",
                     "Cumulative compute inference duration in microseconds (does not include "
                     "cached requests)",
                     NRD_METRIC_SUMMARY, IF_SUMMARIES},
    [M_OUTPUT_SUM] =
        {"nv_inference_compute_output_summary_us",
         "Cumulative inference compute output duration in microseconds (does not include "
         "cached requests)",
         NRD_METRIC_SUMMARY, IF_SUMMARIES},
    [M_CACHE_HITS] = {"nv_cache_num_hits_per_model", "Number of cache hits per model",
                      NRD_METRIC_COUNTER, IF_CACHE_COUNTERS},
    [M_CACHE_MISSES] = {"nv_cache_num_misses_per_model", "Number of cache misses per model",
                        NRD_METRIC_COUNTER, IF_CACHE_COUNTERS},
    [M_CACHE_HIT_US] = {"nv_cache_hit_duration_per_model",
                        "Total cache hit duration per model, in microseconds", NRD_METRIC_COUNTER,
                        IF_CACHE_COUNTERS},
    [M_CACHE_MISS_US] = {"nv_cache_miss_duration_per_model",
                         "Total cache miss (insert+lookup) duration per model, in microseconds",
                         NRD_METRIC_COUNTER, IF_CACHE_COUNTERS},
    [M_CACHE_HIT_SUM] = {"nv_cache_hit_summary_per_model",
                         "Summary of cache hit counts/durations per model, in microseconds.",
                         NRD_METRIC_SUMMARY, IF_CACHE_SUMMARIES},
    [M_CACHE_MISS_SUM] = {"nv_cache_miss_summary_per_model",
                          "Summary of cache miss counts/durations per model, in microseconds.",
                          NRD_METRIC_SUMMARY, IF_CACHE_SUMMARIES},
};

static const char *const reasons[NRD_FAIL_REASONS] = {"REJECTED", "CANCELED", "BACKEND", "OTHER"};

struct nrd_model_metrics {
    nrd_metric_family *families[N_SERIES];
    nrd_metric *series[N_SERIES];
    nrd_metric *failure[NRD_FAIL_REASONS];
};

enum { MAX_LABELS = 34, MAX_BUCKETS = 64, MAX_QUANTILES = 32 };

static bool setting_on(const nrd_context *ctx, const char *key, bool fallback)
{
    const char *v = nrd_setting_find(ctx->opt.metrics_config, "", key);
    return v ? strcmp(v, "true") == 0 || strcmp(v, "1") == 0 : fallback;
}

/* "0.5:0.05,0.9:0.01" -> quantiles; the default list when absent. */
static nrd_error *read_quantiles(const nrd_context *ctx, nrd_metric_quantile *q, size_t *n)
{
    static const nrd_metric_quantile defaults[] = {
        {0.5, 0.05}, {0.9, 0.01}, {0.95, 0.001}, {0.99, 0.001}, {0.999, 0.001}};
    const char *text = nrd_setting_find(ctx->opt.metrics_config, "", "summary_quantiles");

    *n = 0;
    if (!text) {
        memcpy(q, defaults, sizeof defaults);
        *n = sizeof defaults / sizeof defaults[0];
        return NULL;
    }
    while (*text && *n < MAX_QUANTILES) {
        char *stop;
        q[*n].quantile = nrd_number_read(text, &stop);
        if (stop == text || *stop != ':') {
            break;
        }
        text = stop + 1;
        q[*n].error = nrd_number_read(text, &stop);
        if (stop == text || q[*n].quantile < 0 || q[*n].quantile > 1) {
            break;
        }
        (*n)++;
        text =
            stop + strcspn(stop, ","); /* as Triton reads it: what follows a number is left out */
        text += *text == ',';
    }
    if (*text || *n == 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "metrics setting summary_quantiles: expected quantile:error pairs, got "
                          "'%s'",
                          text);
    }
    return NULL;
}

static const Inference__ModelMetrics__MetricControl *metric_control(const nrd_model *m,
                                                                    const char *family)
{
    const Inference__ModelMetrics *mm = m->config->model_metrics;
    for (size_t i = 0; mm && i < mm->n_metric_control; i++) {
        const Inference__ModelMetrics__MetricControl *c = mm->metric_control[i];
        if (c->metric_identifier && strcmp(c->metric_identifier->family, family) == 0 &&
            c->metric_options_case ==
                INFERENCE__MODEL_METRICS__METRIC_CONTROL__METRIC_OPTIONS_HISTOGRAM_OPTIONS) {
            return c;
        }
    }
    return NULL;
}

static nrd_error *make_series(nrd_model_metrics *mm, int k, const nrd_model *m,
                              nrd_metric_label *labels, size_t n_labels,
                              const nrd_metric_quantile *q, size_t n_q)
{
    static const double first_response_ms[] = {100, 500, 2000, 5000};
    nrd_metric_shape shape = {.buckets = first_response_ms,
                              .n_buckets = sizeof first_response_ms / sizeof first_response_ms[0],
                              .quantiles = q,
                              .n_quantiles = n_q};
    const Inference__ModelMetrics__MetricControl *c = metric_control(m, families[k].name);

    if (c) {
        shape.buckets = c->histogram_options->buckets;
        shape.n_buckets = c->histogram_options->n_buckets;
    }
    NRD_TRY(nrd_metric_family_get(&mm->families[k], nrd_core_metrics(), families[k].kind,
                                  families[k].name, families[k].help));
    if (k != M_FAILURE) {
        return nrd_metric_get(&mm->series[k], mm->families[k], labels, n_labels, &shape);
    }
    for (int i = 0; i < NRD_FAIL_REASONS; i++) {
        labels[n_labels] = (nrd_metric_label){"reason", reasons[i]};
        NRD_TRY(nrd_metric_get(&mm->failure[i], mm->families[k], labels, n_labels + 1, NULL));
    }
    return NULL;
}

nrd_error *nrd_model_metrics_new(nrd_model_metrics **out, nrd_context *ctx, nrd_model *m)
{
    nrd_model_metrics *mm = NULL;
    nrd_error *err = NULL;
    nrd_metric_label labels[MAX_LABELS];
    nrd_metric_quantile q[MAX_QUANTILES];
    size_t n = 0, n_q;
    char version[24], *tags[MAX_LABELS];
    size_t n_tags = 0;
    /* of the configuration: the server may have no cache at all */
    const bool cached = m->config->response_cache && m->config->response_cache->enable;

    *out = NULL;
    NRD_TRY(read_quantiles(ctx, q, &n_q));
    snprintf(version, sizeof version, "%" PRId64, m->version);
    for (size_t i = 0; i < m->config->n_metric_tags && n + 3 < MAX_LABELS; i++) {
        if (asprintf(&tags[i], "_%s", m->config->metric_tags[i]->key) < 0) { /* Triton's mark of them */
            err = nrd_error_no_memory();
            goto fail;
        }
        labels[n++] = (nrd_metric_label){tags[i], m->config->metric_tags[i]->value};
        n_tags = n;
    }
    labels[n++] = (nrd_metric_label){"model", m->name};
    if (ctx->opt.namespacing) {
        labels[n++] = (nrd_metric_label){"namespace", m->namespace};
    }
    labels[n++] = (nrd_metric_label){"version", version};
    NRD_NEW_GOTO(mm, 1, err, fail);
    for (int k = 0; k < N_SERIES; k++) {
        bool on = families[k].on == ALWAYS ||
                  (families[k].on == IF_COUNTERS && setting_on(ctx, "counter_latencies", true)) ||
                  (families[k].on == IF_HISTOGRAMS && m->decoupled &&
                   setting_on(ctx, "histogram_latencies", false)) ||
                  (families[k].on == IF_SUMMARIES && setting_on(ctx, "summary_latencies", false)) ||
                  (families[k].on == IF_CACHE_COUNTERS && cached &&
                   setting_on(ctx, "counter_latencies", true)) ||
                  (families[k].on == IF_CACHE_SUMMARIES && cached &&
                   setting_on(ctx, "summary_latencies", false));
        /* a miss would make two observations of one request */
        on = on && !(k == M_REQUEST_SUM && cached);
        if (on) {
            NRD_TRY_GOTO(make_series(mm, k, m, labels, n, q, n_q), err, fail);
        }
    }
    *out = mm;
    mm = NULL;

fail:
    for (size_t i = 0; i < n_tags; i++) {
        free(tags[i]);
    }
    nrd_model_metrics_free(mm);
    return err;
}

void nrd_model_metrics_free(nrd_model_metrics *mm)
{
    if (!mm) {
        return;
    }
    for (int k = 0; k < N_SERIES; k++) {
        nrd_metric_unref(mm->series[k]);
    }
    for (int i = 0; i < NRD_FAIL_REASONS; i++) {
        nrd_metric_unref(mm->failure[i]);
    }
    for (int k = 0; k < N_SERIES; k++) {
        nrd_metric_family_unref(mm->families[k]);
    }
    free(mm);
}

void nrd_model_metrics_pending(nrd_model_metrics *mm, int delta)
{
    if (mm) {
        nrd_metric_bump(mm->series[M_PENDING], delta);
    }
}

void nrd_model_metrics_load_time(nrd_model_metrics *mm, double seconds)
{
    if (mm) {
        nrd_metric_put(mm->series[M_LOAD_SECS], seconds);
    }
}

void nrd_model_metrics_first_response(nrd_model_metrics *mm, uint64_t start_ns)
{
    if (mm && mm->series[M_FIRST_RESPONSE]) {
        nrd_metric_sample(mm->series[M_FIRST_RESPONSE],
                          (double)((nrd_now_ns() - start_ns) / 1000000u));
    }
}

void nrd_model_metrics_success(nrd_model_metrics *mm, uint64_t batch_size, const uint64_t ns[5])
{
    if (!mm) {
        return;
    }
    nrd_metric_bump(mm->series[M_SUCCESS], 1);
    nrd_metric_bump(mm->series[M_COUNT], (double)batch_size);
    for (int i = 0; i < 5; i++) {
        const uint64_t us = ns[i] / 1000u;
        if (us) { /* a cheap model has many zeros */
            nrd_metric_bump(mm->series[M_REQUEST_US + i], (double)us);
        }
        nrd_metric_sample(mm->series[M_REQUEST_SUM + i], (double)us);
    }
}

void nrd_model_metrics_failure(nrd_model_metrics *mm, nrd_fail_reason reason)
{
    if (mm) {
        nrd_metric_bump(mm->failure[reason], 1);
    }
}

void nrd_model_metrics_batch(nrd_model_metrics *mm)
{
    if (mm) {
        nrd_metric_bump(mm->series[M_EXEC_COUNT], 1);
    }
}

void nrd_model_metrics_cache_hit(nrd_model_metrics *mm, uint64_t request_ns, uint64_t queue_ns,
                                 uint64_t lookup_ns)
{
    if (mm) { /* no inference was made, so none is counted */
        nrd_metric_bump(mm->series[M_SUCCESS], 1);
        nrd_metric_bump(mm->series[M_REQUEST_US], (double)(request_ns / 1000u));
        nrd_metric_bump(mm->series[M_QUEUE_US], (double)(queue_ns / 1000u));
        nrd_metric_sample(mm->series[M_QUEUE_SUM], (double)(queue_ns / 1000u));
        nrd_metric_bump(mm->series[M_CACHE_HITS], 1);
        nrd_metric_bump(mm->series[M_CACHE_HIT_US], (double)(lookup_ns / 1000u));
        nrd_metric_sample(mm->series[M_CACHE_HIT_SUM], (double)(lookup_ns / 1000u));
    }
}

void nrd_model_metrics_cache_miss(nrd_model_metrics *mm, uint64_t ns)
{
    if (mm) {
        nrd_metric_bump(mm->series[M_REQUEST_US], (double)(ns / 1000u));
        nrd_metric_bump(mm->series[M_CACHE_MISSES], 1);
        nrd_metric_bump(mm->series[M_CACHE_MISS_US], (double)(ns / 1000u));
        nrd_metric_sample(mm->series[M_CACHE_MISS_SUM], (double)(ns / 1000u));
    }
}
