/* SPDX-License-Identifier: Apache-2.0
 * base/metric.h - counters, gauges, histograms and summaries, printed in the Prometheus text form.
 *
 * Purpose   A registry of families; a family has a name, a help text and a kind; a metric is one
 *           labelled series of a family. Asking twice for the same series gives the same object.
 *           Also printed as JSON, for a page that draws them: there a histogram tells, besides its
 *           buckets, quantiles of the last minute and its newest values.
 * Owner     Any thread may call any function. Adding to counters and gauges takes no lock.
 * Units     Whatever the family's name says.
 * Errors    INVALID_ARG: a name or label that the text form cannot carry, a kind or help text that
 *           differs from the one the family already has, an operation the kind does not know.
 * Lifetime  Families and metrics are counted: every new/get is paired with an unref. A family
 *           without metrics prints nothing but its two comment lines and goes with its last user.
 * Sources   Prometheus exposition format 0.0.4.
 */
#ifndef NRD_BASE_METRIC_H
#define NRD_BASE_METRIC_H

#include "base/error.h"
#include "base/str.h"

#include <stddef.h>
#include <stdint.h>

typedef struct nrd_metrics nrd_metrics;
typedef struct nrd_metric_family nrd_metric_family;
typedef struct nrd_metric nrd_metric;

typedef enum {
    NRD_METRIC_COUNTER,
    NRD_METRIC_GAUGE,
    NRD_METRIC_HISTOGRAM,
    NRD_METRIC_SUMMARY,
} nrd_metric_kind;

typedef struct nrd_metric_label {
    const char *name, *value; /* borrowed during the call */
} nrd_metric_label;

typedef struct nrd_metric_quantile {
    double quantile, error;
} nrd_metric_quantile;

/* What a histogram or summary needs besides its labels; NULL for the other kinds. */
typedef struct nrd_metric_shape {
    const double *buckets; /* histogram: rising upper bounds without +Inf */
    size_t n_buckets;
    const nrd_metric_quantile *quantiles; /* summary */
    size_t n_quantiles;
} nrd_metric_shape;

nrd_metrics *nrd_metrics_new(void);
void nrd_metrics_free(nrd_metrics *r); /* all families must have been given back */

nrd_error *nrd_metric_family_get(nrd_metric_family **out, nrd_metrics *r, nrd_metric_kind kind,
                                 const char *name, const char *help) NRD_MUST_USE;
void nrd_metric_family_unref(nrd_metric_family *f);
nrd_metric_kind nrd_metric_family_kind(const nrd_metric_family *f);

nrd_error *nrd_metric_get(nrd_metric **out, nrd_metric_family *f, const nrd_metric_label *labels,
                          size_t n_labels, const nrd_metric_shape *shape) NRD_MUST_USE;
void nrd_metric_unref(nrd_metric *m); /* NULL is fine */
nrd_metric_kind nrd_metric_get_kind(const nrd_metric *m);

nrd_error *nrd_metric_add(nrd_metric *m, double v) NRD_MUST_USE; /* counter (v >= 0), gauge */
nrd_error *nrd_metric_set(nrd_metric *m, double v) NRD_MUST_USE; /* gauge */
nrd_error *nrd_metric_observe(nrd_metric *m, double v) NRD_MUST_USE;
nrd_error *nrd_metric_value(nrd_metric *m, double *out) NRD_MUST_USE; /* counter, gauge */

/* For code that knows the kind of its metrics; NULL metrics are ignored. */
void nrd_metric_bump(nrd_metric *m, double v);   /* counter, gauge */
void nrd_metric_put(nrd_metric *m, double v);    /* gauge */
void nrd_metric_sample(nrd_metric *m, double v); /* histogram, summary */

/* Appends all families in the order of their first registration. */
void nrd_metrics_text(nrd_metrics *r, nrd_str *out);

/* For other text in this form: a number, the value of a label without its quotes. */
void nrd_metric_put_number(nrd_str *out, double v);
void nrd_metric_put_label(nrd_str *out, const char *value);

/* Values that a histogram's "recent" holds at most. */
#define NRD_METRIC_RECENT 256
/* Appends {"<family>":[<series>, ...], ...}. A series is {"labels":{...}, "value":v} or, for a
 * histogram, {"labels":{...}, "count":n, "sum":s, "bounds":[...], "counts":[... one more],
 * "recent":[oldest ... newest], "window":{"n":n, "p50":v, "p90":v, "p99":v}} (of the last minute); the i-th value of
 * recent is observation count - length + i, so that histograms which are fed together line up.
 * Summaries have count, sum and window. */
void nrd_metrics_json(nrd_metrics *r, nrd_str *out);

#endif
