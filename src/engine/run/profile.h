/* SPDX-License-Identifier: Apache-2.0
 * engine/run/profile.h - where the time of a step goes.
 *
 * Purpose   Every step is timed as a whole, with the gap before it; every n-th one operation by
 *           operation, with the bytes and operations that its shapes ask for at least. Steps of one
 *           token a sequence and steps with prompts are kept apart. The spans themselves can be
 *           kept too, for a timeline.
 * Owner     The runner; the loop thread, except nrd_profile_read, which any thread may call.
 * Units     Seconds, bytes, floating-point operations, sums over calls.
 * Limits    Events between operations keep a GPU from starting one while the other ends, so that
 *           the parts of a step add up to a little more than steps take otherwise (a few us each).
 *           Where the host is the device, operations run one at a time in the steps so timed.
 */
#ifndef NRD_ENGINE_RUN_PROFILE_H
#define NRD_ENGINE_RUN_PROFILE_H

#include "base/error.h"
#include "nereid/device.h"

typedef enum nrd_profile_op {
    NRD_PROFILE_STEP = 0, /* whole steps, from their first operation to their last */
    NRD_PROFILE_GAP,      /* the device had nothing to do between two steps */
    NRD_PROFILE_ENQUEUE,  /* host time of enqueueing, hidden behind the step before */
    NRD_PROFILE_UPLOAD,   /* from here on: parts of the steps timed by operation */
    NRD_PROFILE_EMBED,
    NRD_PROFILE_NORM,
    NRD_PROFILE_QKV,
    NRD_PROFILE_ROPE_KV,
    NRD_PROFILE_ATTENTION,
    NRD_PROFILE_RECURRENT, /* what stands instead of attention in layers with a state */
    NRD_PROFILE_DENSE,
    NRD_PROFILE_UP,
    NRD_PROFILE_ACT,
    NRD_PROFILE_DOWN,
    NRD_PROFILE_ROUTER, /* its product, and the choice of experts */
    NRD_PROFILE_EXPERTS_UP,
    NRD_PROFILE_EXPERTS_DOWN,
    NRD_PROFILE_EXPERTS_SUM,
    NRD_PROFILE_ADAPTERS,
    NRD_PROFILE_HEAD,
    NRD_PROFILE_SAMPLE,
    NRD_PROFILE_HEAD_SAMPLE, /* the two in one */
    NRD_PROFILE_DOWNLOAD,
    NRD_PROFILE_ALL_REDUCE, /* of ranks: what each waits for the others is in it */
    NRD_PROFILE_N,
} nrd_profile_op;

typedef struct nrd_profile_sum {
    uint64_t calls;
    double seconds, bytes, flops;
    bool eight_bit; /* flops: of 8-bit products */
} nrd_profile_sum;

/* [0]: steps of one token a sequence; [1]: steps with prompts. */
typedef struct nrd_profile_sums {
    nrd_profile_sum of[2][NRD_PROFILE_N];
    uint64_t steps_by_op[2]; /* steps timed operation by operation */
} nrd_profile_sums;

/* One stretch of time. Starts count from the first step's. */
typedef struct nrd_profile_span {
    nrd_profile_op op; /* STEP, ENQUEUE, or an operation of a marked step */
    int32_t n_sequences, n_tokens; /* of the step */
    double start, seconds;
} nrd_profile_span;

typedef struct nrd_profile nrd_profile;

/* every: each so-many-th step goes by operation; max_spans: how many are kept, the first ones.
 * UNSUPPORTED: the device has no clock. */
nrd_error *nrd_profile_new(nrd_profile **out, nrd_device *dev, nrd_stream *s, int32_t every,
                           int32_t max_marks, int32_t max_spans) NRD_MUST_USE;
void nrd_profile_free(nrd_profile *p);

/* Around a step; p may be NULL in all of them. *by_op: this step will be marked. A step with more
 * tokens than sequences has prompts. */
nrd_error *nrd_profile_begin(nrd_profile *p, int32_t buffer, int32_t n_sequences, int32_t n_tokens,
                             bool *by_op);
/* The operation enqueued last, since the mark before; its seconds and calls are counted here.
 * Nothing in steps not marked. */
nrd_error *nrd_profile_mark(nrd_profile *p, nrd_profile_op op, nrd_profile_sum work);
nrd_error *nrd_profile_end(nrd_profile *p, int32_t buffer);
nrd_error *nrd_profile_done(nrd_profile *p, int32_t buffer); /* the step is over */

/* The sums so far; with `reset` they and the spans are cleared afterwards. */
void nrd_profile_read(nrd_profile *p, nrd_profile_sums *out, bool reset);
/* Up to `max` spans from number `first` on; their number. */
int32_t nrd_profile_spans(nrd_profile *p, nrd_profile_span *out, int32_t first, int32_t max);
const char *nrd_profile_name(nrd_profile_op op);

#endif
