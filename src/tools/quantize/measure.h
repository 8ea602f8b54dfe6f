/* SPDX-License-Identifier: Apache-2.0
 * tools/quantize/measure.h - what quantization changed in what the model says.
 *
 * Purpose   Perplexity of both models, the Kullback-Leibler divergence from the first to the second, and how often both
 *           would choose the same token. The two are never in memory together: of the first, each position's best
 *           NRD_QMEASURE_BEST tokens are kept, and all others as one, which makes the divergence a lower bound of that over
 *           all tokens (by the log sum inequality; the rest is small).
 * Owner     One thread calls.
 * Errors    What the executor says.
 */
#ifndef NRD_TOOLS_QUANTIZE_MEASURE_H
#define NRD_TOOLS_QUANTIZE_MEASURE_H

#include "base/error.h"
#include "nereid/executor.h"
#include "tools/quantize/texts.h"

#include <stdint.h>

enum { NRD_QMEASURE_BEST = 128 };

typedef struct nrd_qmeasure {
    const nrd_qtexts *texts;
    size_t n;              /* positions that have a next token */
    int32_t *ids;          /* [n, BEST] of the first model, owned */
    float *log_probs;      /* [n, BEST] */
    int32_t n_best;
    double log_sum[2];     /* of the next tokens' log probabilities, of each model */
    double divergence;     /* sum over positions */
    size_t n_same;         /* positions where both have the same best token */
    float *each;           /* [n] the divergence at each position, owned */
    float *next[2];        /* [n] log probabilities of the next tokens, of each model, owned */
} nrd_qmeasure;

nrd_error *nrd_qmeasure_init(nrd_qmeasure *m, const nrd_qtexts *texts) NRD_MUST_USE;
void nrd_qmeasure_fini(nrd_qmeasure *m);
/* An open model, with an adapter of it (0: none); label NULL: says nothing on the way; second: compared with the first, which was there before. */
nrd_error *nrd_qmeasure_read(nrd_qmeasure *m, nrd_exec *x, uint64_t lora_id, bool second, const char *label) NRD_MUST_USE;
/* The same, opened here on a device; second: compared with the first, which was there before. as_float: its weights are made
 * float32 first, where the CPU cannot multiply them. cache: its type; NONE: the device's own. */
nrd_error *nrd_qmeasure_run(nrd_qmeasure *m, const char *engine, bool second, bool as_float,
                             nrd_dtype cache, const char *device, int32_t n_threads) NRD_MUST_USE;

double nrd_qmeasure_perplexity(const nrd_qmeasure *m, bool second);

#endif
