/* SPDX-License-Identifier: Apache-2.0
 * core/statistics_internal.h - the figures themselves. */
#ifndef NRD_CORE_STATISTICS_INTERNAL_H
#define NRD_CORE_STATISTICS_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

typedef struct nrd_duration {
    uint64_t count, ns;
} nrd_duration;

typedef struct nrd_batch_stat {
    uint64_t batch_size;
    nrd_duration input, infer, output;
} nrd_batch_stat;

typedef struct nrd_response_stat {
    nrd_duration infer, output, success, fail, empty, cancel;
} nrd_response_stat;

struct nrd_stats {
    pthread_mutex_t mu; /* guards everything below */
    uint64_t last_inference_ms, inference_count, execution_count;
    nrd_duration success, fail, queue, input, infer, output, cache_hit, cache_miss;
    nrd_batch_stat *batches; /* rising batch_size */
    size_t n_batches;
    nrd_response_stat *responses; /* by index of the response */
    size_t n_responses;
};

/* Sums of a request's parts, gathered by an ensemble from its steps. */
struct nrd_step_sums {
    _Atomic uint64_t queue_ns, input_ns, infer_ns, output_ns;
};

#endif
