/* SPDX-License-Identifier: Apache-2.0
 * base/dtype.h - sizes and names of element types, conversions of single numbers.
 * Stateless, any thread. Block layouts: GGUF. */
#ifndef NRD_BASE_DTYPE_H
#define NRD_BASE_DTYPE_H

#include "nereid/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

const char *nrd_dtype_name(nrd_dtype t);           /* "float32", "bfloat16", "q4_1", … */
bool nrd_dtype_parse(const char *name, nrd_dtype *out); /* also "fp16", "F32", "Q4_1", "BF16" … */
int nrd_dtype_block(nrd_dtype t);                  /* elements in a block; 1 for plain types */
size_t nrd_dtype_block_bytes(nrd_dtype t);         /* bytes of one block; 0 for unknown types */
bool nrd_dtype_is_quant(nrd_dtype t);              /* the block formats that every device multiplies */
bool nrd_dtype_is_packed(nrd_dtype t);             /* those that GPUs multiply and other devices unpack */
/* What a block format that only files have is read as: ternary blocks as Q2_K, which has the same numbers (nrd_ternary_row);
 * IQ1 to IQ3 as Q8_0, off by at most 1/254 of a block's largest. Every other type: itself. */
nrd_dtype nrd_dtype_computed(nrd_dtype t);
static inline bool nrd_dtype_is_block(nrd_dtype t) /* either */
{
    return nrd_dtype_is_quant(nrd_dtype_computed(t));
}
/* Bytes of n elements; false when n is no multiple of the block or the size overflows. */
bool nrd_dtype_bytes(nrd_dtype t, uint64_t n, size_t *out);

/* What the four bits of IQ4_NL and IQ4_XS stand for: a fact of the format. */
#define NRD_IQ4_VALUES {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

/* Twice what the four bits of MXFP4 (E2M1) stand for. */
#define NRD_MXFP4_VALUES {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}

/* What the four bits of NF4 stand for, times the scale: quantiles of the normal distribution, as bitsandbytes has them. */
#define NRD_NF4_VALUES                                                                                                               \
    {-1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f, -0.18477343022823334f,         \
     -0.09105003625154495f, 0.0f, 0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,            \
     0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f}

/* Twelve times what the four bits of bitsandbytes' FP4 stand for: exact in bfloat16. */
#define NRD_FP4_VALUES {0, 0.0625f, 8, 12, 4, 6, 2, 3, 0, -0.0625f, -8, -12, -4, -6, -2, -3}

/* Half of an E8M0 scale, 2^(e - 128), as bfloat16, which holds all of them. */
static inline uint16_t nrd_mxfp4_half_scale(uint8_t e)
{
    const int bits = e > 1 ? (e - 1) << 7 : e ? 0x40 : 0x20;
    return (uint16_t)bits;
}

static inline float nrd_bf16_to_f32(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline uint16_t nrd_f32_to_bf16(float f) /* round to nearest even; NaN stays NaN */
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)((u >> 16) | 0x40u);
    }
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

float nrd_f16_to_f32(uint16_t h);
uint16_t nrd_f32_to_f16(float f);
float nrd_f8e4m3_to_f32(uint8_t v);
uint8_t nrd_f32_to_f8e4m3(float f); /* saturates at 448 */

/* Plain C definition of every format: row of n elements (multiple of the block).
 * Dequantize: any type but I*, U8, BOOL. Quantize: F16, BF16, F8 and every Q* type. */
bool nrd_dequantize_row(nrd_dtype t, const void *src, float *dst, int64_t n);
bool nrd_quantize_row(nrd_dtype t, const float *src, void *dst, int64_t n);
/* n numbers as I8 or F8_E4M3, a byte each; returns what these are multiplied by: the largest magnitude over the largest code. */
float nrd_quantize_row_scaled(nrd_dtype t, const float *src, uint8_t *dst, int64_t n);

/* n numbers of TQ1_0 or TQ2_0 (a multiple of 256) as Q2_K, without loss; false: another type or another n. */
bool nrd_ternary_row(nrd_dtype t, const void *src, void *dst, int64_t n);
/* A block of a type that only files have: 256 numbers. Called by nrd_dequantize_row. */
void nrd_dequantize_stored(nrd_dtype t, const uint8_t *block, float *dst);
/* A block of a packed type (nrd_dtype_is_packed). Called by nrd_dequantize_row and nrd_quantize_row. */
void nrd_dequantize_packed(nrd_dtype t, const uint8_t *block, float *dst);
void nrd_quantize_packed(nrd_dtype t, const float *src, uint8_t *block);

#endif
