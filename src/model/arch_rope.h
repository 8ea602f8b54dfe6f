/* SPDX-License-Identifier: Apache-2.0
 * model/arch_rope.h - the scaling of rotary positions as config.json files describe it.
 *
 * Purpose   Hugging Face folders and TensorRT-LLM checkpoints use the same object.
 * Owner     A pure function, any thread.
 * Errors    UNSUPPORTED names a rule that is not known; INVALID_ARG a number out of range.
 */
#ifndef NRD_MODEL_ARCH_ROPE_H
#define NRD_MODEL_ARCH_ROPE_H

#include "base/json.h"
#include "model/spec.h"

/* `o`: rope_scaling, or one entry of rope_parameters; NULL: nothing is scaled. `config`: where the original
 * length stands if not in `o`. r->rotary_dim is set before. */
nrd_error *nrd_arch_rope_scaling(const nrd_json *o, const nrd_json *config, const nrd_model_spec *spec,
                                 nrd_rope_spec *r) NRD_MUST_USE;

#endif
