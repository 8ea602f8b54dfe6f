/* SPDX-License-Identifier: Apache-2.0
 * Defaults that a configuration gets before it is checked. */
#include "core/config/config.h"
#include "core/config/pbtext.h"

#include "base/env.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/str.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

nrd_error *nrd_config_normalize(nrd_config *cfg)
{
    if (!cfg->version_policy) {
        Inference__ModelVersionPolicy *p = nrd_xmalloc(sizeof *p);
        inference__model_version_policy__init(p);
        p->policy_choice_case = INFERENCE__MODEL_VERSION_POLICY__POLICY_CHOICE_LATEST;
        p->latest = nrd_xmalloc(sizeof *p->latest);
        inference__model_version_policy__latest__init(p->latest);
        p->latest->num_versions = 1;
        cfg->version_policy = p;
    }
    if (cfg->scheduling_choice_case ==
        INFERENCE__MODEL_CONFIG__SCHEDULING_CHOICE_DYNAMIC_BATCHING) {
        Inference__ModelDynamicBatching *db = cfg->dynamic_batching;
        if (db->n_preferred_batch_size == 0 && cfg->max_batch_size > 0) {
            db->preferred_batch_size = nrd_xcalloc(1, sizeof *db->preferred_batch_size);
            db->preferred_batch_size[0] = cfg->max_batch_size;
            db->n_preferred_batch_size = 1;
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
            sb->oldest->preferred_batch_size =
                nrd_xcalloc(1, sizeof *sb->oldest->preferred_batch_size);
            sb->oldest->preferred_batch_size[0] = cfg->max_batch_size;
            sb->oldest->n_preferred_batch_size = 1;
        }
    }
    if (!nrd_config_is_ensemble(cfg)) {
        if (!cfg->optimization) {
            cfg->optimization = nrd_xmalloc(sizeof *cfg->optimization);
            inference__model_optimization_policy__init(cfg->optimization);
        }
        Inference__ModelOptimizationPolicy__PinnedMemoryBuffer **pinned[] = {
            &cfg->optimization->input_pinned_memory, &cfg->optimization->output_pinned_memory};
        for (int i = 0; i < 2; i++) {
            if (!*pinned[i]) {
                *pinned[i] = nrd_xmalloc(sizeof **pinned[i]);
                inference__model_optimization_policy__pinned_memory_buffer__init(*pinned[i]);
                (*pinned[i])->enable = 1;
            }
        }
    }
    return NULL;
}

int nrd_gpu_count(void)
{
    const char *visible = nrd_env("CUDA_VISIBLE_DEVICES", NULL);
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
    if (visible && n > 0) { /* a comma list of what may be used; -1 hides all */
        int listed = strcmp(visible, "-1") != 0;
        for (const char *p = visible; listed && *p; p++) {
            listed += *p == ',';
        }
        n = listed < n ? listed : n;
    }
    return n;
}

static void set_gpus(Inference__ModelInstanceGroup *g, const int32_t *ids, size_t n)
{
    free(g->gpus);
    g->gpus = nrd_xcalloc(n + 1, sizeof *g->gpus);
    g->n_gpus = n;
    for (size_t i = 0; i < n; i++) {
        g->gpus[i] = ids ? ids[i] : (int32_t)i;
    }
}

static void resolve_group(nrd_config *cfg, size_t k, const nrd_preferred_group *groups, size_t n,
                          int n_gpus)
{
    Inference__ModelInstanceGroup *g = cfg->instance_group[k];

    if (g->name[0] == '\0') {
        char *name = nrd_xasprintf("%s_%zu", cfg->name, k);
        nrd_pb_set_string(&g->name, name);
        free(name);
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
            set_gpus(g, groups[i].gpus, groups[i].n_gpus);
        }
        if (g->count < 1 && groups[i].count > 0) {
            g->count = groups[i].count;
        }
    }
    if (g->count < 1) {
        g->count = 1;
    }
    if (g->kind == INFERENCE__MODEL_INSTANCE_GROUP__KIND__KIND_GPU && g->n_gpus == 0) {
        set_gpus(g, NULL, (size_t)n_gpus);
    }
}

nrd_error *nrd_config_normalize_groups(nrd_config *cfg, const nrd_preferred_group *groups, size_t n)
{
    int n_gpus = nrd_gpu_count();

    if (nrd_config_is_ensemble(cfg)) {
        return NULL;
    }
    if (cfg->n_instance_group == 0) {
        Inference__ModelInstanceGroup *g = nrd_xmalloc(sizeof *g);
        inference__model_instance_group__init(g);
        nrd_pb_set_string(&g->name, cfg->name);
        for (size_t i = 0; i < n; i++) {
            if (groups[i].kind == INFERENCE__MODEL_INSTANCE_GROUP__KIND__KIND_GPU && n_gpus == 0) {
                continue;
            }
            g->kind = groups[i].kind;
            g->count = groups[i].count;
            if (groups[i].n_gpus) {
                set_gpus(g, groups[i].gpus, groups[i].n_gpus);
            }
            break;
        }
        cfg->instance_group = nrd_xcalloc(1, sizeof *cfg->instance_group);
        cfg->instance_group[0] = g;
        cfg->n_instance_group = 1;
    }
    for (size_t k = 0; k < cfg->n_instance_group; k++) {
        resolve_group(cfg, k, groups, n, n_gpus);
    }
    return NULL;
}
