/* SPDX-License-Identifier: Apache-2.0
 * Marks between the operations of a step, read when the step is over, and summed by operation. */
#include "engine/run/profile.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "engine/scheduler.h"

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { RING = 16 }; /* steps whose end is still compared with a later start: those in flight, and one */

/* A moment of the stream: an event, or the clock where operations run as they are asked for. */
typedef struct moment {
    nrd_event *event;
    uint64_t ns;
} moment;

typedef struct step {
    moment start, end;
    uint64_t enqueue_from, enqueue_ns;
    int32_t n_sequences, n_tokens;
    bool by_op, after_another;
} step;

struct nrd_profile {
    nrd_device *dev;
    nrd_stream *stream;
    bool clock; /* host time instead of events */
    int32_t every, max_marks, n_marks;
    uint64_t n_steps;
    step ring[RING];
    int32_t slot[NRD_SCHED_MAX_MICRO]; /* of each buffer in the ring */
    bool marking, marks_pending;
    struct mark {
        moment at;
        nrd_profile_op op;
        nrd_profile_sum work;
    } *marks;
    moment origin; /* the first step's start */
    pthread_mutex_t mu;
    nrd_profile_sums sums;   /* guarded by mu */
    nrd_profile_span *spans; /* guarded by mu; [max_spans] */
    int32_t n_spans, max_spans;
};

static nrd_error *moment_new(nrd_profile *p, moment *m)
{
    return p->clock ? NULL : p->dev->ops->event_new(p->dev, &m->event);
}

static void moment_free(nrd_profile *p, moment *m)
{
    if (m->event) {
        p->dev->ops->event_free(m->event);
    }
}

static nrd_error *moment_take(nrd_profile *p, moment *m, bool sync)
{
    if (!p->clock) {
        return p->dev->ops->event_record(p->stream, m->event);
    }
    if (sync) {
        NRD_TRY(p->dev->ops->stream_sync(p->stream));
    }
    m->ns = nrd_now_ns();
    return NULL;
}

static nrd_error *between(nrd_profile *p, const moment *from, const moment *to, double *seconds)
{
    if (p->clock) {
        *seconds = (double)(to->ns - from->ns) / 1e9;
        return NULL;
    }
    return p->dev->ops->event_elapsed(from->event, to->event, seconds);
}

nrd_error *nrd_profile_new(nrd_profile **out, nrd_device *dev, nrd_stream *s, int32_t every,
                           int32_t max_marks, int32_t max_spans)
{
    nrd_device_info info;
    nrd_error *err = NULL;
    nrd_profile *p = NULL;

    *out = NULL;
    dev->ops->get_info(dev, &info);
    if (!info.host_is_device && !dev->ops->event_elapsed) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s cannot time its operations", info.name);
    }
    NRD_NEW_GOTO(p, 1, err, fail);
    pthread_mutex_init(&p->mu, NULL);
    p->dev = dev;
    p->stream = s;
    p->clock = info.host_is_device;
    p->every = every > 4 ? every : 4;
    p->max_marks = max_marks;
    p->max_spans = max_spans;
    NRD_NEW_GOTO(p->spans, max_spans, err, fail);
    NRD_NEW_GOTO(p->marks, max_marks, err, fail);
    NRD_TRY_GOTO(moment_new(p, &p->origin), err, fail);
    for (int32_t i = 0; i < max_marks; i++) {
        NRD_TRY_GOTO(moment_new(p, &p->marks[i].at), err, fail);
    }
    for (int i = 0; i < RING; i++) {
        NRD_TRY_GOTO(moment_new(p, &p->ring[i].start), err, fail);
        NRD_TRY_GOTO(moment_new(p, &p->ring[i].end), err, fail);
    }
    *out = p;
    return NULL;

fail:
    nrd_profile_free(p);
    return err;
}

void nrd_profile_free(nrd_profile *p)
{
    if (!p) {
        return;
    }
    for (int32_t i = 0; p->marks && i < p->max_marks; i++) {
        moment_free(p, &p->marks[i].at);
    }
    for (int i = 0; i < RING; i++) {
        moment_free(p, &p->ring[i].start);
        moment_free(p, &p->ring[i].end);
    }
    moment_free(p, &p->origin);
    pthread_mutex_destroy(&p->mu);
    free(p->marks);
    free(p->spans);
    free(p);
}

nrd_error *nrd_profile_begin(nrd_profile *p, int32_t buffer, int32_t n_sequences, int32_t n_tokens,
                             bool *by_op)
{
    *by_op = false;
    if (!p) {
        return NULL;
    }
    step *s = &p->ring[p->n_steps % RING];
    p->slot[buffer] = (int32_t)(p->n_steps % RING);
    s->n_sequences = n_sequences;
    s->n_tokens = n_tokens;
    s->after_another = p->n_steps > 0;
    /* The first steps choose kernels; the marks of the last step so timed must have been read. */
    s->by_op = p->n_steps % (uint64_t)p->every == (uint64_t)p->every - 1 && !p->marks_pending;
    if (p->n_steps == 0) {
        p->origin.ns = nrd_now_ns(); /* the host's clock beside the device's */
        NRD_TRY(p->clock ? NULL : moment_take(p, &p->origin, false));
    }
    s->enqueue_from = nrd_now_ns();
    p->n_steps++;
    p->marking = s->by_op;
    if (s->by_op) {
        p->n_marks = 0;
        p->marks_pending = true;
    }
    *by_op = s->by_op;
    return moment_take(p, &s->start, false);
}

nrd_error *nrd_profile_mark(nrd_profile *p, nrd_profile_op op, nrd_profile_sum work)
{
    if (!p || !p->marking) {
        return NULL;
    }
    if (p->n_marks == p->max_marks) {
        p->marking = false; /* the step has more operations than were foreseen: not shown */
        p->n_marks = 0;
        return NULL;
    }
    struct mark *m = &p->marks[p->n_marks++];
    m->op = op;
    m->work = work;
    return moment_take(p, &m->at, true);
}

nrd_error *nrd_profile_end(nrd_profile *p, int32_t buffer)
{
    if (!p) {
        return NULL;
    }
    step *s = &p->ring[p->slot[buffer]];
    p->marking = false;
    s->enqueue_ns = nrd_now_ns() - s->enqueue_from;
    return moment_take(p, &s->end, false);
}

static void add(nrd_profile_sum *sum, double seconds, nrd_profile_sum work)
{
    sum->calls++;
    sum->seconds += seconds;
    sum->bytes += work.bytes;
    sum->flops += work.flops;
    sum->eight_bit = work.eight_bit;
}

static void add_span(nrd_profile *p, const step *s, nrd_profile_op op, double start, double seconds)
{
    if (p->n_spans < p->max_spans) {
        p->spans[p->n_spans++] = (nrd_profile_span){op, s->n_sequences, s->n_tokens, start, seconds};
    }
}

static nrd_error *add_marks(nrd_profile *p, const step *s, double start, nrd_profile_sum *of)
{
    const moment *before = &s->start;
    for (int32_t i = 0; i < p->n_marks; i++) {
        const struct mark *m = &p->marks[i];
        double seconds = 0;
        NRD_TRY(between(p, before, &m->at, &seconds));
        add(&of[m->op], seconds, m->work);
        add_span(p, s, m->op, start, seconds);
        start += seconds;
        before = &m->at;
    }
    return NULL;
}

nrd_error *nrd_profile_done(nrd_profile *p, int32_t buffer)
{
    const nrd_profile_sum none = {0};
    double seconds = 0, gap = 0, start = 0;
    nrd_error *err = NULL;

    if (!p) {
        return NULL;
    }
    step *s = &p->ring[p->slot[buffer]];
    const step *last = &p->ring[(p->slot[buffer] + RING - 1) % RING];
    if (p->clock) {
        s->end.ns = nrd_now_ns(); /* operations run while they are waited for */
    }
    NRD_TRY(between(p, &s->start, &s->end, &seconds));
    if (s->after_another) {
        NRD_TRY(between(p, &last->end, &s->start, &gap));
    }
    NRD_TRY(between(p, &p->origin, &s->start, &start));
    bool has_prompts = s->n_tokens > s->n_sequences;
    pthread_mutex_lock(&p->mu);
    nrd_profile_sum *of = p->sums.of[has_prompts];
    add_span(p, s, NRD_PROFILE_ENQUEUE, (double)(s->enqueue_from - p->origin.ns) / 1e9,
             (double)s->enqueue_ns / 1e9);
    add_span(p, s, NRD_PROFILE_STEP, start, seconds);
    if (s->by_op) { /* slower than others: not among the whole steps */
        p->sums.steps_by_op[has_prompts] += p->n_marks > 0;
        err = add_marks(p, s, start, of);
        p->marks_pending = false;
    } else {
        add(&of[NRD_PROFILE_STEP], seconds, none);
        add(&of[NRD_PROFILE_ENQUEUE], (double)s->enqueue_ns / 1e9, none);
        if (s->after_another) {
            add(&of[NRD_PROFILE_GAP], gap, none);
        }
    }
    pthread_mutex_unlock(&p->mu);
    return err;
}

void nrd_profile_read(nrd_profile *p, nrd_profile_sums *out, bool reset)
{
    *out = (nrd_profile_sums){0};
    if (p) {
        pthread_mutex_lock(&p->mu);
        *out = p->sums;
        if (reset) {
            p->sums = (nrd_profile_sums){0};
            p->n_spans = 0;
        }
        pthread_mutex_unlock(&p->mu);
    }
}

int32_t nrd_profile_spans(nrd_profile *p, nrd_profile_span *out, int32_t first, int32_t max)
{
    pthread_mutex_lock(&p->mu);
    int32_t n = p->n_spans - first < max ? p->n_spans - first : max;
    if (n > 0) {
        memcpy(out, p->spans + first, (size_t)n * sizeof *out);
    }
    pthread_mutex_unlock(&p->mu);
    return n > 0 ? n : 0;
}

const char *nrd_profile_name(nrd_profile_op op)
{
    static const char *const names[NRD_PROFILE_N] = {
        "step", "gap", "enqueue", "upload", "embed", "norm", "qkv",    "rope+kv",
        "attention", "recurrent", "dense", "up", "act", "down", "router", "experts up", "experts down", "experts sum",
        "adapters", "head", "sample", "head+sample", "download", "all_reduce"};
    return names[op];
}
