/* SPDX-License-Identifier: Apache-2.0
 * model/spec_range.h - numbers of a specification within their limits.
 *
 * Errors    INVALID_ARG names the field.
 */
#ifndef NRD_MODEL_SPEC_RANGE_H
#define NRD_MODEL_SPEC_RANGE_H

#include "base/error.h"

#include <stdint.h>

NRD_MUST_USE static inline nrd_error *nrd_spec_in_range(const char *field, int64_t v, int64_t low, int64_t high)
{
    return v >= low && v <= high ? NULL
                                 : nrd_errorf(NRD_ERR_INVALID_ARG, "%s must be between %lld and %lld, got %lld", field,
                                              (long long)low, (long long)high, (long long)v);
}

#endif
