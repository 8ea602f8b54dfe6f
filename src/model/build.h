/* SPDX-License-Identifier: Apache-2.0
 * model/build.h - a plan becomes a checkpoint folder or an engine folder.
 *
 * Purpose   Writes all ranks of a model as rankN.safetensors + config.json, or one rank0.engine +
 *           config.json, with weights packed for a device.
 * Owner     One thread calls; packing runs on n_threads of its own. `dev` may be used by them all
 *           at once: weight_plan and weight_pack are pure.
 * Errors    As the source, the plan and the files say. A folder that was not finished has no
 *           config.json.
 */
#ifndef NRD_MODEL_BUILD_H
#define NRD_MODEL_BUILD_H

#include "base/error.h"
#include "base/str.h"
#include "model/engine.h"
#include "model/plan.h"
#include "model/source.h"
#include "nereid/device.h"

typedef struct nrd_build_stats {
    uint64_t weight_bytes;    /* of all ranks, as written */
    uint64_t n_weights;       /* of rank 0 */
    nrd_str notes;            /* lines for the user; fini by the caller */
    bool has_cache_scales;    /* of an 8-bit cache */
} nrd_build_stats;

nrd_error *nrd_convert_folder(const nrd_source *src, const nrd_plan_options *opt,
                              const char *out_dir, nrd_build_stats *stats) NRD_MUST_USE;

/* The model's MTP layer (nrd_source_mtp) into the checkpoint's folder NRD_MTP_FOLDER; nothing where it has none. */
nrd_error *nrd_convert_mtp(const nrd_source *src, const nrd_plan_options *opt, const char *out_dir,
                           nrd_build_stats *stats) NRD_MUST_USE;

typedef struct nrd_build_options {
    nrd_plan_options plan;
    nrd_build_limits limits;
    int32_t max_encoder_input_len; /* of the encoder that is built beside a decoder; 0: as long as the model allows */
    nrd_device *dev;           /* whose layouts to use; NULL: rows only */
    const char *device_name;   /* "" with dev NULL */
    int32_t n_threads;         /* 0: one for each core */
    const char *extra_config;  /* members of build_config as JSON text, or NULL */
} nrd_build_options;

/* What nrd_build_folder would write, after all checks: an engine of this plan can be opened. Caller
 * frees. UNSUPPORTED: what no runner has (several ranks, draft tokens, prompt tables). */
nrd_error *nrd_build_plan(nrd_plan **out, const nrd_source *src, const nrd_build_options *opt)
    NRD_MUST_USE;
nrd_error *nrd_build_folder(const nrd_source *src, const nrd_build_options *opt,
                            const char *out_dir, nrd_build_stats *stats) NRD_MUST_USE;
/* The model's MTP layer into the engine's folder NRD_MTP_FOLDER, where it has one and the engine no pipeline stages.
 * It is whole: rank 0 guesses for all. */
nrd_error *nrd_build_mtp(const nrd_source *src, const nrd_build_options *opt, const char *out_dir,
                         nrd_build_stats *stats) NRD_MUST_USE;

#endif
