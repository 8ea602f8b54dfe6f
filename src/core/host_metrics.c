/* SPDX-License-Identifier: Apache-2.0 */
#include "core/host_metrics.h"

#include "core/memory.h"
#include "core/metrics.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/metric.h"

#include <stdio.h>
#include <stdlib.h>

static uint64_t minus(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

enum { H_CPU_LOAD, H_MEM_TOTAL, H_MEM_USED, H_PINNED_TOTAL, H_PINNED_USED, N_HOST };

static const struct {
    const char *name, *help;
} host_families[N_HOST] = {
    [H_CPU_LOAD] = {"nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]"},
    [H_MEM_TOTAL] = {"nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes"},
    [H_MEM_USED] = {"nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes"},
    [H_PINNED_TOTAL] = {"nv_pinned_memory_pool_total_bytes",
                        "Pinned memory pool total memory size, in bytes"},
    [H_PINNED_USED] = {"nv_pinned_memory_pool_used_bytes",
                       "Pinned memory pool used memory size, in bytes"},
};

struct nrd_host_metrics {
    nrd_metric_family *families[N_HOST];
    nrd_metric *series[N_HOST];
    uint64_t busy, total; /* at the last update, in clock ticks */
};

nrd_error *nrd_host_metrics_new(nrd_host_metrics **out, bool with_cpu)
{
    nrd_host_metrics *h = nrd_xcalloc(1, sizeof *h);
    nrd_error *err = NULL;

    *out = NULL;
    for (int k = with_cpu ? 0 : H_PINNED_TOTAL; k < N_HOST && !err; k++) {
        err = nrd_metric_family_get(&h->families[k], nrd_core_metrics(), NRD_METRIC_GAUGE,
                                    host_families[k].name, host_families[k].help);
        if (!err) {
            err = nrd_metric_get(&h->series[k], h->families[k], NULL, 0, NULL);
        }
    }
    if (err) {
        nrd_host_metrics_free(h);
        return err;
    }
    nrd_host_metrics_update(h);
    *out = h;
    return NULL;
}

static void update_cpu(nrd_host_metrics *h)
{
    unsigned long long v[8] = {0}, total = 0, idle;
    FILE *f = fopen("/proc/stat", "re");
    int n = 0;

    if (!f) {
        return;
    }
    n = fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &v[0], &v[1], &v[2], &v[3], &v[4],
               &v[5], &v[6], &v[7]);
    fclose(f);
    if (n < 5) {
        return;
    }
    for (int i = 0; i < 8; i++) {
        total += v[i];
    }
    idle = v[3] + v[4]; /* idle and waiting for I/O */
    uint64_t busy = total - idle;
    if (h->total && total > h->total) {
        nrd_metric_put(h->series[H_CPU_LOAD],
                       (double)minus(busy, h->busy) / (double)(total - h->total));
    }
    h->busy = busy;
    h->total = total;
}

static void update_memory(nrd_host_metrics *h)
{
    char line[128];
    unsigned long long total = 0, available = 0, kb;
    FILE *f = fopen("/proc/meminfo", "re");

    if (!f) {
        return;
    }
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "MemTotal: %llu", &kb) == 1) {
            total = kb * 1024u;
        } else if (sscanf(line, "MemAvailable: %llu", &kb) == 1) {
            available = kb * 1024u;
        }
    }
    fclose(f);
    nrd_metric_put(h->series[H_MEM_TOTAL], (double)total);
    nrd_metric_put(h->series[H_MEM_USED], (double)minus(total, available));
}

void nrd_host_metrics_update(nrd_host_metrics *h)
{
    if (!h) {
        return;
    }
    if (h->series[H_CPU_LOAD]) {
        update_cpu(h);
        update_memory(h);
    }
    nrd_metric_put(h->series[H_PINNED_TOTAL], (double)nrd_pinned_pool_size());
    nrd_metric_put(h->series[H_PINNED_USED], (double)nrd_pinned_pool_used());
}

void nrd_host_metrics_free(nrd_host_metrics *h)
{
    if (!h) {
        return;
    }
    for (int k = 0; k < N_HOST; k++) {
        nrd_metric_unref(h->series[k]);
        nrd_metric_family_unref(h->families[k]);
    }
    free(h);
}
