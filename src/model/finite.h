/* SPDX-License-Identifier: Apache-2.0
 * model/finite.h - whether numbers of files are numbers.
 *
 * Purpose   A NaN in a weight is not always seen in the answers: a softmax or a maximum can swallow it, and they are only wrong.
 *           So what is read of a file is looked at once, where it is copied or packed.
 * Owner     Stateless, any thread.
 */
#ifndef NRD_MODEL_FINITE_H
#define NRD_MODEL_FINITE_H

#include "base/error.h"
#include "model/source.h"
#include "nereid/dtype.h"

#include <stdint.h>

/* Which of the n numbers at `data` (any alignment; n: whole blocks) is the first that is NaN or infinite; n: none is. Of a block
 * format only scales are looked at, and the first number of a block with a bad one is given. Types without such numbers have none. */
uint64_t nrd_find_not_finite(nrd_dtype t, const void *data, uint64_t n);

/* INVALID_ARG: one of the n numbers at `data`, which are those from `first` on of what the file calls `name`, is NaN or infinite. */
nrd_error *nrd_check_finite(const char *name, nrd_dtype t, const void *data, uint64_t first,
                            uint64_t n) NRD_MUST_USE;
/* Of rows [row0, row0 + n_rows) of the tensor's first dimension; a scalar is one row. */
nrd_error *nrd_src_tensor_check_finite(const nrd_src_tensor *t, int64_t row0,
                                       int64_t n_rows) NRD_MUST_USE;

#endif
