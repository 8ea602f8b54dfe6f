/* SPDX-License-Identifier: Apache-2.0
 * engine/scheduler.h - what runs in the next step.
 *
 * Purpose   nrd_sched_plan turns the queues into one step's batch; nrd_sched_commit applies the
 *           tokens that the step chose. Integers only: no clock, no device, no I/O, no allocation
 *           after nrd_sched_new, so that it can be tested, recorded and replayed anywhere.
 * Owner     The engine loop thread.
 * Order     Plans are committed in the order in which they were made. A plan may be made while the
 *           one before it is still running (never two): decode tokens then come from the slot.
 *           With n_micro above 1, so many plans may be running, and a sequence generates in one of
 *           them at a time: the stages of a pipeline work at different sequences. Those that generate
 *           or start are dealt evenly over the plans.
 * Rules     Running sequences decode first, then prompts continue, then new ones start, by
 *           priority, then arrival; every NRD_SCHED_AGING-th start goes to the oldest, so that
 *           every sequence runs at some time.
 *           Where sequences of several flows wait (requests of several API keys), the flow that was served least has the
 *           next start among those of one priority (scheduler_flows.c).
 *           Sequences of one group (the choices of a request) run a few at a time: who asks for a hundred does
 *           not make everybody's steps a hundred sequences longer. The others follow as these end.
 *           guaranteed_no_evict: a sequence starts only when all blocks that it can ever need are
 *           there. max_utilization: it starts when its prompt fits beside one more block of each running
 *           one; when blocks run out the last in order is paused, gives up its blocks and is computed
 *           again later.
 *           With a window, sequences share no blocks: what one lets go of must be free, or promised
 *           blocks might be missing.
 * Drafts    A sequence with a proposer (engine/speculate) has guessed tokens behind its known ones computed with
 *           them, where there is room and they are worth their time (engine/speculate/budget.h); how many hold is
 *           known at commit, and the KV cache of the others is written over. Not with a window. Of a token tree, what
 *           holds lies scattered in the cache: the next plan moves it together, before anybody reads it. A step with
 *           trees has no prompts in it, whose attention the tree's masks would slow down: the two take turns.
 * States    Where layers have a state, pieces of a prompt end where its state is worth keeping: at the last whole block
 *           of the prompt, and where it leaves what the cache has. So the next one that begins alike goes on from there.
 *           Of what a sequence generates the state behind the last whole block is kept, in place of the one before.
 * Errors    None: what cannot run is refused by the executor before it comes here.
 * Sources   Iteration-level scheduling (Yu et al., Orca, OSDI 2022); chunked prefill
 *           (Agrawal et al., Sarathi-Serve, OSDI 2024).
 */
#ifndef NRD_ENGINE_SCHEDULER_H
#define NRD_ENGINE_SCHEDULER_H

#include "engine/decode/result.h"
#include "engine/kv_cache.h"
#include "engine/sequence.h"
#include "engine/speculate/tree.h"

enum { NRD_SCHED_AGING = 8, NRD_SCHED_MAX_SKIPPED = 8, NRD_SCHED_MAX_MICRO = 8,
       NRD_SCHED_MAX_FLOWS = 256, /* that are told apart at one time */
       NRD_SCHED_EVEN_STEPS = 8, /* even_context_tokens */
       NRD_SCHED_BESIDE = 8 /* of choices_at_once one in so many, beside other requests */ };

typedef struct nrd_sched_limits {
    int32_t max_batch_size; /* sequences at a time */
    int32_t max_beam_width;
    int32_t max_num_tokens; /* packed tokens of a step; at least max_batch_size * max_beam_width */
    int32_t window, n_sink; /* > 0: every layer forgets what lies further back */
    bool max_utilization;   /* else guaranteed_no_evict */
    bool is_static;         /* a batch is formed once and leaves together */
    bool chunked_context;   /* prompts may be split over steps */
    bool recurrent; /* layers keep a state that cannot be taken back: nothing is drafted, or computed again but from the
                     * start, and what others computed is used from a snapshot on (nrd_kv_config.n_states) */
    int32_t mixed_context_tokens; /* with it, > 0: prompt tokens of a step that also generates; also without it: of several encoders' inputs */
    int32_t choices_at_once; /* > 0: sequences of one group that run at a time, fewer beside others; for KV blocks that are reused */
    int32_t even_context_tokens; /* > 0: the same as mixed_context_tokens where few prompts wait and few sequences generate. Where
                                  * more tokens of prompts wait than NRD_SCHED_EVEN_STEPS such steps take, a step takes its share
                                  * of those; and two for each sequence that generates, which make it long anyway */
    int32_t max_draft_rows; /* draft tokens of a step, each a choice more; 0: no drafts */
    int32_t (*filled_up)(int32_t n_tokens); /* nrd_step_costs.filled_up of the device's steps; or NULL */
    int32_t n_micro; /* plans of different sequences that run at once, up to NRD_SCHED_MAX_MICRO; 0, 1: Order */
} nrd_sched_limits;

typedef struct nrd_plan_entry {
    nrd_seq *seq;
    int32_t beam;
    int32_t slot;
    int32_t start, n;    /* tokens [start, start + n) of the sequence, its draft with them */
    int32_t n_draft;     /* the last so many are a draft, with a choice behind each */
    const nrd_token_tree *tree; /* the draft is its first nodes, which share positions; NULL: each follows the last */
    int32_t first_draft; /* the draft's first token among those of the step */
    int32_t n_generated; /* tokens chosen before this step's choice */
    int32_t row;         /* index among the step's choices, of 1 + n_draft; -1: none */
    uint32_t epoch;
    int32_t state_load; /* the slot's state is this snapshot before the step; -1: it goes on, or begins */
    int32_t take_from;  /* 1 + the first block of its prompt that comes, with all behind it, from the sequence's parcel before the
                         * step; 0: none does */
    int32_t state_save; /* … is kept as this snapshot behind it; -1: it is not */
    int32_t n_again; /* its first so many tokens were computed before, with the same text behind: a recurrent state had to go back */
    bool state_back;  /* the slot's state goes back to what it was kept as before the last step with a draft */
    bool from_slot;   /* its one token is the slot's last choice, not yet known to the host */
    bool init_counts; /* fill the slot's counts from the known tokens first, and those behind the draft */
    bool is_context;
} nrd_plan_entry;

typedef struct nrd_plan {
    uint64_t step;
    nrd_plan_entry *entries; /* owns */
    int32_t n_entries, cap_entries;
    int32_t (*copies)[2]; /* owns; KV blocks to copy (from, to) before the step, in this order */
    int32_t n_copies, cap_copies;
    int32_t (*moves)[2]; /* owns; tokens in the KV cache (from, to: block * block_tokens + place) before the copies */
    int32_t n_moves, cap_moves;
    int32_t n_tokens, n_rows, n_draft;
    int32_t n_context, n_generation, n_context_tokens, n_paused;
    bool has_trees;
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
    uint64_t n_accepted; /* draft tokens that held */
} nrd_sched_stats;

typedef struct nrd_sched nrd_sched;

/* Who listens to what the scheduler is told and decides (engine/record.h), or says again what it was told
 * (engine/replay.h). Each may be NULL; called on the loop thread, at the end of what it speaks of. */
typedef struct nrd_sched_tap {
    void *user;
    void (*added)(void *user, nrd_seq *q);
    void (*ended)(void *user, const nrd_seq *q); /* by nrd_sched_end, not by a token */
    bool (*held)(void *user, const nrd_seq *q, bool is_held); /* of a guided one: gives what counts */
    void (*planned)(void *user, const nrd_plan *p);
    void (*committed)(void *user, const nrd_plan *p, const nrd_step_result *r, const nrd_sched_event *events,
                      int32_t n);
    void (*appended)(void *user, nrd_seq *q, int32_t n, nrd_seq_finish finish);
    void (*forgotten)(void *user);
    /* Instead of nrd_decode_accept and nrd_decode_append. */
    nrd_seq_finish (*accept)(void *user, nrd_seq *q, int32_t row, int32_t *out_n_new);
    nrd_seq_finish (*append)(void *user, nrd_seq *q, const int32_t *ids, int32_t n, int32_t *n_new);
} nrd_sched_tap;

/* Borrows kv until nrd_sched_free. */
nrd_error *nrd_sched_new(nrd_sched **out, const nrd_sched_limits *limits, nrd_kv *kv) NRD_MUST_USE;
void nrd_sched_free(nrd_sched *s);
void nrd_sched_set_tap(nrd_sched *s, const nrd_sched_tap *tap); /* before the first sequence; borrows */
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
 * end it. Also, right behind nrd_sched_add, the token of a sequence that was handed over, chosen elsewhere. */
void nrd_sched_append(nrd_sched *s, const int32_t *ids, int32_t n, nrd_sched_event *event);
/* A plan whose step will not come back: its sequences do not wait for it any more. */
void nrd_sched_forget(nrd_sched *s, nrd_plan *p);
/* A finished sequence that nothing refers to any more, or NULL; the caller has it back. */
nrd_seq *nrd_sched_take_idle(nrd_sched *s);

/* Behind a commit, what the step of its plan took, and its guesses beside: later plans weigh drafts by it. is_late: nrd_costs_hear_late. */
void nrd_sched_hear_cost(nrd_sched *s, const nrd_plan *p, uint64_t device_ns, uint64_t guess_ns, bool is_late);
/* A step that the device took time for once, for its shape: nrd_step_result.was_recorded. */
void nrd_sched_hear_recorded(nrd_sched *s, const nrd_plan *p, uint64_t ns);
const struct nrd_step_costs *nrd_sched_costs(const nrd_sched *s); /* what it heard; borrows (engine/speculate/budget.h) */

bool nrd_sched_is_empty(const nrd_sched *s);    /* nothing waits, runs or is about to become idle */
bool nrd_sched_may_overlap(const nrd_sched *s); /* no running sequence needs the host in between */
void nrd_sched_get_stats(const nrd_sched *s, nrd_sched_stats *out);
nrd_seq *nrd_sched_first_running(const nrd_sched *s);
nrd_seq *nrd_sched_first_waiting(const nrd_sched *s);
void nrd_sched_check(const nrd_sched *s);             /* asserts the invariants; slow */

#endif
