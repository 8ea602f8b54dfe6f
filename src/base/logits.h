/* SPDX-License-Identifier: Apache-2.0
 * base/logits.h - what is asked of a row of logits: the logarithm of its softmax's sum, and its largest numbers.
 *
 * Purpose   Scores of prompts and the measures of `nereid eval` and `nereid quantize` read each row of a vocabulary; by vectors,
 *           so that they do not take as long as the model.
 * Owner     Any thread.
 */
#ifndef NRD_BASE_LOGITS_H
#define NRD_BASE_LOGITS_H

#include <stdint.h>

/* log(sum of e^logits[i]), n at least 1; error below 1e-6. */
double nrd_log_sum_exp(const float *logits, int32_t n);
/* ids[k] of the k largest of x[n], largest first, equal ones by their places; k is 1 to n. */
void nrd_best_of(const float *x, int32_t n, int32_t k, int32_t *ids);

#endif
