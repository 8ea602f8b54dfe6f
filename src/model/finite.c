/* SPDX-License-Identifier: Apache-2.0 */
#include "model/finite.h"

#include "base/dtype.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

/* Numbers that a loop looks at before it asks whether one was bad: so compilers make it of vectors. */
enum { AT_ONCE = 256 };

/* Where the blocks of a format have the numbers that all others are multiplied by or added to. IQ1_M is left out: it keeps the
 * bits of its scale in four places. */
static const struct {
    nrd_dtype type, scale; /* U8: an E8M0 scale, of which 255 is NaN */
    int at;
    bool two; /* halves, the second behind the first */
} blocks[] = {
    {NRD_DTYPE_Q4_0, NRD_DTYPE_F16, 0, false},    {NRD_DTYPE_Q4_1, NRD_DTYPE_F16, 0, true},
    {NRD_DTYPE_Q5_0, NRD_DTYPE_F16, 0, false},    {NRD_DTYPE_Q5_1, NRD_DTYPE_F16, 0, true},
    {NRD_DTYPE_Q8_0, NRD_DTYPE_F16, 0, false},    {NRD_DTYPE_Q2_K, NRD_DTYPE_F16, 80, true},
    {NRD_DTYPE_Q3_K, NRD_DTYPE_F16, 108, false},  {NRD_DTYPE_Q4_K, NRD_DTYPE_F16, 0, true},
    {NRD_DTYPE_Q5_K, NRD_DTYPE_F16, 0, true},     {NRD_DTYPE_Q6_K, NRD_DTYPE_F16, 208, false},
    {NRD_DTYPE_IQ4_NL, NRD_DTYPE_F16, 0, false},  {NRD_DTYPE_IQ4_XS, NRD_DTYPE_F16, 0, false},
    {NRD_DTYPE_TQ1_0, NRD_DTYPE_F16, 52, false},  {NRD_DTYPE_TQ2_0, NRD_DTYPE_F16, 64, false},
    {NRD_DTYPE_IQ1_S, NRD_DTYPE_F16, 0, false},   {NRD_DTYPE_IQ2_XXS, NRD_DTYPE_F16, 0, false},
    {NRD_DTYPE_IQ2_XS, NRD_DTYPE_F16, 0, false},  {NRD_DTYPE_IQ2_S, NRD_DTYPE_F16, 0, false},
    {NRD_DTYPE_IQ3_XXS, NRD_DTYPE_F16, 0, false}, {NRD_DTYPE_IQ3_S, NRD_DTYPE_F16, 0, false},
    {NRD_DTYPE_MXFP4, NRD_DTYPE_U8, 0, false},    {NRD_DTYPE_MXFP8, NRD_DTYPE_U8, 0, false},
    {NRD_DTYPE_F8_B128, NRD_DTYPE_F32, 0, false}, {NRD_DTYPE_NVFP4, NRD_DTYPE_F32, 0, false},
    {NRD_DTYPE_NF4, NRD_DTYPE_F32, 0, false},     {NRD_DTYPE_FP4, NRD_DTYPE_F32, 0, false},
    {NRD_DTYPE_Q8_1, NRD_DTYPE_F16, 0, true},
};

/* NaN and infinity are what has all bits of the exponent: one more at its lowest sets the bit of the sign, which was cut off. */
#define LOOK(type, exponent, lowest, sign)                                                         \
    {                                                                                              \
        type v, bad = 0;                                                                           \
        for (int i = 0; i < AT_ONCE; i++) {                                                        \
            memcpy(&v, p + (size_t)i * sizeof v, sizeof v);                                        \
            bad |= (type)((v & (exponent)) + (lowest));                                            \
        }                                                                                          \
        return bad & (sign);                                                                       \
    }

static bool has_bad(nrd_dtype t, const uint8_t *p) /* one of AT_ONCE numbers */
{
    switch (t) {
    case NRD_DTYPE_F16:
        LOOK(uint16_t, 0x7c00, 0x400, 0x8000)
    case NRD_DTYPE_BF16:
        LOOK(uint16_t, 0x7f80, 0x80, 0x8000)
    case NRD_DTYPE_F32:
        LOOK(uint32_t, 0x7f800000, 0x800000, 0x80000000)
    case NRD_DTYPE_F64:
        LOOK(uint64_t, 0x7ff0000000000000, 0x10000000000000, 0x8000000000000000)
    case NRD_DTYPE_F8_E4M3:
        LOOK(uint8_t, 0x7f, 1, 0x80)
    default:
        return false;
    }
}

static bool is_bad(nrd_dtype t, const uint8_t *p)
{
    uint16_t half;
    float f;
    double d;
    switch (t) {
    case NRD_DTYPE_F16:
        memcpy(&half, p, 2);
        return (half & 0x7c00) == 0x7c00;
    case NRD_DTYPE_BF16:
        memcpy(&half, p, 2);
        return (half & 0x7f80) == 0x7f80;
    case NRD_DTYPE_F32:
        memcpy(&f, p, 4);
        return !isfinite(f);
    case NRD_DTYPE_F64:
        memcpy(&d, p, 8);
        return !isfinite(d);
    case NRD_DTYPE_F8_E4M3:
        return (*p & 0x7f) == 0x7f;
    case NRD_DTYPE_U8:
        return *p == 255;
    default:
        return false;
    }
}

uint64_t nrd_find_not_finite(nrd_dtype t, const void *data, uint64_t n)
{
    const uint8_t *p = data;
    const size_t bytes = nrd_dtype_block_bytes(t);
    const uint64_t block = (uint64_t)nrd_dtype_block(t);

    for (size_t k = 0; k < sizeof blocks / sizeof blocks[0]; k++) {
        for (uint64_t i = 0; blocks[k].type == t && i < n / block; i++) {
            const uint8_t *scale = p + i * bytes + blocks[k].at;
            if (is_bad(blocks[k].scale, scale) ||
                (blocks[k].two && is_bad(blocks[k].scale, scale + 2))) {
                return i * block;
            }
        }
    }
    if (block > 1 || t == NRD_DTYPE_U8) {
        return n;
    }
    uint64_t i = 0;
    while (n - i >= AT_ONCE && !has_bad(t, p + i * bytes)) {
        i += AT_ONCE;
    }
    while (i < n && !is_bad(t, p + i * bytes)) {
        i++;
    }
    return i;
}

nrd_error *nrd_check_finite(const char *name, nrd_dtype t, const void *data, uint64_t first,
                            uint64_t n)
{
    const uint64_t bad = nrd_find_not_finite(t, data, n);
    if (bad == n) {
        return NULL;
    }
    return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s': number %llu is not finite%s", name,
                      (unsigned long long)(first + bad),
                      nrd_dtype_block(t) > 1 ? ", as the scale of its block is" : "");
}

nrd_error *nrd_src_tensor_check_finite(const nrd_src_tensor *t, int64_t row0, int64_t n_rows)
{
    const uint64_t rows = t->n_dims > 0 ? (uint64_t)t->dims[0] : 1;
    if (!t->data || rows == 0) {
        return NULL;
    }
    const uint64_t each = nrd_src_tensor_numbers(t) / rows;
    const uint8_t *data = (const uint8_t *)t->data + (uint64_t)row0 * (t->data_bytes / rows);
    return nrd_check_finite(t->name, t->dtype, data, (uint64_t)row0 * each,
                            (uint64_t)n_rows * each);
}
