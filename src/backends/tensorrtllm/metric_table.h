/* SPDX-License-Identifier: Apache-2.0
 * backends/tensorrtllm/metric_table.h - counters and gauges of an instance from a table.
 *
 * Purpose   Families and their rows are constants; here they are registered with the server, fed, and taken back.
 * Owner     new and free: the instance's; add and show: one thread at a time.
 * Errors    Of registering. A server without metrics is none: the set is NULL, and NULL is accepted everywhere.
 * Lifetime  The table is constant and stays. The set ends before its instance.
 */
#ifndef NRD_BACKENDS_TENSORRTLLM_METRIC_TABLE_H
#define NRD_BACKENDS_TENSORRTLLM_METRIC_TABLE_H

#include "backends/tensorrtllm/llm.h"

typedef struct nrd_llm_metric_family {
    const char *name, *help, *label; /* label: its name in each row; NULL: rows have none */
    TRITONSERVER_MetricKind kind;    /* counter or gauge */
} nrd_llm_metric_family;

typedef struct nrd_llm_metric_row {
    int family;        /* index */
    const char *value; /* of the label */
} nrd_llm_metric_row;

typedef struct nrd_llm_metric_table {
    const nrd_llm_metric_family *families;
    const nrd_llm_metric_row *rows;
    int n_families, n_rows;
} nrd_llm_metric_table;

TRITONSERVER_Error *nrd_llm_metric_set_new(nrd_llm_metric_set **out, const nrd_llm_metric_table *table,
                                           const nrd_llm_instance *inst);
void nrd_llm_metric_set_free(nrd_llm_metric_set *s);
/* Counters grow by more[row]. */
void nrd_llm_metric_set_add(nrd_llm_metric_set *s, const double *more);
/* Gauges become values[row], counters grow by what it is more than the last time. */
void nrd_llm_metric_set_show(nrd_llm_metric_set *s, const double *values);

#endif
