/* SPDX-License-Identifier: Apache-2.0
 * tools/eval/needle.h - whether a model finds one sentence in a long text.
 *
 * Purpose   A number is told somewhere in a text and asked for at its end. It counts as found where each of its tokens is the
 *           likeliest one, which is what a greedy answer would be. Says what a type of the KV cache costs at each length.
 * Owner     One thread.
 * Errors    INVALID_ARG: a length that the model does not take, or that has no room for the question.
 */
#ifndef NRD_TOOLS_EVAL_NEEDLE_H
#define NRD_TOOLS_EVAL_NEEDLE_H

#include "tools/eval/continuation.h"

enum { NRD_NEEDLE_MAX_SAMPLES = 1000 };

typedef struct nrd_needle {
    int32_t length, n_samples; /* tokens in all; places of the needle, from the beginning to the end */
    int32_t n_found;
    double log_prob; /* of a token of the number, mean */
    bool found[NRD_NEEDLE_MAX_SAMPLES];
} nrd_needle;

/* hay: a text that is repeated until it fills `length`. The same `seed` asks the same. out->length and n_samples say what is
 * wanted. */
nrd_error *nrd_needle_run(const nrd_eval_model *m, const char *hay, size_t n_hay, uint64_t seed, nrd_needle *out) NRD_MUST_USE;

#endif
