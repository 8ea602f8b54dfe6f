/* SPDX-License-Identifier: Apache-2.0
 * base/numa.h - which memory is near which processor.
 *
 * Purpose   Weights and the cache are read whole by every thread in every step: their pages lie on all
 *           memory nodes in turn, so that all channels of the machine serve all threads.
 * Source    Linux, Documentation/admin-guide/mm/numa_memory_policy.rst; mbind(2).
 */
#ifndef NRD_BASE_NUMA_H
#define NRD_BASE_NUMA_H

#include <sched.h>
#include <stddef.h>
#include <stdint.h>

#define NRD_NUMA_CPUS "/sys/devices/system/cpu"

/* The node of a processor, by the system's folder of processors; 0 where that says nothing, and for
 * nodes from 64 on. */
int nrd_numa_node_of(const char *cpus, int cpu);
/* A bit for each node that has a processor of `set`. */
uint64_t nrd_numa_nodes(const char *cpus, const cpu_set_t *set);
/* Puts the pages of [p, p + bytes) that nobody has touched yet on the nodes of this process's processors
 * in turn (those of the first call). A wish: nothing happens with one node, or where the system refuses.
 * p: start of a page. */
void nrd_numa_interleave(void *p, size_t bytes);

#endif
