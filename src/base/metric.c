/* SPDX-License-Identifier: Apache-2.0
 * The registry of metrics. Families are found by name, series by their labels; both are counted.
 * Counters and gauges are atomic numbers; histograms and summaries have a lock of their own.
 * Printed as Prometheus text or as JSON. Used by the core, by backends through the metrics API, and
 * by the page's statistics. */
#include "base/metric.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/number.h"

#include <ctype.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A summary forgets: samples live in SUMMARY_AGES slices of SUMMARY_SLICE_NS each (60 s together,
 * the usual window of Prometheus clients). A slice keeps at most SUMMARY_SAMPLES of its samples,
 * chosen uniformly. */
enum { SUMMARY_AGES = 5, SUMMARY_SAMPLES = 2048 };
#define SUMMARY_SLICE_NS (12ull * 1000000000ull)

typedef struct summary_slice {
    uint64_t started_ns;
    uint64_t n_seen;
    size_t n;
    double *samples;
} summary_slice;

struct nrd_metric {
    nrd_metric_family *family; /* borrowed: a metric is inside its family */
    nrd_metric *next;
    int refs;     /* guarded by the registry's lock */
    char *labels; /* a="b",c="d" in alphabetical order; "" without labels */
    _Atomic double value;
    pthread_mutex_t mu; /* guards what follows: histogram and summary */
    size_t n_buckets;
    double *buckets;
    uint64_t *bucket_counts; /* n_buckets + 1 */
    uint64_t count;
    double sum;
    size_t n_quantiles;
    nrd_metric_quantile *quantiles;
    double *recent; /* histogram: ring of the newest values; NULL before the first */
    summary_slice slices[SUMMARY_AGES];
    size_t slice;
    uint64_t rng;
};

struct nrd_metric_family {
    nrd_metrics *registry;
    nrd_metric_family *next;
    int refs; /* guarded by the registry's lock; every metric holds one too */
    nrd_metric_kind kind;
    char *name, *help;
    nrd_metric *metrics; /* in order of creation */
};

struct nrd_metrics {
    pthread_mutex_t mu;
    nrd_metric_family *families;
};

nrd_metrics *nrd_metrics_new(void)
{
    nrd_metrics *r = nrd_xcalloc(1, sizeof *r);
    pthread_mutex_init(&r->mu, NULL);
    return r;
}

void nrd_metrics_free(nrd_metrics *r)
{
    if (r) {
        NRD_ASSERT(!r->families, "every family is given back before the registry goes");
        pthread_mutex_destroy(&r->mu);
        free(r);
    }
}

static bool is_name(const char *s, bool colon_ok)
{
    if (!s || !*s || isdigit((unsigned char)*s)) {
        return false;
    }
    for (; *s; s++) {
        if (!isalnum((unsigned char)*s) && *s != '_' && !(colon_ok && *s == ':')) {
            return false;
        }
    }
    return true;
}

static void family_unref_locked(nrd_metric_family *f)
{
    if (--f->refs > 0) {
        return;
    }
    nrd_metric_family **p = &f->registry->families;
    while (*p != f) {
        p = &(*p)->next;
    }
    *p = f->next;
    free(f->name);
    free(f->help);
    free(f);
}

nrd_error *nrd_metric_family_get(nrd_metric_family **out, nrd_metrics *r, nrd_metric_kind kind,
                                 const char *name, const char *help)
{
    nrd_metric_family **p;
    nrd_error *err = NULL;

    *out = NULL;
    if (!is_name(name, true)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "invalid metric name '%s'", name ? name : "");
    }
    pthread_mutex_lock(&r->mu);
    for (p = &r->families; *p && strcmp((*p)->name, name) != 0; p = &(*p)->next) {
    }
    if (*p) {
        if ((*p)->kind != kind) { /* as in Triton the first description stays */
            err = nrd_errorf(NRD_ERR_INVALID_ARG, "Metric family '%s' exists with another kind",
                             name);
        } else {
            (*p)->refs++;
            *out = *p;
        }
    } else {
        nrd_metric_family *f = calloc(1, sizeof *f);
        if (f) {
            f->registry = r;
            f->refs = 1;
            f->kind = kind;
            f->name = strdup(name);
            f->help = strdup(help ? help : "");
        }
        if (f && f->name && f->help) {
            *p = f;
            *out = f;
        } else {
            if (f) {
                free(f->name);
                free(f->help);
            }
            free(f);
            err = nrd_error_no_memory();
        }
    }
    pthread_mutex_unlock(&r->mu);
    return err;
}

void nrd_metric_family_unref(nrd_metric_family *f)
{
    if (f) {
        nrd_metrics *r = f->registry;
        pthread_mutex_lock(&r->mu);
        family_unref_locked(f);
        pthread_mutex_unlock(&r->mu);
    }
}

nrd_metric_kind nrd_metric_family_kind(const nrd_metric_family *f)
{
    return f->kind;
}

void nrd_metric_put_label(nrd_str *out, const char *value)
{
    for (const char *p = value; *p; p++) {
        if (*p == '\n') {
            nrd_str_puts(out, "\\n");
        } else {
            if (*p == '"' || *p == '\\') {
                nrd_str_putc(out, '\\');
            }
            nrd_str_putc(out, *p);
        }
    }
}

static int by_label_name(const void *a, const void *b)
{
    return strcmp(((const nrd_metric_label *)a)->name, ((const nrd_metric_label *)b)->name);
}

static nrd_error *label_text(char **out, const nrd_metric_label *labels, size_t n)
{
    nrd_metric_label *sorted = calloc(n + 1, sizeof *sorted);
    nrd_str s = {0};
    nrd_error *err = NULL;

    if (!sorted) {
        return nrd_error_no_memory();
    }
    for (size_t i = 0; i < n; i++) {
        sorted[i] = labels[i];
        if (!is_name(labels[i].name, false) || !labels[i].value) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG, "invalid metric label '%s'",
                             labels[i].name ? labels[i].name : "");
            goto done;
        }
    }
    qsort(sorted, n, sizeof *sorted, by_label_name);
    for (size_t i = 0; i < n; i++) {
        if (i && strcmp(sorted[i].name, sorted[i - 1].name) == 0) {
            err =
                nrd_errorf(NRD_ERR_INVALID_ARG, "metric label '%s' is given twice", sorted[i].name);
            goto done;
        }
        nrd_str_printf(&s, "%s%s=\"", i ? "," : "", sorted[i].name);
        nrd_metric_put_label(&s, sorted[i].value);
        nrd_str_putc(&s, '"');
    }
    *out = nrd_str_steal(&s);
    err = *out ? NULL : nrd_error_no_memory();
done:
    nrd_str_fini(&s);
    free(sorted);
    return err;
}

static nrd_error *check_shape(nrd_metric_kind kind, const nrd_metric_shape *shape)
{
    if (kind == NRD_METRIC_HISTOGRAM) {
        if (!shape) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "a histogram needs its bucket boundaries");
        }
        for (size_t i = 0; i < shape->n_buckets; i++) {
            if (isnan(shape->buckets[i]) || (i && shape->buckets[i] <= shape->buckets[i - 1])) {
                return nrd_errorf(NRD_ERR_INVALID_ARG,
                                  "histogram buckets must be in strictly rising order");
            }
        }
    } else if (kind == NRD_METRIC_SUMMARY && (!shape || shape->n_quantiles == 0)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "a summary needs its quantiles");
    }
    return NULL;
}

static void metric_free(nrd_metric *m)
{
    for (size_t i = 0; i < SUMMARY_AGES; i++) {
        free(m->slices[i].samples);
    }
    pthread_mutex_destroy(&m->mu);
    free(m->buckets);
    free(m->bucket_counts);
    free(m->quantiles);
    free(m->recent);
    free(m->labels);
    free(m);
}

/* Takes labels on success. NULL: no memory. */
static nrd_metric *metric_new(nrd_metric_family *f, char *labels, const nrd_metric_shape *shape)
{
    nrd_metric *m = calloc(1, sizeof *m);

    if (!m) {
        return NULL;
    }
    m->family = f;
    m->refs = 1;
    m->rng = 0x9e3779b97f4a7c15u;
    pthread_mutex_init(&m->mu, NULL);
    if (f->kind == NRD_METRIC_HISTOGRAM) {
        m->n_buckets = shape->n_buckets;
        m->buckets = calloc(shape->n_buckets + 1, sizeof *m->buckets);
        m->bucket_counts = calloc(shape->n_buckets + 1, sizeof *m->bucket_counts);
        if (m->buckets && shape->n_buckets) {
            memcpy(m->buckets, shape->buckets, shape->n_buckets * sizeof *m->buckets);
        }
    } else if (f->kind == NRD_METRIC_SUMMARY) {
        m->n_quantiles = shape->n_quantiles;
        m->quantiles = calloc(shape->n_quantiles, sizeof *m->quantiles);
        if (m->quantiles) {
            memcpy(m->quantiles, shape->quantiles, shape->n_quantiles * sizeof *m->quantiles);
        }
    }
    if ((f->kind == NRD_METRIC_HISTOGRAM && (!m->buckets || !m->bucket_counts)) ||
        (f->kind == NRD_METRIC_SUMMARY && !m->quantiles)) {
        metric_free(m);
        return NULL;
    }
    m->labels = labels;
    return m;
}

nrd_error *nrd_metric_get(nrd_metric **out, nrd_metric_family *f, const nrd_metric_label *labels,
                          size_t n_labels, const nrd_metric_shape *shape)
{
    char *text = NULL;
    nrd_metric **p;

    *out = NULL;
    NRD_TRY(check_shape(f->kind, shape));
    NRD_TRY(label_text(&text, labels, n_labels));
    pthread_mutex_lock(&f->registry->mu);
    for (p = &f->metrics; *p && strcmp((*p)->labels, text) != 0; p = &(*p)->next) {
    }
    if (*p) {
        (*p)->refs++;
        free(text);
    } else {
        *p = metric_new(f, text, shape);
        if (*p) {
            f->refs++;
        } else {
            free(text);
        }
    }
    *out = *p;
    pthread_mutex_unlock(&f->registry->mu);
    return *out ? NULL : nrd_error_no_memory();
}

void nrd_metric_unref(nrd_metric *m)
{
    if (!m) {
        return;
    }
    nrd_metric_family *f = m->family;
    nrd_metrics *r = f->registry;
    pthread_mutex_lock(&r->mu);
    if (--m->refs == 0) {
        nrd_metric **p = &f->metrics;
        while (*p != m) {
            p = &(*p)->next;
        }
        *p = m->next;
        metric_free(m);
        family_unref_locked(f);
    }
    pthread_mutex_unlock(&r->mu);
}

nrd_metric_kind nrd_metric_get_kind(const nrd_metric *m)
{
    return m->family->kind;
}

static const char *kind_name(nrd_metric_kind k)
{
    static const char *const names[] = {"counter", "gauge", "histogram", "summary"};
    return names[k];
}

static nrd_error *wrong_kind(const nrd_metric *m, const char *what)
{
    return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s does not support %s", kind_name(m->family->kind),
                      what);
}

static void atomic_add(_Atomic double *p, double v)
{
    double old = atomic_load_explicit(p, memory_order_relaxed);
    while (!atomic_compare_exchange_weak(p, &old, old + v)) {
    }
}

nrd_error *nrd_metric_add(nrd_metric *m, double v)
{
    if (m->family->kind == NRD_METRIC_COUNTER && v < 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "counter '%s' cannot be incremented by a negative value",
                          m->family->name);
    }
    if (m->family->kind != NRD_METRIC_COUNTER && m->family->kind != NRD_METRIC_GAUGE) {
        return wrong_kind(m, "Increment");
    }
    atomic_add(&m->value, v);
    return NULL;
}

nrd_error *nrd_metric_set(nrd_metric *m, double v)
{
    if (m->family->kind != NRD_METRIC_GAUGE) {
        return wrong_kind(m, "Set");
    }
    atomic_store(&m->value, v);
    return NULL;
}

nrd_error *nrd_metric_value(nrd_metric *m, double *out)
{
    if (m->family->kind != NRD_METRIC_COUNTER && m->family->kind != NRD_METRIC_GAUGE) {
        return wrong_kind(m, "Value");
    }
    *out = atomic_load(&m->value);
    return NULL;
}

static void summary_add(nrd_metric *m, double v)
{
    uint64_t now = nrd_now_ns();
    summary_slice *s = &m->slices[m->slice];

    if (!s->samples || now - s->started_ns >= SUMMARY_SLICE_NS) {
        m->slice = (m->slice + 1) % SUMMARY_AGES;
        s = &m->slices[m->slice];
        s->started_ns = now;
        s->n = 0;
        s->n_seen = 0;
        if (!s->samples) {
            s->samples = calloc(SUMMARY_SAMPLES, sizeof *s->samples);
        }
        if (!s->samples) { /* counted, and not kept */
            return;
        }
    }
    s->n_seen++;
    if (s->n < SUMMARY_SAMPLES) {
        s->samples[s->n++] = v;
        return;
    }
    m->rng ^= m->rng << 13; /* xorshift64 (Marsaglia 2003); reservoir sampling (Vitter 1985) */
    m->rng ^= m->rng >> 7;
    m->rng ^= m->rng << 17;
    uint64_t k = m->rng % s->n_seen;
    if (k < SUMMARY_SAMPLES) {
        s->samples[k] = v;
    }
}

nrd_error *nrd_metric_observe(nrd_metric *m, double v)
{
    if (m->family->kind != NRD_METRIC_HISTOGRAM && m->family->kind != NRD_METRIC_SUMMARY) {
        return wrong_kind(m, "Observe");
    }
    pthread_mutex_lock(&m->mu);
    if (m->family->kind == NRD_METRIC_HISTOGRAM) {
        if (!m->recent) {
            m->recent = calloc(NRD_METRIC_RECENT, sizeof *m->recent);
        }
        if (m->recent) {
            m->recent[m->count % NRD_METRIC_RECENT] = v;
        }
    }
    m->count++;
    m->sum += v;
    if (m->family->kind == NRD_METRIC_HISTOGRAM) {
        size_t i = 0;
        while (i < m->n_buckets && v > m->buckets[i]) {
            i++;
        }
        m->bucket_counts[i]++;
    }
    summary_add(m, v);
    pthread_mutex_unlock(&m->mu);
    return NULL;
}

void nrd_metric_bump(nrd_metric *m, double v)
{
    if (m) {
        nrd_error_free(nrd_metric_add(m, v));
    }
}

void nrd_metric_put(nrd_metric *m, double v)
{
    if (m) {
        nrd_error_free(nrd_metric_set(m, v));
    }
}

void nrd_metric_sample(nrd_metric *m, double v)
{
    if (m) {
        nrd_error_free(nrd_metric_observe(m, v));
    }
}

/* ---- text ---- */

void nrd_metric_put_number(nrd_str *out, double v)
{
    if (isnan(v)) {
        nrd_str_puts(out, "Nan");
    } else if (isinf(v)) {
        nrd_str_puts(out, v > 0 ? "+Inf" : "-Inf");
    } else if (floor(v) == v && fabs(v) < 9007199254740992.0) { /* 2^53: exact as an integer */
        nrd_str_printf(out, "%lld", (long long)v);
    } else {
        char buf[40];
        for (int digits = 6; digits <= 17; digits++) { /* the fewest that read back equal */
            nrd_number_print(buf, sizeof buf, "%.*g", digits, v);
            if (nrd_number_read(buf, NULL) == v) {
                break;
            }
        }
        nrd_str_puts(out, buf);
    }
}

static void put_line(nrd_str *out, const nrd_metric *m, const char *suffix, const char *extra,
                     double extra_value, double v)
{
    nrd_str_puts(out, m->family->name);
    nrd_str_puts(out, suffix);
    if (*m->labels || extra) {
        nrd_str_putc(out, '{');
        nrd_str_puts(out, m->labels);
        if (extra) {
            nrd_str_printf(out, "%s%s=\"", *m->labels ? "," : "", extra);
            nrd_metric_put_number(out, extra_value);
            nrd_str_putc(out, '"');
        }
        nrd_str_putc(out, '}');
    }
    nrd_str_putc(out, ' ');
    nrd_metric_put_number(out, v);
    nrd_str_putc(out, '\n');
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The samples that are not forgotten yet, in no order; the caller frees. *out_seen counts also the
 * values that were not kept as samples. NULL: no memory, as if there were none. */
static double *window_of(const nrd_metric *m, size_t *out_n, uint64_t *out_seen)
{
    uint64_t now = nrd_now_ns();
    double *all = calloc((size_t)SUMMARY_AGES * SUMMARY_SAMPLES, sizeof *all);
    size_t n = 0;

    *out_seen = 0;
    for (size_t i = 0; all && i < SUMMARY_AGES; i++) {
        const summary_slice *s = &m->slices[i];
        if (s->samples && now - s->started_ns < SUMMARY_AGES * SUMMARY_SLICE_NS) {
            memcpy(all + n, s->samples, s->n * sizeof *all);
            n += s->n;
            *out_seen += s->n_seen;
        }
    }
    *out_n = n;
    return all;
}

static double quantile_of(const double *rising, size_t n, double q)
{
    double rank = ceil(q * (double)n);
    size_t k = rank < 1 ? 0 : (size_t)rank - 1;
    return n ? rising[k < n ? k : n - 1] : (double)NAN;
}

static void put_summary(nrd_str *out, nrd_metric *m)
{
    size_t n;
    uint64_t n_seen;
    double *all = window_of(m, &n, &n_seen);

    if (n > 0) {
        qsort(all, n, sizeof *all, by_value);
    }
    for (size_t i = 0; i < m->n_quantiles; i++) {
        put_line(out, m, "", "quantile", m->quantiles[i].quantile,
                 quantile_of(all, n, m->quantiles[i].quantile));
    }
    free(all);
    put_line(out, m, "_sum", NULL, 0, m->sum);
    put_line(out, m, "_count", NULL, 0, (double)m->count);
}

static void put_metric(nrd_str *out, nrd_metric *m)
{
    uint64_t total = 0;

    switch (m->family->kind) {
    case NRD_METRIC_COUNTER:
    case NRD_METRIC_GAUGE:
        put_line(out, m, "", NULL, 0, atomic_load(&m->value));
        return;
    case NRD_METRIC_HISTOGRAM:
        pthread_mutex_lock(&m->mu);
        for (size_t i = 0; i <= m->n_buckets; i++) {
            total += m->bucket_counts[i];
            put_line(out, m, "_bucket", "le", i < m->n_buckets ? m->buckets[i] : (double)INFINITY,
                     (double)total);
        }
        put_line(out, m, "_sum", NULL, 0, m->sum);
        put_line(out, m, "_count", NULL, 0, (double)m->count);
        pthread_mutex_unlock(&m->mu);
        return;
    case NRD_METRIC_SUMMARY:
        pthread_mutex_lock(&m->mu);
        put_summary(out, m);
        pthread_mutex_unlock(&m->mu);
        return;
    }
}

void nrd_metrics_text(nrd_metrics *r, nrd_str *out)
{
    pthread_mutex_lock(&r->mu);
    for (nrd_metric_family *f = r->families; f; f = f->next) {
        nrd_str_printf(out, "# HELP %s %s\n# TYPE %s %s\n", f->name, f->help, f->name,
                       kind_name(f->kind));
        for (nrd_metric *m = f->metrics; m; m = m->next) {
            put_metric(out, m);
        }
    }
    pthread_mutex_unlock(&r->mu);
}

/* ---- JSON ---- */

/* a="b",c="d" -> "a":"b","c":"d" */
static void put_labels(nrd_str *out, const char *labels)
{
    nrd_str value = {0};
    for (const char *p = labels; *p;) {
        size_t n = strcspn(p, "=");
        nrd_json_put_string(out, p, n);
        nrd_str_putc(out, ':');
        nrd_str_clear(&value);
        for (p += n + 2; *p != '"'; p++) { /* label_text escaped what is inside */
            bool escaped = *p == '\\';
            p += escaped;
            nrd_str_putc(&value, escaped && *p == 'n' ? '\n' : *p);
        }
        nrd_json_put_cstr(out, nrd_str_cstr(&value));
        p++;
        if (*p == ',') {
            nrd_str_putc(out, *p++);
        }
    }
    nrd_str_fini(&value);
}

static void put_doubles(nrd_str *out, const char *name, const double *v, size_t n)
{
    nrd_str_printf(out, ",\"%s\":[", name);
    for (size_t i = 0; i < n; i++) {
        nrd_str_puts(out, i ? "," : "");
        nrd_json_put_double(out, v[i]);
    }
    nrd_str_putc(out, ']');
}

/* The lock is held for the copies only: observing threads do not wait for the sorting. */
static void put_observed(nrd_str *out, nrd_metric *m)
{
    static const struct {
        const char *name;
        double q;
    } quantiles[] = {{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}};
    double recent[NRD_METRIC_RECENT];
    size_t n, n_recent = 0;
    uint64_t n_seen;

    pthread_mutex_lock(&m->mu);
    double *all = window_of(m, &n, &n_seen);
    nrd_str_printf(out, "\"count\":%llu,\"sum\":", (unsigned long long)m->count);
    nrd_json_put_double(out, m->sum);
    if (m->family->kind == NRD_METRIC_HISTOGRAM) {
        put_doubles(out, "bounds", m->buckets, m->n_buckets);
        nrd_str_puts(out, ",\"counts\":[");
        for (size_t i = 0; i <= m->n_buckets; i++) {
            nrd_str_printf(out, "%s%llu", i ? "," : "", (unsigned long long)m->bucket_counts[i]);
        }
        nrd_str_putc(out, ']');
        n_recent = !m->recent ? 0 : m->count < NRD_METRIC_RECENT ? (size_t)m->count : NRD_METRIC_RECENT;
        for (size_t i = 0; i < n_recent; i++) {
            recent[i] = m->recent[(m->count - n_recent + i) % NRD_METRIC_RECENT];
        }
    }
    pthread_mutex_unlock(&m->mu);
    if (m->family->kind == NRD_METRIC_HISTOGRAM) {
        put_doubles(out, "recent", recent, n_recent);
    }
    if (n > 0) {
        qsort(all, n, sizeof *all, by_value);
    }
    nrd_str_printf(out, ",\"window\":{\"n\":%llu", (unsigned long long)n_seen);
    for (size_t i = 0; i < sizeof quantiles / sizeof *quantiles; i++) {
        nrd_str_printf(out, ",\"%s\":", quantiles[i].name);
        nrd_json_put_double(out, quantile_of(all, n, quantiles[i].q)); /* null without samples */
    }
    nrd_str_putc(out, '}');
    free(all);
}

static void put_series(nrd_str *out, nrd_metric *m)
{
    nrd_str_puts(out, "{\"labels\":{");
    put_labels(out, m->labels);
    nrd_str_puts(out, "},");
    if (m->family->kind == NRD_METRIC_COUNTER || m->family->kind == NRD_METRIC_GAUGE) {
        nrd_str_puts(out, "\"value\":");
        nrd_json_put_double(out, atomic_load(&m->value));
    } else {
        put_observed(out, m);
    }
    nrd_str_putc(out, '}');
}

void nrd_metrics_json(nrd_metrics *r, nrd_str *out)
{
    pthread_mutex_lock(&r->mu);
    nrd_str_putc(out, '{');
    for (nrd_metric_family *f = r->families; f; f = f->next) {
        nrd_str_printf(out, "%s\"%s\":[", f == r->families ? "" : ",", f->name);
        for (nrd_metric *m = f->metrics; m; m = m->next) {
            nrd_str_puts(out, m == f->metrics ? "" : ",");
            put_series(out, m);
        }
        nrd_str_putc(out, ']');
    }
    nrd_str_putc(out, '}');
    pthread_mutex_unlock(&r->mu);
}
