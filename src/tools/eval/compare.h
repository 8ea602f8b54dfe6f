/* SPDX-License-Identifier: Apache-2.0
 * tools/eval/compare.h - what two models say of the same text, as lines or as JSON.
 *
 * Owner     Pure functions, any thread.
 */
#ifndef NRD_TOOLS_EVAL_COMPARE_H
#define NRD_TOOLS_EVAL_COMPARE_H

#include "base/str.h"
#include "tools/quantize/measure.h"

/* m: of both models. n_worst: positions that are shown, those with the largest divergence. */
nrd_error *nrd_eval_comparison(const nrd_qmeasure *m, const nrd_tokenizer *t, const char *first, const char *second,
                               int32_t n_worst, bool as_json, nrd_str *out) NRD_MUST_USE;

#endif
