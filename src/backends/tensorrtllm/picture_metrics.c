/* SPDX-License-Identifier: Apache-2.0
 * The nv_llm_picture_* families: what the cache of pictures' rows holds, and how often it helps. */
#include "backends/tensorrtllm/metric_table.h"

typedef enum { FAM_EVENTS, FAM_BYTES, FAM_COUNT } family_id;

static const nrd_llm_metric_family families[FAM_COUNT] = {
    [FAM_EVENTS] = {"nv_llm_picture_events", "Pictures whose rows were kept from a request before, and such that the tower computed",
                    "picture_event", TRITONSERVER_METRIC_KIND_COUNTER},
    [FAM_BYTES] = {"nv_llm_picture_cache_bytes", "Bytes of pictures' rows that are kept", NULL, TRITONSERVER_METRIC_KIND_GAUGE},
};

/* Value i of what is shown belongs to row i. */
static const nrd_llm_metric_row rows[] = {{FAM_EVENTS, "hit"}, {FAM_EVENTS, "miss"}, {FAM_BYTES, NULL}};
enum { N_ROWS = sizeof rows / sizeof *rows };

static const nrd_llm_metric_table table = {families, rows, FAM_COUNT, N_ROWS};

TRITONSERVER_Error *nrd_llm_picture_metrics_new(nrd_llm_metric_set **out, const nrd_llm_instance *inst)
{
    nrd_exec_picture_stats s = {.size = sizeof s};

    *out = NULL;
    return nrd_exec_picture_get_stats(inst->exec, &s) ? nrd_llm_metric_set_new(out, &table, inst) : NULL;
}

void nrd_llm_picture_metrics_update(nrd_llm_metric_set *m, nrd_exec *exec)
{
    nrd_exec_picture_stats s = {.size = sizeof s};

    if (m && nrd_exec_picture_get_stats(exec, &s)) {
        const double values[N_ROWS] = {(double)s.n_hits, (double)s.n_misses, (double)s.bytes};
        nrd_llm_metric_set_show(m, values);
    }
}
