/* SPDX-License-Identifier: Apache-2.0
 * The nv_llm_lora_* families: what the caches of adapters hold, and what moving adapters costs. */
#include "backends/tensorrtllm/llm.h"

#include <string.h>

typedef enum { FAM_CACHE, FAM_EVENTS, FAM_TIME, FAM_COUNT } family_id;

static const struct {
    const char *name, *help, *label;
    TRITONSERVER_MetricKind kind;
} families[FAM_COUNT] = {
    [FAM_CACHE] = {"nv_llm_lora_cache", "LoRA adapters, their uses and bytes, and pages of the device's cache",
                   "lora_cache_type", TRITONSERVER_METRIC_KIND_GAUGE},
    [FAM_EVENTS] = {"nv_llm_lora_events", "LoRA adapters that were found, missed, brought and evicted", "lora_event",
                    TRITONSERVER_METRIC_KIND_COUNTER},
    [FAM_TIME] = {"nv_llm_lora_swap_us", "Microseconds that bringing LoRA adapters took", "lora_swap_to",
                  TRITONSERVER_METRIC_KIND_COUNTER},
};

/* Value i of values_of() belongs to row i. */
static const struct {
    family_id family;
    const char *label;
} rows[] = {
    {FAM_CACHE, "host_adapters"}, {FAM_CACHE, "device_adapters"}, {FAM_CACHE, "pinned"},
    {FAM_CACHE, "host_bytes"},    {FAM_CACHE, "pages"},           {FAM_CACHE, "free_pages"},
    {FAM_EVENTS, "hit"},          {FAM_EVENTS, "miss"},           {FAM_EVENTS, "stored"},
    {FAM_EVENTS, "loaded"},       {FAM_EVENTS, "evicted_host"},   {FAM_EVENTS, "evicted_device"},
    {FAM_TIME, "host"},           {FAM_TIME, "device"},
};
enum { N_ROWS = sizeof rows / sizeof *rows };

struct nrd_llm_lora_metrics {
    TRITONSERVER_MetricFamily *families[FAM_COUNT];
    TRITONSERVER_Metric *rows[N_ROWS];
    double last[N_ROWS]; /* what they show */
};

static void values_of(const nrd_exec_lora_stats *s, double *v)
{
    const double values[N_ROWS] = {
        s->n_host,          s->n_device,           s->n_pinned,
        (double)s->host_bytes, s->n_pages,         s->n_free_pages,
        (double)s->n_hits,  (double)s->n_misses,   (double)s->n_stored,
        (double)s->n_loaded, (double)s->n_evicted_host, (double)s->n_evicted_device,
        (double)s->host_us, (double)s->device_us,
    };
    memcpy(v, values, sizeof values);
}

TRITONSERVER_Error *nrd_llm_lora_metrics_new(nrd_llm_lora_metrics **out, const nrd_llm_instance *inst)
{
    nrd_llm_lora_metrics *m = calloc(1, sizeof *m);
    TRITONSERVER_Error *err = m ? NULL : nrd_tb_error(nrd_error_no_memory());

    for (int f = 0; f < FAM_COUNT && !err; f++) {
        err = TRITONSERVER_MetricFamilyNew(&m->families[f], families[f].kind, families[f].name, families[f].help);
    }
    for (int i = 0; i < N_ROWS && !err; i++) {
        err = nrd_llm_metric_new(&m->rows[i], m->families[rows[i].family], inst, families[rows[i].family].label,
                                 rows[i].label, NULL);
    }
    if (err) {
        nrd_llm_lora_metrics_free(m);
        m = NULL;
        if (TRITONSERVER_ErrorCode(err) == TRITONSERVER_ERROR_UNSUPPORTED) { /* --allow-metrics=false */
            TRITONSERVER_ErrorDelete(err);
            err = NULL;
        }
    }
    *out = m;
    return err;
}

void nrd_llm_lora_metrics_free(nrd_llm_lora_metrics *m)
{
    for (int i = 0; m && i < N_ROWS; i++) {
        if (m->rows[i]) {
            nrd_tb_log_error(TRITONSERVER_MetricDelete(m->rows[i]), "metric");
        }
    }
    for (int f = 0; m && f < FAM_COUNT; f++) {
        if (m->families[f]) {
            nrd_tb_log_error(TRITONSERVER_MetricFamilyDelete(m->families[f]), "metric");
        }
    }
    free(m);
}

void nrd_llm_lora_metrics_update(nrd_llm_lora_metrics *m, nrd_exec *exec)
{
    nrd_exec_lora_stats s = {.size = sizeof s};
    double v[N_ROWS];

    if (!m) {
        return;
    }
    nrd_exec_lora_get_stats(exec, &s);
    values_of(&s, v);
    for (int i = 0; i < N_ROWS; i++) {
        const double more = v[i] - m->last[i];
        if (more > 0 || more < 0) {
            nrd_tb_log_error(families[rows[i].family].kind == TRITONSERVER_METRIC_KIND_GAUGE
                                 ? TRITONSERVER_MetricSet(m->rows[i], v[i])
                                 : TRITONSERVER_MetricIncrement(m->rows[i], more),
                             "metric");
            m->last[i] = v[i];
        }
    }
}
