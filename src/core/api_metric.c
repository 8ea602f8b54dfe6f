/* SPDX-License-Identifier: Apache-2.0
 * TRITONSERVER API: metrics, those of the core and those made by backends. */
#include "core/api.h"
#include "core/context.h"
#include "core/metrics.h"
#include "core/server.h"
#include "core/types.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/metric.h"
#include "base/str.h"
#include "nereid/server.h"

#include <stdlib.h>

/* ---- a snapshot ---- */

typedef struct snapshot { /* TRITONSERVER_Metrics */
    nrd_str text;
} snapshot;

TRITONSERVER_Error *TRITONSERVER_ServerMetrics(TRITONSERVER_Server *server,
                                               TRITONSERVER_Metrics **metrics)
{
    nrd_server *s = (nrd_server *)(void *)server;

    *metrics = NULL;
    if (!nrd_server_context(s)->opt.metrics) {
        return as_api(nrd_errorf(NRD_ERR_UNSUPPORTED, "metrics not supported"));
    }
    *metrics = (TRITONSERVER_Metrics *)calloc(1, sizeof(snapshot));
    return *metrics ? NULL : as_api(nrd_error_no_memory());
}

TRITONSERVER_Error *TRITONSERVER_MetricsFormatted(TRITONSERVER_Metrics *metrics,
                                                  TRITONSERVER_MetricFormat format,
                                                  const char **base, size_t *byte_size)
{
    snapshot *m = (snapshot *)(void *)metrics;

    if (format != TRITONSERVER_METRIC_PROMETHEUS && (int)format != NRD_METRIC_FORMAT_JSON) {
        return as_api(nrd_errorf(NRD_ERR_INVALID_ARG, "unknown metrics format '%d'", (int)format));
    }
    nrd_str_clear(&m->text);
    if (format == TRITONSERVER_METRIC_PROMETHEUS) {
        nrd_metrics_text(nrd_core_metrics(), &m->text);
    } else {
        nrd_metrics_json(nrd_core_metrics(), &m->text);
    }
    NRD_API_TRY(nrd_str_error(&m->text));
    *base = nrd_str_cstr(&m->text);
    *byte_size = m->text.len;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_MetricsDelete(TRITONSERVER_Metrics *metrics)
{
    if (metrics) {
        nrd_str_fini(&((snapshot *)(void *)metrics)->text);
        free(metrics);
    }
    return NULL;
}

/* ---- custom metrics ---- */

typedef struct metric_args { /* TRITONSERVER_MetricArgs */
    bool is_set;
    double *buckets;
    size_t n_buckets;
} metric_args;

static nrd_metric *m_of(TRITONSERVER_Metric *m)
{
    return (nrd_metric *)(void *)m;
}

static nrd_metric_family *f_of(TRITONSERVER_MetricFamily *f)
{
    return (nrd_metric_family *)(void *)f;
}

TRITONSERVER_Error *TRITONSERVER_MetricFamilyNew(TRITONSERVER_MetricFamily **family,
                                                 const TRITONSERVER_MetricKind kind,
                                                 const char *name, const char *description)
{
    static const nrd_metric_kind kinds[] = {NRD_METRIC_COUNTER, NRD_METRIC_GAUGE,
                                            NRD_METRIC_HISTOGRAM};
    nrd_metric_family *f = NULL;

    *family = NULL;
    if ((unsigned)kind > TRITONSERVER_METRIC_KIND_HISTOGRAM) {
        return as_api(nrd_errorf(NRD_ERR_INVALID_ARG, "invalid metric kind passed to constructor"));
    }
    NRD_API_TRY(nrd_metric_family_get(&f, nrd_core_metrics(), kinds[kind], name, description));
    *family = (TRITONSERVER_MetricFamily *)(void *)f;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_MetricFamilyDelete(TRITONSERVER_MetricFamily *family)
{
    nrd_metric_family_unref(f_of(family));
    return NULL;
}

static TRITONSERVER_MetricKind kind_of(nrd_metric_kind k)
{
    return k == NRD_METRIC_COUNTER ? TRITONSERVER_METRIC_KIND_COUNTER
           : k == NRD_METRIC_GAUGE ? TRITONSERVER_METRIC_KIND_GAUGE
                                   : TRITONSERVER_METRIC_KIND_HISTOGRAM;
}

TRITONSERVER_Error *TRITONSERVER_GetMetricFamilyKind(TRITONSERVER_MetricFamily *family,
                                                     TRITONSERVER_MetricKind *kind)
{
    *kind = kind_of(nrd_metric_family_kind(f_of(family)));
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_MetricArgsNew(TRITONSERVER_MetricArgs **args)
{
    *args = (TRITONSERVER_MetricArgs *)calloc(1, sizeof(metric_args));
    return *args ? NULL : as_api(nrd_error_no_memory());
}

TRITONSERVER_Error *TRITONSERVER_MetricArgsSetHistogram(TRITONSERVER_MetricArgs *args,
                                                        const double *buckets,
                                                        const uint64_t buckets_count)
{
    metric_args *a = (metric_args *)(void *)args;

    double *copy = buckets_count < SIZE_MAX / sizeof *copy ? calloc(buckets_count + 1, sizeof *copy) : NULL;
    if (!copy) {
        return as_api(nrd_error_no_memory());
    }
    free(a->buckets);
    a->is_set = true;
    a->n_buckets = buckets_count;
    a->buckets = copy;
    for (uint64_t i = 0; i < buckets_count; i++) {
        a->buckets[i] = buckets[i];
    }
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_MetricArgsDelete(TRITONSERVER_MetricArgs *args)
{
    if (args) {
        free(((metric_args *)(void *)args)->buckets);
        free(args);
    }
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_MetricNew(TRITONSERVER_Metric **metric,
                                           TRITONSERVER_MetricFamily *family,
                                           const TRITONSERVER_Parameter **labels,
                                           const uint64_t label_count)
{
    return TRITONSERVER_MetricNewWithArgs(metric, family, labels, label_count, NULL);
}

TRITONSERVER_Error *TRITONSERVER_MetricNewWithArgs(TRITONSERVER_Metric **metric,
                                                   TRITONSERVER_MetricFamily *family,
                                                   const TRITONSERVER_Parameter **labels,
                                                   const uint64_t label_count,
                                                   const TRITONSERVER_MetricArgs *args)
{
    enum { MAX_LABELS = 64 };
    nrd_metric_label list[MAX_LABELS];
    const metric_args *a = (const metric_args *)(const void *)args;
    nrd_metric_shape shape = {.buckets = a ? a->buckets : NULL, .n_buckets = a ? a->n_buckets : 0};
    nrd_metric *m = NULL;

    *metric = NULL;
    if (label_count > MAX_LABELS) {
        return as_api(
            nrd_errorf(NRD_ERR_INVALID_ARG, "a metric has at most %d labels", (int)MAX_LABELS));
    }
    NRD_API_TRY(nrd_params_check((const nrd_param *const *)(const void *)labels, (size_t)label_count));
    for (uint64_t i = 0; i < label_count; i++) {
        const nrd_param *p = (const nrd_param *)(const void *)labels[i];
        if (p->type != TRITONSERVER_PARAMETER_STRING) {
            return as_api(nrd_errorf(NRD_ERR_INVALID_ARG,
                                     "Parameter [%s] must have a type of "
                                     "TRITONSERVER_PARAMETER_STRING to be added as a label.",
                                     p->name));
        }
        list[i] = (nrd_metric_label){p->name, p->str};
    }
    if (a && a->is_set && nrd_metric_family_kind(f_of(family)) != NRD_METRIC_HISTOGRAM) {
        return as_api(nrd_errorf(NRD_ERR_INVALID_ARG,
                                 "Unexpected args found in MetricArgs for a metric that is no "
                                 "histogram"));
    }
    NRD_API_TRY(nrd_metric_get(&m, f_of(family), list, (size_t)label_count, a ? &shape : NULL));
    *metric = (TRITONSERVER_Metric *)(void *)m;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_MetricDelete(TRITONSERVER_Metric *metric)
{
    nrd_metric_unref(m_of(metric));
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_MetricValue(TRITONSERVER_Metric *metric, double *value)
{
    return as_api(nrd_metric_value(m_of(metric), value));
}

TRITONSERVER_Error *TRITONSERVER_MetricIncrement(TRITONSERVER_Metric *metric, double value)
{
    return as_api(nrd_metric_add(m_of(metric), value));
}

TRITONSERVER_Error *TRITONSERVER_MetricSet(TRITONSERVER_Metric *metric, double value)
{
    return as_api(nrd_metric_set(m_of(metric), value));
}

TRITONSERVER_Error *TRITONSERVER_MetricObserve(TRITONSERVER_Metric *metric, double value)
{
    return as_api(nrd_metric_observe(m_of(metric), value));
}

TRITONSERVER_Error *TRITONSERVER_GetMetricKind(TRITONSERVER_Metric *metric,
                                               TRITONSERVER_MetricKind *kind)
{
    *kind = kind_of(nrd_metric_get_kind(m_of(metric)));
    return NULL;
}
