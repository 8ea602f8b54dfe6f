/* SPDX-License-Identifier: Apache-2.0
 * engine/decode/result.h - what a step chose, as the decoder reads it.
 *
 * Lifetime  The arrays are the runner's and are valid until the buffer's next nrd_runner_submit.
 */
#ifndef NRD_ENGINE_DECODE_RESULT_H
#define NRD_ENGINE_DECODE_RESULT_H

#include <stdbool.h>
#include <stdint.h>

/* One element for each row of the step's plan. */
typedef struct nrd_step_result {
    const int32_t *ids;          /* NRD_SAMPLE_NO_NUMBERS: the row has no logit that is a number */
    const float *log_probs;      /* plain */
    const float *log_probs_norm; /* within the candidate set */
    int32_t n_top;               /* stride of the two below; 0: none */
    const int32_t *top_ids;
    const float *top_log_probs;
    bool normalize; /* report log_probs_norm */
    const float *logits; /* [rows, logits_stride] host, only rows of sequences with want_logit_rows; NULL: none */
    int64_t logits_stride;
    bool was_recorded; /* the step was recorded as a graph, or will be when its shape comes again: the next one takes less time */
    const bool *no_choice; /* true: this row's mask was not ready, its token has no meaning; NULL: all have */
} nrd_step_result;

#endif
