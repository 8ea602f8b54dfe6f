/* SPDX-License-Identifier: Apache-2.0
 * tools/quantize/block.h - columns that are rounded together, before others are told.
 *
 * Owner     Pure functions, any thread.
 */
#ifndef NRD_TOOLS_QUANTIZE_BLOCK_H
#define NRD_TOOLS_QUANTIZE_BLOCK_H

#include <stdint.h>

/* How many columns other columns are told of at once. */
enum { NRD_QBLOCK = 128 };

/* Rows that are taken out of a block [NRD_QBLOCK or fewer][rows] at a time, since 16 neighbours are one line of the cache. */
enum { NRD_QBLOCK_ROWS = 16 };
typedef float nrd_qblock_tile[NRD_QBLOCK_ROWS][NRD_QBLOCK];
/* n rows from `row` on of width columns; put writes them. */
void nrd_qblock_take(const float *block, int64_t rows, int64_t row, int64_t n, int64_t width, nrd_qblock_tile out);
void nrd_qblock_put(nrd_qblock_tile x, int64_t rows, int64_t row, int64_t n, int64_t width, float *block);

/* y += by * x, of NRD_QBLOCK numbers. */
typedef void nrd_qblock_add(float *restrict y, const float *restrict x, float by);
nrd_qblock_add *nrd_qblock_adder(void);

#endif
