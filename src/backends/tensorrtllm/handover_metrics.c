/* SPDX-License-Identifier: Apache-2.0
 * The nv_llm_handover_* families: prompts that were computed for another model, or by one. */
#include "backends/tensorrtllm/metric_table.h"

typedef enum { FAM_EVENTS, FAM_TOKENS, FAM_COUNT } family_id;

static const nrd_llm_metric_family families[FAM_COUNT] = {
    [FAM_EVENTS] = {"nv_llm_handovers", "Prompts that were kept for a generation_only request, that were taken by one, and that nobody took in time",
                    "handover_event", TRITONSERVER_METRIC_KIND_COUNTER},
    [FAM_TOKENS] = {"nv_llm_handover_tokens", "Tokens of prompts that wait for a generation_only request, or are computed for one", NULL,
                    TRITONSERVER_METRIC_KIND_GAUGE},
};

/* Value i of what is shown belongs to row i. */
static const nrd_llm_metric_row rows[] = {{FAM_EVENTS, "given"}, {FAM_EVENTS, "taken"}, {FAM_EVENTS, "expired"}, {FAM_TOKENS, NULL}};
enum { N_ROWS = sizeof rows / sizeof *rows };

static const nrd_llm_metric_table table = {families, rows, FAM_COUNT, N_ROWS};

TRITONSERVER_Error *nrd_llm_handover_metrics_new(nrd_llm_metric_set **out, const nrd_llm_instance *inst)
{
    return nrd_llm_metric_set_new(out, &table, inst);
}

void nrd_llm_handover_metrics_update(nrd_llm_metric_set *m, nrd_exec *exec)
{
    nrd_exec_handover_stats s = {.size = sizeof s};

    if (m) {
        nrd_exec_handover_get_stats(exec, &s);
        const double values[N_ROWS] = {(double)s.n_given, (double)s.n_taken, (double)s.n_expired, (double)s.n_tokens};
        nrd_llm_metric_set_show(m, values);
    }
}
