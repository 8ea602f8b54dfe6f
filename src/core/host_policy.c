/* SPDX-License-Identifier: Apache-2.0 */
#include "core/host_policy.h"

#include "base/file.h"
#include "base/log.h"
#include "base/str.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAX_NODES = 64, MAX_LIST = 65536 };

/* "0-3,8": as the system writes lists of processors. */
static bool read_list(const char *text, cpu_set_t *out)
{
    CPU_ZERO(out);
    while (*text) {
        char *end = NULL;
        if (*text < '0' || *text > '9') {
            return false;
        }
        const unsigned long low = strtoul(text, &end, 10);
        unsigned long high = low;
        if (*end == '-') {
            text = end + 1;
            if (*text < '0' || *text > '9') {
                return false;
            }
            high = strtoul(text, &end, 10);
        }
        if (high < low || high >= CPU_SETSIZE || (*end && *end != ',' && *end != '\n')) {
            return false;
        }
        for (unsigned long c = low; c <= high; c++) {
            CPU_SET(c, out);
        }
        text = *end ? end + 1 : end;
    }
    return CPU_COUNT(out) > 0;
}

static nrd_error *read_node(cpu_set_t *out, int *out_node, const char *policy, const char *value)
{
    char path[64], *text = NULL;
    long long node = -1;
    size_t n = 0;

    if (!nrd_parse_i64(value, &node) || node < 0 || node >= MAX_NODES) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "host policy '%s': numa-node must be a number from 0 to %d, got '%s'", policy,
                          MAX_NODES - 1, value);
    }
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", (int)node);
    nrd_error *err = nrd_file_read(&text, &n, path, MAX_LIST);
    nrd_error_free(err);
    const bool ok = !err && read_list(text, out);
    free(text);
    *out_node = (int)node;
    return ok ? NULL
              : nrd_errorf(NRD_ERR_INVALID_ARG, "host policy '%s': this machine has no processors on NUMA node %lld", policy,
                           node);
}

nrd_error *nrd_host_policy_read(nrd_host_policy *out, const nrd_setting *settings, const char *name)
{
    const char *node = nrd_setting_find(settings, name, "numa-node");
    const char *cores = nrd_setting_find(settings, name, "cpu-cores");
    cpu_set_t own;

    *out = (nrd_host_policy){.node = -1};
    if (node) {
        NRD_TRY(read_node(&out->cpus, &out->node, name, node));
        out->is_set = true;
    }
    if (cores) { /* counts more than the node's */
        if (!read_list(cores, &out->cpus)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "host policy '%s': cpu-cores must be numbers of processors as 0-3 or 0,2, got '%s'", name,
                              cores);
        }
        out->is_set = true;
    }
    if (out->is_set && sched_getaffinity(0, sizeof own, &own) == 0) {
        CPU_AND(&own, &own, &out->cpus);
        if (CPU_COUNT(&own) == 0) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "host policy '%s': this process may use none of its processors", name);
        }
    }
    return NULL;
}

static bool bind_memory(int node)
{
#ifdef SYS_set_mempolicy
    const unsigned long mask = node < 0 ? 0 : 1ul << node;
    return syscall(SYS_set_mempolicy, node < 0 ? MPOL_DEFAULT : MPOL_BIND, node < 0 ? NULL : &mask,
                   node < 0 ? 0ul : (unsigned long)MAX_NODES + 1) == 0;
#else
    return node < 0;
#endif
}

nrd_error *nrd_host_policy_enter(const nrd_host_policy *p, nrd_host_home *home)
{
    if (!p->is_set) {
        nrd_host_policy_leave(home);
        return NULL;
    }
    if (!home->is_away) {
        if (sched_getaffinity(0, sizeof home->cpus, &home->cpus) != 0) {
            return nrd_errorf(NRD_ERR_INTERNAL, "cannot read a thread's affinity: %s", strerror(errno));
        }
        home->is_away = true;
    }
    if (sched_setaffinity(0, sizeof p->cpus, &p->cpus) != 0) {
        return nrd_errorf(NRD_ERR_INTERNAL, "cannot set a thread's affinity: %s", strerror(errno));
    }
    if (p->node >= 0 || home->has_node) {
        home->has_node = p->node >= 0;
        if (!bind_memory(p->node)) { /* containers forbid it; the processors are right all the same */
            NRD_LOG_WARN("the system does not let a thread take its memory from NUMA node %d: %s", p->node,
                         strerror(errno));
        }
    }
    return NULL;
}

void nrd_host_policy_leave(nrd_host_home *home)
{
    if (home->is_away) {
        (void)sched_setaffinity(0, sizeof home->cpus, &home->cpus);
        if (home->has_node) {
            (void)bind_memory(-1);
        }
        *home = (nrd_host_home){0};
    }
}
