/* SPDX-License-Identifier: Apache-2.0
 * engine/scheduler_internal.h - what the files of the scheduler share: scheduler.c has the life of a sequence, scheduler_plan.c
 * makes plans, scheduler_commit.c takes results, scheduler_states.c knows which states of layers are kept, scheduler_flows.c
 * whose turn it is. */
#ifndef NRD_ENGINE_SCHEDULER_INTERNAL_H
#define NRD_ENGINE_SCHEDULER_INTERNAL_H

#include "engine/scheduler.h"
#include "engine/speculate/plan.h"
#include "engine/speculate/verify.h"

typedef struct nrd_sched_flow {
    uint64_t id;
    nrd_seq *head, *tail; /* waiting, by priority, then arrival */
    uint64_t served;      /* tokens, each by what it costs */
    int32_t n_waiting, n_live; /* n_live: that were added and have not ended */
} nrd_sched_flow;

struct nrd_sched {
    const nrd_sched_tap *tap; /* NULL: nobody listens */
    nrd_sched_limits lim;
    nrd_kv *kv;
    nrd_seq *run_head, *run_tail;   /* by priority, then arrival */
    nrd_seq *wait_head, *wait_tail; /* by priority, then arrival */
    nrd_seq *age_head, *age_tail;   /* by arrival */
    nrd_sched_flow flows[NRD_SCHED_MAX_FLOWS]; /* [n_flows] */
    int32_t n_flows, n_flows_waiting;
    uint64_t flow_floor; /* what a flow had been served when the last sequence of it started */
    nrd_seq *idle_head;             /* done; linked by run_next; may still be in flight */
    int32_t *free_slots;
    int32_t n_free_slots;
    nrd_draft_plan drafts;
    int32_t *held_refs; /* blocks held until the plan is complete */
    int32_t n_held_refs;
    int32_t (*late_copies)[2]; /* asked for at commit (beams), go into the next plan */
    int32_t n_late_copies, cap_copies;
    int32_t (*late_moves)[2]; /* likewise, of tokens (trees) */
    int32_t n_late_moves, cap_moves;
    bool prompts_wait; /* for a step without trees */
    bool has_draft;    /* the last plan */
    int32_t even_limit; /* of the plan being made: prompt tokens beside others' answers */
    int32_t n_held;    /* drafted tokens of the last commit that held */
    bool has_others;   /* in the plan being made: than the choices of one request */
    nrd_draft_accept accepted; /* scratch of a commit */
    uint64_t committing;       /* the step that is, */
    int32_t commit_at;         /* and the entry's first token among the step's */
    int32_t n_planned_moves; /* of the cache's pending ones, in the plan being made */
    int32_t n_reserved; /* sum over sequences */
    int32_t n_running, n_waiting, n_paused_now, n_needs_host, n_drafting; /* n_drafting: of the running ones, with a proposer */
    uint64_t n_arrived, n_started, n_steps, n_pauses, n_accepted;
};

static inline int32_t nrd_sched_ceil_div(int32_t a, int32_t b)
{
    return (a + b - 1) / b;
}

/* scheduler.c */
int32_t nrd_sched_n_slots(const nrd_sched_limits *l);
void nrd_sched_run_insert(nrd_sched *s, nrd_seq *q);
void nrd_sched_wait_remove(nrd_sched *s, nrd_seq *q);
/* Whether all blocks that a sequence can need are promised to it. */
bool nrd_sched_is_reserving(const nrd_sched *s, const nrd_seq *q);
/* Sets what is still promised to a sequence from what it holds now. */
void nrd_sched_update_reserve(nrd_sched *s, nrd_seq *q);
/* A running sequence gives its blocks up and waits. */
void nrd_sched_pause(nrd_sched *s, nrd_plan *p, nrd_seq *q);
/* A sequence is done; it stays idle while steps in flight refer to it. */
void nrd_sched_end_seq(nrd_sched *s, nrd_seq *q);

/* Among those who wait for one flow, and those who run. */
static inline bool nrd_sched_goes_before(const nrd_seq *a, const nrd_seq *b)
{
    return a->req.priority > b->req.priority ||
           (a->req.priority == b->req.priority && a->sched.arrival < b->sched.arrival);
}

/* scheduler_flows.c */
void nrd_sched_flow_join(nrd_sched *s, nrd_seq *q);        /* it is added */
void nrd_sched_flow_leave(nrd_sched *s, const nrd_seq *q); /* it has ended */
void nrd_sched_flow_wait(nrd_sched *s, nrd_seq *q);
void nrd_sched_flow_remove(nrd_sched *s, nrd_seq *q); /* it does not wait any more */
void nrd_sched_flow_started(nrd_sched *s, const nrd_seq *q, int32_t n_tokens); /* that are to be computed of its prompt */
void nrd_sched_flow_served(nrd_sched *s, const nrd_seq *q, int32_t n_new);
/* Among the first of several flows. */
bool nrd_sched_flow_goes_before(const nrd_sched *s, const nrd_seq *a, const nrd_seq *b);
void nrd_sched_flow_check(const nrd_sched *s);

/* scheduler_states.c */
/* Whether sequences share what they compute. */
bool nrd_sched_shares(const nrd_sched *s);
/* How many tokens of a piece of a prompt [start, start + n) come before a place whose state is to be kept. */
int32_t nrd_sched_cut_at_stop(const nrd_seq *q, int32_t start, int32_t n);
/* Where the state of a sequence that starts is to be kept; the match is what the cache has of it. */
void nrd_sched_set_stops(const nrd_sched *s, nrd_seq *q, const nrd_kv_match *m);
/* Has the state behind an entry kept, if it is worth that. */
void nrd_sched_take_state(const nrd_sched *s, nrd_plan_entry *e);
/* The step of an entry is done. Of what is generated only the newest state is kept, unless one was of use. */
void nrd_sched_keep_state(nrd_sched *s, nrd_seq *q, const nrd_plan_entry *e, bool same_cache);

#endif
