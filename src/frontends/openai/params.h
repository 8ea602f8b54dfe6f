/* SPDX-License-Identifier: Apache-2.0
 * frontends/openai/params.h - what the files share that read a body: params.c its fields and prompts, guides.c what binds the
 * text, chat_in.c messages and tools.
 *
 * Owner     Any thread; the request is the caller's.
 * Errors    INVALID_ARG, UNSUPPORTED, with the field; NO_MEMORY.
 */
#ifndef NRD_FRONTENDS_OPENAI_PARAMS_H
#define NRD_FRONTENDS_OPENAI_PARAMS_H

#include "frontends/openai/internal.h"

/* The field `name` is wrong: why. */
static inline NRD_MUST_USE nrd_error *nrd_oai_bad(const char *name, const char *why)
{
    return nrd_oai_errorf(NRD_ERR_INVALID_ARG, name, "%s", why);
}

/* guides.c: the text is bound by a guide of this kind, whose text goes to r->guide. It may be bound once; field: by which. */
nrd_error *nrd_oai_set_guide(nrd_oai_request *r, const char *type, const char *field) NRD_MUST_USE;
nrd_error *nrd_oai_read_guides(nrd_oai_request *r, const nrd_json *root) NRD_MUST_USE;

/* chat_in.c: messages and tools -> the prompt. */
nrd_error *nrd_oai_read_chat(nrd_oai_request *r, const nrd_json *root) NRD_MUST_USE;

#endif
