/* core/request.h - requests.
 *
 * Purpose   A request's life: NEW (its creator builds it) - PREPARED (checked) - PENDING (queued) -
 *           RUNNING (with a backend or an ensemble) - NEW again through the release callback.
 * Owner     Its creator; lent to the core from ServerInferAsync until the release callback. One
 *           thread at a time, except where a field says otherwise.
 * Units     Times in nanoseconds of the steady clock unless the name says otherwise.
 * Errors    For the client: INVALID_ARG with Triton's words.
 */
#ifndef NRD_CORE_REQUEST_H
#define NRD_CORE_REQUEST_H

#include "base/error.h"
#include "core/memory.h"
#include "core/objects.h"
#include "core/statistics.h"
#include "core/types.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { NRD_MAX_INPUT_SEGMENTS = 1 << 20 }; /* buffers of one input */

typedef struct nrd_segment {
    const void *base;
    nrd_attr attr;
    nrd_buf *owner; /* NULL: borrowed from the request's creator */
} nrd_segment;

typedef struct nrd_input { /* TRITONBACKEND_Input */
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
} nrd_input;

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
    nrd_cancel *cancel;   /* shared; kept after release, so that a late cancel is harmless */
    nrd_factory *factory; /* shared; NULL after release */
    _Atomic int state;    /* nrd_req_state */
    uint32_t batch_size;  /* 0: the model does not batch */
    uint64_t start_ns, queue_ns, deadline_ns; /* deadline 0: none */
    nrd_request *next, *prev; /* of the queue that holds it; guarded by that queue's lock */
    uint64_t batch_ns;        /* entered the queue that forms its batch */
    bool is_null;             /* stands for an empty slot of a batch: nobody waits for an answer */
    bool made_corr_id;        /* the correlation id is the sequence batcher's own */
    nrd_scheduler *owner;     /* borrowed: to be told of the release; NULL: none */
    nrd_seq_slot *seq_slot;   /* borrowed: where it runs; NULL until it does */
    nrd_seq_states *states;   /* shared: implicit state; NULL: the model has none */
};

nrd_request *nrd_request_new(nrd_model *m, int64_t version); /* shares m */
void nrd_request_free(nrd_request *r);
/* The memory stays until one more nrd_request_free: backends report figures of requests that they
 * have released. */
nrd_request *nrd_request_keep(nrd_request *r);
nrd_error *nrd_request_add_input(nrd_input **out, nrd_request *r, const char *name,
                                 TRITONSERVER_DataType dtype, const int64_t *dims,
                                 uint64_t n) NRD_MUST_USE;
nrd_error *nrd_input_append(nrd_input *in, const void *base, const nrd_attr *attr,
                            nrd_buf *owner) NRD_MUST_USE; /* shares owner */
void nrd_input_drop_data(nrd_input *in);
void nrd_request_remove_input(nrd_request *r, uint32_t index);
nrd_input *nrd_request_find_input(const nrd_request *r, const char *name);
nrd_error *nrd_request_add_output(nrd_request *r, const char *name) NRD_MUST_USE;
bool nrd_request_wants(const nrd_request *r, const char *output);
/* Adds an input that the client did not send; it hides one of the same name. Dropped before the
 * request goes back to its creator. dims include the batch dimension. Shares data. */
void nrd_request_override(nrd_request *r, const char *name, TRITONSERVER_DataType dtype,
                          const int64_t *dims, uint32_t n_dims, nrd_buf *data, size_t byte_size);
void nrd_request_drop_overrides(nrd_request *r);
/* A request with inputs of the same shapes, all zero, whose answers go nowhere. */
nrd_request *nrd_request_new_null(const nrd_request *like);
/* Same inputs and, except for ragged ones, the same shapes behind the batch dimension. */
bool nrd_request_same_shapes(const nrd_request *a, const nrd_request *b);
void nrd_request_set_running(nrd_request *r); /* left the queue */
/* Only a sequence batcher's refusal to run the request again is an error: it stays running. */
nrd_error *nrd_request_try_release(nrd_request *r, uint32_t flags) NRD_MUST_USE;
void nrd_request_release(nrd_request *r, uint32_t flags);
/* Answers with the error, counts the failure, releases. Takes err always. */
void nrd_request_fail(nrd_request *r, nrd_error *err, nrd_fail_reason reason);
bool nrd_request_is_cancelled(const nrd_request *r);
/* "[request id: X] " in front of a message, as clients know it. */
nrd_error *nrd_request_errorf(const nrd_request *r, nrd_error_code code, const char *fmt, ...)
    NRD_PRINTF(3, 4) NRD_MUST_USE;

#endif
