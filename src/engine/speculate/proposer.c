/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/speculate/proposer.h"

/* How fast what is believed changes: the first right drafts of a text make the next ones longer. */
static const float PER_TOKEN = 0.15f;

void nrd_proposer_learn(float *rate, int32_t n_proposed, int32_t n_accepted)
{
    for (int32_t i = 0; i < n_proposed && i <= n_accepted; i++) {
        *rate += ((i < n_accepted ? 1.0f : 0.0f) - *rate) * PER_TOKEN;
    }
}

void nrd_proposer_free(nrd_proposer *p)
{
    if (p) {
        p->free(p);
    }
}
