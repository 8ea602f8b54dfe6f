/* SPDX-License-Identifier: Apache-2.0
 * model/mmproj.h - the vision tower of a GGUF model: a file of its own.
 *
 * Purpose   Finds the file that belongs to a model, tells its metadata as the config.json and preprocessor_config.json that
 *           model/vision.h reads, and makes the tower's tensors under their names in transformers.
 * Owner     Immutable after open; any thread may read.
 * Errors    UNSUPPORTED: a projector that is not computed; INVALID_ARG: the key or the tensor, expected and got; NOT_FOUND.
 * Lifetime  Tensors that were not made anew borrow from the object until close.
 * Source    Keys and names as llama.cpp's converter writes them, also those of its older converters; facts only.
 */
#ifndef NRD_MODEL_MMPROJ_H
#define NRD_MODEL_MMPROJ_H

#include "base/error.h"
#include "base/str.h"
#include "formats/gguf.h"
#include "model/spec.h"
#include "model/vision.h"

typedef struct nrd_mmproj nrd_mmproj;

/* asked: a path, "none", or NULL: a file of the model's folder with "mmproj" in its name, of several the one whose name has most of
 * the model's, and of those the one of 16 bits. model: as nrd_source_open takes it. *out NULL: there is none, or the model is no
 * GGUF file. Owned by the caller. */
nrd_error *nrd_mmproj_find(char **out, const char *asked, const char *model) NRD_MUST_USE;

nrd_error *nrd_mmproj_open(nrd_mmproj **out, const char *path) NRD_MUST_USE;
/* The same of a file that is open: takes it on success. */
nrd_error *nrd_mmproj_new(nrd_mmproj **out, nrd_gguf *file) NRD_MUST_USE;
void nrd_mmproj_close(nrd_mmproj *m); /* NULL is fine */

/* The two configurations as JSON, for a decoder of this spec; `words`: the decoder's file, which has the vocabulary. */
nrd_error *nrd_mmproj_describe(const nrd_mmproj *m, const nrd_model_spec *decoder, const nrd_gguf *words, nrd_str *config,
                               nrd_str *processor) NRD_MUST_USE;

typedef struct nrd_mmproj_tensor {
    nrd_dtype dtype; /* F32, F16 or BF16; blocks become F16 */
    const void *data;
    size_t data_bytes;
    void *own; /* the caller frees it */
} nrd_mmproj_tensor;

/* A tensor of the tower s by its name in transformers (nrd_vision_visit), rows * cols numbers; cols 0: a vector. */
nrd_error *nrd_mmproj_make(const nrd_mmproj *m, const nrd_vision_spec *s, const char *name, int64_t rows, int64_t cols,
                           nrd_mmproj_tensor *out) NRD_MUST_USE;

#endif
