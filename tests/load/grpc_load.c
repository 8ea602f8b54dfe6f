/* SPDX-License-Identifier: Apache-2.0
 * A gRPC client that costs little: one thread, any number of calls at a time.
 *
 *   grpc_load ADDRESS MODEL CALLS SECONDS BYTES                unary: each call follows the last
 * one grpc_load ADDRESS MODEL STREAMS SECONDS BYTES ANSWERS      streams: each request brings
 * ANSWERS
 *
 * The input is FP32, [1, BYTES / 4]. Prints one line of JSON. Exit status 1: a call failed. */
#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_CHANNELS 8
#define MAX_SAMPLES (8u << 20)

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- the request, written by hand: fields of ModelInferRequest ---- */

typedef struct bytes {
    uint8_t *p;
    size_t n;
} bytes;

static void put(bytes *b, const void *data, size_t n)
{
    memcpy(b->p + b->n, data, n);
    b->n += n;
}

static void put_varint(bytes *b, uint64_t v)
{
    while (v >= 0x80) {
        b->p[b->n++] = (uint8_t)(v | 0x80);
        v >>= 7;
    }
    b->p[b->n++] = (uint8_t)v;
}

static void put_field(bytes *b, unsigned field, const void *data, size_t n)
{
    put_varint(b, field << 3 | 2);
    put_varint(b, n);
    put(b, data, n);
}

static grpc_byte_buffer *make_request(const char *model, size_t size)
{
    uint8_t room[256], shape_room[16];
    bytes tensor = {room, 0}, shape = {shape_room, 0};
    put_varint(&shape, 1);
    put_varint(&shape, size / 4);
    put_field(&tensor, 1, "INPUT0", 6);
    put_field(&tensor, 2, "FP32", 4);
    put_field(&tensor, 3, shape.p, shape.n);
    bytes all = {calloc(1, size + 512 + strlen(model)), 0};
    if (!all.p) {
        exit(2);
    }
    uint8_t *zeros = calloc(1, size + 1);
    put_field(&all, 1, model, strlen(model));
    put_field(&all, 5, tensor.p, tensor.n);
    put_field(&all, 7, zeros, size);
    free(zeros);
    grpc_slice slice = grpc_slice_from_copied_buffer((const char *)all.p, all.n);
    grpc_byte_buffer *b = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    free(all.p);
    return b;
}

/* ---- calls ---- */

typedef struct call {
    grpc_call *rpc;
    grpc_metadata_array initial, trailing;
    grpc_byte_buffer *sent, *answer;
    grpc_status_code status;
    grpc_slice details;
    uint64_t begin;
    uint64_t left; /* answers of the current request */
    bool reading, open;
} call;

static grpc_completion_queue *cq;
static grpc_channel *channels[MAX_CHANNELS];
static int n_channels;
static grpc_byte_buffer *request;
static uint64_t n_requests, n_answers, n_failed, per_request;
static uint64_t end_at;
static uint32_t *samples;
static size_t n_samples;

static void sample(uint64_t ns)
{
    if (n_samples < MAX_SAMPLES) {
        samples[n_samples++] = (uint32_t)(ns / 1000);
    }
}

static void begin_call(call *c, int i, const char *method)
{
    grpc_metadata_array_init(&c->initial);
    grpc_metadata_array_init(&c->trailing);
    c->answer = NULL;
    c->details = grpc_empty_slice();
    c->rpc = grpc_channel_create_call(channels[i % n_channels], NULL, GRPC_PROPAGATE_DEFAULTS, cq,
                                      grpc_slice_from_static_string(method), NULL,
                                      gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
}

static void start(call *c, const grpc_op *ops, size_t n)
{
    if (grpc_call_start_batch(c->rpc, ops, n, c, NULL) != GRPC_CALL_OK) {
        fprintf(stderr, "cannot start a call\n");
        exit(2);
    }
}

static grpc_op op_of(grpc_op_type type)
{
    grpc_op op;
    memset(&op, 0, sizeof op);
    op.op = type;
    return op;
}

/* gRPC takes the slices out of what it sends, so each call gets a buffer with the same slices. */
static grpc_op send_op(call *c)
{
    grpc_op op = op_of(GRPC_OP_SEND_MESSAGE);
    c->sent = grpc_byte_buffer_copy(request);
    op.data.send_message.send_message = c->sent;
    return op;
}

static grpc_op recv_op(call *c)
{
    grpc_op op = op_of(GRPC_OP_RECV_MESSAGE);
    op.data.recv_message.recv_message = &c->answer;
    return op;
}

static void end_call(call *c)
{
    if (c->status != GRPC_STATUS_OK) {
        if (n_failed++ == 0) {
            char *text = grpc_slice_to_c_string(c->details);
            fprintf(stderr, "status %d: %s\n", (int)c->status, text);
            gpr_free(text);
        }
    }
    grpc_slice_unref(c->details);
    grpc_metadata_array_destroy(&c->initial);
    grpc_metadata_array_destroy(&c->trailing);
    grpc_call_unref(c->rpc);
    c->rpc = NULL;
}

static void start_unary(call *c, int i)
{
    grpc_op ops[6] = {
        op_of(GRPC_OP_SEND_INITIAL_METADATA), send_op(c),  op_of(GRPC_OP_SEND_CLOSE_FROM_CLIENT),
        op_of(GRPC_OP_RECV_INITIAL_METADATA), recv_op(c), op_of(GRPC_OP_RECV_STATUS_ON_CLIENT)};
    begin_call(c, i, "/inference.GRPCInferenceService/ModelInfer");
    ops[3].data.recv_initial_metadata.recv_initial_metadata = &c->initial;
    ops[5].data.recv_status_on_client.trailing_metadata = &c->trailing;
    ops[5].data.recv_status_on_client.status = &c->status;
    ops[5].data.recv_status_on_client.status_details = &c->details;
    c->begin = now_ns();
    start(c, ops, 6);
}

static void drop_answer(call *c)
{
    if (c->sent) {
        grpc_byte_buffer_destroy(c->sent);
        c->sent = NULL;
    }
    if (c->answer) {
        grpc_byte_buffer_destroy(c->answer);
        c->answer = NULL;
        n_answers++;
    }
}

static void run_unary(call *calls, int n)
{
    int open = n;
    for (int i = 0; i < n; i++) {
        start_unary(&calls[i], i);
    }
    while (open > 0) {
        grpc_event e = grpc_completion_queue_next(cq, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        call *c = e.tag;
        const uint64_t now = now_ns();
        sample(now - c->begin);
        n_requests++;
        drop_answer(c);
        end_call(c);
        if (now < end_at && n_failed == 0) {
            start_unary(c, (int)(c - calls));
        } else {
            open--;
        }
    }
}

/* One batch at a time for each stream: [metadata, request, first answer], then [answer]..., then
 * [request, answer]..., at last [close, status]. */
static void run_streams(call *calls, int n)
{
    int open = n;
    for (int i = 0; i < n; i++) {
        call *c = &calls[i];
        grpc_op ops[4] = {op_of(GRPC_OP_SEND_INITIAL_METADATA), send_op(c),
                          op_of(GRPC_OP_RECV_INITIAL_METADATA), recv_op(c)};
        begin_call(c, i, "/inference.GRPCInferenceService/ModelStreamInfer");
        ops[2].data.recv_initial_metadata.recv_initial_metadata = &c->initial;
        c->open = true;
        c->left = per_request;
        c->begin = now_ns();
        start(c, ops, 4);
    }
    while (open > 0) {
        grpc_event e = grpc_completion_queue_next(cq, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        call *c = e.tag;
        const uint64_t now = now_ns();
        if (!c->open) {
            end_call(c);
            open--;
            continue;
        }
        const bool lost = !c->answer;
        drop_answer(c);
        if (!lost && --c->left > 0) {
            grpc_op op = recv_op(c);
            start(c, &op, 1);
            continue;
        }
        n_requests += !lost;
        sample(now - c->begin);
        if (!lost && now < end_at) {
            grpc_op ops[2] = {send_op(c), recv_op(c)};
            c->left = per_request;
            c->begin = now;
            start(c, ops, 2);
            continue;
        }
        grpc_op ops[2] = {op_of(GRPC_OP_SEND_CLOSE_FROM_CLIENT),
                          op_of(GRPC_OP_RECV_STATUS_ON_CLIENT)};
        ops[1].data.recv_status_on_client.trailing_metadata = &c->trailing;
        ops[1].data.recv_status_on_client.status = &c->status;
        ops[1].data.recv_status_on_client.status_details = &c->details;
        c->open = false;
        start(c, ops, 2);
    }
}

static int by_value(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    if (argc < 6) {
        fprintf(stderr, "grpc_load ADDRESS MODEL CALLS SECONDS BYTES [ANSWERS]\n");
        return 2;
    }
    const int n = (int)strtol(argv[3], NULL, 10);
    const double seconds = strtod(argv[4], NULL);
    const size_t size = strtoul(argv[5], NULL, 10);
    per_request = argc > 6 ? strtoul(argv[6], NULL, 10) : 0;
    grpc_init();
    cq = grpc_completion_queue_create_for_next(NULL);
    n_channels = n < MAX_CHANNELS ? n : MAX_CHANNELS;
    grpc_channel_credentials *credentials = grpc_insecure_credentials_create();
    for (int i = 0; i < n_channels; i++) {
        grpc_arg args[2] = {{.type = GRPC_ARG_INTEGER,
                             .key = (char *)(uintptr_t)GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH,
                             .value.integer = -1},
                            {.type = GRPC_ARG_INTEGER, /* a connection for each channel */
                             .key = (char *)(uintptr_t) "grpc.use_local_subchannel_pool",
                             .value.integer = 1}};
        grpc_channel_args list = {2, args};
        channels[i] = grpc_channel_create(argv[1], credentials, &list);
    }
    request = make_request(argv[2], size);
    samples = malloc(MAX_SAMPLES * sizeof *samples);
    call *calls = calloc((size_t)n, sizeof *calls);
    if (!samples || !calls) {
        return 2;
    }
    const uint64_t begin = now_ns();
    end_at = begin + (uint64_t)(seconds * 1e9);
    per_request ? run_streams(calls, n) : run_unary(calls, n);
    const double passed = (double)(now_ns() - begin) * 1e-9;
    qsort(samples, n_samples, sizeof *samples, by_value);
    printf("{\"rate\": %.1f, \"answers_rate\": %.1f, \"p50_us\": %u, \"p99_us\": %u, "
           "\"failed\": %llu}\n",
           (double)n_requests / passed, (double)n_answers / passed,
           n_samples ? samples[n_samples / 2] : 0, n_samples ? samples[n_samples * 99 / 100] : 0,
           (unsigned long long)n_failed);
    return n_failed ? 1 : 0;
}
