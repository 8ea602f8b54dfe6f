/* SPDX-License-Identifier: Apache-2.0
 * linear for many tokens: two tiles of rows unpacked once, then 16 tokens at a time; included once per instruction set, after
 * device/ops/linear_cpu.h.
 *
 * Unpacked, a block of 32 k is 8 x 2 vectors of integers (group of k, tile), then for each half (one,
 * or two with `halves`) d of both tiles and m of both. Two tiles share every number of x that is
 * spread over a vector, so that the two ports of dots are busy and those of loads are not the limit. */
#if NRD_ISA >= 2
NRD_KERNEL void unpack_q(const int type, const uint8_t *tile, int64_t step, int64_t n_blocks, uint8_t *room)
{
    const int n_half = IS_HALVES(type) ? 2 : 1;
    tile_stream streams[2] = {{tile, vf_zero(), vf_zero()}, {tile + step, vf_zero(), vf_zero()}};

    for (int64_t b = 0; b < n_blocks; b++) {
        float *scales = (float *)(void *)(room + 1024);
        for (int i = 0; i < 2; i++) {
            vf d[2], m[2];
            vi q[8];
            load_scales(type, b, &streams[i], d, m);
            for (int at = 0; at < BLOCK_BYTES(type); at += 64) { /* the pair after this one */
                __builtin_prefetch(streams[i].w + 2 * step + at, 0, 2);
            }
            streams[i].w = load_ints(type, streams[i].w, q);
            NRD_UNROLL
            for (int g = 0; g < 8; g++) {
                vi_store(room + (g * 2 + i) * 64, q[g]);
            }
            NRD_UNROLL
            for (int h = 0; h < n_half; h++) {
                vf_store(scales + (h * 2 + i) * 16, d[h]);
                if (HAS_MIN(type)) {
                    vf_store(scales + ((n_half + h) * 2 + i) * 16, m[h]);
                }
            }
        }
        room += 1024 + 128 * n_half * (HAS_MIN(type) ? 2 : 1);
    }
}

NRD_KERNEL void wide_q(const int halves, const int has_min, const int has_offset, const int max, const uint8_t *room,
                       const uint8_t *panel, int64_t n_blocks, bool is_first, float *y, int64_t y_stride)
{
    enum { P = 16, T = 8, SIDE = 4 };
    const int n_half = halves ? 2 : 1, n_group = halves ? 4 : 8;
    const int64_t room_step = 1024 + 128 * n_half * (has_min ? 2 : 1);

    for (int first = 0; first < P; first += T) {
        const uint8_t *u = room, *p = panel;
        vf acc[2 * T];
        NRD_UNROLL
        for (int t = 0; t < T; t++) {
            const float *at = y + (first + t) * y_stride;
            acc[2 * t] = is_first ? vf_zero() : vf_load(at);
            acc[2 * t + 1] = is_first ? vf_zero() : vf_load(at + 16);
        }
        for (int64_t b = 0; b < n_blocks; b++, p += P * PANEL_Q8_BYTES, u += room_step) {
            const uint8_t *x = p + first * 32;
            const float *xd = (const float *)(const void *)(p + P * 32) + first, *xs = xd + P;
            const int32_t *xo = (const int32_t *)(const void *)(xs + 2 * P);
            const float *scales = (const float *)(const void *)(u + 1024);
            NRD_UNROLL
            for (int t0 = 0; t0 < T; t0 += SIDE) {
                NRD_UNROLL
                for (int h = 0; h < n_half; h++) {
                    const float *d = scales + h * 32, *m = scales + (n_half + h) * 32;
                    vi sum[2 * SIDE];
                    NRD_UNROLL
                    for (int t = 0; t < SIDE; t++) {
                        sum[2 * t] = sum[2 * t + 1] = has_offset ? vi_set1_32(xo[h * P + t0 + t]) : vi_set1_32(0);
                    }
                    NRD_UNROLL
                    for (int g = 0; g < n_group; g++) {
                        vi q0 = vi_load(u + (h * 4 + g) * 128), q1 = vi_load(u + (h * 4 + g) * 128 + 64);
                        NRD_UNROLL
                        for (int t = 0; t < SIDE; t++) {
                            const uint8_t *k = x + (t0 + t) * 32 + (h * 4 + g) * 4;
                            sum[2 * t] = vi_dot(sum[2 * t], q0, k, max);
                            sum[2 * t + 1] = vi_dot(sum[2 * t + 1], q1, k, max);
                        }
                        __asm__ volatile("" ::: "memory"); /* loads stay in order: nothing is spilled */
                    }
                    NRD_UNROLL
                    for (int t = 0; t < SIDE; t++) {
                        NRD_UNROLL
                        for (int i = 0; i < 2; i++) {
                            vf *at = &acc[2 * (t0 + t) + i];
                            if (has_min) { /* before the dots, as in tile_q() */
                                *at = vf_fma(vf_load(m + i * 16), vf_set1(xs[h * P + t0 + t]), *at);
                            }
                            *at = vf_fma(vf_from_vi(sum[2 * t + i]),
                                         vf_mul(vf_load(d + i * 16), vf_set1(xd[t0 + t])), *at);
                        }
                    }
                }
            }
        }
        NRD_UNROLL
        for (int t = 0; t < T; t++) {
            float *at = y + (first + t) * y_stride;
            vf_store(at, acc[2 * t]);
            vf_store(at + 16, acc[2 * t + 1]);
        }
    }
}

/* Float types: a room of 2 x 16 floats for every column. The sums are begun and gone on with in the same
 * order as tile_f's, so that a token's results do not depend on how many others there are. */
enum { LONG_PAIR_BYTES = 256 << 10 }; /* 2048 x 8192 f16, 64 and 512 tokens: 6 % faster; 576 columns: 2 % slower */
NRD_KERNEL void unpack_f(const int type, const uint8_t *tile, int64_t step, int64_t n_cols, uint8_t *room)
{
    const int at_once = type == NRD_DTYPE_BF16 ? 2 : 1, bytes = type == NRD_DTYPE_F16 ? 32 : 64;
    /* The pair after this one; of long rows the columns after these: L2 would have lost that pair again. */
    const int64_t ahead = 2 * step > LONG_PAIR_BYTES ? n_cols / at_once * bytes : 2 * step;

    for (int64_t k = 0; k < n_cols; k += at_once, tile += bytes) {
        float *u = (float *)(void *)(room + k * 128);
        NRD_UNROLL
        for (int i = 0; i < 2; i++) {
            const uint8_t *at = tile + i * step;
            __builtin_prefetch(at + ahead, 0, 2);
            if (type == NRD_DTYPE_BF16) {
                vi pair = vi_load(at);
                vf_store(u + i * 16, vi_bf16_even(pair));
                if (k + 1 < n_cols) {
                    vf_store(u + 32 + i * 16, vi_bf16_odd(pair));
                }
            } else {
                vf_store(u + i * 16, type == NRD_DTYPE_F32 ? vf_load((const float *)(const void *)at) : vf_load_f16(at));
            }
        }
    }
}

static void wide_f(const uint8_t *room, const uint8_t *panel, int64_t panel_step, int64_t n_cols, bool is_first,
                   float *y, int64_t y_stride)
{
    enum { P = 16, T = 8 };

    for (int first = 0; first < P; first += T) {
        const float *u = (const float *)(const void *)room, *x = (const float *)(const void *)panel + first;
        vf acc[2 * T];
        NRD_UNROLL
        for (int t = 0; t < T; t++) {
            const float *at = y + (first + t) * y_stride;
            acc[2 * t] = is_first ? vf_zero() : vf_load(at);
            acc[2 * t + 1] = is_first ? vf_zero() : vf_load(at + 16);
        }
        for (int64_t k = 0; k < n_cols; k++, u += 32, x += P) {
            vf w0 = vf_load(u), w1 = vf_load(u + 16);
            __builtin_prefetch((const uint8_t *)x + panel_step, 0, 2); /* the next 16 tokens' */
            NRD_UNROLL
            for (int t = 0; t < T; t++) {
                vf v = vf_set1(x[t]);
                acc[2 * t] = vf_fma(w0, v, acc[2 * t]);
                acc[2 * t + 1] = vf_fma(w1, v, acc[2 * t + 1]);
            }
        }
        NRD_UNROLL
        for (int t = 0; t < T; t++) {
            float *at = y + (first + t) * y_stride;
            vf_store(at, acc[2 * t]);
            vf_store(at + 16, acc[2 * t + 1]);
        }
    }
}

#define WIDE(name, halves, has_min, has_offset, max)                                               \
    static void wide_##name(const uint8_t *room, const uint8_t *panel, int64_t panel_step, int64_t n_blocks, \
                            bool is_first, float *y, int64_t y_stride)                             \
    {                                                                                              \
        (void)panel_step;                                                                          \
        wide_q(halves, has_min, has_offset, max, room, panel, n_blocks, is_first, y, y_stride);    \
    }
WIDE(min, 0, 1, 0, 63)
WIDE(min_halves, 1, 1, 0, 63)
WIDE(offset, 0, 0, 1, 63)
WIDE(offset_halves, 1, 0, 1, 63)
WIDE(offset_8, 0, 0, 1, 255)
WIDE(min_8, 0, 1, 1, 255)
#define UNPACK(kind, type)                                                                         \
    static void unpack_##type(const uint8_t *tile, int64_t step, int64_t n, uint8_t *room)         \
    {                                                                                              \
        unpack_##kind(NRD_DTYPE_##type, tile, step, n, room);                                      \
    }
UNPACK(q, Q4_0)
UNPACK(q, Q4_1)
UNPACK(q, Q5_0)
UNPACK(q, Q5_1)
UNPACK(q, Q8_0)
UNPACK(q, Q8_1)
UNPACK(q, I8)
UNPACK(q, Q2_K)
UNPACK(q, Q3_K)
UNPACK(q, Q4_K)
UNPACK(q, Q5_K)
UNPACK(q, Q6_K)
UNPACK(q, IQ4_NL)
UNPACK(q, IQ4_XS)
UNPACK(q, MXFP4)
UNPACK(f, F32)
UNPACK(f, F16)
UNPACK(f, BF16)

static nrd_linear_wide linear_wide(nrd_dtype type)
{
#if NRD_ISA == 3
    /* Zen 4 has one dot or multiply-add of 64 bytes a cycle and meanwhile spreads two numbers of x: 16 tokens against one
     * tile are at the limit of its ports, and unpacking ahead only costs (docs/performance/cpu-kernels.md). */
    if (__builtin_cpu_is("amdfam19h")) {
        return (nrd_linear_wide){NULL, NULL};
    }
#endif
    switch (type) {
    case NRD_DTYPE_Q4_0: return (nrd_linear_wide){unpack_Q4_0, wide_offset};
    case NRD_DTYPE_Q4_1: return (nrd_linear_wide){unpack_Q4_1, wide_min};
    case NRD_DTYPE_Q5_0: return (nrd_linear_wide){unpack_Q5_0, wide_offset};
    case NRD_DTYPE_Q5_1: return (nrd_linear_wide){unpack_Q5_1, wide_min};
    case NRD_DTYPE_Q8_0: return (nrd_linear_wide){unpack_Q8_0, wide_offset_8};
    case NRD_DTYPE_Q8_1: return (nrd_linear_wide){unpack_Q8_1, wide_min_8};
    case NRD_DTYPE_I8: return (nrd_linear_wide){unpack_I8, wide_offset_8};
    case NRD_DTYPE_Q2_K: return (nrd_linear_wide){unpack_Q2_K, wide_min_halves};
    case NRD_DTYPE_Q3_K: return (nrd_linear_wide){unpack_Q3_K, wide_offset_halves};
    case NRD_DTYPE_Q4_K: return (nrd_linear_wide){unpack_Q4_K, wide_min};
    case NRD_DTYPE_Q5_K: return (nrd_linear_wide){unpack_Q5_K, wide_min};
    case NRD_DTYPE_Q6_K: return (nrd_linear_wide){unpack_Q6_K, wide_offset_halves};
    case NRD_DTYPE_IQ4_NL: return (nrd_linear_wide){unpack_IQ4_NL, wide_offset_8};
    case NRD_DTYPE_IQ4_XS: return (nrd_linear_wide){unpack_IQ4_XS, wide_offset_8};
    case NRD_DTYPE_MXFP4: return (nrd_linear_wide){unpack_MXFP4, wide_offset};
    case NRD_DTYPE_F32: return (nrd_linear_wide){unpack_F32, wide_f};
    case NRD_DTYPE_F16: return (nrd_linear_wide){unpack_F16, wide_f};
    case NRD_DTYPE_BF16: return (nrd_linear_wide){unpack_BF16, wide_f};
    default: return (nrd_linear_wide){NULL, NULL};
    }
}
#else /* 16 registers of 8 lanes hold no such tile */
static nrd_linear_wide linear_wide(nrd_dtype type)
{
    (void)type;
    return (nrd_linear_wide){NULL, NULL};
}
#endif
