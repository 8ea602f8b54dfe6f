/* SPDX-License-Identifier: Apache-2.0
 * formats/torch_pickle.h - pickles of PyTorch's files: numbers, texts, containers and descriptions of tensors.
 *
 * Purpose   A small stack machine for formats/torch_bin.c. No name in a pickle is ever looked up or called: whatever no tensor needs
 *           becomes an opaque value. An object with a dictionary as its state (argparse.Namespace) is that dictionary.
 * Owner     One thread for each machine. Values live in the caller's arena; texts borrow from the pickle.
 * Errors    INVALID_ARG with path, offset and what is wrong; UNSUPPORTED: an opcode or storage that no state dictionary has.
 * Limits    Depth of the stack, number of remembered values; memory is bounded by the size of the pickle.
 * Sources   Python's pickle protocol 2 (pickletools).
 */
#ifndef NRD_FORMATS_TORCH_PICKLE_H
#define NRD_FORMATS_TORCH_PICKLE_H

#include "base/error.h"
#include "base/mem.h"
#include "nereid/dtype.h"

#include <stddef.h>
#include <stdint.h>

typedef enum {
    NRD_PICKLE_MARK,
    NRD_PICKLE_OPAQUE, /* None, floats, objects: whatever no tensor needs */
    NRD_PICKLE_BOOL,
    NRD_PICKLE_INT,
    NRD_PICKLE_STR,
    NRD_PICKLE_TUPLE,
    NRD_PICKLE_LIST,
    NRD_PICKLE_DICT, /* items: key, value, key, value, … */
    NRD_PICKLE_GLOBAL,
    NRD_PICKLE_STORAGE,
    NRD_PICKLE_TENSOR,
} nrd_pickle_kind;

typedef struct nrd_pickle_value {
    nrd_pickle_kind kind;
    nrd_dtype dtype;      /* storage, tensor */
    const char *str;      /* string; "module name" of a global; key of a storage */
    size_t n;             /* bytes of str, or number of items */
    int64_t i;            /* int, bool; elements of a storage; offset of a tensor */
    struct nrd_pickle_value **items; /* tuple, list, dict */
    size_t cap;
    struct nrd_pickle_value *storage; /* tensor */
    struct nrd_pickle_value *sizes, *strides;
} nrd_pickle_value;

/* The storages that tensors of a pickle name, each as often as it is named. The caller frees `items`. */
typedef struct nrd_pickle_storages {
    const nrd_pickle_value **items;
    size_t n, cap;
} nrd_pickle_storages;

/* The value of the pickle that begins at data[*io_at]; *io_at then is behind it. *out is NULL where it leaves none. storages: takes
 * what is named; NULL: not wanted. */
nrd_error *nrd_pickle_read(nrd_arena *arena, const char *path, const uint8_t *data, size_t n, size_t *io_at,
                           const nrd_pickle_value **out, nrd_pickle_storages *storages) NRD_MUST_USE;

#endif
