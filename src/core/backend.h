/* SPDX-License-Identifier: Apache-2.0
 * core/backend.h - backend libraries: found, opened and shared by the models that name them.
 *
 * Owner     Counted: the server keeps one share, each model another.
 */
#ifndef NRD_CORE_BACKEND_H
#define NRD_CORE_BACKEND_H

#include "base/error.h"
#include "base/str.h"
#include "core/objects.h"
#include "core/strings.h"

#include <stdint.h>

/* Finds the library for the model, opening it unless another model has it open. */
nrd_error *nrd_backend_get(nrd_backend **out, nrd_context *ctx, const char *name,
                           const char *model_dir, int64_t version) NRD_MUST_USE;
void nrd_backend_put(nrd_backends *all, nrd_backend *b);

/* All backends of a server. */
nrd_backends *nrd_backends_new(void);
void nrd_backends_free(nrd_backends *all); /* gives the server's shares back; NULL is fine */
/* Rows "name, path, settings" of the libraries that are open. */
void nrd_backends_list(nrd_backends *all, nrd_strings *cells);

#endif
