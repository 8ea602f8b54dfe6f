/* SPDX-License-Identifier: Apache-2.0
 * nereid/dtype.h - element types of tensors, activations and weights.
 *
 * Purpose   One list for checkpoints, engine files and devices. Block formats (Q*) are those of
 *           GGUF (ggml-org/ggml docs/gguf.md); a row's length must be a multiple of the block.
 * Lifetime  Values are written to engine files: never renumber.
 */
#ifndef NEREID_DTYPE_H
#define NEREID_DTYPE_H

typedef enum nrd_dtype {
    NRD_DTYPE_NONE = 0,
    NRD_DTYPE_F32 = 1,
    NRD_DTYPE_F16 = 2,
    NRD_DTYPE_BF16 = 3,
    NRD_DTYPE_F8_E4M3 = 4,
    NRD_DTYPE_I8 = 5, /* weight-only int8: one f32 scale per output row (nrd_weight.scales) */
    NRD_DTYPE_I32 = 6,
    NRD_DTYPE_I64 = 7,
    NRD_DTYPE_U8 = 8,
    NRD_DTYPE_BOOL = 9,
    NRD_DTYPE_F64 = 10,
    NRD_DTYPE_I16 = 11,
    NRD_DTYPE_Q4_0 = 20,
    NRD_DTYPE_Q4_1 = 21,
    NRD_DTYPE_Q5_0 = 22,
    NRD_DTYPE_Q5_1 = 23,
    NRD_DTYPE_Q8_0 = 24,
    NRD_DTYPE_Q2_K = 25,
    NRD_DTYPE_Q3_K = 26,
    NRD_DTYPE_Q4_K = 27,
    NRD_DTYPE_Q5_K = 28,
    NRD_DTYPE_Q6_K = 29,
    NRD_DTYPE_IQ4_NL = 30, /* four bits name one of 16 values that lie closer around zero */
    NRD_DTYPE_IQ4_XS = 31,
    NRD_DTYPE_MXFP4 = 32,  /* E2M1 numbers, 32 with an E8M0 scale (Open Compute Project, Microscaling Formats, 2023) */
    /* Of GGUF files only: what is read becomes another type (base/dtype.h, nrd_dtype_computed). */
    NRD_DTYPE_TQ1_0 = 33, /* -1, 0, 1, with a scale for 256 */
    NRD_DTYPE_TQ2_0 = 34,
    NRD_DTYPE_IQ1_S = 35, /* numbers of vectors in a table of the format */
    NRD_DTYPE_IQ1_M = 36,
    NRD_DTYPE_IQ2_XXS = 37,
    NRD_DTYPE_IQ2_XS = 38,
    NRD_DTYPE_IQ2_S = 39,
    /* Activations quantized per block of 32 by the CPU device; layout private to the device. */
    NRD_DTYPE_ACT_Q8 = 40,
    NRD_DTYPE_IQ3_XXS = 41, /* of files only, as those above */
    NRD_DTYPE_IQ3_S = 42,
    /* Of checkpoints and of engines for GPUs, whose products take them as they are; elsewhere they are unpacked. */
    NRD_DTYPE_F8_B128 = 43, /* a float32 scale, then 128 E4M3 numbers: a row's part of blocks of 128 columns */
    NRD_DTYPE_MXFP8 = 44,   /* an E8M0 scale, then 32 E4M3 numbers (Open Compute Project, Microscaling Formats, 2023) */
    NRD_DTYPE_NVFP4 = 45,   /* a float32 for the whole row, four E4M3 scales of 16 numbers, then 64 E2M1 numbers */
    NRD_DTYPE_NF4 = 46,     /* a float32 scale, then 64 places in a table (Dettmers et al., QLoRA, 2023) */
    NRD_DTYPE_FP4 = 47,     /* likewise, with bitsandbytes' other table; the scale is a twelfth of the largest number */
    NRD_DTYPE_Q8_1 = 48, /* of checkpoints and engines: d and m in half precision, then 32 signed bytes; d q + m. Not ggml's Q8_1 */
    NRD_DTYPE_COUNT_ = 64,
} nrd_dtype;

#endif
