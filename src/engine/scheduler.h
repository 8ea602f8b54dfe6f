/* SPDX-License-Identifier: Apache-2.0
 * engine/scheduler.h - what runs in the next step.
 *
 * Purpose   nrd_sched_plan turns the queues into one step's batch; nrd_sched_commit applies the
 *           tokens that the step chose. Integers only: no clock, no device, no I/O, no allocation
 *           after nrd_sched_new, so that it can be tested, recorded and replayed anywhere.
 * Owner     The engine loop thread.
 * Order     Plans are committed in the order in which they were made. A plan may be made while the
 *           one before it is still running (never two): decode tokens then come from the slot.
 * Rules     Running sequences decode first, then prompts continue, then new ones start, by
 *           priority, then arrival; every NRD_SCHED_AGING-th start goes to the oldest, so that
 *           every sequence runs at some time.
 *           guaranteed_no_evict: a sequence starts only when all blocks that it can ever need are
 *           there. max_utilization: it starts when its prompt fits; when blocks run out the last in
 *           order is paused, gives up its blocks and is computed again later.
 *           With a window, sequences share no blocks: what one lets go of must be free, or promised
 *           blocks might be missing.
 * Errors    None: what cannot run is refused by the executor before it comes here.
 * Sources   Iteration-level scheduling (Yu et al., Orca, OSDI 2022); chunked prefill
 *           (Agrawal et al., Sarathi-Serve, OSDI 2024).
 */
#ifndef NRD_ENGINE_SCHEDULER_H
#define NRD_ENGINE_SCHEDULER_H

#include "engine/decode/result.h"
#include "engine/kv_cache.h"
#include "engine/sequence.h"

enum { NRD_SCHED_AGING = 8, NRD_SCHED_MAX_SKIPPED = 8 };

typedef struct nrd_sched_limits {
    int32_t max_batch_size; /* sequences at a time */
    int32_t max_beam_width;
    int32_t max_num_tokens; /* packed tokens of a step; at least max_batch_size * max_beam_width */
    int32_t window, n_sink; /* > 0: every layer forgets what lies further back */
    bool max_utilization;   /* else guaranteed_no_evict */
    bool is_static;         /* a batch is formed once and leaves together */
    bool chunked_context;   /* prompts may be split over steps */
    int32_t mixed_context_tokens; /* with it, > 0: prompt tokens of a step that also generates */
} nrd_sched_limits;

typedef struct nrd_plan_entry {
    nrd_seq *seq;
    int32_t beam;
    int32_t slot;
    int32_t start, n;    /* tokens [start, start + n) of the sequence */
    int32_t n_generated; /* tokens chosen before this step's choice */
    int32_t row;         /* index among the step's choices; -1: none */
    uint32_t epoch;
    bool from_slot;   /* its one token is the slot's last choice, not yet known to the host */
    bool init_counts; /* fill the slot's counts from the known tokens first */
    bool is_context;
} nrd_plan_entry;

typedef struct nrd_plan {
    uint64_t step;
    nrd_plan_entry *entries; /* owns */
    int32_t n_entries, cap_entries;
    int32_t (*copies)[2]; /* owns; KV blocks to copy (from, to) before the step, in this order */
    int32_t n_copies, cap_copies;
    int32_t n_tokens, n_rows;
    int32_t n_context, n_generation, n_context_tokens, n_paused;
    int32_t n_held; /* > 0: sequences were left out whose guide's mask is being made */
} nrd_plan;

typedef struct nrd_sched_event {
    nrd_seq *seq;
    int32_t n_new;         /* tokens appended */
    nrd_seq_finish finish; /* NONE: goes on */
    bool context_done;     /* its prompt was completed by this step */
} nrd_sched_event;

typedef struct nrd_sched_stats {
    int32_t n_waiting, n_running, n_paused_now;
    uint64_t n_steps, n_pauses;
} nrd_sched_stats;

typedef struct nrd_sched nrd_sched;

/* Borrows kv until nrd_sched_free. */
nrd_error *nrd_sched_new(nrd_sched **out, const nrd_sched_limits *limits, nrd_kv *kv) NRD_MUST_USE;
void nrd_sched_free(nrd_sched *s);
nrd_error *nrd_plan_init(nrd_plan *p, const nrd_sched_limits *limits,
                         const nrd_kv *kv) NRD_MUST_USE;
void nrd_plan_fini(nrd_plan *p);

/* Blocks that a sequence of these sizes needs at once in the worst case. */
int32_t nrd_sched_worst_blocks(const nrd_sched_limits *limits, int32_t block_tokens,
                               int32_t n_prompt, int32_t max_total, int32_t width);

void nrd_sched_add(nrd_sched *s, nrd_seq *q);
/* Ends a sequence now; it becomes idle when no step in flight holds it. */
void nrd_sched_end(nrd_sched *s, nrd_seq *q);

/* Fills `p`; p->n_entries == 0: nothing can run now. A sequence whose guide's mask is being made is left
 * out and keeps its blocks. */
void nrd_sched_plan(nrd_sched *s, nrd_plan *p);
/* Applies a plan's result. Writes at most p->n_entries events. */
void nrd_sched_commit(nrd_sched *s, const nrd_plan *p, const nrd_step_result *r,
                      nrd_sched_event *out_events, int32_t *out_n);
/* Behind a commit, for an event of a sequence that goes on and may_jump: tokens that must come next
 * whatever the model says (at most NRD_MAX_JUMP, and no more than max_total leaves room for). They are
 * computed with the next step as a piece of a prompt is. Adds to n_new, and ends the sequence where they
 * end it. */
void nrd_sched_append(nrd_sched *s, const int32_t *ids, int32_t n, nrd_sched_event *event);
/* A plan whose step will not come back: its sequences do not wait for it any more. */
void nrd_sched_forget(nrd_plan *p);
/* A finished sequence that nothing refers to any more, or NULL; the caller has it back. */
nrd_seq *nrd_sched_take_idle(nrd_sched *s);

bool nrd_sched_is_empty(const nrd_sched *s);    /* nothing waits, runs or is about to become idle */
bool nrd_sched_may_overlap(const nrd_sched *s); /* no running sequence needs the host in between */
void nrd_sched_get_stats(const nrd_sched *s, nrd_sched_stats *out);
nrd_seq *nrd_sched_first_running(const nrd_sched *s);
nrd_seq *nrd_sched_first_waiting(const nrd_sched *s);
void nrd_sched_check(const nrd_sched *s);             /* asserts the invariants; slow */

#endif
