/* SPDX-License-Identifier: Apache-2.0
 * text/generation.h - how the makers of a model with an encoder want its answers to be searched for.
 *
 * Purpose   What generation_config.json says beside the ways to draw a token (sampling.h), or config.json
 *           where there is no such file; and the values that hold where neither says anything.
 * Owner     Immutable, as the tokenizer is; any thread.
 * Units     Lengths count all tokens of the decoder, those that its text begins with and the end token too.
 * Sources   Hugging Face's GenerationConfig (names and meaning).
 */
#ifndef NRD_TEXT_GENERATION_H
#define NRD_TEXT_GENERATION_H

#include "text/tokenizer.h"

enum { NRD_GENERATION_MAX_BEAMS = 8, NRD_GENERATION_MAX_SUPPRESSED = 256 };

typedef struct nrd_generation {
    int32_t num_beams;             /* 1: no search; more than NRD_GENERATION_MAX_BEAMS are that many */
    double length_penalty;         /* 1 */
    int32_t early_stopping;        /* as nrd_sampling_config has it. 1: true; 0: false; 2: "never" */
    int32_t no_repeat_ngram_size;  /* 0: off */
    int32_t min_length, max_length;         /* 0: not said */
    int32_t min_new_tokens, max_new_tokens; /* they hold in place of the lengths; 0: not said */
    int32_t n_begin;               /* tokens that a text begins with: the start token, and a forced first one */
    bool do_sample;                /* tokens are drawn, and nothing is searched for */
    int32_t forced_eos_id;         /* the last token of max_length; -1: any */
    int32_t suppressed[NRD_GENERATION_MAX_SUPPRESSED], n_suppressed; /* tokens that are never chosen */
} nrd_generation;

/* The values of models that say nothing. */
#define NRD_GENERATION_BARE \
    ((nrd_generation){.num_beams = 1, .length_penalty = 1, .early_stopping = 0, .n_begin = 1, .forced_eos_id = -1})

/* What the model says; NULL: it has no encoder. Borrows from the tokenizer. */
NRD_API const nrd_generation *nrd_tokenizer_generation(const nrd_tokenizer *t);

/* The num_beams of a model whose files are in `dir`; 1 where they cannot be read. */
NRD_API int32_t nrd_generation_beams(const char *dir);

/* Of a text that begins with n tokens: new tokens at least, and at most (0: not said); the end token is one of them. */
NRD_API int32_t nrd_generation_min_new(const nrd_generation *g, int32_t n_begin);
NRD_API int32_t nrd_generation_max_new(const nrd_generation *g, int32_t n_begin);

#endif
