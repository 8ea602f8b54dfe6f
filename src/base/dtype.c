/* SPDX-License-Identifier: Apache-2.0
 * The table of element types (name, block, bytes of a block), and the conversion of single numbers
 * between float32 and the 16-bit and 8-bit types, and rows of those with one scale. Used by every part that reads weights. */
#include "base/dtype.h"

#include <ctype.h>
#include <math.h>
#include <stdint.h>
#include <strings.h>

/* One row per type. Block sizes of the Q* formats: GGUF. ACT_Q8 has no size here: its layout is
 * the device's own affair (device/ops/ops.h). */
static const struct {
    nrd_dtype type;
    const char *name;
    const char *alias[3];
    int block;
    int block_bytes;
} table[] = {
    {NRD_DTYPE_F32, "float32", {"fp32", "f32", "float"}, 1, 4},
    {NRD_DTYPE_F16, "float16", {"fp16", "f16", "half"}, 1, 2},
    {NRD_DTYPE_BF16, "bfloat16", {"bf16", NULL, NULL}, 1, 2},
    {NRD_DTYPE_F8_E4M3, "fp8", {"f8_e4m3", "fp8_e4m3", "float8_e4m3fn"}, 1, 1},
    {NRD_DTYPE_I8, "int8", {"i8", NULL, NULL}, 1, 1},
    {NRD_DTYPE_I32, "int32", {"i32", NULL, NULL}, 1, 4},
    {NRD_DTYPE_I64, "int64", {"i64", NULL, NULL}, 1, 8},
    {NRD_DTYPE_U8, "uint8", {"u8", NULL, NULL}, 1, 1},
    {NRD_DTYPE_BOOL, "bool", {NULL, NULL, NULL}, 1, 1},
    {NRD_DTYPE_F64, "float64", {"fp64", "f64", "double"}, 1, 8},
    {NRD_DTYPE_I16, "int16", {"i16", NULL, NULL}, 1, 2},
    {NRD_DTYPE_Q4_0, "q4_0", {NULL, NULL, NULL}, 32, 18},
    {NRD_DTYPE_Q4_1, "q4_1", {NULL, NULL, NULL}, 32, 20},
    {NRD_DTYPE_Q5_0, "q5_0", {NULL, NULL, NULL}, 32, 22},
    {NRD_DTYPE_Q5_1, "q5_1", {NULL, NULL, NULL}, 32, 24},
    {NRD_DTYPE_Q8_0, "q8_0", {NULL, NULL, NULL}, 32, 34},
    {NRD_DTYPE_Q8_1, "q8_1", {NULL, NULL, NULL}, 32, 36},
    {NRD_DTYPE_Q2_K, "q2_k", {NULL, NULL, NULL}, 256, 84},
    {NRD_DTYPE_Q3_K, "q3_k", {NULL, NULL, NULL}, 256, 110},
    {NRD_DTYPE_Q4_K, "q4_k", {NULL, NULL, NULL}, 256, 144},
    {NRD_DTYPE_Q5_K, "q5_k", {NULL, NULL, NULL}, 256, 176},
    {NRD_DTYPE_Q6_K, "q6_k", {NULL, NULL, NULL}, 256, 210},
    {NRD_DTYPE_IQ4_NL, "iq4_nl", {NULL, NULL, NULL}, 32, 18},
    {NRD_DTYPE_IQ4_XS, "iq4_xs", {NULL, NULL, NULL}, 256, 136},
    {NRD_DTYPE_MXFP4, "mxfp4", {NULL, NULL, NULL}, 32, 17},
    {NRD_DTYPE_TQ1_0, "tq1_0", {NULL, NULL, NULL}, 256, 54},
    {NRD_DTYPE_TQ2_0, "tq2_0", {NULL, NULL, NULL}, 256, 66},
    {NRD_DTYPE_IQ1_S, "iq1_s", {NULL, NULL, NULL}, 256, 50},
    {NRD_DTYPE_IQ1_M, "iq1_m", {NULL, NULL, NULL}, 256, 56},
    {NRD_DTYPE_IQ2_XXS, "iq2_xxs", {NULL, NULL, NULL}, 256, 66},
    {NRD_DTYPE_IQ2_XS, "iq2_xs", {NULL, NULL, NULL}, 256, 74},
    {NRD_DTYPE_IQ2_S, "iq2_s", {NULL, NULL, NULL}, 256, 82},
    {NRD_DTYPE_IQ3_XXS, "iq3_xxs", {NULL, NULL, NULL}, 256, 98},
    {NRD_DTYPE_IQ3_S, "iq3_s", {NULL, NULL, NULL}, 256, 110},
    {NRD_DTYPE_F8_B128, "fp8_b128", {NULL, NULL, NULL}, 128, 132},
    {NRD_DTYPE_MXFP8, "mxfp8", {NULL, NULL, NULL}, 32, 33},
    {NRD_DTYPE_NVFP4, "nvfp4", {NULL, NULL, NULL}, 64, 40},
    {NRD_DTYPE_NF4, "nf4", {NULL, NULL, NULL}, 64, 36},
    {NRD_DTYPE_FP4, "fp4", {NULL, NULL, NULL}, 64, 36},
};
enum { TABLE_N = (int)(sizeof table / sizeof table[0]) };

static int find(nrd_dtype t)
{
    for (int i = 0; i < TABLE_N; i++) {
        if (table[i].type == t) {
            return i;
        }
    }
    return -1;
}

const char *nrd_dtype_name(nrd_dtype t)
{
    int i = find(t);
    if (i >= 0) {
        return table[i].name;
    }
    return t == NRD_DTYPE_ACT_Q8 ? "act_q8" : t == NRD_DTYPE_NONE ? "none" : "unknown";
}

bool nrd_dtype_parse(const char *name, nrd_dtype *out)
{
    for (int i = 0; i < TABLE_N; i++) {
        bool hit = strcasecmp(name, table[i].name) == 0;
        for (int a = 0; a < 3 && table[i].alias[a]; a++) {
            hit = hit || strcasecmp(name, table[i].alias[a]) == 0;
        }
        if (hit) {
            *out = table[i].type;
            return true;
        }
    }
    return false;
}

int nrd_dtype_block(nrd_dtype t)
{
    int i = find(t);
    return i >= 0 ? table[i].block : 1;
}

size_t nrd_dtype_block_bytes(nrd_dtype t)
{
    int i = find(t);
    return i >= 0 ? (size_t)table[i].block_bytes : 0;
}

bool nrd_dtype_is_quant(nrd_dtype t)
{
    return (t >= NRD_DTYPE_Q4_0 && t <= NRD_DTYPE_MXFP4) || t == NRD_DTYPE_Q8_1;
}

bool nrd_dtype_is_packed(nrd_dtype t)
{
    return t >= NRD_DTYPE_F8_B128 && t <= NRD_DTYPE_FP4;
}

nrd_dtype nrd_dtype_computed(nrd_dtype t)
{
    if (t == NRD_DTYPE_TQ1_0 || t == NRD_DTYPE_TQ2_0) {
        return NRD_DTYPE_Q2_K;
    }
    const bool is_iq = (t >= NRD_DTYPE_IQ1_S && t <= NRD_DTYPE_IQ2_S) || t == NRD_DTYPE_IQ3_XXS || t == NRD_DTYPE_IQ3_S;
    return is_iq ? NRD_DTYPE_Q8_0 : t;
}

bool nrd_dtype_bytes(nrd_dtype t, uint64_t n, size_t *out)
{
    int i = find(t);
    size_t r;

    if (i < 0 || n % (uint64_t)table[i].block) {
        return false;
    }
    n /= (uint64_t)table[i].block;
    if (__builtin_mul_overflow(n, (uint64_t)table[i].block_bytes, &r)) {
        return false;
    }
    *out = r;
    return true;
}

float nrd_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 0x1fu, mantissa = h & 0x3ffu, u;
    float f;

    if (exponent == 0) { /* zero and subnormals: mantissa * 2^-24 is exact in float32 */
        f = (float)mantissa * 0x1p-24f;
        memcpy(&u, &f, 4);
        u |= sign;
    } else if (exponent == 31) {
        u = sign | 0x7f800000u | mantissa << 13;
    } else {
        u = sign | (exponent + 112u) << 23 | mantissa << 13;
    }
    memcpy(&f, &u, 4);
    return f;
}

uint16_t nrd_f32_to_f16(float f) /* to nearest even; overflow to infinity; NaN stays NaN */
{
    uint32_t u;
    memcpy(&u, &f, 4);
    uint32_t sign = (u >> 16) & 0x8000u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | ((u >> 13) & 0x3ffu));
    }
    if (u >= 0x477ff000u) { /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (u < 0x38800000u) { /* below 2^-14: let float addition do the rounding at 2^-24 */
        float a;
        memcpy(&a, &u, 4);
        a += 0.5f;
        memcpy(&u, &a, 4);
        return (uint16_t)(sign | (u - 0x3f000000u));
    }
    u += 0xfffu + ((u >> 13) & 1u);
    return (uint16_t)(sign | ((u - 0x38000000u) >> 13));
}

float nrd_f8e4m3_to_f32(uint8_t v) /* no infinities; 0x7f and 0xff are NaN */
{
    int exponent = (v >> 3) & 15, mantissa = v & 7;
    float f;

    if ((v & 0x7f) == 0x7f) {
        f = NAN;
    } else if (exponent == 0) {
        f = (float)mantissa * 0x1p-9f;
    } else {
        f = ldexpf((float)(8 + mantissa), exponent - 10);
    }
    return v & 0x80 ? -f : f;
}

uint8_t nrd_f32_to_f8e4m3(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    uint32_t sign = (u >> 24) & 0x80u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) {
        return (uint8_t)(sign | 0x7fu);
    }
    if (u >= 0x43e00000u) { /* 448 */
        return (uint8_t)(sign | 0x7eu);
    }
    if (u < 0x3c800000u) { /* below 2^-6: subnormal, a multiple of 2^-9 */
        float a;
        memcpy(&a, &u, 4);
        a += 0x1p14f; /* one unit in the last place of 2^14 is 2^-9 */
        memcpy(&u, &a, 4);
        return (uint8_t)(sign | (u - 0x46800000u));
    }
    u += 0x7ffffu + ((u >> 20) & 1u);
    u = (u - 0x3c000000u) >> 20;
    return (uint8_t)(sign | (u > 0x7eu ? 0x7eu : u));
}

float nrd_quantize_row_scaled(nrd_dtype t, const float *src, uint8_t *dst, int64_t n)
{
    float top = t == NRD_DTYPE_I8 ? 127.0f : 448.0f, amax = 0;
    for (int64_t i = 0; i < n; i++) {
        float v = fabsf(src[i]);
        amax = v > amax ? v : amax;
    }
    float scale = amax > 0 ? amax / top : 1, inverse = 1 / scale;
    for (int64_t i = 0; i < n; i++) {
        float v = src[i] * inverse;
        if (t == NRD_DTYPE_I8) {
            long q = lrintf(v);
            dst[i] = (uint8_t)(int8_t)(q > 127 ? 127 : q < -127 ? -127 : q);
        } else {
            dst[i] = nrd_f32_to_f8e4m3(v);
        }
    }
    return scale;
}
