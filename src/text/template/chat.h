/* SPDX-License-Identifier: Apache-2.0
 * text/template/chat.h - from messages to the prompt of a model.
 *
 * Purpose   Holds a tokenizer's chat templates, compiled, and renders conversations as transformers'
 *           apply_chat_template does: None members of messages left out, reasoning under the names
 *           that templates read, the special tokens as variables.
 * Owner     Immutable after open; any number of threads may render.
 * Errors    UNSUPPORTED when the model has no chat template; INVALID_ARG for messages that are no
 *           list of objects, and for what the template refuses.
 * Lifetime  Borrows the tokenizer until free.
 */
#ifndef NRD_TEXT_TEMPLATE_CHAT_H
#define NRD_TEXT_TEMPLATE_CHAT_H

#include "text/template/template.h"
#include "text/tokenizer.h"

typedef struct nrd_chat nrd_chat;

/* `override` (may be NULL): a template's text instead of the model's own. */
NRD_API nrd_error *nrd_chat_open(nrd_chat **out, const nrd_tokenizer *t, const char *override) NRD_MUST_USE;
/* For models without one; NULL: no such name. The text is static. */
#define NRD_CHAT_TEMPLATE_NAMES "chatml, gemma, llama3, mistral, phi3"
NRD_API const char *nrd_chat_template_named(const char *name);
NRD_API void nrd_chat_free(nrd_chat *c);

typedef struct nrd_chat_input {
    const nrd_json *messages; /* array of objects */
    const nrd_json *tools;    /* array or NULL */
    const nrd_json *documents;
    const nrd_json *variables; /* object: further variables ("enable_thinking"); or NULL */
    bool add_generation_prompt;
    time_t now; /* 0: the clock's */
} nrd_chat_input;

/* Appends the prompt. It is encoded with PARSE_SPECIAL and without ADD_SPECIAL: templates write the
 * beginning of the text themselves. */
NRD_API nrd_error *nrd_chat_render(const nrd_chat *c, const nrd_chat_input *in, nrd_str *out) NRD_MUST_USE;

NRD_API bool nrd_chat_takes_tools(const nrd_chat *c);

#endif
