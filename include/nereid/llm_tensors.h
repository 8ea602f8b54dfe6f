/* SPDX-License-Identifier: Apache-2.0
 * nereid/llm_tensors.h - what the model "tensorrt_llm" says in numbers and words.
 *
 * Purpose   Read by clients inside this program (front ends, bls) and written by the backend: values
 *           of its response parameters that no tensor's name explains.
 * Lifetime  Part of the interface of a running model: never renumber.
 */
#ifndef NEREID_LLM_TENSORS_H
#define NEREID_LLM_TENSORS_H

/* Request parameters: prompts share cached blocks only with those of the same two texts. The second is the
 * front ends', where --cache-salt-per-key asks for it. */
#define NRD_LLM_CACHE_SALT "cache_salt"
#define NRD_LLM_CACHE_SALT_OF_KEY "cache_salt_of_key"
/* Response parameter, of the final response: why the first beam ended, an nrd_finish_reason. */
#define NRD_LLM_FINISH_REASON "finish_reason"
/* Response parameter, of the final response: tokens in a block of the KV cache. */
#define NRD_LLM_TOKENS_PER_BLOCK "kv_tokens_per_block"
/* Response parameter of an error: a word for programs, where there is one. */
#define NRD_LLM_ERROR_REASON "error_reason"

/* Values of NRD_LLM_ERROR_REASON. */
#define NRD_LLM_PROMPT_TOO_LONG "context_length_exceeded" /* OpenAI's word */

typedef enum {
    NRD_FINISH_NONE = 0,
    NRD_FINISH_END_ID = 1,
    NRD_FINISH_STOP_WORDS = 2,
    NRD_FINISH_LENGTH = 3,
    NRD_FINISH_CANCELLED = 4,
    NRD_FINISH_ERROR = 5,
} nrd_finish_reason;

#endif
