/* SPDX-License-Identifier: Apache-2.0
 * core/host_policy.h - on which processors and near which memory the threads of an instance run.
 *
 * Purpose   --host-policy=NAME,numa-node=N and NAME,cpu-cores=LOW-HIGH[,…]: the instance is made, and later
 *           run, by threads with this affinity; threads that its backend starts meanwhile inherit it, and
 *           so does new memory with numa-node.
 * Owner     Read once for an instance; read-only afterwards. Entering and leaving: the thread itself.
 * Errors    INVALID_ARG: a value that is none, or that this machine does not have; names the policy.
 * Sources   Triton, "Host policy" of instance groups; sched_setaffinity(2), set_mempolicy(2).
 */
#ifndef NRD_CORE_HOST_POLICY_H
#define NRD_CORE_HOST_POLICY_H

#include "base/error.h"
#include "core/options.h"

#include <sched.h>
#include <stdbool.h>

typedef struct nrd_host_policy {
    bool is_set;    /* else it changes nothing */
    cpu_set_t cpus; /* never empty where is_set */
    int node;       /* memory comes from there; -1: from anywhere */
} nrd_host_policy;

/* Where a thread was before. */
typedef struct nrd_host_home {
    bool is_away;
    bool has_node;
    cpu_set_t cpus;
} nrd_host_home;

nrd_error *nrd_host_policy_read(nrd_host_policy *out, const nrd_setting *settings, const char *name) NRD_MUST_USE;
/* The calling thread goes where the policy says, or home where it says nothing; home is {0} at first. */
nrd_error *nrd_host_policy_enter(const nrd_host_policy *p, nrd_host_home *home) NRD_MUST_USE;
void nrd_host_policy_leave(nrd_host_home *home);

#endif
