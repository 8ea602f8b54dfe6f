/* SPDX-License-Identifier: Apache-2.0
 * core/context.h - what the layers below the server use of it.
 *
 * Purpose   Models, requests and the repository hold this instead of the server, which stands above
 *           them.
 * Owner     The server. Any thread.
 * Lifetime  Outlives every model.
 */
#ifndef NRD_CORE_CONTEXT_H
#define NRD_CORE_CONTEXT_H

#include "base/queue.h"
#include "core/catalog.h"
#include "core/objects.h"
#include "core/options.h"
#include "core/wakeup.h"

#include <stdatomic.h>
#include <stdint.h>

struct nrd_context {
    nrd_server *server;     /* for the interfaces alone */
    nrd_server_options opt; /* fixed */
    nrd_catalog catalog;
    nrd_backends *backends;
    nrd_queue *to_finalize;  /* models, to the finalizer thread */
    nrd_wakeup housekeeping; /* signal: have the queues swept now, something was cancelled */
    nrd_limiter *limiter;    /* NULL: off */
    nrd_cache *cache;        /* NULL: off */
    _Atomic int64_t n_live_models;
    _Atomic int64_t n_in_flight; /* requests whose last response or release is missing */
};

#endif
