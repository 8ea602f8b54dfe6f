/* SPDX-License-Identifier: Apache-2.0
 * formats/torch_bin.h - reading pytorch_model.bin: a zip of a pickle and raw storages, or before PyTorch 1.6 pickles and storages
 * behind each other.
 *
 * Purpose   Names, types, shapes and spans of the tensors in a mapped file. The pickle is read by
 *           an interpreter that can only build numbers, strings, tuples, lists, dictionaries and
 *           descriptions of tensors; no name in it is ever looked up or called.
 * Owner     Immutable after open; any thread may read.
 * Errors    INVALID_ARG with path, offset, expected, got. UNSUPPORTED: compressed members, tensors
 *           that are not contiguous.
 * Limits    See torch_bin.c; memory is bounded by the size of the pickle.
 * Lifetime  Names and data borrow from the object until close.
 * Sources   Python's pickle protocol 2 (pickletools); ZIP (PKWARE APPNOTE 6.3).
 */
#ifndef NRD_FORMATS_TORCH_BIN_H
#define NRD_FORMATS_TORCH_BIN_H

#include "base/error.h"
#include "nereid/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct nrd_torch_bin nrd_torch_bin;

enum { NRD_TORCH_MAX_DIMS = 5 };

typedef struct nrd_torch_tensor {
    const char *name;
    nrd_dtype dtype;
    int n_dims;
    int64_t dims[NRD_TORCH_MAX_DIMS]; /* outermost first */
    const void *data;
    size_t data_bytes;
} nrd_torch_tensor;

nrd_error *nrd_torch_bin_open(nrd_torch_bin **out, const char *path) NRD_MUST_USE;
/* Over memory that outlives the object. */
nrd_error *nrd_torch_bin_open_memory(nrd_torch_bin **out, const void *data, size_t n) NRD_MUST_USE;
bool nrd_torch_bin_is_lost(const nrd_torch_bin *t); /* the file was made shorter while it was read */
void nrd_torch_bin_close(nrd_torch_bin *t);
/* A whole number of a dictionary beside the tensors, such as the sizes that OpenAI's Whisper files have: "dims/n_mels"; true is 1. */
bool nrd_torch_bin_int(const nrd_torch_bin *t, const char *name, int64_t *out);
const char *nrd_torch_bin_text(const nrd_torch_bin *t, const char *name); /* likewise; NULL: there is none */
size_t nrd_torch_bin_n(const nrd_torch_bin *t);
const nrd_torch_tensor *nrd_torch_bin_at(const nrd_torch_bin *t, size_t i);

#endif
