/* SPDX-License-Identifier: Apache-2.0
 * tools/quantize/pack_internal.h - what the layouts of packed modules share. */
#ifndef NRD_TOOLS_QUANTIZE_PACK_INTERNAL_H
#define NRD_TOOLS_QUANTIZE_PACK_INTERNAL_H

#include "tools/quantize/pack.h"

/* Tensor `module`.`part` [d0, d1] (d1 < 0: [d0]) as t[*n]; takes data always. */
nrd_error *nrd_qpack_add(nrd_qtensor *t, int *n, const char *module, const char *part, nrd_dtype dtype, int64_t d0, int64_t d1,
                         void *data) NRD_MUST_USE;
/* Code `at` of a row whose words lie `stride` apart, beginning with word `first`; bits: 4 or 8. */
void nrd_qpack_bits(uint32_t *words, int64_t first, int64_t stride, int64_t at, int bits, unsigned code);

#endif
