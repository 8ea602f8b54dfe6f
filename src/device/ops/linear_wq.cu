/* linear_wq: y = x W^T (+ bias, softcap) for weights of 4 or 8 bits in the layout of wq.cuh and any number
 * of rows of x, on Hopper.
 * Shapes    x [n, K] bf16; W parts of one format; y bf16, fp16 or f32. Any n, K and rows.
 * Work      W is the left operand of wgmma, from registers: a chunk of wq.cuh is what a warp of a
 *           warpgroup multiplies in 16 steps. Its numbers become bf16 there, rounded once: what a
 *           bf16 engine made of the same file multiplies, whatever the number of rows. x, the right
 *           operand, lies in shared memory as the copy engine brings it. A block has 2 to 4 such
 *           warpgroups and two warps that fill a ring of chunks and a ring of x; the first does not
 *           wait for the kernel in front. Tiles of up to 128 or 256 rows x 8 .. 128 tokens; where
 *           these are too few, a cluster of blocks shares K and adds up in order through each other's
 *           shared memory. The cut of K is all that the results depend on besides x and W; with
 *           `deterministic` it comes from the weights alone.
 *           4 bits: 0x4300 | q is 128 + q in bf16. Less 128 and the zero point that is a small
 *           integer u, and u * d + r is two fma in bf16 with d in two pieces: u * (the low piece) + r is
 *           exact or small. An offset leaves r, what is over of it when the zero point has taken a whole
 *           number of steps. 8 bits: 0x4700qq00 is 32768 + q in f32, one fma and one rounding.
 *           Scales of a chunk are made ready by a quarter of the work each lane would have alone and
 *           pass through shared memory.
 *           Up to 16 rows and 4 bits nothing is rounded: 128 + q is multiplied, the accumulators of a group
 *           of 32 columns begin with what is too much, and its sum is scaled in f32 (multiply_few).
 * Bound     up to some 64 rows memory: codes and scales, 4.5 bits a number for Q4_0, 5 for Q4_1, 4.6
 *           for Q4_K, 8.5 for Q8_0, 8.6 for Q6_K; from 128 the tensor cores. Issue slots of 16 x 16
 *           numbers: an SM's quarter has 30 (4 bits) or 57 (8 bits) in the time of memory.
 * Measured  NVIDIA H200, a Llama-3.1-8B layer in Q4_0: 63 us for a row, 66 for 8, 71 for 16, 97 for 64, 146 for
 *           128, 1,490 for 2,048; Q8_0 78, 79, 83, 110, 162, 1,565 (2026-11-22, make gpu-bench).
 * Tried     mma.sync, 16 rows a launch, exact products with sums scaled in f32 (H200, a Llama-3.1-8B
 *           layer in Q4_0): 54 us for a row, 71 for 8, 105 for 16, and as much again for each 16 more.
 */
#include "device/ops/hopper.cuh"
#include "device/ops/wq.cuh"

#include <algorithm>

enum { MAX_PARTS = NRD_LINEAR_MAX_PARTS, MAX_SPLITS = 8, MAX_W_STAGES = 12, MAX_X_STAGES = 12 };
enum { SUM_TABLES = 4 }; /* at most 3 in use: being read, complete, being written */

struct wq_params {
    CUtensorMap x;
    const char *w[MAX_PARTS];
    const float *row_scale[MAX_PARTS];
    int tile_end[MAX_PARTS]; /* row tiles of the parts up to and including this one */
    int rows[MAX_PARTS], y_off[MAX_PARTS];
    const float *bias[MAX_PARTS]; /* of the caller's parts, by column of y */
    int bias_end[MAX_PARTS];
    void *y;
    int64_t ldy;
    int n_tokens, k_chunks, y_dtype;
    int tile_groups, token_tiles, n_units; /* units: row tiles x tiles of tokens */
    int splits, w_stages, x_stages;
    float softcap;
    bool again, wide_y;
    const void *x_data; /* what `x` maps */
    int64_t x_cols;
};

/* One row tile x one tile of tokens. */
struct wq_unit {
    int part, group, n_groups, token; /* first row group in the part, how many; first token */

    __device__ __forceinline__ wq_unit(const wq_params &a, int unit, int n)
    {
        const int tile = unit / a.token_tiles;
        token = unit % a.token_tiles * n;
        part = 0;
        while (tile >= a.tile_end[part]) {
            part++;
        }
        group = (part ? tile - a.tile_end[part - 1] : tile) * a.tile_groups;
        n_groups = min(a.tile_groups, (a.rows[part] + WQ_ROWS - 1) / WQ_ROWS - group);
    }
};

/* ---- numbers of 4 and 8 bits to bf16 ---- */

static __device__ __forceinline__ uint32_t fma2(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

/* The numbers at bits 0..3 and 16..19 of w, each plus 128, as a pair of bf16. */
static __device__ __forceinline__ uint32_t nibbles(uint32_t w)
{
    uint32_t r;
    asm("lop3.b32 %0, %1, 0x000f000f, 0x43004300, 0xea;" : "=r"(r) : "r"(w)); /* (a & b) | c */
    return r;
}

/* Byte i of w plus 32768; top: 0x47000000. */
static __device__ __forceinline__ float byte_at(uint32_t w, int i, uint32_t top)
{
    return __uint_as_float(__byte_perm(w, top, 0x7404u | (uint32_t)i << 4));
}

static __device__ __forceinline__ uint32_t pack2(float lo, float hi)
{
    const __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
    uint32_t r;
    memcpy(&r, &v, 4);
    return r;
}
static __device__ __forceinline__ uint32_t twice(float v)
{
    return pack2(v, v);
}

/* Sums of x times this are where sums of products with integers of 4 bits begin: 128 comes from the mask, 8
 * is the zero of Q4_0. */
static constexpr __host__ __device__ float sum_factor(int meta)
{
    return meta == WQ_S ? -136.0f : -128.0f;
}

enum : uint32_t { TWO_ONES = 0x3f803f80u, TWO_NONE = 0x80008000u /* -0: leaves a sum as it is */ };

/* 4 bits and few tokens: the integers themselves are multiplied, see multiply_few. */
static constexpr __host__ __device__ bool is_few(int bits, int n)
{
    return bits == 4 && n <= 16;
}

/* What a warp keeps of its chunk's scales: [groups or half groups][16 rows] of entries. */
static constexpr __host__ __device__ int entry_words(int bits, int meta, int n)
{
    return is_few(bits, n) ? (meta == WQ_S ? 1 : 2) : bits == 4 && meta != WQ_S ? 4 : 2;
}
static constexpr __host__ __device__ int table_bytes(int bits, int meta, int n)
{
    const int entries = meta == WQ_K16 ? 256 : meta == WQ_ROW ? 0 : 128;
    const int bytes = entries * entry_words(bits, meta, n) * 4;
    return bytes < 1024 ? 1024 : bytes; /* results pass through it too */
}
/* Sums of x of a chunk: [8 groups][tokens / 2][4], see sum_group. */
static constexpr __host__ __device__ int sums_bytes(int bits, int n)
{
    return is_few(bits, n) ? 8 * n * 8 : 0;
}

template <int W> struct wq_entry {
    uint32_t v[W];
};
template <int W> static __device__ __forceinline__ wq_entry<W> load_entry(const char *table, int at)
{
    wq_entry<W> e;
    if constexpr (W == 4) {
        const uint4 u = ((const uint4 *)table)[at];
        e.v[0] = u.x, e.v[1] = u.y, e.v[2] = u.z, e.v[3] = u.w;
    } else {
        const uint2 u = ((const uint2 *)table)[at];
        e.v[0] = u.x, e.v[1] = u.y;
    }
    return e;
}

/* The entry of numbers q * d + m. */
template <int BITS, int META, bool FEW>
static __device__ __forceinline__ void store_entry(char *table, int at, float d, float m)
{
    if constexpr (FEW) {
        if constexpr (META == WQ_S) {
            ((float *)table)[at] = d;
        } else {
            ((float2 *)table)[at] = make_float2(d, m * (1.0f / sum_factor(META)));
        }
    } else if constexpr (BITS == 8) { /* q + 128 + 32768 comes */
        ((float2 *)table)[at] = make_float2(d, fmaf(d, -32896.0f, m));
    } else {
        const uint32_t hi = twice(d), lo = twice(d - __uint_as_float(hi << 16));
        if constexpr (META == WQ_S) {
            ((uint2 *)table)[at] = make_uint2(hi, lo);
        } else {
            /* any whole number would do; this one leaves the least */
            const float z = fminf(fmaxf(rintf(__fdividef(-m, d)), -127.0f), 127.0f);
            ((uint4 *)table)[at] = make_uint4(hi, lo, twice(-128.0f - z), twice(fmaf(z, d, m)));
        }
    }
}

/* The warp's table from what follows a chunk's codes. */
template <int BITS, int META, bool FEW>
static __device__ __forceinline__ void make_table(char *table, const char *meta, int lane, uint32_t top)
{
    const int row = lane & 15, half = lane >> 4;
    const int to = half * 64 + (FEW ? (row & 7) << 1 | row >> 3 : row); /* few: rows g and g + 8 side by side */

    if constexpr (META == WQ_S) {
        const uint2 u = ((const uint2 *)meta)[row * 2 + half];
        const float2 a = wq_halves(u.x), b = wq_halves(u.y);
        const float d[4] = {a.x, a.y, b.x, b.y};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            store_entry<BITS, META, FEW>(table, to + i * 16, d[i], 0.0f);
        }
    } else if constexpr (META == WQ_M) {
        const uint4 u = ((const uint4 *)meta)[row * 2 + half];
        const float2 dm[4] = {wq_halves(u.x), wq_halves(u.y), wq_halves(u.z), wq_halves(u.w)};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            store_entry<BITS, META, FEW>(table, to + i * 16, dm[i].x, dm[i].y);
        }
    } else if constexpr (META == WQ_K) {
        const uint32_t f = ((const uint32_t *)meta)[row * 4 + half];
        const uint32_t fm = ((const uint32_t *)meta)[row * 4 + 2 + half];
        const float2 d = wq_halves(((const uint32_t *)meta)[64 + row]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            store_entry<BITS, META, FEW>(table, to + i * 16, d.x * (byte_at(f, i, top) - 32768.0f),
                                    -d.y * (byte_at(fm, i, top) - 32768.0f));
        }
    } else if constexpr (META == WQ_K16) {
        const uint2 f = ((const uint2 *)meta)[row * 2 + half];
        const float d = __half2float(((const __half *)meta)[128 + row]);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            store_entry<BITS, META, FEW>(table, (half * 8 + i) * 16 + row,
                                    d * (byte_at(i < 4 ? f.x : f.y, i % 4, top) - 32896.0f), 0.0f);
        }
    }
}

/* 16 columns, half group j of a group of 32, as a left operand. q: the lane's codes; e[h]: entries of row
 * g + 8h. */
template <int BITS, int META, int W>
static __device__ __forceinline__ void to_operand(uint32_t *a, const uint4 &q, int group, int j,
                                                  const wq_entry<W> (&e)[2], uint32_t top)
{
    if constexpr (BITS == 4) {
        const uint32_t w = group % 2 ? (j ? q.w : q.z) : (j ? q.y : q.x);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const wq_entry<W> &s = e[i & 1];
            const uint32_t v = nibbles(w >> (4 * i));
            if constexpr (META == WQ_S) {
                const uint32_t u = fma2(v, TWO_ONES, 0xc308c308u); /* -136: the zero of Q4_0 is 8 */
                a[i] = fma2(u, s.v[0], fma2(u, s.v[1], TWO_NONE));
            } else {
                const uint32_t u = fma2(v, TWO_ONES, s.v[2]);
                a[i] = fma2(u, s.v[0], fma2(u, s.v[1], s.v[3]));
            }
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) { /* bytes 0, 2 or 1, 3 of a word */
            const uint32_t w = j ? (i < 2 ? q.z : q.w) : (i < 2 ? q.x : q.y);
            const float lo = byte_at(w, i & 1, top), hi = byte_at(w, 2 + (i & 1), top);
            if constexpr (META == WQ_ROW) {
                a[i] = pack2(lo - 32896.0f, hi - 32896.0f);
            } else {
                const float d = __uint_as_float(e[i & 1].v[0]), c = __uint_as_float(e[i & 1].v[1]);
                a[i] = pack2(fmaf(lo, d, c), fmaf(hi, d, c));
            }
        }
    }
}

/* ---- few tokens, 4 bits ---- */

static __device__ __forceinline__ void mma_bf16(float (&c)[4], uint32_t a, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%5,%6}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a), "r"(b0), "r"(b1));
}

/* Sums over 32 columns of x, a group of a chunk, times -128 or -136: products with a matrix of nothing else, for
 * which the order of columns is the same. x: the chunk as it lies in the ring; to: of a pair of tokens
 * {a, b, a, b}, which is how an accumulator's rows g and g + 8 begin. */
template <int META, int N>
static __device__ __forceinline__ void sum_group(const char *x, float *to, int group, int lane)
{
#pragma unroll
    for (int n = 0; n < N; n += 8) {
        const int token = n + lane / 4, unit = (group % 2 * 4 + lane % 4) ^ (lane / 4);
        const uint4 v = *(const uint4 *)(x + group / 2 * (N * 128) + token * 128 + unit * 16);
        const uint32_t factor = META == WQ_S ? 0xc308c308u : 0xc300c300u;
        float c[4] = {};
        mma_bf16(c, factor, v.x, v.y);
        mma_bf16(c, factor, v.z, v.w);
        if (lane < 4) { /* all rows are the same */
            ((float4 *)to)[group * (N / 2) + n / 2 + lane] = make_float4(c[0], c[1], c[2], c[3]);
        }
    }
}

/* acc += a chunk x its columns of x: 0x4300 | q is multiplied as it is, exactly. A group's 32 columns have
 * an accumulator of their own, which begins with -128 or -136 times the sum of x and is scaled in f32; the
 * groups in front of it are still being multiplied. half_way: called once when there is work under way. */
template <int META, int N, typename F>
static __device__ __forceinline__ void multiply_few(float *acc, const uint4 *codes, const char *table,
                                                    const float *sums, uint64_t dx, int lane, F half_way)
{
    constexpr int DEEP = N == 8 ? 3 : 2; /* groups under way */
    const int g = lane >> 2, t = lane & 3;
    uint32_t op[DEEP][8];
    float c[DEEP][N / 2];
    uint4 q = codes[0];

#pragma unroll
    for (int i = 0; i < 8 + DEEP - 1; i++) {
        const int done = i - (DEEP - 1); /* the group to be added up */
        float s[2] = {}, o[2] = {};
        float2 x_sums[N / 8];
        if (i < 8) {
            float *ci = c[i % DEEP];
#pragma unroll
            for (int j = 0; j < N / 8; j++) {
                const float4 v = ((const float4 *)sums)[i * (N / 2) + j * 4 + t];
                ci[j * 4] = v.x, ci[j * 4 + 1] = v.y, ci[j * 4 + 2] = v.z, ci[j * 4 + 3] = v.w;
            }
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const uint32_t w = i % 2 ? (j / 4 ? q.w : q.z) : (j / 4 ? q.y : q.x);
                op[i % DEEP][j] = nibbles(w >> (j % 4 * 4));
            }
            if (i % 2 && i < 7) {
                q = codes[(i + 1) / 2 * 32];
            }
        }
        if (done >= 0) {
            if constexpr (META == WQ_S) {
                const float2 e = ((const float2 *)table)[done * 8 + g];
                s[0] = e.x, s[1] = e.y;
            } else {
                const float4 e = ((const float4 *)table)[done * 8 + g];
                s[0] = e.x, o[0] = e.y, s[1] = e.z, o[1] = e.w;
#pragma unroll
                for (int j = 0; j < N / 8; j++) {
                    x_sums[j] = ((const float2 *)sums)[(done * (N / 2) + j * 4 + t) * 2];
                }
            }
        }
        if (i < 8) {
            wg_hold<8>(op[i % DEEP]);
            wg_hold<N / 2>(c[i % DEEP]);
            wg_fence();
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const uint32_t *a = op[i % DEEP] + j * 4;
                const int at = i * 2 + j;
                wgmma_rs<true, N>(c[i % DEEP], a[0], a[1], a[2], a[3],
                                  dx + (at / 4 * (N * 128) >> 4) + at % 4 * 2);
            }
            wg_commit();
        }
        if (i == 3) {
            half_way();
        }
        if (done >= 0) {
            if (i < 8) {
                wg_wait<DEEP - 1>();
            } else {
                wg_wait<0>();
            }
            float *cd = c[done % DEEP];
            wg_hold<8>(op[done % DEEP]);
            wg_hold<N / 2>(cd);
#pragma unroll
            for (int j = 0; j < N / 2; j++) {
                acc[j] = fmaf(s[j / 2 % 2], cd[j], acc[j]);
                if constexpr (META != WQ_S) {
                    acc[j] = fmaf(o[j / 2 % 2], j % 2 ? x_sums[j / 4].y : x_sums[j / 4].x, acc[j]);
                }
            }
        }
    }
}

/* ---- results ---- */

/* What belongs to a row of W. */
struct row_consts {
    float scale, bias;
};

static __device__ __forceinline__ row_consts load_consts(const wq_params &a, int part, int row)
{
    row_consts r = {1.0f, 0.0f};
    if (row < a.rows[part]) {
        const int col = a.y_off[part] + row;
        int b = 0;
        while (col >= a.bias_end[b]) {
            b++;
        }
        if (a.row_scale[part]) {
            r.scale = a.row_scale[part][row];
        }
        if (a.bias[b]) {
            r.bias = a.bias[b][col - (b ? a.bias_end[b - 1] : 0)];
        }
    }
    return r;
}

static __device__ __forceinline__ float finish(const wq_params &a, const row_consts &of_row, float v)
{
    v = fmaf(v, of_row.scale, of_row.bias);
    return a.softcap > 0.0f ? a.softcap * tanhf(v / a.softcap) : v;
}

/* C finished results of a token, rows row .. of the part. */
template <int C>
static __device__ __forceinline__ void store_row(const wq_params &a, int part, int row, int token,
                                                 const float (&v)[C])
{
    const int64_t at = (int64_t)token * a.ldy + a.y_off[part] + row;

    if (token >= a.n_tokens) {
        return;
    }
    if (a.wide_y && row + C <= a.rows[part]) {
        if (a.y_dtype == NRD_DTYPE_F32) {
#pragma unroll
            for (int i = 0; i < C; i += 4) {
                *(float4 *)((float *)a.y + at + i) = make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
            }
            return;
        }
        uint32_t u[C / 2];
#pragma unroll
        for (int i = 0; i < C / 2; i++) {
            if (a.y_dtype == NRD_DTYPE_BF16) {
                u[i] = pack2(v[2 * i], v[2 * i + 1]);
            } else {
                const __half2 h = __floats2half2_rn(v[2 * i], v[2 * i + 1]);
                memcpy(&u[i], &h, 4);
            }
        }
        if constexpr (C == 8) {
            *(uint4 *)((bf16 *)a.y + at) = make_uint4(u[0], u[1], u[2], u[3]);
        } else {
            *(uint2 *)((bf16 *)a.y + at) = make_uint2(u[0], u[1]);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < C; i++) {
        if (row + i < a.rows[part]) {
            if (a.y_dtype == NRD_DTYPE_BF16) {
                ((bf16 *)a.y)[at + i] = from_f<bf16>(v[i]);
            } else if (a.y_dtype == NRD_DTYPE_F16) {
                ((f16 *)a.y)[at + i] = from_f<f16>(v[i]);
            } else {
                ((float *)a.y)[at + i] = v[i];
            }
        }
    }
}

/* The accumulator of a warp to y, 16 tokens at a time through `buf`: [16 tokens in two halves][16 rows][8]. */
template <int N>
static __device__ __forceinline__ void store_tile(const wq_params &a, const wq_unit &u, int row, float *buf,
                                                  const float *acc, const row_consts (&consts)[2], int lane)
{
    const int g = lane >> 2, t = lane & 3;

#pragma unroll
    for (int n = 0; n < N; n += 16) {
        if (u.token + n >= a.n_tokens) {
            break;
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < (N < 16 ? 2 : 4); i++) { /* row g + 8 * (i % 2), tokens n + 8 * (i / 2) + 2t, + 1 */
            const float *v = acc + n / 2 + i * 2;
            ((float2 *)buf)[(i / 2 * 128 + (g + i % 2 * 8) * 8 + 2 * t) / 2] =
                make_float2(finish(a, consts[i % 2], v[0]), finish(a, consts[i % 2], v[1]));
        }
        __syncwarp();
        const int token = lane >> 4 << 3 | (lane & 7), rows = lane & 8;
        if (N >= 16 || lane < 16) {
            float v[8];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                v[i] = buf[(lane >> 4) * 128 + (rows + i) * 8 + (lane & 7)];
            }
            store_row(a, u.part, row + rows, u.token + n + token, v);
        }
    }
}

/* ---- the kernel ---- */

/* Boxes of 64 columns of x in a stage: barriers cost as much for little x as for much. */
static constexpr __host__ __device__ int boxes(int n)
{
    return n <= 32 ? 4 : n == 64 ? 2 : 1;
}
static constexpr __host__ __device__ int x_stage_bytes(int n)
{
    return boxes(n) * n * 128;
}

/* Blocks of two warpgroups share an SM. */
static constexpr __host__ __device__ int blocks_of(int wg)
{
    return wg == 2 ? 2 : 1;
}

template <int BITS, int META, int N, int WG>
static __global__ void __launch_bounds__(WG * 128 + 64, blocks_of(WG))
    linear_wq_kernel(const __grid_constant__ wq_params a)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900 /* launched on 9.0 only */
    constexpr int CHUNK = wq_chunk(BITS, META), CODES = WQ_ROWS * WQ_COLS * BITS / 8;
    constexpr int CONSUMERS = WG * 128, BOXES = boxes(N), X_STEPS = BOXES * 4, X_BYTES = x_stage_bytes(N);
    constexpr int TABLE = table_bytes(BITS, META, N), WORDS = entry_words(BITS, META, N);
    constexpr bool FEW = is_few(BITS, N);
    constexpr int SUMS = sums_bytes(BITS, N);
    static_assert(!FEW || WG == 2, "a warp for each of the 8 groups of a chunk");
    constexpr int STEPS = 2; /* products of 16 columns before one waits */
    constexpr bool AHEAD = N != 64; /* 96 registers are too few there */
    extern __shared__ char raw[];
    const uint32_t base = (smem_u32(raw) + 2047) & ~1023u; /* at least 1024 bytes in front */
    char *const at_base = raw + (base - smem_u32(raw));
    const uint32_t full_w = base - 512, empty_w = full_w + 8 * MAX_W_STAGES;
    const uint32_t full_x = empty_w + 8 * MAX_W_STAGES, empty_x = full_x + 8 * MAX_X_STAGES;
    const uint32_t full_sums = empty_x + 8 * MAX_X_STAGES;
    const int w_bytes = a.tile_groups * CHUNK, w_at = a.x_stages * X_BYTES;
    /* the same in all lanes, and the compiler may know */
    const int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0), lane = (int)threadIdx.x & 31;
    const int rank = (int)blockIdx.x % a.splits, cluster = (int)blockIdx.x / a.splits;
    const int n_clusters = (int)gridDim.x / a.splits;
    const int k0 = a.k_chunks * rank / a.splits, k1 = a.k_chunks * (rank + 1) / a.splits;

    if (threadIdx.x == 0) {
        for (int i = 0; i < a.w_stages; i++) {
            mbar_init(full_w + i * 8, 1);
            mbar_init(empty_w + i * 8, CONSUMERS / 32);
        }
        for (int i = 0; i < a.x_stages; i++) {
            mbar_init(full_x + i * 8, 1);
            mbar_init(empty_x + i * 8, CONSUMERS / 32);
        }
        for (int i = 0; FEW && i < SUM_TABLES; i++) {
            mbar_init(full_sums + i * 8, CONSUMERS / 32);
        }
        mbar_fence_init();
        *(volatile uint32_t *)(at_base - 16) = 0x47000000u;
    }
    __syncthreads();

    if (warp == CONSUMERS / 32) { /* W: depends on no kernel */
        if (lane == 0) {
            const uint64_t policy = a.again ? L2_EVICT_NORMAL : L2_EVICT_FIRST;
            int slot = 0;
            uint32_t parity = 1;
            for (int unit = cluster; unit < a.n_units; unit += n_clusters) {
                const wq_unit u(a, unit, N);
                const char *from = a.w[u.part] + ((int64_t)u.group * a.k_chunks + k0) * CHUNK;
                for (int k = k0; k < k1; k++, from += CHUNK) {
                    const uint32_t to = base + w_at + slot * w_bytes, bar = full_w + slot * 8;
                    mbar_wait(empty_w + slot * 8, parity);
                    mbar_expect(bar, u.n_groups * CHUNK);
                    for (int i = 0; i < u.n_groups; i++) {
                        bulk_copy_hint(to + i * CHUNK, from + (int64_t)i * a.k_chunks * CHUNK, CHUNK, bar,
                                       policy);
                    }
                    if (++slot == a.w_stages) {
                        slot = 0;
                        parity ^= 1;
                    }
                }
            }
            pdl_go(); /* the last of W is under way */
        }
    } else if (warp > CONSUMERS / 32) { /* x */
        pdl_wait();
        if (lane == 0) {
            int slot = 0;
            uint32_t parity = 1;
            for (int unit = cluster; unit < a.n_units; unit += n_clusters) {
                const int token = unit % a.token_tiles * N;
                for (int k = k0 * 4; k < k1 * 4; k += BOXES) {
                    const uint32_t to = base + slot * X_BYTES, bar = full_x + slot * 8;
                    mbar_wait(empty_x + slot * 8, parity);
                    mbar_expect(bar, X_BYTES);
                    for (int i = 0; i < BOXES; i++) {
                        tma_2d(to + i * (N * 128), &a.x, (k + i) * 64, token, bar, L2_EVICT_LAST);
                    }
                    if (++slot == a.x_stages) {
                        slot = 0;
                        parity ^= 1;
                    }
                }
            }
        }
    } else {
        const int g = lane >> 2;
        char *const table = at_base + w_at + a.w_stages * w_bytes + warp * TABLE;
        float acc[N / 2];
        uint32_t op[2][STEPS * 4] = {};
        int w_slot = 0, x_slot = 0, x_before = 0;
        uint32_t w_parity = 0, x_parity = 0;
        row_consts consts[2] = {};
        uint64_t dx = 0;
        /* from where the compiler cannot know it: a PRMT has room for one constant, and the other would
         * come from a uniform register by a move for every byte */
        const uint32_t top = *(volatile uint32_t *)(at_base - 16);
        /* sums of x: of the chunk that comes next each warp makes one group's */
        char *const all_sums = at_base + w_at + a.w_stages * w_bytes + (CONSUMERS / 32) * TABLE;
        uint32_t item = 0;
        auto make_sums = [&](int slot, uint32_t parity, uint32_t at) {
            mbar_wait(full_x + slot * 8, parity);
            sum_group<META, N>(at_base + slot * X_BYTES, (float *)(all_sums + at % SUM_TABLES * SUMS), warp, lane);
            __syncwarp();
            if (lane == 0) {
                mbar_arrive(full_sums + at % SUM_TABLES * 8);
            }
        };

        if constexpr (FEW) {
            if (cluster < a.n_units) {
                make_sums(0, 0, 0);
            }
        }
        for (int unit = cluster; unit < a.n_units; unit += n_clusters) {
            const wq_unit u(a, unit, N);
            /* warps behind the tile's last row group multiply that one again: never stored */
            const int mine = min(warp, u.n_groups - 1), row = (u.group + warp) * WQ_ROWS;
            if (a.splits == 1) { /* constants: there before the kernel in front of us */
                consts[0] = load_consts(a, u.part, row + g);
                consts[1] = load_consts(a, u.part, row + g + 8);
            }
#pragma unroll
            for (int i = 0; i < N / 2; i++) {
                acc[i] = 0.0f;
            }
            for (int k = k0; k < k1; k++) {
                const char *chunk = at_base + w_at + w_slot * w_bytes + mine * CHUNK;
                const uint4 *codes = (const uint4 *)chunk + lane;
                uint4 q = {};
                mbar_wait(full_w + w_slot * 8, w_parity);
                if constexpr (META != WQ_ROW) {
                    __syncwarp(); /* nobody reads the chunk before's */
                    make_table<BITS, META, FEW>(table, chunk + CODES, lane, top);
                    __syncwarp();
                }
                if constexpr (FEW) {
                    const int next = x_slot + 1 == a.x_stages ? 0 : x_slot + 1;
                    mbar_wait(full_sums + item % SUM_TABLES * 8, item / SUM_TABLES & 1);
                    multiply_few<META, N>(
                        acc, codes, table, (const float *)(all_sums + item % SUM_TABLES * SUMS),
                        desc_sw128(base + x_slot * X_BYTES), lane, [&]() {
                            if (k + 1 < k1 || unit + n_clusters < a.n_units) {
                                make_sums(next, next ? x_parity : x_parity ^ 1, item + 1);
                            }
                        });
                    __syncwarp();
                    if (lane == 0) {
                        mbar_arrive(empty_w + w_slot * 8);
                        mbar_arrive(empty_x + x_slot * 8);
                    }
                    item++;
                    x_slot = next;
                    x_parity ^= next ? 0 : 1;
                    if (++w_slot == a.w_stages) {
                        w_slot = 0;
                        w_parity ^= 1;
                    }
                    continue;
                }
                wg_hold<N / 2>(acc);
                wq_entry<WORDS> e[2] = {};
                auto load = [&](int step) { /* what is new in a step */
                    if (step % (BITS == 8 ? 2 : 4) == 0) {
                        q = codes[step / (BITS == 8 ? 2 : 4) * 32];
                    }
                    if (META == WQ_K16 || (META != WQ_ROW && step % 2 == 0)) {
                        const int at = (META == WQ_K16 ? step : step / 2) * 16 + g;
                        e[0] = load_entry<WORDS>(table, at);
                        e[1] = load_entry<WORDS>(table, at + 8);
                    }
                };
                load(0);
#pragma unroll
                for (int step = 0; step < 16; step++) {
                    const int in_stage = step % X_STEPS;
                    if (!AHEAD && step > 0) {
                        load(step);
                    }
                    to_operand<BITS, META, WORDS>(op[step / STEPS & 1] + step % STEPS * 4, q, step / 2, step % 2, e,
                                                  top);
                    if (AHEAD && step < 15) {
                        load(step + 1);
                    }
                    if (step % STEPS != STEPS - 1) {
                        continue;
                    }
                    if (in_stage == STEPS - 1) {
                        mbar_wait(full_x + x_slot * 8, x_parity);
                        dx = desc_sw128(base + x_slot * X_BYTES);
                    }
                    wg_hold<STEPS * 4>(op[step / STEPS & 1]);
                    wg_fence();
#pragma unroll
                    for (int i = 0; i < STEPS; i++) {
                        const int at = in_stage - STEPS + 1 + i;
                        const uint32_t *o = op[step / STEPS & 1] + i * 4;
                        wgmma_rs<true, N>(acc, o[0], o[1], o[2], o[3],
                                          dx + (at / 4 * (N * 128) >> 4) + at % 4 * 2);
                    }
                    wg_commit();
                    wg_wait<1>(); /* the products before are done: their registers, and their x, are free */
                    wg_hold<STEPS * 4>(op[~(step / STEPS) & 1]);
                    if (in_stage == STEPS - 1) {
                        if ((k > k0 || step >= STEPS) && lane == 0) {
                            mbar_arrive(empty_x + x_before * 8);
                        }
                        x_before = x_slot;
                        if (++x_slot == a.x_stages) {
                            x_slot = 0;
                            x_parity ^= 1;
                        }
                    }
                }
                __syncwarp();
                if (lane == 0) {
                    mbar_arrive(empty_w + w_slot * 8);
                }
                if (++w_slot == a.w_stages) {
                    w_slot = 0;
                    w_parity ^= 1;
                }
            }
            if constexpr (!FEW) {
                wg_wait<0>();
                wg_hold<N / 2>(acc);
                if (k1 > k0 && lane == 0) {
                    mbar_arrive(empty_x + x_before * 8);
                }
            }
            pdl_wait(); /* the kernel in front may still read y */
            if (a.splits == 1) {
                if (warp < u.n_groups) {
                    store_tile<N>(a, u, row, (float *)table, acc, consts, lane);
                }
            } else {
                /* The rings have been read to their end (a cluster has one unit): they hold the sums now, by
                 * token. The padding keeps a warp's stores in different banks. */
                asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory");
                float *sums = (float *)at_base;
                const int pitch = a.tile_groups * WQ_ROWS + 4, t = lane & 3;
                if (warp < u.n_groups) {
#pragma unroll
                    for (int i = 0; i < N / 2; i++) {
                        const int token = i / 4 * 8 + 2 * t + i % 2;
                        if (u.token + token < a.n_tokens) {
                            sums[token * pitch + warp * WQ_ROWS + i / 2 % 2 * 8 + g] = acc[i];
                        }
                    }
                }
            }
        }
    }
    if (a.splits > 1) {
        constexpr int THREADS = CONSUMERS + 64;
        const wq_unit u(a, cluster, N);
        const int pitch = a.tile_groups * WQ_ROWS + 4, vecs = u.n_groups * (WQ_ROWS / 4);
        const int all = vecs * min(N, a.n_tokens - u.token);
        pdl_wait(); /* the copying warps have not all waited yet */
        cluster_meet();
        for (int i = rank * THREADS + (int)threadIdx.x; i < all; i += a.splits * THREADS) {
            const int token = i / vecs, r0 = i % vecs * 4, row = u.group * WQ_ROWS + r0;
            const uint32_t here = base + (uint32_t)(token * pitch + r0) * 4;
            float4 v[MAX_SPLITS];
#pragma unroll
            for (int r = 0; r < MAX_SPLITS; r++) {
                if (r < a.splits) {
                    v[r] = cluster_load4(here, r);
                }
            }
            float sum[4] = {v[0].x, v[0].y, v[0].z, v[0].w};
#pragma unroll
            for (int r = 1; r < MAX_SPLITS; r++) {
                if (r < a.splits) {
                    sum[0] += v[r].x, sum[1] += v[r].y, sum[2] += v[r].z, sum[3] += v[r].w;
                }
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                sum[j] = finish(a, load_consts(a, u.part, row + j), sum[j]);
            }
            store_row(a, u.part, row, u.token + token, sum);
        }
        cluster_meet(); /* nobody leaves while others still read */
    }
#else
    (void)a;
#endif
}

/* ---- plans ---- */

enum { HALF_SM = 113 * 1024, WHOLE_SM = 226 * 1024, SMEM_FRONT = 2048 };

struct wq_plan {
    int n, wg, groups, splits, w_stages, x_stages; /* wg = 0: none */
    size_t smem;
    double us;
};

/* Stages and bytes of a block; false: does not fit. */
static bool plan_smem(wq_plan *p, int bits, int meta, int n, int most_chunks)
{
    const int room = (p->wg == 2 ? HALF_SM : WHOLE_SM) - SMEM_FRONT;
    const int tables = p->wg * 4 * table_bytes(bits, meta, n) + SUM_TABLES * sums_bytes(bits, n);
    const int x_stage = x_stage_bytes(n);
    const int w_stage = p->groups * wq_chunk(bits, meta), per_chunk = 4 / boxes(n);
    const int left = room - tables, pair = w_stage + per_chunk * x_stage;
    const int sums = p->splits > 1 ? n * (p->groups * WQ_ROWS + 4) * 4 : 0;

    /* as many chunks of W as of x, then what still fits of x, which is used up in pieces */
    p->w_stages = std::min(std::min(left / pair, most_chunks), (int)MAX_W_STAGES);
    if (p->w_stages < 2 && p->w_stages < most_chunks) {
        p->w_stages = 2;
    }
    p->x_stages = std::min((left - p->w_stages * w_stage) / x_stage, std::min(most_chunks * per_chunk, 12));
    if (left < p->w_stages * w_stage || p->x_stages < std::min(2, most_chunks * per_chunk)) {
        return false;
    }
    p->smem = (size_t)(SMEM_FRONT +
                       std::max(p->w_stages * w_stage + p->x_stages * x_stage + tables, sums));
    return sums <= room;
}

/* Issue slots that a chunk takes of a warp, waits included, of 1215 a microsecond; and what a block spends before
 * its first and behind its last product. Fitted to H200 times of Llama-3.1-8B's shapes. */
static double chunk_slots(int bits, int meta, int n)
{
    if (is_few(bits, n)) {
        return n == 8 ? (meta == WQ_S ? 340.0 : 370.0) : (meta == WQ_S ? 380.0 : 420.0);
    }
    const double plain = n <= 16 ? 425.0 : n == 32 ? 445.0 : n == 64 ? 550.0 : 820.0;
    return plain + (meta == WQ_S && bits == 4 ? 0.0 : bits == 4 ? 90.0 : 75.0);
}
static double block_us(int n)
{
    return n == 8 ? 4.5 : n == 16 ? 5.5 : n == 32 ? 7.7 : 8.7;
}

/* Clusters of 1 .. MAX_SPLITS blocks that the device holds at once with one or two blocks an SM. */
struct wq_room {
    int n[2][MAX_SPLITS + 1];
};

static const wq_room *room_of(const cuda_device *dev)
{
    static wq_room of[64]; /* the same from whoever writes it */
    wq_room *r = &of[dev->id & 63];

    if (r->n[1][1] > 0) {
        return r;
    }
    for (int two = 0; two < 2; two++) {
        const void *kernel = two ? (const void *)linear_wq_kernel<4, WQ_S, 8, 2>
                                 : (const void *)linear_wq_kernel<4, WQ_S, 64, 4>;
        bool known = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, WHOLE_SM) ==
                     cudaSuccess;
        for (int splits = MAX_SPLITS; splits > 0; splits--) {
            cudaLaunchConfig_t cfg = {};
            cudaLaunchAttribute attr = {};
            attr.id = cudaLaunchAttributeClusterDimension;
            attr.val.clusterDim.x = (unsigned)splits;
            attr.val.clusterDim.y = attr.val.clusterDim.z = 1;
            cfg.gridDim = (unsigned)splits;
            cfg.blockDim = two ? 320 : 576;
            cfg.dynamicSmemBytes = two ? HALF_SM : WHOLE_SM;
            cfg.attrs = &attr;
            cfg.numAttrs = 1;
            int n = 0;
            known = known && cudaOccupancyMaxActiveClusters(&n, kernel, &cfg) == cudaSuccess;
            if (!known) { /* powers of two as an H200 was seen to hold them: 30 of 4, not 32; fewer than 16 of 8 */
                (void)cudaGetLastError();
                const int less = splits == 1 ? 0 : splits == 2 ? 4 : splits == 4 ? 12 : 20;
                n = (splits & (splits - 1)) ? 0 : (dev->n_sm - std::min(less, dev->n_sm / 8)) * (two + 1) / splits;
            }
            r->n[two][splits] = n;
        }
    }
    return r;
}

/* Microseconds by what an SM must bring from memory, what the L2 delivers and issue slots, in waves of blocks;
 * fixed_splits: 0 or the only number allowed. */
static wq_plan choose(const nrd_weight *const *w, int n_w, int bits, int meta, int n, int64_t tokens,
                      int fixed_splits, int n_sm, const wq_room *room)
{
    const int k_chunks = (int)((w[0]->cols + WQ_COLS - 1) / WQ_COLS);
    const int64_t token_tiles = (tokens + n - 1) / n;
    wq_plan best = {};

    best.us = 1e30;
    for (int at = 0; at < 2 * 16 * MAX_SPLITS; at++) {
        const int wg = n == 128 ? 3 : at & 1 ? 4 : 2;
        wq_plan p = {n, wg, (at >> 1 & 15) + 1, (at >> 5) + 1, 0, 0, 0, 0};
        const int most = (k_chunks + p.splits - 1) / p.splits;
        int64_t tiles = 0;
        if (p.groups > p.wg * 4 || (p.wg == 4 && n < 32) || p.splits > k_chunks ||
            (fixed_splits > 0 && p.splits != fixed_splits) || !plan_smem(&p, bits, meta, n, most)) {
            continue;
        }
        for (int i = 0; i < n_w; i++) {
            const int64_t groups = (w[i]->rows + WQ_ROWS - 1) / WQ_ROWS;
            tiles += (groups + p.groups - 1) / p.groups;
        }
        const int resident = blocks_of(p.wg);
        const int64_t blocks = tiles * token_tiles * p.splits;
        const int64_t one_each = (int64_t)room->n[0][p.splits] * p.splits;
        const int64_t at_once = (int64_t)room->n[resident - 1][p.splits] * p.splits;
        if (one_each <= 0 || at_once <= 0) {
            continue;
        }
        const int64_t waves = blocks / at_once, rest = blocks % at_once;
        const double w_mb = p.groups * wq_chunk(bits, meta) * 1e-6, x_mb = n * 512e-6;
        double us = 0.0;
        for (int last = 0; last < 2; last++) {
            const int64_t times = last ? rest > 0 : waves;
            const int b = last && rest <= one_each ? 1 : resident; /* blocks of an SM */
            const double memory = b * w_mb * n_sm / 4.4 / (double)std::min<int64_t>(token_tiles, 4);
            const double l2 = b * (w_mb + x_mb) * n_sm / 5.5;
            /* two warps an SM's quarter do not fill it */
            const double slots = b * p.wg * chunk_slots(bits, meta, n) / (b * p.wg >= 3 ? 1215.0 : 850.0);
            us += (double)times * (block_us(n) + most * std::max(std::max(memory, l2), slots));
        }
        us += (p.splits > 1 ? 0.5 + 0.1 * p.splits : 0.0) + 1e-3 * (double)blocks / n_sm;
        if (us < best.us) {
            p.us = us;
            best = p;
        }
    }
    return best;
}

template <int BITS, int META, int N, int WG>
static nrd_error *wq_launch(nrd_stream *s, const wq_params &p, const wq_plan &plan)
{
    void (*kernel)(const wq_params) = linear_wq_kernel<BITS, META, N, WG>;
    const int64_t resident = (int64_t)s->dev->n_sm * blocks_of(WG);
    cudaLaunchConfig_t cfg = {};
    cudaLaunchAttribute attr[2];
    static bool sized[64]; /* per instance and device; setting it twice is harmless */

    if (!sized[s->dev->id & 63]) {
        CUDA_TRY(cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      WHOLE_SM));
        sized[s->dev->id & 63] = true;
    }
    cfg.gridDim = (unsigned)(plan.splits > 1 ? (int64_t)p.n_units * plan.splits
                                             : std::min<int64_t>(resident, p.n_units));
    cfg.blockDim = WG * 128 + 64;
    cfg.dynamicSmemBytes = plan.smem;
    cfg.stream = s->s;
    cfg.attrs = attr;
    attr[0].id = cudaLaunchAttributeClusterDimension;
    attr[0].val.clusterDim.x = (unsigned)plan.splits;
    attr[0].val.clusterDim.y = 1;
    attr[0].val.clusterDim.z = 1;
    attr[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr[1].val.programmaticStreamSerializationAllowed = 1;
    cfg.numAttrs = s->joined ? 1 : 2;
    s->joined = false;
    CUDA_TRY(cudaLaunchKernelEx(&cfg, kernel, p));
    return NULL;
}

/* The tile of tokens, and which blocks there are for it. */
static int tokens_of(int64_t n)
{
    return n <= 8 ? 8 : n <= 16 ? 16 : n <= 32 ? 32 : n <= 64 ? 64 : 128;
}

template <int BITS, int META>
static nrd_error *wq_run(nrd_stream *s, wq_params &p, const nrd_weight *const *w, int n_w, bool deterministic)
{
    const int n_sm = s->dev->n_sm;
    const wq_room *room = room_of(s->dev);
    int n = tokens_of(p.n_tokens), splits = 0;

    if (deterministic) { /* one kind of arithmetic for any number of rows, and one cut of K */
        n = is_few(BITS, n) ? 32 : n;
        splits = choose(w, n_w, BITS, META, 64, 64, 0, n_sm, room).splits;
    }
    wq_plan plan = choose(w, n_w, BITS, META, n, p.n_tokens, splits, n_sm, room);
    if (n == 128) { /* smaller tiles where they come out even */
        const wq_plan small = choose(w, n_w, BITS, META, 64, p.n_tokens, splits, n_sm, room);
        if (small.us < plan.us) {
            plan = small;
            n = 64;
        }
    }
    if (plan.wg == 0) {
        return nrd_errorf(NRD_ERR_INTERNAL, "cuda: no plan for %d tokens x %d chunks", p.n_tokens, p.k_chunks);
    }
    int64_t tiles = 0;
    for (int i = 0; i < n_w; i++) {
        tiles += ((w[i]->rows + WQ_ROWS - 1) / WQ_ROWS + plan.groups - 1) / plan.groups;
        p.tile_end[i] = (int)tiles;
    }
    p.tile_groups = plan.groups;
    p.token_tiles = (p.n_tokens + n - 1) / n;
    p.n_units = (int)(tiles * p.token_tiles);
    p.splits = plan.splits;
    p.w_stages = plan.w_stages;
    p.x_stages = plan.x_stages;
    p.again = p.token_tiles > 1;
    if (!tma_map(s->dev, &p.x, NRD_DTYPE_BF16, p.x_data, p.n_tokens, p.x_cols, n)) {
        return nrd_errorf(NRD_ERR_INTERNAL, "cuda: no tensor map for x of %d x %lld", p.n_tokens,
                          (long long)p.x_cols);
    }
    switch (n * 8 + plan.wg) {
    case 8 * 8 + 2:
        return wq_launch<BITS, META, 8, 2>(s, p, plan);
    case 16 * 8 + 2:
        return wq_launch<BITS, META, 16, 2>(s, p, plan);
    case 32 * 8 + 2:
        return wq_launch<BITS, META, 32, 2>(s, p, plan);
    case 32 * 8 + 4:
        return wq_launch<BITS, META, 32, 4>(s, p, plan);
    case 64 * 8 + 2:
        return wq_launch<BITS, META, 64, 2>(s, p, plan);
    case 64 * 8 + 4:
        return wq_launch<BITS, META, 64, 4>(s, p, plan);
    default:
        return wq_launch<BITS, META, 128, 3>(s, p, plan);
    }
}

/* Rows of x whose length the copy engine does not take, with zeros behind them. */
static __global__ void pad_x_kernel(const bf16 *x, bf16 *to, int64_t all, int cols, int pitch)
{
    pdl_wait();
    pdl_go();
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < all;
         i += (int64_t)gridDim.x * blockDim.x) {
        const int col = (int)(i % pitch);
        to[i] = col < cols ? x[i / pitch * cols + col] : from_f<bf16>(0.0f);
    }
}

nrd_error *nrd_cuda_linear_wq(nrd_stream *s, const nrd_linear_args *a, int from, int to, bool plain)
{
    const nrd_weight *first = a->w[from];
    const wq_format f = wq_of(first->dtype);
    const int y_size = a->y_dtype == NRD_DTYPE_F32 ? 4 : 2;
    nrd_weight merged[MAX_PARTS];
    const nrd_weight *w[MAX_PARTS] = {};
    wq_params p = {};
    int64_t col = 0;
    int n_w = 0;

    if (first->cols > (1 << 24)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: a weight of %lld columns", (long long)first->cols);
    }
    p.wide_y = aligned16(a->y);
    for (int i = 0; i < a->n_parts; i++) {
        const nrd_weight *wi = a->w[i];
        if (i >= from && i < to) {
            nrd_weight *last = &merged[n_w > 0 ? n_w - 1 : 0];
            if (n_w > 0 && last->rows % WQ_ROWS == 0 &&
                (const char *)last->data + wq_bytes(last->dtype, last->rows, last->cols) ==
                    (const char *)wi->data &&
                (f.meta != WQ_ROW || (const float *)last->scales + last->rows == (const float *)wi->scales)) {
                last->rows += wi->rows; /* neighbours in memory are one matrix */
            } else {
                merged[n_w] = *wi;
                w[n_w] = &merged[n_w];
                p.w[n_w] = (const char *)wi->data;
                p.row_scale[n_w] = f.meta == WQ_ROW ? (const float *)wi->scales : NULL;
                p.y_off[n_w] = (int)col;
                p.wide_y = p.wide_y && col * y_size % 16 == 0;
                n_w++;
            }
            p.rows[n_w - 1] = (int)merged[n_w - 1].rows;
        }
        p.bias[i] = a->bias[i] && !plain ? (const float *)a->bias[i]->data : NULL;
        col += wi->rows;
        p.bias_end[i] = (int)col;
    }
    p.y = a->y;
    p.ldy = col;
    p.wide_y = p.wide_y && col * y_size % 16 == 0;
    p.n_tokens = a->n_tokens;
    p.k_chunks = (int)((first->cols + WQ_COLS - 1) / WQ_COLS);
    p.y_dtype = a->y_dtype;
    p.softcap = plain ? 0.0f : a->softcap;
    p.x_data = a->x;
    p.x_cols = first->cols;
    if (first->cols % 8 != 0 || !aligned16(a->x)) {
        void *tmp;
        p.x_cols = (first->cols + 7) / 8 * 8;
        const int64_t all = p.x_cols * a->n_tokens;
        NRD_TRY(nrd_cuda_stream_tmp(s, (size_t)all * 2, &tmp));
        NRD_TRY(launch(s, pad_x_kernel, dim3((unsigned)std::min<int64_t>((all + 255) / 256, 4096)), dim3(256),
                       0, (const bf16 *)a->x, (bf16 *)tmp, all, (int)first->cols, (int)p.x_cols));
        p.x_data = tmp;
    }
    switch (f.bits * 8 + f.meta) {
    case 4 * 8 + WQ_S:
        return wq_run<4, WQ_S>(s, p, w, n_w, a->deterministic);
    case 4 * 8 + WQ_M:
        return wq_run<4, WQ_M>(s, p, w, n_w, a->deterministic);
    case 4 * 8 + WQ_K:
        return wq_run<4, WQ_K>(s, p, w, n_w, a->deterministic);
    case 8 * 8 + WQ_S:
        return wq_run<8, WQ_S>(s, p, w, n_w, a->deterministic);
    case 8 * 8 + WQ_M:
        return wq_run<8, WQ_M>(s, p, w, n_w, a->deterministic);
    case 8 * 8 + WQ_K:
        return wq_run<8, WQ_K>(s, p, w, n_w, a->deterministic);
    case 8 * 8 + WQ_K16:
        return wq_run<8, WQ_K16>(s, p, w, n_w, a->deterministic);
    default:
        return wq_run<8, WQ_ROW>(s, p, w, n_w, a->deterministic);
    }
}
