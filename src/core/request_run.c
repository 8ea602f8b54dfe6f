/* SPDX-License-Identifier: Apache-2.0
 * A request enters: checked, answered from the cache, or queued. */
#include "core/request_run.h"

#include "core/cache.h"
#include "core/cancel.h"
#include "core/context.h"
#include "core/model_internal.h"
#include "core/model_metrics.h"
#include "core/request.h"
#include "core/request_check.h"
#include "core/request_internal.h"
#include "core/response.h"
#include "core/response_internal.h"
#include "core/sched/scheduler.h"
#include "core/statistics.h"
#include "core/trace.h"

#include "base/clock.h"
#include "base/error.h"

#include <stdatomic.h>

nrd_error *nrd_request_prepare(nrd_request *r)
{
    if (atomic_load(&r->state) != NRD_REQ_NEW) {
        return nrd_request_errorf(r, NRD_ERR_INVALID_ARG, "the request is already in flight");
    }
    if (!r->response_fn || !r->release_fn) {
        return nrd_request_errorf(r, NRD_ERR_INVALID_ARG,
                                  "release and response callbacks must be set before inference");
    }
    if (!r->model) { /* sent a second time: the model may have been replaced since */
        NRD_TRY(
            r->ctx->catalog.get(&r->model, r->ctx->catalog.repo, r->model_name, r->model_version));
    }
    NRD_TRY(nrd_request_check(r));
    nrd_cancel_unref(r->cancel);
    r->cancel = nrd_cancel_new(r->parent);
    if (r->cancel && r->account) {
        nrd_cancel_set_account(r->cancel, r->account);
    }
    nrd_factory_unref(r->factory);
    r->factory = r->cancel ? nrd_factory_new(r) : NULL;
    if (!r->factory) {
        return nrd_error_no_memory();
    }
    atomic_store(&r->state, NRD_REQ_PREPARED);
    return NULL;
}

nrd_error *nrd_request_run(nrd_request *r)
{
    nrd_error *err;

    r->start_ns = nrd_now_ns();
    NRD_TRY(nrd_request_prepare(r));
    nrd_trace_begin(r->trace, r);
    if (r->model->cached && nrd_cache_answer(r)) {
        return NULL;
    }
    /* Once queued, the request may be answered and gone before enqueue returns. */
    err = r->model->scheduler->ops->enqueue(r->model->scheduler, r);
    if (err) {
        r->owner = NULL;
        if (nrd_error_triton_code(err) == NRD_ERR_UNAVAILABLE) { /* not the request's fault */
            nrd_stats_failure(r->model, nrd_now_ns() - r->start_ns, NRD_FAIL_REJECTED);
        }
        nrd_trace_forget(r->factory->trace);
        r->factory->trace = NULL;
        nrd_factory_unref(r->factory);
        r->factory = NULL;
        atomic_store(&r->state, NRD_REQ_NEW);
    }
    return err;
}
