/* SPDX-License-Identifier: Apache-2.0
 * core/request_internal.h - what a request is made of: for the files that it passes through. */
#ifndef NRD_CORE_REQUEST_INTERNAL_H
#define NRD_CORE_REQUEST_INTERNAL_H

#include "core/memory.h"
#include "core/objects.h"
#include "core/types.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct nrd_input { /* TRITONBACKEND_Input */
    char *name;
    TRITONSERVER_DataType dtype;
    bool raw;
    uint32_t n_given, n_dims;
    int64_t given[NRD_MAX_RANK]; /* as the client gave it */
    int64_t dims[NRD_MAX_RANK];  /* for the backend: batch first, then the reshaped rest */
    nrd_segment *segments;
    uint32_t n_segments, cap_segments;
    uint64_t byte_size;
    uint32_t raw_len; /* length prefix made for a raw BYTES input */
    bool is_override; /* made by a scheduler: a control or a state, gone when the request is */
    struct nrd_input *shadowed; /* owned: what an override of the same name stands in front of */
};

typedef enum {
    NRD_REQ_NEW,      /* with its creator */
    NRD_REQ_PREPARED, /* checked, about to be queued */
    NRD_REQ_PENDING,  /* in a queue */
    NRD_REQ_RUNNING,  /* with a backend or an ensemble */
} nrd_req_state;

struct nrd_request {       /* TRITONSERVER_InferenceRequest and TRITONBACKEND_Request */
    atomic_int refs;       /* the creator's, and one while a backend's execute runs */
    nrd_context *ctx;      /* borrowed */
    nrd_model *model;      /* shared; NULL after release until used again */
    char *model_name;      /* this text, id and the outputs' names: nrd_pool_strdup */
    int64_t model_version; /* as asked for; -1 = by policy */
    char *id;
    uint32_t flags;
    uint64_t corr_id;
    char *corr_str; /* NULL: the correlation id is the number */
    uint64_t priority;
    uint64_t timeout_us;
    nrd_input **inputs;
    uint32_t n_inputs, cap_inputs;
    char **outputs; /* asked for; none = all */
    uint32_t n_outputs, cap_outputs;
    nrd_params params;
    TRITONSERVER_InferenceRequestReleaseFn_t release_fn;
    void *release_userp;
    TRITONSERVER_InferenceResponseCompleteFn_t response_fn;
    void *response_userp;
    TRITONSERVER_ResponseAllocator *allocator;
    void *allocator_userp;
    bool core_buffers;        /* outputs into nrd_buf: a step of an ensemble */
    nrd_cancel *parent;       /* shared: cancelled with it; NULL outside ensembles */
    nrd_step_sums *step_sums; /* borrowed until release; NULL outside ensembles */
    nrd_trace *trace;         /* shared */
    /* since the last ServerInferAsync */
    nrd_account *account; /* shared; its memory counts there. NULL: in one of its own, or its parent's */
    nrd_cancel *cancel;   /* shared; kept after release, so that a late cancel is harmless */
    nrd_factory *factory; /* shared; NULL after release */
    _Atomic int state;    /* nrd_req_state */
    uint32_t batch_size;  /* 0: the model does not batch */
    uint64_t start_ns, queue_ns, deadline_ns; /* deadline 0: none */
    uint64_t start_by_ns; /* its deadline where the queue rejects what is late; 0: none */
    nrd_request *next, *prev; /* of the queue that holds it; guarded by that queue's lock */
    uint64_t batch_ns;        /* entered the queue that forms its batch */
    bool no_memory; /* an override is missing: it must not be executed */
    bool is_null;             /* fills an empty slot of a batch; its answer is dropped */
    bool made_corr_id;        /* the correlation id is the sequence batcher's own */
    nrd_scheduler *owner;     /* borrowed: to be told of the release; NULL: none */
    nrd_sequence_slot *seq_slot; /* borrowed: where it runs; NULL until it does */
    nrd_sequence_states *states; /* shared: implicit state; NULL: the model has none */
};

#endif
