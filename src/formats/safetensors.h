/* SPDX-License-Identifier: Apache-2.0
 * formats/safetensors.h - reading and writing safetensors files.
 *
 * Purpose   Reader: names, types, shapes and spans of a mapped file; nothing is copied but the
 *           index. Writer: the header first, then the data of each tensor in order, streaming.
 * Owner     A reader is immutable after open and may be used by any thread; a writer has one.
 * Errors    INVALID_ARG with path, tensor, expected, got; every span is checked before use.
 * Limits    Header of 100 MB (the format's), 1<<20 tensors, 4 dimensions.
 * Lifetime  Names and data borrow from the reader until close.
 * Source    The format's description (huggingface/safetensors, README).
 *
 * Block formats (Q4_1, …) have no type of their own in the format: they are stored as U8 [rows,
 * bytes of a row], and __metadata__ says "<name>": "q4_1 <rows> <cols>". The reader gives the real
 * type and shape back; other readers see bytes.
 */
#ifndef NRD_FORMATS_SAFETENSORS_H
#define NRD_FORMATS_SAFETENSORS_H

#include "base/error.h"
#include "nereid/dtype.h"

#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct nrd_safetensors nrd_safetensors;

enum { NRD_SAFETENSORS_MAX_DIMS = 5 }; /* that of a convolution over pictures and time */

typedef struct nrd_safetensor {
    const char *name;
    nrd_dtype dtype;       /* NONE: a type of the format that we do not know */
    int n_dims;
    int64_t dims[NRD_SAFETENSORS_MAX_DIMS]; /* outermost first, in elements */
    const void *data;
    size_t data_bytes;
    const char *type_name; /* as the file says: "BF16" */
} nrd_safetensor;

nrd_error *nrd_safetensors_open(nrd_safetensors **out, const char *path) NRD_MUST_USE;
/* Over memory that outlives the object. */
nrd_error *nrd_safetensors_open_memory(nrd_safetensors **out, const void *data, size_t n)
    NRD_MUST_USE;
bool nrd_safetensors_is_lost(const nrd_safetensors *s); /* the file was made shorter while it was read */
void nrd_safetensors_close(nrd_safetensors *s);
size_t nrd_safetensors_n(const nrd_safetensors *s);
const nrd_safetensor *nrd_safetensors_at(const nrd_safetensors *s, size_t i); /* in file order */
const nrd_safetensor *nrd_safetensors_find(const nrd_safetensors *s, const char *name);
/* A value of __metadata__, or NULL. */
const char *nrd_safetensors_metadata(const nrd_safetensors *s, const char *key);

typedef struct nrd_safetensors_writer nrd_safetensors_writer;

nrd_error *nrd_safetensors_writer_open(nrd_safetensors_writer **out, const char *path) NRD_MUST_USE;
/* Announces a tensor; all before begin. */
nrd_error *nrd_safetensors_writer_add(nrd_safetensors_writer *w, const char *name, nrd_dtype dtype,
                                      const int64_t *dims, int n_dims) NRD_MUST_USE;
nrd_error *nrd_safetensors_writer_begin(nrd_safetensors_writer *w) NRD_MUST_USE;
/* Bytes of the tensors, in the order of add, in pieces of any length. */
nrd_error *nrd_safetensors_writer_write(nrd_safetensors_writer *w, const void *data, size_t n)
    NRD_MUST_USE;
nrd_error *nrd_safetensors_writer_commit(nrd_safetensors_writer *w) NRD_MUST_USE; /* frees w */
void nrd_safetensors_writer_abort(nrd_safetensors_writer *w);                     /* frees w */

#endif
