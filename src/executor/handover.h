/* SPDX-License-Identifier: Apache-2.0
 * executor/handover.h - prompts that one executor computed and another one goes on with.
 *
 * Purpose   Disaggregated serving. What is handed over (tokens, the first choice, the blocks of the cache) waits in host memory
 *           in one table of the process, under a number that nobody can guess. The parameters of a response are that number and
 *           nothing else: no client can make the server connect to anything, or read another's memory.
 * Owner     Every function says which thread; the table has a lock of its own, which is taken last.
 * Lifetime  keep -> take, once, or the time is over, or the executor that computed closes.
 * Errors    INVALID_ARG, UNSUPPORTED, by field; NOT_FOUND: nothing waits under these parameters; UNAVAILABLE: no room.
 * Sources   Disaggregated prefill and decode (Zhong et al., DistServe, OSDI 2024; Patel et al., Splitwise, ISCA 2024).
 */
#ifndef NRD_EXECUTOR_HANDOVER_H
#define NRD_EXECUTOR_HANDOVER_H

#include "executor/internal.h"

enum { NRD_HANDOVER_TIMEOUT_MS = 60000 };

/* Fields of a request that have to do with this. Any thread. */
nrd_error *nrd_handover_check(const nrd_exec *x, const nrd_exec_request *in) NRD_MUST_USE;
/* A checked request that is made: room for its prompt, or the prompt that it goes on with. Any thread. */
nrd_error *nrd_handover_join(nrd_exec_request_state *r, const nrd_exec_request *in) NRD_MUST_USE;
/* Of a request that is freed. Any thread. */
void nrd_handover_leave(nrd_exec_request_state *r);

/* Loop thread, behind the first event of a CONTEXT_ONLY request: keeps its prompt, and sets its parameters. An error is the
 * request's (NO_MEMORY), or says that the device is lost (INTERNAL). */
nrd_error *nrd_handover_keep(nrd_exec_request_state *r, const nrd_sched_event *e) NRD_MUST_USE;
/* Loop thread, for a sequence that was just added: its first token. */
void nrd_handover_begin(nrd_exec_request_state *r, nrd_sched_event *e);
/* Its first step is over: the prompt's blocks are in the cache. */
void nrd_handover_arrived(nrd_exec_request_state *r);

/* Loop thread: frees what was not taken in time; sets x->handover_due_ns, when to call again (0: nothing waits). */
void nrd_handover_sweep(nrd_exec *x, int64_t now_ns);
/* Frees all that waits of an executor that closes. */
void nrd_handover_close(nrd_exec *x);

#endif
