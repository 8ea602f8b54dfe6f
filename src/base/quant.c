/* SPDX-License-Identifier: Apache-2.0
 * Block formats of GGUF in plain C: what each byte means, and a quantizer for each.
 *
 * Dequantization is exact by definition. Quantization is free to choose scales; ours fits them by
 * least squares over a few candidates (the integers follow from a trial scale, then the best scale
 * for these integers is Σxq / Σqq), which is what imatrix-free GGUF quantizers do in spirit.
 * Sources: ggml-org/ggml docs/gguf.md and the public descriptions of the "k-quants". */
#include "base/dtype.h"

#include <math.h>

enum { QK = 32, QK_K = 256 };

static const int8_t iq4_values[16] = NRD_IQ4_VALUES, mxfp4_values[16] = NRD_MXFP4_VALUES;

static float get16(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return nrd_f16_to_f32(h);
}

static float put16(uint8_t *p, float f) /* returns what was really stored */
{
    uint16_t h = nrd_f32_to_f16(f);
    memcpy(p, &h, 2);
    return nrd_f16_to_f32(h);
}

static int clampi(int v, int lo, int hi)
{
    return v < lo ? lo : v > hi ? hi : v;
}

static int round_to(float v, int lo, int hi)
{
    return isnan(v) ? lo : v <= (float)lo ? lo : v >= (float)hi ? hi : clampi((int)lrintf(v), lo, hi);
}

/* Sub-block scale and min of Q4_K and Q5_K: eight pairs of 6 bits in 12 bytes. */
static void k4_scale_min(int j, const uint8_t *s, int *sc, int *m)
{
    if (j < 4) {
        *sc = s[j] & 63;
        *m = s[j + 4] & 63;
    } else {
        *sc = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        *m = (s[j + 4] >> 4) | (s[j] >> 6) << 4;
    }
}

static void k4_put_scale_min(int j, uint8_t *s, int sc, int m)
{
    if (j < 4) {
        s[j] = (uint8_t)((s[j] & 0xc0) | sc);
        s[j + 4] = (uint8_t)((s[j + 4] & 0xc0) | m);
    } else {
        s[j + 4] = (uint8_t)((sc & 15) | (m & 15) << 4);
        s[j - 4] = (uint8_t)((s[j - 4] & 63) | (sc >> 4) << 6);
        s[j] = (uint8_t)((s[j] & 63) | (m >> 4) << 6);
    }
}

/* Sub-block scale of Q3_K: sixteen signed 6-bit numbers (offset 32) in 12 bytes. */
static int k3_scale(int j, const uint8_t *s)
{
    int lo = j < 8 ? s[j] & 15 : s[j - 8] >> 4;
    int hi = (s[8 + j % 4] >> (2 * (j / 4))) & 3;
    return (lo | hi << 4) - 32;
}

/* Sub-block scale of IQ4_XS: eight numbers of 6 bits (offset 32), four low bits in `lo`, two high ones
 * in `hi`. */
static int iq4_scale(int j, const uint8_t *p)
{
    int lo = (p[4 + j / 2] >> (j % 2 * 4)) & 15, hi = ((p[2] | p[3] << 8) >> (2 * j)) & 3;
    return (lo | hi << 4) - 32;
}

/* Super blocks of 256: K types. */
static void dequant_super_block(nrd_dtype t, const uint8_t *p, float *y)
{
    float d, m;

    switch (t) {
    case NRD_DTYPE_Q2_K: /* scales 16, qs 64, d, dmin */
        d = get16(p + 80);
        m = get16(p + 82);
        for (int i = 0; i < QK_K; i++) {
            int q = (p[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3;
            int s = p[i / 16];
            y[i] = d * (float)(s & 15) * (float)q - m * (float)(s >> 4);
        }
        break;
    case NRD_DTYPE_Q3_K: /* hmask 32, qs 64, scales 12, d */
        d = get16(p + 108);
        for (int i = 0; i < QK_K; i++) {
            int q = (p[32 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3;
            q -= (p[i % 32] >> (i / 32)) & 1 ? 0 : 4;
            y[i] = d * (float)k3_scale(i / 16, p + 96) * (float)q;
        }
        break;
    case NRD_DTYPE_Q4_K: /* d, dmin, scales 12, qs 128 */
    case NRD_DTYPE_Q5_K: /* d, dmin, scales 12, qh 32, qs 128 */
        d = get16(p);
        m = get16(p + 2);
        for (int j = 0; j < 8; j++) {
            const uint8_t *qs = p + (t == NRD_DTYPE_Q4_K ? 16 : 48) + j / 2 * 32;
            int sc, mn;
            k4_scale_min(j, p + 4, &sc, &mn);
            for (int i = 0; i < 32; i++) {
                int q = j % 2 ? qs[i] >> 4 : qs[i] & 15;
                if (t == NRD_DTYPE_Q5_K) {
                    q |= ((p[16 + i] >> j) & 1) << 4;
                }
                y[j * 32 + i] = d * (float)sc * (float)q - m * (float)mn;
            }
        }
        break;
    case NRD_DTYPE_Q6_K: /* ql 128, qh 64, scales 16, d */
        d = get16(p + 208);
        for (int i = 0; i < QK_K; i++) {
            int half = i / 128, r = i % 128, quarter = r / 32, l = r % 32;
            int lo = p[half * 64 + (quarter & 1) * 32 + l];
            lo = quarter < 2 ? lo & 15 : lo >> 4;
            int hi = (p[128 + half * 32 + l] >> (2 * quarter)) & 3;
            y[i] = d * (float)(int8_t)p[192 + i / 16] * (float)((lo | hi << 4) - 32);
        }
        break;
    default:
        break;
    }
}

static void dequant_block(nrd_dtype t, const uint8_t *p, float *y)
{
    float d, m;
    uint32_t qh;

    switch (t) {
    case NRD_DTYPE_Q4_0:
        d = get16(p);
        for (int j = 0; j < 16; j++) {
            y[j] = (float)((p[2 + j] & 15) - 8) * d;
            y[j + 16] = (float)((p[2 + j] >> 4) - 8) * d;
        }
        break;
    case NRD_DTYPE_Q4_1:
        d = get16(p);
        m = get16(p + 2);
        for (int j = 0; j < 16; j++) {
            y[j] = (float)(p[4 + j] & 15) * d + m;
            y[j + 16] = (float)(p[4 + j] >> 4) * d + m;
        }
        break;
    case NRD_DTYPE_Q5_0:
        d = get16(p);
        memcpy(&qh, p + 2, 4);
        for (int j = 0; j < 16; j++) {
            int lo = (p[6 + j] & 15) | (int)((qh >> j) & 1u) << 4;
            int hi = (p[6 + j] >> 4) | (int)((qh >> (j + 16)) & 1u) << 4;
            y[j] = (float)(lo - 16) * d;
            y[j + 16] = (float)(hi - 16) * d;
        }
        break;
    case NRD_DTYPE_Q5_1:
        d = get16(p);
        m = get16(p + 2);
        memcpy(&qh, p + 4, 4);
        for (int j = 0; j < 16; j++) {
            int lo = (p[8 + j] & 15) | (int)((qh >> j) & 1u) << 4;
            int hi = (p[8 + j] >> 4) | (int)((qh >> (j + 16)) & 1u) << 4;
            y[j] = (float)lo * d + m;
            y[j + 16] = (float)hi * d + m;
        }
        break;
    case NRD_DTYPE_Q8_0:
        d = get16(p);
        for (int j = 0; j < QK; j++) {
            y[j] = (float)(int8_t)p[2 + j] * d;
        }
        break;
    case NRD_DTYPE_Q8_1:
        d = get16(p);
        m = get16(p + 2);
        for (int j = 0; j < QK; j++) {
            y[j] = (float)(int8_t)p[4 + j] * d + m;
        }
        break;
    case NRD_DTYPE_IQ4_NL:
        d = get16(p);
        for (int j = 0; j < 16; j++) {
            y[j] = d * (float)iq4_values[p[2 + j] & 15];
            y[j + 16] = d * (float)iq4_values[p[2 + j] >> 4];
        }
        break;
    case NRD_DTYPE_IQ4_XS: /* d, high bits of scales 2, low bits 4, qs 128 */
        for (int j = 0; j < 8; j++, y += 32) {
            d = get16(p) * (float)iq4_scale(j, p);
            for (int i = 0; i < 16; i++) {
                y[i] = d * (float)iq4_values[p[8 + j * 16 + i] & 15];
                y[i + 16] = d * (float)iq4_values[p[8 + j * 16 + i] >> 4];
            }
        }
        break;
    case NRD_DTYPE_MXFP4: /* e, qs 16 */
        d = nrd_bf16_to_f32(nrd_mxfp4_half_scale(p[0]));
        for (int j = 0; j < 16; j++) {
            y[j] = d * (float)mxfp4_values[p[1 + j] & 15];
            y[j + 16] = d * (float)mxfp4_values[p[1 + j] >> 4];
        }
        break;
    default:
        dequant_super_block(t, p, y);
        break;
    }
}

bool nrd_dequantize_row(nrd_dtype t, const void *src, float *dst, int64_t n)
{
    const uint8_t *p = src;
    int64_t block = nrd_dtype_block(t);

    if (n < 0 || n % block) {
        return false;
    }
    switch (t) {
    case NRD_DTYPE_F32:
        memcpy(dst, src, (size_t)n * 4);
        return true;
    case NRD_DTYPE_F64:
        for (int64_t i = 0; i < n; i++) {
            double v;
            memcpy(&v, p + i * 8, 8);
            dst[i] = (float)v;
        }
        return true;
    case NRD_DTYPE_F16:
        for (int64_t i = 0; i < n; i++) {
            dst[i] = get16(p + i * 2);
        }
        return true;
    case NRD_DTYPE_BF16:
        for (int64_t i = 0; i < n; i++) {
            uint16_t h;
            memcpy(&h, p + i * 2, 2);
            dst[i] = nrd_bf16_to_f32(h);
        }
        return true;
    case NRD_DTYPE_F8_E4M3:
        for (int64_t i = 0; i < n; i++) {
            dst[i] = nrd_f8e4m3_to_f32(p[i]);
        }
        return true;
    default:
        if (!nrd_dtype_is_block(t) && !nrd_dtype_is_packed(t)) {
            return false;
        }
        for (int64_t i = 0; i < n; i += block, p += nrd_dtype_block_bytes(t)) {
            if (nrd_dtype_is_quant(t)) {
                dequant_block(t, p, dst + i);
            } else if (nrd_dtype_is_packed(t)) {
                nrd_dequantize_packed(t, p, dst + i);
            } else {
                nrd_dequantize_stored(t, p, dst + i);
            }
        }
        return true;
    }
}

/* ---- quantization ---- */

/* Integers q in [lo, hi] (lo < 0) and a scale s with x ≈ s q; returns s. */
static float fit_symmetric(const float *x, int n, int lo, int hi, int8_t *q)
{
    float peak = 0, best_gain = -1, best_inv = 0, best_scale = 0;

    for (int i = 0; i < n; i++) {
        if (fabsf(x[i]) > fabsf(peak)) {
            peak = x[i];
        }
    }
    if (fabsf(peak) < 1e-30f) {
        memset(q, 0, (size_t)n);
        return 0;
    }
    for (int trial = -9; trial <= 9; trial++) { /* the peak lands near lo, which reaches furthest */
        float inv = ((float)lo + 0.1f * (float)trial) / peak, xq = 0, qq = 0;
        for (int i = 0; i < n; i++) {
            float v = (float)round_to(x[i] * inv, lo, hi);
            xq += x[i] * v;
            qq += v * v;
        }
        if (qq > 0 && xq * xq > best_gain * qq) { /* error = Σxx - (Σxq)²/Σqq */
            best_gain = xq * xq / qq;
            best_scale = xq / qq;
            best_inv = inv;
        }
    }
    for (int i = 0; i < n; i++) {
        q[i] = (int8_t)round_to(x[i] * best_inv, lo, hi);
    }
    return best_scale;
}

/* x ≈ s q - m with q in [0, hi]. With floor_zero, m >= 0 as the k-quants store it. */
static float fit_affine(const float *x, int n, int hi, bool floor_zero, float *out_min)
{
    float lo_x = x[0], hi_x = x[0], best_err = INFINITY, best_s = 0, best_m = 0;

    for (int i = 1; i < n; i++) {
        lo_x = x[i] < lo_x ? x[i] : lo_x;
        hi_x = x[i] > hi_x ? x[i] : hi_x;
    }
    if (floor_zero && lo_x > 0) {
        lo_x = 0;
    }
    if (hi_x - lo_x < 1e-30f) {
        *out_min = -lo_x;
        return 0;
    }
    for (int trial = -5; trial <= 10; trial++) {
        float inv = ((float)hi + 0.1f * (float)trial) / (hi_x - lo_x);
        float sq = 0, sqq = 0, sx = 0, sxq = 0, err = 0;
        for (int i = 0; i < n; i++) {
            float v = (float)round_to((x[i] - lo_x) * inv, 0, hi);
            sq += v;
            sqq += v * v;
            sx += x[i];
            sxq += x[i] * v;
        }
        float det = (float)n * sqq - sq * sq;
        if (det <= 0) {
            continue;
        }
        float s = ((float)n * sxq - sx * sq) / det, m = (s * sq - sx) / (float)n;
        if (floor_zero && m < 0) {
            m = 0;
            s = sqq > 0 ? sxq / sqq : 0;
        }
        if (s <= 0) {
            continue;
        }
        for (int i = 0; i < n; i++) {
            float v = s * (float)round_to((x[i] + m) / s, 0, hi) - m - x[i];
            err += v * v;
        }
        if (err < best_err) {
            best_err = err;
            best_s = s;
            best_m = m;
        }
    }
    *out_min = best_m;
    return best_s;
}

/* The smallest number has the lowest code. */
static void quant_q8_1(const float *x, uint8_t *p)
{
    float low = x[0], high = x[0];

    for (int i = 1; i < QK; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    const float d = put16(p, (high - low) / 255.0f), inv = d > 0 ? 1.0f / d : 0, m = put16(p + 2, low + 128.0f * d);
    for (int i = 0; i < QK; i++) {
        p[4 + i] = (uint8_t)(int8_t)round_to((x[i] - m) * inv, -128, 127);
    }
}

static void quant_simple(nrd_dtype t, const float *x, uint8_t *p)
{
    int8_t q[QK];
    bool affine = t == NRD_DTYPE_Q4_1 || t == NRD_DTYPE_Q5_1;
    bool five = t == NRD_DTYPE_Q5_0 || t == NRD_DTYPE_Q5_1;
    int half = five ? 16 : 8, top = 2 * half - 1;
    uint32_t qh = 0;

    if (t == NRD_DTYPE_Q8_0) {
        float peak = 0;
        for (int i = 0; i < QK; i++) {
            peak = fabsf(x[i]) > peak ? fabsf(x[i]) : peak;
        }
        float d = peak / 127.0f, inv = d > 0 ? 1.0f / d : 0;
        put16(p, d);
        for (int i = 0; i < QK; i++) {
            p[2 + i] = (uint8_t)(int8_t)round_to(x[i] * inv, -127, 127);
        }
        return;
    }
    if (affine) {
        float m, s = fit_affine(x, QK, top, false, &m);
        s = put16(p, s);
        m = put16(p + 2, -m);
        for (int i = 0; i < QK; i++) {
            q[i] = (int8_t)(s > 0 ? round_to((x[i] - m) / s, 0, top) : 0);
        }
        p += 4;
    } else {
        float s = put16(p, fit_symmetric(x, QK, -half, half - 1, q));
        for (int i = 0; i < QK; i++) {
            q[i] = (int8_t)(half + (s != 0 ? round_to(x[i] / s, -half, half - 1) : 0));
        }
        p += 2;
    }
    if (five) {
        for (int i = 0; i < QK; i++) {
            qh |= (uint32_t)(q[i] >> 4) << i;
        }
        memcpy(p, &qh, 4);
        p += 4;
    }
    for (int i = 0; i < 16; i++) {
        p[i] = (uint8_t)((q[i] & 15) | (q[i + 16] & 15) << 4);
    }
}

/* Q2_K, Q4_K, Q5_K: affine sub-blocks whose scales and mins are themselves small integers. */
static void quant_k_affine(nrd_dtype t, const float *x, uint8_t *p)
{
    int sub = t == NRD_DTYPE_Q2_K ? 16 : 32, n = QK_K / sub;
    int top = t == NRD_DTYPE_Q2_K ? 3 : t == NRD_DTYPE_Q4_K ? 15 : 31;
    int s_top = t == NRD_DTYPE_Q2_K ? 15 : 63;
    float s[16], m[16], s_max = 0, m_max = 0;
    uint8_t q[QK_K];

    for (int j = 0; j < n; j++) {
        s[j] = fit_affine(x + j * sub, sub, top, true, &m[j]);
        s_max = s[j] > s_max ? s[j] : s_max;
        m_max = m[j] > m_max ? m[j] : m_max;
    }
    memset(p, 0, nrd_dtype_block_bytes(t));
    float d = put16(p + (t == NRD_DTYPE_Q2_K ? 80 : 0), s_max / (float)s_top);
    float dmin = put16(p + (t == NRD_DTYPE_Q2_K ? 82 : 2), m_max / (float)s_top);
    for (int j = 0; j < n; j++) {
        int sc = d > 0 ? round_to(s[j] / d, 0, s_top) : 0;
        int mn = dmin > 0 ? round_to(m[j] / dmin, 0, s_top) : 0;
        float scale = d * (float)sc, min = dmin * (float)mn;
        if (t == NRD_DTYPE_Q2_K) {
            p[j] = (uint8_t)(sc | mn << 4);
        } else {
            k4_put_scale_min(j, p + 4, sc, mn);
        }
        for (int i = 0; i < sub; i++) {
            float v = x[j * sub + i];
            q[j * sub + i] = (uint8_t)(scale > 0 ? round_to((v + min) / scale, 0, top) : 0);
        }
    }
    for (int i = 0; i < QK_K; i++) {
        if (t == NRD_DTYPE_Q2_K) {
            p[16 + i / 128 * 32 + i % 32] |= (uint8_t)(q[i] << (i % 128 / 32 * 2));
        } else {
            p[(t == NRD_DTYPE_Q4_K ? 16 : 48) + i / 64 * 32 + i % 32] |=
                (uint8_t)((q[i] & 15) << (i % 64 / 32 * 4));
            if (t == NRD_DTYPE_Q5_K) {
                p[16 + i % 32] |= (uint8_t)((q[i] >> 4) << (i / 32));
            }
        }
    }
}

/* Q3_K, Q6_K: symmetric sub-blocks of 16 with signed integer scales. */
static void quant_k_symmetric(nrd_dtype t, const float *x, uint8_t *p)
{
    bool three = t == NRD_DTYPE_Q3_K;
    int half = three ? 4 : 32, s_lo = three ? -32 : -128;
    float s[16], peak = 0;
    int8_t q[QK_K];

    for (int j = 0; j < 16; j++) {
        s[j] = fit_symmetric(x + j * 16, 16, -half, half - 1, q + j * 16);
        peak = fabsf(s[j]) > fabsf(peak) ? s[j] : peak;
    }
    memset(p, 0, nrd_dtype_block_bytes(t));
    float d = put16(p + (three ? 108 : 208), peak / (float)s_lo);
    for (int j = 0; j < 16; j++) {
        int sc = d != 0 ? round_to(s[j] / d, s_lo, -s_lo - 1) : 0;
        float scale = d * (float)sc;
        for (int i = 0; i < 16; i++) {
            float v = x[j * 16 + i];
            q[j * 16 + i] = (int8_t)(scale != 0 ? round_to(v / scale, -half, half - 1) : 0);
        }
        if (three) {
            sc += 32;
            p[96 + j % 8] |= (uint8_t)((sc & 15) << (j / 8 * 4));
            p[96 + 8 + j % 4] |= (uint8_t)((sc >> 4) << (j / 4 * 2));
        } else {
            p[192 + j] = (uint8_t)(int8_t)sc;
        }
    }
    for (int i = 0; i < QK_K; i++) {
        int v = q[i] + half;
        if (three) {
            p[32 + i / 128 * 32 + i % 32] |= (uint8_t)((v & 3) << (i % 128 / 32 * 2));
            p[i % 32] |= (uint8_t)((v >> 2) << (i / 32));
        } else {
            int r = i % 128, quarter = r / 32;
            p[i / 128 * 64 + (quarter & 1) * 32 + r % 32] |= (uint8_t)((v & 15) << (quarter / 2 * 4));
            p[128 + i / 128 * 32 + r % 32] |= (uint8_t)((v >> 4) << (2 * quarter));
        }
    }
}

/* ---- IQ4: values of a table ---- */

static int iq4_nearest(float v)
{
    static const float middle[15] = {-115.5f, -93.5f, -74, -57, -42, -28.5f, -16, -4.5f,
                                     7, 19, 31.5f, 45.5f, 61, 79, 101};
    int i = 0;
    for (int step = 8; step; step /= 2) {
        i += v > middle[i + step - 1] ? step : 0;
    }
    return i;
}

/* A scale s with x ≈ s * value; the peak lands near the first value, which reaches furthest. */
static float fit_iq4(const float *x)
{
    float peak = 0, best_gain = -1, best_scale = 0;

    for (int i = 0; i < QK; i++) {
        peak = fabsf(x[i]) > fabsf(peak) ? x[i] : peak;
    }
    for (int trial = -7; trial <= 7 && fabsf(peak) > 1e-30f; trial++) {
        float inv = ((float)iq4_values[0] + (float)trial) / peak, xq = 0, qq = 0;
        for (int i = 0; i < QK; i++) {
            float v = (float)iq4_values[iq4_nearest(x[i] * inv)];
            xq += x[i] * v;
            qq += v * v;
        }
        if (xq * xq > best_gain * qq) {
            best_gain = xq * xq / qq;
            best_scale = xq / qq;
        }
    }
    return best_scale;
}

static void put_iq4(const float *x, float scale, uint8_t *qs)
{
    float inv = scale != 0 ? 1 / scale : 0;
    for (int i = 0; i < 16; i++) {
        qs[i] = (uint8_t)(iq4_nearest(x[i] * inv) | iq4_nearest(x[i + 16] * inv) << 4);
    }
}

static void quant_iq4_xs(const float *x, uint8_t *p)
{
    float s[8], peak = 0;

    for (int j = 0; j < 8; j++) {
        s[j] = fit_iq4(x + j * QK);
        peak = fabsf(s[j]) > fabsf(peak) ? s[j] : peak;
    }
    memset(p, 0, 8);
    float d = put16(p, peak / -32);
    for (int j = 0; j < 8; j++) {
        int sc = d != 0 ? round_to(s[j] / d, -32, 31) : 0, bits = sc + 32;
        p[4 + j / 2] |= (uint8_t)((bits & 15) << (j % 2 * 4));
        p[2 + j / 4] |= (uint8_t)((bits >> 4) << (j % 4 * 2));
        put_iq4(x + j * QK, d * (float)sc, p + 8 + j * 16);
    }
}

/* The format's own rule for the scale: the power of two of the largest number over that of the largest code, 4. */
static int mxfp4_exponent(const float *x)
{
    float peak = 0;
    int e = 0;

    for (int i = 0; i < QK; i++) {
        peak = fmaxf(peak, fabsf(x[i]));
    }
    if (!(peak > 0) || !isfinite(peak)) {
        return 0;
    }
    frexpf(peak, &e); /* peak = m 2^e, m in [1/2, 1) */
    return clampi(e - 1 - 2 + 127, 0, 254);
}

static int mxfp4_nearest(float v)
{
    int best = 0;
    for (int i = 1; i < 16; i++) {
        best = fabsf(v - (float)mxfp4_values[i]) < fabsf(v - (float)mxfp4_values[best]) ? i : best;
    }
    return best;
}

static void quant_mxfp4(const float *x, uint8_t *p)
{
    const int e = mxfp4_exponent(x);
    float v[QK];

    for (int i = 0; i < QK; i++) {
        v[i] = ldexpf(x[i], 128 - e);
    }
    p[0] = (uint8_t)e;
    for (int i = 0; i < 16; i++) {
        p[1 + i] = (uint8_t)(mxfp4_nearest(v[i]) | mxfp4_nearest(v[i + 16]) << 4);
    }
}

bool nrd_quantize_row(nrd_dtype t, const float *src, void *dst, int64_t n)
{
    uint8_t *p = dst;
    int64_t block = nrd_dtype_block(t);

    if (n < 0 || n % block) {
        return false;
    }
    for (int64_t i = 0; i < n; i += block, p += nrd_dtype_block_bytes(t)) {
        uint16_t h;
        switch (t) {
        case NRD_DTYPE_F32:
            memcpy(p, src + i, 4);
            break;
        case NRD_DTYPE_F16:
            put16(p, src[i]);
            break;
        case NRD_DTYPE_BF16:
            h = nrd_f32_to_bf16(src[i]);
            memcpy(p, &h, 2);
            break;
        case NRD_DTYPE_F8_E4M3:
            *p = nrd_f32_to_f8e4m3(src[i]);
            break;
        case NRD_DTYPE_Q4_0:
        case NRD_DTYPE_Q4_1:
        case NRD_DTYPE_Q5_0:
        case NRD_DTYPE_Q5_1:
        case NRD_DTYPE_Q8_0:
            quant_simple(t, src + i, p);
            break;
        case NRD_DTYPE_Q8_1:
            quant_q8_1(src + i, p);
            break;
        case NRD_DTYPE_Q2_K:
        case NRD_DTYPE_Q4_K:
        case NRD_DTYPE_Q5_K:
            quant_k_affine(t, src + i, p);
            break;
        case NRD_DTYPE_Q3_K:
        case NRD_DTYPE_Q6_K:
            quant_k_symmetric(t, src + i, p);
            break;
        case NRD_DTYPE_IQ4_NL:
            put_iq4(src + i, put16(p, fit_iq4(src + i)), p + 2);
            break;
        case NRD_DTYPE_IQ4_XS:
            quant_iq4_xs(src + i, p);
            break;
        case NRD_DTYPE_MXFP4:
            quant_mxfp4(src + i, p);
            break;
        case NRD_DTYPE_F8_B128:
        case NRD_DTYPE_MXFP8:
        case NRD_DTYPE_NVFP4:
        case NRD_DTYPE_NF4:
        case NRD_DTYPE_FP4:
            nrd_quantize_packed(t, src + i, p);
            break;
        default:
            return false;
        }
    }
    return true;
}
