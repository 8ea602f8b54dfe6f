/* SPDX-License-Identifier: Apache-2.0
 * One call: its message, its answer and its end, for whatever kind of call it is. */
#include "frontends/grpc/rpc.h"

#include "base/limits.h"
#include "frontends/common/inflate.h"

#include <grpc/byte_buffer_reader.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Thread_local bool nrd_grpc_on_queue;

/* ---- errors ---- */

static grpc_status_code status_of(nrd_error_code code)
{
    switch (code) {
    case NRD_ERR_INTERNAL:
        return GRPC_STATUS_INTERNAL;
    case NRD_ERR_NOT_FOUND:
        return GRPC_STATUS_NOT_FOUND;
    case NRD_ERR_INVALID_ARG:
        return GRPC_STATUS_INVALID_ARGUMENT;
    case NRD_ERR_UNAVAILABLE:
    case NRD_ERR_NO_MEMORY:
        return GRPC_STATUS_UNAVAILABLE;
    case NRD_ERR_UNSUPPORTED:
        return GRPC_STATUS_UNIMPLEMENTED;
    case NRD_ERR_ALREADY_EXISTS:
        return GRPC_STATUS_ALREADY_EXISTS;
    case NRD_ERR_CANCELLED:
        return GRPC_STATUS_CANCELLED;
    case NRD_ERR_UNAUTHENTICATED:
        return GRPC_STATUS_UNAUTHENTICATED;
    case NRD_ERR_UNKNOWN:
        break;
    }
    return GRPC_STATUS_UNKNOWN;
}

nrd_error *nrd_grpc_parse_version(const char *text, int64_t *out)
{
    return nrd_parse_version(text, 1, "", out);
}

/* ---- messages ---- */

/* protobuf-c takes 40 bytes for a field of two, and a structure for an empty submessage. */
typedef struct budget {
    nrd_arena *arena;
    nrd_claim *claim;
    size_t left;
    size_t room; /* of what is claimed, not used yet */
    nrd_error *refused;
} budget;

#define FIRST_ROOM (16u << 10) /* most messages need no more: not counted */
#define MORE_ROOM (1u << 20)

static void *budget_alloc(void *opaque, size_t n)
{
    budget *b = opaque;
    if (n > b->left) {
        b->left = 0;
        return NULL;
    }
    if (n > b->room) {
        const size_t more = n > MORE_ROOM ? n : MORE_ROOM;
        b->refused = b->refused ? b->refused : nrd_claim_bytes(b->claim, more, "the fields of its message");
        if (b->refused) {
            return NULL;
        }
        b->room += more;
    }
    b->left -= n;
    b->room -= n;
    return nrd_arena_alloc(b->arena, n);
}

static void budget_free(void *opaque, void *p)
{
    (void)opaque;
    (void)p;
}

static nrd_error *inflate_message(const nrd_grpc_service *s, nrd_claim *claim, bool is_gzip, grpc_slice *io)
{
    grpc_slice packed = *io;
    char *data = NULL;
    size_t n = 0;
    nrd_error *err = nrd_inflate(&data, &n, claim, is_gzip, (const char *)GRPC_SLICE_START_PTR(packed),
                                 GRPC_SLICE_LENGTH(packed), (size_t)s->options->grpc_max_message_bytes,
                                 "grpc-max-message-size");
    grpc_slice_unref(packed);
    *io = err ? grpc_empty_slice() : grpc_slice_new(data, n, free);
    return err;
}

nrd_error *nrd_grpc_bytes(const nrd_grpc_service *s, nrd_claim *claim, grpc_byte_buffer *payload, grpc_slice *out)
{
    grpc_byte_buffer_reader reader;
    grpc_slice *first;
    const size_t n = payload ? grpc_byte_buffer_length(payload) : 0;

    *out = grpc_empty_slice();
    if (!payload || !grpc_byte_buffer_reader_init(&reader, payload)) {
        return nrd_errorf(NRD_ERR_INTERNAL, "the call carries no readable message");
    }
    if (payload->data.raw.slice_buffer.count == 1 && grpc_byte_buffer_reader_peek(&reader, &first) &&
        GRPC_SLICE_LENGTH(*first) == n) {
        *out = grpc_slice_ref(*first); /* nothing to put together */
    } else {
        *out = grpc_byte_buffer_reader_readall(&reader);
    }
    grpc_byte_buffer_reader_destroy(&reader);
    const grpc_compression_algorithm c = payload->data.raw.compression;
    return c == GRPC_COMPRESS_NONE ? NULL : inflate_message(s, claim, c == GRPC_COMPRESS_GZIP, out);
}

nrd_error *nrd_grpc_unpack_bytes(nrd_arena *arena, nrd_claim *claim, const ProtobufCMessageDescriptor *type,
                                 const uint8_t *p, size_t n, const void **out)
{
    budget b = {.arena = arena, .claim = claim, .left = NRD_LIMIT_GRPC_MESSAGE_MEMORY, .room = FIRST_ROOM};
    ProtobufCAllocator a = {budget_alloc, budget_free, &b};

    *out = protobuf_c_message_unpack(type, &a, n, p);
    if (b.refused) {
        return b.refused; /* the arena keeps what there was of it */
    }
    if (!*out && b.left == 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the fields of the message take more than %d bytes",
                          NRD_LIMIT_GRPC_MESSAGE_MEMORY);
    }
    return *out ? NULL
                : nrd_errorf(NRD_ERR_INTERNAL, "the message is not a valid %s", type->name);
}

nrd_error *nrd_grpc_unpack(const nrd_grpc_service *s, nrd_arena *arena, nrd_claim *claim,
                           const ProtobufCMessageDescriptor *type, grpc_byte_buffer *payload,
                           const void **out)
{
    grpc_slice bytes;

    *out = NULL;
    NRD_TRY(nrd_claim_bytes(claim, payload ? grpc_byte_buffer_length(payload) : 0, "its message"));
    nrd_error *err = nrd_grpc_bytes(s, claim, payload, &bytes);
    if (!err) {
        err = nrd_grpc_unpack_bytes(arena, claim, type, GRPC_SLICE_START_PTR(bytes),
                                    GRPC_SLICE_LENGTH(bytes), out);
    }
    grpc_slice_unref(bytes);
    return err;
}

/* ---- life, and the answer ---- */

void nrd_grpc_call_ref(nrd_grpc_call *call)
{
    atomic_fetch_add_explicit(&call->refs, 1, memory_order_relaxed);
}

void nrd_grpc_call_unref(nrd_grpc_call *call)
{
    if (atomic_fetch_sub_explicit(&call->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    nrd_grpc_service *s = call->service;
    if (call->free_state) {
        call->free_state(call);
    }
    if (call->payload) {
        grpc_byte_buffer_destroy(call->payload);
    }
    if (call->reply) {
        grpc_byte_buffer_destroy(call->reply);
    }
    grpc_slice_unref(call->details_text);
    grpc_slice_unref(call->again[0].value);
    grpc_slice_unref(call->again[1].value);
    grpc_metadata_array_destroy(&call->metadata);
    if (call->has_details) {
        grpc_call_details_destroy(&call->details);
    }
    nrd_arena_fini(&call->arena);
    nrd_claim_give_all(&call->claim);
    if (call->rpc) {
        grpc_call_unref(call->rpc);
    }
    free(call);
    atomic_fetch_sub(&s->n_calls, 1); /* the last: the service waits for it */
}

void nrd_grpc_start(nrd_grpc_call *call, const grpc_op *ops, size_t n, nrd_grpc_tag *tag)
{
    nrd_grpc_call_ref(call);
    atomic_fetch_add(&tag->n_started, 1);
    grpc_call_error rc = grpc_call_start_batch(call->rpc, ops, n, tag, NULL);
    NRD_ASSERT(rc == GRPC_CALL_OK, "each operation is started once and in order");
}

void nrd_grpc_metadata_op(const nrd_grpc_call *call, grpc_op *op)
{
    memset(op, 0, sizeof *op);
    op->op = GRPC_OP_SEND_INITIAL_METADATA;
    if (call->service->compression != GRPC_COMPRESS_LEVEL_NONE &&
        (call->method->kind == NRD_GRPC_INFER || call->method->kind == NRD_GRPC_STREAM)) {
        op->data.send_initial_metadata.maybe_compression_level.is_set = 1;
        op->data.send_initial_metadata.maybe_compression_level.level = call->service->compression;
    }
}

/* The text travels in a header, of which clients take 8 KB in all: a longer one would reach them as
 * RESOURCE_EXHAUSTED, without the code and without a word of it. Bytes other than printable ASCII are
 * sent as three. A cut does not split a character. */
static grpc_slice status_text(const char *text)
{
    enum { MAX_SENT = 4096 };
    static const char more[] = " ...";
    size_t n = 0, sent = 0, whole = 0; /* whole: bytes of complete characters */

    while (text[n] && sent <= MAX_SENT) {
        whole = ((unsigned char)text[n] & 0xc0) == 0x80 ? whole : n;
        sent += text[n] >= 0x20 && text[n] <= 0x7e && text[n] != '%' ? 1 : 3;
        n++;
    }
    if (sent <= MAX_SENT) {
        return grpc_slice_from_copied_buffer(text, n);
    }
    grpc_slice out = grpc_slice_malloc(whole + sizeof more - 1);
    memcpy(GRPC_SLICE_START_PTR(out), text, whole);
    memcpy(GRPC_SLICE_START_PTR(out) + whole, more, sizeof more - 1);
    return out;
}

/* A refusal by a key's limits: when to ask again, for people as HTTP says it, and for libraries that do by themselves. */
static void put_again(nrd_grpc_call *call, int after_secs, grpc_op *op)
{
    static const char *const names[] = {"retry-after", "grpc-retry-pushback-ms"};
    char text[24];

    for (int i = 0; i < 2; i++) {
        snprintf(text, sizeof text, "%lld", after_secs * (i == 0 ? 1ll : 1000ll));
        call->again[i].key = grpc_slice_from_static_string(names[i]);
        call->again[i].value = grpc_slice_from_copied_string(text);
    }
    op->data.send_status_from_server.status = GRPC_STATUS_RESOURCE_EXHAUSTED;
    op->data.send_status_from_server.trailing_metadata = call->again;
    op->data.send_status_from_server.trailing_metadata_count = 2;
}

void nrd_grpc_status_op(nrd_grpc_call *call, nrd_error *err, grpc_op *op)
{
    memset(op, 0, sizeof *op);
    op->op = GRPC_OP_SEND_STATUS_FROM_SERVER;
    op->data.send_status_from_server.status = GRPC_STATUS_OK;
    if (err) {
        op->data.send_status_from_server.status = status_of(nrd_error_get_code(err));
        call->details_text = status_text(nrd_error_message(err));
        op->data.send_status_from_server.status_details = &call->details_text;
        const int after_secs = atomic_load(&call->after_secs);
        if (after_secs > 0) {
            put_again(call, after_secs, op);
        }
        nrd_error_free(err);
    }
}

static void run_sent(nrd_grpc_tag *tag, bool ok)
{
    nrd_grpc_call *call = NRD_GRPC_OF(tag, nrd_grpc_call, on_sent);
    (void)ok; /* a peer that is gone gets nothing, and that is all */
    atomic_fetch_sub(&call->service->busy, 1);
    nrd_grpc_call_unref(call);
}

static void finish(nrd_grpc_call *call, grpc_byte_buffer *message, nrd_error *err)
{
    grpc_op ops[3];
    size_t n = 0;

    nrd_grpc_metadata_op(call, &ops[n++]);
    if (message) {
        memset(&ops[n], 0, sizeof ops[n]);
        ops[n].op = GRPC_OP_SEND_MESSAGE;
        ops[n].data.send_message.send_message = message;
        call->reply = message;
        n++;
    }
    nrd_grpc_status_op(call, err, &ops[n++]);
    call->on_sent.run = run_sent;
    nrd_grpc_start(call, ops, n, &call->on_sent);
}

void nrd_grpc_reply(nrd_grpc_call *call, grpc_byte_buffer *message)
{
    finish(call, message, NULL);
}

void nrd_grpc_fail(nrd_grpc_call *call, nrd_error *err)
{
    finish(call, NULL, err);
}

int nrd_grpc_key(const nrd_grpc_call *call)
{
    const grpc_slice *v = nrd_grpc_metadata(call, "authorization");
    return v ? nrd_keys_find(call->service->front->keys, (const char *)GRPC_SLICE_START_PTR(*v), GRPC_SLICE_LENGTH(*v)) : -1;
}

const grpc_slice *nrd_grpc_metadata(const nrd_grpc_call *call, const char *key)
{
    for (size_t i = 0; i < call->metadata.count; i++) {
        if (grpc_slice_str_cmp(call->metadata.metadata[i].key, key) == 0) {
            return &call->metadata.metadata[i].value;
        }
    }
    return NULL;
}
