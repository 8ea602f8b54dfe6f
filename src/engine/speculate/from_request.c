/* SPDX-License-Identifier: Apache-2.0
 * The draft that came with a request: good for the first choice only, since it says what follows the prompt. */
#include "engine/speculate/proposer.h"

#include "base/mem.h"
#include "engine/sequence.h"
#include "engine/speculate/verify.h"

#include <string.h>

typedef struct given {
    nrd_proposer base;
    int32_t *ids;
    float *logits; /* [n, vocab]; NULL: none */
    int32_t n;
} given;

static int32_t propose(nrd_proposer *p, const nrd_seq *q, int32_t *out, int32_t max)
{
    const given *g = (const given *)(void *)p;
    if (nrd_seq_n_generated(q) > 0) {
        return 0;
    }
    int32_t n = g->n < max ? g->n : max;
    memcpy(out, g->ids, (size_t)n * sizeof *out);
    return n;
}

static const float *logits_of(const nrd_proposer *p, int32_t i)
{
    const given *g = (const given *)(const void *)p;
    return g->logits ? g->logits + (size_t)i * (size_t)p->vocab : NULL;
}

static void hear(nrd_proposer *p, const nrd_draft_outcome *o)
{
    (void)p;
    (void)o;
}

static void given_free(nrd_proposer *p)
{
    given *g = (given *)(void *)p;
    free(g->ids);
    free(g->logits);
    free(p->scratch);
    free(g);
}

nrd_error *nrd_proposer_of_request(nrd_proposer **out, const int32_t *ids, int32_t n, const float *logits,
                                   int32_t vocab, float threshold)
{
    nrd_error *err = NULL;
    given *g = NULL;

    *out = NULL;
    NRD_NEW_GOTO(g, 1, err, fail);
    g->base = (nrd_proposer){
        .propose = propose,
        .logits = logits_of,
        .hear = hear,
        .free = given_free,
        .rate = 2,
        .vocab = vocab,
        .threshold = threshold,
    };
    g->n = n;
    NRD_NEW_GOTO(g->ids, n, err, fail);
    memcpy(g->ids, ids, (size_t)n * sizeof *ids);
    if (logits) {
        NRD_NEW_GOTO(g->logits, (size_t)n * (size_t)vocab, err, fail);
        memcpy(g->logits, logits, (size_t)n * (size_t)vocab * sizeof *logits);
        g->base.scratch = malloc(nrd_speculate_scratch_bytes(vocab));
        if (!g->base.scratch) {
            err = nrd_error_no_memory();
            goto fail;
        }
    }
    *out = &g->base;
    return NULL;

fail:
    if (g) {
        given_free(&g->base);
    }
    return err;
}
