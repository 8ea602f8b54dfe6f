/* SPDX-License-Identifier: Apache-2.0
 * ModelInferRequest in slices of any length. Input: two bytes that pick the cuts, then a message, in
 * which each byte 0xfe stands for a raw content of 33,000 bytes, so that the reader of long messages has
 * it too. Whatever the cuts, and by either reader: the same messages are taken, with the same inputs and
 * raw contents, byte for byte. */
#include "base/str.h"
#include "frontends/grpc/infer.h"

#include <grpc/grpc.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LONG_RAW = 33000, MAX_BYTES = 1 << 20 };

/* What the core would get. */
static nrd_str got;

TRITONSERVER_Error *TRITONSERVER_InferenceRequestAppendInputData(
    TRITONSERVER_InferenceRequest *request, const char *name, const void *base, size_t n,
    TRITONSERVER_MemoryType place, int64_t place_id)
{
    (void)request, (void)name, (void)place, (void)place_id;
    nrd_str_append(&got, base, n);
    return NULL;
}

static nrd_options options;
static nrd_grpc_service service = {.options = &options};
static nrd_grpc_call call = {.service = &service};
static size_t n_alive;

static void released(void *p, size_t n)
{
    (void)n;
    n_alive--;
    free(p);
}

static void nothing(nrd_infer *i)
{
    (void)i;
}

static void unfold(const uint8_t *data, size_t size, nrd_str *out)
{
    static const char head[] = {7 << 3 | 2, (char)((LONG_RAW & 0x7f) | 0x80),
                                (char)((LONG_RAW >> 7 & 0x7f) | 0x80), LONG_RAW >> 14};
    static char raw[LONG_RAW];
    for (int i = 0; i < LONG_RAW; i++) {
        raw[i] = (char)(i * 7);
    }
    for (size_t i = 0; i < size && out->len < MAX_BYTES; i++) {
        if (data[i] == 0xfe) {
            nrd_str_append(out, head, sizeof head);
            nrd_str_append(out, raw, sizeof raw);
        } else {
            nrd_str_putc(out, (char)data[i]);
        }
    }
}

static grpc_byte_buffer *cut(const nrd_str *text, size_t longest, uint32_t seed)
{
    grpc_byte_buffer *b = grpc_raw_byte_buffer_create(NULL, 0);
    for (size_t at = 0, n; at < text->len; at += n) {
        seed = seed * 1664525u + 1013904223u;
        n = longest ? 1 + (seed >> 8) % longest : text->len;
        n = n < text->len - at ? n : text->len - at;
        uint8_t *copy = malloc(n);
        if (!copy) {
            abort();
        }
        memcpy(copy, text->data + at, n);
        n_alive++;
        grpc_slice_buffer_add_indexed(&b->data.raw.slice_buffer, grpc_slice_new_with_len(copy, n, released));
    }
    return b;
}

/* As the call would: how it ended, and what the core would get of all raw contents, with their lengths. */
static bool decode(const nrd_str *text, size_t longest, uint32_t seed, nrd_str *out)
{
    nrd_grpc_infer infer;
    memset(&infer, 0, sizeof infer);
    nrd_infer_init(&infer.infer, NULL, nothing);
    infer.call = &call;
    grpc_slice_buffer_init(&infer.parts);
    grpc_byte_buffer *b = cut(text, longest, seed);
    nrd_error *err = nrd_grpc_infer_decode(&infer, b);
    grpc_byte_buffer_destroy(b);
    const bool ok = !err;
    nrd_error_free(err);
    if (ok) {
        const Inference__ModelInferRequest *m = infer.message;
        nrd_str_printf(out, "%s %s %s %zu %zu %zu\n", m->model_name, m->model_version, m->id, m->n_inputs,
                       m->n_outputs, m->n_raw_input_contents);
        for (size_t k = 0; k < m->n_raw_input_contents; k++) {
            got.len = 0;
            if (nrd_grpc_infer_append_raw(&infer, "x", seed & 1 ? TRITONSERVER_TYPE_BYTES : TRITONSERVER_TYPE_FP32,
                                          k)) {
                abort();
            }
            nrd_str_printf(out, "%zu:", got.len);
            nrd_str_append(out, got.data ? got.data : "", got.len);
        }
    }
    nrd_claim_give_all(&infer.infer.claim);
    nrd_arena_fini(&infer.infer.arena);
    grpc_slice_buffer_destroy(&infer.parts);
    if (n_alive) {
        abort();
    }
    return ok;
}

/* By the generated code alone. */
static bool unpack(const nrd_str *text, nrd_str *out)
{
    nrd_arena arena = {0};
    nrd_claim claim = {0};
    const void *message = NULL;
    nrd_error *err = nrd_grpc_unpack_bytes(&arena, &claim, &inference__model_infer_request__descriptor,
                                           (const uint8_t *)nrd_str_cstr(text), text->len, &message);
    const bool ok = !err;
    nrd_error_free(err);
    if (ok) {
        const Inference__ModelInferRequest *m = message;
        nrd_str_printf(out, "%s %s %s %zu %zu %zu\n", m->model_name, m->model_version, m->id, m->n_inputs,
                       m->n_outputs, m->n_raw_input_contents);
        for (size_t k = 0; k < m->n_raw_input_contents; k++) {
            const ProtobufCBinaryData *raw = &m->raw_input_contents[k];
            nrd_str_printf(out, "%zu:", raw->len);
            nrd_str_append(out, raw->data ? (const char *)raw->data : "", raw->len);
        }
    }
    nrd_claim_give_all(&claim);
    nrd_arena_fini(&arena);
    return ok;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const size_t longest[] = {0, 1 << 20, 100000, 33100, 16384, 9000, 4097, 100};
    static bool is_ready;
    nrd_str text = {0}, whole = {0}, parts = {0};
    if (size < 3 || size > 4096) {
        return 0;
    }
    if (!is_ready) {
        is_ready = true;
        grpc_init();
        nrd_options_init(&options);
    }
    unfold(data + 2, size - 2, &text);
    const bool ok = unpack(&text, &whole);
    const bool same = decode(&text, longest[data[0] % 8], data[1], &parts) == ok;
    if (!same || whole.len != parts.len || (whole.len && memcmp(whole.data, parts.data, whole.len) != 0)) {
        abort();
    }
    nrd_str_fini(&text);
    nrd_str_fini(&whole);
    nrd_str_fini(&parts);
    return 0;
}
