/* SPDX-License-Identifier: Apache-2.0
 * frontends/running.h - tells the user's other programs (nereid ps) what this server is: base/running.h.
 * Once all services are started, until they have ended; one thread at a time. */
#ifndef NRD_FRONTENDS_RUNNING_H
#define NRD_FRONTENDS_RUNNING_H

#include "frontends/options.h"
#include "triton/core/tritonserver.h"

#include <stdbool.h>
#include <time.h>

typedef struct nrd_running_facts {
    int http, grpc, metrics; /* ports; 0: not open */
    time_t started;
    bool drains;
} nrd_running_facts;

/* Addresses, repositories, the models that are ready now, and whether it only answers what is under way. */
void nrd_running_announce(TRITONSERVER_Server *server, const nrd_options *o, const nrd_running_facts *facts);

#endif
