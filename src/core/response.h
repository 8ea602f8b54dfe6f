/* core/response.h - responses, and the factories that make them.
 *
 * Owner     nrd_factory: counted; it outlives the request while responses may still come.
 *           nrd_response: whoever it was handed to last.
 */
#ifndef NRD_CORE_RESPONSE_H
#define NRD_CORE_RESPONSE_H

#include "base/error.h"
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
    void (*keep_fn)(nrd_factory *f, nrd_response *r); /* of the cache, where there is a key */
    uint64_t cache_ns;                                /* what the look-up took */
};

nrd_factory *nrd_factory_new(const nrd_request *r);
nrd_factory *nrd_factory_ref(nrd_factory *f);
void nrd_factory_unref(nrd_factory *f); /* NULL is fine */
void nrd_factory_send_flags(nrd_factory *f, uint32_t flags);
/* Its responses come in the place of its request among those of o (NULL: none), unless they have
 * one already. */
void nrd_factory_join_order(nrd_factory *f, nrd_response_order *o);
void nrd_factory_leave_order(nrd_factory *f); /* they need not wait for others */
/* nrd_deliver_fn: calls the response callback. */
void nrd_factory_deliver(nrd_factory *f, nrd_response *r, uint32_t flags);

typedef struct nrd_output { /* TRITONBACKEND_Output */
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
} nrd_output;

struct nrd_response {     /* TRITONSERVER_InferenceResponse and TRITONBACKEND_Response */
    nrd_factory *factory; /* shared */
    nrd_error *error;
    nrd_params params;
    nrd_output **outputs;
    uint32_t n_outputs, cap_outputs;
    bool started; /* the allocator's start function was called */
};

nrd_response *nrd_response_new(nrd_factory *f);
void nrd_response_free(nrd_response *r);
nrd_error *nrd_response_add_output(nrd_output **out, nrd_response *r, const char *name,
                                   TRITONSERVER_DataType dtype, const int64_t *dims,
                                   uint32_t n) NRD_MUST_USE;
/* memory type: wish on entry, fact on return. */
nrd_error *nrd_output_alloc(nrd_output *o, size_t byte_size, TRITONSERVER_MemoryType *type,
                            int64_t *type_id) NRD_MUST_USE;
void nrd_response_send(nrd_response *r, uint32_t flags, nrd_error *err); /* takes both always */

typedef struct nrd_allocator { /* TRITONSERVER_ResponseAllocator */
    TRITONSERVER_ResponseAllocatorAllocFn_t alloc_fn;
    TRITONSERVER_ResponseAllocatorReleaseFn_t release_fn;
    TRITONSERVER_ResponseAllocatorStartFn_t start_fn;
    TRITONSERVER_ResponseAllocatorBufferAttributesFn_t attr_fn;
    TRITONSERVER_ResponseAllocatorQueryFn_t query_fn;
} nrd_allocator;

#endif
