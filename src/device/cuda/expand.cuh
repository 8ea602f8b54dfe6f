/* SPDX-License-Identifier: Apache-2.0
 * expand.cuh - conversions of weights on the device, at load. See ops/expand.cu. */
#ifndef NRD_CUDA_EXPAND_CUH
#define NRD_CUDA_EXPAND_CUH

#include "device/cuda/cuda_dev.cuh"

/* rows x cols elements of `from` at src (device memory) -> `to` (BF16, F16 or F32) at dst. With
 * `scales` [rows] each row is multiplied by its own, else by `scale`. */
nrd_error *nrd_cuda_expand_rows(nrd_stream *s, nrd_dtype from, int block, int block_bytes, const void *src,
                       const float *scales, float scale, nrd_dtype to, void *dst, int64_t rows,
                       int64_t cols);
/* dst[i] = (src ? src[i] : 1) * scale */
nrd_error *nrd_cuda_expand_scales(nrd_stream *s, float *dst, const float *src, float scale, int64_t rows);

#endif
