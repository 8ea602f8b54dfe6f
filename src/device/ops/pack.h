/* SPDX-License-Identifier: Apache-2.0
 * device/ops/pack.h - the numbers that describe a packed block format. See pack.c for the bytes. */
#ifndef NRD_DEVICE_OPS_PACK_H
#define NRD_DEVICE_OPS_PACK_H

#include "nereid/dtype.h"

typedef struct nrd_tile16_format {
    nrd_dtype type;
    int k;           /* 32, or 256 for a super block of 8 sub blocks */
    int head_bytes;  /* of a super block */
    int scale_bytes; /* of a sub block */
    int hi_bytes, lo_bytes;
    int offset;      /* stored integer - offset = value */
} nrd_tile16_format;

const nrd_tile16_format *nrd_tile16_format_of(nrd_dtype t); /* NULL: not a block format */

#endif
