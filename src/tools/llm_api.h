/* SPDX-License-Identifier: Apache-2.0
 * tools/llm_api.h - arguments of TensorRT-LLM's LLM API, as the files of --extra_llm_api_options hold them.
 *
 * Purpose   trtllm-serve and trtllm-bench read the same file: its arguments become options of nereid serve, or of nereid bench.
 *           Those without effect are named on the standard error.
 * Owner     The main thread.
 * Errors    INVALID_ARG, UNSUPPORTED name the argument; UNSUPPORTED without libyaml.
 */
#ifndef NRD_TOOLS_LLM_API_H
#define NRD_TOOLS_LLM_API_H

#include "base/error.h"
#include "base/json.h"
#include "base/str.h"

/* Of a whole file. program: who tells what has no effect. */
typedef struct nrd_llm_api_reader {
    const char *program;
    bool is_bench; /* options of nereid bench; else of nereid serve */
} nrd_llm_api_reader;

struct nrd_serve_words;
/* llm_api.c: appends options, --NAME=VALUE or --NAME. */
nrd_error *nrd_llm_api_read(struct nrd_serve_words *out, const nrd_llm_api_reader *r, const char *text) NRD_MUST_USE;
/* llm_api_drafts.c: speculative_config as --speculative-config has it. */
nrd_error *nrd_llm_api_put_drafts(nrd_str *out, const nrd_json *config) NRD_MUST_USE;

#endif
