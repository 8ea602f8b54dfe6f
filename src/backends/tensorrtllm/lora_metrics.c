/* SPDX-License-Identifier: Apache-2.0
 * The nv_llm_lora_* families: what the caches of adapters hold, and what moving adapters costs. */
#include "backends/tensorrtllm/metric_table.h"

typedef enum { FAM_CACHE, FAM_EVENTS, FAM_TIME, FAM_COUNT } family_id;

static const nrd_llm_metric_family families[FAM_COUNT] = {
    [FAM_CACHE] = {"nv_llm_lora_cache", "LoRA adapters, their uses and bytes, and pages of the device's cache",
                   "lora_cache_type", TRITONSERVER_METRIC_KIND_GAUGE},
    [FAM_EVENTS] = {"nv_llm_lora_events", "LoRA adapters that were found, missed, brought and evicted", "lora_event",
                    TRITONSERVER_METRIC_KIND_COUNTER},
    [FAM_TIME] = {"nv_llm_lora_swap_us", "Microseconds that bringing LoRA adapters took", "lora_swap_to",
                  TRITONSERVER_METRIC_KIND_COUNTER},
};

/* Value i of what is shown belongs to row i. */
static const nrd_llm_metric_row rows[] = {
    {FAM_CACHE, "host_adapters"}, {FAM_CACHE, "device_adapters"}, {FAM_CACHE, "pinned"},
    {FAM_CACHE, "host_bytes"},    {FAM_CACHE, "pages"},           {FAM_CACHE, "free_pages"},
    {FAM_EVENTS, "hit"},          {FAM_EVENTS, "miss"},           {FAM_EVENTS, "stored"},
    {FAM_EVENTS, "loaded"},       {FAM_EVENTS, "evicted_host"},   {FAM_EVENTS, "evicted_device"},
    {FAM_TIME, "host"},           {FAM_TIME, "device"},
};
enum { N_ROWS = sizeof rows / sizeof *rows };

static const nrd_llm_metric_table table = {families, rows, FAM_COUNT, N_ROWS};

TRITONSERVER_Error *nrd_llm_lora_metrics_new(nrd_llm_metric_set **out, const nrd_llm_instance *inst)
{
    return nrd_llm_metric_set_new(out, &table, inst);
}

void nrd_llm_lora_metrics_update(nrd_llm_metric_set *m, nrd_exec *exec)
{
    nrd_exec_lora_stats s = {.size = sizeof s};

    if (!m) {
        return;
    }
    nrd_exec_lora_get_stats(exec, &s);
    const double values[N_ROWS] = {
        s.n_host,          s.n_device,           s.n_pinned,
        (double)s.host_bytes, s.n_pages,         s.n_free_pages,
        (double)s.n_hits,  (double)s.n_misses,   (double)s.n_stored,
        (double)s.n_loaded, (double)s.n_evicted_host, (double)s.n_evicted_device,
        (double)s.host_us, (double)s.device_us,
    };
    nrd_llm_metric_set_show(m, values);
}
