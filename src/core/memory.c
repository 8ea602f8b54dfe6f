/* SPDX-License-Identifier: Apache-2.0 */
#include "core/memory.h"

#include "core/api.h"
#include "nereid/server.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/pool.h"

#include <stdatomic.h>
#include <stdlib.h>

/* ---- counted buffers ---- */

enum {
    BUF_ALIGN = 64, /* one cache line; enough for every vector load */
    BUF_HEADER = (sizeof(nrd_buf) + BUF_ALIGN - 1) / BUF_ALIGN * BUF_ALIGN,
};

nrd_buf *nrd_buf_new(size_t size_bytes)
{
    size_t total;
    void *p = NULL;

    if (!nrd_size_add(BUF_HEADER, size_bytes, &total)) {
        return NULL;
    }
    if (total <= NRD_POOL_MAX) {
        p = nrd_pool_get(total);
        if (!p) {
            return NULL;
        }
    } else if (posix_memalign(&p, BUF_ALIGN, total) != 0) {
        return NULL;
    }
    nrd_buf *b = p;
    atomic_init(&b->refs, 1);
    b->size_bytes = size_bytes;
    b->claim = (nrd_claim){0};
    b->data = (char *)p + BUF_HEADER;
    return b;
}

nrd_buf *nrd_buf_ref(nrd_buf *b)
{
    atomic_fetch_add_explicit(&b->refs, 1, memory_order_relaxed);
    return b;
}

void nrd_buf_unref(nrd_buf *b)
{
    if (b && atomic_fetch_sub(&b->refs, 1) == 1) {
        if (b->claim.bytes > 0) {
            nrd_server_unclaim(&b->claim, NRD_CLAIM_ALL);
        }
        nrd_pool_put(b, BUF_HEADER + b->size_bytes);
    }
}

/* ---- the memory manager that backends use ---- */

/* A block remembers its size so that the pool's figure can go down again. */
typedef struct block_head {
    uint64_t size_bytes;
    uint64_t pinned;
    char pad[BUF_ALIGN - 16];
} block_head;

static _Atomic uint64_t pinned_size;
static _Atomic uint64_t pinned_used;

void nrd_pinned_pool_set_size(uint64_t size_bytes)
{
    atomic_store(&pinned_size, size_bytes);
}

uint64_t nrd_pinned_pool_size(void)
{
    return atomic_load(&pinned_size);
}

uint64_t nrd_pinned_pool_used(void)
{
    return atomic_load(&pinned_used);
}

TRITONSERVER_Error *TRITONBACKEND_MemoryManagerAllocate(TRITONBACKEND_MemoryManager *manager,
                                                        void **buffer,
                                                        const TRITONSERVER_MemoryType memory_type,
                                                        const int64_t memory_type_id,
                                                        const uint64_t byte_size)
{
    void *p = NULL;
    size_t total;

    (void)manager;
    (void)memory_type_id;
    *buffer = NULL;
    if (memory_type == TRITONSERVER_MEMORY_GPU) {
        return as_api(nrd_errorf(NRD_ERR_UNSUPPORTED,
                                 "memory manager: GPU memory is not available in this server"));
    }
    if (memory_type == TRITONSERVER_MEMORY_CPU_PINNED &&
        atomic_fetch_add(&pinned_used, byte_size) + byte_size > atomic_load(&pinned_size)) {
        atomic_fetch_sub(&pinned_used, byte_size);
        return as_api(nrd_errorf(NRD_ERR_UNAVAILABLE,
                                 "failed to allocate pinned system memory: no pinned memory pool"));
    }
    if (!nrd_size_add(sizeof(block_head), byte_size, &total) ||
        posix_memalign(&p, BUF_ALIGN, total) != 0) {
        if (memory_type == TRITONSERVER_MEMORY_CPU_PINNED) {
            atomic_fetch_sub(&pinned_used, byte_size);
        }
        return as_api(nrd_error_no_memory());
    }
    block_head *h = p;
    h->size_bytes = byte_size;
    h->pinned = memory_type == TRITONSERVER_MEMORY_CPU_PINNED;
    *buffer = h + 1;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_MemoryManagerFree(TRITONBACKEND_MemoryManager *manager,
                                                    void *buffer,
                                                    const TRITONSERVER_MemoryType memory_type,
                                                    const int64_t memory_type_id)
{
    (void)manager;
    (void)memory_type_id;
    if (memory_type == TRITONSERVER_MEMORY_GPU) {
        return as_api(nrd_errorf(NRD_ERR_UNSUPPORTED,
                                 "memory manager: GPU memory is not available in this server"));
    }
    if (buffer) {
        block_head *h = (block_head *)buffer - 1;
        if (h->pinned) {
            atomic_fetch_sub(&pinned_used, h->size_bytes);
        }
        free(h);
    }
    return NULL;
}
