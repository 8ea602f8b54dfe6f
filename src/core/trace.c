/* SPDX-License-Identifier: Apache-2.0
 * Traces: time stamps of one request on its way. A trace belongs to its creator until
 * ServerInferAsync, then to the core until every user (request, response factory) let go of it; the
 * release callback gives it back. */
#include "core/trace.h"

#include "core/api.h"
#include "core/model_internal.h"
#include "core/request_internal.h"
#include "core/response_internal.h"

#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct nrd_trace { /* TRITONSERVER_InferenceTrace */
    atomic_int users;
    uint64_t id, parent_id;
    uint32_t level;
    TRITONSERVER_InferenceTraceActivityFn_t activity_fn;
    TRITONSERVER_InferenceTraceTensorActivityFn_t tensor_fn;
    TRITONSERVER_InferenceTraceReleaseFn_t release_fn;
    void *userp;
    char *model_name, *request_id, *context;
    int64_t model_version;
};

static _Atomic uint64_t next_id = 1;

static nrd_trace *of_api(TRITONSERVER_InferenceTrace *t)
{
    return (nrd_trace *)(void *)t;
}

static TRITONSERVER_InferenceTrace *to_api(nrd_trace *t)
{
    return (TRITONSERVER_InferenceTrace *)(void *)t;
}

nrd_trace *nrd_trace_share(nrd_trace *t)
{
    if (t) {
        atomic_fetch_add(&t->users, 1);
    }
    return t;
}

void nrd_trace_unshare(nrd_trace *t)
{
    if (t && atomic_fetch_sub(&t->users, 1) == 1) {
        t->release_fn(to_api(t), t->userp);
    }
}

void nrd_trace_forget(nrd_trace *t)
{
    if (t) {
        atomic_fetch_sub(&t->users, 1);
    }
}

void nrd_trace_begin(nrd_trace *t, const nrd_request *r)
{
    if (t) {
        free(t->model_name);
        free(t->request_id);
        t->model_name = strdup(r->model_name); /* a trace without names, where memory ends */
        t->request_id = strdup(r->id);
        t->model_version = r->model ? r->model->version : r->model_version;
        nrd_trace_report(t, TRITONSERVER_TRACE_REQUEST_START, r->start_ns);
        nrd_trace_inputs(t, r, TRITONSERVER_TRACE_TENSOR_QUEUE_INPUT);
    }
}

void nrd_trace_report(nrd_trace *t, TRITONSERVER_InferenceTraceActivity a, uint64_t ns)
{
    if (t && t->activity_fn && (t->level & TRITONSERVER_TRACE_LEVEL_TIMESTAMPS)) {
        t->activity_fn(to_api(t), a, ns, t->userp);
    }
}

static bool wants_tensors(const nrd_trace *t)
{
    return t && t->tensor_fn && (t->level & TRITONSERVER_TRACE_LEVEL_TENSORS);
}

void nrd_trace_inputs(nrd_trace *t, const nrd_request *r, TRITONSERVER_InferenceTraceActivity a)
{
    for (uint32_t i = 0; wants_tensors(t) && i < r->n_inputs; i++) {
        const nrd_input *in = r->inputs[i];
        const nrd_segment *first = in->n_segments ? &in->segments[0] : NULL;
        char *whole = NULL;
        if (in->n_segments > 1) { /* the callback takes one piece */
            size_t at = 0;
            whole = malloc(in->byte_size + 1);
            if (!whole) {
                NRD_LOG_ERROR("no memory to trace input '%s'", in->name);
                continue;
            }
            for (uint32_t k = 0; k < in->n_segments; k++) {
                const nrd_segment *s = &in->segments[k];
                if (s->attr.memory_type == TRITONSERVER_MEMORY_GPU || !s->base) {
                    continue;
                }
                memcpy(whole + at, s->base, s->attr.byte_size);
                at += s->attr.byte_size;
            }
        }
        t->tensor_fn(to_api(t), a, in->name, in->dtype,
                     whole   ? whole
                     : first ? first->base
                             : NULL,
                     in->byte_size, in->dims, in->n_dims,
                     whole || !first ? TRITONSERVER_MEMORY_CPU : first->attr.memory_type,
                     whole || !first ? 0 : first->attr.memory_type_id, t->userp);
        free(whole);
    }
}

void nrd_trace_outputs(nrd_trace *t, const nrd_response *r)
{
    for (uint32_t i = 0; wants_tensors(t) && i < r->n_outputs; i++) {
        const nrd_output *o = r->outputs[i];
        t->tensor_fn(to_api(t), TRITONSERVER_TRACE_TENSOR_BACKEND_OUTPUT, o->name, o->dtype,
                     o->base, o->attr.byte_size, o->dims, o->n_dims, o->attr.memory_type,
                     o->attr.memory_type_id, t->userp);
    }
}

static nrd_trace *trace_new(uint32_t level, uint64_t parent_id,
                            TRITONSERVER_InferenceTraceActivityFn_t activity_fn,
                            TRITONSERVER_InferenceTraceTensorActivityFn_t tensor_fn,
                            TRITONSERVER_InferenceTraceReleaseFn_t release_fn, void *userp)
{
    nrd_trace *t = calloc(1, sizeof *t);
    if (!t) {
        return NULL;
    }
    t->id = atomic_fetch_add(&next_id, 1);
    t->parent_id = parent_id;
    /* The two oldest levels mean time stamps. */
    t->level = level & (TRITONSERVER_TRACE_LEVEL_MIN | TRITONSERVER_TRACE_LEVEL_MAX)
                   ? level | TRITONSERVER_TRACE_LEVEL_TIMESTAMPS
                   : level;
    t->activity_fn = activity_fn;
    t->tensor_fn = tensor_fn;
    t->release_fn = release_fn;
    t->userp = userp;
    return t;
}

nrd_trace *nrd_trace_child(nrd_trace *t)
{
    if (!t) {
        return NULL;
    }
    nrd_trace *c =
        trace_new(t->level, t->id, t->activity_fn, t->tensor_fn, t->release_fn, t->userp);
    if (c) {
        c->context = t->context ? strdup(t->context) : NULL;
    }
    return c;
}

const char *TRITONSERVER_InferenceTraceLevelString(TRITONSERVER_InferenceTraceLevel level)
{
    switch (level) {
    case TRITONSERVER_TRACE_LEVEL_DISABLED:
        return "DISABLED";
    case TRITONSERVER_TRACE_LEVEL_MIN:
        return "MIN";
    case TRITONSERVER_TRACE_LEVEL_MAX:
        return "MAX";
    case TRITONSERVER_TRACE_LEVEL_TIMESTAMPS:
        return "TIMESTAMPS";
    case TRITONSERVER_TRACE_LEVEL_TENSORS:
        return "TENSORS";
    }
    return "<unknown>";
}

const char *TRITONSERVER_InferenceTraceActivityString(TRITONSERVER_InferenceTraceActivity activity)
{
    static const char *const names[] = {
        "REQUEST_START",        "QUEUE_START",           "COMPUTE_START",  "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START", "COMPUTE_END",           "REQUEST_END",    "TENSOR_QUEUE_INPUT",
        "TENSOR_BACKEND_INPUT", "TENSOR_BACKEND_OUTPUT", "CUSTOM_ACTIVITY"};
    return (unsigned)activity < 11 ? names[activity] : "<unknown>";
}

TRITONSERVER_Error *
TRITONSERVER_InferenceTraceNew(TRITONSERVER_InferenceTrace **trace,
                               TRITONSERVER_InferenceTraceLevel level, uint64_t parent_id,
                               TRITONSERVER_InferenceTraceActivityFn_t activity_fn,
                               TRITONSERVER_InferenceTraceReleaseFn_t release_fn, void *trace_userp)
{
    return TRITONSERVER_InferenceTraceTensorNew(trace, level, parent_id, activity_fn, NULL,
                                                release_fn, trace_userp);
}

TRITONSERVER_Error *TRITONSERVER_InferenceTraceTensorNew(
    TRITONSERVER_InferenceTrace **trace, TRITONSERVER_InferenceTraceLevel level, uint64_t parent_id,
    TRITONSERVER_InferenceTraceActivityFn_t activity_fn,
    TRITONSERVER_InferenceTraceTensorActivityFn_t tensor_activity_fn,
    TRITONSERVER_InferenceTraceReleaseFn_t release_fn, void *trace_userp)
{
    if (!release_fn) {
        return as_api(nrd_errorf(NRD_ERR_INVALID_ARG, "a trace needs a release function"));
    }
    *trace = to_api(trace_new((uint32_t)level, parent_id, activity_fn, tensor_activity_fn,
                              release_fn, trace_userp));
    return *trace ? NULL : as_api(nrd_error_no_memory());
}

TRITONSERVER_Error *TRITONSERVER_InferenceTraceReportActivity(TRITONSERVER_InferenceTrace *trace,
                                                              uint64_t timestamp,
                                                              const char *activity_name)
{
    nrd_trace *t = of_api(trace);
    if (!activity_name) {
        return as_api(nrd_errorf(NRD_ERR_INVALID_ARG, "a trace activity needs a name"));
    }
    nrd_trace_report(t, TRITONSERVER_TRACE_CUSTOM_ACTIVITY, timestamp);
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceTraceDelete(TRITONSERVER_InferenceTrace *trace)
{
    nrd_trace *t = of_api(trace);
    if (t) {
        free(t->model_name);
        free(t->request_id);
        free(t->context);
        free(t);
    }
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceTraceId(TRITONSERVER_InferenceTrace *trace, uint64_t *id)
{
    *id = of_api(trace)->id;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceTraceParentId(TRITONSERVER_InferenceTrace *trace,
                                                        uint64_t *parent_id)
{
    *parent_id = of_api(trace)->parent_id;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceTraceModelName(TRITONSERVER_InferenceTrace *trace,
                                                         const char **model_name)
{
    const char *s = of_api(trace)->model_name;
    *model_name = s ? s : "";
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceTraceModelVersion(TRITONSERVER_InferenceTrace *trace,
                                                            int64_t *model_version)
{
    *model_version = of_api(trace)->model_version;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceTraceRequestId(TRITONSERVER_InferenceTrace *trace,
                                                         const char **request_id)
{
    const char *s = of_api(trace)->request_id;
    *request_id = s ? s : "";
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_InferenceTraceSpawnChildTrace(TRITONSERVER_InferenceTrace *trace,
                                           TRITONSERVER_InferenceTrace **child_trace)
{
    *child_trace = to_api(nrd_trace_child(of_api(trace)));
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceTraceSetContext(TRITONSERVER_InferenceTrace *trace,
                                                          const char *trace_context)
{
    nrd_trace *t = of_api(trace);
    char *copy = strdup(trace_context ? trace_context : "");
    if (!copy) {
        return as_api(nrd_error_no_memory());
    }
    free(t->context);
    t->context = copy;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceTraceContext(TRITONSERVER_InferenceTrace *trace,
                                                       const char **trace_context)
{
    const char *s = of_api(trace)->context;
    *trace_context = s ? s : "";
    return NULL;
}
