/* SPDX-License-Identifier: Apache-2.0
 * text/harmony.h - answers in the format of GPT-OSS.
 *
 * Purpose   An answer is a list of messages, each with a header that names its channel and maybe whom it is for:
 *             <|channel|>analysis<|message|>…<|end|>                                            reasoning
 *             <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>   a call
 *             <|start|>assistant<|channel|>final<|message|>…<|return|>                          the content
 *           (the recipient may also stand before the channel; commentary for nobody is content, too). This takes the
 *           tokens as they come and tells apart what they say. Marks are tokens, so text that only looks like one stays text.
 * Owner     One for each answer, one thread at a time.
 * Rules     Messages of a kind are joined by an empty line. A message to a function that the request has not got, and
 *           to other recipients, is what its channel says. What comes before any mark and names no recipient is content:
 *           so answers that a guide binds have no header.
 * Source    OpenAI, "Harmony response format", 2025.
 */
#ifndef NRD_TEXT_HARMONY_H
#define NRD_TEXT_HARMONY_H

#include "base/json.h"
#include "text/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What stands between the end of a prompt and the text of a final message. */
#define NRD_HARMONY_FINAL "<|channel|>final<|message|>"

/* The marks; `end_of_call` and `end_of_answer` end an answer, `end` a message of it. */
typedef struct nrd_harmony_ids {
    int32_t start, channel, message, constrain, end, end_of_call, end_of_answer;
} nrd_harmony_ids;
/* False: the tokenizer is of another kind of model. */
NRD_API bool nrd_harmony_find(const nrd_tokenizer *t, nrd_harmony_ids *out);

typedef struct nrd_harmony nrd_harmony;
/* The answer behind `prompt`, which may end within a header or a message. tools: the request's, or NULL. NULL: no memory. */
NRD_API nrd_harmony *nrd_harmony_new(const nrd_harmony_ids *ids, const nrd_tokenizer *t, const nrd_json *tools,
                             const nrd_ids *prompt);
NRD_API void nrd_harmony_free(nrd_harmony *h); /* NULL is fine */

/* The next token, and the end: appends what became certain of the content. */
NRD_API void nrd_harmony_push(nrd_harmony *h, int32_t id, nrd_str *content);
NRD_API void nrd_harmony_end(nrd_harmony *h, nrd_str *content);

NRD_API bool nrd_harmony_no_memory(const nrd_harmony *h); /* something is missing */
NRD_API const nrd_str *nrd_harmony_reasoning(const nrd_harmony *h);
NRD_API int32_t nrd_harmony_reasoning_tokens(const nrd_harmony *h);
NRD_API size_t nrd_harmony_n_calls(const nrd_harmony *h);
NRD_API void nrd_harmony_call(const nrd_harmony *h, size_t i, const nrd_str **name, const nrd_str **arguments);

#endif
