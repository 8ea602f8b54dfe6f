/* SPDX-License-Identifier: Apache-2.0
 * engine/speculate/seq_speculate.h - what a sequence has to do with drafts.
 *
 * Purpose   The part of nrd_seq (engine/sequence.h) that speculation keeps.
 * Owner     The maker sets `proposer` before nrd_sched_add and frees it afterwards. The scheduler writes the rest.
 * Units     Tokens.
 */
#ifndef NRD_ENGINE_SPECULATE_SEQ_SPECULATE_H
#define NRD_ENGINE_SPECULATE_SEQ_SPECULATE_H

#include <stdint.h>

typedef struct nrd_seq_speculate {
    struct nrd_proposer *proposer; /* NULL: none */
    int32_t n_draft;               /* in the plan being made, behind its known tokens */
    int32_t n_proposed, n_accepted; /* so far */
} nrd_seq_speculate;

#endif
