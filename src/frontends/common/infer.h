/* SPDX-License-Identifier: Apache-2.0
 * frontends/common/infer.h - one inference on its way through the core, for every protocol.
 *
 * Purpose   Holds what must outlive the message it came in: the core's request, bytes of inputs,
 *           where outputs go, regions of shared memory, the trace, its place among the open
 *           requests. A protocol embeds it as the first member of its own call, reads its messages
 *           into it and writes answers from it.
 * Owner     Filled by one thread. After submit the core's threads call on_response.
 * Errors    Triton's words where clients know them. On error of any function the inference is
 *           still the caller's.
 * Lifetime  Counted. init gives the caller one count; a successful submit adds one that the core
 *           drops with the request and one that goes to on_response with the final response. The
 *           last count frees what is here and calls destroy.
 *
 *   init -> open -> (inputs, outputs, parameters) -> trace -> submit -> on_response ... final
 *
 * A client may unregister a region as soon as it has its answer. So the final response of a request
 * with inputs in shared memory is handed on only when the core has released the request, and
 * nrd_infer_let_go is called before the answer is sent.
 */
#ifndef NRD_FRONTENDS_COMMON_INFER_H
#define NRD_FRONTENDS_COMMON_INFER_H

#include "base/mem.h"
#include "base/str.h"
#include "frontends/common/claim.h"
#include "frontends/common/error.h"
#include "frontends/common/front.h"
#include "frontends/common/header_pattern.h"

#include <stdatomic.h>

#define NRD_INFER_MAX_DIMS 64

/* A part of a registered region; region NULL: none. */
typedef struct nrd_infer_range {
    const char *region;
    uint64_t offset, size; /* bytes */
} nrd_infer_range;

/* How one named output shall be returned. */
typedef struct nrd_infer_output {
    struct nrd_infer_output *next;
    const char *name;       /* in the arena */
    uint64_t n_classes;     /* > 0: as classification */
    bool shared;            /* in shared memory, not in the answer */
    nrd_shm_region *region; /* NULL: not shared, or let go */
    void *base;
    size_t size_bytes;
    int form; /* the protocol's own */
} nrd_infer_output;

typedef struct nrd_infer nrd_infer;
struct nrd_infer {
    nrd_front *front;                       /* borrows */
    TRITONSERVER_InferenceRequest *request; /* owns; NULL before open */
    nrd_arena arena;                        /* freed with the inference */
    nrd_claim claim;                        /* for what is in the arena, and for its answer's text */
    nrd_claim tensors;                      /* for the answer's; joined by the thread that makes the first large one */
    nrd_infer_output *outputs;
    nrd_trace_record *trace; /* shares; NULL: not traced */
    bool decoupled;          /* the model gives any number of responses */

    /* Takes the response (NULL: none), with the final one also a count. Any thread, one call after
     * the other. */
    void (*on_response)(nrd_infer *i, TRITONSERVER_InferenceResponse *response, bool final);
    void (*destroy)(nrd_infer *i); /* frees what the inference is part of */

    /* private to infer.c */
    struct nrd_infer_use *uses; /* regions that inputs lie in */
    uint32_t flags;             /* of a sequence */
    uint64_t end_by_ns;         /* steady clock; 0: no deadline */
    _Atomic(nrd_error *) lost;  /* owns; an input's region went away under the model */
    bool counted;               /* by the limit of open requests */
    nrd_quota *quota;           /* of the key whose place it has; NULL: none */
    atomic_bool submitted;
    atomic_int refs;
    atomic_int awaited; /* with uses: 2, the release and the final response */
    TRITONSERVER_InferenceResponse *last; /* waits for the release */
};

void nrd_infer_init(nrd_infer *i, nrd_front *front, void (*destroy)(nrd_infer *i));
void nrd_infer_ref(nrd_infer *i);
void nrd_infer_unref(nrd_infer *i); /* NULL is fine */

/* Memory of the arena whose size the client decides: it is claimed. */
nrd_error *nrd_infer_room(nrd_infer *i, size_t bytes, const char *what, void *out_pointer) NRD_MUST_USE;
/* Before the text of a response is put together; freed with the inference. */
nrd_error *nrd_infer_claim_answer(nrd_infer *i, size_t bytes) NRD_MUST_USE;
/* Finds the model (sets `decoupled`), counts the request, makes it. */
nrd_error *nrd_infer_open(nrd_infer *i, const char *model, int64_t version) NRD_MUST_USE;
/* What the key's limits (quota.h) say to one request more. key: its place, -1: none. Once, before submit. */
nrd_refusal nrd_infer_admit(nrd_infer *i, int key) NRD_MUST_USE;
/* traceparent: that header, n bytes, or NULL. */
void nrd_infer_trace(nrd_infer *i, const char *model, const char *traceparent, size_t n);

/* ---- parameters ---- */

typedef enum nrd_infer_param {
    NRD_INFER_CUSTOM, /* any other name */
    NRD_INFER_SEQUENCE_ID,
    NRD_INFER_SEQUENCE_START,
    NRD_INFER_SEQUENCE_END,
    NRD_INFER_PRIORITY,
    NRD_INFER_TIMEOUT,
    NRD_INFER_RESERVED, /* begins with triton_ */
} nrd_infer_param;

typedef struct nrd_infer_value {
    enum { NRD_VALUE_BOOL, NRD_VALUE_INT, NRD_VALUE_UINT, NRD_VALUE_REAL, NRD_VALUE_TEXT } type;
    union {
        bool b;
        int64_t i;
        uint64_t u;
        double d;
        const char *s; /* copied */
    } v;
} nrd_infer_value;

nrd_infer_param nrd_infer_param_of(const char *name);
/* The value's type is what `what` needs: SEQUENCE_ID: TEXT or UINT, START and END: BOOL, PRIORITY and
 * TIMEOUT (microseconds): UINT, CUSTOM: any (UINT becomes a double). Not for RESERVED. */
nrd_error *nrd_infer_set(nrd_infer *i, nrd_infer_param what, const char *name,
                         nrd_infer_value value) NRD_MUST_USE;
/* The parameters that tell the requests of this key from others': they share the engine evenly, and with
 * --cache-salt-per-key the blocks of its prompts are kept apart. key: its place, -1: none. */
nrd_error *nrd_infer_whose(nrd_infer *i, int key) NRD_MUST_USE;
/* A header as a parameter, where the pattern (NULL: none) matches its name. INVALID_ARG: the name of a parameter with a meaning of its own. */
nrd_error *nrd_infer_forward(nrd_infer *i, const nrd_header_pattern *pattern, const char *name,
                             size_t name_n, const char *value, size_t value_n) NRD_MUST_USE;

/* The client waits no longer than so many microseconds from now: the request's timeout, unless a shorter one is
 * set. Several calls: the shortest. */
void nrd_infer_end_within(nrd_infer *i, uint64_t us);
/* The header x-request-deadline, n bytes: when the client stops waiting, in seconds since 1970. */
nrd_error *nrd_infer_deadline(nrd_infer *i, const char *value, size_t n) NRD_MUST_USE;

/* ---- inputs and outputs ---- */

nrd_error *nrd_infer_add_input(nrd_infer *i, const char *name, TRITONSERVER_DataType type,
                               const int64_t *shape, size_t n_dims) NRD_MUST_USE;
/* Borrows the bytes until the inference ends. */
nrd_error *nrd_infer_append(nrd_infer *i, const char *name, const void *base,
                            size_t n) NRD_MUST_USE;
nrd_error *nrd_infer_append_shared(nrd_infer *i, const char *name,
                                   const nrd_infer_range *range) NRD_MUST_USE;
/* Whether tensors do not lie in the region themselves but are copied from and to it: where a GPU has it, and where
 * a response cache may keep what they hold, as whoever made the region can write to it at any time. */
bool nrd_infer_is_copied(const nrd_infer *i, const nrd_shm_region *region);
/* Both at once; the bytes are copied. */
nrd_error *nrd_infer_add_copy(nrd_infer *i, const char *name, TRITONSERVER_DataType type,
                              const int64_t *shape, size_t n_dims, const void *data,
                              size_t n) NRD_MUST_USE;

/* Asks for an output. INVALID_ARG: it is asked for already. */
nrd_error *nrd_infer_add_output(nrd_infer *i, const char *name, uint64_t n_classes,
                                const nrd_infer_range *range, int form) NRD_MUST_USE;
/* NULL: nothing was said about this output. */
nrd_infer_output *nrd_infer_find_output(const nrd_infer *i, const char *name);

/* ---- to the core and back ---- */

/* From now on nrd_infer_submit may run models on this thread; on_response then comes before it
 * returns. */
void nrd_infer_lend_thread(void);
nrd_error *nrd_infer_submit(nrd_infer *i) NRD_MUST_USE;
void nrd_infer_cancel(nrd_infer *i); /* no effect before submit; any thread */
/* Gives the regions of outputs back; before the last answer is sent. */
void nrd_infer_let_go(nrd_infer *i);

/* The response's error, as an error; NULL: none. */
/* The regions that the request named were there until now. Before nrd_infer_let_go. */
nrd_error *nrd_infer_check_regions(nrd_infer *i) NRD_MUST_USE;
nrd_error *nrd_infer_response_error(TRITONSERVER_InferenceResponse *response) NRD_MUST_USE;
void nrd_infer_response_delete(TRITONSERVER_InferenceResponse *response); /* NULL is fine */

/* One output as it goes out: the model's own tensor or the classes made of it. Does not move: shape
 * may point into it. */
typedef struct nrd_infer_tensor {
    const char *name;
    TRITONSERVER_DataType type;
    const int64_t *shape;
    uint64_t n_dims;
    const void *base;
    size_t size;                   /* bytes */
    const nrd_infer_output *asked; /* NULL: nothing was said about it */
    bool shared;                   /* lies in shared memory */
    nrd_str classes;               /* owns; base points to it where classes were asked for */
    int64_t class_shape[2];
} nrd_infer_tensor;

/* An output as the model gave it: name, type, shape, n_dims, base and size, the rest zeros. They belong to the
 * response; there is nothing to free. */
nrd_error *nrd_infer_get_tensor(TRITONSERVER_InferenceResponse *response, uint32_t index,
                                nrd_infer_tensor *out) NRD_MUST_USE;
/* The value of a parameter, which belongs to the response; NULL: it has none of this name and type. */
const void *nrd_infer_find_parameter(TRITONSERVER_InferenceResponse *response, const char *name, TRITONSERVER_ParameterType type);
/* Also copies to the output's region where nrd_infer_is_copied. Call fini also after an error. */
nrd_error *nrd_infer_read_tensor(nrd_infer *i, TRITONSERVER_InferenceResponse *response,
                                 uint32_t index, nrd_infer_tensor *out) NRD_MUST_USE;
void nrd_infer_tensor_fini(nrd_infer_tensor *t);

/* For front_life.c. */
nrd_error *nrd_infer_allocator_new(TRITONSERVER_ResponseAllocator **out) NRD_MUST_USE;

#endif
