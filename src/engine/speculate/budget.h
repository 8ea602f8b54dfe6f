/* SPDX-License-Identifier: Apache-2.0
 * engine/speculate/budget.h - how many drafted tokens a step is worth.
 *
 * Purpose   A drafted token makes a step longer and gives a token only where it is right. With few sequences a step
 *           is bound by reading weights and drafts are nearly free; with many they take time from others. What a
 *           step of n tokens costs is learned from steps that ran: it is no straight line (tiles, threads).
 * Owner     The scheduler; loop thread only.
 * Units     Nanoseconds of the device; tokens of a step without prompts.
 */
#ifndef NRD_ENGINE_SPECULATE_BUDGET_H
#define NRD_ENGINE_SPECULATE_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

enum { NRD_COST_TOKENS = 512 }; /* larger steps have no drafts */
enum { NRD_MAX_PASSES = 64 };   /* tokens of a draft that a network guesses */

typedef struct nrd_step_costs { /* zero-initialised */
    float ns[NRD_COST_TOKENS + 1]; /* of a step of so many tokens, none of them drafted; 0: none ran yet */
    uint8_t n_heard[NRD_COST_TOKENS + 1]; /* such steps that were not late, up to a few */
    float drafted_ns[NRD_COST_TOKENS + 1]; /* of those with drafts: a device may have recorded only the others */
    const struct nrd_step_costs *like; /* before the first one: `share` of what these are; or NULL */
    float share;
    /* Tokens that a step of so many is filled up to: those take as long. NULL: as `like` has it, or they are not. */
    int32_t (*filled_up)(int32_t n_tokens);
    bool overlaps;                 /* steps may be planned ahead where nobody has drafts */
    float waits_ns;                /* what a late step takes more */
    bool recomputes;               /* what is drafted is computed twice where not all of a draft holds */
    int32_t n_drafted;             /* steps in a row that had drafts */
    float refused_ns, trial_ns;    /* of steps that could have had some; what all drafts of the last of them would have taken more */
    float lost_ns;                 /* what steps took more than the same tokens without drafts would have */
    int32_t n_rest, next_rest;     /* steps for which drafts rest still, and the next time; 0: not yet known */
    int32_t rest_sequences;        /* of the step behind which the rest began */
    bool rests; /* the next step may be planned ahead: nobody will have a draft */
} nrd_step_costs;

typedef struct nrd_draft_offer {
    float rate;   /* of the proposer; above 1: all of it is kept */
    int32_t n;    /* tokens offered; with `passes` at most NRD_MAX_PASSES */
    int32_t keep; /* written: of them, the first so many */
    float next;   /* scratch: how likely the next one is right */
    const nrd_step_costs *passes; /* of the network that guesses, a pass for each token; NULL: guessing is free */
    int32_t lag;  /* tokens that this network has to compute before, beside the last one */
    const float *likely; /* [n] of a tree: how likely each token is right, falling; NULL: rate, rate^2, ... */
    bool whole;    /* all n or none */
    int32_t n_passes; /* in which the network guesses all of them; 0: one for each */
} nrd_draft_offer;

void nrd_costs_hear(nrd_step_costs *c, int32_t n_tokens, uint64_t ns);
/* The same of a step that was planned only when the one before had been read, though steps may be planned ahead where nobody has
 * drafts: what it took more is a cost of drafts. */
void nrd_costs_hear_late(nrd_step_costs *c, int32_t n_tokens, uint64_t ns);
void nrd_costs_hear_drafted(nrd_step_costs *c, int32_t n_tokens, uint64_t ns); /* some of the tokens were drafted */
/* A step with drafts, of so many sequences, whose time is none of its size's, since something was done once for it: trials wait for longer. */
void nrd_costs_hear_recorded(nrd_step_costs *c, int32_t n_sequences, uint64_t ns);
/* Behind one of these, with all that the step and its guesses took: n_sequences had a token each, and n_held drafted ones beside. Where steps may be
 * planned ahead, a step without drafts also loses by the wait for somebody who may have one. Drafts that lose on the whole rest for a while. */
void nrd_costs_settle(nrd_step_costs *c, int32_t n_sequences, int32_t n_held, uint64_t ns);
/* Keeps those tokens of the offers, at most `most` in all, with which a step that has n_tokens without them is
 * expected to give most tokens a second. Where that is none, one step in so many has all of them nevertheless, so that
 * what is believed does not grow old: such trials take a hundredth of the time at most. For the same reason one step in a hundred has none,
 * and the first one: what drafts cost is the difference to a step without. */
void nrd_costs_choose(nrd_step_costs *c, int32_t n_tokens, nrd_draft_offer *offers, int32_t n_offers, int32_t most);

#endif
