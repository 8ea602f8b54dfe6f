/* SPDX-License-Identifier: Apache-2.0
 * text/sampling.h - how the makers of a model want its next token to be chosen.
 *
 * Purpose   What generation_config.json beside a tokenizer, or general.sampling.* in the metadata of a
 *           GGUF file, says; and the values that hold where a model says nothing.
 * Owner     Immutable, as the tokenizer is; any thread.
 * Sources   Hugging Face's GenerationConfig (names and meaning); llama.cpp for the GGUF keys and for
 *           the general values, which suit models of every size.
 */
#ifndef NRD_TEXT_SAMPLING_H
#define NRD_TEXT_SAMPLING_H

#include "text/tokenizer.h"

typedef struct nrd_sampling {
    double temperature;        /* 0: the most probable token */
    double top_p;              /* 0..1; 1: off */
    double min_p;              /* 0..1; 0: off */
    double repetition_penalty; /* 1: off */
    int32_t top_k;             /* 0: off */
} nrd_sampling;

/* Where a model says nothing, in the order of the fields. */
#define NRD_SAMPLING_GENERAL ((nrd_sampling){0.8, 0.95, 0.05, 1, 40})
/* The defaults of OpenAI's API: the whole vocabulary as the model weighs it. */
#define NRD_SAMPLING_BARE ((nrd_sampling){1, 1, 0, 1, 0})

/* What the model says. If it names temperature, top_k, top_p or min_p, those of them that it does not
 * name are off: its makers chose the set. If it names none, the general values hold. With an encoder they hold
 * only beside "do_sample": true; else it is the most probable token, as a translation is not to be drawn. */
NRD_API nrd_sampling nrd_tokenizer_sampling(const nrd_tokenizer *t);

#endif
