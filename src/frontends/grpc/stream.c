/* SPDX-License-Identifier: Apache-2.0
 * ModelStreamInfer: many requests and answers in one call.
 *
 * Life cycle: messages are read one after the other, each becomes a request in the core. Answers
 * go into one queue, of which one at a time is written. Answers of models that give exactly one
 * keep the order of their requests (held until the older ones are done), those of decoupled models
 * go out as they come. A client that does not read is cut off with RESOURCE_EXHAUSTED when
 * NRD_GRPC_MAX_STREAM_BACKLOG bytes wait; with --grpc-max-response-pool-size=N, a model that has N
 * answers waiting in one stream is held up until the client reads on. When the client has said
 * everything and the last answer is written, the status ends the call; a lost client cancels what
 * is in flight. With the metadata triton_grpc_error: true the first error ends the stream with its
 * code; else errors are messages.
 */
#include "frontends/grpc/infer.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#define HOLD_UP_SECS 60 /* then a client that reads nothing at all is given up */

/* A message on its way out. */
typedef struct pending {
    struct pending *next;
    grpc_byte_buffer *message; /* owns */
} pending;

typedef struct fifo {
    pending *head, **tail;
} fifo;

typedef struct stream stream;

typedef struct stream_request {
    struct stream_request *prev, *next; /* guarded by mu: those without their final response */
    stream *stream;
    nrd_grpc_infer *infer; /* shares */
    bool ordered, done;
    bool answered;  /* responses come one after the other */
    bool cancelled; /* guarded by mu */
    fifo held; /* guarded by mu: answers that wait for older requests */
} stream_request;

struct stream {
    nrd_grpc_call *call; /* the stream is its state */
    nrd_grpc_tag on_read, on_written;
    grpc_byte_buffer *incoming; /* of the read in progress */
    bool fail_fast;             /* triton_grpc_error */

    pthread_mutex_t mu;
    pthread_cond_t has_room;            /* something left `out`, or the stream is over */
    fifo out;                           /* guarded by mu */
    size_t n_waiting, waiting_bytes;    /* guarded by mu: in `out` and in `held` */
    bool cut;                           /* guarded by mu: was cut off */
    stream_request *oldest, *youngest;  /* guarded by mu */
    nrd_error *fatal;                   /* guarded by mu: ends the stream */
    bool writing, metadata_sent;        /* guarded by mu */
    bool reads_done, cancelled, ending; /* guarded by mu */
    grpc_byte_buffer *outgoing;         /* of the write in progress */
};

static void fifo_init(fifo *f)
{
    f->head = NULL;
    f->tail = &f->head;
}

static void fifo_push(fifo *f, pending *p)
{
    p->next = NULL;
    *f->tail = p;
    f->tail = &p->next;
}

static pending *fifo_pop(fifo *f)
{
    pending *p = f->head;
    if (p) {
        f->head = p->next;
        if (!f->head) {
            f->tail = &f->head;
        }
    }
    return p;
}

static void fifo_move(fifo *to, fifo *from)
{
    if (from->head) {
        *to->tail = from->head;
        to->tail = from->tail;
        fifo_init(from);
    }
}

static void fifo_clear(fifo *f)
{
    for (pending *p; (p = fifo_pop(f)) != NULL;) {
        grpc_byte_buffer_destroy(p->message);
        free(p);
    }
}

/* Drops what waits. Lock held, or no other thread uses the stream. */
static void clear_waiting(stream *s, fifo *f)
{
    for (const pending *p = f->head; p; p = p->next) {
        s->n_waiting--;
        s->waiting_bytes -= grpc_byte_buffer_length(p->message);
    }
    fifo_clear(f);
}

/* ---- writing ---- */

static void run_written(nrd_grpc_tag *tag, bool ok);

/* Starts the next write or the end, if it is time. Called without the lock, by any thread. */
static void pump(stream *s)
{
    grpc_op ops[2];
    size_t n = 0;
    bool end = false;
    nrd_error *status = NULL;
    grpc_byte_buffer *message = NULL;

    pthread_mutex_lock(&s->mu);
    if (s->ending || s->writing) {
        pthread_mutex_unlock(&s->mu);
        return;
    }
    if (s->cancelled || s->fatal) {
        clear_waiting(s, &s->out);
        pthread_cond_broadcast(&s->has_room);
    }
    pending *p = fifo_pop(&s->out);
    if (p) {
        s->writing = true;
        message = s->outgoing = p->message;
        s->n_waiting--;
        s->waiting_bytes -= grpc_byte_buffer_length(message);
        pthread_cond_broadcast(&s->has_room);
        free(p);
    } else if (s->fatal || (s->reads_done && !s->oldest)) {
        end = s->ending = true;
        status = s->fatal;
        s->fatal = NULL;
        if (!status && s->cancelled) {
            status = nrd_errorf(NRD_ERR_CANCELLED, "the client cancelled the stream");
        }
    } else {
        pthread_mutex_unlock(&s->mu);
        return;
    }
    if (!s->metadata_sent) {
        s->metadata_sent = true;
        nrd_grpc_metadata_op(s->call, &ops[n++]);
    }
    /* The next one follows at once. Not together with the metadata: gRPC would keep both back, and
     * with them the event that starts the next one. */
    const bool more = s->out.head != NULL && n == 0;
    pthread_mutex_unlock(&s->mu);

    atomic_fetch_add(&s->call->service->busy, 1);
    if (end) {
        nrd_grpc_status_op(s->call, status, &ops[n++]);
    } else {
        memset(&ops[n], 0, sizeof ops[n]);
        ops[n].op = GRPC_OP_SEND_MESSAGE;
        ops[n].flags = more ? GRPC_WRITE_BUFFER_HINT : 0;
        ops[n++].data.send_message.send_message = message;
    }
    nrd_grpc_start(s->call, ops, n, &s->on_written);
}

static void run_written(nrd_grpc_tag *tag, bool ok)
{
    stream *s = NRD_GRPC_OF(tag, stream, on_written);
    nrd_grpc_call *call = s->call;

    pthread_mutex_lock(&s->mu);
    if (s->outgoing) {
        grpc_byte_buffer_destroy(s->outgoing);
        s->outgoing = NULL;
    }
    s->writing = false;
    s->cancelled = s->cancelled || !ok;
    pthread_cond_broadcast(&s->has_room);
    pthread_mutex_unlock(&s->mu);
    atomic_fetch_sub(&call->service->busy, 1);
    pump(s);
    nrd_grpc_call_unref(call);
}

/* ---- requests ---- */

static void unlink_request(stream *s, stream_request *r)
{
    *(r->prev ? &r->prev->next : &s->oldest) = r->next;
    *(r->next ? &r->next->prev : &s->youngest) = r->prev;
    r->prev = r->next = NULL;
}

static stream_request *oldest_ordered(stream *s)
{
    stream_request *r = s->oldest;
    while (r && !r->ordered) {
        r = r->next;
    }
    return r;
}

static void free_request(stream_request *r)
{
    fifo_clear(&r->held); /* empty: what was held has gone to the stream */
    nrd_grpc_infer_unref(r->infer);
    atomic_fetch_sub(&r->stream->call->service->busy, 1);
    free(r);
}

/* One answer (NULL: none) of a request; `final` ends the request. Takes the message. */
static void deliver(stream_request *r, grpc_byte_buffer *message, bool final)
{
    stream *s = r->stream;
    nrd_grpc_call *call = s->call;
    stream_request *dead = NULL;
    bool cut = false, lost = false;

    nrd_grpc_call_ref(call); /* the last request may hold the last count */
    pthread_mutex_lock(&s->mu);
    if (message) {
        pending *p = malloc(sizeof *p);
        cut = !s->cut && (!p || s->waiting_bytes > NRD_GRPC_MAX_STREAM_BACKLOG);
        lost = !p;
        s->cut = s->cut || cut;
        if (p) {
            p->message = message;
            s->n_waiting++;
            s->waiting_bytes += grpc_byte_buffer_length(message);
            fifo_push(!r->ordered || oldest_ordered(s) == r ? &s->out : &r->held, p);
        } else { /* a stream with a hole must not go on */
            grpc_byte_buffer_destroy(message);
        }
    }
    r->done = final;
    if (final && !r->ordered) {
        unlink_request(s, r);
        dead = r;
    }
    for (stream_request *o; (o = oldest_ordered(s)) != NULL;) {
        fifo_move(&s->out, &o->held);
        if (!o->done) {
            break;
        }
        unlink_request(s, o);
        o->next = dead;
        dead = o;
    }
    pthread_mutex_unlock(&s->mu);
    if (cut && lost) {
        grpc_call_cancel_with_status(call->rpc, GRPC_STATUS_RESOURCE_EXHAUSTED, "out of memory", NULL);
    } else if (cut) {
        NRD_LOG_WARN("a client does not read its stream: cut off with more than %u bytes unsent",
                     NRD_GRPC_MAX_STREAM_BACKLOG);
        grpc_call_cancel_with_status(call->rpc, GRPC_STATUS_RESOURCE_EXHAUSTED,
                                     "the client does not read its stream", NULL);
    }
    pump(s);
    while (dead) {
        stream_request *next = dead->next;
        free_request(dead);
        dead = next;
    }
    nrd_grpc_call_unref(call);
}

/* Cancels whatever is in flight. The requests are held while the core is called without the lock.
 * Takes no memory: it runs where there is none. */
static void cancel_all(stream *s)
{
    enum { SOME = 16 };
    nrd_grpc_infer *list[SOME];
    size_t n;
    do {
        n = 0;
        pthread_mutex_lock(&s->mu);
        for (stream_request *r = s->oldest; r && n < SOME; r = r->next) {
            if (r->infer && !r->cancelled) {
                r->cancelled = true;
                nrd_infer_ref(&r->infer->infer);
                list[n++] = r->infer;
            }
        }
        pthread_mutex_unlock(&s->mu);
        for (size_t i = 0; i < n; i++) {
            nrd_infer_cancel(&list[i]->infer);
            nrd_grpc_infer_unref(list[i]);
        }
    } while (n == SOME);
}

/* The stream ends with this error, which is taken. */
static void end_with(stream *s, nrd_error *err)
{
    pthread_mutex_lock(&s->mu);
    if (s->fatal || s->ending) {
        nrd_error_free(err);
    } else {
        s->fatal = err;
    }
    pthread_mutex_unlock(&s->mu);
    cancel_all(s);
}

/* An error as a message, or as the end of the stream. Takes the error. */
static void deliver_error(stream_request *r, nrd_error *err, bool of_model, bool final)
{
    stream *s = r->stream;
    grpc_byte_buffer *message = NULL;

    if (!s->fail_fast) {
        message = nrd_grpc_encode_error(r->infer, err, of_model, final);
        nrd_error_free(err);
    } else {
        end_with(s, err);
    }
    deliver(r, message, final);
}

static bool is_over(stream *s)
{
    pthread_mutex_lock(&s->mu);
    const bool over = s->cancelled || s->ending || s->fatal;
    pthread_mutex_unlock(&s->mu);
    return over;
}

/* --grpc-max-response-pool-size: holds up the thread that brings an answer. Not the threads of the
 * completion queues, which make room. */
static void wait_for_room(stream *s)
{
    const size_t most = (size_t)s->call->service->options->grpc_max_response_pool;
    const struct timespec until = nrd_steady_in(HOLD_UP_SECS * 1000000000ull);
    int rc = 0;

    if (most == 0 || nrd_grpc_on_queue) {
        return;
    }
    pthread_mutex_lock(&s->mu);
    while (s->n_waiting >= most && !s->cancelled && !s->fatal && !s->ending && rc != ETIMEDOUT) {
        rc = pthread_cond_timedwait(&s->has_room, &s->mu, &until);
    }
    pthread_mutex_unlock(&s->mu);
    if (rc == ETIMEDOUT) {
        grpc_call_cancel_with_status(s->call->rpc, GRPC_STATUS_RESOURCE_EXHAUSTED,
                                     "the client does not read its stream", NULL);
    }
}

static void stream_response(nrd_grpc_infer *infer, TRITONSERVER_InferenceResponse *response,
                            bool final)
{
    stream_request *r = infer->owner;
    grpc_byte_buffer *message = NULL;

    wait_for_room(r->stream);
    /* Triton: of a model that is not decoupled the first answer counts */
    const bool surplus = response && r->ordered && r->answered;
    r->answered = r->answered || response != NULL;
    if (surplus || is_over(r->stream)) {
        nrd_infer_response_delete(response);
        if (final) {
            deliver(r, NULL, true);
        }
        return;
    }
    if (response || (final && infer->want_empty_final)) {
        nrd_error *err = nrd_grpc_encode(infer, response, true, final, &message);
        if (final) {
            nrd_infer_let_go(&infer->infer);
        }
        if (err) {
            deliver_error(r, err, true, final);
            return;
        }
    }
    if (message || final) {
        deliver(r, message, final);
    }
}

/* ---- reading ---- */

static void accept_request(stream *s, grpc_byte_buffer *payload)
{
    stream_request *r = calloc(1, sizeof *r);
    nrd_error *err;

    if (!r) {
        end_with(s, nrd_error_no_memory());
        pump(s);
        return;
    }
    r->stream = s;
    fifo_init(&r->held);
    atomic_fetch_add(&s->call->service->busy, 1);
    err = nrd_grpc_infer_new(&r->infer, s->call, payload);
    if (!err) {
        err = nrd_grpc_infer_open(r->infer);
    }
    r->ordered = !r->infer || !r->infer->infer.decoupled;
    pthread_mutex_lock(&s->mu);
    r->prev = s->youngest;
    *(s->youngest ? &s->youngest->next : &s->oldest) = r;
    s->youngest = r;
    pthread_mutex_unlock(&s->mu);
    if (!err) {
        nrd_grpc_infer *infer = r->infer;
        infer->owner = r;
        infer->on_response = stream_response;
        /* From a successful submit on, r belongs to the final response. */
        nrd_infer_ref(&infer->infer);
        err = nrd_grpc_infer_submit(infer);
        if (!err && is_over(s)) { /* the stream ended before it could cancel this one */
            nrd_infer_cancel(&infer->infer);
        }
        nrd_grpc_infer_unref(infer);
    }
    if (err) {
        deliver_error(r, err, false, true);
    }
}

static void start_read(stream *s)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    s->incoming = NULL;
    op.data.recv_message.recv_message = &s->incoming;
    nrd_grpc_start(s->call, &op, 1, &s->on_read);
}

static void run_read(nrd_grpc_tag *tag, bool ok)
{
    stream *s = NRD_GRPC_OF(tag, stream, on_read);
    nrd_grpc_call *call = s->call;
    grpc_byte_buffer *payload = s->incoming;

    s->incoming = NULL;
    if (ok && payload && !is_over(s)) {
        accept_request(s, payload);
        start_read(s);
    } else {
        pthread_mutex_lock(&s->mu);
        s->reads_done = true;
        pthread_mutex_unlock(&s->mu);
        pump(s);
    }
    if (payload) {
        grpc_byte_buffer_destroy(payload);
    }
    nrd_grpc_call_unref(call);
}

/* ---- the call ---- */

static void stream_closed(nrd_grpc_call *call, bool cancelled)
{
    stream *s = call->state;
    if (!cancelled) {
        return;
    }
    pthread_mutex_lock(&s->mu);
    s->cancelled = true;
    pthread_cond_broadcast(&s->has_room);
    pthread_mutex_unlock(&s->mu);
    cancel_all(s);
    pump(s);
}

static void stream_free(nrd_grpc_call *call)
{
    stream *s = call->state;
    fifo_clear(&s->out);
    nrd_error_free(s->fatal);
    pthread_cond_destroy(&s->has_room);
    pthread_mutex_destroy(&s->mu);
    free(s);
}

void nrd_grpc_stream_infer(nrd_grpc_call *call)
{
    const grpc_slice *fail_fast = nrd_grpc_metadata(call, "triton_grpc_error");
    stream *s = calloc(1, sizeof *s);

    if (!s) {
        nrd_grpc_fail(call, nrd_error_no_memory());
        return;
    }
    s->call = call;
    s->on_read.run = run_read;
    s->on_written.run = run_written;
    s->fail_fast = fail_fast && grpc_slice_str_cmp(*fail_fast, "true") == 0;
    pthread_mutex_init(&s->mu, NULL);
    nrd_cond_init_steady(&s->has_room);
    fifo_init(&s->out);
    call->state = s;
    call->closed = stream_closed;
    call->free_state = stream_free;
    atomic_fetch_sub(&call->service->busy, 1); /* a stop does not wait for an idle stream */
    start_read(s);
}
