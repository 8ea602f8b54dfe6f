/* SPDX-License-Identifier: Apache-2.0
 * device/ops/layouts.h - how the CPU device lays out rows of activations as integers, and packed weights. */
#ifndef NRD_DEVICE_OPS_LAYOUTS_H
#define NRD_DEVICE_OPS_LAYOUTS_H

#include "nereid/dtype.h"

#include <stddef.h>
#include <stdint.h>

/* ACT_Q8: n = ceil(cols / 32) blocks; int8 q[32 n] (padding zero), float d[n], then int16 sums of
 * each half block, sum[2 n]; x = d q. Rows are padded to 64 bytes so that they stay aligned. */
enum { NRD_ACT_BLOCK = 32 };
static inline int64_t nrd_act_q8_blocks(int64_t cols)
{
    return (cols + NRD_ACT_BLOCK - 1) / NRD_ACT_BLOCK;
}
static inline size_t nrd_act_q8_row_bytes(int64_t cols)
{
    return ((size_t)nrd_act_q8_blocks(cols) * 40 + 63) & ~(size_t)63;
}

/* Packed for matrix-vector and matrix-matrix products: tiles of 16 rows. Inside a tile, block after
 * block along k; in a block, scales of the 16 rows first, then integers in groups of four k: byte
 * p of a 64-byte vector belongs to row p / 4 and k = 4 g + p % 4 of group g. device/ops/pack.c has
 * every type's bytes. Rows are padded to 16 and columns to the block with zeros. */
enum { NRD_LAYOUT_TILE16 = 16 };

size_t nrd_tile16_bytes(nrd_dtype t, int64_t cols); /* one tile; 0: type not packed */

#endif
