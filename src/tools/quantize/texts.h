/* SPDX-License-Identifier: Apache-2.0
 * tools/quantize/texts.h - texts as windows of tokens, to calibrate with and to measure on.
 *
 * Purpose   A plain text is cut into windows one after the other; in a file of JSON lines (.jsonl, .json) each line is a
 *           text of its own. Of more windows than are wanted some are drawn, the same for the same seed.
 * Owner     One thread.
 * Limits    1 GiB of text.
 * Errors    INVALID_ARG names the file and the line; also where no text is left.
 */
#ifndef NRD_TOOLS_QUANTIZE_TEXTS_H
#define NRD_TOOLS_QUANTIZE_TEXTS_H

#include "base/error.h"
#include "text/tokenizer.h"

#include <stddef.h>
#include <stdint.h>

typedef struct nrd_qtexts {
    nrd_ids ids;     /* of all windows */
    size_t *starts;  /* [n + 1] */
    size_t n;
} nrd_qtexts;

/* The texts that are built in: one to calibrate with, one to measure on. */
extern const char nrd_qtext_calibration[], nrd_qtext_evaluation[];

/* path NULL: the text `builtin`. At most max_windows of at most `length` tokens. */
nrd_error *nrd_qtexts_open(nrd_qtexts *out, const nrd_tokenizer *t, const char *path, const char *builtin,
                           size_t max_windows, size_t length, uint64_t seed) NRD_MUST_USE;
void nrd_qtexts_close(nrd_qtexts *q);
int32_t nrd_qtexts_longest(const nrd_qtexts *q); /* tokens of a window */

#endif
