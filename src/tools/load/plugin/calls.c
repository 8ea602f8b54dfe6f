/* SPDX-License-Identifier: Apache-2.0
 * Calls and streams of gRPC: see calls.h. One completion queue, whose events are read by the thread that waits. */
#include "tools/load/plugin/calls.h"

#include "base/clock.h"
#include "tools/load/plugin/messages.h"

#include <ctype.h>
#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_CHANNELS = 8, /* connections; a server has a limit of calls for each */
    MAX_HEADERS = 64,
    MAX_CA_BYTES = 1 << 20,
};

typedef enum { FREE, UNARY, OPENING, ANSWERING, IDLE, ENDING } phase;

typedef struct client client;

typedef struct call {
    client *c;
    struct call *next, *next_free; /* next: of all; next_free: of those that are free, or idle streams */
    grpc_call *rpc;
    grpc_metadata_array initial, trailing;
    grpc_byte_buffer *sent, *answer;
    grpc_status_code status;
    grpc_slice details;
    void *tag;
    uint64_t active_ns; /* when something came last */
    phase phase;
    bool is_late; /* was cancelled because nothing came */
} call;

struct client {
    nrd_client_config config; /* its strings are not used after open */
    grpc_completion_queue *queue;
    grpc_channel *channels[MAX_CHANNELS];
    grpc_slice method;
    grpc_metadata headers[MAX_HEADERS];
    size_t n_headers, n_channels, n_calls;
    call *all, *free_calls, *idle_streams;
    uint64_t check_ns;
};

/* ---- batches ---- */

static grpc_op op_of(grpc_op_type type)
{
    grpc_op op;
    memset(&op, 0, sizeof op); /* its padding and union as well, which the library reads */
    op.op = type;
    return op;
}

static grpc_op head_op(const client *c)
{
    grpc_op op = op_of(GRPC_OP_SEND_INITIAL_METADATA);
    op.data.send_initial_metadata.metadata = (grpc_metadata *)(uintptr_t)c->headers;
    op.data.send_initial_metadata.count = c->n_headers;
    return op;
}

static grpc_op send_op(call *l, const char *body, size_t n)
{
    grpc_slice slice = grpc_slice_from_static_buffer(body, n); /* it lives until the end of the request */
    grpc_op op = op_of(GRPC_OP_SEND_MESSAGE);
    l->sent = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    op.data.send_message.send_message = l->sent;
    return op;
}

static grpc_op first_op(call *l)
{
    grpc_op op = op_of(GRPC_OP_RECV_INITIAL_METADATA);
    op.data.recv_initial_metadata.recv_initial_metadata = &l->initial;
    return op;
}

static grpc_op answer_op(call *l)
{
    grpc_op op = op_of(GRPC_OP_RECV_MESSAGE);
    op.data.recv_message.recv_message = &l->answer;
    return op;
}

static grpc_op status_op(call *l)
{
    grpc_op op = op_of(GRPC_OP_RECV_STATUS_ON_CLIENT);
    op.data.recv_status_on_client.trailing_metadata = &l->trailing;
    op.data.recv_status_on_client.status = &l->status;
    op.data.recv_status_on_client.status_details = &l->details;
    return op;
}

static void drop_buffers(call *l)
{
    if (l->sent) {
        grpc_byte_buffer_destroy(l->sent);
        l->sent = NULL;
    }
    if (l->answer) {
        grpc_byte_buffer_destroy(l->answer);
        l->answer = NULL;
    }
}

static void close_rpc(call *l)
{
    drop_buffers(l);
    grpc_slice_unref(l->details);
    grpc_metadata_array_destroy(&l->initial);
    grpc_metadata_array_destroy(&l->trailing);
    grpc_call_unref(l->rpc);
    l->rpc = NULL;
    l->phase = FREE;
    l->next_free = l->c->free_calls;
    l->c->free_calls = l;
}

/* The library refuses a batch only where it was composed wrongly. */
static void start(call *l, phase p, const grpc_op *ops, size_t n)
{
    l->phase = p;
    if (grpc_call_start_batch(l->rpc, ops, n, l, NULL) != GRPC_CALL_OK) {
        void *tag = l->tag;
        client *c = l->c;
        grpc_call_cancel(l->rpc, NULL);
        close_rpc(l);
        c->config.end(tag, 0, "gRPC does not start the call");
    }
}

/* ---- one request ---- */

static call *new_call(client *c)
{
    call *l = c->free_calls;
    if (l) {
        c->free_calls = l->next_free;
    } else {
        l = calloc(1, sizeof *l);
        if (!l) {
            return NULL;
        }
        l->next = c->all;
        c->all = l;
        l->c = c;
    }
    grpc_channel *channel = c->channels[c->n_calls++ % MAX_CHANNELS];
    grpc_metadata_array_init(&l->initial);
    grpc_metadata_array_init(&l->trailing);
    l->details = grpc_empty_slice();
    l->is_late = false;
    l->rpc = grpc_channel_create_call(channel, NULL, GRPC_PROPAGATE_DEFAULTS, c->queue, c->method, NULL,
                                      gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    return l;
}

void nrd_grpc_post(void *arg, void *tag, const char *body, size_t n)
{
    client *c = arg;
    call *l = c->idle_streams;

    if (l) { /* a stream that waits for a request */
        c->idle_streams = l->next_free;
        l->tag = tag;
        l->active_ns = nrd_now_ns();
        const grpc_op ops[] = {send_op(l, body, n), answer_op(l)};
        start(l, ANSWERING, ops, 2);
        return;
    }
    l = new_call(c);
    if (!l) {
        c->config.end(tag, 0, "out of memory");
        return;
    }
    l->tag = tag;
    l->active_ns = nrd_now_ns();
    if (c->config.streams) {
        const grpc_op ops[] = {head_op(c), send_op(l, body, n), first_op(l), answer_op(l)};
        start(l, OPENING, ops, 4);
    } else {
        const grpc_op ops[] = {head_op(c),  send_op(l, body, n), op_of(GRPC_OP_SEND_CLOSE_FROM_CLIENT),
                               first_op(l), answer_op(l),        status_op(l)};
        start(l, UNARY, ops, 6);
    }
}

/* The message that came, to the caller; is_last: of a stream's request. */
static void give(call *l, bool *out_is_last)
{
    grpc_byte_buffer_reader reader;
    l->active_ns = nrd_now_ns();
    if (!grpc_byte_buffer_reader_init(&reader, l->answer)) {
        *out_is_last = true;
        return;
    }
    grpc_slice all = grpc_byte_buffer_reader_readall(&reader);
    grpc_byte_buffer_reader_destroy(&reader);
    l->c->config.piece(l->tag, NRD_CLIENT_FINE, (const char *)GRPC_SLICE_START_PTR(all), GRPC_SLICE_LENGTH(all));
    *out_is_last = l->phase == UNARY || nrd_grpc_is_last(GRPC_SLICE_START_PTR(all), GRPC_SLICE_LENGTH(all));
    grpc_slice_unref(all);
}

static void finish(call *l)
{
    client *c = l->c;
    void *tag = l->tag;
    char why[600];
    const bool is_fine = l->status == GRPC_STATUS_OK && l->phase == UNARY;
    const int refused = l->status == GRPC_STATUS_INVALID_ARGUMENT && !l->is_late ? NRD_CLIENT_REFUSED : 0;

    if (l->is_late) {
        snprintf(why, sizeof why, "no answer for %g s", c->config.timeout_s);
    } else if (!is_fine) {
        char *text = grpc_slice_to_c_string(l->details);
        snprintf(why, sizeof why, "status %d: %s", (int)l->status, text[0] ? text : "the stream has ended");
        gpr_free(text);
    }
    close_rpc(l);
    c->config.end(tag, is_fine ? NRD_CLIENT_FINE : refused, is_fine ? NULL : why);
}

static void on_event(call *l)
{
    client *c = l->c;
    bool is_last = false;

    if (l->phase == ENDING) {
        finish(l);
        return;
    }
    const bool has_answer = l->answer != NULL;
    if (has_answer) {
        give(l, &is_last);
    }
    if (l->phase == UNARY) {
        finish(l);
        return;
    }
    drop_buffers(l);
    if (!has_answer) { /* the stream is broken: ask why */
        const grpc_op ops[] = {status_op(l)};
        start(l, ENDING, ops, 1);
    } else if (!is_last) {
        const grpc_op ops[] = {answer_op(l)};
        start(l, ANSWERING, ops, 1);
    } else {
        void *tag = l->tag;
        l->phase = IDLE;
        l->next_free = c->idle_streams;
        c->idle_streams = l;
        c->config.end(tag, NRD_CLIENT_FINE, NULL);
    }
}

/* ---- all of them ---- */

static void cancel_late(client *c, uint64_t now)
{
    const uint64_t limit = (uint64_t)(c->config.timeout_s * 1e9);
    for (call *l = c->all; l; l = l->next) {
        if (l->phase != FREE && l->phase != IDLE && !l->is_late && now - l->active_ns > limit) {
            l->is_late = true;
            grpc_call_cancel(l->rpc, NULL);
        }
    }
}

void nrd_grpc_wait(void *arg, uint64_t until_ns)
{
    enum { CHECK_NS = 100000000, MAX_EVENTS = 256 };
    client *c = arg;
    const uint64_t now = nrd_now_ns();
    if (now >= c->check_ns) {
        c->check_ns = now + CHECK_NS;
        cancel_late(c, now);
    }
    until_ns = until_ns < c->check_ns ? until_ns : c->check_ns;
    gpr_timespec until = gpr_inf_past(GPR_CLOCK_MONOTONIC);
    if (until_ns > now) {
        until = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos((int64_t)(until_ns - now), GPR_TIMESPAN));
    }
    for (int i = 0; i < MAX_EVENTS; i++) {
        const grpc_event e = grpc_completion_queue_next(c->queue, until, NULL);
        if (e.type != GRPC_OP_COMPLETE) {
            return;
        }
        on_event(e.tag);
        until = gpr_inf_past(GPR_CLOCK_MONOTONIC); /* what is there already, too */
    }
}

size_t nrd_grpc_connections(const void *arg)
{
    const client *c = arg;
    return c->n_calls < MAX_CHANNELS ? c->n_calls : MAX_CHANNELS;
}

void nrd_grpc_free(void *arg)
{
    client *c = arg;
    if (c->queue) {
        for (call *l = c->all; l; l = l->next) {
            if (l->phase != FREE) {
                grpc_call_cancel(l->rpc, NULL);
            }
        }
        grpc_completion_queue_shutdown(c->queue);
        while (grpc_completion_queue_next(c->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL).type != GRPC_QUEUE_SHUTDOWN) {
            /* what was under way ends with this */
        }
    }
    while (c->all) {
        call *l = c->all;
        c->all = l->next;
        if (l->phase != FREE) {
            close_rpc(l);
        }
        free(l);
    }
    for (size_t i = 0; i < c->n_channels; i++) {
        grpc_channel_destroy(c->channels[i]);
    }
    if (c->queue) {
        grpc_completion_queue_destroy(c->queue);
    }
    for (size_t i = 0; i < c->n_headers; i++) {
        grpc_slice_unref(c->headers[i].key);
        grpc_slice_unref(c->headers[i].value);
    }
    grpc_slice_unref(c->method);
    free(c);
    grpc_shutdown();
}

/* "Name: value\r\n" lines into metadata, whose names are in small letters. */
static bool read_headers(client *c, const char *lines, char *why, size_t n_why)
{
    while (*lines) {
        const char *colon = strchr(lines, ':'), *end = strstr(lines, "\r\n");
        char name[256];
        size_t n = 0;
        if (!colon || !end || colon > end || colon - lines >= (ptrdiff_t)sizeof name || c->n_headers == MAX_HEADERS) {
            snprintf(why, n_why, "--header: at most %d, with names below %zu characters", MAX_HEADERS, sizeof name);
            return false;
        }
        for (; lines + n < colon; n++) {
            name[n] = (char)tolower((unsigned char)lines[n]);
        }
        const char *value = colon + 1;
        while (value < end && *value == ' ') {
            value++;
        }
        grpc_metadata *m = &c->headers[c->n_headers++];
        memset(m, 0, sizeof *m);
        m->key = grpc_slice_from_copied_buffer(name, n);
        m->value = grpc_slice_from_copied_buffer(value, (size_t)(end - value));
        if (!grpc_header_key_is_legal(m->key) || !grpc_header_nonbin_value_is_legal(m->value)) {
            snprintf(why, n_why, "--header: '%.*s' is no metadata of gRPC", (int)(end - lines), lines);
            return false;
        }
        lines = end + 2;
    }
    return true;
}

static char *read_file(const char *path, char *why, size_t n_why)
{
    FILE *f = fopen(path, "rb");
    char *text = f ? malloc(MAX_CA_BYTES + 1) : NULL;
    const size_t n = text ? fread(text, 1, MAX_CA_BYTES + 1, f) : 0;
    if (f) {
        (void)fclose(f);
    }
    if (n == 0 || n > MAX_CA_BYTES) {
        snprintf(why, n_why, "--ca_cert: '%s' cannot be read, is empty or has more than %d bytes", path, MAX_CA_BYTES);
        free(text);
        return NULL;
    }
    text[n] = '\0';
    return text;
}

static bool open_channels(client *c, const nrd_client_config *config, char *why, size_t n_why)
{
    const char *address = config->url, *mark = strstr(address, "://");
    const bool is_tls = mark && (!strncmp(address, "https:", 6) || !strncmp(address, "grpcs:", 6));
    grpc_channel_credentials *credentials = NULL;

    if (mark && !is_tls && strncmp(address, "http:", 5) != 0 && strncmp(address, "grpc:", 5) != 0) {
        snprintf(why, n_why, "'%s': only http://, https://, grpc:// and grpcs:// are spoken here", address);
        return false;
    }
    address = mark ? mark + 3 : address;
    char *target = strdup(address);
    char *roots = is_tls && config->ca_cert ? read_file(config->ca_cert, why, n_why) : NULL;
    if (target && !(is_tls && config->ca_cert && !roots)) {
        target[strcspn(target, "/")] = '\0';
        credentials = is_tls ? grpc_ssl_credentials_create(roots, NULL, NULL, NULL) : grpc_insecure_credentials_create();
    }
    free(roots);
    if (!credentials) {
        free(target);
        return false;
    }
    grpc_arg args[] = {{.type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, .value.integer = -1},
                       {.type = GRPC_ARG_INTEGER, /* a connection for each channel */
                        .key = (char *)(uintptr_t) "grpc.use_local_subchannel_pool",
                        .value.integer = 1}};
    const grpc_channel_args list = {sizeof args / sizeof *args, args};
    for (; c->n_channels < MAX_CHANNELS; c->n_channels++) { /* they connect when they are used */
        c->channels[c->n_channels] = grpc_channel_create(target, credentials, &list);
    }
    grpc_channel_credentials_release(credentials);
    free(target);
    return true;
}

bool nrd_grpc_open(void **out, const nrd_client_config *config, char *why, size_t n_why)
{
    client *c = calloc(1, sizeof *c);
    *out = NULL;
    snprintf(why, n_why, "out of memory");
    if (!c) {
        return false;
    }
    grpc_init();
    c->config = *config;
    c->method = grpc_slice_from_copied_string(config->path);
    c->queue = grpc_completion_queue_create_for_next(NULL);
    if (!read_headers(c, config->headers, why, n_why) || !open_channels(c, config, why, n_why)) {
        nrd_grpc_free(c);
        return false;
    }
    *out = c;
    return true;
}
