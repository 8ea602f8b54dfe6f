/* SPDX-License-Identifier: Apache-2.0
 * core/statistics.h - the figures of one model: requests, batches, responses.
 *
 * Purpose   What a client gets as model statistics, and the metric series that are fed with it.
 * Owner     The model. Any thread.
 * Units     Nanoseconds of the steady clock.
 */
#ifndef NRD_CORE_STATISTICS_H
#define NRD_CORE_STATISTICS_H

#include "base/error.h"
#include "base/str.h"
#include "core/model_metrics.h"
#include "core/objects.h"

#include <stdbool.h>
#include <stdint.h>

void nrd_stats_init(nrd_stats *s);
void nrd_stats_fini(nrd_stats *s);
void nrd_stats_success(nrd_model *m, uint64_t batch_size, uint64_t request_ns, uint64_t queue_ns,
                       uint64_t input_ns, uint64_t infer_ns, uint64_t output_ns);
void nrd_stats_failure(nrd_model *m, uint64_t request_ns, nrd_fail_reason reason);
void nrd_stats_cache_hit(nrd_request *r, uint64_t lookup_ns);
void nrd_stats_cache_miss(nrd_model *m, uint64_t ns); /* looking up and inserting */
void nrd_stats_batch(nrd_model *m, uint64_t batch_size, uint64_t input_ns, uint64_t infer_ns,
                     uint64_t output_ns);
typedef enum { NRD_RESP_OK, NRD_RESP_FAIL, NRD_RESP_EMPTY, NRD_RESP_CANCEL } nrd_resp_outcome;
nrd_error *nrd_stats_response(nrd_model *m, uint64_t index, nrd_resp_outcome outcome,
                              uint64_t start_ns, uint64_t output_start_ns,
                              uint64_t end_ns) NRD_MUST_USE;
void nrd_stats_json(nrd_model *m, nrd_str *out);
/* One request as a backend of `m` reported it: model figures, and, unless it has been released, its
 * trace and the sums of an enclosing ensemble. */
void nrd_stats_request(nrd_model *m, nrd_request *r, bool success, uint64_t exec_start_ns,
                       uint64_t compute_start_ns, uint64_t compute_end_ns, uint64_t exec_end_ns);

#endif
