/* SPDX-License-Identifier: Apache-2.0
 * core/model.h - models: one version that was loaded.
 *
 * Owner     Counted: the repository, requests and response factories share it. The last share gives
 *           it to the server's finalizer thread, never a thread of the model itself.
 * Lifetime  Made whole or not at all; afterwards its configuration does not change.
 */
#ifndef NRD_CORE_MODEL_H
#define NRD_CORE_MODEL_H

#include "base/error.h"
#include "base/str.h"
#include "core/memory.h"
#include "core/objects.h"
#include "triton/core/tritonbackend.h"

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

nrd_model *nrd_model_ref(nrd_model *m);
void nrd_model_unref(nrd_model *m); /* the last one gives it to the finalizer */
const Inference__ModelInput *nrd_model_input(const nrd_model *m, const char *name);
const Inference__ModelOutput *nrd_model_output(const nrd_model *m, const char *name);
/* A file that the model's configuration names, with a final NUL; owned. */
nrd_error *nrd_model_read_file(char **out, size_t *out_len, const char *path) NRD_MUST_USE;
nrd_error *nrd_model_ready(nrd_model *m) NRD_MUST_USE; /* asks the instances */
void nrd_usage_replace(pthread_mutex_t *mu, nrd_attr ***list, uint32_t *n,
                       TRITONSERVER_BufferAttributes **usage, uint32_t n_usage);
void nrd_model_metadata_json(nrd_model *m, const int64_t *versions, size_t n, nrd_str *out);

#endif
