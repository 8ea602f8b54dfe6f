/* SPDX-License-Identifier: Apache-2.0 */
#include "base/numa.h"

#include <dirent.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAX_NODES = 64 };

int nrd_numa_node_of(const char *cpus, int cpu)
{
    char path[256];
    int node = 0;

    snprintf(path, sizeof path, "%s/cpu%d", cpus, cpu);
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        if (sscanf(e->d_name, "node%9d", &node) == 1) { /* a link to the node's folder */
            break;
        }
    }
    if (d) {
        closedir(d);
    }
    return node >= 0 && node < MAX_NODES ? node : 0;
}

uint64_t nrd_numa_nodes(const char *cpus, const cpu_set_t *set)
{
    uint64_t found = 0;

    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET((size_t)cpu, set)) {
            found |= (uint64_t)1 << nrd_numa_node_of(cpus, cpu);
        }
    }
    return found;
}

static uint64_t nodes; /* written once */

static void find_nodes(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        nodes = nrd_numa_nodes(NRD_NUMA_CPUS, &set);
    }
}

void nrd_numa_interleave(void *p, size_t bytes)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, find_nodes);
    if ((nodes & (nodes - 1)) != 0) {
        unsigned long mask[2] = {(unsigned long)nodes, sizeof(long) < 8 ? (unsigned long)(nodes >> 32) : 0};
        (void)syscall(SYS_mbind, p, bytes, MPOL_INTERLEAVE, mask, (unsigned long)MAX_NODES + 1, 0);
    }
}
