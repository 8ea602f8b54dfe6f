/* SPDX-License-Identifier: Apache-2.0
 * engine/decode/decode.h - how a sequence's next token is chosen and when it ends.
 *
 * Purpose   Rules on integers: the sampling row of a choice, forbidden tokens, stop phrases, end.
 *           The arithmetic on logits is the device's.
 * Owner     Stateless except for the sequence that is passed in; the engine loop thread.
 * Units     Token ids. A sequence's draws are numbered by its generated tokens, so that they depend
 *           neither on the batch nor on pauses.
 */
#ifndef NRD_ENGINE_DECODE_DECODE_H
#define NRD_ENGINE_DECODE_DECODE_H

#include "engine/decode/result.h"
#include "engine/sequence.h"
#include "nereid/device.h"

/* Begins with the prompt: sets what follows from the request (seq_decode.h). */
void nrd_decode_prepare(nrd_seq *q);

/* Its guide's mask is being made: no step may choose for it. */
bool nrd_decode_is_held(const nrd_seq *q);

/* Upper bound of what nrd_decode_banned may write for the sequence. */
int32_t nrd_decode_max_banned(const nrd_seq *q);
/* Tokens that may not come next: bad words whose beginning is there, repeated n-grams. `tokens` are
 * the n known tokens of the sequence (or beam). Returns how many were written. */
int32_t nrd_decode_banned(const nrd_seq *q, const int32_t *tokens, int32_t n, int32_t vocab,
                          int32_t *out);
/* What its draws depend on, beside their numbers. */
uint64_t nrd_decode_seed(const nrd_seq *q);
/* Fills a row but for what is on the device: banned_start, n_banned, bias, mask. */
void nrd_decode_row(const nrd_seq *q, int32_t slot, int32_t n_generated, bool normalize,
                    nrd_sample_row *out);
/* Its top-p behind n more tokens. */
float nrd_decode_top_p_behind(const nrd_seq *q, const int32_t *ids, int32_t n);
/* What the rule of times (q->req.first_time above 0) allows behind n generated tokens. */
nrd_sample_times nrd_decode_times(const nrd_seq *q, const int32_t *generated, int32_t n, int32_t vocab);

/* The last generated token was appended: where its reasoning begins, goes on or ends. */
void nrd_decode_note_reasoning(nrd_seq *q);
/* The budget of its reasoning is used up: what must come next; 0: nothing must. Borrows from the request. */
int32_t nrd_decode_reasoning_close(const nrd_seq *q, const int32_t **out_ids);

/* Whether the generated tokens end with a stop phrase. */
bool nrd_decode_hits_stop(const nrd_seq *q, const int32_t *generated, int32_t n);
/* Appends a chosen token: returns the reason to end, or NONE. The end token is not appended. */
nrd_seq_finish nrd_decode_accept(nrd_seq *q, int32_t token, int32_t *out_n_new);
/* Behind nrd_decode_accept: log probabilities of the choice in `row`, and its candidates. */
void nrd_decode_keep_log_probs(nrd_seq *q, const nrd_step_result *r, int32_t row, int32_t n_new);
/* Appends tokens that were not sampled (a guide or the end of a budget forces them), none of them an end token; adds
 * their number to *n_new. Their log probability is 0. */
nrd_seq_finish nrd_decode_append(nrd_seq *q, const int32_t *ids, int32_t n, int32_t *n_new);

#endif
