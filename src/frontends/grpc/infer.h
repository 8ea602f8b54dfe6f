/* SPDX-License-Identifier: Apache-2.0
 * frontends/grpc/infer.h - one inference that came by gRPC.
 *
 * Purpose   What gRPC adds to an inference (common/infer.h): infer.c reads a ModelInferRequest into
 *           it, encode.c makes the messages of its responses. Used by the unary call (infer.c) and
 *           by streams (stream.c).
 * Owner     Built and submitted on a queue thread; on_response is called by the core's threads.
 * Errors    Triton's words where clients know them. A failed submit leaves the inference as it was.
 * Lifetime  Counted: its owner, and from submit on the core (request) and the final response.
 */
#ifndef NRD_FRONTENDS_GRPC_INFER_H
#define NRD_FRONTENDS_GRPC_INFER_H

#include "frontends/common/infer.h"
#include "frontends/grpc/rpc.h"
#include "grpc_service.pb-c.h"

/* Where something begins in a list of slices. */
typedef struct nrd_grpc_place {
    size_t slice, offset;
} nrd_grpc_place;

typedef struct nrd_grpc_infer {
    nrd_infer infer;     /* first: a pointer to it is one to this; its arena holds the message */
    nrd_grpc_call *call; /* shares */
    const Inference__ModelInferRequest *message; /* NULL: it could not be read */
    /* Of a long message: the slices in which its raw_input_contents lie, and where each begins. One
     * that has no data in `message` goes on from its place over as many slices as it needs. */
    grpc_slice_buffer parts; /* owns */
    nrd_grpc_place *places;  /* [n_raw_input_contents] in the arena; NULL: all data in `message` */
    bool want_empty_final;
    nrd_switch_model *lease; /* until the end; NULL: models do not come and go */

    /* Takes the response (NULL: none). Any thread, one call after the other. */
    void (*on_response)(struct nrd_grpc_infer *infer, TRITONSERVER_InferenceResponse *response,
                        bool final);
    void *owner;
} nrd_grpc_infer;

/* Parses the message. Even on error *out is set (unless out of memory), so that it can be named. */
nrd_error *nrd_grpc_infer_new(nrd_grpc_infer **out, nrd_grpc_call *call,
                              grpc_byte_buffer *payload) NRD_MUST_USE;
/* decode.c: sets `message`. Of a long message the slices are moved out of the payload. */
nrd_error *nrd_grpc_infer_decode(nrd_grpc_infer *infer, grpc_byte_buffer *payload) NRD_MUST_USE;
/* decode.c: gives raw content k to the input of that type: as one buffer, or as one for each slice. */
nrd_error *nrd_grpc_infer_append_raw(nrd_grpc_infer *infer, const char *name,
                                     TRITONSERVER_DataType type, size_t k) NRD_MUST_USE;
/* Checks the model (sets infer.decoupled). */
nrd_error *nrd_grpc_infer_open(nrd_grpc_infer *infer) NRD_MUST_USE;
/* Builds the request and hands it to the core. The caller keeps its count. */
nrd_error *nrd_grpc_infer_submit(nrd_grpc_infer *infer) NRD_MUST_USE;
void nrd_grpc_infer_unref(nrd_grpc_infer *infer); /* NULL is fine */

/* Always takes the response (NULL: an empty answer). in_stream: as ModelStreamInferResponse, with
 * the parameter triton_final_response. Large outputs are not copied. */
nrd_error *nrd_grpc_encode(nrd_grpc_infer *infer, TRITONSERVER_InferenceResponse *response,
                           bool in_stream, bool final, grpc_byte_buffer **out) NRD_MUST_USE;
/* The ModelStreamInferResponse of an error. of_model: it names the model too, as an answer of one
 * does; a request that was refused before is named by its id alone. */
grpc_byte_buffer *nrd_grpc_encode_error(const nrd_grpc_infer *infer, const nrd_error *err,
                                        bool of_model, bool final);

#endif
