/* SPDX-License-Identifier: Apache-2.0
 * attention_decode.cuh - which sequences attention_decode takes. */
#ifndef NRD_OPS_ATTENTION_DECODE_CUH
#define NRD_OPS_ATTENTION_DECODE_CUH

#include "device/cuda/cuda_dev.cuh"

/* Without n_single: those with at most so many rows (new tokens x heads of a KV head). DECODE_ROWS, or, where all of them are
 * drafts or token trees, as many as the longest has. */
int nrd_cuda_attention_decode_rows(const nrd_attention_args *a);

enum { RING_WARPS = 12 }; /* of a block of attention_decode_ring.cu */

#endif
