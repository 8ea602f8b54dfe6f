/* SPDX-License-Identifier: Apache-2.0
 * tools/quantize/report.h - what a quantization cost, as report.json and report.html.
 *
 * Purpose   The same figures for programs and for people. The page is one file: no links, no scripts.
 * Owner     One thread.
 * Errors    As the files say.
 */
#ifndef NRD_TOOLS_QUANTIZE_REPORT_H
#define NRD_TOOLS_QUANTIZE_REPORT_H

#include "base/error.h"
#include "tools/quantize/folder.h"
#include "tools/quantize/measure.h"

#include <stdint.h>

typedef struct nrd_qreport {
    const char *model, *qformat, *settings; /* settings: an object of JSON */
    uint64_t bytes_before, bytes_after;
    uint64_t n_weights; /* numbers of all tensors of the model */
    const char *why_left; /* why modules stay that could be quantized */
    uint64_t token_bytes_before, token_bytes_after; /* speed.h; 0: no engine was made */
    size_t calibration_tokens; /* 0: nothing was calibrated */
    double seconds;
    const nrd_qmeasure *measured; /* NULL: nothing was */
} nrd_qreport;

/* What a layer's file is noted with: {"modules": [{"name": …, "error": …}, …]}, and scales of the cache. */
void nrd_qreport_note(nrd_str *out, const nrd_qresult *r);
/* Needs the notes of all layers in the folder. */
nrd_error *nrd_qreport_write(const nrd_qreport *r, const char *dir, const nrd_qfolder *f, int32_t n_layers) NRD_MUST_USE;

#endif
