/* SPDX-License-Identifier: Apache-2.0
 * ModelInferRequest from its bytes. The generated code copies every tensor once; of long messages
 * raw_input_contents stay in the slices that gRPC received, and the rest is what the generated code
 * reads. A tensor that lies in many slices goes to the core as so many buffers. */
#include "frontends/grpc/infer.h"

#include <grpc/byte_buffer.h>
#include <string.h>

#define LONG_MESSAGE (32u << 10)
#define RAW_KEY (7u << 3 | 2) /* raw_input_contents, of which there may be many */

/* Smaller tensors are put together, larger ones are not: many backends read tensors of a few values
 * from their first buffer alone, and for those the copy costs little. */
#define ONE_BUFFER (1u << 20)
/* A message in pieces that are smaller on average is put together: each costs some 100 bytes here
 * and in the core. Frames have 16 KB where client and server agree on nothing else. */
#define SMALL_PIECE (4u << 10)

/* ---- reading over the borders of slices ---- */

/* A place between two bytes of the slices; at a border it is the begin of the later slice. */
typedef struct cursor {
    const grpc_slice_buffer *in;
    nrd_grpc_place at;
    size_t left; /* bytes behind it */
} cursor;

/* The bytes from here to the end of the slice, of those `want` that are left; moves behind them. */
static size_t take(cursor *c, size_t want, const uint8_t **out)
{
    size_t n = 0;
    while (want && c->at.slice < c->in->count) {
        const grpc_slice *s = &c->in->slices[c->at.slice];
        n = GRPC_SLICE_LENGTH(*s) - c->at.offset;
        if (n) {
            *out = GRPC_SLICE_START_PTR(*s) + c->at.offset;
            n = n < want ? n : want;
            c->at.offset += n;
            c->left -= n;
            break;
        }
        c->at = (nrd_grpc_place){c->at.slice + 1, 0};
    }
    return n;
}

/* Moves n <= left bytes on; copies them to `to` unless NULL. */
static void pass(cursor *c, size_t n, uint8_t *to)
{
    const uint8_t *p = NULL;
    while (n) {
        const size_t part = take(c, n, &p);
        if (to) {
            memcpy(to, p, part);
            to += part;
        }
        n -= part;
    }
}

static bool read_varint(cursor *c, uint64_t *out)
{
    *out = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        const uint8_t *p = NULL;
        if (take(c, 1, &p) == 0) {
            return false;
        }
        *out |= (uint64_t)(*p & 0x7f) << shift;
        if (!(*p & 0x80)) {
            return true;
        }
    }
    return false;
}

/* The key and the length of a field that has one. false: another kind, or not well-formed. */
static bool read_head(cursor *c, uint64_t *key, uint64_t *length)
{
    return read_varint(c, key) && (*key & 7) == 2 && read_varint(c, length) && *length <= c->left;
}

/* ---- the message ---- */

/* Counts the raw contents and the bytes of all else. false: the message has other kinds of fields. */
static bool measure(cursor c, size_t *out_n_raw, size_t *out_rest)
{
    *out_n_raw = *out_rest = 0;
    while (c.left) {
        const size_t before = c.left;
        uint64_t key, length;
        if (!read_head(&c, &key, &length)) {
            return false;
        }
        pass(&c, (size_t)length, NULL);
        *out_n_raw += key == RAW_KEY;
        *out_rest += key == RAW_KEY ? 0 : before - c.left;
    }
    return true;
}

/* Raw content of n bytes: in one piece here or in the arena, or the place where it begins. */
static nrd_error *read_raw(nrd_arena *arena, cursor *c, size_t n, ProtobufCBinaryData *out,
                           nrd_grpc_place *place)
{
    static uint8_t nothing;
    cursor ahead = *c;
    const uint8_t *p = &nothing;

    *place = c->at;
    out->len = n;
    if (take(&ahead, n, &p) == n) {
        *c = ahead;
        out->data = (uint8_t *)(uintptr_t)p;
    } else if (n > ONE_BUFFER) {
        out->data = NULL;
        pass(c, n, NULL);
    } else {
        out->data = nrd_arena_alloc(arena, n);
        if (!out->data) {
            return nrd_error_no_memory();
        }
        pass(c, n, out->data);
    }
    return NULL;
}

/* The message without its raw contents, which stay where they are. *out is NULL without any. */
static nrd_error *split(nrd_grpc_infer *infer, Inference__ModelInferRequest **out)
{
    nrd_arena *arena = &infer->infer.arena;
    cursor c = {&infer->parts, {0, 0}, infer->parts.length};
    size_t n_raw, rest_size, k = 0, used = 0;
    const void *message = NULL;

    *out = NULL;
    if (!measure(c, &n_raw, &rest_size) || n_raw == 0) {
        return NULL;
    }
    ProtobufCBinaryData *raw = nrd_arena_alloc(arena, n_raw * sizeof *raw);
    infer->places = nrd_arena_alloc(arena, n_raw * sizeof *infer->places);
    uint8_t *rest;
    NRD_TRY(nrd_infer_room(&infer->infer, rest_size + 1, "its message", &rest));
    if (!raw || !infer->places || !rest) {
        return nrd_error_no_memory();
    }
    while (c.left) {
        const cursor begin = c;
        uint64_t key = 0, length = 0;
        (void)read_head(&c, &key, &length);
        if (key == RAW_KEY) {
            NRD_TRY(read_raw(arena, &c, (size_t)length, &raw[k], &infer->places[k]));
            k++;
        } else {
            const size_t size = begin.left - c.left + (size_t)length;
            c = begin;
            pass(&c, size, rest + used);
            used += size;
        }
    }
    NRD_TRY(nrd_grpc_unpack_bytes(arena, &infer->infer.claim, &inference__model_infer_request__descriptor, rest, used,
                                  &message));
    *out = (Inference__ModelInferRequest *)(uintptr_t)message; /* in the arena of the inference */
    (*out)->n_raw_input_contents = n_raw;
    (*out)->raw_input_contents = raw;
    return NULL;
}

/* Moves the slices of the payload, or what it is decompressed to. */
static nrd_error *take_parts(nrd_grpc_infer *infer, grpc_byte_buffer *payload)
{
    grpc_slice_buffer *from = &payload->data.raw.slice_buffer;
    grpc_slice whole;

    if (payload->data.raw.compression == GRPC_COMPRESS_NONE &&
        from->count <= from->length / SMALL_PIECE) {
        grpc_slice_buffer_swap(&infer->parts, from);
        return NULL;
    }
    nrd_error *err = nrd_grpc_bytes(infer->call->service, &infer->infer.claim, payload, &whole);
    grpc_slice_buffer_add(&infer->parts, whole);
    grpc_slice_buffer_reset_and_unref(from); /* not twice in memory */
    return err;
}

static nrd_error *decode_long(nrd_grpc_infer *infer, grpc_byte_buffer *payload)
{
    Inference__ModelInferRequest *message = NULL;
    const void *whole = NULL;

    NRD_TRY(nrd_claim_bytes(&infer->infer.claim, grpc_byte_buffer_length(payload), "its message"));
    NRD_TRY(take_parts(infer, payload));
    NRD_TRY(split(infer, &message));
    if (!message) { /* typed contents: copied by the generated code */
        grpc_byte_buffer *b =
            grpc_raw_byte_buffer_create(infer->parts.slices, infer->parts.count);
        nrd_error *err =
            nrd_grpc_unpack(infer->call->service, &infer->infer.arena, &infer->infer.claim,
                            &inference__model_infer_request__descriptor, b, &whole);
        grpc_byte_buffer_destroy(b);
        grpc_slice_buffer_reset_and_unref(&infer->parts);
        NRD_TRY(err);
    }
    infer->message = message ? message : whole;
    return NULL;
}

nrd_error *nrd_grpc_infer_decode(nrd_grpc_infer *infer, grpc_byte_buffer *payload)
{
    const void *message = NULL;

    if (payload && grpc_byte_buffer_length(payload) >= LONG_MESSAGE) {
        return decode_long(infer, payload);
    }
    NRD_TRY(nrd_grpc_unpack(infer->call->service, &infer->infer.arena, &infer->infer.claim,
                            &inference__model_infer_request__descriptor, payload, &message));
    infer->message = message;
    return NULL;
}

nrd_error *nrd_grpc_infer_append_raw(nrd_grpc_infer *infer, const char *name,
                                     TRITONSERVER_DataType type, size_t k)
{
    const ProtobufCBinaryData *raw = &infer->message->raw_input_contents[k];

    if (!infer->places || raw->data) {
        return nrd_infer_append(&infer->infer, name, raw->data, raw->len);
    }
    cursor c = {&infer->parts, infer->places[k], raw->len};
    if (type == TRITONSERVER_TYPE_BYTES) { /* the length of a string must not lie in two buffers */
        uint8_t *whole;
        NRD_TRY(nrd_infer_room(&infer->infer, raw->len, "an input", &whole));
        pass(&c, raw->len, whole);
        return nrd_infer_append(&infer->infer, name, whole, raw->len);
    }
    while (c.left) {
        const uint8_t *p = NULL;
        const size_t n = take(&c, c.left, &p);
        NRD_TRY(nrd_infer_append(&infer->infer, name, p, n));
    }
    return NULL;
}
