/* SPDX-License-Identifier: Apache-2.0
 * frontends/common/classify.h - the classification extension: the k largest values of an output.
 *
 * Purpose   Turns a row of numbers into strings "value:index[:label]", largest first.
 * Owner     Loop thread; stateless.
 * Units     k in classes; rows are the batch.
 * Errors    INVALID_ARG for types without an order; what the core says about labels.
 * Sources   Triton's classification extension.
 */
#ifndef NRD_FRONTENDS_COMMON_CLASSIFY_H
#define NRD_FRONTENDS_COMMON_CLASSIFY_H

#include "base/error.h"
#include "base/str.h"
#include "triton/core/tritonserver.h"

/* Appends the results of all rows as BYTES elements. *out_k: classes per row. `index` is the
 * output's place in the response, for its labels. */
nrd_error *nrd_classify(nrd_str *out, TRITONSERVER_InferenceResponse *response, uint32_t index,
                             TRITONSERVER_DataType type, const void *data, size_t size_bytes,
                             size_t n_rows, uint64_t k, size_t *out_k) NRD_MUST_USE;

#endif
