/* SPDX-License-Identifier: Apache-2.0
 * engine/seq_sched.h - what the scheduler knows about a sequence.
 *
 * Purpose   The part of nrd_seq (engine/sequence.h) that says how far its KV cache has come, which
 *           blocks and slots hold it, and in which list it stands.
 * Owner     engine/scheduler*.c alone write it. The maker allocates `tables` and `slots`; the runner
 *           reads `tables`, answers the three counts for statistics. The rest is the scheduler's own.
 * Units     Tokens. n_planned tokens whose KV steps enqueued so far will have written; n_computed
 *           tokens whose KV is written by steps that are over.
 *           n_computed <= n_planned <= n_known + n_pending (n_known: engine/decode/seq_decode.h).
 * Life      waiting -> running -> done; running -> waiting when paused (recompute later).
 */
#ifndef NRD_ENGINE_SEQ_SCHED_H
#define NRD_ENGINE_SEQ_SCHED_H

#include "engine/kv_cache.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct nrd_seq nrd_seq;

typedef enum {
    NRD_SEQ_NEW = 0,
    NRD_SEQ_WAITING = 1,
    NRD_SEQ_RUNNING = 2,
    NRD_SEQ_DONE = 3,
} nrd_seq_state;

typedef struct nrd_seq_sched {
    nrd_kv_table *tables; /* [width], initialised by the maker, who ends and frees them */
    int32_t *slots;       /* [width], memory of the maker */
    int32_t n_new_blocks, n_reused_blocks, n_paused;

    nrd_seq_state state; /* others ask nrd_seq_is_done */
    uint64_t arrival;
    uint64_t start_step; /* plan in which it last started */
    uint32_t epoch;      /* changes when the KV cache is given up */
    int32_t n_planned, n_computed;
    int32_t n_pending;  /* choices in flight */
    int32_t n_inflight; /* plan entries in flight */
    int32_t n_reserved; /* blocks promised, not taken yet */
    int32_t n_jump;     /* known tokens behind the prompt that the plan being made takes */
    int32_t n_again;    /* tokens behind n_computed that are computed again: its state goes back to what it was before them */
    int32_t n_skipped;  /* plans in which its prompt did not fit */
    int32_t state_stops[2]; /* tokens behind which its prompt's state is to be kept; 0: none */
    int32_t state_block;    /* that has the state of what it generated; -1: none */
    bool has_counts;    /* its slot's row of counts is filled */
    bool beams_forked;  /* every beam has its own table */
    nrd_seq *run_prev, *run_next;   /* running, by priority then arrival; or idle list */
    nrd_seq *wait_prev, *wait_next; /* waiting, by priority then arrival */
    nrd_seq *age_prev, *age_next;   /* waiting, by arrival */
    nrd_seq *flow_prev, *flow_next; /* waiting, of its flow */
    int32_t flow;                   /* place of its flow */
    bool is_guided;                 /* engine/record.h, with the next two: a guide was there at its start, */
    uint32_t record_no;             /* its number in the record, */
    uint64_t record_state[4];       /* and what its tokens come to so far */
} nrd_seq_sched;

#endif
