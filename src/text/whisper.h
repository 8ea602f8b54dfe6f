/* SPDX-License-Identifier: Apache-2.0
 * text/whisper.h - the tokens that Whisper's decoder is asked with and that tell when something was said.
 *
 * Purpose   What one folder says of its model: tokens for tasks, languages and times, how many mels it hears; the
 *           prompt of a window; segments with times from a window's ids, and where the next window begins.
 * Owner     Immutable after open: any thread.
 * Units     Times of tokens in steps of 20 ms from the window's beginning; frames of 10 ms.
 * Errors    INVALID_ARG: a file of the folder that says something else than it must.
 * Lifetime  The tokenizer is borrowed until close.
 * Sources   Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (2022), section 2.3 and 4.5;
 *           the tokens as openai/whisper and transformers name them; segments as transformers' long-form generation cuts
 *           them (tests/unit/text/whisper_golden.h has its results).
 */
#ifndef NRD_TEXT_WHISPER_H
#define NRD_TEXT_WHISPER_H

#include "text/tokenizer.h"

enum { NRD_WHISPER_STEPS = 1500, NRD_WHISPER_FRAMES_PER_STEP = 2 };

typedef struct nrd_whisper nrd_whisper;

typedef struct nrd_whisper_language {
    const char *code, *name; /* "en", "english"; constants */
} nrd_whisper_language;

/* OpenAI's multilingual.tiktoken or gpt2.tiktoken as a tokenizer, with the tokens for tasks, languages (99; large-v3 and turbo, which
 * hear 128 mels, 100) and times. INVALID_ARG names the line; at most 16 MB. */
NRD_API nrd_error *nrd_whisper_tokenizer_open(nrd_tokenizer **out, const char *path, int32_t n_languages) NRD_MUST_USE;
NRD_API nrd_error *nrd_whisper_tokenizer_open_memory(nrd_tokenizer **out, const char *text, size_t n, int32_t n_languages) NRD_MUST_USE;

/* path: as for nrd_tokenizer_open; files beside the tokenizer are read: generation_config.json and
 * preprocessor_config.json. *out NULL without an error: it is no tokenizer of Whisper. */
NRD_API nrd_error *nrd_whisper_open(nrd_whisper **out, const nrd_tokenizer *t, const char *path) NRD_MUST_USE;
NRD_API void nrd_whisper_close(nrd_whisper *w); /* NULL is fine */

NRD_API int32_t nrd_whisper_n_mels(const nrd_whisper *w);
NRD_API bool nrd_whisper_is_multilingual(const nrd_whisper *w); /* else it hears English, and is not told so */
NRD_API int32_t nrd_whisper_max_tokens(const nrd_whisper *w);   /* of a prompt and its answer */
/* "<|notimestamps|>", behind which the times are; before it what the model expects in silence ("<|nospeech|>"; older folders name it
 * "<|nocaptions|>"), -1: nothing. */
NRD_API int32_t nrd_whisper_no_times_token(const nrd_whisper *w);
NRD_API int32_t nrd_whisper_no_speech_token(const nrd_whisper *w);
NRD_API int32_t nrd_whisper_max_first_time(const nrd_whisper *w); /* steps; -1: a window's first time may be any */
NRD_API bool nrd_whisper_is_time(const nrd_whisper *w, int32_t id);

/* By code or English name, in any case; -1: there is none, or the model has no token for it. */
NRD_API int nrd_whisper_find_language(const nrd_whisper *w, const char *name);
/* Of a language token; -1: it is none. */
NRD_API int nrd_whisper_language_of(const nrd_whisper *w, int32_t id);
/* i from 0 to nrd_whisper_n_languages() - 1; token -1: the model has none. */
NRD_API size_t nrd_whisper_n_languages(void);
NRD_API const nrd_whisper_language *nrd_whisper_language_at(int i);
NRD_API int32_t nrd_whisper_language_token(const nrd_whisper *w, int i);

typedef struct nrd_whisper_ask {
    const int32_t *previous; /* ids of text before this window; of them the last half of a context is used */
    size_t n_previous;
    int language; /* -1: none is named: what the model answers then is the language's token */
    bool translate, times;
} nrd_whisper_ask;
/* The decoder's prompt, appended. */
NRD_API nrd_error *nrd_whisper_prompt(const nrd_whisper *w, const nrd_whisper_ask *ask, nrd_ids *out) NRD_MUST_USE;

/* The place in a prompt of the token that a text starts with. */
NRD_API size_t nrd_whisper_start_of(const nrd_whisper *w, const nrd_ids *prompt);

/* Phrases that may not be said behind a prompt that ends with `last`, as bad_words_list takes them: [2, n], their ids and
 * where each ends, filled up with -1. These are suppress_tokens of generation_config.json, and begin_suppress_tokens
 * behind `last`. out is empty before, and afterwards where there are none. */
NRD_API nrd_error *nrd_whisper_bad_words(const nrd_whisper *w, int32_t last, nrd_ids *out) NRD_MUST_USE;

/* The text of ids without times and marks, appended. */
NRD_API nrd_error *nrd_whisper_text(const nrd_whisper *w, const int32_t *ids, size_t n, nrd_str *out) NRD_MUST_USE;

typedef struct nrd_whisper_segment {
    size_t from, n;      /* its ids, times among them */
    int32_t start, end;  /* steps */
} nrd_whisper_segment;
/* Cuts the ids of a window's answer, without end token, where two times follow each other. n_frames: how many of the window's
 * frames are sound. out: room for n + 1. *out_frames: where the next window begins, from this one's beginning; more than 0. */
NRD_API size_t nrd_whisper_segments(const nrd_whisper *w, const int32_t *ids, size_t n, int32_t n_frames,
                                    nrd_whisper_segment *out, int32_t *out_frames);

#endif
