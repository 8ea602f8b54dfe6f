/* SPDX-License-Identifier: Apache-2.0
 * text/shared.h - one tokenizer for everybody in a process who names the same files.
 *
 * Purpose   A counted registry: preprocessing and postprocessing models, guides of the engine and the
 *           OpenAI front end hold one vocabulary and one compiled chat template between them. Two
 *           paths are the same where folder and files are (device, inode, size, time of change), so
 *           that files that were replaced since are read anew, while earlier users keep what they have.
 * Owner     Any thread. The tokenizer and the template are immutable.
 * Errors    Those of nrd_tokenizer_open and nrd_chat_open.
 * Lifetime  open/close; the last close frees. Files are read outside the registry's lock: a thread
 *           that opens the same files at that time waits, other threads do not.
 */
#ifndef NRD_TEXT_SHARED_H
#define NRD_TEXT_SHARED_H

#include "text/template/chat.h"
#include "text/tokenizer.h"

typedef struct nrd_text nrd_text;

/* `path`: as for nrd_tokenizer_open. Opened again without a change of the files: the same object. */
NRD_API nrd_error *nrd_text_open(nrd_text **out, const char *path) NRD_MUST_USE;
NRD_API void nrd_text_close(nrd_text *t);

NRD_API const nrd_tokenizer *nrd_text_tokenizer(const nrd_text *t); /* borrows until close */
/* The model's own chat template, compiled when it is first asked for; borrows until close. The error
 * of a model without one, or with a wrong one, is the same each time. */
NRD_API nrd_error *nrd_text_chat(nrd_text *t, const nrd_chat **out) NRD_MUST_USE;

#endif
