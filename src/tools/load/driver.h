/* SPDX-License-Identifier: Apache-2.0
 * tools/load/driver.h - sends a load and measures what comes back.
 *
 * Purpose   Closed loop: so many requests at a time, the next when one has ended. Open loop: requests
 *           come at their times, whatever the server does; what waits for a free place because of a
 *           limit counts from the time at which it should have been sent, so that a slow server cannot
 *           hide behind the load that it holds back.
 * Owner     One thread.
 * Units     Milliseconds in samples, seconds elsewhere.
 * Lifetime  A result is the caller's: nrd_load_result_fini.
 */
#ifndef NRD_TOOLS_LOAD_DRIVER_H
#define NRD_TOOLS_LOAD_DRIVER_H

#include "tools/load/api.h"
#include "tools/load/arrivals.h"
#include "tools/load/client.h"
#include "tools/load/samples.h"

typedef struct nrd_load {
    const nrd_api *api;
    const nrd_client_ops *carrier; /* HTTP or gRPC */
    nrd_client_config server;      /* its callbacks are the driver's */
    const nrd_prompt *prompts;   /* [n_prompts], asked in this order, again from the first */
    const nrd_str *bodies;       /* [n_prompts] */
    size_t n_prompts, first_prompt; /* which of them is the first */
    const nrd_tokenizer *tokenizer; /* counts what the server does not count; or NULL */
    size_t n_requests;              /* 0: until duration_s */
    double duration_s;              /* 0: until n_requests; no request is sent after it */
    int32_t concurrency;            /* closed loop: so many; open loop: at most, 0: no limit */
    nrd_arrivals *arrivals;         /* NULL: closed loop */
    uint64_t seed;
    bool shows_progress; /* a line on stderr each second */
} nrd_load;

typedef struct nrd_load_row {
    double due_s;           /* since the start */
    float delay_ms;         /* sent so much later than due */
    float first_ms, end_ms; /* since due; first 0: no token */
    float per_token_ms;     /* mean time of a token after the first; 0: fewer than two */
    int32_t n_in, n_out;
    bool is_fine;
} nrd_load_row;

typedef struct nrd_load_result {
    nrd_load_row *rows; /* [n], in the order of their ends */
    size_t n, cap, n_fine, n_failed;
    size_t n_refused;    /* of those that failed: the server answered that it does not take them */
    double seconds;      /* from the first request to the end of the last */
    int64_t n_in, n_out; /* of those that are fine */
    int32_t most_at_once;
    size_t n_connections;
    nrd_samples first, between, per_token, end, delay;
    nrd_str error;    /* of the first that failed */
    bool was_stopped; /* by Ctrl-C */
} nrd_load_result;

nrd_error *nrd_load_run(const nrd_load *l, nrd_load_result *out) NRD_MUST_USE;
void nrd_load_result_fini(nrd_load_result *r);

#endif
