/* SPDX-License-Identifier: Apache-2.0
 * core/server_internal.h - what the server is made of. */
#ifndef NRD_CORE_SERVER_INTERNAL_H
#define NRD_CORE_SERVER_INTERNAL_H

#include "core/context.h"
#include "core/gpu_metrics.h"
#include "core/host_metrics.h"
#include "core/objects.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct nrd_server { /* TRITONSERVER_Server */
    nrd_context ctx;
    _Atomic int state;
    _Atomic uint32_t exit_timeout_s;
    nrd_repo *repo;
    pthread_t finalizer, housekeeping;
    bool has_finalizer, has_housekeeping;
    nrd_host_metrics *host_metrics;
    nrd_gpu_metrics *gpu_metrics; /* NULL: off */
};

#endif
