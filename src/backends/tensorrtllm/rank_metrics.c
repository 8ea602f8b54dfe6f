/* SPDX-License-Identifier: Apache-2.0
 * The family nv_llm_rank_info: which ranks an engine of several has, and the host of each. Its values say nothing (1). */
#include "backends/tensorrtllm/llm.h"

#include <stdio.h>
#include <stdlib.h>

enum { HOST_CHARS = 128 };

struct nrd_llm_rank_metrics {
    TRITONSERVER_MetricFamily *family;
    int32_t n;
    TRITONSERVER_Metric *ranks[];
};

static TRITONSERVER_Error *add_rank(nrd_llm_rank_metrics *m, const nrd_llm_instance *inst,
                                    int32_t rank)
{
    char number[16], host[HOST_CHARS];

    snprintf(number, sizeof number, "%d", rank);
    nrd_exec_rank_host(inst->exec, rank, host, sizeof host);
    const nrd_llm_label labels[] = {{"rank", number}, {"host", host}};
    NRD_TB_TRY(nrd_llm_metric_new_of(&m->ranks[rank], m->family, inst, labels, 2, NULL));
    return TRITONSERVER_MetricSet(m->ranks[rank], 1);
}

TRITONSERVER_Error *nrd_llm_rank_metrics_new(nrd_llm_rank_metrics **out,
                                             const nrd_llm_instance *inst)
{
    const int32_t n = inst->info.tp_size * inst->info.pp_size;

    *out = NULL;
    if (n <= 1) {
        return NULL;
    }
    nrd_llm_rank_metrics *m = calloc(1, sizeof *m + (size_t)n * sizeof *m->ranks);
    if (!m) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    m->n = n;
    TRITONSERVER_Error *err =
        TRITONSERVER_MetricFamilyNew(&m->family, TRITONSERVER_METRIC_KIND_GAUGE, "nv_llm_rank_info",
                                     "Ranks of an engine, and the host that each runs on");
    for (int32_t i = 0; i < n && !err; i++) {
        err = add_rank(m, inst, i);
    }
    if (err) {
        nrd_llm_rank_metrics_free(m);
        m = NULL;
        if (TRITONSERVER_ErrorCode(err) ==
            TRITONSERVER_ERROR_UNSUPPORTED) { /* --allow-metrics=false */
            TRITONSERVER_ErrorDelete(err);
            err = NULL;
        }
    }
    *out = m;
    return err;
}

void nrd_llm_rank_metrics_free(nrd_llm_rank_metrics *m)
{
    for (int32_t i = 0; m && i < m->n; i++) {
        if (m->ranks[i]) {
            nrd_tb_log_error(TRITONSERVER_MetricDelete(m->ranks[i]), "metric");
        }
    }
    if (m && m->family) {
        nrd_tb_log_error(TRITONSERVER_MetricFamilyDelete(m->family), "metric");
    }
    free(m);
}
