/* SPDX-License-Identifier: Apache-2.0
 * core/sched/sequence_internal.h - the sequence batcher (sequence_batcher.c) from inside: its sequences and its backlog
 * (sequence_table.c), its slots (sequence_slots.c), batches of slots (sequence_direct.c).
 *
 * Owner     Lock: mu guards everything below it, and the fields next, prev and seq_slot of waiting requests; functions whose
 *           names end with "locked" are called with it held. Requests to be answered are collected while it is held and
 *           answered afterwards. The lock of an inner dynamic batcher may be taken while it is held.
 */
#ifndef NRD_CORE_SCHED_SEQUENCE_INTERNAL_H
#define NRD_CORE_SCHED_SEQUENCE_INTERNAL_H

#include "core/model_internal.h"
#include "core/request.h"
#include "core/sched/dynamic_batcher.h"
#include "core/sched/request_list.h"
#include "core/sched/scheduler.h"
#include "core/sched/sequence.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct nrd_sequence_backlog {
    struct nrd_sequence_backlog *next, *prev;
    nrd_request_list queue;
    struct nrd_sequence *owner; /* NULL: its END has come */
    uint64_t deadline_ns;       /* UINT64_MAX: none */
} nrd_sequence_backlog;

typedef struct nrd_sequence {  /* has begun, END has not come yet */
    struct nrd_sequence *next; /* of its bucket */
    uint64_t hash, id;
    char *text;              /* NULL: the id is the number */
    nrd_sequence_slot *slot; /* one of the two */
    nrd_sequence_backlog *waiting;
    uint64_t last_ns; /* its last request came then */
} nrd_sequence;

struct nrd_sequence_slot {
    struct nrd_sequence_inst *inst;
    nrd_request_list queue;
    nrd_sequence *owner;         /* whose requests come here; NULL: no more will */
    bool taken;                  /* by a sequence, which may have had its last request already */
    bool closing;                /* free it once nothing is queued or in flight */
    bool in_flight;              /* oldest: a request is with the inner batcher or the backend */
    nrd_sequence_states *states; /* shared */
};

typedef struct nrd_sequence_inst {
    nrd_instance *instance; /* borrowed */
    nrd_batcher *inner;     /* oldest; NULL for direct */
    pthread_cond_t cond;    /* direct: something is queued */
    nrd_sequence_slot *slots;
} nrd_sequence_inst;

typedef struct nrd_sequence_batcher {
    nrd_scheduler base;
    nrd_model *model; /* borrowed */
    bool iterative, oldest;
    uint32_t n_slots; /* per instance */
    uint64_t idle_ns, delay_ns;
    float min_utilization;
    nrd_sequence_controls *controls;
    nrd_sequence_plan *plan;
    atomic_uint_fast64_t next_id; /* of iterative requests */
    uint64_t next_text_id; /* number of the next sequence whose id is a text; guarded by mu */
    pthread_mutex_t mu;
    nrd_sequence_inst *insts;
    uint32_t n_insts, n_free;
    nrd_sequence **buckets;
    size_t n_buckets, n_sequences;
    nrd_sequence_backlog *first, *last;
    bool draining, abandoned, stopping;
} nrd_sequence_batcher;

/* ---- sequence_table.c ---- */

void nrd_sequence_list_move(nrd_request_list *to,
                            nrd_request_list *from); /* all, behind those of `to` */
bool nrd_sequence_list_has_cancelled(const nrd_request_list *l);
/* Answers requests that will not run. No lock is held. */
void nrd_sequence_list_fail(nrd_request_list *l, nrd_error_code code, const char *message,
                            nrd_fail_reason reason);
void nrd_sequence_list_fail_cancelled(nrd_request_list *l);

bool nrd_sequence_is_of(const nrd_sequence *q, const nrd_request *r); /* by its correlation id */
nrd_sequence *nrd_sequence_find_locked(const nrd_sequence_batcher *s,
                                       const nrd_request *r); /* NULL: none */
nrd_sequence *nrd_sequence_begin_locked(nrd_sequence_batcher *s,
                                        const nrd_request *r); /* NULL: no memory */
/* No request of the sequence is expected any more; those that are queued still run. */
void nrd_sequence_forget_locked(nrd_sequence_batcher *s, nrd_sequence *q);
nrd_sequence_backlog *
nrd_sequence_backlog_add_locked(nrd_sequence_batcher *s); /* behind all others; NULL: no memory */
void nrd_sequence_backlog_remove_locked(nrd_sequence_batcher *s, nrd_sequence_backlog *b);

/* ---- sequence_slots.c ---- */

nrd_sequence_slot *
nrd_sequence_slot_find_locked(const nrd_sequence_batcher *s); /* the lowest free one; NULL: none */
/* The slot has nothing queued: the oldest sequence of the backlog gets it. */
void nrd_sequence_slot_refill_locked(nrd_sequence_batcher *s, nrd_sequence_slot *slot,
                                     nrd_request_list *cancelled);
/* If the next request of the slot was cancelled, its sequence ends: all that waits goes with it. */
void nrd_sequence_slot_end_cancelled_locked(nrd_sequence_batcher *s, nrd_sequence_slot *slot,
                                            nrd_request_list *cancelled);
/* Gives a request that is about to run what the core adds to it. */
void nrd_sequence_slot_add_tensors_locked(nrd_sequence_batcher *s, nrd_sequence_slot *slot,
                                          nrd_request *r);
/* After the slot got something to do, or lost its sequence. */
void nrd_sequence_slot_wake_locked(nrd_sequence_batcher *s, nrd_sequence_slot *slot,
                                   nrd_request_list *cancelled);

/* ---- sequence_direct.c ---- */

/* Waits for a batch of the instance's slots, in their places; cap: of `batch`. 0: the batcher stops. */
uint32_t nrd_sequence_take_direct(nrd_sequence_batcher *s, nrd_sequence_inst *in,
                                  nrd_request **batch, uint32_t cap);

#endif
