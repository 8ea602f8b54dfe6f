/* SPDX-License-Identifier: Apache-2.0
 * executor/ranks/launched_internal.h - how processes of one launcher come together, for launched.c, which is the one that
 * others come to, and enter.c, which decides what a process is when it starts.
 */
#ifndef NRD_EXECUTOR_RANKS_LAUNCHED_INTERNAL_H
#define NRD_EXECUTOR_RANKS_LAUNCHED_INTERNAL_H

#include "executor/ranks/launched.h"

#include <sys/socket.h>
#include <sys/un.h>

enum { COME_MS = 60 * 1000, POD_COME_MS = 600 * 1000 /* an image may have to be loaded first */ };

/* The first thing that a rank says. */
typedef struct nrd_launched_hello {
    char build[40];
    int32_t rank, pid;
} nrd_launched_hello;

/* The socket of the one that listens for this job on this host. */
socklen_t nrd_launched_name(const nrd_place *p, struct sockaddr_un *out);
_Noreturn void nrd_launched_refuse(const nrd_place *p, const char *why);
/* From now on this process is the one that others of its host come to. Ends it where it cannot be. */
void nrd_launched_listen(const nrd_place *p);
/* Waits for the others of this host; ranks: [NRD_LAUNCHED_MAX], its own first. */
nrd_error *nrd_launched_gather(const nrd_place *p, int32_t *ranks, int32_t *out_n) NRD_MUST_USE;
/* At exit: those that wait for rank 0 must have seen it before it ends, or they would wait for the rest of their
 * minute. Ranks that no model uses have met nobody yet, and a server may end as soon as it has started. */
void nrd_launched_meet_all(void);

#endif
