/* SPDX-License-Identifier: Apache-2.0
 * core/config/config.h - a model's configuration: read, completed, made uniform, checked.
 *
 * Errors    For users, with Triton's words; what cannot be read as well.
 */
#ifndef NRD_CORE_CONFIG_CONFIG_H
#define NRD_CORE_CONFIG_CONFIG_H

#include "base/error.h"
#include "core/objects.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct nrd_preferred_group {
    Inference__ModelInstanceGroup__Kind kind;
    int32_t count;
    int32_t *gpus;
    size_t n_gpus;
} nrd_preferred_group;

enum { NRD_CONFIG_MAX_BYTES = 16 << 20 };

/* Reads <dir>/config.pbtxt (or the custom name), or overrides it with JSON text (may be NULL). */
nrd_error *nrd_config_load(nrd_config **out, nrd_context *ctx, const char *name, const char *dir,
                           const char *override_json) NRD_MUST_USE;
nrd_error *nrd_config_autofill(nrd_context *ctx, nrd_config *cfg, const char *dir) NRD_MUST_USE;
nrd_error *nrd_config_normalize(nrd_config *cfg) NRD_MUST_USE;
nrd_error *nrd_config_normalize_groups(nrd_config *cfg, const nrd_preferred_group *groups,
                                       size_t n) NRD_MUST_USE;
nrd_error *nrd_config_validate(const nrd_config *cfg) NRD_MUST_USE;
nrd_error *nrd_config_validate_groups(const nrd_config *cfg) NRD_MUST_USE;
nrd_error *nrd_config_validate_io(const nrd_config *cfg) NRD_MUST_USE;
nrd_error *nrd_config_validate_sequence(const nrd_config *cfg) NRD_MUST_USE;
nrd_error *nrd_config_from_json(nrd_config **out, const char *json, size_t len) NRD_MUST_USE;
bool nrd_config_is_ensemble(const nrd_config *cfg);
/* GPUs of this machine that CUDA lets this process use; they are numbered from 0. */
int nrd_gpu_count(void);
/* Of n GPUs those that CUDA_VISIBLE_DEVICES, `list` (NULL: not set), leaves. */
int nrd_gpus_visible(const char *list, int n);

#endif
