/* SPDX-License-Identifier: Apache-2.0
 * Block formats that only files have: no device multiplies them, so a reader makes another format of their numbers
 * (nrd_dtype_computed). Blocks have 256 numbers.
 *
 * An IQ block has a scale, and for each 8 (IQ3: 4) numbers the number of a vector and, but for IQ1, eight signs. Where signs
 * have 7 bits, the eighth makes their sum even. */
#include "base/dtype.h"
#include "base/quant_grids.h"

enum { QK_K = 256 };

static unsigned get16(const uint8_t *p)
{
    return (unsigned)(p[0] | p[1] << 8);
}

static float half(unsigned bits)
{
    return nrd_f16_to_f32((uint16_t)bits);
}

static unsigned even_signs(unsigned seven)
{
    seven &= 127;
    return seven | (unsigned)__builtin_parity(seven) << 7;
}

/* ---- ternary ---- */

/* The number of a digit in base 3: a byte holds five as a fraction of 256, rounded up. */
static int digit(uint8_t byte, int i)
{
    static const uint8_t powers[5] = {1, 3, 9, 27, 81};
    return ((uint8_t)(byte * powers[i]) * 3) >> 8;
}

/* Codes 0, 1, 2 (of a damaged TQ2_0 block also 3), which stand for d times one less; returns d. */
static float ternary_codes(nrd_dtype t, const uint8_t *p, uint8_t code[QK_K])
{
    if (t == NRD_DTYPE_TQ2_0) { /* qs 64, d */
        for (int i = 0; i < QK_K; i++) {
            code[i] = (p[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3;
        }
        return half(get16(p + 64));
    }
    for (int i = 0; i < 160; i++) { /* TQ1_0: qs 48, qh 4, d */
        code[i] = (uint8_t)digit(p[i % 32], i / 32);
    }
    for (int i = 0; i < 80; i++) {
        code[160 + i] = (uint8_t)digit(p[32 + i % 16], i / 16);
    }
    for (int i = 0; i < 16; i++) {
        code[240 + i] = (uint8_t)digit(p[48 + i % 4], i / 4);
    }
    return half(get16(p + 52));
}

bool nrd_ternary_row(nrd_dtype t, const void *src, void *dst, int64_t n)
{
    const uint8_t *p = src;
    uint8_t *q = dst;

    if ((t != NRD_DTYPE_TQ1_0 && t != NRD_DTYPE_TQ2_0) || n < 0 || n % QK_K) {
        return false;
    }
    for (; n > 0; n -= QK_K, p += nrd_dtype_block_bytes(t), q += nrd_dtype_block_bytes(NRD_DTYPE_Q2_K)) {
        uint8_t code[QK_K];
        ternary_codes(t, p, code);
        const uint8_t *d = p + nrd_dtype_block_bytes(t) - 2;
        memset(q, 0x11, 16); /* scales 1, minima 1: d code - d */
        memset(q + 16, 0, 64);
        for (int i = 0; i < QK_K; i++) {
            q[16 + i / 128 * 32 + i % 32] |= (uint8_t)(code[i] << (i % 128 / 32 * 2));
        }
        memcpy(q + 80, d, 2);
        memcpy(q + 82, d, 2);
    }
    return true;
}

/* ---- vectors ---- */

static void put8(float *y, float scale, unsigned vector, unsigned signs)
{
    static const float values[4] = {8, 25, 43, 0};
    for (int k = 0; k < 8; k++) {
        const float v = scale * values[(vector >> (2 * k)) & 3];
        y[k] = (signs >> k) & 1 ? -v : v;
    }
}

static void put4(float *y, float scale, const float values[8], unsigned vector, unsigned signs)
{
    for (int k = 0; k < 4; k++) {
        const float v = scale * values[(vector >> (3 * k)) & 7];
        y[k] = (signs >> k) & 1 ? -v : v;
    }
}

/* -1, 0 and 1 are moved by an eighth. */
static void put_iq1(float *y, float scale, unsigned vector, bool down)
{
    for (int k = 0; k < 8; k++) {
        y[k] = scale * ((float)((int)((vector >> (2 * k)) & 3) - 1) + (down ? -0.125f : 0.125f));
    }
}

static void dequant_iq1(nrd_dtype t, const uint8_t *p, float *y)
{
    if (t == NRD_DTYPE_IQ1_S) { /* d, qs 32, qh 16 */
        for (int g = 0; g < 32; g++) {
            const unsigned h = get16(p + 34 + g / 4 * 2), high = (h >> (g % 4 * 3)) & 7;
            const float scale = half(get16(p)) * (float)(2 * ((h >> 12) & 7) + 1);
            put_iq1(y + 8 * g, scale, nrd_grid_iq1[p[2 + g] | high << 8], h >> 15);
        }
        return;
    }
    unsigned d = 0; /* IQ1_M: qs 32, qh 16, scales 8, whose four words have four bits of d each */
    for (int i = 0; i < 4; i++) {
        d |= get16(p + 48 + 2 * i) >> 12 << (4 * i);
    }
    for (int g = 0; g < 32; g++) {
        const unsigned h = (unsigned)p[32 + g / 2] >> (g % 2 * 4), s = (get16(p + 48 + g / 8 * 2) >> (g / 2 % 4 * 3)) & 7;
        put_iq1(y + 8 * g, half(d) * (float)(2 * s + 1), nrd_grid_iq1[p[g] | (h & 7) << 8], h & 8);
    }
}

static void dequant_iq2(nrd_dtype t, const uint8_t *p, float *y)
{
    for (int g = 0; g < 32; g++) {
        unsigned s, signs, vector;
        if (t == NRD_DTYPE_IQ2_XXS) { /* d, for 32 numbers: vectors 4, signs 28 bits and scale 4 bits */
            const uint8_t *at = p + 2 + g / 4 * 8;
            const uint32_t word = get16(at + 4) | (uint32_t)get16(at + 6) << 16;
            s = word >> 28;
            signs = even_signs(word >> (g % 4 * 7));
            vector = nrd_grid_iq2_xxs[at[g % 4]];
        } else if (t == NRD_DTYPE_IQ2_XS) { /* d, qs 32 words of 9 bits and 7 of signs, scales 8 */
            const unsigned q = get16(p + 2 + 2 * g);
            s = (p[66 + g / 4] >> (g / 2 % 2 * 4)) & 15;
            signs = even_signs(q >> 9);
            vector = nrd_grid_iq2_xs[q & 511];
        } else { /* IQ2_S: d, qs 32, signs 32, qh 8, scales 8 */
            s = (p[74 + g / 4] >> (g / 2 % 2 * 4)) & 15;
            signs = p[34 + g];
            vector = nrd_grid_iq2_s[p[2 + g] | ((p[66 + g / 4] >> (g % 4 * 2)) & 3) << 8];
        }
        put8(y + 8 * g, half(get16(p)) * (0.5f + (float)s) * 0.25f, vector, signs);
    }
}

static void dequant_iq3(nrd_dtype t, const uint8_t *p, float *y)
{
    static const float xxs[8] = {4, 12, 20, 28, 36, 44, 52, 62}, steps[8] = {1, 3, 5, 7, 9, 11, 13, 15};
    for (int g = 0; g < 64; g++) {
        if (t == NRD_DTYPE_IQ3_XXS) { /* d, qs 64, for 32 numbers: signs 28 bits and scale 4 bits */
            const uint8_t *at = p + 66 + g / 8 * 4;
            const uint32_t word = get16(at) | (uint32_t)get16(at + 2) << 16;
            const unsigned signs = even_signs(word >> (g / 2 % 4 * 7)) >> (g % 2 * 4);
            put4(y + 4 * g, half(get16(p)) * (0.5f + (float)(word >> 28)) * 0.5f, xxs, nrd_grid_iq3_xxs[p[2 + g]], signs);
        } else { /* IQ3_S: d, qs 64, qh 8, signs 32, scales 4 */
            const unsigned high = ((unsigned)p[66 + g / 8] >> (g % 8)) & 1, s = ((unsigned)p[106 + g / 16] >> (g / 8 % 2 * 4)) & 15;
            put4(y + 4 * g, half(get16(p)) * (float)(1 + 2 * s), steps, nrd_grid_iq3_s[p[2 + g] | high << 8],
                 (unsigned)p[74 + g / 2] >> (g % 2 * 4));
        }
    }
}

void nrd_dequantize_stored(nrd_dtype t, const uint8_t *p, float *y)
{
    uint8_t code[QK_K];
    float d;

    switch (t) {
    case NRD_DTYPE_TQ1_0:
    case NRD_DTYPE_TQ2_0:
        d = ternary_codes(t, p, code);
        for (int i = 0; i < QK_K; i++) {
            y[i] = d * (float)((int)code[i] - 1);
        }
        break;
    case NRD_DTYPE_IQ1_S:
    case NRD_DTYPE_IQ1_M:
        dequant_iq1(t, p, y);
        break;
    case NRD_DTYPE_IQ3_XXS:
    case NRD_DTYPE_IQ3_S:
        dequant_iq3(t, p, y);
        break;
    default:
        dequant_iq2(t, p, y);
        break;
    }
}
