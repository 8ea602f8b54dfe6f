#include "core/core.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the registry ---- */

static nrd_metrics *registry;
static pthread_once_t registry_once = PTHREAD_ONCE_INIT;

static void make_registry(void)
{
    registry = nrd_metrics_new(); /* lives as long as the process: custom metrics have no server */
}

nrd_metrics *nrd_core_metrics(void)
{
    pthread_once(&registry_once, make_registry);
    return registry;
}

/* ---- series of one model ---- */

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
    [M_OUTPUT_SUM] = {"nv_inference_compute_output_summary_us",
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

static bool setting_on(const nrd_server *s, const char *key, bool fallback)
{
    const char *v = nrd_setting_find(s->opt.metrics_config, "", key);
    return v ? strcmp(v, "true") == 0 || strcmp(v, "1") == 0 : fallback;
}

/* "0.5:0.05,0.9:0.01" -> quantiles; the default list when absent. */
static nrd_error *read_quantiles(const nrd_server *s, nrd_metric_quantile *q, size_t *n)
{
    static const nrd_metric_quantile defaults[] = {
        {0.5, 0.05}, {0.9, 0.01}, {0.95, 0.001}, {0.99, 0.001}, {0.999, 0.001}};
    const char *text = nrd_setting_find(s->opt.metrics_config, "", "summary_quantiles");

    *n = 0;
    if (!text) {
        memcpy(q, defaults, sizeof defaults);
        *n = sizeof defaults / sizeof defaults[0];
        return NULL;
    }
    while (*text && *n < MAX_QUANTILES) {
        char *stop;
        q[*n].quantile = strtod(text, &stop);
        if (stop == text || *stop != ':') {
            break;
        }
        text = stop + 1;
        q[*n].error = strtod(text, &stop);
        if (stop == text || q[*n].quantile < 0 || q[*n].quantile > 1) {
            break;
        }
        (*n)++;
        text = stop + strcspn(stop, ","); /* as Triton reads it: what follows a number is left out */
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

nrd_error *nrd_model_metrics_new(nrd_model_metrics **out, nrd_server *s, nrd_model *m)
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
    NRD_TRY(read_quantiles(s, q, &n_q));
    snprintf(version, sizeof version, "%" PRId64, m->version);
    for (size_t i = 0; i < m->config->n_metric_tags && n + 3 < MAX_LABELS; i++) {
        tags[i] = nrd_xasprintf("_%s", m->config->metric_tags[i]->key); /* Triton's mark of them */
        labels[n++] = (nrd_metric_label){tags[i], m->config->metric_tags[i]->value};
    }
    n_tags = n;
    labels[n++] = (nrd_metric_label){"model", m->name};
    if (s->opt.namespacing) {
        labels[n++] = (nrd_metric_label){"namespace", m->space};
    }
    labels[n++] = (nrd_metric_label){"version", version};
    NRD_NEW_GOTO(mm, 1, err, fail);
    for (int k = 0; k < N_SERIES; k++) {
        bool on = families[k].on == ALWAYS ||
                  (families[k].on == IF_COUNTERS && setting_on(s, "counter_latencies", true)) ||
                  (families[k].on == IF_HISTOGRAMS && m->decoupled &&
                   setting_on(s, "histogram_latencies", false)) ||
                  (families[k].on == IF_SUMMARIES && setting_on(s, "summary_latencies", false)) ||
                  (families[k].on == IF_CACHE_COUNTERS && cached &&
                   setting_on(s, "counter_latencies", true)) ||
                  (families[k].on == IF_CACHE_SUMMARIES && cached &&
                   setting_on(s, "summary_latencies", false));
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

/* ---- figures of one model ---- */

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
    nrd_model_metrics *mm = m->metrics;
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
    if (!mm) {
        return;
    }
    const uint64_t us[] = {request_ns / 1000u, queue_ns / 1000u, input_ns / 1000u, infer_ns / 1000u,
                           output_ns / 1000u};
    nrd_metric_bump(mm->series[M_SUCCESS], 1);
    nrd_metric_bump(mm->series[M_COUNT], (double)batch_size);
    for (int i = 0; i < 5; i++) {
        if (us[i]) { /* a cheap model has many zeros */
            nrd_metric_bump(mm->series[M_REQUEST_US + i], (double)us[i]);
        }
        nrd_metric_sample(mm->series[M_REQUEST_SUM + i], (double)us[i]);
    }
}

void nrd_stats_cache_hit(nrd_request *r, uint64_t lookup_ns)
{
    nrd_model_metrics *mm = r->model->metrics;
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
    if (mm) { /* no inference was made, so none is counted */
        nrd_metric_bump(mm->series[M_SUCCESS], 1);
        nrd_metric_bump(mm->series[M_REQUEST_US], (double)(total / 1000u));
        nrd_metric_bump(mm->series[M_QUEUE_US], (double)(queue / 1000u));
        nrd_metric_sample(mm->series[M_QUEUE_SUM], (double)(queue / 1000u));
        nrd_metric_bump(mm->series[M_CACHE_HITS], 1);
        nrd_metric_bump(mm->series[M_CACHE_HIT_US], (double)(lookup_ns / 1000u));
        nrd_metric_sample(mm->series[M_CACHE_HIT_SUM], (double)(lookup_ns / 1000u));
    }
}

void nrd_stats_cache_miss(nrd_model *m, uint64_t ns)
{
    nrd_model_metrics *mm = m->metrics;
    nrd_stats *s = &m->stats;

    pthread_mutex_lock(&s->mu);
    s->success.ns += ns;
    add(&s->cache_miss, ns);
    pthread_mutex_unlock(&s->mu);
    if (mm) {
        nrd_metric_bump(mm->series[M_REQUEST_US], (double)(ns / 1000u));
        nrd_metric_bump(mm->series[M_CACHE_MISSES], 1);
        nrd_metric_bump(mm->series[M_CACHE_MISS_US], (double)(ns / 1000u));
        nrd_metric_sample(mm->series[M_CACHE_MISS_SUM], (double)(ns / 1000u));
    }
}

void nrd_stats_failure(nrd_model *m, uint64_t request_ns, nrd_fail_reason reason)
{
    pthread_mutex_lock(&m->stats.mu);
    add(&m->stats.fail, request_ns);
    pthread_mutex_unlock(&m->stats.mu);
    if (m->metrics) {
        nrd_metric_bump(m->metrics->failure[reason], 1);
    }
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
        s->batches = nrd_xrealloc(s->batches, (s->n_batches + 1) * sizeof *s->batches);
        memmove(s->batches + i + 1, s->batches + i, (s->n_batches - i) * sizeof *s->batches);
        s->n_batches++;
        s->batches[i] = (nrd_batch_stat){.batch_size = batch_size};
    }
    add(&s->batches[i].input, input_ns);
    add(&s->batches[i].infer, infer_ns);
    add(&s->batches[i].output, output_ns);
    pthread_mutex_unlock(&s->mu);
    if (m->metrics) {
        nrd_metric_bump(m->metrics->series[M_EXEC_COUNT], 1);
    }
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
                          nrd_request_is_cancelled(r) ? NRD_FAIL_CANCELED : NRD_FAIL_BACKEND);
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
        s->responses = nrd_xrealloc(s->responses, (i + 1) * sizeof *s->responses);
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

/* ---- the machine ---- */

enum { H_CPU_LOAD, H_MEM_TOTAL, H_MEM_USED, H_PINNED_TOTAL, H_PINNED_USED, N_HOST };

static const struct {
    const char *name, *help;
} host_families[N_HOST] = {
    [H_CPU_LOAD] = {"nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]"},
    [H_MEM_TOTAL] = {"nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes"},
    [H_MEM_USED] = {"nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes"},
    [H_PINNED_TOTAL] = {"nv_pinned_memory_pool_total_bytes",
                        "Pinned memory pool total memory size, in bytes"},
    [H_PINNED_USED] = {"nv_pinned_memory_pool_used_bytes",
                       "Pinned memory pool used memory size, in bytes"},
};

struct nrd_host_metrics {
    nrd_metric_family *families[N_HOST];
    nrd_metric *series[N_HOST];
    uint64_t busy, total; /* at the last update, in clock ticks */
};

nrd_error *nrd_host_metrics_new(nrd_host_metrics **out, bool with_cpu)
{
    nrd_host_metrics *h = nrd_xcalloc(1, sizeof *h);
    nrd_error *err = NULL;

    *out = NULL;
    for (int k = with_cpu ? 0 : H_PINNED_TOTAL; k < N_HOST && !err; k++) {
        err = nrd_metric_family_get(&h->families[k], nrd_core_metrics(), NRD_METRIC_GAUGE,
                                    host_families[k].name, host_families[k].help);
        if (!err) {
            err = nrd_metric_get(&h->series[k], h->families[k], NULL, 0, NULL);
        }
    }
    if (err) {
        nrd_host_metrics_free(h);
        return err;
    }
    nrd_host_metrics_update(h);
    *out = h;
    return NULL;
}

static void update_cpu(nrd_host_metrics *h)
{
    unsigned long long v[8] = {0}, total = 0, idle;
    FILE *f = fopen("/proc/stat", "re");
    int n = 0;

    if (!f) {
        return;
    }
    n = fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &v[0], &v[1], &v[2], &v[3], &v[4],
               &v[5], &v[6], &v[7]);
    fclose(f);
    if (n < 5) {
        return;
    }
    for (int i = 0; i < 8; i++) {
        total += v[i];
    }
    idle = v[3] + v[4]; /* idle and waiting for I/O */
    uint64_t busy = total - idle;
    if (h->total && total > h->total) {
        nrd_metric_put(h->series[H_CPU_LOAD],
                       (double)minus(busy, h->busy) / (double)(total - h->total));
    }
    h->busy = busy;
    h->total = total;
}

static void update_memory(nrd_host_metrics *h)
{
    char line[128];
    unsigned long long total = 0, available = 0, kb;
    FILE *f = fopen("/proc/meminfo", "re");

    if (!f) {
        return;
    }
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "MemTotal: %llu", &kb) == 1) {
            total = kb * 1024u;
        } else if (sscanf(line, "MemAvailable: %llu", &kb) == 1) {
            available = kb * 1024u;
        }
    }
    fclose(f);
    nrd_metric_put(h->series[H_MEM_TOTAL], (double)total);
    nrd_metric_put(h->series[H_MEM_USED], (double)minus(total, available));
}

void nrd_host_metrics_update(nrd_host_metrics *h)
{
    if (!h) {
        return;
    }
    if (h->series[H_CPU_LOAD]) {
        update_cpu(h);
        update_memory(h);
    }
    nrd_metric_put(h->series[H_PINNED_TOTAL], (double)nrd_pinned_pool_size());
    nrd_metric_put(h->series[H_PINNED_USED], (double)nrd_pinned_pool_used());
}

void nrd_host_metrics_free(nrd_host_metrics *h)
{
    if (!h) {
        return;
    }
    for (int k = 0; k < N_HOST; k++) {
        nrd_metric_unref(h->series[k]);
        nrd_metric_family_unref(h->families[k]);
    }
    free(h);
}
