/* SPDX-License-Identifier: Apache-2.0
 * Defaults that a configuration gets before it is checked. */
#include "core/config/config.h"
#include "core/config/pbfield.h"

#include "base/env.h"
#include "base/error.h"
#include "base/str.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

/* Only the latest version. */
static nrd_error *set_version_policy(nrd_config *cfg)
{
    Inference__ModelVersionPolicy *p = malloc(sizeof *p);
    Inference__ModelVersionPolicy__Latest *latest = malloc(sizeof *latest);

    if (!p || !latest) {
        free(p);
        free(latest);
        return nrd_error_no_memory();
    }
    inference__model_version_policy__init(p);
    inference__model_version_policy__latest__init(latest);
    latest->num_versions = 1;
    p->policy_choice_case = INFERENCE__MODEL_VERSION_POLICY__POLICY_CHOICE_LATEST;
    p->latest = latest;
    cfg->version_policy = p;
    return NULL;
}

/* One preferred size, the largest. */
static nrd_error *prefer_full_batches(int32_t **sizes, size_t *n, int32_t max_batch_size)
{
    *sizes = malloc(sizeof **sizes);
    if (!*sizes) {
        return nrd_error_no_memory();
    }
    (*sizes)[0] = max_batch_size;
    *n = 1;
    return NULL;
}

/* Pinned memory for inputs and outputs, where nothing is said about it. */
static nrd_error *set_pinned_memory(nrd_config *cfg)
{
    if (!cfg->optimization) {
        Inference__ModelOptimizationPolicy *p = malloc(sizeof *p);
        if (!p) {
            return nrd_error_no_memory();
        }
        inference__model_optimization_policy__init(p);
        cfg->optimization = p;
    }
    Inference__ModelOptimizationPolicy__PinnedMemoryBuffer **pinned[] = {
        &cfg->optimization->input_pinned_memory, &cfg->optimization->output_pinned_memory};
    for (int i = 0; i < 2; i++) {
        if (!*pinned[i]) {
            *pinned[i] = malloc(sizeof **pinned[i]);
            if (!*pinned[i]) {
                return nrd_error_no_memory();
            }
            inference__model_optimization_policy__pinned_memory_buffer__init(*pinned[i]);
            (*pinned[i])->enable = 1;
        }
    }
    return NULL;
}

nrd_error *nrd_config_normalize(nrd_config *cfg)
{
    if (!cfg->version_policy) {
        NRD_TRY(set_version_policy(cfg));
    }
    if (cfg->scheduling_choice_case ==
        INFERENCE__MODEL_CONFIG__SCHEDULING_CHOICE_DYNAMIC_BATCHING) {
        Inference__ModelDynamicBatching *db = cfg->dynamic_batching;
        if (db->n_preferred_batch_size == 0 && cfg->max_batch_size > 0) {
            NRD_TRY(prefer_full_batches(&db->preferred_batch_size, &db->n_preferred_batch_size, cfg->max_batch_size));
        }
    }
    if (cfg->scheduling_choice_case ==
        INFERENCE__MODEL_CONFIG__SCHEDULING_CHOICE_SEQUENCE_BATCHING) {
        enum { DEFAULT_IDLE_US = 1000000 };
        Inference__ModelSequenceBatching *sb = cfg->sequence_batching;
        if (sb->max_sequence_idle_microseconds == 0) {
            sb->max_sequence_idle_microseconds = DEFAULT_IDLE_US;
        }
        if (sb->strategy_choice_case ==
                INFERENCE__MODEL_SEQUENCE_BATCHING__STRATEGY_CHOICE_OLDEST &&
            sb->oldest->n_preferred_batch_size == 0 && cfg->max_batch_size > 0) {
            NRD_TRY(prefer_full_batches(&sb->oldest->preferred_batch_size, &sb->oldest->n_preferred_batch_size,
                                        cfg->max_batch_size));
        }
    }
    return nrd_config_is_ensemble(cfg) ? NULL : set_pinned_memory(cfg);
}

/* As CUDA reads it (CUDA C++ Programming Guide, "CUDA Environment Variables"): numbers, UUIDs of GPUs or their beginnings, and MIG slices, up to
 * the first word that is none of them. Of slices a process gets one, however many are listed (MIG User Guide, "CUDA Device
 * Enumeration"). */
int nrd_gpus_visible(const char *list, int n)
{
    int n_visible = 0;

    if (!list) {
        return n;
    }
    for (const char *p = list; n_visible < n; p++) {
        char *end = NULL;
        const long number = strtol(p, &end, 10);
        const bool is_number =
            end > p && (*end == ',' || *end == '\0') && number >= 0 && number < n;
        if (nrd_str_has_prefix(p, "MIG-")) {
            return n_visible > 0 ? n_visible : 1;
        }
        if (!is_number && !nrd_str_has_prefix(p, "GPU-")) {
            break;
        }
        n_visible++;
        p += strcspn(p, ",");
        if (*p == '\0') {
            break;
        }
    }
    return n_visible;
}

int nrd_gpu_count(void)
{
    int n = 0;
    DIR *d = opendir("/dev");

    if (d) {
        for (struct dirent *e; (e = readdir(d)) != NULL;) {
            unsigned long long id;
            if (nrd_str_has_prefix(e->d_name, "nvidia") && nrd_parse_u64(e->d_name + 6, &id)) {
                n++;
            }
        }
        closedir(d);
    }
    return nrd_gpus_visible(
        nrd_env_is_set("CUDA_VISIBLE_DEVICES") ? nrd_env("CUDA_VISIBLE_DEVICES", "") : NULL, n);
}

static nrd_error *set_gpus(Inference__ModelInstanceGroup *g, const int32_t *ids, size_t n)
{
    int32_t *gpus = calloc(n + 1, sizeof *gpus);
    if (!gpus) {
        return nrd_error_no_memory();
    }
    for (size_t i = 0; i < n; i++) {
        gpus[i] = ids ? ids[i] : (int32_t)i;
    }
    free(g->gpus);
    g->gpus = gpus;
    g->n_gpus = n;
    return NULL;
}

/* A group for a model that names none: the first one that its backend prefers and this machine can have. */
static nrd_error *add_group(nrd_config *cfg, const nrd_preferred_group *groups, size_t n, int n_gpus)
{
    Inference__ModelInstanceGroup *g = malloc(sizeof *g);
    Inference__ModelInstanceGroup **list = malloc(sizeof *list);

    if (!g || !list) {
        free(g);
        free(list);
        return nrd_error_no_memory();
    }
    inference__model_instance_group__init(g);
    list[0] = g;
    cfg->instance_group = list;
    cfg->n_instance_group = 1;
    NRD_TRY(nrd_pb_set_string(&g->name, cfg->name));
    for (size_t i = 0; i < n; i++) {
        if (groups[i].kind == INFERENCE__MODEL_INSTANCE_GROUP__KIND__KIND_GPU && n_gpus == 0) {
            continue;
        }
        g->kind = groups[i].kind;
        g->count = groups[i].count;
        return groups[i].n_gpus ? set_gpus(g, groups[i].gpus, groups[i].n_gpus) : NULL;
    }
    return NULL;
}

static nrd_error *resolve_group(nrd_config *cfg, size_t k, const nrd_preferred_group *groups, size_t n,
                          int n_gpus)
{
    Inference__ModelInstanceGroup *g = cfg->instance_group[k];

    if (g->name[0] == '\0') {
        nrd_str name = {0};
        nrd_str_printf(&name, "%s_%zu", cfg->name, k);
        nrd_error *err = nrd_str_error(&name);
        err = err ? err : nrd_pb_set_string(&g->name, nrd_str_cstr(&name));
        nrd_str_fini(&name);
        NRD_TRY(err);
    }
    if (g->kind == INFERENCE__MODEL_INSTANCE_GROUP__KIND__KIND_AUTO) {
        g->kind = n_gpus > 0 ? INFERENCE__MODEL_INSTANCE_GROUP__KIND__KIND_GPU
                             : INFERENCE__MODEL_INSTANCE_GROUP__KIND__KIND_CPU;
        for (size_t i = 0; i < g->n_gpus; i++) {
            if (g->gpus[i] < 0 || g->gpus[i] >= n_gpus) {
                g->kind = INFERENCE__MODEL_INSTANCE_GROUP__KIND__KIND_CPU;
            }
        }
    }
    for (size_t i = 0; i < n; i++) {
        if (groups[i].kind != g->kind) {
            continue;
        }
        if (g->kind == INFERENCE__MODEL_INSTANCE_GROUP__KIND__KIND_GPU && g->n_gpus == 0 &&
            groups[i].n_gpus > 0) {
            NRD_TRY(set_gpus(g, groups[i].gpus, groups[i].n_gpus));
        }
        if (g->count < 1 && groups[i].count > 0) {
            g->count = groups[i].count;
        }
    }
    if (g->count < 1) {
        g->count = 1;
    }
    if (g->kind == INFERENCE__MODEL_INSTANCE_GROUP__KIND__KIND_GPU && g->n_gpus == 0) {
        return set_gpus(g, NULL, (size_t)n_gpus);
    }
    return NULL;
}

nrd_error *nrd_config_normalize_groups(nrd_config *cfg, const nrd_preferred_group *groups, size_t n)
{
    int n_gpus = nrd_gpu_count();

    if (nrd_config_is_ensemble(cfg)) {
        return NULL;
    }
    if (cfg->n_instance_group == 0) {
        NRD_TRY(add_group(cfg, groups, n, n_gpus));
    }
    for (size_t k = 0; k < cfg->n_instance_group; k++) {
        NRD_TRY(resolve_group(cfg, k, groups, n, n_gpus));
    }
    return NULL;
}
