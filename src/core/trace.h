/* SPDX-License-Identifier: Apache-2.0
 * core/trace.h - traces: time stamps and tensors of one request on its way.
 *
 * Owner     Its creator until ServerInferAsync, then shared by the request and its response
 *           factory; the release callback gives it back.
 */
#ifndef NRD_CORE_TRACE_H
#define NRD_CORE_TRACE_H

#include "core/objects.h"
#include "triton/core/tritonserver.h"

#include <stdint.h>

nrd_trace *nrd_trace_share(nrd_trace *t); /* one more user; NULL is fine */
void nrd_trace_unshare(nrd_trace *t);     /* the last user calls the release callback */
/* Gives a share back without the callback: the trace stays with its creator. */
void nrd_trace_forget(nrd_trace *t);
void nrd_trace_begin(nrd_trace *t, const nrd_request *r); /* fills in names */
void nrd_trace_report(nrd_trace *t, TRITONSERVER_InferenceTraceActivity a, uint64_t ns);
/* The tensors of a request or a response, where the trace asks for them. */
void nrd_trace_inputs(nrd_trace *t, const nrd_request *r, TRITONSERVER_InferenceTraceActivity a);
void nrd_trace_outputs(nrd_trace *t, const nrd_response *r);
nrd_trace *nrd_trace_child(nrd_trace *t);

#endif
