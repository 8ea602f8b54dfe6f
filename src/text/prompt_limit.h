/* SPDX-License-Identifier: Apache-2.0
 * text/prompt_limit.h - texts that are too long for every engine are refused before they are tokenized.
 *
 * Purpose   Tokenizing takes time and memory in proportion to the text, and a text that no engine can take
 *           is not worth either. Engines tell how many tokens a prompt may have; that number times the
 *           vocabulary's longest token, in bytes, is the longest text that can fit.
 * Owner     Any thread. One table for the process.
 * Errors    INVALID_ARG, with the limit.
 */
#ifndef NRD_TEXT_PROMPT_LIMIT_H
#define NRD_TEXT_PROMPT_LIMIT_H

#include "text/tokenizer.h"

/* An engine that takes prompts of that many tokens was opened; it is closed. */
void nrd_prompt_limit_add(int32_t max_tokens);
void nrd_prompt_limit_remove(int32_t max_tokens);

/* Whether a prompt of n bytes may be tokenized. Where no engine is open there is no limit: who answers is not
 * known here. */
NRD_API nrd_error *nrd_prompt_limit_check(const nrd_tokenizer *t, size_t n) NRD_MUST_USE;

#endif
