/* SPDX-License-Identifier: Apache-2.0
 * executor/ranks/host.h - the first process of a host that rank 0 is not on.
 *
 * Purpose   Speaks for its host's ranks: connects with rank 0, and for each engine that it is told of makes the memory of
 *           this host, starts its ranks and watches over them.
 * Owner     The process, which does nothing else; an engine has threads of its own.
 */
#ifndef NRD_EXECUTOR_RANKS_HOST_H
#define NRD_EXECUTOR_RANKS_HOST_H

#include "executor/ranks/meet.h"

/* Until rank 0 says that the job is over, or is gone: NULL, or the reason. ranks: the launcher's of this host, this process's first. */
nrd_error *nrd_host_serve(const nrd_place *p, const nrd_card *card, const int32_t *ranks, int32_t n) NRD_MUST_USE;

#endif
