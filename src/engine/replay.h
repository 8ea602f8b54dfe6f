/* SPDX-License-Identifier: Apache-2.0
 * engine/replay.h - a scheduler's record, done again.
 *
 * Purpose   Tells a scheduler and a cache of their own what the record says that theirs were told, and
 *           compares each plan. Nothing is computed: no device, no model, no text.
 * Owner     One thread.
 * Limits    Needs the beginning of the record. It ends before the first choice of a beam search and the
 *           first request with draft tokens: these follow from log probabilities and text, which are not
 *           recorded.
 * Errors    INVALID_ARG: no record, or not a whole one; NO_MEMORY. Sizes are checked before
 *           memory is taken. A record that somebody changed may still break what the scheduler asserts.
 */
#ifndef NRD_ENGINE_REPLAY_H
#define NRD_ENGINE_REPLAY_H

#include "engine/record.h"

#include <stdio.h>

typedef enum nrd_replay_end {
    NRD_REPLAY_SAME = 0, /* to the last event */
    NRD_REPLAY_DIFFERS,  /* at a plan */
    NRD_REPLAY_UNRECORDED,    /* the same up to a beam search or a draft */
    NRD_REPLAY_NO_START, /* the beginning was overwritten: events are counted, nothing is replayed */
    NRD_REPLAY_BROKEN,   /* an event does not fit the ones before it */
} nrd_replay_end;

typedef struct nrd_replay_result {
    nrd_replay_end end;
    uint64_t n_events, n_sequences, n_plans, n_tokens; /* n_tokens: that were chosen */
    uint64_t step;            /* of the last plan */
    nrd_record_plan recorded; /* the last one, or where it differs */
    nrd_record_plan replayed;
    char reason[256]; /* why it ended before the last event */
} nrd_replay_result;

typedef struct nrd_replay_options {
    FILE *trace;      /* NULL: none; a line for each event */
    uint64_t from;    /* steps before this one are not traced */
    FILE *state;      /* NULL: none; the queues at the end */
} nrd_replay_options;

/* The next record of a file of `n` bytes at `*at`, which moves behind it; *out_head NULL: no more. Words are
 * borrowed. *out_n[1]: of the newer half. */
nrd_error *nrd_replay_find(const void *data, size_t n, size_t *at, const nrd_record_head **out_head,
                           const uint32_t *out_words[2], size_t out_n[2]) NRD_MUST_USE;
nrd_error *nrd_replay_run(const nrd_record_head *head, const uint32_t *const words[2], const size_t n[2],
                          const nrd_replay_options *options, nrd_replay_result *out) NRD_MUST_USE;
/* Calls `each` for every arrival of a record, in order; also without its beginning. */
nrd_error *nrd_replay_requests(const uint32_t *const words[2], const size_t n[2],
                               void (*each)(void *user, const nrd_record_add *a), void *user) NRD_MUST_USE;

#endif
