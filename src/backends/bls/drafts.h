/* SPDX-License-Identifier: Apache-2.0
 * backends/bls/drafts.h - speculative decoding with a draft model.
 *
 * Purpose   A client that sends num_draft_tokens n > 0 has the draft model propose n tokens, which tensorrt_llm
 *           verifies in one step, until the answer is complete. Without sampling the answer is the one of
 *           tensorrt_llm alone.
 * Owner     The flow. One inner request is in flight at a time, and only its callbacks touch the drafts.
 * Errors    Named by the client's inputs. The first error of an inner request ends the flow.
 * Source    The published model tensorrt_llm_bls, v0.9 to v0.19: its inputs and when it stops.
 */
#ifndef NRD_BACKENDS_BLS_DRAFTS_H
#define NRD_BACKENDS_BLS_DRAFTS_H

#include "backends/bls/flow.h"

typedef struct bls_drafts bls_drafts;

/* Reads num_draft_tokens and what goes with it; sets f->drafts where it is more than 0. */
TRITONSERVER_Error *nrd_bls_drafts_new(bls_flow *f);
void nrd_bls_drafts_free(bls_drafts *d); /* NULL is fine */
/* After preprocessing. Ends the flow on an error. */
void nrd_bls_drafts_start(bls_flow *f);
/* Outputs that are of the whole answer, not of its last step; borrows until free. False: not one of these. */
bool nrd_bls_drafts_output(bls_drafts *d, const char *name, nrd_tb_tensor *out);

#endif
