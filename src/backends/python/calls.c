/* SPDX-License-Identifier: Apache-2.0
 * The service thread of a connection: logs, metrics, model control; the rest is passed on. */
#include "backends/python/backend.h"

#include "base/log.h"
#include "base/str.h"

#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

enum { IDLE_MS = 1000, MAX_LABELS = 64, MAX_FILES = 65536 };

static void settle(nrd_py_conn *c, uint32_t slot, TRITONSERVER_Error *err, uint64_t a)
{
    if (err) {
        nrd_py_answer_error(
            c, slot,
            nrd_tb_errorf(TRITONSERVER_ErrorCode(err),
                          "Failed to process the request for model '%s', message: %s", c->name,
                          TRITONSERVER_ErrorMessage(err)));
        TRITONSERVER_ErrorDelete(err);
    } else {
        nrd_py_answer(c, slot, a, 0, 0);
    }
}

static nrd_py_reader body_of(const nrd_py_conn *c, const nrd_py_entry *e)
{
    nrd_py_reader r = {.bad = true};
    if (nrd_py_map_has(&c->map, e->offset, e->bytes)) {
        r.p = c->map.base + e->offset;
        r.end = r.p + e->bytes;
        r.bad = false;
    }
    return r;
}

static TRITONSERVER_Error *bad_message(void)
{
    return nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "A message of the stub cannot be read.");
}

/* ---- log ---- */

static void do_log(nrd_py_conn *c, const nrd_py_entry *e)
{
    static const TRITONSERVER_LogLevel levels[] = {TRITONSERVER_LOG_INFO, TRITONSERVER_LOG_WARN,
                                                   TRITONSERVER_LOG_ERROR,
                                                   TRITONSERVER_LOG_VERBOSE};
    nrd_py_reader r = body_of(c, e);
    const char *file = nrd_py_get_str(&r, NULL), *text = nrd_py_get_str(&r, NULL);
    if (!r.bad && e->a < sizeof levels / sizeof levels[0]) {
        TRITONSERVER_Error *err =
            TRITONSERVER_LogMessage(levels[e->a], file, (int)(e->b & INT32_MAX), text);
        if (err) {
            TRITONSERVER_ErrorDelete(err);
        }
    }
}

/* ---- metrics ---- */

/* A handle, above 0; 0: no memory. */
static uint64_t metric_add(nrd_py_conn *c, TRITONSERVER_MetricFamily *family,
                           TRITONSERVER_Metric *metric)
{
    size_t i = 0;
    while (i < c->n_metrics && c->metrics[i].is_used) {
        i++;
    }
    if (i == c->n_metrics) {
        nrd_py_metric *grown = realloc(c->metrics, (c->n_metrics + 1) * sizeof *c->metrics);
        if (!grown) {
            return 0;
        }
        c->metrics = grown;
        c->n_metrics++;
    }
    c->metrics[i] = (nrd_py_metric){.family = family, .metric = metric, .is_used = true};
    return i + 1;
}

/* The service thread alone uses the table. */
static nrd_py_metric *metric_get(nrd_py_conn *c, uint64_t handle)
{
    return handle > 0 && handle <= c->n_metrics && c->metrics[handle - 1].is_used
               ? &c->metrics[handle - 1]
               : NULL;
}

static TRITONSERVER_Error *family_new(nrd_py_conn *c, const nrd_py_entry *e, uint64_t *out)
{
    static const TRITONSERVER_MetricKind kinds[] = {TRITONSERVER_METRIC_KIND_COUNTER,
                                                    TRITONSERVER_METRIC_KIND_GAUGE,
                                                    TRITONSERVER_METRIC_KIND_HISTOGRAM};
    nrd_py_reader r = body_of(c, e);
    const char *name = nrd_py_get_str(&r, NULL), *text = nrd_py_get_str(&r, NULL);
    TRITONSERVER_MetricFamily *family = NULL;
    if (r.bad || e->a >= sizeof kinds / sizeof kinds[0]) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "Unknown metric kind");
    }
    NRD_TB_TRY(TRITONSERVER_MetricFamilyNew(&family, kinds[e->a], name, text));
    *out = metric_add(c, family, NULL);
    if (*out == 0) {
        nrd_tb_log_error(TRITONSERVER_MetricFamilyDelete(family), "deleting a metric family");
        return nrd_tb_error(nrd_error_no_memory());
    }
    return NULL;
}

static TRITONSERVER_Error *metric_create(TRITONSERVER_MetricFamily *family, const nrd_json *labels,
                                         const double *buckets, uint32_t n_buckets,
                                         TRITONSERVER_Metric **out)
{
    const TRITONSERVER_Parameter *params[MAX_LABELS];
    TRITONSERVER_MetricArgs *args = NULL;
    TRITONSERVER_Error *err = NULL;
    TRITONSERVER_MetricKind kind = TRITONSERVER_METRIC_KIND_COUNTER;
    size_t n = 0;

    if (nrd_json_len(labels) > MAX_LABELS) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "a metric has at most %d labels",
                             (int)MAX_LABELS);
    }
    NRD_TB_TRY(TRITONSERVER_GetMetricFamilyKind(family, &kind));
    for (size_t i = 0; i < nrd_json_len(labels) && !err; i++) {
        const nrd_json *v = nrd_json_at(labels, i);
        if (!nrd_json_is(v, NRD_JSON_STRING)) {
            err = nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL,
                                "attempt to access JSON non-string as string");
        } else {
            params[n++] = TRITONSERVER_ParameterNew(v->key, TRITONSERVER_PARAMETER_STRING, v->str);
        }
    }
    if (!err && kind == TRITONSERVER_METRIC_KIND_HISTOGRAM) {
        err = TRITONSERVER_MetricArgsNew(&args);
        if (!err) {
            err = TRITONSERVER_MetricArgsSetHistogram(args, buckets, n_buckets);
        }
    }
    if (!err) {
        err = TRITONSERVER_MetricNewWithArgs(out, family, params, n, args);
    }
    for (size_t i = 0; i < n; i++) {
        TRITONSERVER_ParameterDelete((TRITONSERVER_Parameter *)(uintptr_t)params[i]);
    }
    if (args) {
        nrd_tb_log_error(TRITONSERVER_MetricArgsDelete(args), "metric arguments");
    }
    return err;
}

static TRITONSERVER_Error *metric_new(nrd_py_conn *c, const nrd_py_entry *e, uint64_t *out)
{
    nrd_py_reader r = body_of(c, e);
    size_t n = 0;
    const char *text = nrd_py_get_str(&r, &n);
    uint32_t n_buckets = nrd_py_get_u32(&r);
    const void *bytes = nrd_py_get(&r, (size_t)n_buckets * sizeof(double));
    nrd_py_metric *family = metric_get(c, e->a);
    nrd_json_doc *labels = NULL;
    TRITONSERVER_Metric *metric = NULL;

    if (r.bad || !family || !family->family) {
        return bad_message();
    }
    double *buckets = calloc((size_t)n_buckets + 1, sizeof *buckets); /* aligned copy */
    if (!buckets) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    if (n_buckets) {
        memcpy(buckets, bytes, (size_t)n_buckets * sizeof *buckets);
    }
    TRITONSERVER_Error *err = nrd_tb_error(nrd_json_parse(&labels, text, n, NULL));
    if (!err) {
        err = metric_create(family->family, nrd_json_root(labels), buckets, n_buckets, &metric);
    }
    if (!err) {
        *out = metric_add(c, NULL, metric);
        if (*out == 0) {
            nrd_tb_log_error(TRITONSERVER_MetricDelete(metric), "deleting a metric");
            err = nrd_tb_error(nrd_error_no_memory());
        }
    }
    nrd_json_doc_free(labels);
    free(buckets);
    return err;
}

static TRITONSERVER_Error *metric_delete(nrd_py_metric *m)
{
    TRITONSERVER_Error *err = NULL;
    if (m->metric) {
        err = TRITONSERVER_MetricDelete(m->metric);
    } else if (m->family) {
        err = TRITONSERVER_MetricFamilyDelete(m->family);
    }
    memset(m, 0, sizeof *m);
    return err;
}

static TRITONSERVER_Error *metric_use(nrd_py_conn *c, const nrd_py_entry *e, uint64_t *out)
{
    nrd_py_metric *m = metric_get(c, e->a);
    double v;
    memcpy(&v, &e->b, sizeof v);
    if (!m || (!m->metric && e->type != NRD_PY_CALL_FAMILY_DELETE)) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "the metric is no longer there");
    }
    switch (e->type) {
    case NRD_PY_CALL_METRIC_INCREMENT:
        return TRITONSERVER_MetricIncrement(m->metric, v);
    case NRD_PY_CALL_METRIC_SET:
        return TRITONSERVER_MetricSet(m->metric, v);
    case NRD_PY_CALL_METRIC_OBSERVE:
        return TRITONSERVER_MetricObserve(m->metric, v);
    case NRD_PY_CALL_METRIC_VALUE:
        NRD_TB_TRY(TRITONSERVER_MetricValue(m->metric, &v));
        memcpy(out, &v, sizeof v);
        return NULL;
    default:
        return metric_delete(m);
    }
}

void nrd_py_metrics_free(nrd_py_conn *c)
{
    for (int pass = 0; pass < 2; pass++) { /* metrics before their families */
        for (size_t i = 0; i < c->n_metrics; i++) {
            if (c->metrics[i].is_used && (pass == 1 || c->metrics[i].metric)) {
                nrd_tb_log_error(metric_delete(&c->metrics[i]), "deleting a metric");
            }
        }
    }
}

/* ---- model control: may take long, so each has a thread ---- */

typedef struct job {
    nrd_py_conn *conn;
    nrd_py_entry e;
} job;

static TRITONSERVER_Error *load_model(nrd_py_conn *c, nrd_py_reader *r)
{
    const char *name = nrd_py_get_str(r, NULL);
    size_t n_config = 0, n = 0;
    const char *config = nrd_py_get_str(r, &n_config);
    uint32_t n_files = nrd_py_get_u32(r);
    if (r->bad || n_files > MAX_FILES) {
        return bad_message();
    }
    const TRITONSERVER_Parameter **params = calloc((size_t)n_files + 1, sizeof *params);
    if (!params) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    if (n_config) {
        params[n++] = TRITONSERVER_ParameterNew("config", TRITONSERVER_PARAMETER_STRING, config);
    }
    for (uint32_t i = 0; i < n_files && !r->bad; i++) {
        size_t size = 0;
        const char *path = nrd_py_get_str(r, NULL), *data = nrd_py_get_str(r, &size);
        if (!r->bad) {
            params[n++] = TRITONSERVER_ParameterBytesNew(path, data, size);
        }
    }
    TRITONSERVER_Error *err =
        r->bad ? bad_message()
               : TRITONSERVER_ServerLoadModelWithParameters(c->server, name, params, n);
    for (size_t i = 0; i < n; i++) {
        TRITONSERVER_ParameterDelete((TRITONSERVER_Parameter *)(uintptr_t)params[i]);
    }
    free(params);
    return err;
}

static TRITONSERVER_Error *is_ready(nrd_py_conn *c, nrd_py_reader *r, bool *out)
{
    const char *name = nrd_py_get_str(r, NULL), *text = nrd_py_get_str(r, NULL);
    long long version = -1;
    bool parsed = !*text || nrd_parse_i64(text, &version);
    if (!parsed || (*text && version < 0)) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL,
                             "failed to get model version from specified version string '%s'%s, "
                             "version should be an integral value > 0",
                             text, parsed ? "" : " (details: stol)");
    }
    return TRITONSERVER_ServerModelIsReady(c->server, name, version, out);
}

static void *control(void *arg)
{
    job *j = arg;
    nrd_py_conn *c = j->conn;
    nrd_py_reader r = body_of(c, &j->e);
    bool ready = false;
    TRITONSERVER_Error *err = NULL;

    prctl(PR_SET_NAME, "nrd_py_control");
    if (j->e.type == NRD_PY_CALL_LOAD) {
        err = load_model(c, &r);
    } else if (j->e.type == NRD_PY_CALL_UNLOAD) {
        const char *name = nrd_py_get_str(&r, NULL);
        err = j->e.a ? TRITONSERVER_ServerUnloadModelAndDependents(c->server, name)
                     : TRITONSERVER_ServerUnloadModel(c->server, name);
    } else {
        err = is_ready(c, &r, &ready);
    }
    if (j->e.offset) {
        nrd_py_return(&c->to_stub, j->e.offset);
    }
    settle(c, j->e.slot, err, ready);
    pthread_mutex_lock(&c->mu);
    c->n_jobs--;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->mu);
    free(j);
    return NULL;
}

static void start_control(nrd_py_conn *c, const nrd_py_entry *e)
{
    pthread_t thread;
    job *j = calloc(1, sizeof *j);
    if (!j) {
        if (e->offset) {
            nrd_py_return(&c->to_stub, e->offset);
        }
        settle(c, e->slot, nrd_tb_error(nrd_error_no_memory()), 0);
        return;
    }
    j->conn = c;
    j->e = *e;
    pthread_mutex_lock(&c->mu);
    c->n_jobs++;
    pthread_mutex_unlock(&c->mu);
    if (pthread_create(&thread, NULL, control, j) == 0) {
        pthread_detach(thread);
    } else {
        control(j);
    }
}

/* ---- the thread ---- */

static void serve(nrd_py_conn *c, const nrd_py_entry *e)
{
    TRITONSERVER_Error *err = NULL;
    uint64_t a = 0;

    switch (e->type) {
    /* These give back their body themselves. */
    case NRD_PY_CALL_SEND:
        nrd_py_request_send(c, e);
        return;
    case NRD_PY_CALL_INFER:
        nrd_py_infer_start(c, e);
        return;
    case NRD_PY_CALL_LOAD:
    case NRD_PY_CALL_UNLOAD:
    case NRD_PY_CALL_IS_READY:
        start_control(c, e);
        return;
    case NRD_PY_CALL_LOG:
        do_log(c, e);
        break;
    case NRD_PY_CALL_DROP:
        nrd_py_request_drop(c, e->a);
        break;
    case NRD_PY_CALL_CANCELLED:
        nrd_py_request_cancelled(c, e);
        return;
    case NRD_PY_CALL_NEXT:
        nrd_py_infer_next(c, e);
        return;
    case NRD_PY_CALL_INFER_CANCEL:
        nrd_py_infer_cancel(c, e);
        return;
    case NRD_PY_CALL_INFER_DROP:
        nrd_py_infer_drop(c, e->a);
        return;
    case NRD_PY_CALL_FAMILY_NEW:
        err = family_new(c, e, &a);
        break;
    case NRD_PY_CALL_METRIC_NEW:
        err = metric_new(c, e, &a);
        break;
    case NRD_PY_CALL_FAMILY_DELETE:
    case NRD_PY_CALL_METRIC_DELETE:
    case NRD_PY_CALL_METRIC_INCREMENT:
    case NRD_PY_CALL_METRIC_SET:
    case NRD_PY_CALL_METRIC_OBSERVE:
    case NRD_PY_CALL_METRIC_VALUE:
        err = metric_use(c, e, &a);
        break;
    default:
        err = nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "Unexpected message type received.");
        break;
    }
    if (e->offset) {
        nrd_py_return(&c->to_stub, e->offset);
    }
    settle(c, e->slot, err, a);
}

static bool take(nrd_py_conn *c, nrd_py_entry *out)
{
    nrd_py_control *ctl = c->map.ctl;
    uint32_t head = atomic_load(&ctl->call_head);
    if (head == atomic_load(&ctl->call_tail)) {
        return false;
    }
    *out = ctl->calls[head % NRD_PY_CALLS];
    atomic_store(&ctl->call_head, head + 1);
    if (atomic_exchange(&ctl->call_space, 0)) {
        nrd_py_wake(&ctl->call_head, INT32_MAX);
    }
    return true;
}

void *nrd_py_serve(void *arg)
{
    nrd_py_conn *c = arg;
    nrd_py_control *ctl = c->map.ctl;
    nrd_py_entry e;
    bool drained = false;

    prctl(PR_SET_NAME, "py_service");
    for (;;) {
        while (take(c, &e)) {
            serve(c, &e);
        }
        if (atomic_load(&c->dead) && !drained) {
            if (take(c, &e)) { /* its last words */
                serve(c, &e);
                continue;
            }
            drained = true;
            pthread_mutex_lock(&c->mu);
            c->drained = true;
            pthread_cond_broadcast(&c->changed);
            pthread_mutex_unlock(&c->mu);
            nrd_py_requests_fail(c);
            nrd_py_infer_cancel_all(c);
        }
        if (atomic_load(&c->stop_service)) {
            break;
        }
        uint32_t tail = atomic_load(&ctl->call_tail);
        atomic_store(&ctl->call_sleepers, 1);
        if (tail == atomic_load(&ctl->call_head) && !atomic_load(&c->stop_service) &&
            (drained || !atomic_load(&c->dead))) {
            nrd_py_sleep(&ctl->call_tail, tail, IDLE_MS);
        }
        atomic_store(&ctl->call_sleepers, 0);
    }
    nrd_py_conn_unref(c);
    return NULL;
}
