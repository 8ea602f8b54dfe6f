/* SPDX-License-Identifier: Apache-2.0
 * engine/speculate/verify.h - how far a draft holds.
 *
 * Purpose   A step has made a choice behind every token of a draft, as if those before it were right. Accepted are
 *           the tokens up to the first that is wrong; behind them comes one more token that the model chose. What
 *           the sequence says has the distribution of a sequence without a draft.
 * Rules     Without the draft's logits a token is right where the model's own choice is the same: greedy or drawn,
 *           the tokens are those that come without a draft. With them a token x stays with probability
 *           min(1, p(x) / q(x)), where p is the model's distribution and q the draft's, both after temperature,
 *           top-k, top-p and min-p; in place of the first that does not, one is drawn from max(0, p - q). With a
 *           threshold t a token stays where p(x) >= t * q(x), and the distribution is the client's affair.
 *           With a posterior threshold a token of a drawn answer stays where it is likely enough (engine/speculate/typical.h), and the
 *           distribution is another one; what comes in the place of the first that does not is the model's own draw.
 *           Choices that depend on more than the logits (penalties, bias, forbidden words, a guide, a top-p that decays)
 *           are compared without the draft's logits. Each of them is made as if the draft were right so far: with
 *           counts of its tokens too, and the guide's mask behind them.
 *           Of a tree the choices show the way: behind the root, then behind the child that has the chosen token, and
 *           so on. Drawn choices are the draws that would come without a draft (same seed, same number), so the answer
 *           is the same, not only its distribution; and since siblings differ in their tokens, a node is reached as often
 *           as rejection sampling against a draft that is sure of itself would keep it.
 * Owner     The engine loop thread; a pure function but for the sequence.
 * Sources   Leviathan et al., ICML 2023; the threshold as TensorRT-LLM has it.
 */
#ifndef NRD_ENGINE_SPECULATE_VERIFY_H
#define NRD_ENGINE_SPECULATE_VERIFY_H

#include "engine/decode/result.h"
#include "engine/sequence.h"
#include "engine/speculate/tree.h"

#include <stddef.h>

/* Whether a choice behind a draft can be made before the draft is known to be right: not one of beams. */
bool nrd_speculate_suits(const nrd_seq *q);
/* Whether the rows' logits must come to the host. */
bool nrd_speculate_wants_logits(const nrd_seq *q);
/* A proposer with logits needs so much memory beside them. */
size_t nrd_speculate_scratch_bytes(int32_t vocab);

/* What holds of a draft. */
typedef struct nrd_draft_accept {
    int32_t n_new;      /* tokens appended */
    int32_t n_accepted; /* tokens of the draft that were right (an end token counts, and is not among n_new) */
    int32_t path[NRD_MAX_TREE]; /* [n_accepted] of a tree, its nodes */
} nrd_draft_accept;

/* Appends what holds of the draft of n_draft tokens, and one token more. The draft lies behind the known tokens, or is the
 * first n_draft nodes of `tree`. `row` is the choice behind the last known token, those behind the draft follow. */
nrd_seq_finish nrd_speculate_accept(nrd_seq *q, const nrd_step_result *r, int32_t row, int32_t n_draft,
                                    const nrd_token_tree *tree, nrd_draft_accept *out);

#endif
