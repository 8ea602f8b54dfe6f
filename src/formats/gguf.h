/* SPDX-License-Identifier: Apache-2.0
 * formats/gguf.h - reading a GGUF file, version 2 and 3, little endian.
 *
 * Purpose   Names, types and spans of a mapped file: metadata and tensors, nothing copied but the
 *           index.
 * Owner     Immutable after open; any thread may read.
 * Errors    INVALID_ARG with the path, what was expected and the byte offset; every count, length
 *           and span is checked against the file before it is used.
 * Lifetime  Strings and spans borrow from the mapping until close.
 * Source    GGUF specification (ggml-org/ggml, docs/gguf.md).
 */
#ifndef NRD_FORMATS_GGUF_H
#define NRD_FORMATS_GGUF_H

#include "base/error.h"
#include "nereid/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct nrd_gguf nrd_gguf;

typedef enum { /* values of the format */
    NRD_GGUF_U8 = 0,
    NRD_GGUF_I8 = 1,
    NRD_GGUF_U16 = 2,
    NRD_GGUF_I16 = 3,
    NRD_GGUF_U32 = 4,
    NRD_GGUF_I32 = 5,
    NRD_GGUF_F32 = 6,
    NRD_GGUF_BOOL = 7,
    NRD_GGUF_STRING = 8,
    NRD_GGUF_ARRAY = 9,
    NRD_GGUF_U64 = 10,
    NRD_GGUF_I64 = 11,
    NRD_GGUF_F64 = 12,
} nrd_gguf_type;

typedef struct nrd_gguf_span { /* bytes inside the file, not NUL-terminated */
    const char *data;
    size_t n;
} nrd_gguf_span;

typedef struct nrd_gguf_value {
    nrd_gguf_span key;
    nrd_gguf_type type;      /* ARRAY: elem_type and n say what is inside */
    nrd_gguf_type elem_type;
    uint64_t n;              /* elements of an array, else 1 */
    const uint8_t *data;     /* raw bytes of the value or of the array's elements */
    size_t data_bytes;
    const uint32_t *str_off; /* arrays of strings: offset of each string's length in data, else NULL */
} nrd_gguf_value;

/* Name of a type without an nrd_dtype, which model/quant/bitnet.c reads. */
#define NRD_GGUF_I2_S "I2_S"

typedef struct nrd_gguf_tensor {
    const char *name;        /* NUL-terminated, owned by the nrd_gguf */
    nrd_dtype dtype;         /* NONE: a type of the format that we cannot compute with */
    uint32_t type;           /* the format's number, see nrd_gguf_tensor_type_name */
    int n_dims;
    int64_t dims[4];         /* GGUF order: dims[0] is the contiguous one */
    const void *data;
    size_t data_bytes;
} nrd_gguf_tensor;

nrd_error *nrd_gguf_open(nrd_gguf **out, const char *path) NRD_MUST_USE;
/* The same over memory that outlives the object (fuzzing, tests). */
nrd_error *nrd_gguf_open_memory(nrd_gguf **out, const void *data, size_t n) NRD_MUST_USE;
/* Adds the tensors of another file, a later part of the same model, and its lifetime: takes `part` on success.
 * INVALID_ARG: a tensor appears twice. */
nrd_error *nrd_gguf_join(nrd_gguf *g, nrd_gguf *part) NRD_MUST_USE;
bool nrd_gguf_is_lost(const nrd_gguf *g); /* the file was made shorter, and what was read is not its content */
void nrd_gguf_close(nrd_gguf *g);

size_t nrd_gguf_n_values(const nrd_gguf *g);
const nrd_gguf_value *nrd_gguf_value_at(const nrd_gguf *g, size_t i);
const nrd_gguf_value *nrd_gguf_find(const nrd_gguf *g, const char *key); /* NULL: absent */
size_t nrd_gguf_n_tensors(const nrd_gguf *g);
const nrd_gguf_tensor *nrd_gguf_tensor_at(const nrd_gguf *g, size_t i);
const nrd_gguf_tensor *nrd_gguf_find_tensor(const nrd_gguf *g, const char *name);

const char *nrd_gguf_tensor_type_name(uint32_t type); /* "Q4_K", "IQ4_XS", …; "unknown" */

/* Scalars with conversion between number types; the fallback when absent or of another kind. */
int64_t nrd_gguf_int(const nrd_gguf *g, const char *key, int64_t fallback);
double nrd_gguf_num(const nrd_gguf *g, const char *key, double fallback);
bool nrd_gguf_bool(const nrd_gguf *g, const char *key, bool fallback);
bool nrd_gguf_str(const nrd_gguf *g, const char *key, nrd_gguf_span *out);

/* Element i of an array value; false out of range or wrong kind. */
bool nrd_gguf_arr_str(const nrd_gguf_value *v, uint64_t i, nrd_gguf_span *out);
bool nrd_gguf_arr_num(const nrd_gguf_value *v, uint64_t i, double *out); /* any number or bool */

#endif
