/* SPDX-License-Identifier: Apache-2.0
 * frontends/common/tracer.h - which requests are traced, and where their time stamps go: a file or a
 * collector.
 *
 * Purpose   Settings for all models and for single ones, changed at start and through
 *           /v2/trace/setting; sampling; writing finished traces as one JSON array (mode
 *           triton), or handing them to otel_export.h (mode opentelemetry).
 * Owner     Any thread; the tracer and each record have a lock of their own.
 * Units     Time stamps in nanoseconds of the steady clock.
 * Errors    INVALID_ARG for settings with Triton's words.
 * Lifetime  The tracer outlives every record. A record is shared: the request's handler holds it
 *           from sample until nrd_trace_unref, the core until it has released all its traces. Then
 *           it is written. nrd_tracer_free completes the file.
 * Sources   Triton's trace extension and the file format of its trace mode "triton".
 */
#ifndef NRD_FRONTENDS_COMMON_TRACER_H
#define NRD_FRONTENDS_COMMON_TRACER_H

#include "base/error.h"
#include "base/json.h"
#include "base/str.h"
#include "frontends/options.h"
#include "triton/core/tritonserver.h"

typedef struct nrd_tracer nrd_tracer;
typedef struct nrd_trace_record nrd_trace_record;

nrd_error *nrd_tracer_new(nrd_tracer **out, const nrd_options *o) NRD_MUST_USE;
void nrd_tracer_free(nrd_tracer *t); /* NULL is fine */

/* model NULL: the settings of all models. A member null goes back to the outer setting. */
nrd_error *nrd_tracer_update(nrd_tracer *t, const char *model,
                             const nrd_json *settings) NRD_MUST_USE;
void nrd_tracer_put_settings(nrd_tracer *t, const char *model, nrd_str *out);

/* NULL: this request is not traced. traceparent: that header of the request, n bytes, or NULL; a
 * valid one makes sure that the request is traced in mode opentelemetry, as part of that trace. */
nrd_trace_record *nrd_tracer_sample(nrd_tracer *t, const char *model, const char *traceparent,
                                    size_t n);
/* For ServerInferAsync, which takes it. When that fails, call nrd_trace_not_taken. */
TRITONSERVER_InferenceTrace *nrd_trace_of(const nrd_trace_record *r);
void nrd_trace_not_taken(nrd_trace_record *r);
/* Notes a moment of the front end; NULL is fine. */
void nrd_trace_stamp(nrd_trace_record *r, const char *name, uint64_t ns);
void nrd_trace_unref(nrd_trace_record *r);

#endif
