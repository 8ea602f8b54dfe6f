/* SPDX-License-Identifier: Apache-2.0
 * The service: slots for new calls, the threads of the completion queues, start and end.
 * A slot for each method waits for the next call; when one comes, a new slot is requested and the
 * handler runs. Life: start -> drain (no new calls) -> free. */
#include "frontends/grpc/rpc.h"

#include "base/limits.h"
#include "base/log.h"
#include "frontends/grpc/accept.h"
#include "frontends/grpc/credentials.h"
#include "frontends/grpc/listener.h"

#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>
#if __has_include(<grpc/support/log.h>) /* newer releases log by other means */
#include <grpc/support/log.h>
#endif
#include <limits.h>
#include <string.h>
#include <time.h>

#define MAX_BACKGROUND 16 /* model loads and unloads at the same time */
#define END_WATCHES_MS 500 /* their thread looks every 100; a client that does not read holds up the end no longer */
#define END_CALLS_MS 5000  /* who keeps a call longer than all requests take keeps it for good */

static const nrd_grpc_method other_method = {"", "", NRD_GRPC_OTHER, NULL, NULL};

/* ---- administration ---- */

static grpc_byte_buffer *pack(const ProtobufCMessage *m)
{
    grpc_slice slice = grpc_slice_malloc(protobuf_c_message_get_packed_size(m));
    protobuf_c_message_pack(m, GRPC_SLICE_START_PTR(slice));
    grpc_byte_buffer *b = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return b;
}

static void answer(nrd_grpc_call *call)
{
    const void *in = NULL;
    ProtobufCMessage *out = NULL;
    nrd_error *err = nrd_grpc_unpack(call->service, &call->arena, &call->claim, call->method->in_type, call->payload, &in);
    if (!err) {
        err = call->method->handle(call, in, &out);
    }
    if (err) {
        nrd_grpc_fail(call, err);
    } else {
        nrd_grpc_reply(call, pack(out));
    }
}

static atomic_int n_background;

static void *background_main(void *arg)
{
    nrd_grpc_call *call = arg;
    answer(call);
    nrd_grpc_call_unref(call);
    atomic_fetch_sub(&n_background, 1); /* the last that it does: the service waits for it */
    return NULL;
}

static void answer_in_background(nrd_grpc_call *call)
{
    pthread_t thread;
    pthread_attr_t attr;
    bool ok = false;

    nrd_grpc_call_ref(call);
    if (atomic_fetch_add(&n_background, 1) < MAX_BACKGROUND) {
        pthread_attr_init(&attr);
        pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
        ok = pthread_create(&thread, &attr, background_main, call) == 0;
        pthread_attr_destroy(&attr);
    }
    if (!ok) {
        nrd_grpc_fail(call,
                      nrd_errorf(NRD_ERR_UNAVAILABLE, "too many model loads at the same time"));
        nrd_grpc_call_unref(call);
        atomic_fetch_sub(&n_background, 1);
    }
}

/* NULL: allowed, else the header that the protocol asks for. */
static nrd_error *check_restriction(const nrd_grpc_call *call)
{
    const nrd_option_list *list = &call->service->options->grpc_restricted;
    for (size_t i = 0; i < list->n; i++) {
        const nrd_option_entry *e = &list->items[i];
        if (strcmp(e->name, call->method->protocol) == 0) {
            const grpc_slice *v = nrd_grpc_metadata(call, e->setting);
            if (!v || !nrd_same_secret(GRPC_SLICE_START_PTR(*v), GRPC_SLICE_LENGTH(*v), e->value,
                                       strlen(e->value))) {
                return nrd_errorf(NRD_ERR_UNAVAILABLE,
                                  "This protocol is restricted, expecting header '%s'", e->setting);
            }
        }
    }
    return NULL;
}

static nrd_error *check_key(const nrd_grpc_call *call)
{
    nrd_keys *keys = call->service->front->keys;
    if (nrd_keys_count(keys) == 0 || !nrd_keys_guard(call->method->protocol)) {
        return NULL;
    }
    return nrd_grpc_key(call) >= 0 ? NULL : nrd_errorf(NRD_ERR_UNAUTHENTICATED, NRD_KEYS_REFUSAL);
}

/* ---- new calls ---- */

static void run_closed(nrd_grpc_tag *tag, bool ok)
{
    nrd_grpc_call *call = NRD_GRPC_OF(tag, nrd_grpc_call, on_closed);
    if (call->closed) {
        if (call->cancelled) { /* scripts look for this line of Triton's */
            NRD_LOG_VERBOSE(1, "Cancellation notification received for %sHandler, rpc_ok=%d",
                            strrchr(call->method->path, '/') + 1, ok);
        }
        call->closed(call, call->cancelled != 0);
    }
    nrd_grpc_call_unref(call);
}

static void request_slot(nrd_grpc_queue *q, size_t method_id);

static void dispatch(nrd_grpc_call *call)
{
    nrd_error *err = check_restriction(call);
    err = err ? err : check_key(call);
    if (err) {
        nrd_grpc_fail(call, err);
        return;
    }
    switch (call->method->kind) {
    case NRD_GRPC_ADMIN:
        answer(call);
        break;
    case NRD_GRPC_SLOW:
        answer_in_background(call);
        break;
    case NRD_GRPC_INFER:
        nrd_grpc_unary_infer(call);
        break;
    case NRD_GRPC_STREAM:
        nrd_grpc_stream_infer(call);
        break;
    case NRD_GRPC_WATCH:
        nrd_grpc_health_watch(call);
        break;
    case NRD_GRPC_TALK:
        nrd_grpc_reflection(call);
        break;
    case NRD_GRPC_OTHER:
        nrd_grpc_fail(call, nrd_errorf(NRD_ERR_UNSUPPORTED, "this server has no such method"));
        break;
    }
}

static void run_new(nrd_grpc_tag *tag, bool ok)
{
    nrd_grpc_call *call = NRD_GRPC_OF(tag, nrd_grpc_call, on_new);
    grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};

    if (!ok) { /* the server stops: this slot stays empty */
        nrd_grpc_call_unref(call);
        return;
    }
    atomic_fetch_add(&call->service->busy, 1); /* until the status is sent */
    request_slot(call->queue, call->method_id);
    op.data.recv_close_on_server.cancelled = &call->cancelled;
    call->on_closed.run = run_closed;
    nrd_grpc_start(call, &op, 1, &call->on_closed);
    dispatch(call);
    nrd_grpc_call_unref(call);
}

static bool has_first_message(nrd_grpc_kind kind)
{
    return kind != NRD_GRPC_STREAM && kind != NRD_GRPC_TALK;
}

/* Puts an empty call where the next call of the method will be written to. */
static void request_slot(nrd_grpc_queue *q, size_t method_id)
{
    nrd_grpc_service *s = q->service;
    nrd_grpc_call *call = calloc(1, sizeof *call);
    grpc_call_error rc;

    if (!call) { /* without a slot nobody could call the method again */
        q->owed[method_id]++;
        q->owes = true;
        return;
    }
    atomic_fetch_add(&s->n_calls, 1);
    call->service = s;
    call->queue = q;
    call->method_id = method_id;
    call->method = method_id < nrd_grpc_n_methods ? &nrd_grpc_methods[method_id] : &other_method;
    call->on_new.run = run_new;
    call->details_text = grpc_empty_slice();
    grpc_metadata_array_init(&call->metadata);
    nrd_arena_init(&call->arena);
    atomic_init(&call->refs, 1);
    if (call->method->kind == NRD_GRPC_OTHER) {
        grpc_call_details_init(&call->details);
        call->has_details = true;
        rc = grpc_server_request_call(s->grpc, &call->rpc, &call->details, &call->metadata, q->cq,
                                      q->cq, &call->on_new);
    } else {
        rc = grpc_server_request_registered_call(
            s->grpc, s->handles[method_id], &call->rpc, &call->deadline, &call->metadata,
            has_first_message(call->method->kind) ? &call->payload : NULL, q->cq, q->cq,
            &call->on_new);
    }
    if (rc != GRPC_CALL_OK) { /* not while the queue runs; the method would be lost */
        NRD_LOG_ERROR("gRPC: no slot for %s: %s", call->method->path,
                      grpc_call_error_to_string(rc));
        nrd_grpc_call_unref(call);
    }
}

/* ---- queues ---- */

static void make_owed_slots(nrd_grpc_queue *q)
{
    q->owes = false;
    for (size_t m = 0; m <= nrd_grpc_n_methods; m++) {
        const size_t n = q->owed[m];
        q->owed[m] = 0;
        for (size_t i = 0; i < n; i++) {
            request_slot(q, m);
        }
    }
}

/* false: the queue was shut down and is empty. */
static bool take_event(nrd_grpc_queue *q)
{
    nrd_grpc_service *s = q->service;
    const bool looks = q == s->queues && s->watches;
    if (q->owes && !atomic_load(&s->draining)) {
        make_owed_slots(q);
    }
    const gpr_timespec until =
        looks || q->owes ? gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(100, GPR_TIMESPAN))
              : gpr_inf_future(GPR_CLOCK_REALTIME);
    grpc_event e = grpc_completion_queue_next(q->cq, until, NULL);
    if (e.type == GRPC_OP_COMPLETE) {
        nrd_grpc_tag *tag = e.tag;
        (void)atomic_load(&tag->n_started);
        tag->run(tag, e.success != 0);
    }
    if (looks) {
        nrd_grpc_health_look(s);
    }
    return e.type != GRPC_QUEUE_SHUTDOWN;
}

static void *queue_main(void *arg)
{
    nrd_grpc_queue *q = arg;
    nrd_grpc_on_queue = true;
    pthread_setname_np(pthread_self(), q == q->service->queues ? "grpc-admin" : "grpc-infer");
    while (take_event(q)) {
    }
    return NULL;
}

static nrd_error *start_queues(nrd_grpc_service *s)
{
    for (size_t i = 0; i < s->n_queues; i++) {
        nrd_grpc_queue *q = &s->queues[i];
        for (size_t m = 0; m < nrd_grpc_n_methods; m++) {
            const nrd_grpc_kind kind = nrd_grpc_methods[m].kind;
            const bool inference = kind == NRD_GRPC_INFER || kind == NRD_GRPC_STREAM;
            const int64_t slots = inference != (i > 0) ? 0
                                  : inference          ? s->options->grpc_infer_pool
                                                       : 1;
            for (int64_t n = 0; n < slots; n++) {
                request_slot(q, m);
            }
        }
        if (i == 0) {
            request_slot(q, nrd_grpc_n_methods);
        }
        if (pthread_create(&q->thread, NULL, queue_main, q) != 0) {
            return nrd_errorf(NRD_ERR_UNAVAILABLE, "cannot start a gRPC thread");
        }
        q->started = true;
    }
    return NULL;
}

/* ---- start ---- */

#ifdef GPR_ERROR /* a macro of that header */
static void on_grpc_log(gpr_log_func_args *a)
{
    nrd_log_level level = a->severity == GPR_LOG_SEVERITY_ERROR  ? NRD_LOG_LEVEL_ERROR
                          : a->severity == GPR_LOG_SEVERITY_INFO ? NRD_LOG_LEVEL_INFO
                                                                 : NRD_LOG_LEVEL_VERBOSE;
    if (nrd_log_is_enabled(level)) {
        nrd_log_write(level, a->file, a->line, "gRPC: %s", a->message);
    }
}
#endif

static void add_arg(grpc_arg *args, size_t *n, const char *key, int64_t value)
{
    args[*n].type = GRPC_ARG_INTEGER;
    args[*n].key = (char *)(uintptr_t)key; /* only read */
    args[(*n)++].value.integer = (int)value;
}

enum { QUOTA_ROOM = 16 << 20 }; /* beside one message of the largest size */

/* A message that has not come whole is no request yet, and not in the account of requests: without a quota one
 * connection could begin any number of them. Where it is used up the library opens no more room for bytes
 * (RFC 9113, 5.2), and resets streams that hold some. */
static void add_quota(grpc_arg *args, size_t *n, const nrd_options *o)
{
    const uint64_t least = (uint64_t)o->grpc_max_message_bytes + QUOTA_ROOM;
    const uint64_t bytes = nrd_claim_limit_of_all() / 100 * NRD_LIMIT_GRPC_RECEIVE_MEMORY;
    grpc_resource_quota *quota = grpc_resource_quota_create("server");

    grpc_resource_quota_resize(quota, bytes > least ? bytes : least);
    args[*n].type = GRPC_ARG_POINTER;
    args[*n].key = (char *)(uintptr_t)GRPC_ARG_RESOURCE_QUOTA; /* only read */
    args[*n].value.pointer.p = quota;
    args[(*n)++].value.pointer.vtable = grpc_resource_quota_arg_vtable();
}

static nrd_error *create_server(nrd_grpc_service *s)
{
    const nrd_options *o = s->options;
    grpc_arg args[16];
    grpc_channel_args list = {0, args};
    size_t *n = &list.num_args;

    add_arg(args, n, GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, o->grpc_max_message_bytes);
    /* The library decompresses without a limit: nrd_grpc_bytes does it. */
    add_arg(args, n, GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
    add_arg(args, n, GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, -1);
    add_arg(args, n, GRPC_ARG_ALLOW_REUSEPORT, o->reuse_grpc_port);
    add_arg(args, n, GRPC_ARG_KEEPALIVE_TIME_MS, o->grpc_keepalive_ms);
    add_arg(args, n, GRPC_ARG_KEEPALIVE_TIMEOUT_MS, o->grpc_keepalive_timeout_ms);
    add_arg(args, n, GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, o->grpc_keepalive_idle);
    add_arg(args, n, GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, o->grpc_max_pings);
    add_arg(args, n, GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
            o->grpc_min_ping_interval_ms);
    add_arg(args, n, GRPC_ARG_HTTP2_MAX_PING_STRIKES, o->grpc_max_ping_strikes);
    /* Until the client has introduced itself, TLS included. */
    add_arg(args, n, "grpc.server_handshake_timeout_ms", NRD_LIMIT_GRPC_HANDSHAKE_SECS * 1000);
    if (o->grpc_idle_secs > 0) {
        add_arg(args, n, GRPC_ARG_MAX_CONNECTION_IDLE_MS,
                o->grpc_idle_secs < INT_MAX / 1000 ? o->grpc_idle_secs * 1000 : INT_MAX);
    }
    if (o->grpc_max_age_ms > 0) {
        add_arg(args, n, GRPC_ARG_MAX_CONNECTION_AGE_MS, o->grpc_max_age_ms);
    }
    if (o->grpc_max_age_grace_ms > 0) {
        add_arg(args, n, GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, o->grpc_max_age_grace_ms);
    }
    add_quota(args, n, o);
    s->grpc = grpc_server_create(&list, NULL);
    grpc_resource_quota_unref(args[*n - 1].value.pointer.p); /* the server shares it */
    if (!s->grpc) {
        return nrd_errorf(NRD_ERR_INTERNAL, "cannot create a gRPC server");
    }
    for (size_t i = 0; i < nrd_grpc_n_methods; i++) {
        const nrd_grpc_method *m = &nrd_grpc_methods[i];
        s->handles[i] = grpc_server_register_method(s->grpc, m->path, NULL,
                                                    has_first_message(m->kind)
                                                        ? GRPC_SRM_PAYLOAD_READ_INITIAL_BYTE_BUFFER
                                                        : GRPC_SRM_PAYLOAD_NONE,
                                                    0);
        if (!s->handles[i]) {
            return nrd_errorf(NRD_ERR_INTERNAL, "cannot register %s", m->path);
        }
    }
    return NULL;
}

static nrd_error *open_port(nrd_grpc_service *s, grpc_server_credentials *creds)
{
    const nrd_options *o = s->options;
    const bool v6 = strchr(o->grpc_address, ':') && o->grpc_address[0] != '[';
    char *address = nrd_xasprintf(v6 ? "[%s]:%lld" : "%s:%lld", o->grpc_address, (long long)o->grpc_port);
    s->port = grpc_server_add_http2_port(s->grpc, address, creds);
    nrd_error *err = s->port > 0
                         ? NULL
                         : nrd_errorf(NRD_ERR_UNAVAILABLE,
                                      "Socket '%s' already in use or not available", address);
    free(address);
    return err;
}

static nrd_error *bind_port(nrd_grpc_service *s)
{
    const nrd_options *o = s->options;
    grpc_server_credentials *creds = NULL;
    nrd_error *err = NULL;

    NRD_TRY(nrd_grpc_certs_new(&s->certs, o, &creds));
    if (o->grpc_socket) {
        s->port = (int)o->grpc_port;
        err = nrd_grpc_add_listener(s->grpc, o->grpc_socket, creds);
    } else {
        err = open_port(s, creds);
    }
    nrd_grpc_guard_port(s->port);
    grpc_server_credentials_release(creds);
    return err;
}

static grpc_compression_level compression_level(const char *word)
{
    return strcmp(word, "low") == 0      ? GRPC_COMPRESS_LEVEL_LOW
           : strcmp(word, "medium") == 0 ? GRPC_COMPRESS_LEVEL_MED
           : strcmp(word, "high") == 0   ? GRPC_COMPRESS_LEVEL_HIGH
                                         : GRPC_COMPRESS_LEVEL_NONE;
}

static void run_stopped(nrd_grpc_tag *tag, bool ok)
{
    nrd_grpc_service *s = NRD_GRPC_OF(tag, nrd_grpc_service, on_stopped);
    (void)ok;
    atomic_store(&s->stopped, true);
}

nrd_error *nrd_grpc_service_start(nrd_grpc_service **out, nrd_front *front)
{
    const nrd_options *o = front->options;
    nrd_error *err = NULL;
    nrd_grpc_service *s = NULL;

    *out = NULL;
    NRD_NEW_GOTO(s, 1, err, fail);
    s->front = front;
    s->core = front->core;
    s->options = o;
    s->compression = compression_level(o->grpc_compression);
    NRD_TRY_GOTO(nrd_header_pattern_new(&s->forward, "grpc-header-forward-pattern",
                                        s->options->grpc_forward_pattern), err, fail);
    NRD_NEW_GOTO(s->handles, nrd_grpc_n_methods, err, fail);
#ifdef GPR_ERROR
    gpr_set_log_function(on_grpc_log);
#endif
    grpc_init();
    s->grpc_on = true;
    s->on_stopped.run = run_stopped;
    NRD_TRY_GOTO(create_server(s), err, fail);
    NRD_NEW_GOTO(s->queues, (size_t)o->grpc_infer_threads + 1, err, fail);
    for (size_t i = 0; i <= (size_t)o->grpc_infer_threads; i++) {
        s->queues[i].service = s;
        NRD_NEW_GOTO(s->queues[i].owed, nrd_grpc_n_methods + 1, err, fail);
        s->queues[i].cq = grpc_completion_queue_create_for_next(NULL);
        grpc_server_register_completion_queue(s->grpc, s->queues[i].cq, NULL);
        s->n_queues++;
    }
    NRD_TRY_GOTO(bind_port(s), err, fail);
    grpc_server_start(s->grpc);
    s->running = true;
    NRD_TRY_GOTO(start_queues(s), err, fail);
    *out = s;
    return NULL;

fail:
    nrd_grpc_service_free(s);
    return err;
}

int nrd_grpc_service_port(const nrd_grpc_service *s)
{
    return s->port;
}

/* ---- stop ---- */

void nrd_grpc_service_drain(nrd_grpc_service *s)
{
    atomic_store(&s->draining, true);
    if (!s->shutting_down) {
        s->shutting_down = true;
        grpc_server_shutdown_and_notify(s->grpc, s->queues[0].cq, &s->on_stopped);
    }
}

size_t nrd_grpc_service_busy(const nrd_grpc_service *s)
{
    return atomic_load(&s->busy);
}

/* Gives those who watch the health the time to hear that it is over: cancelled calls lose what was not yet read. */
static void end_watches(nrd_grpc_service *s)
{
    const struct timespec pause = {0, 1000 * 1000};
    atomic_store(&s->ending, true);
    for (int i = 0; i < END_WATCHES_MS && atomic_load(&s->n_watches) > 0; i++) {
        nanosleep(&pause, NULL);
    }
}

/* Ends what is still open (streams without requests), and waits until gRPC has let go of it, and until its last events are taken:
 * one of them may begin an operation (the status of a cancelled stream), which a queue that was shut down does not take. */
static void stop_calls(nrd_grpc_service *s)
{
    const struct timespec pause = {0, 1000 * 1000};
    bool all_run = true;

    nrd_grpc_service_drain(s);
    end_watches(s);
    grpc_server_cancel_all_calls(s->grpc);
    while (!atomic_load(&s->stopped)) {
        if (s->queues[0].started) {
            nanosleep(&pause, NULL);
        } else { /* no other thread takes the events */
            take_event(&s->queues[0]);
        }
    }
    for (size_t i = 0; i < s->n_queues; i++) {
        all_run = all_run && s->queues[i].started;
    }
    for (int i = 0; all_run && i < END_CALLS_MS && atomic_load(&s->n_calls) > 0; i++) {
        nanosleep(&pause, NULL);
    }
}

void nrd_grpc_service_free(nrd_grpc_service *s)
{
    if (!s) {
        return;
    }
    if (s->running) {
        stop_calls(s);
    }
    while (atomic_load(&n_background) > 0) { /* they have answered, and let go of their calls */
        nanosleep(&(struct timespec){0, 1000 * 1000}, NULL);
    }
    for (size_t i = 0; i < s->n_queues; i++) {
        grpc_completion_queue_shutdown(s->queues[i].cq);
        if (s->queues[i].started) {
            pthread_join(s->queues[i].thread, NULL);
        } else {
            while (take_event(&s->queues[i])) { /* takes what is left */
            }
        }
    }
    if (s->grpc) {
        grpc_server_destroy(s->grpc);
    }
    for (size_t i = 0; i < s->n_queues; i++) {
        grpc_completion_queue_destroy(s->queues[i].cq);
        free(s->queues[i].owed);
    }
    if (s->grpc_on) {
        grpc_shutdown();
    }
    nrd_grpc_certs_free(s->certs);
    nrd_header_pattern_free(s->forward);
    free(s->queues);
    free(s->handles);
    free(s);
}
