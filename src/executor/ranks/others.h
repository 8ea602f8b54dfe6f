/* SPDX-License-Identifier: Apache-2.0
 * executor/ranks/others.h - the launcher's other hosts, as rank 0 knows them.
 *
 * Owner     The process; any thread.
 * Lifetime  A host comes by itself, and again when the connection was lost; its number stays.
 */
#ifndef NRD_EXECUTOR_RANKS_OTHERS_H
#define NRD_EXECUTOR_RANKS_OTHERS_H

#include "executor/ranks/wire.h"

/* Once, in rank 0 of a job over several hosts. Takes the listener. */
void nrd_others_begin(int listener, const nrd_card *card, int32_t size);
int nrd_others_listener(void); /* -1: all ranks are on this host */
/* Lets in who waits at the listener. UNSUPPORTED: a host with another build, which was refused. */
nrd_error *nrd_others_take(void) NRD_MUST_USE;

/* The number (from 1) of the host that this rank of the launcher's is on; 0: it has not come, or its connection is lost. */
int32_t nrd_others_host_of(int32_t launched);
/* Of a host that has come. */
const char *nrd_others_name(int32_t host);
int32_t nrd_others_leader(int32_t host); /* the launcher's rank that speaks for it */

nrd_error *nrd_others_order(int32_t host, const nrd_wire_order *order) NRD_MUST_USE; /* UNAVAILABLE: it is gone */
void nrd_others_end(void); /* tells all that the job is over */

#endif
