/* SPDX-License-Identifier: Apache-2.0
 * linear, one tile of 16 rows against up to 16 tokens; included once per instruction set.
 *
 * Shapes    Tile: NRD_LAYOUT_TILE16. Panel: the tokens of one token tile, regrouped by
 *           linear_panel() so that all that belongs to 32 k of T tokens lies together:
 *             block types: int8 q[T][32], float d[T], float s[2][T], int32 o[2][T]
 *             (s = d * sum of a half block, o = -offset * sum), the next 32 k behind it;
 *             float types: x[k][T].
 * Result    out[t * out_stride + row], float32. For each (row, token) the same operations in the same order
 *           whatever T is: integer dots are exact, then one fma a scale group, k ascending.
 * Bound     T = 1: memory. T = 16: 8 dot instructions and 4 float ones per 32 k and token.
 */
#include "device/cpu/linear_kernels.h"
#include "device/cpu/simd.h"
#include "device/ops/layouts.h"
#include "device/ops/pack.h"

enum { PREFETCH_BYTES = 2048 };
/* With VNNI weights are asked for into L2: L1 has too few places for lines under way to have the memory busy. More tokens
 * take longer over a block, and their panel fills L1 meanwhile, so they ask earlier. */
#if NRD_ISA == 3
#define ASK_FOR_WEIGHTS(p, T) __builtin_prefetch((p) + ((T) < 8 ? 1 : 2) * PREFETCH_BYTES, 0, 2)
/* No gain with more tokens. The last argument must be a constant, which T is not where nothing is inlined. */
#define ASK_FOR_FLOATS(p, T) \
    ((T) < 8 ? __builtin_prefetch((p) + PREFETCH_BYTES, 0, 2) : __builtin_prefetch((p) + PREFETCH_BYTES))
#else
#define ASK_FOR_WEIGHTS(p, T) __builtin_prefetch((p) + PREFETCH_BYTES)
#define ASK_FOR_FLOATS ASK_FOR_WEIGHTS
#endif
enum { PANEL_Q8_BYTES = 52 }; /* a token's share of 32 k: 32 + 4 + 8 + 8 */
enum { PANEL_COLS = 128 };     /* of a float panel, regrouped at a time: 8 KiB */

#if NRD_ISA >= 2
/* Up to 16 blocks from `block` on of a panel of 16 tokens: what rows have block by block is transposed. */
NRD_KERNEL void panel_q8_16(const nrd_linear_panel *a, int64_t block, int n_blocks, uint8_t *p)
{
    const int64_t nb = nrd_act_q8_blocks(a->cols);
    const uint8_t *q[16];
    vf d[16], sums[16];

    NRD_UNROLL
    for (int t = 0; t < 16; t++) {
        const uint8_t *row = (const uint8_t *)a->x + (size_t)t * a->row_bytes;
        q[t] = row + block * 32;
        d[t] = vf_load_n((const float *)(const void *)(row + (nb * 8 + block) * 4), n_blocks);
        sums[t] = vf_load_n((const float *)(const void *)(row + (nb * 9 + block) * 4), n_blocks);
    }
    vf_transpose(d);
    vf_transpose(sums);
    for (int b = 0; b < n_blocks; b++, p += 16 * PANEL_Q8_BYTES) {
        float *s = (float *)(void *)(p + 16 * 36);
        const int other = a->halves ? 0 : 1;
        NRD_UNROLL
        for (int t = 0; t < 16; t++) {
            memcpy(p + t * 32, q[t] + b * 32, 32);
        }
        vf_store(s - 16, d[b]);
        vf_store(s, vf_mul(d[b], vf_from_vi(vi_weigh_pairs(sums[b], 1, other))));
        vf_store(s + 16, a->halves ? vf_mul(d[b], vf_from_vi(vi_weigh_pairs(sums[b], 0, 1))) : vf_zero());
        vi_store(s + 32, vi_weigh_pairs(sums[b], -a->offset, -a->offset * other));
        vi_store(s + 48, vi_weigh_pairs(sums[b], 0, a->halves ? -a->offset : 0));
    }
}
#endif

NRD_INLINE void panel_q8(const nrd_linear_panel *a, const int T)
{
    int64_t nb = nrd_act_q8_blocks(a->cols), b = 0;
    uint8_t *p = a->panel;

#if NRD_ISA >= 2
    for (int step; T == 16 && b < nb; b += step, p += step * 16 * PANEL_Q8_BYTES) {
        step = nb - b < 16 ? (int)(nb - b) : 16;
        panel_q8_16(a, b, step, p);
    }
#endif
    for (; b < a->n_blocks; b++, p += T * PANEL_Q8_BYTES) {
        int8_t *q = (int8_t *)p;
        float *d = (float *)(void *)(p + T * 32), *s = d + T;
        int32_t *o = (int32_t *)(void *)(s + 2 * T);
        if (b >= nb) { /* padding of a super block */
            memset(p, 0, (size_t)T * PANEL_Q8_BYTES);
            continue;
        }
        for (int t = 0; t < T; t++) {
            const uint8_t *row = (const uint8_t *)a->x + (size_t)t * a->row_bytes;
            const float *rd = (const float *)(const void *)(row + nb * 32);
            const int16_t *rs = (const int16_t *)(const void *)(rd + nb);
            int sum0 = rs[2 * b], sum1 = rs[2 * b + 1];
            memcpy(q + t * 32, row + b * 32, 32);
            d[t] = rd[b];
            if (a->halves) {
                s[t] = rd[b] * (float)sum0;
                s[T + t] = rd[b] * (float)sum1;
                o[t] = -a->offset * sum0;
                o[T + t] = -a->offset * sum1;
            } else {
                s[t] = rd[b] * (float)(sum0 + sum1);
                o[t] = -a->offset * (sum0 + sum1);
                s[T + t] = 0;
                o[T + t] = 0;
            }
        }
    }
}

/* x[k][T] of float types. */
static void panel_f(const nrd_linear_panel *a)
{
    float *p = (float *)(void *)a->panel;
    int64_t k0 = 0;

#if NRD_ISA >= 2
    for (; a->n_tokens == 16 && k0 + 16 <= a->cols; k0 += 16) {
        vf v[16];
        NRD_UNROLL
        for (int t = 0; t < 16; t++) {
            v[t] = vf_load((const float *)(const void *)((const uint8_t *)a->x + (size_t)t * a->row_bytes) + k0);
        }
        vf_transpose(v);
        NRD_UNROLL
        for (int i = 0; i < 16; i++) {
            vf_store(p + (k0 + i) * 16, v[i]);
        }
    }
#endif
    for (; k0 < a->cols; k0 += PANEL_COLS) { /* a piece stays in L1 */
        int64_t k1 = k0 + PANEL_COLS < a->cols ? k0 + PANEL_COLS : a->cols;
        for (int t = 0; t < a->n_tokens; t++) {
            const float *x = (const float *)(const void *)((const uint8_t *)a->x + (size_t)t * a->row_bytes);
            for (int64_t k = k0; k < k1; k++) {
                p[k * a->n_tokens + t] = x[k];
            }
        }
    }
}

#if NRD_ISA >= 4
static void mx_panel(const nrd_linear_panel *a);
#endif

static void linear_panel(const nrd_linear_panel *a)
{
#if NRD_ISA >= 4
    if (a->is_mx) {
        mx_panel(a);
        return;
    }
#endif
    if (a->is_float) {
        panel_f(a);
        float *p = (float *)(void *)a->panel;
        for (int t = 0; t < a->n_tokens && a->cols % 2; t++) {
            p[a->cols * a->n_tokens + t] = 0;
        }
        return;
    }
    switch (a->n_tokens) {
    case 1: panel_q8(a, 1); break;
    case 2: panel_q8(a, 2); break;
    case 4: panel_q8(a, 4); break;
    case 8: panel_q8(a, 8); break;
    default: panel_q8(a, 16); break;
    }
}

#define IS_8_BIT(type) ((type) == NRD_DTYPE_Q8_0 || (type) == NRD_DTYPE_Q8_1 || (type) == NRD_DTYPE_I8)
/* The table of IQ4, as unsigned bytes (value + 128). */
#define IS_IQ4(type) ((type) == NRD_DTYPE_IQ4_NL || (type) == NRD_DTYPE_IQ4_XS)
static const uint8_t iq4_bytes[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
/* The table of MXFP4, plus 12. */
static const uint8_t mxfp4_bytes[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

/* Integers of 32 k: eight vectors, one for each group of four k. */
NRD_KERNEL const uint8_t *load_ints(const int type, const uint8_t *p, vi w[8])
{
    const vi nib = vi_set1_8(15), two = vi_set1_8(3);

    if (IS_8_BIT(type)) {
        NRD_UNROLL
        for (int g = 0; g < 8; g++) {
            w[g] = vi_load(p + g * 64);
        }
        return p + 512;
    }
    if (type == NRD_DTYPE_Q5_0 || type == NRD_DTYPE_Q5_1 || type == NRD_DTYPE_Q5_K) {
        const vi bit = vi_set1_8(16);
        vi h = vi_load(p);
        p += 64;
        NRD_UNROLL
        for (int g = 0; g < 4; g++) {
            vi v = vi_load(p + g * 64);
            w[g] = vi_or(vi_and(v, nib), vi_and(vi_sll(h, 4 - g), bit));
            w[g + 4] = vi_or(vi_and(vi_srl(v, 4), nib), vi_and(g ? vi_srl(h, g) : h, bit));
        }
        return p + 256;
    }
    if (type == NRD_DTYPE_Q6_K) {
        const vi bits = vi_set1_8(48);
        vi h0 = vi_load(p), h1 = vi_load(p + 64);
        p += 128;
        NRD_UNROLL
        for (int g = 0; g < 4; g++) {
            vi v = vi_load(p + g * 64);
            w[g] = vi_or(vi_and(v, nib), vi_and(g < 2 ? vi_sll(h0, 4 - 2 * g) : g == 2 ? h0 : vi_srl(h0, 2), bits));
            w[g + 4] = vi_or(vi_and(vi_srl(v, 4), nib),
                             vi_and(g < 2 ? vi_sll(h1, 4 - 2 * g) : g == 2 ? h1 : vi_srl(h1, 2), bits));
        }
        return p + 256;
    }
    if (type == NRD_DTYPE_Q2_K || type == NRD_DTYPE_Q3_K) {
        vi h = vi_set1_8(0);
        const vi bit = vi_set1_8(4);
        if (type == NRD_DTYPE_Q3_K) {
            h = vi_load(p);
            p += 64;
        }
        NRD_UNROLL
        for (int g = 0; g < 8; g++) {
            vi v = vi_load(p + g / 4 * 64);
            w[g] = vi_and(g % 4 ? vi_srl(v, g % 4 * 2) : v, two);
            if (type == NRD_DTYPE_Q3_K) {
                w[g] = vi_or(w[g], vi_and(g < 2 ? vi_sll(h, 2 - g) : g == 2 ? h : vi_srl(h, g - 2), bit));
            }
        }
        return p + 128;
    }
    NRD_UNROLL
    for (int g = 0; g < 4; g++) {
        vi v = vi_load(p + g * 64);
        w[g] = vi_and(v, nib);
        w[g + 4] = vi_and(vi_srl(v, 4), nib);
        if (IS_IQ4(type) || type == NRD_DTYPE_MXFP4) {
            const uint8_t *table = type == NRD_DTYPE_MXFP4 ? mxfp4_bytes : iq4_bytes;
            w[g] = vi_lookup(table, w[g]);
            w[g + 4] = vi_lookup(table, w[g + 4]);
        }
    }
    return p + 256;
}

/* What a type is made of, as the kernels see it. Arguments are constants: these cost nothing. */
#define IS_K(type) (((type) >= NRD_DTYPE_Q2_K && (type) <= NRD_DTYPE_Q6_K) || (type) == NRD_DTYPE_IQ4_XS)
#define IS_HALVES(type) ((type) == NRD_DTYPE_Q2_K || (type) == NRD_DTYPE_Q3_K || (type) == NRD_DTYPE_Q6_K)
#define HAS_MIN(type)                                                                              \
    ((type) == NRD_DTYPE_Q4_1 || (type) == NRD_DTYPE_Q5_1 || (type) == NRD_DTYPE_Q8_1 ||           \
     (type) == NRD_DTYPE_Q2_K || (type) == NRD_DTYPE_Q4_K || (type) == NRD_DTYPE_Q5_K)
#define HAS_OFFSET(type) (!HAS_MIN(type) || (type) == NRD_DTYPE_Q8_1)
#define IS_5_BIT(type) ((type) == NRD_DTYPE_Q5_0 || (type) == NRD_DTYPE_Q5_1 || (type) == NRD_DTYPE_Q5_K)
#define BLOCK_BYTES(type) /* at most, with a share of the super block's head; for prefetches */    \
    ((type) == NRD_DTYPE_Q8_1   ? 576                                                              \
     : IS_8_BIT(type)           ? 544                                                              \
     : (type) == NRD_DTYPE_Q2_K ? 168                                                              \
     : (type) == NRD_DTYPE_Q3_K ? 228                                                              \
     : (type) == NRD_DTYPE_Q6_K ? 416                                                              \
     : IS_5_BIT(type)           ? 376                                                              \
                                : 300)
#define MAX_INT(type)                                                                              \
    (IS_8_BIT(type) || IS_IQ4(type)                ? 255                                           \
     : (type) == NRD_DTYPE_Q6_K                    ? 63                                            \
     : IS_5_BIT(type) || (type) == NRD_DTYPE_MXFP4 ? 31                                            \
                                                   : 15)

/* One of the tiles that are read side by side. */
typedef struct tile_stream {
    const uint8_t *w;
    vf head_d, head_m; /* of the super block */
} tile_stream;

/* Scales d and minima m of block b (of 32 k, or for each half of it); `s` goes on to its integers. */
NRD_KERNEL void load_scales(const int type, int64_t b, tile_stream *s, vf d[2], vf m[2])
{
    const uint8_t *w = s->w;

    m[0] = m[1] = s->head_m;
    d[0] = d[1] = s->head_d;
    if (IS_K(type)) {
        if (b % 8 == 0) {
            s->head_d = vf_load_f16(w);
            w += 32;
            if (HAS_MIN(type)) {
                s->head_m = vf_sub(vf_zero(), vf_load_f16(w));
                w += 32;
            }
        }
        if (type == NRD_DTYPE_Q2_K) { /* scale and min share a byte */
            NRD_UNROLL
            for (int h = 0; h < 2; h++) {
                vf both = vf_load_u8(w + h * 16);
                vf high = vf_round(vf_sub(vf_mul(both, vf_set1(1.0f / 16.0f)), vf_set1(15.0f / 32.0f)));
                d[h] = vf_mul(s->head_d, vf_sub(both, vf_mul(high, vf_set1(16.0f))));
                m[h] = vf_mul(s->head_m, high);
            }
        } else if (IS_HALVES(type)) {
            d[0] = vf_mul(s->head_d, vf_load_i8(w));
            d[1] = vf_mul(s->head_d, vf_load_i8(w + 16));
        } else if (type == NRD_DTYPE_IQ4_XS) {
            d[0] = vf_mul(s->head_d, vf_load_i8(w));
            w -= 16;
        } else {
            d[0] = vf_mul(s->head_d, vf_load_u8(w));
            m[0] = vf_mul(s->head_m, vf_load_u8(w + 16));
        }
        w += 32;
    } else if (type == NRD_DTYPE_I8) {
        d[0] = vf_set1(1.0f);
    } else {
        d[0] = type == NRD_DTYPE_MXFP4 ? vf_load_bf16(w) : vf_load_f16(w);
        w += 32;
        if (HAS_MIN(type)) {
            m[0] = vf_load_f16(w);
            w += 32;
        }
    }
    s->w = w;
}

enum { SIDE_MAX = 4 }; /* tokens whose dots are taken side by side */

/* sum[t] += the dots of n_groups x 4 k for SIDE tokens, whose bytes lie 32 apart at x. The dots of one token are a
 * chain of dependent instructions, so tokens alternate, and a single one has two chains. The integers are exact, so
 * no bit depends on it. */
NRD_KERNEL void dots(const int max, const int SIDE, const int n_groups, const vi *q, const uint8_t *x, vi *sum)
{
#ifdef NRD_DOT_PAIRS
    /* RUN products of two bytes below 128 and two integers up to max fit in 16 bits */
    const int fit = max <= 15 ? 8 : max <= 31 ? 4 : 2, RUN = fit < n_groups ? fit : n_groups;
    if (max <= 63) {
        NRD_UNROLL
        for (int g0 = 0; g0 < n_groups; g0 += RUN) {
            vi pairs[SIDE_MAX];
            NRD_UNROLL
            for (int t = 0; t < SIDE; t++) {
                pairs[t] = vi_set1_32(0);
            }
            NRD_UNROLL
            for (int g = 0; g < RUN; g++) {
                NRD_UNROLL
                for (int t = 0; t < SIDE; t++) {
                    pairs[t] = vi_dot_pairs(pairs[t], q[g0 + g], x + t * 32 + (g0 + g) * 4);
                }
            }
            NRD_UNROLL
            for (int t = 0; t < SIDE; t++) {
                sum[t] = vi_add_pairs(sum[t], pairs[t]);
            }
        }
        return;
    }
#endif
    vi second = vi_set1_32(0);
    NRD_UNROLL
    for (int g = 0; g < n_groups; g++) {
        NRD_UNROLL
        for (int t = 0; t < SIDE; t++) {
            vi *to = SIDE == 1 && g % 2 ? &second : &sum[t];
            *to = vi_dot(*to, q[g], x + t * 32 + g * 4, max);
        }
    }
    if (SIDE == 1) {
        sum[0] = vi_add(sum[0], second);
    }
}

/* S tiles, `step` bytes apart, against T of the panel's P tokens. A processor follows several
 * places of memory at once faster than one, so S tiles share a pass where reading is the limit. */
NRD_KERNEL void tile_q(const int type, const int S, const int T, const int P, const int first, const uint8_t *tile,
                       int64_t step, const uint8_t *panel, int64_t n_blocks, float *out, int64_t out_stride,
                       int64_t out_step)
{
    const int halves = IS_HALVES(type), has_min = HAS_MIN(type), has_offset = HAS_OFFSET(type);
    const int n_first = halves ? 4 : 8;
    const int max = MAX_INT(type);
    const int SIDE = T < SIDE_MAX ? T : SIDE_MAX, n_half = halves ? 2 : 1;
    vf acc[16];
    tile_stream streams[4];

    NRD_UNROLL
    for (int t = 0; t < S * T; t++) {
        acc[t] = vf_zero();
    }
    NRD_UNROLL
    for (int i = 0; i < S; i++) {
        streams[i] = (tile_stream){tile + i * step, vf_zero(), vf_zero()};
    }
    for (int64_t b = 0; b < n_blocks; b++, panel += P * PANEL_Q8_BYTES) {
        const uint8_t *x = panel + first * 32;
        const float *xd = (const float *)(const void *)(panel + P * 32) + first, *xs = xd + P;
        const int32_t *xo = (const int32_t *)(const void *)(xs + 2 * P);
        NRD_UNROLL
        for (int i = 0; i < S; i++) {
            tile_stream *s = &streams[i];
            vf d[2], m[2];
            vi q[8];

            load_scales(type, b, s, d, m);
            for (int at = 0; at < BLOCK_BYTES(type); at += 64) { /* tiles follow one another in memory */
                ASK_FOR_WEIGHTS(s->w + at, T);
            }
            s->w = load_ints(type, s->w, q);
            NRD_UNROLL
            for (int t0 = 0; t0 < T; t0 += SIDE) {
                NRD_UNROLL
                for (int h = 0; h < n_half; h++) {
                    vi sum[SIDE_MAX];
                    NRD_UNROLL
                    for (int t = 0; t < SIDE; t++) {
                        if (has_min) {
                            vf *at = &acc[i * T + t0 + t];
                            *at = vf_fma(m[h], vf_set1(xs[h * P + t0 + t]), *at);
                        }
                        sum[t] = has_offset ? vi_set1_32(xo[h * P + t0 + t]) : vi_set1_32(0);
                    }
                    dots(max, SIDE, n_first, q + h * 4, x + t0 * 32 + h * 16, sum);
                    NRD_UNROLL
                    for (int t = 0; t < SIDE; t++) {
                        vf *at = &acc[i * T + t0 + t];
                        *at = vf_fma(vf_from_vi(sum[t]), vf_mul(d[h], vf_set1(xd[t0 + t])), *at);
                    }
                }
            }
            if (S > 1 && T > 2) { /* a tile's integers are not loaded while the one before still has its own */
                __asm__ volatile("" ::: "memory");
            }
        }
    }
    NRD_UNROLL
    for (int i = 0; i < S; i++) {
        NRD_UNROLL
        for (int t = 0; t < T; t++) {
            vf_store(out + t * out_stride + i * out_step, acc[i * T + t]);
        }
    }
}

NRD_KERNEL void tile_f(const int type, const int S, const int T, const int P, const int first, const uint8_t *w,
                       int64_t step, const uint8_t *panel, int64_t cols, float *out, int64_t out_stride,
                       int64_t out_step)
{
    const float *x = (const float *)(const void *)panel + first;
    vf acc[16];

    NRD_UNROLL
    for (int t = 0; t < S * T; t++) {
        acc[t] = vf_zero();
    }
    if (type == NRD_DTYPE_BF16) {
        for (int64_t k = 0; k < cols; k += 2, w += 64, x += 2 * P) {
            NRD_UNROLL
            for (int i = 0; i < S; i++) {
                vi pair = vi_load(w + i * step);
                vf even = vi_bf16_even(pair), odd = vi_bf16_odd(pair);
                ASK_FOR_FLOATS(w + i * step, T);
                NRD_UNROLL
                for (int t = 0; t < T; t++) {
                    vf *at = &acc[i * T + t];
                    *at = vf_fma(even, vf_set1(x[t]), *at);
                    *at = vf_fma(odd, vf_set1(x[P + t]), *at);
                }
            }
        }
    } else {
        for (int64_t k = 0; k < cols; k++, x += P) {
            NRD_UNROLL
            for (int i = 0; i < S; i++) {
                const uint8_t *at = w + i * step;
                vf v = type == NRD_DTYPE_F32 ? vf_load((const float *)(const void *)at) : vf_load_f16(at);
                ASK_FOR_FLOATS(at, T);
                NRD_UNROLL
                for (int t = 0; t < T; t++) {
                    acc[i * T + t] = vf_fma(v, vf_set1(x[t]), acc[i * T + t]);
                }
            }
            w += type == NRD_DTYPE_F32 ? 64 : 32;
        }
    }
    NRD_UNROLL
    for (int i = 0; i < S; i++) {
        NRD_UNROLL
        for (int t = 0; t < T; t++) {
            vf_store(out + t * out_stride + i * out_step, acc[i * T + t]);
        }
    }
}

/* A column of a tile's 16 rows as floats. Of a 16-row vector of four k one byte is a row's: the dot with a one and three
 * zeros takes it out. */
NRD_KERNEL vf column_q(const int type, const nrd_tile16_format *f, const uint8_t *tile, int32_t col)
{
    const int32_t b = col / 32, in = col % 32, group = in / 4, h = IS_HALVES(type) ? in / 16 : 0;
    const int block = f->scale_bytes + f->hi_bytes + f->lo_bytes;
    const int two_bits = type == NRD_DTYPE_Q2_K || type == NRD_DTYPE_Q3_K, has_high = IS_5_BIT(type) || type == NRD_DTYPE_Q3_K || type == NRD_DTYPE_Q6_K;
    static const int8_t ones[2][7] = {{0, 0, 0, 1, 0, 0, 0}, {0, 0, 0, 16, 0, 0, 0}}, fours[7] = {0, 0, 0, 4, 0, 0, 0};
    tile_stream s = {tile + (int64_t)b * block, vf_zero(), vf_zero()};
    vf d[2], m[2];
    vi x;

    if (IS_K(type)) { /* the head of the super block is read with its first block's scales */
        s.w = tile + (int64_t)(b / 8) * (f->head_bytes + 8 * block);
        const uint8_t *at = s.w + f->head_bytes + b % 8 * block;
        load_scales(type, 0, &s, d, m);
        s.w = at;
        load_scales(type, 1, &s, d, m);
    } else {
        load_scales(type, 0, &s, d, m);
    }
    const uint8_t *low = s.w + f->hi_bytes;
    if (IS_8_BIT(type)) {
        x = vi_load(low + group * 64);
    } else if (two_bits) {
        x = vi_and(vi_srl_by(vi_load(low + group / 4 * 64), group % 4 * 2), vi_set1_8(3));
    } else {
        x = vi_and(vi_srl_by(vi_load(low + group % 4 * 64), group / 4 * 4), vi_set1_8(15));
    }
    if (IS_IQ4(type) || type == NRD_DTYPE_MXFP4) {
        x = vi_lookup(type == NRD_DTYPE_MXFP4 ? mxfp4_bytes : iq4_bytes, x);
    }
    vi sum = vi_dot(vi_set1_32(-f->offset), x, ones[0] + 3 - in % 4, MAX_INT(type));
    if (has_high) {
        const int wide = type == NRD_DTYPE_Q6_K;
        vi y = vi_load(s.w + (wide ? group / 4 * 64 : 0));
        y = vi_and(vi_srl_by(y, wide ? group % 4 * 2 : group), vi_set1_8(wide ? 3 : 1));
        sum = vi_dot(sum, y, (type == NRD_DTYPE_Q3_K ? fours : ones[1]) + 3 - in % 4, 15);
    }
    vf w = vf_mul(vf_from_vi(sum), h ? d[1] : d[0]);
    return HAS_MIN(type) ? vf_add(w, h ? m[1] : m[0]) : w;
}

NRD_KERNEL void add_columns(const int T, int32_t n, const vf *w, const float *rest, float *out, int64_t stride)
{
    vf sum[16];
    NRD_UNROLL
    for (int t = 0; t < T; t++) {
        sum[t] = vf_load(out + t * stride);
    }
    for (int32_t i = 0; i < n; i++, rest += T) {
        NRD_UNROLL
        for (int t = 0; t < T; t++) {
            sum[t] = vf_fma(w[i], vf_set1(rest[t]), sum[t]);
        }
    }
    NRD_UNROLL
    for (int t = 0; t < T; t++) {
        vf_store(out + t * stride, sum[t]);
    }
}

NRD_KERNEL void far_q(const int type, const nrd_tile16_format *f, const nrd_linear_far_job *j)
{
    const nrd_linear_far *far = j->far;
    vf w[NRD_LINEAR_MX_TOKENS];

    for (int64_t i = 0; i < j->n_tiles; i++) {
        const uint8_t *tile = j->tiles + (size_t)i * j->tile_bytes;
        float *out = j->out + i * 16;
        for (int32_t k = 0; k < far->n; k++) {
            w[k] = column_q(type, f, tile, far->col[k]);
        }
        switch (j->n_tokens == j->width ? j->width : 0) {
        case 1: add_columns(1, far->n, w, far->rest, out, j->stride); break;
        case 2: add_columns(2, far->n, w, far->rest, out, j->stride); break;
        case 4: add_columns(4, far->n, w, far->rest, out, j->stride); break;
        case 8: add_columns(8, far->n, w, far->rest, out, j->stride); break;
        case 16: add_columns(16, far->n, w, far->rest, out, j->stride); break;
        default:
            for (int t = 0; t < j->n_tokens; t++, out += j->stride) {
                vf sum = vf_load(out);
                for (int32_t k = 0; k < far->n; k++) {
                    sum = vf_fma(w[k], vf_set1(far->rest[k * j->width + t]), sum);
                }
                vf_store(out, sum);
            }
        }
    }
}

#define FAR_CASE(type)                                                                             \
    case NRD_DTYPE_##type: far_q(NRD_DTYPE_##type, f, j); break;
static void linear_far(nrd_dtype type, const nrd_linear_far_job *j)
{
    const nrd_tile16_format *f = nrd_tile16_format_of(type);

    switch (type) {
        FAR_CASE(Q4_0)
        FAR_CASE(Q4_1)
        FAR_CASE(Q5_0)
        FAR_CASE(Q5_1)
        FAR_CASE(Q8_0)
        FAR_CASE(Q8_1)
        FAR_CASE(I8)
        FAR_CASE(Q2_K)
        FAR_CASE(Q3_K)
        FAR_CASE(Q4_K)
        FAR_CASE(Q5_K)
        FAR_CASE(Q6_K)
        FAR_CASE(IQ4_NL)
        FAR_CASE(IQ4_XS)
        FAR_CASE(MXFP4)
    default:
        break;
    }
}

/* AVX2 has 16 registers of 8 lanes: more than 4 tokens at a time would spill. The tile stays in L1
 * while its panel is taken in four. */
#define TILE_T(kind, type, n)                                                                      \
    static void tile_##type##_##n(const uint8_t *w, int64_t step, const uint8_t *x, int64_t len,   \
                                  float *out, int64_t out_stride, int64_t out_step)                \
    {                                                                                              \
        enum { STEP = NRD_ISA == 1 && n > 4 ? 4 : n };                                             \
        for (int first = 0; first < n; first += STEP) {                                            \
            tile_##kind(NRD_DTYPE_##type, 1, STEP, n, first, w, step, x, len, out + first * out_stride, \
                        out_stride, out_step);                                                     \
        }                                                                                          \
    }
#define STREAMS_T(kind, type, n, s)                                                                \
    static void streams_##type##_##n(const uint8_t *w, int64_t step, const uint8_t *x, int64_t len, \
                                     float *out, int64_t out_stride, int64_t out_step)             \
    {                                                                                              \
        tile_##kind(NRD_DTYPE_##type, s, n, n, 0, w, step, x, len, out, out_stride, out_step);     \
    }
/* For the same reason AVX2 takes 4 tokens and more from one tile after the other. */
#if NRD_ISA == 1
#define MORE_STREAMS(kind, type)
#define STREAMS_OF(type, n) NULL
#else
#define MORE_STREAMS(kind, type) STREAMS_T(kind, type, 4, 4) STREAMS_T(kind, type, 8, 2)
#define STREAMS_OF(type, n) streams_##type##_##n
#endif
#define TILE(kind, type)                                                                           \
    TILE_T(kind, type, 1) TILE_T(kind, type, 2) TILE_T(kind, type, 4) TILE_T(kind, type, 8)        \
    TILE_T(kind, type, 16)                                                                         \
    STREAMS_T(kind, type, 1, 4) STREAMS_T(kind, type, 2, 4) MORE_STREAMS(kind, type)
TILE(q, Q4_0)
TILE(q, Q4_1)
TILE(q, Q5_0)
TILE(q, Q5_1)
TILE(q, Q8_0)
TILE(q, Q8_1)
TILE(q, I8)
TILE(q, Q2_K)
TILE(q, Q3_K)
TILE(q, Q4_K)
TILE(q, Q5_K)
TILE(q, Q6_K)
TILE(q, IQ4_NL)
TILE(q, IQ4_XS)
TILE(q, MXFP4)
TILE(f, F32)
TILE(f, F16)
TILE(f, BF16)

#define TILE_ROW(type)                                                                             \
    case NRD_DTYPE_##type: {                                                                       \
        static const nrd_linear_tile_fn one[5] = {tile_##type##_1, tile_##type##_2, tile_##type##_4, \
                                                  tile_##type##_8, tile_##type##_16};              \
        static const nrd_linear_tile_fn many[5] = {streams_##type##_1, streams_##type##_2, \
                                                   STREAMS_OF(type, 4), STREAMS_OF(type, 8)};      \
        return (side_by_side ? many : one)[log2_tokens];                                           \
    }
static nrd_linear_tile_fn linear_tile(nrd_dtype type, int log2_tokens, bool side_by_side)
{
    switch (type) {
        TILE_ROW(Q4_0)
        TILE_ROW(Q4_1)
        TILE_ROW(Q5_0)
        TILE_ROW(Q5_1)
        TILE_ROW(Q8_0)
        TILE_ROW(Q8_1)
        TILE_ROW(I8)
        TILE_ROW(Q2_K)
        TILE_ROW(Q3_K)
        TILE_ROW(Q4_K)
        TILE_ROW(Q5_K)
        TILE_ROW(Q6_K)
        TILE_ROW(IQ4_NL)
        TILE_ROW(IQ4_XS)
        TILE_ROW(MXFP4)
        TILE_ROW(F32)
        TILE_ROW(F16)
        TILE_ROW(BF16)
    default:
        return NULL;
    }
}

/* y[0..n) = softcap(out * scale + bias), one token's share of a tile. */
static void linear_finish(const float *out, const float *scale, const float *bias, float softcap, int n,
                          float *y)
{
    vf v = vf_load(out);

    if (scale) {
        v = vf_mul(v, vf_load_n(scale, n));
    }
    if (bias) {
        v = vf_add(v, vf_load_n(bias, n));
    }
    if (softcap > 0) {
        v = vf_mul(vf_set1(softcap), vf_tanh(vf_div(v, vf_set1(softcap))));
    }
    vf_store_n(y, v, n);
}
