/* SPDX-License-Identifier: Apache-2.0
 * engine/speculate/seq_speculate.h - what a sequence has to do with drafts.
 *
 * Purpose   The part of nrd_seq (engine/sequence.h) that speculation keeps.
 * Owner     The maker sets `proposer` and `then` before nrd_sched_add and frees them afterwards. The scheduler writes the rest;
 *           it frees a proposer that `then` takes the place of.
 * Units     Tokens.
 */
#ifndef NRD_ENGINE_SPECULATE_SEQ_SPECULATE_H
#define NRD_ENGINE_SPECULATE_SEQ_SPECULATE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct nrd_seq_speculate {
    struct nrd_proposer *proposer; /* NULL: none */
    struct nrd_proposer *then;     /* takes its place behind the first token, which a request's own draft is for; NULL: none does */
    bool asked;                    /* a draft of it must not be left out: the request's own, or whatever it costs */
    int32_t n_draft;               /* in the plan being made, behind its known tokens */
    int32_t n_proposed, n_accepted; /* so far */
} nrd_seq_speculate;

#endif
