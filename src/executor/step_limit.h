/* SPDX-License-Identifier: Apache-2.0
 * executor/step_limit.h - how long a step may take before its device counts as hanging.
 *
 * Purpose   A thread that waits for a GPU looks the same whether the GPU works or hangs, so only time tells. Steps differ a
 *           thousandfold, but what one of known work took bounds the others: less work takes no longer, and k times
 *           the work at most k times as long (a step is a part that is always the same, and a part for each product). Of all
 *           bounds the lowest counts, times a factor for what the steps before did not show: kernels that are loaded at their
 *           first use, others on the same GPU, a clock that was lowered.
 * Owner     One thread. Zero-initialised; no memory of its own.
 * Units     Work: pairs of a new token and one that it sees; a token's other products count as `token_work` pairs.
 */
#ifndef NRD_EXECUTOR_STEP_LIMIT_H
#define NRD_EXECUTOR_STEP_LIMIT_H

#include "engine/scheduler.h"

#include <stdint.h>

enum {
    NRD_STEP_CLASSES = 64,        /* of work, each twice that of the one before */
    NRD_STEP_LIMIT_FACTOR = 20,
    NRD_STEP_LIMIT_FLOOR_MS = 10000,
};

typedef struct nrd_step_limit {
    struct {
        uint32_t n;
        int64_t most_ns;   /* that steps of this class took; one long one is forgotten */
        double least_work; /* of a step of this class */
    } classes[NRD_STEP_CLASSES];
} nrd_step_limit;

/* hidden: the model's. */
double nrd_step_work(const nrd_plan *p, int32_t hidden);
/* A step of this work took so long. The first ones of a class are left out. */
void nrd_step_limit_hear(nrd_step_limit *l, double work, int64_t ns);
/* Milliseconds, from NRD_STEP_LIMIT_FLOOR_MS to most_ms; most_ms until enough steps were heard of. */
int64_t nrd_step_limit_ms(const nrd_step_limit *l, double work, int64_t most_ms);

#endif
