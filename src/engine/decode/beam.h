/* SPDX-License-Identifier: Apache-2.0
 * engine/decode/beam.h - beam search.
 *
 * Purpose   The hypotheses of a sequence with width > 1: after the prompt, every step extends each
 *           live beam by its best candidates, keeps the best `width`, and moves finished ones (end
 *           token, stop phrase) to a list of at most `width`.
 * Owner     nrd_beams belongs to its sequence; the engine loop thread.
 * Units     Scores are sums of plain log probabilities; a finished hypothesis is ranked by
 *           score / length^length_penalty (0: plain).
 *           With nrd_seq_request.unmasked_scores, n_counted and forced_end the results are those of
 *           transformers' generate().
 * Sources   Sutskever et al., 2014; length penalty and early stopping as TensorRT-LLM names them;
 *           diversity: Li & Jurafsky, 2016 (rank penalty among siblings).
 */
#ifndef NRD_ENGINE_DECODE_BEAM_H
#define NRD_ENGINE_DECODE_BEAM_H

#include "engine/decode/result.h"
#include "engine/kv_cache.h"
#include "engine/sequence.h"

nrd_error *nrd_beams_new(nrd_beams **out, int32_t width, const int32_t *prompt, int32_t n_prompt,
                         int32_t max_total) NRD_MUST_USE;
void nrd_beams_free(nrd_beams *b);

/* Candidates that each beam must report (n_top). */
int32_t nrd_beams_n_candidates(int32_t width);

/* Applies one step: `row` is the first of the sequence's rows (one after the prompt, then one for
 * each beam). NONE: it goes on, and nrd_beams_move_tables must follow. */
nrd_seq_finish nrd_beams_step(nrd_seq *q, const nrd_step_result *r, int32_t row);
/* Gives every live beam the blocks of the one it came from: rearranges tables [width], of which each
 * has n_tokens tokens. Writes the blocks to copy to out_copies [width]; returns how many. */
int32_t nrd_beams_move_tables(nrd_beams *s, nrd_kv_table *tables, nrd_kv *kv, int32_t n_tokens,
                              int32_t (*out_copies)[2]);

/* Prompt and generated tokens of live beam b. Borrows until the next step. */
const int32_t *nrd_beams_tokens(const nrd_beams *s, int32_t b, int32_t *out_n);

/* The result, best first; i < width. Generated ids and their log probabilities; they borrow until
 * the next step. While the search goes on: live beams and finished ones by rank. */
void nrd_beams_hypothesis(const nrd_beams *s, int32_t i, const int32_t **out_ids, int32_t *out_n,
                          const float **out_log_probs, float *out_cum_log_prob,
                          nrd_seq_finish *out_finish);
/* Of the same hypothesis: the live beam (0 after the prompt) from whose logits each generated token was chosen. */
const int32_t *nrd_beams_rows(const nrd_beams *s, int32_t i);

#endif
