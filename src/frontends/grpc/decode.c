/* SPDX-License-Identifier: Apache-2.0
 * ModelInferRequest from its bytes. The generated code copies every tensor once; of long messages
 * raw_input_contents stay where they are, and the rest is what the generated code reads. */
#include "frontends/grpc/infer.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <string.h>

#define LONG_MESSAGE (32u << 10)
#define RAW_KEY (7u << 3 | 2) /* raw_input_contents, of which there may be many */

/* One field at *at: its key, and where its content begins. false: not well-formed. */
static bool next_field(const uint8_t *p, size_t n, size_t *at, uint64_t *key, size_t *content,
                       size_t *end)
{
    uint64_t v[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
        unsigned shift = 0;
        uint8_t b;
        do {
            if (*at == n || shift > 63) {
                return false;
            }
            b = p[(*at)++];
            v[i] |= (uint64_t)(b & 0x7f) << shift;
            shift += 7;
        } while (b & 0x80);
        if ((v[0] & 7) != 2) {
            break; /* not one with a length */
        }
    }
    *key = v[0];
    *content = *at;
    if ((v[0] & 7) != 2 || v[1] > n - *at) {
        return false;
    }
    *at += (size_t)v[1];
    *end = *at;
    return true;
}

/* Counts the raw contents and their bytes. false: the message has other kinds of fields. */
static bool measure(const uint8_t *p, size_t n, size_t *out_n_raw, size_t *out_bytes)
{
    size_t at = 0, content, end;
    uint64_t key;
    *out_n_raw = *out_bytes = 0;
    while (at < n) {
        const size_t begin = at;
        if (!next_field(p, n, &at, &key, &content, &end)) {
            return false;
        }
        if (key == RAW_KEY) {
            (*out_n_raw)++;
            *out_bytes += end - begin;
        }
    }
    return true;
}

static void *arena_alloc(void *arena, size_t n)
{
    return nrd_arena_alloc(arena, n);
}

static void arena_free(void *arena, void *p)
{
    (void)arena;
    (void)p;
}

/* The message without its raw contents, which then point into p. NULL: left to the caller. */
static Inference__ModelInferRequest *split(nrd_arena *arena, const uint8_t *p, size_t n)
{
    ProtobufCAllocator a = {arena_alloc, arena_free, arena};
    size_t n_raw, raw_bytes, at = 0, content, end, k = 0, used = 0;
    uint64_t key;

    if (!measure(p, n, &n_raw, &raw_bytes) || n_raw == 0) {
        return NULL;
    }
    ProtobufCBinaryData *raw = nrd_arena_alloc(arena, n_raw * sizeof *raw);
    uint8_t *rest = nrd_arena_alloc(arena, n - raw_bytes + 1);
    if (!raw || !rest) {
        return NULL;
    }
    while (at < n) {
        const size_t begin = at;
        (void)next_field(p, n, &at, &key, &content, &end);
        if (key == RAW_KEY) {
            raw[k].data = (uint8_t *)(uintptr_t)(p + content);
            raw[k++].len = end - content;
        } else {
            memcpy(rest + used, p + begin, end - begin);
            used += end - begin;
        }
    }
    Inference__ModelInferRequest *m =
        (Inference__ModelInferRequest *)(void *)protobuf_c_message_unpack(
            &inference__model_infer_request__descriptor, &a, used, rest);
    if (m) {
        m->n_raw_input_contents = n_raw;
        m->raw_input_contents = raw;
    }
    return m;
}

nrd_error *nrd_grpc_infer_decode(nrd_grpc_infer *infer, grpc_byte_buffer *payload)
{
    const nrd_grpc_service *s = infer->call->service;
    const void *message = NULL;

    if (payload && grpc_byte_buffer_length(payload) >= LONG_MESSAGE) {
        NRD_TRY(nrd_grpc_bytes(s, payload, &infer->bytes));
        infer->message = split(&infer->infer.arena, GRPC_SLICE_START_PTR(infer->bytes),
                               GRPC_SLICE_LENGTH(infer->bytes));
        if (infer->message) {
            return NULL;
        }
    }
    NRD_TRY(nrd_grpc_unpack(s, &infer->infer.arena, &inference__model_infer_request__descriptor, payload,
                            &message));
    infer->message = message;
    return NULL;
}
