/* linear_wq: y = x W^T (+ bias, softcap) for 1..16 rows of x and weights of 4 or 8 bits in the layout of
 * wq.cuh, on Hopper, at the speed of memory.
 * Shapes    x [n <= 16, K] bf16; W parts of one format; y bf16, fp16 or f32. Any K and rows.
 * Work      A cluster of S blocks takes some groups of 16 rows and shares K; of a block's chunks (16 x 256,
 *           row group after row group) each warp takes an equal run, whatever rows it crosses. A warp
 *           has a ring of its own, filled with one bulk copy a chunk by its first lane: no barrier
 *           joins the warps until their sums are done. The rings are filled before
 *           griddepcontrol.wait; x is then laid in shared memory in the order of mma.sync's right
 *           operand. Codes become bf16 by masks: 0x4300 | q is 128 + q, and the 128 (and the zero point)
 *           leave through the accumulators, which start from -136 or -128 times the sum of the group's
 *           x. 8 bits are two such halves, 16 * (high - 16) + (128 + low). Each group's sum is scaled in
 *           f32. Partial sums of warps and blocks are added in order: the result does not depend on
 *           timing. How K and rows are cut depends on 8 or 16 columns of x and the weights alone.
 * Bound     memory: codes and scales, 4.5 bits a number for Q4_0, 5 for Q4_1, 4.6 for Q4_K, 8.5 for Q8_0,
 *           8.6 for Q6_K. Issue slots come next: in the time of 16 x 16 numbers an SM's quarter issues 30
 *           instructions (4 bits) or 57 (8 bits); the loop has 13 to 17 of them, or 25 to 35, with 8
 *           columns of x and 17 to 24, or 26 to 41, with 16 (counted in the machine code).
 * Measured  not yet.
 */
#include "device/ops/hopper.cuh"
#include "device/ops/wq.cuh"

#include <algorithm>

#define L2_EVICT_NORMAL 0x1000000000000000ull /* as CUTLASS documents it; see hopper.cuh */

enum { MAX_PARTS = NRD_LINEAR_MAX_PARTS, MAX_THREADS = 512 };

struct wq_params {
    const char *w[MAX_PARTS];
    const float *row_scale[MAX_PARTS], *bias[MAX_PARTS];
    int end[MAX_PARTS]; /* row groups of the parts up to and including this one */
    int rows[MAX_PARTS], y_off[MAX_PARTS];
    const bf16 *x;
    void *y;
    int64_t ldy;
    int n_parts, n_tokens, cols, k_chunks, n_groups, y_dtype;
    int split_bits, warp_bits; /* logarithms */
    int stages, most_chunks, slots; /* slots: pieces of row groups for which a block has room */
    float softcap;
    bool again, wide_x;
};

/* One block's share. */
struct wq_share {
    int first_group, n_groups; /* row groups of the cluster */
    int k0, k_len;             /* chunks of K of this block */
    int warp_bits;

    __device__ wq_share(const wq_params &a, int cluster, int n_clusters, int rank)
    {
        first_group = (int)((int64_t)a.n_groups * cluster / n_clusters);
        n_groups = (int)((int64_t)a.n_groups * (cluster + 1) / n_clusters) - first_group;
        k0 = a.k_chunks * rank >> a.split_bits;
        k_len = k_len_of(a, rank);
        warp_bits = a.warp_bits;
    }
    static __device__ __forceinline__ int k_len_of(const wq_params &a, int rank)
    {
        return (a.k_chunks * (rank + 1) >> a.split_bits) - (a.k_chunks * rank >> a.split_bits);
    }
    /* Warp w takes chunks from(w) .. from(w + 1) of n_groups * k_len. */
    __device__ __forceinline__ int from(int w) const { return n_groups * k_len * w >> warp_bits; }
    /* The warp that has chunk i, in a block with k_len chunks of K. */
    __device__ __forceinline__ int warp_of(int i, int len) const
    {
        return (((i + 1) << warp_bits) - 1) / (n_groups * len);
    }
};

static __device__ __forceinline__ int part_of(const wq_params &a, int group)
{
    int p = 0;
    while (group >= a.end[p]) {
        p++;
    }
    return p;
}

static __device__ __forceinline__ void bulk_copy_hint(uint32_t dst, const void *src, uint32_t bytes,
                                                      uint32_t bar, uint64_t policy)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(dst),
                 "l"(src), "r"(bytes), "r"(bar), "l"(policy)
                 : "memory");
#endif
}

static __device__ __forceinline__ void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* The numbers at bits 0..3 and 16..19 of w, each plus 128, as a pair of bf16. */
static __device__ __forceinline__ uint32_t nibbles(uint32_t w)
{
    uint32_t r;
    asm("lop3.b32 %0, %1, 0x000f000f, 0x43004300, 0xea;" : "=r"(r) : "r"(w)); /* (a & b) | c */
    return r;
}

/* Bytes 0 and 2 of w, each minus 128, as a pair of bf16: exact at every step. */
static __device__ __forceinline__ uint32_t bytes02(uint32_t w)
{
    const uint32_t low = nibbles(w), high = nibbles(w >> 4);
    uint32_t t, r;
    /* high - 16; 0x4310 is 144, 0x3f80 one, 0x4180 sixteen */
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(t) : "r"(high), "r"(0x3f803f80u), "r"(0xc310c310u));
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(t), "r"(0x41804180u), "r"(low));
    return r;
}

/* Pairs of bf16 from 128 on, minus 128. */
static __device__ __forceinline__ uint32_t less_128(uint32_t w)
{
    uint32_t r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(w), "r"(0x3f803f80u), "r"(0xc300c300u));
    return r;
}

/* Does a format need the groups' sums of x, for the 128 of 4 bits or an offset? */
static constexpr __host__ __device__ bool needs_sums(int bits, int meta)
{
    return bits == 4 || meta == WQ_M;
}
/* Minima of WQ_K: eight small integers a row times eight sums of x are half a product of the tensor cores;
 * the other half takes what bf16 leaves of the sums (they keep 16 bits). As many as 4 instructions in 28
 * less than a sum for each. */
static constexpr __host__ __device__ bool needs_mins(int meta)
{
    return meta == WQ_K;
}
static constexpr __host__ __device__ float sum_factor(int meta)
{
    return meta == WQ_S ? -136.0f : -128.0f; /* 128 of the mask, 8: zero of Q4_0 */
}

/* What scales the eight groups of a lane's two rows. */
template <int META> struct wq_scales {
    uint4 a[2], b[2];
    float2 d[2];

    __device__ __forceinline__ void load(const char *m, int g)
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = g + 8 * h;
            if constexpr (META == WQ_M) {
                a[h] = ((const uint4 *)m)[row * 2];
                b[h] = ((const uint4 *)m)[row * 2 + 1];
            } else if constexpr (META != WQ_ROW) {
                a[h] = ((const uint4 *)m)[row];
            }
            if constexpr (META == WQ_K) {
                d[h] = wq_halves(((const uint32_t *)m)[64 + row]);
            } else if constexpr (META == WQ_K16) {
                d[h].x = __half2float(((const __half *)m)[128 + row]);
            }
        }
    }
    static __device__ __forceinline__ uint32_t word(const uint4 &v, int i)
    {
        return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
    }
    /* of half group i / 2, i % 2 for WQ_K16, else of group i; all calls with constants */
    __device__ __forceinline__ float scale(int h, int i) const
    {
        if constexpr (META == WQ_S) {
            const float2 f = wq_halves(word(a[h], i / 2));
            return i % 2 ? f.y : f.x;
        } else if constexpr (META == WQ_M) {
            return wq_halves(word(i < 4 ? a[h] : b[h], i % 4)).x;
        } else if constexpr (META == WQ_K) {
            return d[h].x * (wq_byte(word(a[h], i / 4), i % 4) - 8388608.0f);
        } else {
            return d[h].x * (wq_byte(word(a[h], i / 4), i % 4) - 8388736.0f);
        }
    }
    __device__ __forceinline__ float offset(int h, int i) const
    {
        return wq_halves(word(i < 4 ? a[h] : b[h], i % 4)).y * (-1.0f / 128.0f);
    }
    /* Factors of the minima of groups 2t and 2t + 1 as a pair of bf16. */
    static __device__ __forceinline__ uint32_t minima(const char *m, int row, int t)
    {
        const uint32_t two = ((const uint16_t *)m)[row * 8 + 4 + t];
        return less_128(__byte_perm(two, 0x43004300u, 0x7150u));
    }
};

/* acc += chunk x its columns of x. xs: [8 groups][N][32] in the order of the operand; sums: [8][N / 2];
 * mins: [N][4], sums as an operand. */
template <int BITS, int META, int N>
static __device__ __forceinline__ void multiply_chunk(float (&acc)[N / 8][4], const char *chunk,
                                                      const uint4 *xs, const float4 *sums,
                                                      const uint2 *mins, int lane)
{
    constexpr int CODES = WQ_ROWS * WQ_COLS * BITS / 8;
    const uint4 *codes = (const uint4 *)chunk + lane;
    wq_scales<META> sc;
    uint4 q = {};

    sc.load(chunk + CODES, lane >> 2);
    if constexpr (needs_mins(META)) {
        const uint32_t m0 = sc.minima(chunk + CODES, lane >> 2, lane & 3);
        const uint32_t m1 = sc.minima(chunk + CODES, (lane >> 2) + 8, lane & 3);
        const uint32_t a[4] = {m0, m1, m0, m1};
#pragma unroll
        for (int nt = 0; nt < N / 8; nt++) {
            const uint2 x = mins[nt * 32 + lane];
            float c[4] = {};
            mma_bf16(c, a, x.x, x.y);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                acc[nt][i] = fmaf(-sc.d[i / 2].y, c[i], acc[nt][i]);
            }
        }
    }
#pragma unroll
    for (int group = 0; group < 8; group++) {
        uint32_t a[2][4];
        if (BITS == 8 || group % 2 == 0) {
            q = codes[(BITS == 8 ? group : group / 2) * 32];
        }
        if constexpr (BITS == 4) {
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const uint32_t w = group % 2 ? (j ? q.w : q.z) : (j ? q.y : q.x);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    a[j][i] = nibbles(w >> (4 * i));
                }
            }
        } else {
            a[0][0] = bytes02(q.x), a[0][1] = bytes02(q.x >> 8);
            a[0][2] = bytes02(q.y), a[0][3] = bytes02(q.y >> 8);
            a[1][0] = bytes02(q.z), a[1][1] = bytes02(q.z >> 8);
            a[1][2] = bytes02(q.w), a[1][3] = bytes02(q.w >> 8);
        }
        float s[2][2], o[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if constexpr (META == WQ_K16) {
                s[h][0] = sc.scale(h, group * 2), s[h][1] = sc.scale(h, group * 2 + 1);
            } else if constexpr (META != WQ_ROW) {
                s[h][0] = sc.scale(h, group);
            }
            if constexpr (META == WQ_M) {
                o[h] = sc.offset(h, group);
            }
        }
#pragma unroll
        for (int nt = 0; nt < N / 8; nt++) {
            const uint4 x = xs[(group * N + nt * 8) * 4 + lane];
            float4 sum = {};
            if constexpr (needs_sums(BITS, META)) {
                sum = sums[group * (N / 2) + nt * 4 + (lane & 3)];
            }
            if constexpr (META == WQ_ROW) {
                mma_bf16(acc[nt], a[0], x.x, x.y);
                mma_bf16(acc[nt], a[1], x.z, x.w);
            } else if constexpr (META == WQ_K16) {
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    float c[4] = {};
                    mma_bf16(c, a[j], j ? x.z : x.x, j ? x.w : x.y);
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        acc[nt][i] = fmaf(s[i / 2][j], c[i], acc[nt][i]);
                    }
                }
            } else {
                float c[4] = {};
                if constexpr (BITS == 4) {
                    c[0] = sum.x, c[1] = sum.y, c[2] = sum.z, c[3] = sum.w;
                }
                mma_bf16(c, a[0], x.x, x.y);
                mma_bf16(c, a[1], x.z, x.w);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    acc[nt][i] = fmaf(s[i / 2][0], c[i], acc[nt][i]);
                    if constexpr (META == WQ_M) {
                        acc[nt][i] = fmaf(o[i / 2], i % 2 ? sum.y : sum.x, acc[nt][i]);
                    }
                }
            }
        }
    }
}

/* Four elements of a row of x from column c; behind the row's end zeros. */
static __device__ __forceinline__ uint2 load_x(const wq_params &a, const bf16 *row, int c)
{
    uint2 r = {};
    if (a.wide_x) {
        if (c < a.cols) {
            r = *(const uint2 *)(row + c);
        }
    } else {
        bf16 v[4];
        for (int i = 0; i < 4; i++) {
            v[i] = c + i < a.cols ? row[c + i] : from_f<bf16>(0.0f);
        }
        memcpy(&r, v, 8);
    }
    return r;
}

static __device__ __forceinline__ float sum4(uint2 v)
{
    __nv_bfloat162 a, b;
    memcpy(&a, &v.x, 4);
    memcpy(&b, &v.y, 4);
    const float2 fa = __bfloat1622float2(a), fb = __bfloat1622float2(b);
    return (fa.x + fa.y) + (fb.x + fb.y);
}

/* x of this block's columns: four lanes a group of 32. Tokens behind the last keep what is there: their
 * columns of the result are never stored. */
template <int N, bool SUMS, bool MINS>
static __device__ __forceinline__ void stage_x(const wq_params &a, const wq_share &sh, uint4 *xs,
                                               float *sums, bf16 *mins, float factor)
{
    const int items = sh.k_len * 32, c0 = sh.k0 * WQ_COLS; /* items of a token: a multiple of a warp */

#pragma unroll 4
    for (int j = threadIdx.x; j < items * a.n_tokens; j += blockDim.x) {
        const int token = j / items, i = j - token * items;
        const int group = i >> 2, t = i & 3, c = c0 + group * 32 + 4 * t;
        const bf16 *row = a.x + (int64_t)token * a.cols;
        const uint2 u = load_x(a, row, c), v = load_x(a, row, c + 16);
        xs[(group * N + token) * 4 + t] = make_uint4(u.x, u.y, v.x, v.y);
        if constexpr (SUMS || MINS) {
            float sum = sum4(u) + sum4(v);
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            if (SUMS && t < 2) { /* twice: for rows g and g + 8 of the accumulator */
                sums[(group * (N / 2) + token / 2) * 4 + token % 2 + 2 * t] = factor * sum;
            }
            if (MINS && t >= 2) { /* [chunk][N][4 lanes][sums of groups 2t, 2t + 1; what they lack] */
                const bf16 high = from_f<bf16>(sum);
                mins[((group / 8 * N + token) * 4 + group % 8 / 2) * 4 + group % 2 + 2 * (t - 2)] =
                    t == 2 ? high : from_f<bf16>(sum - to_f(high));
            }
        }
    }
}

static __device__ __forceinline__ void store_one(const wq_params &a, int group, int row_in,
                                                 int token, float v)
{
    const int part = part_of(a, group);
    const int row = (group - (part ? a.end[part - 1] : 0)) * WQ_ROWS + row_in;

    if (row >= a.rows[part]) {
        return;
    }
    if (a.row_scale[part]) {
        v *= a.row_scale[part][row];
    }
    if (a.bias[part]) {
        v += a.bias[part][row];
    }
    if (a.softcap > 0.0f) {
        v = a.softcap * tanhf(v / a.softcap);
    }
    const int64_t at = (int64_t)token * a.ldy + a.y_off[part] + row;
    if (a.y_dtype == NRD_DTYPE_BF16) {
        ((bf16 *)a.y)[at] = from_f<bf16>(v);
    } else if (a.y_dtype == NRD_DTYPE_F16) {
        ((f16 *)a.y)[at] = from_f<f16>(v);
    } else {
        ((float *)a.y)[at] = v;
    }
}

/* Shared memory: barriers, x, sums of x, partial sums, rings. */
enum { BAR_BYTES = 1024, MAX_STAGES = 8, MAX_SPLITS = 8 };
static __host__ __device__ constexpr int x_bytes(int n, int chunks) { return chunks * 8 * n * 64; }
static __host__ __device__ constexpr int sum_bytes(int n, int chunks) { return chunks * 8 * n * 8; }
static __host__ __device__ constexpr int min_bytes(int n, int chunks) { return chunks * n * 32; }
static __host__ __device__ constexpr int part_bytes(int n, int slots) { return slots * n * 64; }

/* Where a piece's sum lies: by token, such that the lanes of an accumulator meet 32 banks. */
static __device__ __forceinline__ int part_at(int token, int row)
{
    return (token ^ (token >> 1 & 1)) * WQ_ROWS + (row ^ (token >> 2 & 1) * 8);
}

/* The chunks of a warp, one after the other. */
struct wq_cursor {
    const char *p;
    int group, k; /* of all row groups; of the block's part of K */

    __device__ void jump(const wq_params &a, const wq_share &sh, int bytes)
    {
        const int part = part_of(a, group);
        const int64_t row_group = group - (part ? a.end[part - 1] : 0);
        p = a.w[part] + (row_group * a.k_chunks + sh.k0 + k) * bytes;
    }
    __device__ __forceinline__ void next(const wq_params &a, const wq_share &sh, int bytes)
    {
        p += bytes;
        if (++k == sh.k_len) {
            k = 0;
            group++;
            if (group < sh.first_group + sh.n_groups) {
                jump(a, sh, bytes);
            }
        }
    }
};

template <int BITS, int META, int N>
static __global__ void __launch_bounds__(MAX_THREADS, 1)
    linear_wq_kernel(const __grid_constant__ wq_params a)
{
#if __CUDA_ARCH__ >= 900
    constexpr int CHUNK = wq_chunk(BITS, META);
    constexpr bool SUMS = needs_sums(BITS, META), MINS = needs_mins(META);
    extern __shared__ __align__(128) char smem[];
    uint4 *xs = (uint4 *)(smem + BAR_BYTES);
    float *sums = (float *)(smem + BAR_BYTES + x_bytes(N, a.most_chunks));
    bf16 *mins = (bf16 *)(sums + (SUMS ? sum_bytes(N, a.most_chunks) / 4 : 0));
    float *parts = (float *)(mins + (MINS ? min_bytes(N, a.most_chunks) / 2 : 0));
    char *rings = (char *)parts + part_bytes(N, a.slots);
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int splits = 1 << a.split_bits, threads = (int)blockDim.x;
    const int rank = (int)blockIdx.x & (splits - 1), cluster = (int)blockIdx.x >> a.split_bits;
    const wq_share sh(a, cluster, (int)gridDim.x >> a.split_bits, rank);
    const int from = sh.from(warp), to = sh.from(warp + 1);
    const char *ring = rings + warp * a.stages * CHUNK;
    const uint32_t bars = smem_u32(smem) + (uint32_t)(warp * MAX_STAGES * 8), ring_u = smem_u32(ring);
    int group = from / sh.k_len, k = from % sh.k_len; /* of the block's row groups; of its K */
    wq_cursor ahead = {NULL, sh.first_group + group, k};

    auto copy = [&](int slot) { /* by one lane */
        mbar_expect(bars + slot * 8, CHUNK);
        bulk_copy_hint(ring_u + slot * CHUNK, ahead.p, CHUNK, bars + slot * 8,
                       a.again ? L2_EVICT_NORMAL : L2_EVICT_FIRST);
        ahead.next(a, sh, CHUNK);
    };

    if (lane == 0) {
        for (int i = 0; i < a.stages; i++) {
            mbar_init(bars + i * 8, 1);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        if (from < to) {
            ahead.jump(a, sh, CHUNK);
        }
        for (int i = from; i < to && i < from + a.stages; i++) {
            copy(i - from);
        }
    }
    pdl_wait();
    if (lane == 0 && to - from <= a.stages) {
        pdl_go(); /* all of W is under way */
    }
    stage_x<N, SUMS, MINS>(a, sh, xs, sums, mins, sum_factor(META));
    __syncthreads();

    float acc[N / 8][4] = {};
    int slot = 0;
    uint32_t parity = 0;
    for (int left = to - from; left > 0; left--) {
        mbar_wait(bars + slot * 8, parity);
        multiply_chunk<BITS, META, N>(acc, ring + slot * CHUNK, xs + k * (8 * N * 4),
                                      (const float4 *)sums + k * (8 * (N / 2)),
                                      (const uint2 *)mins + k * (N * 4), lane);
        __syncwarp();
        if (lane == 0 && left > a.stages) {
            copy(slot);
            if (left == a.stages + 1) {
                pdl_go();
            }
        }
        if (++slot == a.stages) {
            slot = 0;
            parity ^= 1;
        }
        if (++k == sh.k_len || left == 1) { /* the piece's sums */
            float *mine = parts + (group + warp) * (N * WQ_ROWS);
#pragma unroll
            for (int j = 0; j < N / 2; j++) {
                mine[part_at(j / 4 * 8 + 2 * t + j % 2, g + j / 2 % 2 * 8)] = acc[j / 4][j % 4];
                acc[j / 4][j % 4] = 0.0f;
            }
            k = 0;
            group++;
        }
    }
    __syncthreads();
    /* The warps' pieces of a row group, in order. Of several blocks' sums each lies in its first piece. */
    const int rows = sh.n_groups * WQ_ROWS, all = rows * a.n_tokens;
    for (int i = threadIdx.x; i < all; i += threads) {
        const int token = i / rows, row = i % rows, of = row / WQ_ROWS;
        const int first = sh.warp_of(of * sh.k_len, sh.k_len);
        const int last = sh.warp_of((of + 1) * sh.k_len - 1, sh.k_len);
        float *piece = parts + (of + first) * (N * WQ_ROWS) + part_at(token, row % WQ_ROWS);
        float sum = *piece;
        for (int w = first + 1; w <= last; w++) {
            if (sh.from(w) < sh.from(w + 1)) { /* else: fewer chunks than warps */
                sum += piece[(w - first) * (N * WQ_ROWS)];
            }
        }
        if (splits == 1) {
            store_one(a, sh.first_group + of, row % WQ_ROWS, token, sum);
        } else if (first < last) {
            *piece = sum;
        }
    }
    if (splits > 1) {
        __syncwarp();
        asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;"
                     ::: "memory");
        const uint32_t parts_u = smem_u32(parts);
        for (int i = rank * threads + (int)threadIdx.x; i < all; i += splits * threads) {
            const int token = i / rows, row = i % rows, of = row / WQ_ROWS;
            float v[MAX_SPLITS];
#pragma unroll
            for (int r = 0; r < MAX_SPLITS; r++) {
                v[r] = 0.0f;
                if (r < splits) {
                    const int len = wq_share::k_len_of(a, r);
                    const int piece = (of + sh.warp_of(of * len, len)) * (N * WQ_ROWS);
                    const uint32_t here =
                        parts_u + (uint32_t)(piece + part_at(token, row % WQ_ROWS)) * 4;
                    uint32_t there;
                    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                                 : "=r"(there)
                                 : "r"(here), "r"(r));
                    asm volatile("ld.shared::cluster.f32 %0, [%1];"
                                 : "=f"(v[r])
                                 : "r"(there)
                                 : "memory");
                }
            }
            float sum = v[0];
#pragma unroll
            for (int r = 1; r < MAX_SPLITS; r++) {
                sum += v[r];
            }
            store_one(a, sh.first_group + of, row % WQ_ROWS, token, sum);
        }
        /* nobody leaves while others still read */
        __syncwarp();
        asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;"
                     ::: "memory");
    }
#else
    (void)a;
#endif
}

enum { HALF_SM = 113 * 1024, WHOLE_SM = 226 * 1024 };

struct wq_plan {
    int clusters, split_bits, warp_bits, stages, most_chunks, slots;
    size_t smem; /* 0: no plan */
};

/* Clusters of 1, 2, 4, 8 blocks that run at once: blocks of 8 warps, two an SM; of 16 warps, one an SM. */
struct wq_room {
    int clusters[2][4];
};

/* Blocks, splits and stages by what an SM must bring from memory and the L2 deliver, as linear_skinny
 * does. */
static wq_plan choose(int n_groups, int k_chunks, int bits_of, int meta, int n, int n_sm,
                      const wq_room &room)
{
    const int chunk = wq_chunk(bits_of, meta);
    wq_plan best = {};
    double best_us = 1e30;

    for (int at = 0; at < 4 * 2 * 32; at++) {
        const int bits = at & 3, splits = 1 << bits, alone = at >> 2 & 1, waves = (at >> 3) + 1;
        const int warps = alone ? 16 : 8, most = (k_chunks + splits - 1) / splits;
        const int at_once = room.clusters[alone][bits], clusters = std::min(n_groups, at_once * waves);
        if (splits > k_chunks || clusters == 0 || n_groups <= at_once * (waves - 1)) {
            continue;
        }
        const int groups = (n_groups + clusters - 1) / clusters, slots = groups + warps - 1;
        const int fixed = BAR_BYTES + x_bytes(n, most) +
                          (needs_sums(bits_of, meta) ? sum_bytes(n, most) : 0) +
                          (needs_mins(meta) ? min_bytes(n, most) : 0) + part_bytes(n, slots);
        const int left = (alone ? WHOLE_SM : HALF_SM) - fixed;
        const int useful = (groups * most + warps - 1) / warps, fits = left / (warps * chunk);
        if (left < 0 || fits < std::min(2, useful)) {
            continue;
        }
        const double on_sm = (clusters * splits + n_sm - 1) / n_sm;
        const double w_mb = (double)groups * most * chunk * 1e-6, x_mb = n * most * 512e-6;
        const double memory = on_sm * w_mb * n_sm / 4.4, l2 = on_sm * (w_mb + x_mb) * n_sm / 5.5;
        /* a ring too short for its warp; adding up; filling rings and x again; a block that shuts out the
         * next kernel's */
        const double us = std::max(memory, l2) * (fits < 3 && fits < useful ? 1.05 : 1.0) +
                          (bits > 0 ? 1.0 : 0.0) + 0.15 * on_sm + 0.7 * (waves - 1) + (alone ? 1.5 : 0.0);
        if (us < best_us) {
            const int stages = std::min(std::min(fits, (int)MAX_STAGES), useful);
            best_us = us;
            best = {clusters, bits, alone ? 4 : 3, stages, most, slots,
                    (size_t)(fixed + warps * stages * chunk)};
        }
    }
    return best;
}

/* A cluster's blocks share a part of the GPU, and not every SM can be in one: the runtime knows. */
static wq_room find_room(const void *kernel, int n_sm)
{
    wq_room r;

    for (int alone = 0; alone < 2; alone++) {
        for (int bits = 0; bits < 4; bits++) {
            const int blocks = n_sm * (alone ? 1 : 2);
            cudaLaunchConfig_t cfg = {};
            cudaLaunchAttribute attr[1];
            int n = 0;
            attr[0].id = cudaLaunchAttributeClusterDimension;
            attr[0].val.clusterDim.x = 1u << bits;
            attr[0].val.clusterDim.y = attr[0].val.clusterDim.z = 1;
            cfg.gridDim = (unsigned)(blocks >> bits << bits);
            cfg.blockDim = alone ? MAX_THREADS : MAX_THREADS / 2;
            cfg.dynamicSmemBytes = alone ? WHOLE_SM : HALF_SM;
            cfg.attrs = attr;
            cfg.numAttrs = 1;
            if (cudaOccupancyMaxActiveClusters(&n, kernel, &cfg) != cudaSuccess) {
                (void)cudaGetLastError();
                n = (bits > 0 ? blocks * 31 / 33 : blocks) >> bits;
            }
            r.clusters[alone][bits] = std::min(n, blocks >> bits);
        }
    }
    return r;
}

template <int BITS, int META, int N>
static nrd_error *wq_launch(nrd_stream *s, wq_params &p)
{
    void (*kernel)(const wq_params) = linear_wq_kernel<BITS, META, N>;
    static bool known[64]; /* per instance and device; finding out twice is harmless */
    static wq_room rooms[64];
    const int at = s->dev->id & 63;

    if (!known[at]) {
        CUDA_TRY(cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      WHOLE_SM));
        rooms[at] = find_room((const void *)kernel, s->dev->n_sm);
        known[at] = true;
    }
    const wq_plan plan = choose(p.n_groups, p.k_chunks, BITS, META, N, s->dev->n_sm, rooms[at]);
    cudaLaunchConfig_t cfg = {};
    cudaLaunchAttribute attr[2];

    if (plan.smem == 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: no plan for %d tokens x %d columns x %d rows", p.n_tokens,
                          p.cols, p.n_groups * WQ_ROWS);
    }
    p.split_bits = plan.split_bits;
    p.warp_bits = plan.warp_bits;
    p.stages = plan.stages;
    p.most_chunks = plan.most_chunks;
    p.slots = plan.slots;
    cfg.gridDim = (unsigned)(plan.clusters << plan.split_bits);
    cfg.blockDim = 32u << plan.warp_bits;
    cfg.dynamicSmemBytes = plan.smem;
    cfg.stream = s->s;
    cfg.attrs = attr;
    cfg.numAttrs = s->joined ? 1 : 2;
    s->joined = false;
    attr[0].id = cudaLaunchAttributeClusterDimension;
    attr[0].val.clusterDim.x = 1u << plan.split_bits;
    attr[0].val.clusterDim.y = 1;
    attr[0].val.clusterDim.z = 1;
    attr[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr[1].val.programmaticStreamSerializationAllowed = 1;
    CUDA_TRY(cudaLaunchKernelEx(&cfg, kernel, (const wq_params)p));
    return NULL;
}

template <int BITS, int META> static nrd_error *wq_run(nrd_stream *s, wq_params &p, bool wide)
{
    return wide ? wq_launch<BITS, META, 16>(s, p) : wq_launch<BITS, META, 8>(s, p);
}

nrd_error *linear_wq(nrd_stream *s, const nrd_linear_args *a, int from, int to, int32_t t0, int32_t nt,
                     bool plain, bool again)
{
    const nrd_weight *first = a->w[from];
    const wq_format f = wq_of(first->dtype);
    const bool wide = a->deterministic || nt > 8; /* one shape for every batch where rows must not change */
    const int y_size = a->y_dtype == NRD_DTYPE_F32 ? 4 : 2;
    wq_params p = {};
    int64_t col = 0, groups = 0;

    if (first->cols > (1 << 24)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: a weight of %lld columns", (long long)first->cols);
    }
    for (int i = 0; i < a->n_parts; i++) {
        const nrd_weight *w = a->w[i];
        if (i >= from && i < to) {
            const int at = i - from;
            groups += (w->rows + WQ_ROWS - 1) / WQ_ROWS;
            p.w[at] = (const char *)w->data;
            p.row_scale[at] = (const float *)w->scales;
            p.bias[at] = a->bias[i] && !plain ? (const float *)a->bias[i]->data : NULL;
            p.end[at] = (int)groups;
            p.rows[at] = (int)w->rows;
            p.y_off[at] = (int)col;
        }
        col += w->rows;
    }
    p.n_parts = to - from;
    p.x = (const bf16 *)a->x + (int64_t)t0 * first->cols;
    p.y = (char *)a->y + (int64_t)t0 * col * y_size;
    p.ldy = col;
    p.n_tokens = nt;
    p.cols = (int)first->cols;
    p.k_chunks = (int)((first->cols + WQ_COLS - 1) / WQ_COLS);
    p.n_groups = (int)groups;
    p.y_dtype = a->y_dtype;
    p.softcap = plain ? 0.0f : a->softcap;
    p.again = again;
    p.wide_x = first->cols % 4 == 0 && ((uintptr_t)a->x & 7) == 0;
    switch (f.bits * 8 + f.meta) {
    case 4 * 8 + WQ_S:
        return wq_run<4, WQ_S>(s, p, wide);
    case 4 * 8 + WQ_M:
        return wq_run<4, WQ_M>(s, p, wide);
    case 4 * 8 + WQ_K:
        return wq_run<4, WQ_K>(s, p, wide);
    case 8 * 8 + WQ_S:
        return wq_run<8, WQ_S>(s, p, wide);
    case 8 * 8 + WQ_M:
        return wq_run<8, WQ_M>(s, p, wide);
    case 8 * 8 + WQ_K:
        return wq_run<8, WQ_K>(s, p, wide);
    case 8 * 8 + WQ_K16:
        return wq_run<8, WQ_K16>(s, p, wide);
    default:
        return wq_run<8, WQ_ROW>(s, p, wide);
    }
}
