/* SPDX-License-Identifier: Apache-2.0
 * formats/npy.h - one array in a NumPy file.
 *
 * Purpose   Reader: type, shape and data of a mapped file, C order, little endian. Writer: a whole array.
 * Owner     A reader is immutable after open and may be used by any thread.
 * Errors    INVALID_ARG with path, expected, got; the data's length is checked against the shape.
 * Limits    Header of 64 KiB, NRD_NPY_MAX_DIMS dimensions.
 * Lifetime  Data borrows from the reader until close.
 * Source    The format's description (NEP 1). bfloat16 has no type of its own there: it is stored as two
 *           raw bytes ("|V2"), as PyTorch's users do.
 */
#ifndef NRD_FORMATS_NPY_H
#define NRD_FORMATS_NPY_H

#include "base/error.h"
#include "base/file.h"
#include "nereid/dtype.h"

#include <stddef.h>
#include <stdint.h>

enum { NRD_NPY_MAX_DIMS = 8 };

typedef enum {
    NRD_NPY_F32,
    NRD_NPY_F16,
    NRD_NPY_BF16,
    NRD_NPY_I32,
    NRD_NPY_I64,
} nrd_npy_type;

typedef struct nrd_npy {
    nrd_npy_type type;
    int n_dims;
    int64_t dims[NRD_NPY_MAX_DIMS];
    const void *data;
    size_t n; /* elements */
    nrd_map map;
} nrd_npy;

nrd_error *nrd_npy_open(nrd_npy *out, const char *path) NRD_MUST_USE;
void nrd_npy_close(nrd_npy *a); /* safe on a zeroed struct */
const char *nrd_npy_type_name(nrd_npy_type t);
/* data: as many elements as dims say. The old or the new file, never half of one. */
nrd_error *nrd_npy_write(const char *path, nrd_npy_type type, const int64_t *dims, int n_dims,
                         const void *data) NRD_MUST_USE;

#endif
