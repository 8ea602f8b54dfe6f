/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/tensorrtllm/metric_table.h"

#include <stdlib.h>

struct nrd_llm_metric_set {
    const nrd_llm_metric_table *table;
    TRITONSERVER_MetricFamily **families;
    TRITONSERVER_Metric **rows;
    double *last; /* what they show */
};

static TRITONSERVER_Error *register_all(nrd_llm_metric_set *s, const nrd_llm_instance *inst)
{
    const nrd_llm_metric_table *t = s->table;

    s->families = calloc((size_t)t->n_families, sizeof *s->families);
    s->rows = calloc((size_t)t->n_rows, sizeof *s->rows);
    s->last = calloc((size_t)t->n_rows, sizeof *s->last);
    if (!s->families || !s->rows || !s->last) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    for (int f = 0; f < t->n_families; f++) {
        const nrd_llm_metric_family *family = &t->families[f];
        NRD_TB_TRY(TRITONSERVER_MetricFamilyNew(&s->families[f], family->kind, family->name, family->help));
    }
    for (int i = 0; i < t->n_rows; i++) {
        const nrd_llm_metric_row *row = &t->rows[i];
        NRD_TB_TRY(nrd_llm_metric_new(&s->rows[i], s->families[row->family], inst, t->families[row->family].label, row->value,
                                      NULL));
    }
    return NULL;
}

TRITONSERVER_Error *nrd_llm_metric_set_new(nrd_llm_metric_set **out, const nrd_llm_metric_table *table,
                                           const nrd_llm_instance *inst)
{
    nrd_llm_metric_set *s = calloc(1, sizeof *s);

    *out = NULL;
    if (!s) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    s->table = table;
    TRITONSERVER_Error *err = register_all(s, inst);
    if (!err) {
        *out = s;
        return NULL;
    }
    nrd_llm_metric_set_free(s);
    if (TRITONSERVER_ErrorCode(err) == TRITONSERVER_ERROR_UNSUPPORTED) { /* --allow-metrics=false */
        TRITONSERVER_ErrorDelete(err);
        err = NULL;
    }
    return err;
}

void nrd_llm_metric_set_free(nrd_llm_metric_set *s)
{
    if (!s) {
        return;
    }
    for (int i = 0; s->rows && i < s->table->n_rows; i++) {
        if (s->rows[i]) {
            nrd_tb_log_error(TRITONSERVER_MetricDelete(s->rows[i]), "metric");
        }
    }
    for (int f = 0; s->families && f < s->table->n_families; f++) {
        if (s->families[f]) {
            nrd_tb_log_error(TRITONSERVER_MetricFamilyDelete(s->families[f]), "metric");
        }
    }
    free(s->families);
    free(s->rows);
    free(s->last);
    free(s);
}

void nrd_llm_metric_set_add(nrd_llm_metric_set *s, const double *more)
{
    for (int i = 0; s && i < s->table->n_rows; i++) {
        if (more[i] > 0) {
            nrd_tb_log_error(TRITONSERVER_MetricIncrement(s->rows[i], more[i]), "metric");
            s->last[i] += more[i];
        }
    }
}

void nrd_llm_metric_set_show(nrd_llm_metric_set *s, const double *values)
{
    for (int i = 0; s && i < s->table->n_rows; i++) {
        const bool is_gauge = s->table->families[s->table->rows[i].family].kind == TRITONSERVER_METRIC_KIND_GAUGE;
        const double more = values[i] - s->last[i];
        if (more > 0 || more < 0) {
            nrd_tb_log_error(is_gauge ? TRITONSERVER_MetricSet(s->rows[i], values[i])
                                      : TRITONSERVER_MetricIncrement(s->rows[i], more),
                             "metric");
            s->last[i] = values[i];
        }
    }
}
