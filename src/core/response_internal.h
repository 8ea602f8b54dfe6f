/* SPDX-License-Identifier: Apache-2.0
 * core/response_internal.h - what responses and their factories are made of. */
#ifndef NRD_CORE_RESPONSE_INTERNAL_H
#define NRD_CORE_RESPONSE_INTERNAL_H

#include "core/response_order.h"
#include "core/memory.h"
#include "core/objects.h"
#include "core/types.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct nrd_factory { /* TRITONBACKEND_ResponseFactory */
    atomic_int refs;
    nrd_model *model; /* shared */
    int64_t model_version;
    char *id;
    TRITONSERVER_ResponseAllocator *allocator; /* borrowed until the last response is deleted */
    void *allocator_userp;
    bool core_buffers;
    TRITONSERVER_InferenceResponseCompleteFn_t response_fn;
    void *response_userp;
    nrd_cancel *cancel; /* shared */
    nrd_trace *trace;   /* shared */
    uint64_t start_ns;
    _Atomic bool first_sent, final_sent;
    _Atomic uint64_t n_reported; /* responses whose statistics came in */
    nrd_response_order *order; /* shared: responses wait for those of earlier requests; NULL: not */
    nrd_order_entry *order_entry; /* borrowed from it; NULL: over */
    char *cache_key;              /* under which the response is kept; NULL: it is not */
    nrd_buf *cache_question;      /* shared: what the key is the hash of */
    void (*keep_fn)(nrd_factory *f, nrd_response *r); /* of the cache, where there is a key */
    uint64_t cache_ns;                                /* what the look-up took */
    nrd_response *reserve; /* owns: says that there is no memory, when there is none for another */
    _Atomic bool reserve_used;
};

struct nrd_output {         /* TRITONBACKEND_Output */
    nrd_response *response; /* borrowed: inside it */
    char *name;
    TRITONSERVER_DataType dtype;
    uint32_t n_dims;
    int64_t dims[NRD_MAX_RANK];
    bool has_buffer;
    void *base;
    void *buffer_userp;
    nrd_attr attr;
    nrd_buf *buf; /* core_buffers: shared */
};

struct nrd_response {     /* TRITONSERVER_InferenceResponse and TRITONBACKEND_Response */
    nrd_factory *factory; /* shared */
    nrd_error *error;
    nrd_params params;
    nrd_output **outputs;
    uint32_t n_outputs, cap_outputs;
    bool started;    /* the allocator's start function was called */
    bool is_reserve; /* it belongs to its factory */
    nrd_order_item order_item;
};

typedef struct nrd_allocator { /* TRITONSERVER_ResponseAllocator */
    TRITONSERVER_ResponseAllocatorAllocFn_t alloc_fn;
    TRITONSERVER_ResponseAllocatorReleaseFn_t release_fn;
    TRITONSERVER_ResponseAllocatorStartFn_t start_fn;
    TRITONSERVER_ResponseAllocatorBufferAttributesFn_t attr_fn;
    TRITONSERVER_ResponseAllocatorQueryFn_t query_fn;
} nrd_allocator;

#endif
