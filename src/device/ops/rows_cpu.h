/* SPDX-License-Identifier: Apache-2.0
 * Row-wise operations: quantization to ACT_Q8, norm, activation, rotary embedding. Bound: memory. */
#include "device/cpu/simd.h"
#include "device/ops/ops.h"

#if NRD_ISA >= 2
/* Sixteen whole blocks: their scales and sums are found side by side in vectors, with the bits that one has alone. */
NRD_INLINE void act_q8_16(const float *x, float *scale, int16_t *sum, int8_t *q)
{
    vf peak[16];
    float inv[16];

    NRD_UNROLL
    for (int b = 0; b < 16; b++) {
        peak[b] = vf_max(vf_abs(vf_load(x + b * 32)), vf_abs(vf_load(x + b * 32 + 16)));
    }
    const vf top = vf_hmax_16(peak);
    vf_store(inv, vf_gt(top, vf_zero(), vf_div(vf_set1(127.0f), top), vf_zero()));
    vf_store(scale, vf_div(top, vf_set1(127.0f)));
    for (int b = 0; b < 16; b++) {
        vf_store_bytes(q + b * 32, vf_mul(vf_load(x + b * 32), vf_set1(inv[b])));
        vf_store_bytes(q + b * 32 + 16, vf_mul(vf_load(x + b * 32 + 16), vf_set1(inv[b])));
    }
    for (int b = 0; b < 16; b += 8) {
        vi_store_sums(sum + b * 2, q + b * 32);
    }
}
#endif

/* Blocks [block, ...) of a row of `row_cols` columns from x[0..n); n ends at the row's end or on a
 * block. */
static void act_q8_part(const float *x, int64_t n, int64_t block, int64_t row_cols, void *row)
{
    int64_t row_blocks = nrd_act_q8_blocks(row_cols), blocks = nrd_act_q8_blocks(n), b = 0;
    float *scale = (float *)(void *)((int8_t *)row + row_blocks * 32) + block;
    int16_t *sum = (int16_t *)(void *)((int8_t *)row + row_blocks * 36) + 2 * block;
    int8_t *q = (int8_t *)row + block * 32;

#if NRD_ISA >= 2
    for (; b + 16 <= n / 32; b += 16) {
        act_q8_16(x + b * 32, scale + b, sum + 2 * b, q + b * 32);
    }
#endif
    for (; b < blocks; b++) {
        int64_t left = n - b * 32;
        vf u, v;
        if (left >= 32) {
            u = vf_load(x + b * 32);
            v = vf_load(x + b * 32 + 16);
        } else {
            u = vf_load_n(x + b * 32, left < 16 ? (int)left : 16);
            v = left > 16 ? vf_load_n(x + b * 32 + 16, (int)left - 16) : vf_zero();
        }
        float peak = vf_hmax(vf_max(vf_abs(u), vf_abs(v)));
        vf inv = vf_set1(peak > 0 ? 127.0f / peak : 0);
        scale[b] = peak / 127.0f;
        sum[2 * b] = (int16_t)vf_store_i8(q + b * 32, vf_mul(u, inv));
        sum[2 * b + 1] = (int16_t)vf_store_i8(q + b * 32 + 16, vf_mul(v, inv));
    }
}

static void act_q8_row(const float *x, int64_t cols, void *row)
{
    act_q8_part(x, cols, 0, cols, row);
}

NRD_INLINE vf load_some(const float *p, int64_t left)
{
    return left >= 16 ? vf_load(p) : vf_load_n(p, (int)left);
}

NRD_INLINE void store_some(float *p, vf v, int64_t left)
{
    if (left >= 16) {
        vf_store(p, v);
    } else {
        vf_store_n(p, v, (int)left);
    }
}

static void add_row(float *x, const float *d, int64_t n)
{
    for (int64_t k = 0; k < n; k += 16) {
        store_some(x + k, vf_add(load_some(x + k, n - k), load_some(d + k, n - k)), n - k);
    }
}

/* y = norm(x) * w (+ b); y may be x. */
static void norm_row(nrd_norm_kind kind, float eps, int64_t n, const float *x, const float *w, const float *b, float *y)
{
    vf s0 = vf_zero(), s1 = vf_zero(), mean = vf_zero();

    if (kind == NRD_NORM_LAYER) {
        for (int64_t k = 0; k < n; k += 16) {
            s0 = vf_add(s0, load_some(x + k, n - k));
        }
        mean = vf_set1(vf_sum(s0) / (float)n);
        s0 = vf_zero();
    }
    int64_t k = 0;
    for (; k + 32 <= n; k += 32) {
        vf u = vf_sub(vf_load(x + k), mean), v = vf_sub(vf_load(x + k + 16), mean);
        s0 = vf_fma(u, u, s0);
        s1 = vf_fma(v, v, s1);
    }
    for (; k < n; k += 16) {
        vf u = vf_sub(load_some(x + k, n - k), mean);
        if (n - k < 16) { /* lanes beyond the row hold -mean: out again */
            float t[16];
            vf_store(t, u);
            u = vf_load_n(t, (int)(n - k));
        }
        s0 = vf_fma(u, u, s0);
    }
    vf scale = vf_set1(1.0f / sqrtf(vf_sum(vf_add(s0, s1)) / (float)n + eps));
    for (k = 0; k < n; k += 16) {
        vf v = vf_mul(vf_mul(vf_sub(load_some(x + k, n - k), mean), scale), load_some(w + k, n - k));
        if (b) {
            v = vf_add(v, load_some(b + k, n - k));
        }
        store_some(y + k, v, n - k);
    }
}

NRD_INLINE vf vf_erf(vf x) /* Abramowitz & Stegun 7.1.26: absolute error below 1.5e-7 */
{
    vf a = vf_abs(x), t = vf_div(vf_set1(1.0f), vf_fma(a, vf_set1(0.3275911f), vf_set1(1.0f)));
    vf p = vf_set1(1.061405429f);
    p = vf_fma(p, t, vf_set1(-1.453152027f));
    p = vf_fma(p, t, vf_set1(1.421413741f));
    p = vf_fma(p, t, vf_set1(-0.284496736f));
    p = vf_fma(p, t, vf_set1(0.254829592f));
    p = vf_mul(p, t);
    vf e = vf_sub(vf_set1(1.0f), vf_mul(p, vf_exp(vf_sub(vf_zero(), vf_mul(a, a)))));
    return vf_gt(x, vf_zero(), e, vf_sub(vf_zero(), e));
}

NRD_INLINE vf act_vec(const nrd_act_kind kind, vf x)
{
    const vf one = vf_set1(1.0f), half = vf_set1(0.5f);

    switch (kind) {
    case NRD_ACT_SILU:
        return vf_div(x, vf_add(one, vf_exp(vf_sub(vf_zero(), x))));
    case NRD_ACT_GELU_TANH: {
        vf u = vf_mul(vf_set1(0.7978845608f), vf_fma(vf_mul(vf_mul(x, x), vf_set1(0.044715f)), x, x));
        return vf_mul(vf_mul(half, x), vf_add(one, vf_tanh(u)));
    }
    case NRD_ACT_GELU_ERF:
        return vf_mul(vf_mul(half, x), vf_add(one, vf_erf(vf_mul(x, vf_set1(0.70710678f)))));
    case NRD_ACT_RELU:
        return vf_max(x, vf_zero());
    case NRD_ACT_RELU2: {
        vf r = vf_max(x, vf_zero());
        return vf_mul(r, r);
    }
    case NRD_ACT_CLAMPED_SWIGLU: {
        vf g = vf_min(x, vf_set1(NRD_SWIGLU_LIMIT));
        return vf_div(g, vf_add(one, vf_exp(vf_mul(g, vf_set1(-NRD_SWIGLU_ALPHA)))));
    }
    case NRD_ACT_QUICK_GELU:
        return vf_div(x, vf_add(one, vf_exp(vf_mul(x, vf_set1(-NRD_QUICK_GELU_ALPHA)))));
    default:
        return x;
    }
}

/* Into L2: the processor itself looks ahead only as far as a page, and L1 has few lines under way at a time. */
NRD_INLINE void act_loop(const nrd_act_kind kind, const float *x, const float *gate, int64_t n, int64_t next, float *y)
{
    for (int64_t k = 0; k < n; k += 16) {
        __builtin_prefetch(x + k + next, 0, 2);
        vf v = act_vec(kind, load_some(x + k, n - k));
        if (gate) {
            vf u = load_some(gate + k, n - k);
            __builtin_prefetch(gate + k + next, 0, 2);
            if (kind == NRD_ACT_CLAMPED_SWIGLU) {
                u = vf_add(vf_min(vf_max(u, vf_set1(-NRD_SWIGLU_LIMIT)), vf_set1(NRD_SWIGLU_LIMIT)), vf_set1(1.0f));
            }
            v = vf_mul(v, u);
        }
        store_some(y + k, v, n - k);
    }
}

static void act_row(nrd_act_kind kind, const float *x, const float *gate, int64_t n, int64_t next, float *y)
{
    switch (kind) {
    case NRD_ACT_SILU: act_loop(NRD_ACT_SILU, x, gate, n, next, y); break;
    case NRD_ACT_GELU_TANH: act_loop(NRD_ACT_GELU_TANH, x, gate, n, next, y); break;
    case NRD_ACT_GELU_ERF: act_loop(NRD_ACT_GELU_ERF, x, gate, n, next, y); break;
    case NRD_ACT_RELU: act_loop(NRD_ACT_RELU, x, gate, n, next, y); break;
    case NRD_ACT_RELU2: act_loop(NRD_ACT_RELU2, x, gate, n, next, y); break;
    case NRD_ACT_CLAMPED_SWIGLU: act_loop(NRD_ACT_CLAMPED_SWIGLU, x, gate, n, next, y); break;
    case NRD_ACT_QUICK_GELU: act_loop(NRD_ACT_QUICK_GELU, x, gate, n, next, y); break;
    default: act_loop(NRD_ACT_NONE, x, gate, n, next, y); break;
    }
}

/* e^t - 1 - t: where t is small, by its series, since the difference would have few digits left. */
NRD_INLINE vf exp_rest(vf t)
{
    vf p = vf_set1(1.0f / 362880);
    p = vf_fma(p, t, vf_set1(1.0f / 40320));
    p = vf_fma(p, t, vf_set1(1.0f / 5040));
    p = vf_fma(p, t, vf_set1(1.0f / 720));
    p = vf_fma(p, t, vf_set1(1.0f / 120));
    p = vf_fma(p, t, vf_set1(1.0f / 24));
    p = vf_fma(p, t, vf_set1(1.0f / 6));
    p = vf_fma(p, t, vf_set1(0.5f));
    vf far = vf_sub(vf_sub(vf_exp(t), vf_set1(1.0f)), t);
    return vf_gt(t, vf_set1(-1.0f), vf_mul(p, vf_mul(t, t)), far);
}

static void xielu_row(const float *x, float above, float below, int64_t n, float *y)
{
    for (int64_t k = 0; k < n; k += 16) {
        vf v = load_some(x + k, n - k), t = vf_min(v, vf_set1(NRD_XIELU_EPS));
        vf neg = vf_mul(vf_set1(below), vf_add(exp_rest(t), vf_sub(t, v)));
        vf pos = vf_mul(vf_set1(above), vf_mul(v, v));
        store_some(y + k, vf_fma(vf_set1(0.5f), v, vf_gt(v, vf_zero(), pos, neg)), n - k);
    }
}

static void row_moments(const float *x, int64_t n, float *out_mean, float *out_deviation)
{
    vf sum = vf_zero(), square = vf_zero();

    for (int64_t k = 0; k < n; k += 16) {
        sum = vf_add(sum, load_some(x + k, n - k));
    }
    const float mean = vf_sum(sum) / (float)n;
    for (int64_t k = 0; k < n; k += 16) {
        vf d = vf_sub(load_some(x + k, n - k), vf_set1(mean));
        if (n - k < 16) { /* lanes beyond the row hold -mean: out again */
            float t[16];
            vf_store(t, d);
            d = vf_load_n(t, (int)(n - k));
        }
        square = vf_fma(d, d, square);
    }
    *out_mean = mean;
    *out_deviation = sqrtf(vf_sum(square) / (float)n);
}

static void above_row(const float *x, float limit, int64_t n, float *y)
{
    for (int64_t k = 0; k < n; k += 16) {
        store_some(y + k, vf_max(vf_sub(load_some(x + k, n - k), vf_set1(limit)), vf_zero()), n - k);
    }
}

static void scale_row(float *x, float scale, const float *add, int64_t n)
{
    for (int64_t k = 0; k < n; k += 16) {
        vf v = vf_mul(load_some(x + k, n - k), vf_set1(scale));
        if (add) {
            v = vf_add(v, load_some(add + k, n - k));
        }
        store_some(x + k, v, n - k);
    }
}

static void gain_row(float *x, const float *gain, const float *add, int64_t n)
{
    for (int64_t k = 0; k < n; k += 16) {
        store_some(x + k, vf_fma(load_some(x + k, n - k), load_some(gain + k, n - k), load_some(add + k, n - k)), n - k);
    }
}

/* cos and sin of pos * inv_freq[0..n), times scale. */
static void rope_angles(int32_t pos, const float *inv_freq, int32_t n, float scale, float *cos_out, float *sin_out)
{
    for (int32_t k = 0; k < n; k += 16) {
        vf s, c;
        vf_sincos(vf_mul(vf_set1((float)pos), load_some(inv_freq + k, n - k)), &s, &c);
        store_some(cos_out + k, vf_mul(c, vf_set1(scale)), n - k);
        store_some(sin_out + k, vf_mul(s, vf_set1(scale)), n - k);
    }
}

static void rope_head(float *x, nrd_rope_kind kind, int32_t half, const float *c, const float *s)
{
    if (kind == NRD_ROPE_NEOX) {
        for (int32_t k = 0; k < half; k += 16) {
            int32_t left = half - k;
            vf u = load_some(x + k, left), v = load_some(x + half + k, left);
            vf vc = load_some(c + k, left), vs = load_some(s + k, left);
            store_some(x + k, vf_sub(vf_mul(u, vc), vf_mul(v, vs)), left);
            store_some(x + half + k, vf_fma(u, vs, vf_mul(v, vc)), left);
        }
        return;
    }
    for (int32_t i = 0; i < half; i++) {
        float u = x[2 * i], v = x[2 * i + 1];
        x[2 * i] = u * c[i] - v * s[i];
        x[2 * i + 1] = u * s[i] + v * c[i];
    }
}

/* One head of K (scattered: 16 tokens lie side by side) or V into the cache. */
static void kv_store_head(nrd_dtype t, const float *x, int32_t dim, float scale, void *dst, int64_t first, int64_t step)
{
    if (t == NRD_DTYPE_F16) {
        uint16_t h[16];
        uint16_t *out = (uint16_t *)dst + first;
        for (int32_t d = 0; d < dim; d += 16) {
            int32_t n = dim - d < 16 ? dim - d : 16;
            vf_store_f16(h, load_some(x + d, n));
            for (int32_t i = 0; i < n; i++) {
                out[(d + i) * step] = h[i];
            }
        }
        return;
    }
    if (t == NRD_DTYPE_F32) {
        float *out = (float *)dst + first;
        for (int32_t d = 0; d < dim; d++) {
            out[d * step] = x[d];
        }
        return;
    }
    for (int32_t d = 0; d < dim; d++) {
        nrd_kv_store(t, dst, first + d * step, scale, x[d]);
    }
}
