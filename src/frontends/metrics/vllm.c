/* SPDX-License-Identifier: Apache-2.0 */
#include "frontends/metrics/vllm.h"

#include "base/json.h"
#include "base/metric.h"
#include "base/number.h"
#include "frontends/common/registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum { GAUGE, COUNTER, SUM, HISTOGRAM, CACHE_TOKENS, CACHE_INFO } form; /* SUM: a counter, of a histogram's */

/* Each row gives one family, or continues the one before it under the same name. */
static const struct {
    const char *name, *help;
    form form;
    const char *family, *label, *value; /* of ours; label NULL: none */
    double scale;
    const char *reason; /* finished_reason; NULL: no such label */
} rows[] = {
#define REQUESTS "nv_trt_llm_request_metrics", "request_type"
    {"vllm:num_requests_running", "Requests in the last step", GAUGE, REQUESTS, "scheduled", 1, NULL},
    {"vllm:num_requests_waiting", "Requests that wait to be taken into a step", GAUGE, REQUESTS, "waiting", 1, NULL},
#undef REQUESTS
    {"vllm:kv_cache_usage_perc", "Used part of the KV cache, 1: all", GAUGE, "nv_trt_llm_kv_cache_block_metrics",
     "kv_cache_block_type", "fraction", 1, NULL},
    {"vllm:prefix_cache_queries_total", "Prompt tokens that were looked for in the prefix cache", CACHE_TOKENS,
     "nv_llm_step_prompt_tokens", NULL, NULL, 1, NULL},
    {"vllm:prefix_cache_hits_total", "Prompt tokens that were found there", CACHE_TOKENS, NULL, NULL, NULL, 1, NULL},
    {"vllm:prompt_tokens_total", "Prompt tokens of requests that are over", SUM, "nv_llm_input_token_len", NULL, NULL, 1, NULL},
    {"vllm:generation_tokens_total", "Tokens that were generated", SUM, "nv_llm_step_generated_tokens", NULL, NULL, 1, NULL},
#define FINISHED "vllm:request_success_total", "Requests by how they ended", COUNTER, "nv_llm_requests_finished", "finish_reason"
    {FINISHED, "stop", 1, "stop"},
    {FINISHED, "length", 1, "length"},
    {FINISHED, "cancelled", 1, "abort"},
    {FINISHED, "error", 1, "error"},
    {FINISHED, "timed_out", 1, "timeout"},
#undef FINISHED
    {"vllm:request_prompt_tokens", "Prompt tokens of a request", HISTOGRAM, "nv_llm_input_token_len", NULL, NULL, 1, NULL},
    {"vllm:request_generation_tokens", "Tokens of an answer", HISTOGRAM, "nv_llm_output_token_len", NULL, NULL, 1, NULL},
    {"vllm:time_to_first_token_seconds", "From a request's arrival at the model to its first token", HISTOGRAM,
     "nv_llm_time_to_first_token_ms", NULL, NULL, 1e-3, NULL},
    {"vllm:inter_token_latency_seconds", "Between two tokens of a request", HISTOGRAM, "nv_llm_inter_token_ms", NULL, NULL, 1e-3, NULL},
    {"vllm:e2e_request_latency_seconds", "From a request's arrival at the model to its end", HISTOGRAM, "nv_llm_request_ms", NULL,
     NULL, 1e-3, NULL},
    {"vllm:request_queue_time_seconds", "From a request's arrival at the engine to the first step that has it", HISTOGRAM, "nv_llm_queue_ms",
     NULL, NULL, 1e-3, NULL},
    {"vllm:request_prefill_time_seconds", "From that step to the request's first token", HISTOGRAM, "nv_llm_prefill_ms", NULL, NULL, 1e-3, NULL},
    {"vllm:request_decode_time_seconds", "From a request's first token to its last", HISTOGRAM, "nv_llm_decode_ms", NULL, NULL, 1e-3, NULL},
    {"vllm:request_inference_time_seconds", "From the first step that has a request to its last token", HISTOGRAM, "nv_llm_inference_ms",
     NULL, NULL, 1e-3, NULL},
    {"vllm:iteration_tokens_total", "Tokens of a step, of prompts and of answers", HISTOGRAM, "nv_llm_step_tokens", NULL, NULL, 1, NULL},
    {"vllm:num_preemptions_total", "How often a running request gave its cache to others", COUNTER, "nv_llm_preemptions", NULL, NULL, 1, NULL},
    {"vllm:spec_decode_num_drafts_total", "Drafts that were verified", COUNTER, "nv_llm_drafts", NULL, NULL, 1, NULL},
    {"vllm:spec_decode_num_draft_tokens_total", "Tokens of drafts", COUNTER, "nv_llm_draft_tokens", "draft_token_type", "proposed", 1, NULL},
    {"vllm:spec_decode_num_accepted_tokens_total", "Tokens of drafts that held", COUNTER, "nv_llm_draft_tokens", "draft_token_type",
     "accepted", 1, NULL},
    {"vllm:cache_config_info", "Size of the KV cache", CACHE_INFO, NULL, NULL, NULL, 1, NULL},
};
enum { N_ROWS = sizeof rows / sizeof *rows };

typedef struct engine {
    const nrd_json *metrics;
    const char *model, *version;
    const char *labels; /* engine="0",model_name="..." */
} engine;

static const nrd_json *find(const engine *e, const char *family, const char *label, const char *value)
{
    const nrd_registry_label want[] = {{"model", e->model}, {"version", e->version}, {label, value}};
    return nrd_registry_series(e->metrics, family, want, label ? 3 : 2);
}

static double blocks(const engine *e, const char *what)
{
    return nrd_registry_value(find(e, "nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", what));
}

static void put_number(nrd_str *out, const char *name, const engine *e, const char *more, double v)
{
    nrd_str_printf(out, "%s{%s%s} ", name, e->labels, more);
    nrd_metric_put_number(out, v);
    nrd_str_putc(out, '\n');
}

static void put_histogram(nrd_str *out, const char *name, const engine *e, const nrd_json *h, double scale)
{
    const nrd_json *bounds = nrd_json_get(h, "bounds"), *counts = nrd_json_get(h, "counts");
    char bound[32];
    double total = 0;

    for (size_t i = 0; i < nrd_json_len(counts); i++) {
        const nrd_json *b = nrd_json_at(bounds, i);
        total += nrd_json_num(nrd_json_at(counts, i), 0);
        if (b) {
            nrd_number_print(bound, sizeof bound, "%.6g", nrd_json_num(b, 0) * scale);
        }
        nrd_str_printf(out, "%s_bucket{%s,le=\"%s\"} ", name, e->labels, b ? bound : "+Inf");
        nrd_metric_put_number(out, total);
        nrd_str_putc(out, '\n');
    }
    nrd_str_printf(out, "%s_sum{%s} ", name, e->labels);
    nrd_metric_put_number(out, nrd_json_get_num(h, "sum", 0) * scale);
    nrd_str_printf(out, "\n%s_count{%s} ", name, e->labels);
    nrd_metric_put_number(out, total);
    nrd_str_putc(out, '\n');
}

static void put_row(nrd_str *out, size_t i, const engine *e)
{
    const nrd_json *s = rows[i].family ? find(e, rows[i].family, rows[i].label, rows[i].value) : NULL;
    char more[96] = "";

    if (rows[i].family && !s) {
        return; /* an engine of an older backend */
    }
    switch (rows[i].form) {
    case GAUGE:
    case COUNTER:
        if (rows[i].reason) {
            snprintf(more, sizeof more, ",finished_reason=\"%s\"", rows[i].reason);
        }
        put_number(out, rows[i].name, e, more, nrd_registry_value(s));
        return;
    case SUM:
        put_number(out, rows[i].name, e, more, nrd_json_get_num(s, "sum", 0));
        return;
    case HISTOGRAM:
        put_histogram(out, rows[i].name, e, s, rows[i].scale);
        return;
    case CACHE_TOKENS: /* what was not found is computed */
        put_number(out, rows[i].name, e, more, blocks(e, "reused") * blocks(e, "tokens_per") + nrd_json_get_num(s, "sum", 0));
        return;
    case CACHE_INFO:
        snprintf(more, sizeof more, ",block_size=\"%.0f\",num_gpu_blocks=\"%.0f\"", blocks(e, "tokens_per"), blocks(e, "max"));
        put_number(out, rows[i].name, e, more, 1);
        return;
    }
}

/* engine: counts those of the same name, so that no two series have the same labels. */
static void put_labels(nrd_str *out, nrd_models *models, const nrd_json *list, size_t at, const char *model)
{
    nrd_str name = {0};
    int n = 0;

    for (size_t i = 0; i < at; i++) {
        const nrd_json *labels = nrd_json_get(&list->child[i], "labels");
        n += !strcmp(nrd_json_get_str(labels, "general_type", ""), "timestamp") && !strcmp(nrd_json_get_str(labels, "model", ""), model);
    }
    nrd_registry_put_name(&name, models, model);
    nrd_str_printf(out, "engine=\"%d\",model_name=\"", n);
    nrd_metric_put_label(out, nrd_str_cstr(&name));
    nrd_str_putc(out, '"');
    nrd_str_fini(&name);
}

static const char *type_of(form f)
{
    return f == HISTOGRAM ? "histogram" : f == GAUGE || f == CACHE_INFO ? "gauge" : "counter";
}

nrd_error *nrd_vllm_put_metrics(nrd_str *out, TRITONSERVER_Server *server, nrd_models *models)
{
    nrd_json_doc *doc = NULL;

    NRD_TRY(nrd_registry_read(&doc, server));
    const nrd_json *metrics = doc ? nrd_json_root(doc) : NULL;
    const nrd_json *list = nrd_json_get(metrics, "nv_trt_llm_general_metrics");
    nrd_str *labels = calloc(nrd_json_len(list) + 1, sizeof *labels);
    nrd_error *err = labels ? NULL : nrd_error_no_memory();
    for (size_t i = 0; !err && i < nrd_json_len(list); i++) { /* one such series for each engine */
        const nrd_json *have = nrd_json_get(&list->child[i], "labels");
        if (!strcmp(nrd_json_get_str(have, "general_type", ""), "timestamp")) {
            put_labels(&labels[i], models, list, i, nrd_json_get_str(have, "model", ""));
        }
    }
    for (size_t k = 0; !err && nrd_json_len(list) > 0 && k < N_ROWS; k++) {
        if (k == 0 || strcmp(rows[k].name, rows[k - 1].name) != 0) {
            nrd_str_printf(out, "# HELP %s %s\n# TYPE %s %s\n", rows[k].name, rows[k].help, rows[k].name, type_of(rows[k].form));
        }
        for (size_t i = 0; i < nrd_json_len(list); i++) {
            const nrd_json *have = nrd_json_get(&list->child[i], "labels");
            const engine e = {metrics, nrd_json_get_str(have, "model", ""), nrd_json_get_str(have, "version", ""),
                              nrd_str_cstr(&labels[i])};
            if (labels[i].len > 0) {
                put_row(out, k, &e);
            }
        }
    }
    for (size_t i = 0; labels && i < nrd_json_len(list); i++) {
        err = err ? err : nrd_str_error(&labels[i]);
        nrd_str_fini(&labels[i]);
    }
    free(labels);
    nrd_json_doc_free(doc);
    return err ? err : nrd_str_error(out);
}
