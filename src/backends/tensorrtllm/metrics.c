/* SPDX-License-Identifier: Apache-2.0
 * The nv_trt_llm_* and nv_llm_* families and the verbose statistics line: one table, so that the line's
 * keys and the metrics' labels stay the same set. */
#include "backends/tensorrtllm/llm.h"

#include "base/log.h"
#include "base/str.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

typedef enum {
    FAM_REQUEST,
    FAM_MEMORY,
    FAM_KV,
    FAM_DISAGG,
    FAM_INFLIGHT,
    FAM_V1,
    FAM_GENERAL,
    FAM_COUNT,
} family_id;

static const struct {
    const char *name, *help, *label;
    TRITONSERVER_MetricKind kind;
} families[FAM_COUNT] = {
    [FAM_REQUEST] = {"nv_trt_llm_request_metrics", "TRT LLM request metrics", "request_type",
                     TRITONSERVER_METRIC_KIND_GAUGE},
    [FAM_MEMORY] = {"nv_trt_llm_runtime_memory_metrics", "TRT LLM runtime memory metrics",
                    "memory_type", TRITONSERVER_METRIC_KIND_GAUGE},
    [FAM_KV] = {"nv_trt_llm_kv_cache_block_metrics", "TRT LLM KV cache block metrics",
                "kv_cache_block_type", TRITONSERVER_METRIC_KIND_GAUGE},
    [FAM_DISAGG] = {"nv_trt_llm_disaggregated_serving_metrics",
                    "TRT LLM disaggregated serving metrics", "disaggregated_serving_type",
                    TRITONSERVER_METRIC_KIND_COUNTER},
    [FAM_INFLIGHT] = {"nv_trt_llm_inflight_batcher_metrics",
                      "TRT LLM inflight_batcher-specific metrics", "inflight_batcher_specific_metric",
                      TRITONSERVER_METRIC_KIND_GAUGE},
    [FAM_V1] = {"nv_trt_llm_v1_metrics", "TRT LLM v1-specific metrics", "v1_specific_metric",
                TRITONSERVER_METRIC_KIND_GAUGE},
    [FAM_GENERAL] = {"nv_trt_llm_general_metrics", "General TRT LLM metrics", "general_type",
                     TRITONSERVER_METRIC_KIND_GAUGE},
};

/* Value i of values_of() belongs to row i. */
static const struct {
    family_id family;
    const char *label, *key; /* key of the statistics line */
} rows[] = {
    {FAM_REQUEST, "active", "Active Request Count"},
    {FAM_REQUEST, "max", "Max Request Count"},
    {FAM_REQUEST, "scheduled", "Scheduled Requests"},
    {FAM_REQUEST, "context", "Context Requests"},
    {FAM_REQUEST, "waiting", "Waiting Requests"},
    {FAM_MEMORY, "cpu", "Runtime CPU Memory Usage"},
    {FAM_MEMORY, "gpu", "Runtime GPU Memory Usage"},
    {FAM_MEMORY, "pinned", "Runtime Pinned Memory Usage"},
    {FAM_MEMORY, "reserved", "Reserved Memory"},
    {FAM_KV, "max", "Max KV cache blocks"},
    {FAM_KV, "free", "Free KV cache blocks"},
    {FAM_KV, "used", "Used KV cache blocks"},
    {FAM_KV, "tokens_per", "Tokens per KV cache block"},
    {FAM_KV, "reused", "Reused KV cache blocks"},
    {FAM_KV, "fraction", "Fraction used KV cache blocks"},
    {FAM_KV, "unusable", "Unusable KV cache blocks"},
    {FAM_DISAGG, "kv_cache_transfer_ms", "KV cache transfer time"},
    {FAM_DISAGG, "request_count", "Request count"},
    {FAM_INFLIGHT, "total_context_tokens", "Total Context Tokens"},
    {FAM_INFLIGHT, "generation_requests", "Generation Requests"},
    {FAM_INFLIGHT, "micro_batch_id", "MicroBatch ID"},
    {FAM_INFLIGHT, "paused_requests", "Paused Requests"},
    {FAM_V1, "total_context_tokens", "Total Context Tokens"},
    {FAM_V1, "total_generation_tokens", "Total Generation Tokens"},
    {FAM_V1, "empty_generation_slots", "Empty Generation Slots"},
    {FAM_GENERAL, "timestamp", "Timestamp"},
    {FAM_GENERAL, "iteration_counter", "Iteration Counter"},
};
enum { N_ROWS = sizeof rows / sizeof *rows };

/* How requests end. What an answer tells of its beams, shorter. */
typedef enum { END_STOP, END_LENGTH, END_CANCELLED, END_TIMED_OUT, END_ERROR, END_COUNT } end_id;
static const char *const ends[END_COUNT] = {"stop", "length", "cancelled", "timed_out", "error"};

/* How long tokens take and what each step of the engine does. The four of a step are observed
 * together, so that their newest values make a timeline. */
typedef enum {
    TIME_FIRST,
    TIME_NEXT,
    TIME_WHOLE,
    TIME_QUEUE,
    TIME_PREFILL,
    TIME_DECODE,
    TIME_INFERENCE,
    STEP_MS,
    STEP_IDLE_MS,
    STEP_PROMPT,
    STEP_GENERATED,
    STEP_TOKENS,
    HIST_COUNT,
} hist_id;

static const double ms_bounds[] = {0.1, 0.2, 0.5, 1,   2,   5,    10,   20,
                                   50,  100, 200, 500, 1e3, 2e3, 5e3, 10e3, 30e3};
static const double token_bounds[] = {0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192};
#define MS ms_bounds, sizeof ms_bounds / sizeof *ms_bounds
#define TOKENS token_bounds, sizeof token_bounds / sizeof *token_bounds
static const struct {
    const char *name, *help;
    const double *bounds;
    size_t n_bounds;
} hists[HIST_COUNT] = {
    [TIME_FIRST] = {"nv_llm_time_to_first_token_ms",
                    "Milliseconds from a request's arrival at the model to its first token", MS},
    [TIME_NEXT] = {"nv_llm_inter_token_ms", "Milliseconds between two tokens of a request", MS},
    [TIME_WHOLE] = {"nv_llm_request_ms", "Milliseconds from a request's arrival at the model to its end", MS},
    [TIME_QUEUE] = {"nv_llm_queue_ms", "Milliseconds from a request's arrival at the engine to the first step that has it", MS},
    [TIME_PREFILL] = {"nv_llm_prefill_ms", "Milliseconds from that step to the request's first token", MS},
    [TIME_DECODE] = {"nv_llm_decode_ms", "Milliseconds from a request's first token to its last", MS},
    [TIME_INFERENCE] = {"nv_llm_inference_ms", "Milliseconds from the first step that has a request to its last token", MS},
    [STEP_MS] = {"nv_llm_step_ms", "Milliseconds that a step of the engine took", MS},
    [STEP_IDLE_MS] = {"nv_llm_step_idle_ms", "Milliseconds without a step before each step", MS},
    [STEP_PROMPT] = {"nv_llm_step_prompt_tokens", "Prompt tokens that a step computed", TOKENS},
    [STEP_GENERATED] = {"nv_llm_step_generated_tokens", "Tokens that a step generated", TOKENS},
    [STEP_TOKENS] = {"nv_llm_step_tokens", "Prompt tokens that a step computed and tokens that it generated", TOKENS},
};

struct nrd_llm_metrics {
    TRITONSERVER_MetricFamily *hist_families[HIST_COUNT];
    TRITONSERVER_Metric *hists[HIST_COUNT];
    uint64_t last_step_us; /* wall clock at the end of the last step */
    nrd_iter_stats last;   /* what the gauges show */
    nrd_exec_handover_stats handovers; /* what the counters of transfers show */
    TRITONSERVER_MetricFamily *families[2][FAM_COUNT]; /* [1]: again under the names of v0.6, if at all */
    TRITONSERVER_Metric *rows[2][N_ROWS];
    TRITONSERVER_MetricFamily *length_families[2];
    TRITONSERVER_Metric *lengths[2]; /* input, output */
    TRITONSERVER_MetricFamily *end_family;
    TRITONSERVER_Metric *ends[END_COUNT];
    TRITONSERVER_MetricFamily *paused_family;
    TRITONSERVER_Metric *paused; /* counts */
    TRITONSERVER_MetricFamily *longest_family;
    TRITONSERVER_Metric *longest; /* tokens of a sequence; set once */
};

static void values_of(const nrd_llm_metrics *m, const nrd_iter_stats *s, double *v)
{
    const double values[N_ROWS] = {
        s->n_active,
        s->max_active,
        s->n_scheduled,
        s->n_context,
        s->n_waiting,
        (double)s->mem_cpu_bytes,
        (double)s->mem_gpu_bytes,
        (double)s->mem_pinned_bytes,
        (double)s->mem_reserved_bytes,
        s->kv_max_blocks,
        s->kv_free_blocks,
        s->kv_used_blocks,
        s->kv_tokens_per_block,
        (double)s->kv_reused_blocks,
        s->kv_max_blocks ? (double)s->kv_used_blocks / s->kv_max_blocks : 0,
        (double)s->kv_unusable_blocks,
        m ? (double)m->handovers.transfer_us / 1e3 : 0,
        m ? (double)(m->handovers.n_given + m->handovers.n_taken) : 0,
        s->n_context_tokens,
        s->n_generation,
        s->micro_batch_id,
        s->n_paused,
        s->n_context_tokens,
        s->n_generated_tokens,
        s->n_empty_generation_slots,
        (double)s->timestamp_us,
        (double)s->iteration,
    };
    memcpy(v, values, sizeof values);
}

static bool belongs(family_id f, bool is_static_batching)
{
    return !(f == FAM_V1 && !is_static_batching) && !(f == FAM_INFLIGHT && is_static_batching);
}

TRITONSERVER_Error *nrd_llm_metric_new_of(TRITONSERVER_Metric **out,
                                          TRITONSERVER_MetricFamily *family,
                                          const nrd_llm_instance *inst, const nrd_llm_label *more,
                                          int n_more, const TRITONSERVER_MetricArgs *args)
{
    const TRITONSERVER_Parameter *labels[2 + NRD_LLM_MAX_LABELS];
    uint64_t n = 0;
    char version[24];
    TRITONSERVER_Error *err;

    snprintf(version, sizeof version, "%llu", (unsigned long long)inst->model->config.version);
    labels[n++] = TRITONSERVER_ParameterNew("model", TRITONSERVER_PARAMETER_STRING,
                                            inst->model->config.name);
    for (int i = 0; i < n_more && i < NRD_LLM_MAX_LABELS; i++) {
        labels[n++] =
            TRITONSERVER_ParameterNew(more[i].name, TRITONSERVER_PARAMETER_STRING, more[i].value);
    }
    labels[n++] = TRITONSERVER_ParameterNew("version", TRITONSERVER_PARAMETER_STRING, version);
    err = args ? TRITONSERVER_MetricNewWithArgs(out, family, labels, n, args)
               : TRITONSERVER_MetricNew(out, family, labels, n);
    for (uint64_t i = 0; i < n; i++) {
        TRITONSERVER_ParameterDelete((TRITONSERVER_Parameter *)(uintptr_t)labels[i]);
    }
    return err;
}

TRITONSERVER_Error *nrd_llm_metric_new(TRITONSERVER_Metric **out, TRITONSERVER_MetricFamily *family,
                                       const nrd_llm_instance *inst, const char *label,
                                       const char *value, const TRITONSERVER_MetricArgs *args)
{
    return nrd_llm_metric_new_of(out, family, inst, &(nrd_llm_label){label, value}, label ? 1 : 0,
                                 args);
}

static TRITONSERVER_Error *new_lengths(nrd_llm_metrics *m, const nrd_llm_instance *inst)
{
    static const double buckets[] = {10, 50, 100, 500, 1000};
    static const char *const names[] = {"nv_llm_input_token_len", "nv_llm_output_token_len"};
    static const char *const types[] = {"total_input_tokens", "total_output_tokens"};
    TRITONSERVER_MetricArgs *args = NULL;
    TRITONSERVER_Error *err = TRITONSERVER_MetricArgsNew(&args);

    if (!err) {
        err = TRITONSERVER_MetricArgsSetHistogram(args, buckets, sizeof buckets / sizeof *buckets);
    }
    for (int i = 0; i < 2 && !err; i++) {
        err = TRITONSERVER_MetricFamilyNew(&m->length_families[i], TRITONSERVER_METRIC_KIND_HISTOGRAM,
                                           names[i], "TRT LLM response metrics");
        if (!err) {
            err = nrd_llm_metric_new(&m->lengths[i], m->length_families[i], inst, "response_metric_type",
                             types[i], args);
        }
    }
    if (args) {
        TRITONSERVER_Error *ignored = TRITONSERVER_MetricArgsDelete(args);
        TRITONSERVER_ErrorDelete(ignored);
    }
    return err;
}

static TRITONSERVER_Error *new_paused(nrd_llm_metrics *m, const nrd_llm_instance *inst)
{
    TRITONSERVER_Error *err = TRITONSERVER_MetricFamilyNew(
        &m->paused_family, TRITONSERVER_METRIC_KIND_COUNTER, "nv_llm_preemptions",
        "How often a running request gave its cache to others, to be computed again later");
    return err ? err : nrd_llm_metric_new(&m->paused, m->paused_family, inst, NULL, NULL, NULL);
}

static TRITONSERVER_Error *new_longest(nrd_llm_metrics *m, const nrd_llm_instance *inst)
{
    TRITONSERVER_Error *err = TRITONSERVER_MetricFamilyNew(&m->longest_family, TRITONSERVER_METRIC_KIND_GAUGE,
                                                           "nv_llm_max_seq_len",
                                                           "Tokens that a prompt and its answer may have together");
    if (!err) {
        err = nrd_llm_metric_new(&m->longest, m->longest_family, inst, NULL, NULL, NULL);
    }
    return err ? err : TRITONSERVER_MetricSet(m->longest, inst->info.max_seq_len);
}

static TRITONSERVER_Error *new_ends(nrd_llm_metrics *m, const nrd_llm_instance *inst)
{
    TRITONSERVER_Error *err = TRITONSERVER_MetricFamilyNew(&m->end_family, TRITONSERVER_METRIC_KIND_COUNTER,
                                                           "nv_llm_requests_finished", "Requests by how they ended");
    for (int i = 0; i < END_COUNT && !err; i++) {
        err = nrd_llm_metric_new(&m->ends[i], m->end_family, inst, "finish_reason", ends[i], NULL);
    }
    return err;
}

static TRITONSERVER_Error *new_hist(nrd_llm_metrics *m, const nrd_llm_instance *inst, hist_id h)
{
    TRITONSERVER_MetricArgs *args = NULL;
    TRITONSERVER_Error *err = TRITONSERVER_MetricArgsNew(&args);

    if (!err) {
        err = TRITONSERVER_MetricArgsSetHistogram(args, hists[h].bounds, hists[h].n_bounds);
    }
    if (!err) {
        err = TRITONSERVER_MetricFamilyNew(&m->hist_families[h], TRITONSERVER_METRIC_KIND_HISTOGRAM,
                                           hists[h].name, hists[h].help);
    }
    if (!err) {
        err = nrd_llm_metric_new(&m->hists[h], m->hist_families[h], inst, NULL, NULL, args);
    }
    if (args) {
        TRITONSERVER_ErrorDelete(TRITONSERVER_MetricArgsDelete(args));
    }
    return err;
}

/* The families of the table. Repositories of v0.6 have them a second time under the names of that release, for
 * dashboards that were made for it: nv_trt_llm_*_statistics. */
static TRITONSERVER_Error *new_families(nrd_llm_metrics *m, const nrd_llm_instance *inst, bool is_old)
{
    const bool is_static = inst->model->exec_config.batching == NRD_BATCHING_STATIC;
    TRITONSERVER_Error *err = NULL;

    for (int f = 0; f < FAM_COUNT && !err; f++) {
        const char *name = families[f].name;
        char old[64];
        if (is_old) {
            snprintf(old, sizeof old, "%.*sstatistics", (int)(strlen(name) - strlen("metrics")), name);
            name = old;
        }
        if (belongs((family_id)f, is_static) && !(is_old && f == FAM_DISAGG)) { /* v0.6 did not have these */
            err = TRITONSERVER_MetricFamilyNew(&m->families[is_old][f], families[f].kind, name, families[f].help);
        }
    }
    for (int i = 0; i < N_ROWS && !err; i++) {
        TRITONSERVER_MetricFamily *family = m->families[is_old][rows[i].family];
        if (family) {
            err = nrd_llm_metric_new(&m->rows[is_old][i], family, inst, families[rows[i].family].label, rows[i].label,
                                     NULL);
        }
    }
    return err;
}

TRITONSERVER_Error *nrd_llm_metrics_new(nrd_llm_metrics **out, const nrd_llm_instance *inst)
{
    nrd_llm_metrics *m = calloc(1, sizeof *m);
    TRITONSERVER_Error *err = m ? NULL : nrd_tb_error(nrd_error_no_memory());
    if (err) {
        return err;
    }

    err = new_families(m, inst, false);
    if (!err && inst->model->rules.has_old_metric_names) {
        err = new_families(m, inst, true);
    }
    if (!err) {
        err = new_lengths(m, inst);
    }
    if (!err) {
        err = new_ends(m, inst);
    }
    if (!err) {
        err = new_longest(m, inst);
    }
    if (!err) {
        err = new_paused(m, inst);
    }
    for (int h = 0; h < HIST_COUNT && !err; h++) {
        err = new_hist(m, inst, (hist_id)h);
    }
    if (err) {
        nrd_llm_metrics_free(m);
        m = NULL;
        if (TRITONSERVER_ErrorCode(err) == TRITONSERVER_ERROR_UNSUPPORTED) { /* --allow-metrics=false */
            TRITONSERVER_ErrorDelete(err);
            err = NULL;
        }
    }
    *out = m;
    return err;
}

void nrd_llm_metrics_free(nrd_llm_metrics *m)
{
    if (!m) {
        return;
    }
    for (int i = 0; i < 2 * N_ROWS; i++) {
        if (m->rows[i / N_ROWS][i % N_ROWS]) {
            nrd_tb_log_error(TRITONSERVER_MetricDelete(m->rows[i / N_ROWS][i % N_ROWS]), "metric");
        }
    }
    for (int h = 0; h < HIST_COUNT; h++) {
        if (m->hists[h]) {
            nrd_tb_log_error(TRITONSERVER_MetricDelete(m->hists[h]), "metric");
        }
        if (m->hist_families[h]) {
            nrd_tb_log_error(TRITONSERVER_MetricFamilyDelete(m->hist_families[h]), "metric");
        }
    }
    for (int i = 0; i < 2; i++) {
        if (m->lengths[i]) {
            nrd_tb_log_error(TRITONSERVER_MetricDelete(m->lengths[i]), "metric");
        }
        if (m->length_families[i]) {
            nrd_tb_log_error(TRITONSERVER_MetricFamilyDelete(m->length_families[i]), "metric");
        }
    }
    for (int i = 0; i < END_COUNT; i++) {
        if (m->ends[i]) {
            nrd_tb_log_error(TRITONSERVER_MetricDelete(m->ends[i]), "metric");
        }
    }
    if (m->end_family) {
        nrd_tb_log_error(TRITONSERVER_MetricFamilyDelete(m->end_family), "metric");
    }
    if (m->paused) {
        nrd_tb_log_error(TRITONSERVER_MetricDelete(m->paused), "metric");
    }
    if (m->paused_family) {
        nrd_tb_log_error(TRITONSERVER_MetricFamilyDelete(m->paused_family), "metric");
    }
    if (m->longest) {
        nrd_tb_log_error(TRITONSERVER_MetricDelete(m->longest), "metric");
    }
    if (m->longest_family) {
        nrd_tb_log_error(TRITONSERVER_MetricFamilyDelete(m->longest_family), "metric");
    }
    for (int f = 0; f < 2 * FAM_COUNT; f++) {
        if (m->families[f / FAM_COUNT][f % FAM_COUNT]) {
            nrd_tb_log_error(TRITONSERVER_MetricFamilyDelete(m->families[f / FAM_COUNT][f % FAM_COUNT]), "metric");
        }
    }
    free(m);
}

/* One JSON object on one line, keys as users' log parsers know them. */
static void log_line(const double *v, uint64_t timestamp_us, bool is_static_batching)
{
    nrd_str line = {0};
    char text[64];
    struct tm tm;
    time_t secs = (time_t)(timestamp_us / 1000000u);

    localtime_r(&secs, &tm);
    snprintf(text, sizeof text, "%02d-%02d-%04d %02d:%02d:%02d.%06u", tm.tm_mon + 1, tm.tm_mday,
             tm.tm_year + 1900, tm.tm_hour, tm.tm_min, tm.tm_sec, (unsigned)(timestamp_us % 1000000u));
    for (int i = 0; i < N_ROWS; i++) {
        if (!belongs(rows[i].family, is_static_batching)) {
            continue;
        }
        nrd_str_puts(&line, line.len ? "," : "{");
        nrd_json_put_cstr(&line, rows[i].key);
        nrd_str_putc(&line, ':');
        if (!strcmp(rows[i].key, "Timestamp")) {
            nrd_json_put_cstr(&line, text);
        } else {
            nrd_json_put_double(&line, v[i]);
        }
    }
    nrd_str_putc(&line, '}');
    NRD_LOG_VERBOSE(1, "%s", nrd_str_cstr(&line));
    nrd_str_fini(&line);
}

static void set_gauges(nrd_llm_metrics *m, const nrd_iter_stats *s, const double *v)
{
    m->last = *s;
    for (int i = 0; i < 2 * N_ROWS; i++) {
        const int row = i % N_ROWS;
        TRITONSERVER_Metric *metric = m->rows[i / N_ROWS][row];
        if (metric && families[rows[row].family].kind == TRITONSERVER_METRIC_KIND_GAUGE) {
            nrd_tb_log_error(TRITONSERVER_MetricSet(metric, v[row]), "metric");
        }
    }
}

void nrd_llm_metrics_idle(nrd_llm_metrics *m, bool is_static_batching)
{
    double v[N_ROWS];
    if (!m || (m->last.n_active == 0 && m->last.n_scheduled == 0 && m->last.kv_used_blocks == 0)) {
        return;
    }
    nrd_iter_stats s = m->last;
    s.n_active = s.n_scheduled = s.n_context = s.n_generation = s.n_waiting = s.n_paused = 0;
    s.n_context_tokens = s.n_generated_tokens = 0;
    s.n_empty_generation_slots = is_static_batching ? s.max_active : 0;
    s.kv_free_blocks = s.kv_max_blocks; /* only running sequences hold some */
    s.kv_used_blocks = 0;
    values_of(m, &s, v);
    set_gauges(m, &s, v);
}

void nrd_llm_metrics_iteration(nrd_llm_metrics *m, const nrd_iter_stats *s, bool is_static_batching)
{
    double v[N_ROWS];
    values_of(m, s, v);
    if (m) {
        set_gauges(m, s, v);
    }
    if (TRITONSERVER_LogIsEnabled(TRITONSERVER_LOG_VERBOSE)) {
        log_line(v, s->timestamp_us, is_static_batching);
    }
}

void nrd_llm_metrics_handovers(nrd_llm_metrics *m, nrd_exec *exec)
{
    double before[N_ROWS], now[N_ROWS];
    if (!m) {
        return;
    }
    values_of(m, &m->last, before);
    m->handovers.size = sizeof m->handovers;
    nrd_exec_handover_get_stats(exec, &m->handovers);
    values_of(m, &m->last, now);
    for (int i = 0; i < N_ROWS; i++) {
        if (rows[i].family == FAM_DISAGG && m->rows[0][i] && now[i] > before[i]) {
            nrd_tb_log_error(TRITONSERVER_MetricIncrement(m->rows[0][i], now[i] - before[i]), "metric");
        }
    }
}

static void observe(nrd_llm_metrics *m, hist_id h, double v)
{
    nrd_tb_log_error(TRITONSERVER_MetricObserve(m->hists[h], v), "metric");
}

void nrd_llm_metrics_request(nrd_llm_metrics *m, int64_t n_input_tokens, int64_t n_output_tokens, double ms,
                             nrd_finish_reason why)
{
    const end_id end = why == NRD_FINISH_END_ID || why == NRD_FINISH_STOP_WORDS ? END_STOP
                       : why == NRD_FINISH_LENGTH                               ? END_LENGTH
                       : why == NRD_FINISH_CANCELLED                            ? END_CANCELLED
                       : why == NRD_FINISH_TIMED_OUT                            ? END_TIMED_OUT
                                                                                : END_ERROR;
    if (m) {
        nrd_tb_log_error(TRITONSERVER_MetricObserve(m->lengths[0], (double)n_input_tokens), "metric");
        nrd_tb_log_error(TRITONSERVER_MetricObserve(m->lengths[1], (double)n_output_tokens), "metric");
        nrd_tb_log_error(TRITONSERVER_MetricIncrement(m->ends[end], 1), "metric");
        observe(m, TIME_WHOLE, ms);
    }
}

void nrd_llm_metrics_step(nrd_llm_metrics *m, const nrd_iter_stats *s)
{
    static pthread_mutex_t together = PTHREAD_MUTEX_INITIALIZER; /* instances share the series */
    if (!m) {
        return;
    }
    double idle = m->last_step_us > 0 && s->timestamp_us > m->last_step_us
                      ? (double)(s->timestamp_us - m->last_step_us) / 1e3 - s->iteration_ms
                      : 0;
    m->last_step_us = s->timestamp_us;
    pthread_mutex_lock(&together);
    observe(m, STEP_MS, s->iteration_ms);
    observe(m, STEP_IDLE_MS, idle > 0 ? idle : 0);
    observe(m, STEP_PROMPT, s->n_context_tokens);
    observe(m, STEP_GENERATED, s->n_generated_tokens);
    observe(m, STEP_TOKENS, s->n_context_tokens + s->n_generated_tokens);
    if (s->n_paused > 0) {
        nrd_tb_log_error(TRITONSERVER_MetricIncrement(m->paused, s->n_paused), "metric");
    }
    pthread_mutex_unlock(&together);
}

void nrd_llm_metrics_phases(nrd_llm_metrics *m, const nrd_perf_metrics *p)
{
    if (!m || p->first_scheduled_ns < p->arrival_ns || p->first_token_ns < p->first_scheduled_ns || p->last_token_ns < p->first_token_ns ||
        p->arrival_ns <= 0) {
        return; /* it made no token, as an embedding */
    }
    observe(m, TIME_QUEUE, (double)(p->first_scheduled_ns - p->arrival_ns) / 1e6);
    observe(m, TIME_PREFILL, (double)(p->first_token_ns - p->first_scheduled_ns) / 1e6);
    observe(m, TIME_DECODE, (double)(p->last_token_ns - p->first_token_ns) / 1e6);
    observe(m, TIME_INFERENCE, (double)(p->last_token_ns - p->first_scheduled_ns) / 1e6);
}

void nrd_llm_metrics_first_token(nrd_llm_metrics *m, double ms)
{
    if (m) {
        observe(m, TIME_FIRST, ms);
    }
}

void nrd_llm_metrics_next_token(nrd_llm_metrics *m, double ms)
{
    if (m) {
        observe(m, TIME_NEXT, ms);
    }
}
