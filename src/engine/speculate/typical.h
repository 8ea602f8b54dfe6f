/* SPDX-License-Identifier: Apache-2.0
 * engine/speculate/typical.h - typical acceptance: a guess stays where it is likely enough for the model, not only where it is drawn.
 *
 * Purpose   With the model's distribution p behind the text, at the request's temperature, a token x stays where
 *           p(x) >= min(threshold, alpha * exp(-H(p))), H the entropy. Of a tree the longest path stays, of several the first. So drafts are
 *           longer where the model is undecided; what is said no longer has the model's distribution.
 * Owner     Pure functions.
 * Sources   Cai et al., "Medusa", ICML 2024, section 2.3.1.
 */
#ifndef NRD_ENGINE_SPECULATE_TYPICAL_H
#define NRD_ENGINE_SPECULATE_TYPICAL_H

#include "engine/speculate/tree.h"

#include <stddef.h>

typedef struct nrd_typical {
    float threshold, alpha; /* threshold 0: off */
    float temperature;
} nrd_typical;

/* logits: [1 + n, stride] behind the root and behind each node, of which the first `vocab` count; ids: [n], parent: [n] or NULL, a chain. Writes
 * for each node how many nodes from it on downwards stay, itself counted; 0: it does not. */
void nrd_typical_lengths(const nrd_typical *t, const float *logits, size_t stride, int32_t vocab, const int32_t *ids, const int16_t *parent,
                         int32_t n, int32_t *out_lengths);
/* The child of `node` (-1: the root) on the longest path; -1: none stays. */
int32_t nrd_typical_next(const int32_t *lengths, const int16_t *parent, int32_t n, int32_t node);
/* log p(x) at a temperature. */
float nrd_typical_log_prob(const float *logits, int32_t vocab, float temperature, int32_t token);

#endif
