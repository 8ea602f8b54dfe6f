/* SPDX-License-Identifier: Apache-2.0
 * nereid/llm_tensors.h - what the model "tensorrt_llm" says in numbers and words.
 *
 * Purpose   Read by clients inside this program (front ends, bls) and written by the backend: values
 *           of its response parameters that no tensor's name explains.
 * Lifetime  Part of the interface of a running model: never renumber.
 */
#ifndef NEREID_LLM_TENSORS_H
#define NEREID_LLM_TENSORS_H

#include <stddef.h>
#include <stdint.h>

/* Request parameters: prompts share cached blocks only with those of the same two texts. The second is the
 * front ends', where --cache-salt-per-key asks for it. */
#define NRD_LLM_CACHE_SALT "cache_salt"
/* A number: log probabilities of the prompt's tokens are told, with so many of the best ones in the place of each. Outputs of the first
 * response: prompt_log_probs, prompt_log_prob_ranks [1, tokens], and prompt_top_log_prob_ids, prompt_top_log_probs [1, tokens, that number]. */
#define NRD_LLM_PROMPT_LOGPROBS "prompt_logprobs"
/* Request parameter: a JSON list of token ids; no others are chosen, the end of the text included. */
#define NRD_LLM_ALLOWED "allowed_token_ids"
#define NRD_LLM_GROUP "choice_group" /* a number, not to be guessed, of requests that are choices of one */
#define NRD_LLM_CACHE_SALT_OF_KEY "cache_salt_of_key"
/* Request parameter: whose request it is, a number above 0. Where several wait, they share the engine evenly (engine/scheduler.h).
 * For front ends alone: they refuse it where it comes from a client. */
#define NRD_LLM_FLOW "triton_flow"
/* Request parameters for what a release's repository does not declare as an input: a number, and two of true or
 * false. */
#define NRD_LLM_MIN_P "min_p"
#define NRD_LLM_EXCLUDE_INPUT "exclude_input_in_output"
#define NRD_LLM_PERF_METRICS "return_perf_metrics"
/* Request parameter, true or false: it starts behind those that wait, but for every eighth start (engine/scheduler.h). */
#define NRD_LLM_BACKGROUND "background"
/* Request parameter: how long the text may reason, a JSON object: {"budget": tokens, "begin": [ids], "end": [ids], "close": [ids],
 * "open": true or false}, as nrd_exec_request has them. */
#define NRD_LLM_REASONING "reasoning"
/* Request parameter: pictures (JPEG, PNG, WebP, PPM) in base64, with commas between, in the order of their places in the
 * prompt, each of which is the model's image token. */
#define NRD_LLM_IMAGES "images"
enum { NRD_LLM_MAX_IMAGES = 64, NRD_LLM_MAX_IMAGE_BYTES = 20 << 20 }; /* of a request; of a picture as it came */
/* Request parameter: videos, with semicolons between, in the order of their places in the prompt, each of which is the model's video
 * token. A video is the number of its frames a second, a colon, and its frames as pictures above: "2:AAAA,BBBB;0.5:CCCC". */
#define NRD_LLM_VIDEOS "videos"
enum { NRD_LLM_MAX_VIDEO_FRAMES = 768 }; /* of a request */
/* Request parameters of models that hear, as generation_config.json of Whisper names them: from the first one on times are told in
 * pairs that do not go back; how many steps behind 0 the first time may be. And the token whose probability behind this place
 * of the prompt is told in the response parameter no_speech_prob. */
#define NRD_LLM_NO_TIMES "no_timestamps_token_id"
#define NRD_LLM_MAX_FIRST_TIME "max_initial_timestamp_index"
#define NRD_LLM_NO_SPEECH "no_speech_token_id"
#define NRD_LLM_NO_SPEECH_AT "no_speech_position"
#define NRD_LLM_NO_SPEECH_PROB "no_speech_prob"
/* Request parameters: a number, nrd_sampling_config.early_stopping, of which the input can only say 0 (false) and 1 (true); true or false,
 * nrd_exec_request.generate_scores and forced_end. */
#define NRD_LLM_EARLY_STOPPING "early_stopping"
#define NRD_LLM_GENERATE_SCORES "generate_scores"
#define NRD_LLM_FORCED_END "forced_end"
/* Response parameter, of the final response: tokens of the prompt, those of pictures too. */
#define NRD_LLM_PROMPT_TOKENS "prompt_tokens"
/* Response parameter, of the final response: why the first beam ended, an nrd_finish_reason. */
#define NRD_LLM_FINISH_REASON "finish_reason"
/* Response parameter, of the final response: tokens in a block of the KV cache. */
#define NRD_LLM_TOKENS_PER_BLOCK "kv_tokens_per_block"
/* Response parameter, of the final response: tokens that a prompt has at most. */
#define NRD_LLM_MAX_INPUT "max_input_len"
/* Response parameter of an error: a word for programs, where there is one. */
#define NRD_LLM_ERROR_REASON "error_reason"

/* Values of NRD_LLM_ERROR_REASON. */
#define NRD_LLM_PROMPT_TOO_LONG "context_length_exceeded" /* OpenAI's word */

/* Parameter of the model's configuration: adapters that have names, "NAME=FOLDER;NAME=FOLDER". */
#define NRD_LLM_ADAPTERS "lora_adapters"
/* Parameter of the model's configuration that the backend writes: nrd_exec_describe's text. */
#define NRD_LLM_MODEL "model_description"
/* Request parameters: "pooling" says which vector answers instead of text, as the output "embedding", or with "labels"
 * as the output "label_logits"; from which token on the prompt is the second text of a pair. */
#define NRD_LLM_POOLING "pooling"
#define NRD_LLM_SECOND_FROM "second_text_from"
/* Request parameter beside lora_task_id: the adapter's folder, which is read where the number is not known.
 * For front ends alone: they refuse it where it comes from a client. */
#define NRD_LLM_ADAPTER_DIR "triton_lora_dir"

/* lora_task_id of an adapter that has a name: FNV-1a of the n bytes. From 2^63 on, where clients that count
 * their adapters do not come. */
static inline uint64_t nrd_llm_adapter_number(const char *name, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) {
        h = (h ^ (unsigned char)name[i]) * 0x100000001b3u;
    }
    return h | (uint64_t)1 << 63;
}

typedef enum {
    NRD_FINISH_NONE = 0,
    NRD_FINISH_END_ID = 1,
    NRD_FINISH_STOP_WORDS = 2,
    NRD_FINISH_LENGTH = 3,
    NRD_FINISH_CANCELLED = 4,
    NRD_FINISH_ERROR = 5,
    NRD_FINISH_TIMED_OUT = 6, /* the request's deadline came first */
} nrd_finish_reason;

#endif
