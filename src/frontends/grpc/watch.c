/* SPDX-License-Identifier: Apache-2.0
 * grpc.health.v1 Watch: one message now, and one whenever the state changes.
 *
 * The core does not tell when it becomes ready, so the thread of the first queue looks four times a
 * second while there are watching calls; everything here runs on that thread. A call ends when its
 * client cancels it or the server has stopped. */
#include "frontends/grpc/rpc.h"

#include "base/clock.h"
#include "health.pb-c.h"

#include <string.h>

#define LOOK_EVERY_NS (250ull * 1000000u)

#define SERVING GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING
#define NOT_SERVING GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING
#define SERVICE_UNKNOWN GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN

typedef struct nrd_grpc_watch {
    struct nrd_grpc_watch *prev, *next;
    nrd_grpc_call *call;
    bool known; /* the service that was asked for exists */
    int told;   /* the state last sent; -1: none */
    bool writing, closed, ending, ended;
    grpc_byte_buffer *message; /* of the write in progress */
    nrd_grpc_tag on_written;
} watch;

static bool knows(const char *service)
{
    return !service[0] || strcmp(service, "inference.GRPCInferenceService") == 0;
}

static int state_now(const nrd_grpc_service *s)
{
    bool ready = false;
    nrd_error_free(nrd_from_triton(TRITONSERVER_ServerIsReady(s->core, &ready)));
    return ready && !atomic_load(&s->draining) ? SERVING : NOT_SERVING;
}

/* The state, unless it was told, and with end, which is taken, the end of the call: one batch, so that no client
 * sees the end without the state before it. */
static void write_state(watch *w, int state, nrd_error *end)
{
    grpc_op ops[3];
    size_t n = 0;
    const uint8_t bytes[2] = {1 << 3, (uint8_t)state}; /* field 1, a varint */

    if (w->told < 0) {
        nrd_grpc_metadata_op(w->call, &ops[n++]);
    }
    if (state != w->told) {
        grpc_slice slice = grpc_slice_from_copied_buffer((const char *)bytes, sizeof bytes);
        w->message = grpc_raw_byte_buffer_create(&slice, 1);
        grpc_slice_unref(slice);
        memset(&ops[n], 0, sizeof ops[n]);
        ops[n].op = GRPC_OP_SEND_MESSAGE;
        ops[n++].data.send_message.send_message = w->message;
        w->told = state;
    }
    if (end) {
        nrd_grpc_status_op(w->call, end, &ops[n++]);
        w->ended = true;
    }
    w->writing = true;
    nrd_grpc_start(w->call, ops, n, &w->on_written);
}

static void tell(watch *w, int state)
{
    if (!w->writing && state != w->told) {
        write_state(w, state, NULL);
    }
}

/* Behind the write in progress, if there is one. */
static void end_watch(watch *w)
{
    if (w->writing) {
        return;
    }
    if (w->closed) {
        write_state(w, w->told, nrd_errorf(NRD_ERR_CANCELLED, "the client has gone"));
    } else {
        write_state(w, w->known ? NOT_SERVING : w->told, nrd_errorf(NRD_ERR_UNAVAILABLE, "the server has stopped"));
    }
}

static void run_written(nrd_grpc_tag *tag, bool ok)
{
    watch *w = NRD_GRPC_OF(tag, watch, on_written);
    nrd_grpc_call *call = w->call;
    (void)ok;
    if (w->message) {
        grpc_byte_buffer_destroy(w->message);
        w->message = NULL;
    }
    if (!w->ended) {
        w->writing = false;
        if (w->closed || w->ending) {
            end_watch(w);
        }
    }
    nrd_grpc_call_unref(call);
}

static void watch_closed(nrd_grpc_call *call, bool cancelled)
{
    watch *w = call->state;
    nrd_grpc_service *s = call->service;
    (void)cancelled;
    w->closed = true;
    *(w->prev ? &w->prev->next : &s->watches) = w->next;
    if (w->next) {
        w->next->prev = w->prev;
    }
    atomic_fetch_sub(&s->n_watches, 1);
    end_watch(w);
}

static void watch_free(nrd_grpc_call *call)
{
    free(call->state);
}

void nrd_grpc_health_watch(nrd_grpc_call *call)
{
    const void *in = NULL;
    nrd_grpc_service *s = call->service;
    nrd_error *err = nrd_grpc_unpack(call->service, &call->arena, &call->claim, call->method->in_type, call->payload, &in);
    if (err) {
        nrd_grpc_fail(call, err);
        return;
    }
    watch *w = calloc(1, sizeof *w);
    if (!w) {
        nrd_grpc_fail(call, nrd_error_no_memory());
        return;
    }
    w->call = call;
    w->known = knows(((const Grpc__Health__V1__HealthCheckRequest *)in)->service);
    w->told = -1;
    w->on_written.run = run_written;
    w->next = s->watches;
    if (w->next) {
        w->next->prev = w;
    }
    s->watches = w;
    atomic_fetch_add(&s->n_watches, 1);
    call->state = w;
    call->closed = watch_closed;
    call->free_state = watch_free;
    atomic_fetch_sub(&s->busy, 1); /* a stop does not wait for watching calls */
    tell(w, w->known ? state_now(s) : SERVICE_UNKNOWN);
}

void nrd_grpc_health_look(nrd_grpc_service *s)
{
    const uint64_t now = nrd_now_ns();
    const bool ending = atomic_load(&s->ending);
    if (!s->watches || (!ending && now - s->looked_ns < LOOK_EVERY_NS)) {
        return;
    }
    s->looked_ns = now;
    const int state = state_now(s);
    for (watch *w = s->watches; w; w = w->next) {
        if (ending) {
            w->ending = true;
            end_watch(w);
        } else {
            tell(w, w->known ? state : SERVICE_UNKNOWN);
        }
    }
}
