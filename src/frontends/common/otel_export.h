/* SPDX-License-Identifier: Apache-2.0
 * frontends/common/otel_export.h - sends finished spans to an OpenTelemetry collector, OTLP/HTTP with
 * JSON.
 *
 * Purpose   A queue and a thread: spans are collected and posted in batches, so that no request
 *           waits for the collector.
 * Owner     nrd_otel_add may be called by any thread and never blocks on the network.
 * Units     Delays in milliseconds.
 * Errors    INVALID_ARG: a URL that is not http://host[:port]/path or https://…; UNSUPPORTED: TLS that is not
 *           there. What cannot be delivered, also for its certificate, is dropped, with a warning in the log; so are spans over max_queue.
 * Lifetime  free sends what is left, within a few seconds.
 * Sources   OTLP 1.x specification (OTLP/HTTP, JSON encoding); the batch span processor's settings.
 */
#ifndef NRD_FRONTENDS_COMMON_OTEL_EXPORT_H
#define NRD_FRONTENDS_COMMON_OTEL_EXPORT_H

#include "base/error.h"
#include "base/str.h"

#include <stddef.h>
#include <stdint.h>

typedef struct nrd_otel nrd_otel;

/* attributes: the members of the resource's attribute list, as JSON; copied. */
nrd_error *nrd_otel_new(nrd_otel **out, const char *url, const char *attributes, int64_t max_queue,
                        int64_t delay_ms, int64_t max_batch) NRD_MUST_USE;
void nrd_otel_free(nrd_otel *x); /* NULL is fine */
/* spans: n span objects as JSON, separated by commas; copied. */
void nrd_otel_add(nrd_otel *x, const nrd_str *spans, size_t n);

#endif
