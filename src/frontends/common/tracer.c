/* SPDX-License-Identifier: Apache-2.0
 * Trace settings, sampling and records. A request asks once whether it is traced; if so, a record
 * collects time stamps and tensors until the handler and the core have both given it up, and is
 * then written to the file or handed to the exporter. Settings are changed by options and by the
 * trace endpoints. */
#include "frontends/common/tracer.h"

#include "base/clock.h"
#include "base/env.h"
#include "base/log.h"
#include "base/mem.h"
#include "frontends/common/tensor_json.h"
#include "frontends/common/otel_export.h"
#include "frontends/common/otel_spans.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define MAX_CHILDREN 64 /* traces of one request that are alive at the same time */

typedef struct settings {
    unsigned level; /* TRITONSERVER_TRACE_LEVEL_* bits */
    int64_t rate;   /* every rate-th request */
    int64_t count;  /* how many still; -1: no limit */
    int64_t log_frequency;
} settings;

typedef struct model_settings {
    struct model_settings *next;
    char *model;
    settings s;
    bool own_level, own_rate, own_count, own_frequency; /* else the global value counts */
    uint64_t seen;
} model_settings;

struct nrd_tracer {
    pthread_mutex_t mu;
    atomic_bool active; /* some level is not OFF: without it a request costs one load */
    settings global;
    uint64_t seen;
    model_settings *models;
    bool otel_mode;     /* spans to a collector instead of a file */
    nrd_otel *otel;     /* owns */
    nrd_str otel_shown; /* its settings, as JSON members */
    char *path;         /* "" : none */
    FILE *file;         /* open while something was written to it */
    int64_t in_file, n_files;
    off_t file_bytes;   /* of whole records */
    bool is_full;       /* the last record could not be written, and this was said */
};

struct nrd_trace_record {
    nrd_tracer *tracer;
    TRITONSERVER_InferenceTrace *trace;
    uint64_t id;
    pthread_mutex_t mu;
    nrd_str text; /* entries, comma-separated */
    uint64_t alive[MAX_CHILDREN];
    int n_alive;
    bool root_released;
    int64_t frequency;
    bool stamps; /* else only tensors are written */
    bool otel;   /* spans instead of text */
    nrd_otel_spans spans;
    atomic_int refs;
};

static void drop(TRITONSERVER_Error *e)
{
    if (e) {
        TRITONSERVER_ErrorDelete(e);
    }
}

/* ---- settings ---- */

static nrd_error *parse_level(const char *text, unsigned *io_level)
{
    if (strcasecmp(text, "off") == 0 || strcasecmp(text, "false") == 0) {
        return NULL;
    }
    if (strcasecmp(text, "timestamps") == 0 || strcasecmp(text, "true") == 0 ||
        strcasecmp(text, "on") == 0 || strcasecmp(text, "min") == 0 ||
        strcasecmp(text, "max") == 0) {
        *io_level |= TRITONSERVER_TRACE_LEVEL_TIMESTAMPS;
        return NULL;
    }
    if (strcasecmp(text, "tensors") == 0) {
        *io_level |= TRITONSERVER_TRACE_LEVEL_TENSORS;
        return NULL;
    }
    return nrd_errorf(NRD_ERR_INVALID_ARG, "invalid value for trace level option: %s", text);
}

static nrd_error *parse_number(const char *name, const char *text, int64_t min, int64_t max,
                               int64_t *out)
{
    long long v;
    if (!nrd_parse_i64(text, &v)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "Unable to parse '%s', got: %s", name, text);
    }
    if (min == -1 && v < min) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "Unable to parse '%s'. Expecting value >= -1, got:%s", name, text);
    }
    if (v < min || v > max) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "Unable to parse '%s', value is out of range [ %lld, %lld ], got: %s",
                          name, (long long)min, (long long)max, text);
    }
    *out = v;
    return NULL;
}

/* ---- settings of the command line ---- */

/* What --trace-config=opentelemetry,... says. */
typedef struct otel_options {
    const char *url;
    nrd_str attributes; /* of the resource, as members of a JSON list */
    int64_t max_queue, delay_ms, max_batch;
    bool named; /* service.name was given */
} otel_options;

static nrd_error *set_resource(otel_options *x, const char *value)
{
    const char *eq = strchr(value, '=');
    if (!eq || eq == value) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "--trace-config opentelemetry,resource: expected <key>=<value>, got %s",
                          value);
    }
    x->named = x->named || strncmp(value, "service.name=", 13) == 0;
    nrd_str_puts(&x->attributes, x->attributes.len ? ",{\"key\":" : "{\"key\":");
    nrd_json_put_string(&x->attributes, value, (size_t)(eq - value));
    nrd_str_puts(&x->attributes, ",\"value\":{\"stringValue\":");
    nrd_json_put_cstr(&x->attributes, eq + 1);
    nrd_str_puts(&x->attributes, "}}");
    return NULL;
}

static nrd_error *set_otel(nrd_tracer *t, otel_options *x, const nrd_option_entry *e)
{
    int64_t *number = strcmp(e->setting, "bsp_max_queue_size") == 0          ? &x->max_queue
                      : strcmp(e->setting, "bsp_schedule_delay") == 0        ? &x->delay_ms
                      : strcmp(e->setting, "bsp_max_export_batch_size") == 0 ? &x->max_batch
                                                                             : NULL;
    if (!number && strcmp(e->setting, "url") != 0 && strcmp(e->setting, "resource") != 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--trace-config has no setting 'opentelemetry,%s'",
                          e->setting);
    }
    if (number) {
        return parse_number(e->setting, e->value, 1, INT32_MAX, number); /* shown at the end */
    }
    nrd_str_putc(&t->otel_shown, ',');
    nrd_json_put_cstr(&t->otel_shown, e->setting);
    nrd_str_putc(&t->otel_shown, ':');
    nrd_json_put_cstr(&t->otel_shown, e->value);
    if (e->setting[0] == 'u') {
        x->url = e->value;
        return NULL;
    }
    return set_resource(x, e->value);
}

static nrd_error *set_mode(nrd_tracer *t, const char *value)
{
    t->otel_mode = strcasecmp(value, "opentelemetry") == 0;
    return t->otel_mode || strcasecmp(value, "triton") == 0
               ? NULL
               : nrd_errorf(NRD_ERR_INVALID_ARG,
                            "invalid value for trace mode: %s; it is 'triton' or 'opentelemetry'",
                            value);
}

static nrd_error *set_from_option(nrd_tracer *t, otel_options *x, const nrd_option_entry *e,
                                  bool *off)
{
    const bool triton = strcmp(e->name, "triton") == 0;
    if (strcmp(e->name, "opentelemetry") == 0) {
        return set_otel(t, x, e);
    }
    if (e->name[0] && !triton) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--trace-config has no mode '%s'", e->name);
    }
    if (triton && strcmp(e->setting, "file") == 0) {
        free(t->path);
        t->path = strdup(e->value);
        return t->path ? NULL : nrd_error_no_memory();
    }
    if (triton && strcmp(e->setting, "log-frequency") == 0) {
        return parse_number("log_frequency", e->value, 0, INT32_MAX, &t->global.log_frequency);
    }
    if (!triton && strcmp(e->setting, "level") == 0) {
        *off = *off || strcasecmp(e->value, "off") == 0 || strcasecmp(e->value, "false") == 0;
        return parse_level(e->value, &t->global.level);
    }
    if (!triton && strcmp(e->setting, "rate") == 0) {
        return parse_number("trace_rate", e->value, 1, INT32_MAX, &t->global.rate);
    }
    if (!triton && strcmp(e->setting, "count") == 0) {
        return parse_number("trace_count", e->value, -1, INT32_MAX, &t->global.count);
    }
    if (!triton && strcmp(e->setting, "mode") == 0) {
        return set_mode(t, e->value);
    }
    return nrd_errorf(NRD_ERR_INVALID_ARG, "--trace-config has no setting '%s%s%s'", e->name,
                      triton ? "," : "", e->setting);
}

static bool is_given(const nrd_option_list *list, const nrd_option_entry *e)
{
    for (size_t i = 0; i < list->n; i++) {
        if (strcmp(list->items[i].name, e->name) == 0 &&
            strcmp(list->items[i].setting, e->setting) == 0) {
            return true;
        }
    }
    return false;
}

/* The older options count where --trace-config says nothing. */
static nrd_error *read_options(nrd_tracer *t, otel_options *x, const nrd_options *o)
{
    bool off = false;
    for (size_t i = 0; i < o->trace_old.n; i++) {
        if (!is_given(&o->trace_config, &o->trace_old.items[i])) {
            NRD_TRY(set_from_option(t, x, &o->trace_old.items[i], &off));
        }
    }
    for (size_t i = 0; i < o->trace_config.n; i++) {
        NRD_TRY(set_from_option(t, x, &o->trace_config.items[i], &off));
    }
    if (off) {
        t->global.level = 0;
    }
    return NULL;
}

static nrd_error *start_otel(nrd_tracer *t, otel_options *x)
{
    if (!x->named) {
        NRD_TRY(set_resource(x, "service.name=triton-inference-server"));
    }
    nrd_str_printf(&t->otel_shown,
                   ",\"bsp_max_queue_size\":\"%lld\",\"bsp_schedule_delay\":\"%lld\","
                   "\"bsp_max_export_batch_size\":\"%lld\"",
                   (long long)x->max_queue, (long long)x->delay_ms, (long long)x->max_batch);
    return nrd_otel_new(&t->otel, x->url, nrd_str_cstr(&x->attributes), x->max_queue, x->delay_ms,
                        x->max_batch);
}

static nrd_error *need_file(const nrd_tracer *t, unsigned level)
{
    return level == 0 || t->path[0] || t->otel_mode
               ? NULL
               : nrd_errorf(
                     NRD_ERR_INVALID_ARG,
                     "Attempting to set invalid trace setting :trace file name is not given");
}

static nrd_error *env_number(const char *name, const char *fallback, int64_t *out)
{
    return parse_number(name, nrd_env(name, fallback), 1, INT32_MAX, out);
}

nrd_error *nrd_tracer_new(nrd_tracer **out, const nrd_options *o)
{
    otel_options x = {.url = "http://localhost:4318/v1/traces"};
    nrd_error *err = NULL;
    nrd_tracer *t = NULL;

    *out = NULL;
    NRD_NEW_GOTO(t, 1, err, done);
    pthread_mutex_init(&t->mu, NULL);
    t->global = (settings){0, 1000, -1, 0};
    t->path = strdup("");
    if (!t->path) {
        err = nrd_error_no_memory();
        goto done;
    }
    NRD_TRY_GOTO(env_number("OTEL_BSP_MAX_QUEUE_SIZE", "2048", &x.max_queue), err, done);
    NRD_TRY_GOTO(env_number("OTEL_BSP_SCHEDULE_DELAY", "5000", &x.delay_ms), err, done);
    NRD_TRY_GOTO(env_number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "512", &x.max_batch), err, done);
    NRD_TRY_GOTO(read_options(t, &x, o), err, done);
    NRD_TRY_GOTO(need_file(t, t->global.level), err, done);
    if (t->otel_mode) {
        NRD_TRY_GOTO(start_otel(t, &x), err, done);
    }
    atomic_store(&t->active, t->global.level != 0);
    *out = t;
    t = NULL;

done:
    nrd_str_fini(&x.attributes);
    nrd_tracer_free(t);
    return err;
}

static model_settings *find(const nrd_tracer *t, const char *model)
{
    model_settings *m = t->models;
    while (m && strcmp(m->model, model) != 0) {
        m = m->next;
    }
    return m;
}

/* What counts for a model; lock held. NULL model: the global settings. */
static settings effective(const nrd_tracer *t, const model_settings *m)
{
    settings s = t->global;
    if (m) {
        s.level = m->own_level ? m->s.level : s.level;
        s.rate = m->own_rate ? m->s.rate : s.rate;
        s.count = m->own_count ? m->s.count : s.count;
        s.log_frequency = m->own_frequency ? m->s.log_frequency : s.log_frequency;
    }
    return s;
}

static nrd_error *read_level(const nrd_json *v, unsigned *out)
{
    *out = 0;
    if (!nrd_json_is(v, NRD_JSON_ARRAY)) {
        return nrd_errorf(NRD_ERR_INTERNAL, "attempt to access JSON non-array as array");
    }
    for (size_t i = 0; i < v->n; i++) {
        const char *text = nrd_json_str(&v->child[i], NULL);
        if (!text) {
            return nrd_errorf(NRD_ERR_INTERNAL, "Unable to parse 'trace_level': attempt to "
                                                "access JSON non-string as string");
        }
        if (strcmp(text, "OFF") == 0 && v->n > 1) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "Expect only one trace level 'OFF' is specified");
        }
        NRD_TRY(parse_level(text, out));
    }
    return NULL;
}

/* A number that comes as a string; null takes the outer setting. */
static nrd_error *read_number(const nrd_json *doc, const char *name, int64_t min, int64_t outer,
                              int64_t *io, bool *io_own)
{
    const nrd_json *v = nrd_json_get(doc, name);
    if (!v) {
        return NULL;
    }
    if (nrd_json_is(v, NRD_JSON_NULL)) {
        *io = outer;
        *io_own = false;
        return NULL;
    }
    if (!nrd_json_is(v, NRD_JSON_STRING)) {
        return nrd_errorf(NRD_ERR_INTERNAL, "attempt to access JSON non-string as string");
    }
    NRD_TRY(parse_number(name, v->str, min, INT32_MAX, io));
    *io_own = true;
    return NULL;
}

/* All or nothing: the new settings are built aside. */
static nrd_error *build_settings(const nrd_tracer *t, const nrd_json *doc, model_settings *m)
{
    const settings defaults = {0, 1000, -1, 0};
    const settings *outer = m->model ? &t->global : &defaults;
    const nrd_json *level = nrd_json_get(doc, "trace_level"),
                   *file = nrd_json_get(doc, "trace_file");

    if (!nrd_json_is(doc, NRD_JSON_OBJECT)) {
        return nrd_errorf(NRD_ERR_INTERNAL, "attempt to access JSON non-object as object");
    }
    if (file && !nrd_json_is(file, NRD_JSON_NULL)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED,
                          "trace file location can not be updated through network protocol");
    }
    if (nrd_json_is(level, NRD_JSON_NULL)) {
        m->s.level = outer->level;
        m->own_level = false;
    } else if (level) {
        NRD_TRY(read_level(level, &m->s.level));
        NRD_TRY(need_file(t, m->s.level));
        m->own_level = true;
    }
    NRD_TRY(read_number(doc, "trace_rate", 1, outer->rate, &m->s.rate, &m->own_rate));
    NRD_TRY(read_number(doc, "trace_count", -1, outer->count, &m->s.count, &m->own_count));
    return read_number(doc, "log_frequency", 0, outer->log_frequency, &m->s.log_frequency,
                       &m->own_frequency);
}

static void refresh_active(nrd_tracer *t)
{
    bool active = t->global.level != 0;
    for (const model_settings *m = t->models; m; m = m->next) {
        active = active || effective(t, m).level != 0;
    }
    atomic_store(&t->active, active);
}

nrd_error *nrd_tracer_update(nrd_tracer *t, const char *model, const nrd_json *doc)
{
    pthread_mutex_lock(&t->mu);
    model_settings *m = model ? find(t, model) : NULL;
    model_settings next = m ? *m : (model_settings){.s = t->global};
    char name_holder[1] = "";
    next.model = model ? (m ? m->model : name_holder) : NULL;
    nrd_error *err = build_settings(t, doc, &next);
    if (!err && !model) {
        t->global = next.s;
    } else if (!err && !m) {
        m = calloc(1, sizeof *m);
        next.model = strdup(model);
        next.next = t->models;
        if (m && next.model) {
            t->models = m;
            *m = next;
        } else {
            free(m);
            free(next.model);
            err = nrd_error_no_memory();
        }
    } else if (!err) {
        *m = next;
    }
    refresh_active(t);
    pthread_mutex_unlock(&t->mu);
    return err;
}

void nrd_tracer_put_settings(nrd_tracer *t, const char *model, nrd_str *out)
{
    pthread_mutex_lock(&t->mu);
    const settings s = effective(t, model ? find(t, model) : NULL);
    const bool stamps = (s.level & TRITONSERVER_TRACE_LEVEL_TIMESTAMPS) != 0;
    const bool tensors = (s.level & TRITONSERVER_TRACE_LEVEL_TENSORS) != 0;
    nrd_str_printf(out,
                   "{\"trace_level\":[%s%s%s],\"trace_rate\":\"%lld\",\"trace_count\":\"%lld\",",
                   stamps    ? "\"TIMESTAMPS\""
                   : tensors ? ""
                             : "\"OFF\"",
                   stamps && tensors ? "," : "", tensors ? "\"TENSORS\"" : "", (long long)s.rate,
                   (long long)s.count);
    if (t->otel_mode) {
        nrd_str_puts(out, "\"trace_mode\":\"opentelemetry\"");
        nrd_str_put(out, &t->otel_shown);
        nrd_str_putc(out, '}');
    } else {
        nrd_str_printf(out,
                       "\"log_frequency\":\"%lld\",\"trace_file\":", (long long)s.log_frequency);
        nrd_json_put_cstr(out, t->path);
        nrd_str_puts(out, ",\"trace_mode\":\"triton\"}");
    }
    pthread_mutex_unlock(&t->mu);
}

/* ---- the file ---- */

/* Lock held. */
static void close_file(nrd_tracer *t)
{
    if (t->file) {
        fputs(t->file_bytes ? "]" : "[]", t->file);
        if (fclose(t->file) != 0 && !t->is_full) {
            NRD_LOG_ERROR("trace file '%s': %s", t->path, strerror(errno));
        }
        t->file = NULL;
        t->in_file = 0;
    }
}

/* Lock held. Writes a text whole or not at all, so that the file is valid JSON once "]" follows. */
static bool append(nrd_tracer *t, const char *separator, const char *text)
{
    if (fprintf(t->file, "%s%s", separator, text) >= 0 && fflush(t->file) == 0) {
        t->file_bytes += (off_t)(strlen(separator) + strlen(text));
        t->is_full = false;
        return true;
    }
    if (!t->is_full) {
        NRD_LOG_ERROR("trace file '%s': %s; traces are lost until they can be written", t->path, strerror(errno));
    }
    t->is_full = true;
    __fpurge(t->file);
    clearerr(t->file);
    if (ftruncate(fileno(t->file), t->file_bytes) != 0 || fseeko(t->file, t->file_bytes, SEEK_SET) != 0) {
        fclose(t->file);
        t->file = NULL; /* a pipe has no such place */
    }
    return false;
}

/* Appends a finished record. With a frequency each file takes that many and has a number. */
static void write_record(nrd_tracer *t, const nrd_trace_record *r)
{
    if (r->text.no_memory) { /* the file stays valid JSON */
        NRD_LOG_WARN("a trace is lost: out of memory");
        return;
    }
    pthread_mutex_lock(&t->mu);
    if (!t->file) {
        nrd_str path = {0};
        nrd_str_puts(&path, t->path);
        if (r->frequency) {
            nrd_str_printf(&path, ".%lld", (long long)t->n_files++);
        }
        t->file = path.no_memory ? NULL : fopen(nrd_str_cstr(&path), "we");
        t->file_bytes = 0;
        if (!t->file) {
            NRD_LOG_ERROR("trace file '%s': %s", nrd_str_cstr(&path), strerror(errno));
        }
        nrd_str_fini(&path);
    }
    if (t->file && r->text.len && append(t, t->file_bytes ? "," : "[", r->text.data)) {
        t->in_file++;
        if (r->frequency && t->in_file >= r->frequency) {
            close_file(t);
        }
    }
    pthread_mutex_unlock(&t->mu);
}

void nrd_tracer_free(nrd_tracer *t)
{
    if (!t) {
        return;
    }
    nrd_otel_free(t->otel);
    nrd_str_fini(&t->otel_shown);
    close_file(t);
    while (t->models) {
        model_settings *m = t->models;
        t->models = m->next;
        free(m->model);
        free(m);
    }
    free(t->path);
    pthread_mutex_destroy(&t->mu);
    free(t);
}

/* ---- records ---- */

void nrd_trace_unref(nrd_trace_record *r)
{
    if (!r || atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    if (r->otel) {
        const size_t n = nrd_otel_spans_write(&r->spans, nrd_now_ns(), &r->text);
        nrd_otel_add(r->tracer->otel, &r->text, n);
        nrd_otel_spans_fini(&r->spans);
    } else {
        write_record(r->tracer, r);
    }
    nrd_str_fini(&r->text);
    pthread_mutex_destroy(&r->mu);
    free(r);
}

static void separate(nrd_trace_record *r)
{
    if (r->text.len) {
        nrd_str_putc(&r->text, ',');
    }
}

/* The first event of a trace brings the entry that names it. Lock held. */
static void introduce(nrd_trace_record *r, TRITONSERVER_InferenceTrace *trace, uint64_t id)
{
    const char *model = "", *request_id = "";
    int64_t version = 0;
    uint64_t parent = 0;
    for (int i = 0; i < r->n_alive; i++) {
        if (r->alive[i] == id) {
            return;
        }
    }
    if (r->n_alive < MAX_CHILDREN) {
        r->alive[r->n_alive++] = id;
    }
    if (r->otel) {
        return; /* spans carry all of this */
    }
    drop(TRITONSERVER_InferenceTraceModelName(trace, &model));
    drop(TRITONSERVER_InferenceTraceModelVersion(trace, &version));
    drop(TRITONSERVER_InferenceTraceRequestId(trace, &request_id));
    drop(TRITONSERVER_InferenceTraceParentId(trace, &parent));
    separate(r);
    nrd_str_printf(&r->text, "{\"id\":%llu,\"model_name\":", (unsigned long long)id);
    nrd_json_put_cstr(&r->text, model ? model : "");
    nrd_str_printf(&r->text, ",\"model_version\":%lld", (long long)version);
    if (request_id && request_id[0]) {
        nrd_str_puts(&r->text, ",\"request_id\":");
        nrd_json_put_cstr(&r->text, request_id);
    }
    if (parent) {
        nrd_str_printf(&r->text, ",\"parent_id\":%llu", (unsigned long long)parent);
    }
    nrd_str_putc(&r->text, '}');
}

static void put_stamp(nrd_trace_record *r, uint64_t id, const char *name, uint64_t ns)
{
    separate(r);
    nrd_str_printf(&r->text, "{\"id\":%llu,\"timestamps\":[{\"name\":\"%s\",\"ns\":%llu}]}",
                   (unsigned long long)id, name, (unsigned long long)ns);
}

static void on_activity(TRITONSERVER_InferenceTrace *trace,
                        TRITONSERVER_InferenceTraceActivity activity, uint64_t ns, void *userp)
{
    nrd_trace_record *r = userp;
    uint64_t id = 0;
    drop(TRITONSERVER_InferenceTraceId(trace, &id));
    pthread_mutex_lock(&r->mu);
    introduce(r, trace, id);
    if (r->otel) {
        nrd_otel_spans_activity(&r->spans, trace, activity, ns);
    } else if (r->stamps) {
        put_stamp(r, id, TRITONSERVER_InferenceTraceActivityString(activity), ns);
    }
    pthread_mutex_unlock(&r->mu);
}

static void on_tensor(TRITONSERVER_InferenceTrace *trace,
                      TRITONSERVER_InferenceTraceActivity activity, const char *name,
                      TRITONSERVER_DataType type, const void *base, size_t size,
                      const int64_t *shape, uint64_t n_dims, TRITONSERVER_MemoryType memory_type,
                      int64_t memory_id, void *userp)
{
    nrd_trace_record *r = userp;
    uint64_t id = 0;
    size_t count = 0;
    nrd_str data = {0};
    (void)memory_id;
    if (memory_type == TRITONSERVER_MEMORY_GPU || r->otel) {
        return; /* spans hold no tensors; device memory is not copied for a trace */
    }
    drop(TRITONSERVER_InferenceTraceId(trace, &id));
    if (nrd_tensor_count(shape, n_dims, &count)) {
        nrd_error_free(nrd_tensor_json_write(&data, name, type, base, size, count, true));
    }
    if (data.no_memory) {
        nrd_str_clear(&data); /* as a tensor that cannot be written */
    }
    pthread_mutex_lock(&r->mu);
    introduce(r, trace, id);
    separate(r);
    nrd_str_printf(&r->text,
                   "{\"id\":%llu,\"activity\":\"%s\",\"tensor\":{\"name\":", (unsigned long long)id,
                   TRITONSERVER_InferenceTraceActivityString(activity));
    nrd_json_put_cstr(&r->text, name);
    nrd_str_puts(&r->text, ",\"data\":");
    const bool is_list = data.len >= 2 && data.data[0] == '['; /* written without its brackets */
    nrd_json_put_string(&r->text, nrd_str_cstr(&data) + is_list, data.len - (is_list ? 2 : 0));
    nrd_str_puts(&r->text, ",\"shape\":\"");
    for (uint64_t i = 0; i < n_dims; i++) {
        nrd_str_printf(&r->text, i ? ",%lld" : "%lld", (long long)shape[i]);
    }
    nrd_str_printf(&r->text, "\",\"dtype\":\"%s\"}}", TRITONSERVER_DataTypeString(type));
    pthread_mutex_unlock(&r->mu);
    nrd_str_fini(&data);
}

/* Called for the request's own trace and for those of an ensemble's steps. */
static void on_release(TRITONSERVER_InferenceTrace *trace, void *userp)
{
    nrd_trace_record *r = userp;
    uint64_t id = 0;
    drop(TRITONSERVER_InferenceTraceId(trace, &id));
    const bool is_root = trace == r->trace;
    drop(TRITONSERVER_InferenceTraceDelete(trace));
    pthread_mutex_lock(&r->mu);
    const bool was_done = r->root_released && r->n_alive == 0;
    for (int i = 0; i < r->n_alive; i++) {
        if (r->alive[i] == id) {
            r->alive[i] = r->alive[--r->n_alive];
            break;
        }
    }
    r->root_released = r->root_released || is_root;
    const bool done = r->root_released && r->n_alive == 0;
    pthread_mutex_unlock(&r->mu);
    if (done && !was_done) {
        nrd_trace_unref(r);
    }
}

/* forced: the client traces this request already; rate and count do not matter. */
static bool take_sample(nrd_tracer *t, const char *model, bool forced, settings *out)
{
    bool take = false;
    pthread_mutex_lock(&t->mu);
    model_settings *m = find(t, model);
    *out = effective(t, m);
    int64_t *count = m && m->own_count ? &m->s.count : &t->global.count;
    uint64_t *seen = m && (m->own_rate || m->own_level) ? &m->seen : &t->seen;
    if (out->level != 0 && forced) {
        take = true;
    } else if (out->level != 0 && *count != 0 && ++*seen % (uint64_t)out->rate == 0) {
        take = true;
        *count -= *count > 0;
    }
    pthread_mutex_unlock(&t->mu);
    return take;
}

nrd_trace_record *nrd_tracer_sample(nrd_tracer *t, const char *model, const char *traceparent,
                                    size_t n)
{
    settings s;
    if (!atomic_load_explicit(&t->active, memory_order_relaxed)) {
        return NULL;
    }
    const bool forced = t->otel_mode && traceparent && nrd_otel_is_traceparent(traceparent, n);
    if (!take_sample(t, model, forced, &s)) {
        return NULL;
    }
    nrd_trace_record *r = calloc(1, sizeof *r);
    if (!r) { /* the request is more than its trace */
        return NULL;
    }
    r->tracer = t;
    r->frequency = s.log_frequency;
    r->stamps = (s.level & TRITONSERVER_TRACE_LEVEL_TIMESTAMPS) != 0;
    pthread_mutex_init(&r->mu, NULL);
    atomic_init(&r->refs, 2); /* the handler and the core */
    /* Time stamps are always asked for: the first one tells that a step's trace exists. */
    TRITONSERVER_Error *e = TRITONSERVER_InferenceTraceTensorNew(
        &r->trace,
        (TRITONSERVER_InferenceTraceLevel)(s.level | TRITONSERVER_TRACE_LEVEL_TIMESTAMPS), 0,
        on_activity, on_tensor, on_release, r);
    if (e) {
        NRD_LOG_ERROR("cannot trace a request: %s", TRITONSERVER_ErrorMessage(e));
        drop(e);
        pthread_mutex_destroy(&r->mu);
        free(r);
        return NULL;
    }
    drop(TRITONSERVER_InferenceTraceId(r->trace, &r->id));
    if (t->otel_mode) {
        r->otel = true;
        if (!nrd_otel_spans_init(&r->spans, traceparent, n, nrd_now_ns())) {
            nrd_trace_not_taken(r);
            return NULL;
        }
    }
    return r;
}

TRITONSERVER_InferenceTrace *nrd_trace_of(const nrd_trace_record *r)
{
    return r ? r->trace : NULL;
}

void nrd_trace_not_taken(nrd_trace_record *r)
{
    if (r) {
        drop(TRITONSERVER_InferenceTraceDelete(r->trace));
        nrd_trace_unref(r);
    }
}

void nrd_trace_stamp(nrd_trace_record *r, const char *name, uint64_t ns)
{
    if (r && r->stamps) {
        pthread_mutex_lock(&r->mu);
        if (r->otel) {
            nrd_otel_spans_stamp(&r->spans, name, ns);
        } else {
            put_stamp(r, r->id, name, ns);
        }
        pthread_mutex_unlock(&r->mu);
    }
}
