/* SPDX-License-Identifier: Apache-2.0
 * core/memory.h - memory that travels with requests, and the memory manager of backends.
 *
 * Purpose   nrd_buf is a counted buffer: tensors go from step to step as shares of it, without
 *           copies.
 * Owner     Counted, any thread. The pool figures are those of the process.
 * Errors    NULL: no memory.
 */
#ifndef NRD_CORE_MEMORY_H
#define NRD_CORE_MEMORY_H

#include "nereid/server.h"
#include "triton/core/tritonserver.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct nrd_buf {
    atomic_int refs;
    size_t size_bytes;
    nrd_claim claim; /* with bytes: it counts as memory of a request until it is freed */
    void *data; /* 64-byte aligned, part of the same allocation */
} nrd_buf;

nrd_buf *nrd_buf_new(size_t size_bytes); /* NULL on no memory; contents undefined */
nrd_buf *nrd_buf_ref(nrd_buf *b);
void nrd_buf_unref(nrd_buf *b); /* NULL is fine */

typedef struct nrd_attr { /* TRITONSERVER_BufferAttributes */
    size_t byte_size;
    TRITONSERVER_MemoryType memory_type;
    int64_t memory_type_id;
    void *cuda_ipc_handle;
} nrd_attr;

typedef struct nrd_segment { /* a piece of a tensor */
    const void *base;
    nrd_attr attr;
    nrd_buf *owner; /* NULL: borrowed from the request's creator */
} nrd_segment;

/* The process's pool figures, for metrics. "Pinned" memory is limited, but ordinary memory: to make a
 * GPU know it would need a CUDA context in the server, which takes memory of every GPU. */
void nrd_pinned_pool_set_size(uint64_t size_bytes);
uint64_t nrd_pinned_pool_size(void);
uint64_t nrd_pinned_pool_used(void);

#endif
