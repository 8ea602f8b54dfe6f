/* SPDX-License-Identifier: Apache-2.0
 * frontends/common/otel_spans.h - the events of one traced request as OpenTelemetry spans.
 *
 * Purpose   Collects what the front end and the core report, in order, and writes it as spans: one
 *           "InferRequest" for the whole, below it one for each model that ran (its name) with a
 *           "compute" span inside, the reports being their events.
 * Owner     The trace record, which has the lock.
 * Units     Time stamps in nanoseconds of the steady clock; written as Unix time.
 * Errors    A malformed traceparent is ignored: the trace gets an identity of its own.
 * Lifetime  init, add..., write once, fini.
 * Sources   W3C Trace Context; OTLP's JSON encoding; names as Triton's tracer gives them.
 */
#ifndef NRD_FRONTENDS_COMMON_OTEL_SPANS_H
#define NRD_FRONTENDS_COMMON_OTEL_SPANS_H

#include "base/str.h"
#include "triton/core/tritonserver.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct nrd_otel_span nrd_otel_span;

typedef struct nrd_otel_spans {
    char trace_id[33], parent_id[17]; /* lower-case hex; parent_id "" without */
    int64_t clock_offset_ns;          /* Unix time minus steady time */
    nrd_otel_span *items;             /* items[0] is the whole request */
    size_t n;
} nrd_otel_spans;

/* true: a valid W3C traceparent. */
bool nrd_otel_is_traceparent(const char *text, size_t n);

bool nrd_otel_spans_init(nrd_otel_spans *s, const char *traceparent, size_t n, uint64_t now_ns);
void nrd_otel_spans_fini(nrd_otel_spans *s);
/* An event of the front end, on the span of the whole request. */
void nrd_otel_spans_stamp(nrd_otel_spans *s, const char *name, uint64_t ns);
/* An event of the core; at the start of a request the trace is told its context. */
void nrd_otel_spans_activity(nrd_otel_spans *s, TRITONSERVER_InferenceTrace *trace,
                             TRITONSERVER_InferenceTraceActivity activity, uint64_t ns);
/* Appends all spans, separated by commas; returns how many. Open ones end now. */
size_t nrd_otel_spans_write(nrd_otel_spans *s, uint64_t now_ns, nrd_str *out);

#endif
