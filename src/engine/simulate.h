/* SPDX-License-Identifier: Apache-2.0
 * engine/simulate.h - the engine's scheduler in a time that is only counted.
 *
 * Purpose   Tells what requests would wait for: the real scheduler and the real bookkeeping of the KV cache plan the
 *           steps, as the engine's loop has them do it; how long a step takes the caller says. Nothing is computed: a
 *           token is a number without meaning, and a request ends when it has as many as were asked for.
 * Owner     One thread.
 * Units     Seconds since the first request may come; lengths in tokens.
 * Limits    No beams, drafts, guides or shared prefixes: each token costs a step. Of the server only the engine.
 * Errors    INVALID_ARG: a request that does not fit the limits, with its number; NO_MEMORY.
 */
#ifndef NRD_ENGINE_SIMULATE_H
#define NRD_ENGINE_SIMULATE_H

#include "engine/scheduler.h"

#include <stddef.h>

/* What decides how long a step takes. A pair is a token and one of the tokens that it attends to. */
typedef struct nrd_sim_step {
    int32_t n_generation;     /* sequences of one token each */
    int32_t n_context_tokens; /* of prompts */
    double generation_pairs, context_pairs;
} nrd_sim_step;

typedef struct nrd_sim_request {
    double at_s;
    int32_t n_in, n_out;
    double first_s, end_s; /* written: when its first and its last token were there */
} nrd_sim_request;

typedef struct nrd_sim_config {
    const nrd_sched_limits *limits; /* n_micro: as many as stages */
    int32_t n_blocks, block_tokens; /* of the KV cache */
    int32_t n_stages;               /* of a pipeline; each takes the same share of a step's time */
    double (*step_s)(void *user, const nrd_sim_step *s); /* of a step through all stages */
    void *user;
} nrd_sim_config;

typedef struct nrd_sim_result {
    uint64_t n_steps, n_pauses;
    double end_s;  /* of the last request */
    double busy_s; /* that steps took; stages that are busy at a time count as one each */
    int32_t most_running;
} nrd_sim_result;

/* requests: by at_s. */
nrd_error *nrd_simulate(const nrd_sim_config *cfg, nrd_sim_request *requests, size_t n, nrd_sim_result *out) NRD_MUST_USE;

#endif
