/* SPDX-License-Identifier: Apache-2.0
 * Responses as protobuf bytes. Written by hand and not through the generated code: the answer is
 * written once, from front to back, and large outputs are not copied at all. Field numbers are
 * those of protos/grpc_service.proto; tests/server/test_grpc.py reads them with a public client. */
#include "frontends/grpc/infer.h"

#include <stdio.h>
#include <string.h>

#define COPY_MAX 8192 /* bytes of an output; larger ones are sent from where they lie */

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2 };

/* ---- the wire format ---- */

static size_t varint(uint8_t *out, uint64_t v)
{
    size_t n = 0;
    while (v >= 0x80) {
        out[n++] = (uint8_t)(v | 0x80);
        v >>= 7;
    }
    out[n++] = (uint8_t)v;
    return n;
}

static void put_varint(nrd_str *s, uint64_t v)
{
    uint8_t b[10];
    nrd_str_append(s, b, varint(b, v));
}

static void put_tag(nrd_str *s, unsigned field, unsigned wire)
{
    put_varint(s, field << 3 | wire);
}

static void put_bytes(nrd_str *s, unsigned field, const char *data, size_t n)
{
    put_tag(s, field, WIRE_BYTES);
    put_varint(s, n);
    nrd_str_append(s, data, n);
}

static void put_text(nrd_str *s, unsigned field, const char *text)
{
    if (text && text[0]) { /* proto3: an empty string is not written */
        put_bytes(s, field, text, strlen(text));
    }
}

/* A nested message: its length is written behind it, one byte is kept for it. */
static size_t begin(nrd_str *s, unsigned field)
{
    put_tag(s, field, WIRE_BYTES);
    nrd_str_putc(s, 0);
    return s->len;
}

static void end(nrd_str *s, size_t at)
{
    uint8_t b[10];
    const size_t n = s->len - at, width = varint(b, n);
    if (width > 1) {
        nrd_str_append(s, b, width - 1); /* makes room; the content is moved over it */
    }
    if (s->no_memory) {
        return;
    }
    if (width > 1) {
        const size_t more = width - 1;
        memmove(s->data + at + more, s->data + at, n);
    }
    memcpy(s->data + at - 1, b, width);
}

/* ---- parts of an answer ---- */

static void put_bool_parameter(nrd_str *s, const char *name, bool value)
{
    size_t entry = begin(s, 4), v;
    put_text(s, 1, name);
    v = begin(s, 2);
    put_tag(s, 1, WIRE_VARINT);
    nrd_str_putc(s, value);
    end(s, v);
    end(s, entry);
}

static nrd_error *put_parameter(nrd_str *s, const char *name, TRITONSERVER_ParameterType type,
                                const void *value)
{
    size_t entry, v;
    if (type == TRITONSERVER_PARAMETER_BYTES) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED,
                          "Response parameter '%s' has type 'TRITONSERVER_PARAMETER_BYTES' which "
                          "is not currently supported",
                          name);
    }
    entry = begin(s, 4);
    put_text(s, 1, name);
    v = begin(s, 2);
    switch (type) { /* members of a oneof are written even when they are zero */
    case TRITONSERVER_PARAMETER_BOOL:
        put_tag(s, 1, WIRE_VARINT);
        nrd_str_putc(s, *(const bool *)value);
        break;
    case TRITONSERVER_PARAMETER_INT:
        put_tag(s, 2, WIRE_VARINT);
        put_varint(s, (uint64_t) * (const int64_t *)value);
        break;
    case TRITONSERVER_PARAMETER_DOUBLE:
        put_tag(s, 4, WIRE_64);
        nrd_str_append(s, value, sizeof(double));
        break;
    case TRITONSERVER_PARAMETER_STRING:
        put_bytes(s, 3, value, strlen(value));
        break;
    case TRITONSERVER_PARAMETER_BYTES: /* refused above: its length is not known here */
        break;
    }
    end(s, v);
    end(s, entry);
    return NULL;
}

static nrd_error *put_output(nrd_str *s, nrd_grpc_infer *infer,
                             TRITONSERVER_InferenceResponse *response, uint32_t i,
                             nrd_infer_tensor *out)
{
    NRD_TRY(nrd_infer_read_tensor(&infer->infer, response, i, out));
    if (out->shared) {
        out->size = 0; /* the entry stays empty */
    }
    const size_t tensor = begin(s, 5);
    put_text(s, 1, out->name);
    put_text(s, 2, TRITONSERVER_DataTypeString(out->type));
    if (out->n_dims > 0) {
        const size_t dims = begin(s, 3);
        for (uint64_t d = 0; d < out->n_dims; d++) {
            put_varint(s, (uint64_t)out->shape[d]);
        }
        end(s, dims);
    }
    end(s, tensor);
    return NULL;
}

/* "" without one. */
static const char *id_of(const nrd_grpc_infer *infer)
{
    return infer && infer->message ? infer->message->id : "";
}

/* Everything but the raw contents. */
static nrd_error *put_head(nrd_str *s, nrd_grpc_infer *infer,
                           TRITONSERVER_InferenceResponse *response, bool in_stream, bool final,
                           nrd_infer_tensor *outputs, uint32_t n_outputs)
{
    const char *model = NULL, *id = id_of(infer);
    int64_t version = -1;
    uint32_t n = 0;
    char number[24];

    if (!response) {
        put_text(s, 1, infer->message->model_name);
        put_text(s, 2, infer->message->model_version);
        put_text(s, 3, id);
    } else {
        NRD_TRY(
            nrd_from_triton(TRITONSERVER_InferenceResponseModel(response, &model, &version)));
        NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceResponseId(response, &id)));
        snprintf(number, sizeof number, "%lld", (long long)version);
        put_text(s, 1, model);
        put_text(s, 2, number);
        put_text(s, 3, id);
        NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceResponseParameterCount(response, &n)));
        for (uint32_t i = 0; i < n; i++) {
            const char *name;
            TRITONSERVER_ParameterType type;
            const void *value;
            NRD_TRY(nrd_from_triton(
                TRITONSERVER_InferenceResponseParameter(response, i, &name, &type, &value)));
            NRD_TRY(put_parameter(s, name, type, value));
        }
    }
    if (in_stream) {
        put_bool_parameter(s, "triton_final_response", final);
    }
    for (uint32_t i = 0; i < n_outputs; i++) {
        NRD_TRY(put_output(s, infer, response, i, &outputs[i]));
    }
    return NULL;
}

/* ---- slices ---- */

/* Keeps a response until the last slice that points into it is sent. */
typedef struct shared_response {
    TRITONSERVER_InferenceResponse *response;
    atomic_size_t refs;
} shared_response;

static void release(void *arg)
{
    shared_response *r = arg;
    if (atomic_fetch_sub(&r->refs, 1) == 1) {
        nrd_infer_response_delete(r->response);
        free(r);
    }
}

static grpc_byte_buffer *buffer_of(const nrd_str *s)
{
    grpc_slice slice = grpc_slice_from_copied_buffer(s->data ? s->data : "", s->len);
    grpc_byte_buffer *b = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return b;
}

/* NULL without memory: then the outputs are copied, or the answer fails. */
static shared_response *share(TRITONSERVER_InferenceResponse *response)
{
    shared_response *shared = calloc(1, sizeof *shared);
    if (shared) {
        shared->response = response;
        atomic_init(&shared->refs, 1);
    }
    return shared;
}

/* raw_output_contents behind the head. Small outputs go into the text, large ones get slices. Takes
 * the response. NULL: no memory. */
static grpc_byte_buffer *gather(nrd_str *s, TRITONSERVER_InferenceResponse *response,
                                const nrd_infer_tensor *outputs, uint32_t n)
{
    shared_response *shared = NULL;
    bool lost = false;
    grpc_byte_buffer *b = grpc_raw_byte_buffer_create(NULL, 0);
    grpc_slice_buffer *list = &b->data.raw.slice_buffer;

    for (uint32_t i = 0; i < n; i++) {
        put_tag(s, 6, WIRE_BYTES);
        put_varint(s, outputs[i].size);
        if (!shared && outputs[i].size > COPY_MAX && !outputs[i].classes.data) {
            shared = share(response);
        }
        if (outputs[i].size <= COPY_MAX || outputs[i].classes.data || !shared) {
            nrd_str_append(s, outputs[i].base, outputs[i].size);
            continue;
        }
        lost = lost || s->no_memory;
        atomic_fetch_add(&shared->refs, 1);
        grpc_slice_buffer_add(list, grpc_slice_from_copied_buffer(s->data, s->len));
        nrd_str_clear(s);
        grpc_slice_buffer_add(list,
                              grpc_slice_new_with_user_data((void *)(uintptr_t)outputs[i].base,
                                                            outputs[i].size, release, shared));
    }
    if (s->len) {
        grpc_slice_buffer_add(list, grpc_slice_from_copied_buffer(s->data, s->len));
    }
    if (lost || s->no_memory) {
        grpc_byte_buffer_destroy(b);
        b = NULL;
    }
    if (shared) {
        release(shared);
    } else {
        nrd_infer_response_delete(response);
    }
    return b;
}

/* ---- whole messages ---- */

#define FEW_OUTPUTS 16

nrd_error *nrd_grpc_encode(nrd_grpc_infer *infer, TRITONSERVER_InferenceResponse *response,
                           bool in_stream, bool final, grpc_byte_buffer **out)
{
    nrd_infer_tensor few[FEW_OUTPUTS], *outputs = few;
    nrd_str s = {0}, whole = {0};
    nrd_error *err = NULL;
    uint32_t n = 0;

    *out = NULL;
    if (response) {
        NRD_TRY_GOTO(nrd_infer_response_error(response), err, done);
        NRD_TRY_GOTO(nrd_infer_check_regions(&infer->infer), err, done);
        NRD_TRY_GOTO(nrd_from_triton(TRITONSERVER_InferenceResponseOutputCount(response, &n)),
                     err, done);
    }
    if (n > FEW_OUTPUTS) {
        NRD_NEW_GOTO(outputs, n, err, done);
    } else {
        memset(few, 0, sizeof few);
    }
    NRD_TRY_GOTO(put_head(&s, infer, response, in_stream, final, outputs, n), err, done);
    NRD_TRY_GOTO(nrd_str_error(&s), err, done);
    if (in_stream) { /* field 2 of the outer message; its length counts the raw contents */
        uint8_t b[10];
        size_t size = s.len;
        for (uint32_t i = 0; i < n; i++) {
            size += 1 + varint(b, outputs[i].size) + outputs[i].size;
        }
        put_tag(&whole, 2, WIRE_BYTES);
        put_varint(&whole, size);
        nrd_str_put(&whole, &s);
        *out = gather(&whole, response, outputs, n);
    } else {
        *out = gather(&s, response, outputs, n);
    }
    response = NULL;
    err = *out ? NULL : nrd_error_no_memory();

done:
    nrd_infer_response_delete(response);
    for (uint32_t i = 0; outputs && i < n; i++) {
        nrd_infer_tensor_fini(&outputs[i]);
    }
    if (outputs != few) {
        free(outputs);
    }
    nrd_str_fini(&s);
    nrd_str_fini(&whole);
    return err;
}

grpc_byte_buffer *nrd_grpc_encode_error(const nrd_grpc_infer *infer, const nrd_error *err,
                                        bool of_model, bool final)
{
    nrd_str s = {0};
    put_text(&s, 1, nrd_error_message(err));
    const size_t inner = begin(&s, 2);
    if (of_model) {
        put_text(&s, 1, infer->message->model_name);
        put_text(&s, 2, infer->message->model_version);
    }
    put_text(&s, 3, id_of(infer)); /* tells the client which request it was */
    put_bool_parameter(&s, "triton_final_response", final);
    end(&s, inner);
    grpc_byte_buffer *b = buffer_of(&s);
    nrd_str_fini(&s);
    return b;
}
