/* SPDX-License-Identifier: Apache-2.0
 * Time stamps of one traced request become spans. Reports of the front end and the core open, mark
 * and end spans as they come; at the end all are written as OTLP JSON. Called by tracer.c under the
 * record's lock. */
#include "frontends/common/otel_spans.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#define MAX_SPANS 512 /* of one request: an ensemble of many steps */

struct nrd_otel_span {
    char id[17], parent[17];
    uint64_t trace; /* the core's number of the trace it belongs to; 0: the whole request */
    uint64_t begin_ns, end_ns;
    bool open;
    nrd_str name, attributes, events; /* JSON: a string, and the members of two lists */
};

/* ---- identities ---- */

static void random_hex(char *out, size_t n_bytes)
{
    static const char digits[] = "0123456789abcdef";
    uint8_t bytes[16] = {0};
    if (getrandom(bytes, n_bytes, 0) != (ssize_t)n_bytes) {
        bytes[0] = 1; /* all zero would be invalid */
    }
    for (size_t i = 0; i < n_bytes; i++) {
        out[2 * i] = digits[bytes[i] >> 4];
        out[2 * i + 1] = digits[bytes[i] & 15];
    }
    out[2 * n_bytes] = '\0';
}

/* n lower-case hex digits, not all of them zero. */
static bool is_hex_id(const char *p, size_t n)
{
    bool any = false;
    for (size_t i = 0; i < n; i++) {
        if (!((p[i] >= '0' && p[i] <= '9') || (p[i] >= 'a' && p[i] <= 'f'))) {
            return false;
        }
        any = any || p[i] != '0';
    }
    return any;
}

/* version(2) - trace(32) - parent(16) - flags(2); later versions may go on behind a dash. */
bool nrd_otel_is_traceparent(const char *t, size_t n)
{
    const char version[2] = {n >= 2 ? t[0] : 'f', n >= 2 ? t[1] : 'f'};
    return n >= 55 && (n == 55 || (t[55] == '-' && memcmp(version, "00", 2) != 0)) &&
           (is_hex_id(version, 2) || memcmp(version, "00", 2) == 0) &&
           memcmp(version, "ff", 2) != 0 && t[2] == '-' && is_hex_id(t + 3, 32) && t[35] == '-' &&
           is_hex_id(t + 36, 16) && t[52] == '-' &&
           (is_hex_id(t + 53, 2) || memcmp(t + 53, "00", 2) == 0);
}

/* ---- building ---- */

static nrd_otel_span *open_span(nrd_otel_spans *s, const char *name, uint64_t trace,
                                const char *parent, uint64_t ns)
{
    if (s->n == MAX_SPANS) {
        return NULL;
    }
    if ((s->n & (s->n - 1)) == 0) { /* a power of two is full */
        nrd_otel_span *items = realloc(s->items, (s->n ? 2 * s->n : 1) * sizeof *items);
        if (!items) { /* as one too many */
            return NULL;
        }
        s->items = items;
    }
    nrd_otel_span *span = &s->items[s->n++];
    memset(span, 0, sizeof *span);
    random_hex(span->id, 8);
    memcpy(span->parent, parent, sizeof span->parent);
    span->trace = trace;
    span->begin_ns = ns;
    span->open = true;
    nrd_json_put_cstr(&span->name, name);
    return span;
}

bool nrd_otel_spans_init(nrd_otel_spans *s, const char *traceparent, size_t n, uint64_t now_ns)
{
    memset(s, 0, sizeof *s);
    s->clock_offset_ns = (int64_t)nrd_wall_ns() - (int64_t)now_ns;
    if (traceparent && nrd_otel_is_traceparent(traceparent, n)) {
        memcpy(s->trace_id, traceparent + 3, 32);
        memcpy(s->parent_id, traceparent + 36, 16);
    } else {
        random_hex(s->trace_id, 16);
    }
    return open_span(s, "InferRequest", 0, s->parent_id, now_ns) != NULL;
}

void nrd_otel_spans_fini(nrd_otel_spans *s)
{
    for (size_t i = 0; i < s->n; i++) {
        nrd_str_fini(&s->items[i].name);
        nrd_str_fini(&s->items[i].attributes);
        nrd_str_fini(&s->items[i].events);
    }
    free(s->items);
    s->items = NULL;
    s->n = 0;
}

/* The span of a model's request, else that of the whole. */
static nrd_otel_span *request_span(const nrd_otel_spans *s, uint64_t trace)
{
    for (size_t i = 1; i < s->n; i++) {
        if (s->items[i].trace == trace) {
            return &s->items[i];
        }
    }
    return &s->items[0];
}

/* Where an event belongs. Backends report their times at the end, so that compute may come behind
 * the end of the request. */
static nrd_otel_span *span_of(const nrd_otel_spans *s, uint64_t trace,
                              TRITONSERVER_InferenceTraceActivity activity)
{
    if (activity != TRITONSERVER_TRACE_REQUEST_END) {
        for (size_t i = s->n; i-- > 1;) {
            if (s->items[i].open && s->items[i].trace == trace) {
                return &s->items[i];
            }
        }
    }
    return request_span(s, trace);
}

static void put_event(const nrd_otel_spans *s, nrd_otel_span *span, const char *name, uint64_t ns)
{
    nrd_str_printf(&span->events,
                   "%s{\"timeUnixNano\":\"%lld\",\"name\":", span->events.len ? "," : "",
                   (long long)ns + (long long)s->clock_offset_ns);
    nrd_json_put_cstr(&span->events, name);
    nrd_str_putc(&span->events, '}');
}

void nrd_otel_spans_stamp(nrd_otel_spans *s, const char *name, uint64_t ns)
{
    if (ns < s->items[0].begin_ns) {
        s->items[0].begin_ns = ns; /* the request was received before it was sampled */
    }
    put_event(s, &s->items[0], name, ns);
}

static void drop(TRITONSERVER_Error *e)
{
    if (e) {
        TRITONSERVER_ErrorDelete(e);
    }
}

/* Attributes of a model's span, and the context that its backend may pass on. */
static void describe(const nrd_otel_spans *s, nrd_otel_span *span,
                     TRITONSERVER_InferenceTrace *trace, uint64_t id, uint64_t parent,
                     const char *model)
{
    const char *request = NULL;
    int64_t version = 0;
    char context[128];
    drop(TRITONSERVER_InferenceTraceModelVersion(trace, &version));
    drop(TRITONSERVER_InferenceTraceRequestId(trace, &request));
    nrd_str *a = &span->attributes;
    nrd_str_puts(a, "{\"key\":\"triton.model_name\",\"value\":{\"stringValue\":");
    nrd_json_put_cstr(a, model);
    nrd_str_printf(a,
                   "}},{\"key\":\"triton.model_version\",\"value\":{\"intValue\":\"%lld\"}},"
                   "{\"key\":\"triton.trace_id\",\"value\":{\"intValue\":\"%llu\"}},"
                   "{\"key\":\"triton.trace_parent_id\",\"value\":{\"intValue\":\"%llu\"}}",
                   (long long)version, (unsigned long long)id, (unsigned long long)parent);
    if (request && request[0]) {
        nrd_str_puts(a, ",{\"key\":\"triton.request_id\",\"value\":{\"stringValue\":");
        nrd_json_put_cstr(a, request);
        nrd_str_puts(a, "}}");
    }
    snprintf(context, sizeof context, "{\"traceparent\":\"00-%s-%s-01\"}", s->trace_id, span->id);
    drop(TRITONSERVER_InferenceTraceSetContext(trace, context));
}

void nrd_otel_spans_activity(nrd_otel_spans *s, TRITONSERVER_InferenceTrace *trace,
                             TRITONSERVER_InferenceTraceActivity activity, uint64_t ns)
{
    uint64_t id = 0, parent = 0;
    const char *model = "";
    nrd_otel_span *span;

    drop(TRITONSERVER_InferenceTraceId(trace, &id));
    drop(TRITONSERVER_InferenceTraceParentId(trace, &parent));
    if (activity == TRITONSERVER_TRACE_REQUEST_START) {
        char above[17];
        drop(TRITONSERVER_InferenceTraceModelName(trace, &model));
        memcpy(above, request_span(s, parent)->id, sizeof above);
        span = open_span(s, model ? model : "", id, above, ns);
        if (span) {
            describe(s, span, trace, id, parent, model ? model : "");
        }
    } else if (activity == TRITONSERVER_TRACE_COMPUTE_START) {
        char above[17];
        memcpy(above, request_span(s, id)->id, sizeof above);
        (void)open_span(s, "compute", id, above, ns);
    }
    span = span_of(s, id, activity);
    put_event(s, span, TRITONSERVER_InferenceTraceActivityString(activity), ns);
    if (span != &s->items[0] && (activity == TRITONSERVER_TRACE_REQUEST_END ||
                                 activity == TRITONSERVER_TRACE_COMPUTE_END)) {
        span->open = false;
        span->end_ns = ns;
    }
}

size_t nrd_otel_spans_write(nrd_otel_spans *s, uint64_t now_ns, nrd_str *out)
{
    for (size_t i = 0; i < s->n; i++) {
        nrd_otel_span *p = &s->items[i];
        const uint64_t end = p->open ? now_ns : p->end_ns;
        nrd_str_printf(out, "%s{\"traceId\":\"%s\",\"spanId\":\"%s\",", i ? "," : "", s->trace_id,
                       p->id);
        if (p->parent[0]) {
            nrd_str_printf(out, "\"parentSpanId\":\"%s\",", p->parent);
        }
        nrd_str_printf(out,
                       "\"kind\":2,\"startTimeUnixNano\":\"%lld\","
                       "\"endTimeUnixNano\":\"%lld\",\"name\":",
                       (long long)p->begin_ns + (long long)s->clock_offset_ns,
                       (long long)end + (long long)s->clock_offset_ns);
        nrd_str_put(out, &p->name);
        nrd_str_puts(out, ",\"attributes\":[");
        nrd_str_put(out, &p->attributes);
        nrd_str_puts(out, "],\"events\":[");
        nrd_str_put(out, &p->events);
        nrd_str_puts(out, "],\"status\":{}}");
    }
    return s->n;
}
