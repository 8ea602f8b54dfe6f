/* SPDX-License-Identifier: Apache-2.0
 * frontends/grpc/rpc.h - calls: what the files of this folder share.
 *
 * Purpose   One nrd_grpc_call is one RPC, from the slot that waits for it to the sent status.
 *           call.c is what every call can do; infer.c, stream.c, watch.c and reflection.c handle
 *           theirs, admin.c has the table of methods and answers the small questions, server.c
 *           moves calls through the completion queues.
 * Owner     Events of a call come from the thread of its queue. Replies may be sent by any thread.
 * Errors    nrd_grpc_fail turns an error into a status; the codes map one to one.
 * Lifetime  A call is counted: one for each operation that will still post an event, one for each
 *           inference that points to it.
 *
 *   slot --on_new--> handler --reply/fail--> on_sent --+
 *     \--------------- on_closed (peer gone or done) --+--> last unref frees it
 */
#ifndef NRD_FRONTENDS_GRPC_RPC_H
#define NRD_FRONTENDS_GRPC_RPC_H

#include "base/mem.h"
#include "frontends/common/claim.h"
#include "frontends/common/error.h"
#include "frontends/common/header_pattern.h"
#include "frontends/grpc/service.h"

#include <grpc/grpc.h>
#include <protobuf-c/protobuf-c.h>
#include <pthread.h>
#include <stdatomic.h>

/* A stream whose client does not read may hold back this much before it is cut off. */
#define NRD_GRPC_MAX_STREAM_BACKLOG (16u << 20)

extern _Thread_local bool nrd_grpc_on_queue; /* this thread serves a completion queue */

/* What a completion queue gives back; run is called once for each started operation. */
typedef struct nrd_grpc_tag {
    void (*run)(struct nrd_grpc_tag *tag, bool ok);
    atomic_uint n_started; /* orders who starts a batch before who takes its event, also for ThreadSanitizer, which sees no
                              order in a libgrpc that was not built with it */
} nrd_grpc_tag;

#define NRD_GRPC_OF(tag, type, member)                                                             \
    ((type *)(void *)((char *)(void *)(tag)-offsetof(type, member)))

typedef struct nrd_grpc_queue {
    nrd_grpc_service *service;
    grpc_completion_queue *cq;
    pthread_t thread;
    bool started;
    size_t *owed; /* by method: slots that had no memory and are made later; own thread, or before it */
    bool owes;
} nrd_grpc_queue;

typedef struct nrd_grpc_call nrd_grpc_call;

typedef enum {
    NRD_GRPC_ADMIN,  /* answered at once, on the first queue */
    NRD_GRPC_SLOW,   /* may take minutes: on a thread of its own */
    NRD_GRPC_INFER,  /* on the other queues */
    NRD_GRPC_STREAM, /* likewise, without a first message */
    NRD_GRPC_WATCH,  /* a first message, then many answers; on the first queue */
    NRD_GRPC_TALK,   /* questions and answers in turn, without a first message; first queue */
    NRD_GRPC_OTHER,  /* any path that is not in the table */
} nrd_grpc_kind;

/* handle (ADMIN, SLOW): `in` is a message of type `in_type`; *out lives in call->arena. */
typedef struct nrd_grpc_method {
    const char *path;
    const char *protocol; /* as --grpc-restricted-protocol names it */
    nrd_grpc_kind kind;
    const ProtobufCMessageDescriptor *in_type;
    nrd_error *(*handle)(nrd_grpc_call *call, const void *in, ProtobufCMessage **out);
} nrd_grpc_method;

extern const nrd_grpc_method nrd_grpc_methods[];
extern const size_t nrd_grpc_n_methods;

struct nrd_grpc_service {
    nrd_front *front;           /* borrows until free */
    TRITONSERVER_Server *core;  /* of front */
    const nrd_options *options; /* of front */
    nrd_header_pattern *forward; /* owns; metadata that become parameters; NULL: none */
    grpc_compression_level compression;
    grpc_server *grpc;
    struct nrd_grpc_certs *certs; /* owns; NULL: not encrypted */
    void **handles;         /* of registered methods, in order of the table */
    nrd_grpc_queue *queues; /* [0]: administration, then inference */
    size_t n_queues;
    int port;
    bool grpc_on;       /* grpc_init was called */
    bool running;       /* grpc_server_start was called */
    bool shutting_down; /* main thread only */
    atomic_bool draining, ending, stopped;
    struct nrd_grpc_watch *watches; /* watch.c; first queue only, as looked_ns */
    atomic_size_t n_watches;        /* of them */
    uint64_t looked_ns;
    atomic_size_t busy;
    atomic_size_t n_calls; /* that are not freed: slots too */
    nrd_grpc_tag on_stopped;
};

struct nrd_grpc_call {
    nrd_grpc_service *service;
    nrd_grpc_queue *queue;
    const nrd_grpc_method *method;
    size_t method_id;
    grpc_call *rpc;
    gpr_timespec deadline;
    grpc_call_details details; /* NRD_GRPC_OTHER only */
    bool has_details;
    grpc_metadata_array metadata;
    grpc_byte_buffer *payload; /* owns: the first message, where the kind has one */
    nrd_arena arena;           /* messages of ADMIN and SLOW */
    nrd_claim claim;           /* for them */
    nrd_grpc_tag on_new, on_closed, on_sent;
    int cancelled; /* written by gRPC before on_closed */
    grpc_byte_buffer *reply;
    grpc_slice details_text; /* of the status */
    grpc_metadata again[2];  /* of the status: when to try again */
    atomic_int after_secs;   /* above 0: the newest request was refused by its key's limits */
    /* For INFER and STREAM, set by the handler; all may be NULL. */
    void *state;
    void (*closed)(nrd_grpc_call *call, bool cancelled); /* the call is over; queue thread */
    void (*free_state)(nrd_grpc_call *call);
    atomic_int refs;
};

void nrd_grpc_call_ref(nrd_grpc_call *call);
void nrd_grpc_call_unref(nrd_grpc_call *call);

/* Answers a unary call and ends it. Exactly one of the two, from any thread; both take. */
void nrd_grpc_reply(nrd_grpc_call *call, grpc_byte_buffer *message);
void nrd_grpc_fail(nrd_grpc_call *call, nrd_error *err);

/* Starts operations; the tag gets the event, the call one more count until then. */
void nrd_grpc_start(nrd_grpc_call *call, const grpc_op *ops, size_t n, nrd_grpc_tag *tag);
/* Fills the op that ends a call: OK without an error. Takes the error. */
void nrd_grpc_status_op(nrd_grpc_call *call, nrd_error *err, grpc_op *op);
/* Fills the op that begins the answer. */
void nrd_grpc_metadata_op(const nrd_grpc_call *call, grpc_op *op);

/* Value of a metadata key, or NULL. */
const grpc_slice *nrd_grpc_metadata(const nrd_grpc_call *call, const char *key);
/* The place of the API key that it brings, or -1. */
int nrd_grpc_key(const nrd_grpc_call *call);

/* What is taken for a message is added to the claim, which goes with the arena. */

/* The bytes of a message as one slice that the caller unrefs; decompressed up to
 * --grpc-max-message-size. */
nrd_error *nrd_grpc_bytes(const nrd_grpc_service *s, nrd_claim *claim, grpc_byte_buffer *payload,
                          grpc_slice *out) NRD_MUST_USE;
/* Parses a message into the arena; its fields are copied. */
nrd_error *nrd_grpc_unpack(const nrd_grpc_service *s, nrd_arena *arena, nrd_claim *claim,
                           const ProtobufCMessageDescriptor *type, grpc_byte_buffer *payload,
                           const void **out) NRD_MUST_USE;

/* Likewise, of n bytes that are already in one piece. */
nrd_error *nrd_grpc_unpack_bytes(nrd_arena *arena, nrd_claim *claim, const ProtobufCMessageDescriptor *type,
                                 const uint8_t *p, size_t n, const void **out) NRD_MUST_USE;

/* -1 for "". */
nrd_error *nrd_grpc_parse_version(const char *text, int64_t *out) NRD_MUST_USE;

/* watch.c: grpc.health.v1. `look` tells the watchers of changes, called now and then; once the service is ending it
 * ends their calls, behind what they have to be told. */
void nrd_grpc_health_watch(nrd_grpc_call *call);
void nrd_grpc_health_look(nrd_grpc_service *s);

void nrd_grpc_reflection(nrd_grpc_call *call); /* reflection.c */

/* The handlers of the two inference methods. */
void nrd_grpc_unary_infer(nrd_grpc_call *call);
void nrd_grpc_stream_infer(nrd_grpc_call *call);

#endif
