/* SPDX-License-Identifier: Apache-2.0
 * tools/eval/continuation.h - how likely a text is behind another one.
 *
 * Purpose   What multiple-choice tasks and searches for a needle ask of a model. Texts are cut into tokens as lm-evaluation-
 *           harness does: both together, white space at the context's end belonging to what follows; a context that is too
 *           long loses its beginning.
 * Owner     One thread.
 * Errors    INVALID_ARG: nothing follows, or what follows is longer than the model takes.
 */
#ifndef NRD_TOOLS_EVAL_CONTINUATION_H
#define NRD_TOOLS_EVAL_CONTINUATION_H

#include "base/error.h"
#include "nereid/executor.h"
#include "text/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct nrd_eval_model { /* borrowed */
    nrd_exec *exec;
    const nrd_tokenizer *tokenizer;
    uint64_t lora_id; /* 0: no adapter */
    int32_t max_tokens; /* of a sequence */
} nrd_eval_model;

typedef struct nrd_eval_continuation {
    double log_prob; /* of all its tokens, nats */
    int32_t n_tokens;
    bool is_greedy;  /* each of them is the likeliest */
} nrd_eval_continuation;

nrd_error *nrd_eval_continue(const nrd_eval_model *m, const char *context, size_t n_context, const char *text, size_t n_text,
                             nrd_eval_continuation *out) NRD_MUST_USE;
/* ids[0, n), of which the last n_last are asked for. */
nrd_error *nrd_eval_last(const nrd_eval_model *m, const int32_t *ids, size_t n, size_t n_last,
                         nrd_eval_continuation *out) NRD_MUST_USE;

#endif
