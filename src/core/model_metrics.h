/* SPDX-License-Identifier: Apache-2.0
 * core/model_metrics.h - the metric series of one model. NULL stands for metrics that are off.
 *
 * Owner     The model. Any thread.
 */
#ifndef NRD_CORE_MODEL_METRICS_H
#define NRD_CORE_MODEL_METRICS_H

#include "base/error.h"
#include "core/objects.h"

#include <stdint.h>

typedef enum {
    NRD_FAIL_REJECTED,
    NRD_FAIL_CANCELED,
    NRD_FAIL_BACKEND,
    NRD_FAIL_OTHER,
    NRD_FAIL_REASONS,
} nrd_fail_reason;

nrd_error *nrd_model_metrics_new(nrd_model_metrics **out, nrd_context *ctx,
                                 nrd_model *m) NRD_MUST_USE;
void nrd_model_metrics_free(nrd_model_metrics *mm);
void nrd_model_metrics_pending(nrd_model_metrics *mm, int delta);
void nrd_model_metrics_load_time(nrd_model_metrics *mm, double seconds);
void nrd_model_metrics_first_response(nrd_model_metrics *mm, uint64_t start_ns);
/* ns: the whole request, in the queue, input, inference, output. */
void nrd_model_metrics_success(nrd_model_metrics *mm, uint64_t batch_size, const uint64_t ns[5]);
void nrd_model_metrics_failure(nrd_model_metrics *mm, nrd_fail_reason reason);
void nrd_model_metrics_batch(nrd_model_metrics *mm);
void nrd_model_metrics_cache_hit(nrd_model_metrics *mm, uint64_t request_ns, uint64_t queue_ns,
                                 uint64_t lookup_ns);
void nrd_model_metrics_cache_miss(nrd_model_metrics *mm, uint64_t ns);

#endif
