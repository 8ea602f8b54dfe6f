/* SPDX-License-Identifier: Apache-2.0
 * model/engine_file.h - writing rankN.engine; reading is model/engine.h.
 *
 * Purpose   One file that is mapped and used as it is: header, table, names, then the data of every
 *           weight at an aligned offset. docs/engine-file.md has the layout byte by byte.
 * Owner     add and begin: one thread. put: any thread, each tensor once. commit: one thread.
 * Errors    INTERNAL with the path and the system's reason.
 * Lifetime  The file appears under its name only at commit; abort leaves nothing behind.
 */
#ifndef NRD_MODEL_ENGINE_FILE_H
#define NRD_MODEL_ENGINE_FILE_H

#include "base/error.h"
#include "model/engine.h"
#include "nereid/device.h"

#include <stddef.h>
#include <stdint.h>

/* The newest that is read. A file has the oldest one that knows all its tensors, so that an older build refuses it instead of passing
 * over what changes the results: 2 with NRD_ORDER, NRD_COLUMNS or NRD_INT8_INPUT (model/needs.h), else 1. */
enum { NRD_ENGINE_VERSION = 2 };

typedef struct nrd_engine_writer nrd_engine_writer;

nrd_error *nrd_engine_writer_open(nrd_engine_writer **out, const char *dir, int32_t rank,
                                  int32_t world_size, const char *device) NRD_MUST_USE;
/* Announces a weight: data_bytes of `w` and, when `n_scales` > 0, as many f32 scales. w->data is not
 * read here. Indices count from 0 in the order of the calls. */
nrd_error *nrd_engine_writer_add(nrd_engine_writer *w, const char *name, const nrd_weight *weight,
                                 int64_t n_scales) NRD_MUST_USE;
nrd_error *nrd_engine_writer_begin(nrd_engine_writer *w) NRD_MUST_USE;
nrd_error *nrd_engine_writer_put(nrd_engine_writer *w, size_t i, const void *data,
                                 const float *scales) NRD_MUST_USE;
nrd_error *nrd_engine_writer_commit(nrd_engine_writer *w) NRD_MUST_USE; /* frees w */
void nrd_engine_writer_abort(nrd_engine_writer *w);                     /* frees w */

/* For tests and fuzzing: an engine over memory that outlives it (64-byte aligned), and the checksums
 * of header and table made right again after an edit (does nothing to what is no engine). */
nrd_error *nrd_engine_open_memory(nrd_engine **out, const char *config, size_t config_bytes,
                                  const void *file, size_t file_bytes, int32_t rank, bool verify)
    NRD_MUST_USE;
void nrd_engine_reseal(void *file, size_t file_bytes);

/* config.json of an engine folder. `source`: what it was built from, for the message of a file that
 * has to be rebuilt. `extra`: more members of build_config as JSON text, or NULL. */
void nrd_engine_config_json(const nrd_model_spec *spec, const nrd_build_limits *limits,
                            const char *source, const char *extra, nrd_str *out);
/* Adds to that text what is in the files of `dir`, which are all written: each rank's file is then refused beside those of
 * another build. */
nrd_error *nrd_engine_config_contents(const char *dir, int32_t n_ranks, nrd_str *config) NRD_MUST_USE;
nrd_error *nrd_build_limits_check(const nrd_build_limits *limits) NRD_MUST_USE;
void nrd_build_limits_init(nrd_build_limits *limits, const nrd_model_spec *spec);

#endif
