/* SPDX-License-Identifier: Apache-2.0
 * text/word_list.h - stop, bad and biased phrases as token ids.
 *
 * Purpose   The tensor layout of stop_words_list / bad_words_list: [2, L], row 0 all phrase ids one
 *           after the other, zero padded; row 1 inclusive cumulative ends, padded with -1.
 * Owner     Stateless, any thread.
 * Errors    INVALID_ARG naming the list.
 */
#ifndef NRD_TEXT_WORD_LIST_H
#define NRD_TEXT_WORD_LIST_H

#include "text/tokenizer.h"

/* Encodes phrases without special tokens; phrases that tokenise to nothing are dropped. Appends to
 * `ids` and appends the inclusive cumulative ends to `ends`. */
NRD_API nrd_error *nrd_word_list_encode(const nrd_tokenizer *t, const char *const *phrases,
                                const size_t *lengths, size_t n_phrases, nrd_ids *ids, nrd_ids *ends)
    NRD_MUST_USE;

/* Checks and reads a [2, row_len] tensor: even count, ends <= row_len, strictly increasing, nothing
 * but -1 after the first -1. On success *out_n_phrases phrases: ids [start_i, ends[i]). */
nrd_error *nrd_word_list_check(const char *list_name, const int32_t *tensor, size_t n_elements,
                               size_t *out_n_phrases) NRD_MUST_USE;

#endif
