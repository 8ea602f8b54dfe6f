/* SPDX-License-Identifier: Apache-2.0
 * core/model_load.h - making a model from its folder and configuration, and taking it apart. */
#ifndef NRD_CORE_MODEL_LOAD_H
#define NRD_CORE_MODEL_LOAD_H

#include "base/error.h"
#include "core/objects.h"

#include <stdint.h>

/* Loads one version. Always takes cfg. */
nrd_error *nrd_model_new(nrd_model **out, nrd_context *ctx, const char *namespace, const char *name,
                         int64_t version, const char *dir, nrd_config *cfg) NRD_MUST_USE;
/* Gives the repository's share back: no request will find the model any more. */
void nrd_model_retire(nrd_model *m);
void nrd_model_destroy(nrd_model *m); /* finalizer only */

#endif
