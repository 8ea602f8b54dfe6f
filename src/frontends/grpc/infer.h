/* frontends/grpc/infer.h - one inference: from its message to the core and back to a message.
 *
 * Purpose   Builds the Triton request of a ModelInferRequest, and the messages of its responses.
 *           Used by the unary call (infer.c) and by streams (stream.c).
 * Owner     Built and submitted on a queue thread; on_response is called by the core's threads.
 * Errors    Triton's words where clients know them. A failed submit leaves the inference as it was.
 * Lifetime  Counted: its owner, and from submit on the core (request) and the final response.
 */
#ifndef NRD_FRONTENDS_GRPC_INFER_H
#define NRD_FRONTENDS_GRPC_INFER_H

#include "frontends/grpc/rpc.h"
#include "grpc_service.pb-c.h"

/* How one requested output shall be returned, where that was said. */
typedef struct nrd_grpc_output {
    struct nrd_grpc_output *next;
    const char *name;
    uint64_t n_classes;     /* > 0: as classification */
    nrd_shm_region *region; /* NULL: in the message */
    void *base;
    size_t size_bytes;
} nrd_grpc_output;

typedef struct nrd_grpc_region_use nrd_grpc_region_use;

typedef struct nrd_grpc_infer {
    nrd_grpc_call *call; /* shares */
    nrd_arena arena;     /* the message, and the bytes of inputs that came as contents */
    const Inference__ModelInferRequest *message; /* NULL: it could not be read */
    TRITONSERVER_InferenceRequest *request;      /* owns */
    nrd_trace_record *trace;                     /* shares; NULL: not traced */
    nrd_grpc_output *outputs;
    nrd_grpc_region_use *regions;
    bool decoupled, want_empty_final;
    bool counted; /* by the limit of open requests */
    atomic_bool submitted;

    /* Takes the response (NULL: none). Any thread, one call after the other. */
    void (*on_response)(struct nrd_grpc_infer *infer, TRITONSERVER_InferenceResponse *response,
                        bool final);
    void *owner;
    atomic_int refs;
} nrd_grpc_infer;

/* Parses the message. Even on error *out is set (unless out of memory), so that it can be named. */
nrd_error *nrd_grpc_infer_new(nrd_grpc_infer **out, nrd_grpc_call *call,
                              grpc_byte_buffer *payload) NRD_MUST_USE;
/* Checks the model (sets `decoupled`). */
nrd_error *nrd_grpc_infer_open(nrd_grpc_infer *infer) NRD_MUST_USE;
/* Builds the request and hands it to the core. The caller holds a count of its own meanwhile. */
nrd_error *nrd_grpc_infer_submit(nrd_grpc_infer *infer) NRD_MUST_USE;
void nrd_grpc_infer_cancel(nrd_grpc_infer *infer); /* no effect before submit; any thread */
void nrd_grpc_infer_ref(nrd_grpc_infer *infer);
void nrd_grpc_infer_unref(nrd_grpc_infer *infer);
/* NULL: nothing was said about this output. */
const nrd_grpc_output *nrd_grpc_infer_output(const nrd_grpc_infer *infer, const char *name);
const char *nrd_grpc_infer_id(const nrd_grpc_infer *infer); /* "" without */

/* The response's error, as an error; NULL: none. */
nrd_error *nrd_grpc_response_error(TRITONSERVER_InferenceResponse *response) NRD_MUST_USE;
void nrd_grpc_response_delete(TRITONSERVER_InferenceResponse *response); /* NULL is fine */

/* Takes the response always (NULL: an empty answer). in_stream: as ModelStreamInferResponse, with
 * the parameter triton_final_response. Large outputs are not copied. */
nrd_error *nrd_grpc_encode(const nrd_grpc_infer *infer, TRITONSERVER_InferenceResponse *response,
                           bool in_stream, bool final, grpc_byte_buffer **out) NRD_MUST_USE;
/* The ModelStreamInferResponse of an error. */
grpc_byte_buffer *nrd_grpc_encode_error(const nrd_grpc_infer *infer, const nrd_error *err,
                                        bool final);

#endif
