/* SPDX-License-Identifier: Apache-2.0
 * model/heads_file.h - the tensors of a small network that stands beside a model: EAGLE heads, a ReDrafter.
 *
 * Purpose   One file of a folder, in safetensors or in PyTorch's form, and its tensors as weights of expected sizes.
 * Forms     Matrices and vectors of F32, F16 or BF16. Matrices of I8 or F8_E4M3, where NAME_scale [rows] or [rows, 1] in one of those
 *           types says what each row is multiplied by, or of F8_E4M3 one number all of them (compressed-tensors' names).
 * Owner     Weights are taken by the thread that opens; then it is immutable, and any thread may read. Weights borrow from the file until
 *           close.
 * Errors    NOT_FOUND: no such file. INVALID_ARG: file, tensor, expected, got. UNSUPPORTED: a type.
 */
#ifndef NRD_MODEL_HEADS_FILE_H
#define NRD_MODEL_HEADS_FILE_H

#include "base/error.h"
#include "formats/safetensors.h"
#include "formats/torch_bin.h"
#include "nereid/device.h"

typedef struct nrd_heads_file { /* zero-initialised: nothing is open */
    nrd_safetensors *safetensors; /* one of the two */
    nrd_torch_bin *torch_bin;
    char *path;
    float **scales; /* [n_scales] of weights that were taken */
    size_t n_scales;
} nrd_heads_file;

typedef struct nrd_heads_tensor {
    nrd_dtype dtype;
    int n_dims;
    int64_t dims[4];
    const void *data;
    size_t data_bytes;
} nrd_heads_tensor;

/* A file by its path, in the form that its name says. */
nrd_error *nrd_heads_file_open_at(nrd_heads_file *f, const char *path) NRD_MUST_USE;
/* The first of `names` [n] that is in the folder; one that ends in .safetensors has that form, others are PyTorch's. *found false:
 * there is none. Close it also after an error. */
nrd_error *nrd_heads_file_open(nrd_heads_file *f, const char *dir, const char *const *names, int n, bool *found) NRD_MUST_USE;
void nrd_heads_file_close(nrd_heads_file *f);
bool nrd_heads_file_find(const nrd_heads_file *f, const char *name, nrd_heads_tensor *out);
/* As rows, F32, F16 or BF16, or a matrix of I8 or F8_E4M3 with its scales; cols 0: a vector of `rows` numbers, which is one row. */
nrd_error *nrd_heads_file_weight(nrd_heads_file *f, const char *name, const nrd_heads_tensor *t, int64_t rows, int64_t cols,
                                 nrd_weight *out) NRD_MUST_USE;

/* Announces a weight that was taken, with its scales, or writes it (`data`): for writers, which do the one for all and then the other. */
nrd_error *nrd_heads_file_put(nrd_safetensors_writer *w, const char *name, const nrd_weight *t, bool is_vector, bool data) NRD_MUST_USE;

#endif
