/* SPDX-License-Identifier: Apache-2.0
 * formats/whisper_pt.h - OpenAI's own Whisper checkpoints: tiny.pt to large-v3-turbo.pt.
 *
 * Purpose   A file of PyTorch with `dims` (sizes) and `model_state_dict`. The tensors get the names that Hugging Face has for
 *           them, and the sizes become its config.json.
 * Owner     Immutable after open; any thread may read.
 * Errors    Those of formats/torch_bin.h. INVALID_ARG: a size that is missing or out of its limits.
 * Limits    See whisper_pt.c.
 * Lifetime  Names and data borrow from the object until close.
 * Sources   openai/whisper, model.py and tokenizer.py (facts only).
 */
#ifndef NRD_FORMATS_WHISPER_PT_H
#define NRD_FORMATS_WHISPER_PT_H

#include "base/str.h"
#include "formats/torch_bin.h"

typedef struct nrd_whisper_pt nrd_whisper_pt;

/* The .pt file of a folder, which the caller frees. *out NULL: there is none. INVALID_ARG: several. */
nrd_error *nrd_whisper_pt_find(char **out, const char *dir) NRD_MUST_USE;
nrd_error *nrd_whisper_pt_open(nrd_whisper_pt **out, const char *path) NRD_MUST_USE;
/* Over memory that outlives the object. */
nrd_error *nrd_whisper_pt_open_memory(nrd_whisper_pt **out, const void *data, size_t n) NRD_MUST_USE;
void nrd_whisper_pt_close(nrd_whisper_pt *w);
bool nrd_whisper_pt_is_lost(const nrd_whisper_pt *w); /* the file was made shorter while it was read */
/* The configuration as Hugging Face's config.json has it. */
void nrd_whisper_pt_config_json(const nrd_whisper_pt *w, nrd_str *out);
size_t nrd_whisper_pt_n(const nrd_whisper_pt *w);
const nrd_torch_tensor *nrd_whisper_pt_at(const nrd_whisper_pt *w, size_t i);

#endif
