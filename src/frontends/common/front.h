/* SPDX-License-Identifier: Apache-2.0
 * frontends/common/front.h - what all protocols of one server have in common.
 *
 * Purpose   One core, one set of API keys, one table of shared-memory regions, one limit of open
 *           requests, one way of giving memory to outputs, for requests of every protocol.
 * Owner     Made and freed by main.c; read-only in between, its parts have locks of their own.
 * Lifetime  new after the core server exists; freed when every service is, before the core.
 */
#ifndef NRD_FRONTENDS_COMMON_FRONT_H
#define NRD_FRONTENDS_COMMON_FRONT_H

#include "base/error.h"
#include "frontends/common/keys.h"
#include "frontends/common/limit.h"
#include "frontends/common/models.h"
#include "frontends/common/puller.h"
#include "frontends/common/quota.h"
#include "frontends/common/shm.h"
#include "frontends/common/switcher.h"
#include "frontends/common/tracer.h"
#include "frontends/common/worker.h"
#include "frontends/options.h"
#include "tls/tls.h"
#include "triton/core/tritonserver.h"

typedef struct nrd_front {
    TRITONSERVER_Server *core;  /* borrows */
    const nrd_options *options; /* borrows */
    nrd_tracer *tracer;         /* borrows */
    nrd_tls *tls;               /* owns; of HTTP; NULL: not encrypted */
    nrd_keys *keys;             /* owns */
    nrd_quotas *quotas;         /* owns; NULL: keys have no limits */
    nrd_shm *shm;               /* owns */
    nrd_models *models;         /* owns */
    nrd_workers *workers;       /* owns */
    nrd_switcher *switcher;     /* owns; NULL: models are loaded as the core's options say */
    nrd_puller *puller;         /* owns; NULL: clients may not pull models */
    TRITONSERVER_ResponseAllocator *allocator; /* owns */
    nrd_limit limit;
} nrd_front;

/* Borrows all three until free. */
nrd_error *nrd_front_new(nrd_front **out, TRITONSERVER_Server *core, const nrd_options *options,
                         nrd_tracer *tracer) NRD_MUST_USE;
/* Ends the workers' jobs; before any service whose requests may have one is freed. NULL is fine. */
void nrd_front_stop(nrd_front *f);
/* No request may be in flight in the core. NULL is fine. */
void nrd_front_free(nrd_front *f);

/* Reads the version in a request; -1 for NULL and "". `least`: the lowest allowed number; `note`:
 * the words that this protocol has in the middle of the error message. */
nrd_error *nrd_parse_version(const char *text, long long least, const char *note,
                             int64_t *out) NRD_MUST_USE;

#endif
