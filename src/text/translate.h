/* SPDX-License-Identifier: Apache-2.0
 * text/translate.h - texts for models that are told languages.
 *
 * Purpose   Marian's multilingual models read the target's token in front of the text. M2M100, NLLB and mBART read the source's
 *           token beside the text, and their answer begins with the target's.
 * Owner     Immutable, as the tokenizer is; any thread.
 * Errors    INVALID_ARG names the language and some that the model has; UNSUPPORTED where a model knows none.
 * Sources   The tokenizers of Hugging Face transformers (which token stands where).
 */
#ifndef NRD_TEXT_TRANSLATE_H
#define NRD_TEXT_TRANSLATE_H

#include "text/tokenizer.h"

typedef struct nrd_translation { /* "fr", "fra_Latn", "fr_XX": as the model calls them; NULL: as its files say */
    const char *source, *target;
} nrd_translation;

/* Appends to `out` what the encoder reads of text[0..n), and to `out_begin` what the decoder's text begins with, where a target
 * decides it: nothing else. */
NRD_API nrd_error *nrd_tokenizer_encode_translation(const nrd_tokenizer *t, const char *text, size_t n, const nrd_translation *languages,
                                                    nrd_ids *out, nrd_ids *out_begin) NRD_MUST_USE;

#endif
