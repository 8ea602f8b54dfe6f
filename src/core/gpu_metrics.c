/* SPDX-License-Identifier: Apache-2.0
 * Figures of the GPUs for the metrics page, read through the driver's management library. The
 * library is opened at run time, so that one build serves machines with and without GPUs; a machine
 * without it, or a figure that a device does not have (a slice of a GPU has no power reading), is
 * simply not shown.
 *
 * Sources: NVML API reference (structures and units: milliwatts, millijoules, percent, bytes). */
#include "core/gpu_metrics.h"

#include "core/metrics.h"

#include "base/env.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/metric.h"
#include "base/str.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef struct nvml_device *nvml_device; /* opaque */

typedef struct nvml_utilization {
    unsigned gpu, memory;
} nvml_utilization;

typedef struct nvml_memory {
    unsigned long long total, free, used;
} nvml_memory;

/* The newer form tells the driver's own reserve apart from what programs use. */
typedef struct nvml_memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
} nvml_memory_v2;
#define NVML_MEMORY_V2 ((unsigned)sizeof(nvml_memory_v2) | 2u << 24)

typedef struct nvml { /* entry points; 0 is success everywhere */
    void *dl;
    int (*init)(void);
    int (*shutdown)(void);
    int (*count)(unsigned *);
    int (*by_index)(unsigned, nvml_device *);
    int (*by_uuid)(const char *, nvml_device *);
    int (*uuid)(nvml_device, char *, unsigned);
    int (*name)(nvml_device, char *, unsigned);
    int (*utilization)(nvml_device, nvml_utilization *);
    int (*memory)(nvml_device, nvml_memory *);
    int (*memory_v2)(nvml_device, nvml_memory_v2 *); /* NULL: older driver */
    int (*power)(nvml_device, unsigned *);
    int (*power_limit)(nvml_device, unsigned *);
    int (*energy)(nvml_device, unsigned long long *);
} nvml;

enum { G_LOAD, G_MEM_TOTAL, G_MEM_USED, G_POWER, G_POWER_LIMIT, G_ENERGY, N_GPU_SERIES };

static const struct {
    const char *name, *help;
    nrd_metric_kind kind;
} families[N_GPU_SERIES] = {
    [G_LOAD] = {"nv_gpu_utilization", "GPU utilization rate [0.0 - 1.0)", NRD_METRIC_GAUGE},
    [G_MEM_TOTAL] = {"nv_gpu_memory_total_bytes", "GPU total memory, in bytes", NRD_METRIC_GAUGE},
    [G_MEM_USED] = {"nv_gpu_memory_used_bytes", "GPU used memory, in bytes", NRD_METRIC_GAUGE},
    [G_POWER] = {"nv_gpu_power_usage", "GPU power usage in watts", NRD_METRIC_GAUGE},
    [G_POWER_LIMIT] = {"nv_gpu_power_limit", "GPU power management limit in watts",
                       NRD_METRIC_GAUGE},
    [G_ENERGY] = {"nv_energy_consumption",
                  "GPU energy consumption in joules since the Triton Server started",
                  NRD_METRIC_COUNTER},
};

enum { UUID_BYTES = 96, NAME_BYTES = 96, MAX_GPUS = 64 };

typedef struct gpu {
    nvml_device device;
    char uuid[UUID_BYTES];
    nrd_metric *series[N_GPU_SERIES]; /* NULL: the device has no such figure */
    unsigned long long energy_mj;     /* at the last update */
} gpu;

struct nrd_gpu_metrics {
    nvml lib;
    bool is_open;
    nrd_metric_family *families[N_GPU_SERIES];
    gpu gpus[MAX_GPUS];
    size_t n;
};

static bool find(nvml *l, const char *name, void *out_fn)
{
    void *p = dlsym(l->dl, name);
    memcpy(out_fn, &p, sizeof p);
    return p != NULL;
}

static bool open_library(nvml *l)
{
    l->dl = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (l->dl) {
        (void)find(l, "nvmlDeviceGetMemoryInfo_v2", &l->memory_v2);
    }
    return l->dl && find(l, "nvmlInit_v2", &l->init) && find(l, "nvmlShutdown", &l->shutdown) &&
           find(l, "nvmlDeviceGetCount_v2", &l->count) &&
           find(l, "nvmlDeviceGetHandleByIndex_v2", &l->by_index) &&
           find(l, "nvmlDeviceGetHandleByUUID", &l->by_uuid) &&
           find(l, "nvmlDeviceGetUUID", &l->uuid) && find(l, "nvmlDeviceGetName", &l->name) &&
           find(l, "nvmlDeviceGetUtilizationRates", &l->utilization) &&
           find(l, "nvmlDeviceGetMemoryInfo", &l->memory) &&
           find(l, "nvmlDeviceGetPowerUsage", &l->power) &&
           find(l, "nvmlDeviceGetEnforcedPowerLimit", &l->power_limit) &&
           find(l, "nvmlDeviceGetTotalEnergyConsumption", &l->energy) && l->init() == 0;
}

/* Reads one figure; false when the device has none. */
static bool read_figure(const nvml *l, nvml_device d, int k, double *out)
{
    nvml_utilization u;
    nvml_memory m;
    nvml_memory_v2 m2 = {.version = NVML_MEMORY_V2};
    unsigned mw;
    unsigned long long mj;

    switch (k) {
    case G_LOAD:
        *out = l->utilization(d, &u) == 0 ? u.gpu / 100.0 : -1;
        return *out >= 0;
    case G_MEM_TOTAL:
    case G_MEM_USED:
        if (l->memory_v2 && l->memory_v2(d, &m2) == 0) {
            *out = (double)(k == G_MEM_TOTAL ? m2.total : m2.used);
            return true;
        }
        if (l->memory(d, &m) != 0) {
            return false;
        }
        *out = (double)(k == G_MEM_TOTAL ? m.total : m.used);
        return true;
    case G_POWER:
    case G_POWER_LIMIT:
        if ((k == G_POWER ? l->power : l->power_limit)(d, &mw) != 0) {
            return false;
        }
        *out = mw / 1000.0;
        return true;
    case G_ENERGY:
        *out = l->energy(d, &mj) == 0 ? (double)mj : -1;
        return *out >= 0;
    }
    return false;
}

static nrd_error *add_gpu(nrd_gpu_metrics *g, nvml_device device)
{
    gpu *p = &g->gpus[g->n];
    char name[NAME_BYTES] = "";
    double v;

    if (g->n == MAX_GPUS || g->lib.uuid(device, p->uuid, UUID_BYTES) != 0) {
        return NULL;
    }
    (void)g->lib.name(device, name, NAME_BYTES);
    p->device = device;
    const nrd_metric_label label = {"gpu_uuid", p->uuid};
    for (int k = 0; k < N_GPU_SERIES; k++) {
        if (!read_figure(&g->lib, device, k, &v)) {
            continue;
        }
        NRD_TRY(nrd_metric_get(&p->series[k], g->families[k], &label, 1, NULL));
        if (k == G_ENERGY) {
            p->energy_mj = (unsigned long long)v;
        }
    }
    NRD_LOG_INFO("Collecting metrics for GPU %zu: %s", g->n, name);
    g->n++;
    return NULL;
}

/* Whether CUDA_VISIBLE_DEVICES, a list of numbers or UUIDs, lets the device through. */
static bool is_visible(const char *list, unsigned index, const char *uuid)
{
    for (const char *p = list; *p;) {
        size_t n = strcspn(p, ",");
        char *word = nrd_xstrndup(p, n);
        unsigned long long number;
        bool hit = nrd_parse_u64(word, &number) ? number == index
                                                : n > 4 && nrd_str_has_prefix(uuid, word);
        free(word);
        if (hit) {
            return true;
        }
        p += n;
        p += *p == ',';
    }
    return false;
}

static nrd_error *find_gpus(nrd_gpu_metrics *g)
{
    const char *visible =
        nrd_env_is_set("CUDA_VISIBLE_DEVICES") ? nrd_env("CUDA_VISIBLE_DEVICES", "") : NULL;
    unsigned n = 0;

    if (g->lib.count(&n) != 0) {
        return NULL;
    }
    for (unsigned i = 0; i < n; i++) {
        nvml_device d;
        char uuid[UUID_BYTES] = "";
        if (g->lib.by_index(i, &d) == 0 && g->lib.uuid(d, uuid, UUID_BYTES) == 0 &&
            (!visible || is_visible(visible, i, uuid))) {
            NRD_TRY(add_gpu(g, d));
        }
    }
    for (const char *p = visible; p && *p;) { /* slices have no index of their own */
        size_t len = strcspn(p, ",");
        char *word = nrd_xstrndup(p, len);
        nvml_device d;
        nrd_error *err = NULL;
        if (nrd_str_has_prefix(word, "MIG-") && g->lib.by_uuid(word, &d) == 0) {
            err = add_gpu(g, d);
        }
        free(word);
        if (err) {
            return err;
        }
        p += len;
        p += *p == ',';
    }
    return NULL;
}

nrd_error *nrd_gpu_metrics_new(nrd_gpu_metrics **out)
{
    nrd_gpu_metrics *g = nrd_xcalloc(1, sizeof *g);
    nrd_error *err = NULL;

    *out = NULL;
    g->is_open = open_library(&g->lib);
    for (int k = 0; k < N_GPU_SERIES && g->is_open && !err; k++) {
        err = nrd_metric_family_get(&g->families[k], nrd_core_metrics(), families[k].kind,
                                    families[k].name, families[k].help);
    }
    if (!err && g->is_open) {
        err = find_gpus(g);
    }
    if (err) {
        nrd_gpu_metrics_free(g);
        return err;
    }
    nrd_gpu_metrics_update(g);
    *out = g;
    return NULL;
}

void nrd_gpu_metrics_update(nrd_gpu_metrics *g)
{
    for (size_t i = 0; g && i < g->n; i++) {
        gpu *p = &g->gpus[i];
        for (int k = 0; k < N_GPU_SERIES; k++) {
            double v;
            if (!p->series[k] || !read_figure(&g->lib, p->device, k, &v)) {
                continue;
            }
            if (k != G_ENERGY) {
                nrd_metric_put(p->series[k], v);
            } else if ((unsigned long long)v > p->energy_mj) {
                nrd_metric_bump(p->series[k], (v - (double)p->energy_mj) / 1000.0);
                p->energy_mj = (unsigned long long)v;
            }
        }
    }
}

void nrd_gpu_metrics_free(nrd_gpu_metrics *g)
{
    if (!g) {
        return;
    }
    for (size_t i = 0; i <= g->n && i < MAX_GPUS; i++) { /* the last one may be half made */
        for (int k = 0; k < N_GPU_SERIES; k++) {
            nrd_metric_unref(g->gpus[i].series[k]);
        }
    }
    for (int k = 0; k < N_GPU_SERIES; k++) {
        nrd_metric_family_unref(g->families[k]);
    }
    if (g->is_open) {
        g->lib.shutdown();
    }
    if (g->lib.dl) {
        dlclose(g->lib.dl);
    }
    free(g);
}
