/* SPDX-License-Identifier: Apache-2.0
 * ModelInferRequest to an inference: parameters, metadata, inputs as typed lists, raw bytes or
 * shared memory, wanted outputs; and the unary ModelInfer call, which answers with the one
 * response. A call that ends early cancels its inference. Streams use the same reading (stream.c).
 */
#include "frontends/grpc/infer.h"

#include "base/clock.h"

#include <string.h>

/* ---- life ---- */

static void destroy(nrd_infer *i)
{
    nrd_grpc_infer *infer = (nrd_grpc_infer *)(void *)i;
    grpc_slice_buffer_destroy(&infer->parts);
    if (infer->lease) {
        nrd_switcher_release(infer->call->service->front->switcher, infer->lease, NRD_SWITCH_DEFAULT);
    }
    nrd_grpc_call_unref(infer->call);
    free(infer);
}

static void pass_on(nrd_infer *i, TRITONSERVER_InferenceResponse *response, bool final)
{
    nrd_grpc_infer *infer = (nrd_grpc_infer *)(void *)i;
    infer->on_response(infer, response, final);
    if (final) {
        nrd_infer_unref(i);
    }
}

nrd_error *nrd_grpc_infer_new(nrd_grpc_infer **out, nrd_grpc_call *call, grpc_byte_buffer *payload)
{
    nrd_grpc_infer *infer = calloc(1, sizeof *infer);
    *out = infer;
    if (!infer) {
        return nrd_error_no_memory();
    }
    nrd_infer_init(&infer->infer, call->service->front, destroy);
    infer->infer.on_response = pass_on;
    infer->call = call;
    nrd_grpc_call_ref(call);
    grpc_slice_buffer_init(&infer->parts);
    return nrd_grpc_infer_decode(infer, payload);
}

void nrd_grpc_infer_unref(nrd_grpc_infer *infer)
{
    if (infer) {
        nrd_infer_unref(&infer->infer);
    }
}

/* ---- parameters ---- */

static nrd_error *bad_type(const char *name, const char *want)
{
    return nrd_errorf(NRD_ERR_INVALID_ARG, "invalid value type for '%s' parameter, expected %s.",
                      name, want);
}

#define P_BOOL INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_BOOL_PARAM
#define P_INT INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_INT64_PARAM
#define P_TEXT INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_STRING_PARAM
#define P_DOUBLE INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_DOUBLE_PARAM
#define P_UINT INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_UINT64_PARAM

/* A choice as the value that a parameter needs; the words for wrong types are Triton's. */
static nrd_error *read_value(const char *name, nrd_infer_param what,
                             const Inference__InferParameter *p, nrd_infer_value *out)
{
    const int choice = (int)p->parameter_choice_case;
    const bool text = choice == P_TEXT, whole = choice == P_INT;
    if (what == NRD_INFER_SEQUENCE_START || what == NRD_INFER_SEQUENCE_END) {
        out->type = NRD_VALUE_BOOL;
        out->v.b = choice == P_BOOL && p->bool_param;
        return choice == P_BOOL ? NULL : bad_type(name, "bool_param");
    }
    if (what == NRD_INFER_SEQUENCE_ID && text) {
        out->type = NRD_VALUE_TEXT;
        out->v.s = p->string_param;
        return NULL;
    }
    out->type = NRD_VALUE_UINT;
    if (what == NRD_INFER_PRIORITY && choice == P_UINT) {
        out->v.u = p->uint64_param;
        return NULL;
    }
    if (!whole) {
        return bad_type(name, what == NRD_INFER_SEQUENCE_ID ? "int64_param or string_param"
                              : what == NRD_INFER_PRIORITY  ? "int64_param or uint64_param"
                                                            : "int64_param");
    }
    if (what == NRD_INFER_PRIORITY && p->int64_param < 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "invalid value for 'priority', expected value >= 0.");
    }
    out->v.u = (uint64_t)p->int64_param;
    return NULL;
}

static nrd_error *read_custom(const char *name, const Inference__InferParameter *p,
                              nrd_infer_value *out)
{
    switch (p->parameter_choice_case) {
    case P_INT:
        *out = (nrd_infer_value){.type = NRD_VALUE_INT, .v.i = p->int64_param};
        return NULL;
    case P_BOOL:
        *out = (nrd_infer_value){.type = NRD_VALUE_BOOL, .v.b = p->bool_param != 0};
        return NULL;
    case P_TEXT:
        *out = (nrd_infer_value){.type = NRD_VALUE_TEXT, .v.s = p->string_param};
        return NULL;
    case P_DOUBLE:
        *out = (nrd_infer_value){.type = NRD_VALUE_REAL, .v.d = p->double_param};
        return NULL;
    default:
        return bad_type(name, "int64_param, bool_param, string_param or double_param");
    }
}

static nrd_error *set_parameter(nrd_grpc_infer *infer, const char *name,
                                const Inference__InferParameter *p)
{
    static const Inference__InferParameter none = INFERENCE__INFER_PARAMETER__INIT;
    const nrd_infer_param what = nrd_infer_param_of(name);
    nrd_infer_value value;

    p = p ? p : &none;
    if (strcmp(name, "triton_enable_empty_final_response") == 0) {
        if (p->parameter_choice_case != P_BOOL) {
            return bad_type(name, "bool_param");
        }
        infer->want_empty_final = p->bool_param != 0;
        return NULL;
    }
    if (what == NRD_INFER_RESERVED) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "parameter keys starting with 'triton_' are reserved for Triton usage. "
                          "Only the following keys starting with 'triton_' are allowed: "
                          "triton_enable_empty_final_response");
    }
    NRD_TRY(what == NRD_INFER_CUSTOM ? read_custom(name, p, &value)
                                     : read_value(name, what, p, &value));
    return nrd_infer_set(&infer->infer, what, name, value);
}

/* The call's deadline ends it here too, and not only when gRPC has noticed. A stream's deadline is that of all
 * its requests. */
static nrd_error *set_deadline(nrd_grpc_infer *infer)
{
    const grpc_slice *header = nrd_grpc_metadata(infer->call, "x-request-deadline");
    const gpr_timespec end = gpr_convert_clock_type(infer->call->deadline, GPR_CLOCK_MONOTONIC);

    if (gpr_time_cmp(end, gpr_inf_future(GPR_CLOCK_MONOTONIC)) != 0) {
        const gpr_timespec left = gpr_time_sub(end, gpr_now(GPR_CLOCK_MONOTONIC));
        const int64_t us = left.tv_sec * 1000000 + left.tv_nsec / 1000;
        nrd_infer_end_within(&infer->infer, us > 1 ? (uint64_t)us : 1);
    }
    return header ? nrd_infer_deadline(&infer->infer, (const char *)GRPC_SLICE_START_PTR(*header),
                                       GRPC_SLICE_LENGTH(*header))
                  : NULL;
}

/* Metadata that matches --grpc-header-forward-pattern, as string parameters. */
static nrd_error *forward_metadata(nrd_grpc_infer *infer)
{
    const nrd_grpc_call *call = infer->call;
    NRD_TRY(nrd_infer_whose(&infer->infer, nrd_grpc_key(call)));
    for (size_t i = 0; call->service->forward && i < call->metadata.count; i++) {
        const grpc_metadata *m = &call->metadata.metadata[i];
        NRD_TRY(nrd_infer_forward(&infer->infer, call->service->forward,
                                  (const char *)GRPC_SLICE_START_PTR(m->key),
                                  GRPC_SLICE_LENGTH(m->key),
                                  (const char *)GRPC_SLICE_START_PTR(m->value),
                                  GRPC_SLICE_LENGTH(m->value)));
    }
    return NULL;
}

/* ---- inputs ---- */

typedef Inference__ModelInferRequest__InferInputTensor input_tensor;

/* Reads shared_memory_region, _offset and _byte_size. */
static nrd_error *read_shm_parameter(const char *name, const Inference__InferParameter *p,
                                     nrd_infer_range *out)
{
    if (strcmp(name, "shared_memory_region") == 0) {
        if (!p || p->parameter_choice_case != P_TEXT) {
            return bad_type(name, "string_param");
        }
        out->region = p->string_param;
        return NULL;
    }
    const bool is_offset = strcmp(name, "shared_memory_offset") == 0;
    if (!is_offset && strcmp(name, "shared_memory_byte_size") != 0) {
        return NULL;
    }
    if (!p || p->parameter_choice_case != P_INT || p->int64_param < 0) {
        return bad_type(name, "non-negative int64_param");
    }
    *(is_offset ? &out->offset : &out->size) = (uint64_t)p->int64_param;
    return NULL;
}

/* What one list of InferTensorContents holds, and the datatypes it is for. */
typedef struct contents_list {
    const void *data;
    size_t n, width; /* elements, bytes of one */
    TRITONSERVER_DataType types[3];
} contents_list;

/* Integers of 8 and 16 bits travel as 32 bits; a value that does not fit is refused. */
static nrd_error *narrow(nrd_grpc_infer *infer, const char *name, const contents_list *l,
                         size_t width, bool is_signed, const void **out)
{
    unsigned char *p;
    NRD_TRY(nrd_infer_room(&infer->infer, l->n * width, "an input", &p));
    for (size_t i = 0; i < l->n; i++) {
        const int64_t v =
            is_signed ? ((const int32_t *)l->data)[i] : (int64_t)((const uint32_t *)l->data)[i];
        const int64_t top = is_signed ? (INT64_C(1) << (8 * width - 1)) : INT64_C(1) << (8 * width);
        if (v >= top || v < (is_signed ? -top : 0)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "value %lld of input tensor '%s' does not fit its datatype",
                              (long long)v, name);
        }
        memcpy(p + i * width, &v, width); /* little-endian: the low bytes come first */
    }
    *out = p;
    return NULL;
}

/* protobuf-c keeps a bool in an int; tensors have one byte for each. */
static nrd_error *pack_bools(nrd_grpc_infer *infer, const contents_list *l, const void **out)
{
    const protobuf_c_boolean *in = l->data;
    unsigned char *p;
    NRD_TRY(nrd_infer_room(&infer->infer, l->n, "an input", &p));
    for (size_t i = 0; i < l->n; i++) {
        p[i] = in[i] != 0;
    }
    *out = p;
    return NULL;
}

static nrd_error *pack_strings(nrd_grpc_infer *infer, const contents_list *l, const void **out,
                               size_t *out_n)
{
    const ProtobufCBinaryData *in = l->data;
    size_t total = 0;
    for (size_t i = 0; i < l->n; i++) {
        if (in[i].len > UINT32_MAX || !nrd_size_add(total, in[i].len + 4, &total)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "a string is longer than 4 GiB");
        }
    }
    unsigned char *p;
    NRD_TRY(nrd_infer_room(&infer->infer, total, "an input", &p));
    *out = p;
    *out_n = total;
    for (size_t i = 0; i < l->n; i++) {
        const uint32_t n = (uint32_t)in[i].len;
        memcpy(p, &n, 4);
        if (n) {
            memcpy(p + 4, in[i].data, n);
        }
        p += 4 + n;
    }
    return NULL;
}

static nrd_error *check_list(const nrd_grpc_infer *infer, const input_tensor *io,
                             const contents_list *l, TRITONSERVER_DataType type, bool seen)
{
    if (seen) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "unexpected explicit tensor data for input tensor '%s' for model '%s', "
                          "binary data was already supplied.",
                          io->name, infer->message->model_name);
    }
    for (size_t i = 0; i < 3; i++) {
        if (l->types[i] != TRITONSERVER_TYPE_INVALID && l->types[i] == type) {
            return NULL;
        }
    }
    return nrd_errorf(NRD_ERR_INVALID_ARG,
                      "unexpected explicit tensor data for input tensor '%s' for model '%s' of "
                      "type '%s', expected datatype '%s'",
                      io->name, infer->message->model_name,
                      TRITONSERVER_DataTypeString(l->types[0]), TRITONSERVER_DataTypeString(type));
}

static nrd_error *append_contents(nrd_grpc_infer *infer, const input_tensor *io,
                                  TRITONSERVER_DataType type)
{
    const Inference__InferTensorContents *c = io->contents;
    const contents_list lists[] = {
        {c->bool_contents, c->n_bool_contents, 1, {TRITONSERVER_TYPE_BOOL}},
        {c->int_contents,
         c->n_int_contents,
         4,
         {TRITONSERVER_TYPE_INT32, TRITONSERVER_TYPE_INT16, TRITONSERVER_TYPE_INT8}},
        {c->int64_contents, c->n_int64_contents, 8, {TRITONSERVER_TYPE_INT64}},
        {c->uint_contents,
         c->n_uint_contents,
         4,
         {TRITONSERVER_TYPE_UINT32, TRITONSERVER_TYPE_UINT16, TRITONSERVER_TYPE_UINT8}},
        {c->uint64_contents, c->n_uint64_contents, 8, {TRITONSERVER_TYPE_UINT64}},
        {c->fp32_contents, c->n_fp32_contents, 4, {TRITONSERVER_TYPE_FP32}},
        {c->fp64_contents, c->n_fp64_contents, 8, {TRITONSERVER_TYPE_FP64}},
        {c->bytes_contents, c->n_bytes_contents, 0, {TRITONSERVER_TYPE_BYTES}},
    };
    const void *base = NULL;
    size_t size = 0;
    bool seen = false;

    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        const contents_list *l = &lists[i];
        const size_t width = TRITONSERVER_DataTypeByteSize(type);
        if (l->n == 0) {
            continue;
        }
        NRD_TRY(check_list(infer, io, l, type, seen));
        seen = true;
        base = l->data;
        size = l->n * width; /* the message held as many elements, so this cannot overflow */
        if (type == TRITONSERVER_TYPE_BYTES) {
            NRD_TRY(pack_strings(infer, l, &base, &size));
        } else if (type == TRITONSERVER_TYPE_BOOL) {
            NRD_TRY(pack_bools(infer, l, &base));
        } else if (width < l->width) {
            NRD_TRY(
                narrow(infer, io->name, l, width, l->data == (const void *)c->int_contents, &base));
        }
    }
    return nrd_infer_append(&infer->infer, io->name, base, size);
}

static nrd_error *add_inputs(nrd_grpc_infer *infer)
{
    const Inference__ModelInferRequest *m = infer->message;
    size_t n_raw = 0;

    for (size_t i = 0; i < m->n_inputs; i++) {
        const input_tensor *io = m->inputs[i];
        const TRITONSERVER_DataType type = TRITONSERVER_StringToDataType(io->datatype);
        nrd_infer_range range = {0};

        if (io->n_shape > NRD_INFER_MAX_DIMS) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "input '%s' has more than %d dimensions",
                              io->name, NRD_INFER_MAX_DIMS);
        }
        NRD_TRY(nrd_infer_add_input(&infer->infer, io->name, type, io->shape, io->n_shape));
        for (size_t k = 0; k < io->n_parameters; k++) {
            NRD_TRY(read_shm_parameter(io->parameters[k]->key, io->parameters[k]->value, &range));
        }
        if (range.region) {
            if (io->contents) {
                return nrd_errorf(NRD_ERR_INVALID_ARG,
                                  "unexpected 'content' provided when using shared memory for "
                                  "input tensor '%s' for model '%s'",
                                  io->name, m->model_name);
            }
            NRD_TRY(nrd_infer_append_shared(&infer->infer, io->name, &range));
        } else if (io->contents) {
            if (m->n_raw_input_contents) {
                return nrd_errorf(NRD_ERR_INVALID_ARG,
                                  "contents field must not be specified when using "
                                  "raw_input_contents for '%s' for model '%s'",
                                  io->name, m->model_name);
            }
            NRD_TRY(append_contents(infer, io, type));
        } else if (n_raw < m->n_raw_input_contents) {
            NRD_TRY(nrd_grpc_infer_append_raw(infer, io->name, type, n_raw++));
        } else {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "unable to find data for input tensor '%s' for model '%s' in "
                              "request.",
                              io->name, m->model_name);
        }
    }
    return NULL;
}

/* ---- outputs ---- */

static nrd_error *read_classes(const Inference__InferParameter *p, uint64_t *out)
{
    if (!p || p->parameter_choice_case != P_INT) {
        return bad_type("classification", "int64_param");
    }
    if (p->int64_param <= 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "invalid value for 'classification' parameter, expected >= 0");
    }
    *out = (uint64_t)p->int64_param;
    return NULL;
}

static nrd_error *add_outputs(nrd_grpc_infer *infer)
{
    const Inference__ModelInferRequest *m = infer->message;
    for (size_t i = 0; i < m->n_outputs; i++) {
        const Inference__ModelInferRequest__InferRequestedOutputTensor *io = m->outputs[i];
        nrd_infer_range range = {0};
        uint64_t n_classes = 0;

        for (size_t k = 0; k < io->n_parameters; k++) {
            NRD_TRY(read_shm_parameter(io->parameters[k]->key, io->parameters[k]->value, &range));
        }
        for (size_t k = 0; k < io->n_parameters; k++) {
            if (strcmp(io->parameters[k]->key, "classification") == 0) {
                NRD_TRY(read_classes(io->parameters[k]->value, &n_classes));
            }
        }
        if (range.region && n_classes) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "output can't set both 'shared_memory_region' and 'classification'");
        }
        NRD_TRY(nrd_infer_add_output(&infer->infer, io->name, n_classes, &range, 0));
    }
    return NULL;
}

/* ---- to the core ---- */

/* What the limits of its key say to it. */
static nrd_error *admit(nrd_grpc_infer *infer)
{
    const nrd_refusal r = nrd_infer_admit(&infer->infer, nrd_grpc_key(infer->call));

    atomic_store(&infer->call->after_secs, r.after_secs);
    return r.why ? nrd_errorf(NRD_ERR_UNAVAILABLE, "%s Try again in %d s.", r.why, r.after_secs) : NULL;
}

nrd_error *nrd_grpc_infer_open(nrd_grpc_infer *infer)
{
    const Inference__ModelInferRequest *m = infer->message;
    int64_t version;

    if (atomic_load(&infer->call->service->draining)) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "GRPC server is shutting down and has stopped "
                                               "accepting new requests.");
    }
    NRD_TRY(nrd_grpc_parse_version(m->model_version, &version));
    const nrd_front *front = infer->call->service->front;
    NRD_TRY(front->quotas ? admit(infer) : NULL);
    nrd_switcher *s = front->switcher;
    nrd_switch_model *one = s && !infer->lease ? nrd_switcher_find(s, m->model_name) : NULL;
    if (one) { /* a queue's thread cannot wait; clients of gRPC try again after UNAVAILABLE */
        NRD_TRY(nrd_switcher_acquire_now(s, one));
        infer->lease = one;
    }
    return nrd_infer_open(&infer->infer, m->model_name, version);
}

static nrd_error *fill(nrd_grpc_infer *infer)
{
    const Inference__ModelInferRequest *m = infer->message;

    NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceRequestSetId(infer->infer.request, m->id)));
    for (size_t i = 0; i < m->n_parameters; i++) {
        NRD_TRY(set_parameter(infer, m->parameters[i]->key, m->parameters[i]->value));
    }
    NRD_TRY(forward_metadata(infer));
    NRD_TRY(set_deadline(infer));
    NRD_TRY(add_inputs(infer));
    return add_outputs(infer);
}

nrd_error *nrd_grpc_infer_submit(nrd_grpc_infer *infer)
{
    nrd_infer *i = &infer->infer;
    const grpc_slice *parent = nrd_grpc_metadata(infer->call, "traceparent");

    NRD_TRY(fill(infer));
    nrd_infer_trace(i, infer->message->model_name,
                    parent ? (const char *)GRPC_SLICE_START_PTR(*parent) : NULL,
                    parent ? GRPC_SLICE_LENGTH(*parent) : 0);
    if (i->trace) {
        nrd_trace_stamp(i->trace, "GRPC_WAITREAD_END", nrd_now_ns());
    }
    nrd_error *err = nrd_infer_submit(i);
    if (err) {
        nrd_trace_not_taken(i->trace);
    }
    return err;
}

/* ---- ModelInfer ---- */

/* State of a unary call. The responses of one request come one after the other. */
typedef struct unary {
    nrd_grpc_infer *infer; /* shares */
    TRITONSERVER_InferenceResponse *response;
    int n_responses;
} unary;

static void unary_response(nrd_grpc_infer *infer, TRITONSERVER_InferenceResponse *response,
                           bool final)
{
    unary *u = infer->owner;
    grpc_byte_buffer *message = NULL;
    nrd_error *err;

    if (response) {
        u->n_responses++;
        nrd_infer_response_delete(u->response);
        u->response = response;
    }
    if (!final) {
        return;
    }
    response = u->response;
    u->response = NULL;
    if (u->n_responses != 1) {
        nrd_infer_response_delete(response);
        err = nrd_errorf(NRD_ERR_INTERNAL, "expected a single response, got %d", u->n_responses);
    } else {
        err = nrd_grpc_encode(infer, response, false, true, &message);
    }
    nrd_infer_let_go(&infer->infer);
    if (err) {
        nrd_grpc_fail(infer->call, err);
    } else {
        nrd_grpc_reply(infer->call, message);
    }
}

static void unary_closed(nrd_grpc_call *call, bool cancelled)
{
    unary *u = call->state;
    if (cancelled) {
        nrd_infer_cancel(&u->infer->infer);
    }
    nrd_grpc_infer_unref(u->infer);
}

static void unary_free(nrd_grpc_call *call)
{
    free(call->state);
}

void nrd_grpc_unary_infer(nrd_grpc_call *call)
{
    nrd_grpc_infer *infer = NULL;
    unary *u = calloc(1, sizeof *u);
    nrd_error *err = u ? NULL : nrd_error_no_memory();

    call->state = u;
    call->free_state = unary_free;
    if (!err) {
        err = nrd_grpc_infer_new(&infer, call, call->payload);
    }
    if (!err) {
        err = nrd_grpc_infer_open(infer);
    }
    if (!err && infer->infer.decoupled) {
        err = nrd_errorf(NRD_ERR_UNSUPPORTED, "ModelInfer RPC doesn't support models with "
                                              "decoupled transaction policy");
    }
    if (!err) {
        infer->owner = u;
        infer->on_response = unary_response;
        err = nrd_grpc_infer_submit(infer);
    }
    if (err) {
        nrd_grpc_infer_unref(infer);
        nrd_grpc_fail(call, err);
        return;
    }
    /* The queue thread that runs this also takes the event of a lost peer, so not before now. Its
     * count on the inference ends with that event, which always comes. */
    u->infer = infer;
    call->closed = unary_closed;
}
