/* SPDX-License-Identifier: Apache-2.0
 * frontends/running.h - tells the user's other programs (nereid ps) what this server is: base/running.h.
 * Once all services are started; one thread at a time. */
#ifndef NRD_FRONTENDS_RUNNING_H
#define NRD_FRONTENDS_RUNNING_H

#include "frontends/options.h"
#include "triton/core/tritonserver.h"

typedef struct nrd_running_ports {
    int http, grpc, metrics; /* 0: not open */
} nrd_running_ports;

/* Addresses, repositories, and the models that are ready now. */
void nrd_running_announce(TRITONSERVER_Server *server, const nrd_options *o, const nrd_running_ports *ports);

#endif
