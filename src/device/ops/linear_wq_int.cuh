/* SPDX-License-Identifier: Apache-2.0
 * linear_wq_int.cuh - up to 4 rows of x and weights of 4 bits: integers times integers. Part of linear_wq.cu.
 *
 * Work      x becomes integers of 16 bits with a power of two for each group of 32 columns, so that
 *           the largest of a group keep all their bits, and two columns of 8 bits of mma.m16n8k32 (high
 *           and low part). Columns of x are few, so the other columns of the tile are given to other
 *           groups: with a row of x, a tile of 16 rows x 8 columns is 4 groups x 2 parts, and what is not of
 *           a column's group is zero. Sums of a group are exact and meet its scale once in float32. For
 *           16 x 256 numbers of 4 bits a warp issues some 155 instructions: 32 take the codes apart, 8
 *           multiply.
 *           A block an SM, which has whole row groups of W; its warps share their chunks evenly, each with
 *           a ring of its own, and add up in order where they share a row group.
 * Bound     memory for wide matrices; 4 to 5 us of start and end of a launch beside the bytes of narrow ones.
 * Measured  NVIDIA H200, a Llama-3.1-8B layer in Q4_0: 45.8 us for a row, 60.0 for 4; its head 69 and 76 (floor 66)
 *           (2026-11-29, build/tests/ops/test_ops --device cuda --speed linear).
 */
#ifndef NRD_OPS_LINEAR_WQ_INT_CUH
#define NRD_OPS_LINEAR_WQ_INT_CUH

#include "device/ops/linear_wq_kernel.cuh"

/* Two chunks a warp are under way, 74 KB an SM: with three to five the products of a layer take as long, and the small
 * kernels between them longer. */
enum { INT_WARPS = 16, INT_TOKENS = 4, INT_STAGES = 2 };

/* Of a token and a group of 32 columns: [high, low][t] of 8 bytes, what lane t of four multiplies; and int_scale. */
enum { INT_X_BYTES = 64 };
struct int_scale {
    float unit, sum; /* x = unit * integer; the sum of x */
};

/* places: row groups that a warp has a share of, at most */
static constexpr __host__ __device__ size_t int_smem(int chunk, int stages, int k_chunks, int tokens, int places)
{
    return (size_t)INT_WARPS * stages * (chunk + 8) + (size_t)k_chunks * 8 * tokens * (INT_X_BYTES + sizeof(int_scale)) +
           (size_t)INT_WARPS * places * tokens * WQ_ROWS * 4;
}

static __device__ __forceinline__ void mma_int(int (&c)[4], const uint32_t (&a)[4], uint2 b)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}

/* From here on the compiler does not know how it came about, and keeps it in place of making it anew in each round. */
static __device__ __forceinline__ int keep(int v)
{
    asm volatile("" : "+r"(v));
    return v;
}

/* Where scales of a row and a group lie behind a chunk's codes. */
template <int META> static __device__ __forceinline__ int entry_at(int row, int group)
{
    return META == WQ_M ? row * 32 + group * 4 : META == WQ_S ? row * 16 + group * 2 : row * 16 + group;
}

/* Scale and offset that lie at `at`; of_row: those of a row of WQ_K. */
template <int META> static __device__ __forceinline__ float2 int_entry(const char *at, float2 of_row)
{
    if constexpr (META == WQ_S) {
        return make_float2(__half2float(*(const __half *)at), 0.0f);
    } else if constexpr (META == WQ_M) {
        return wq_halves(*(const uint32_t *)at);
    } else {
        return make_float2(of_row.x * (float)*(const uint8_t *)at, -of_row.y * (float)*(const uint8_t *)(at + 8));
    }
}

/* One row of y. */
static __device__ __forceinline__ void store_one(const wq_params &a, int tile, int row_of_tile, int token, float v)
{
    int part = 0;
    while (tile >= a.tile_end[part]) {
        part++;
    }
    const int row = (part ? tile - a.tile_end[part - 1] : tile) * WQ_ROWS + row_of_tile;
    if (row >= a.rows[part] || token >= a.n_tokens) {
        return;
    }
    const int64_t at = (int64_t)token * a.ldy + a.y_off[part] + row;
    v = finish(a, load_consts(a, part, row), v);
    store_as(a.y, a.y_dtype, at, v);
}

template <int META, int T> struct int_block {
    static constexpr int CHUNK = wq_chunk(4, META), CODES = WQ_ROWS * WQ_COLS / 2;
    static constexpr float ZERO = META == WQ_S ? -8.0f : 0.0f; /* the code of zero */
    static constexpr float TIMES = 16.0f; /* of rows g + 8 */
    static constexpr int GROUPS = 4 / T, SETS = 8 / GROUPS; /* groups that are multiplied at once; of these in a chunk */

    const wq_params &a;
    const int stages, warp, lane, g, t;
    char *const raw, *const ring; /* ring: this warp's */
    char *const x;
    int_scale *const scales;
    float *const sums; /* [warps][row groups of its share][tokens][16 rows] */
    const uint32_t full;
    const int tile0, n_tiles, chunk0, n_chunks; /* of the block; of the warp, from the block's first chunk on */

    /* the copies' place */
    const char *from;
    int part = 0, left_of_part, next = 0, next_slot = 0;

    __device__ __forceinline__ int first_of(int w) const
    {
        return n_tiles * a.k_chunks * w / INT_WARPS;
    }

    __device__ __forceinline__ int_block(const wq_params &p, char *memory)
        : a(p), stages(p.w_stages), warp(__shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0)), lane((int)threadIdx.x & 31), g(lane >> 2),
          t(lane & 3), raw(memory), ring(raw + warp * stages * CHUNK), x(raw + INT_WARPS * stages * CHUNK),
          scales((int_scale *)(x + p.k_chunks * 8 * T * INT_X_BYTES)), sums((float *)(scales + p.k_chunks * 8 * T)),
          full(smem_u32(sums + INT_WARPS * p.splits * T * WQ_ROWS) + warp * stages * 8),
          tile0((int)((unsigned)p.n_units * blockIdx.x / gridDim.x)),
          n_tiles((int)((unsigned)p.n_units * (blockIdx.x + 1) / gridDim.x) - tile0), chunk0(first_of(warp)),
          n_chunks(first_of(warp + 1) - chunk0)
    {
        const int tile = tile0 + (int)((unsigned)chunk0 / (unsigned)a.k_chunks), k = chunk0 - (tile - tile0) * a.k_chunks;
        while (part < MAX_PARTS - 1 && tile >= a.tile_end[part]) {
            part++;
        }
        const int in_part = (part ? tile - a.tile_end[part - 1] : tile) * a.k_chunks + k;
        from = a.w[part] + (int64_t)in_part * CHUNK;
        left_of_part = (a.tile_end[part] - (part ? a.tile_end[part - 1] : 0)) * a.k_chunks - in_part;
    }

    /* One lane: the next chunk of the warp's share, if there is one, into the ring. */
    __device__ __forceinline__ void copy_next()
    {
        if (next < n_chunks) {
            if (lane == 0) {
                mbar_expect(full + next_slot * 8, CHUNK);
                bulk_copy_hint(smem_u32(ring) + next_slot * CHUNK, from, CHUNK, full + next_slot * 8, L2_EVICT_FIRST);
            }
            if (++next == n_chunks) {
                pdl_go(); /* the last of W is under way */
            }
            next_slot = next_slot + 1 == stages ? 0 : next_slot + 1;
            from += CHUNK;
            if (--left_of_part == 0 && next < n_chunks) {
                part++;
                from = a.w[part];
                left_of_part = (a.tile_end[part] - a.tile_end[part - 1]) * a.k_chunks;
            }
        }
    }

    /* All threads: x to shared memory as integers. Four lanes have a group. */
    __device__ __forceinline__ void take_x() const
    {
        constexpr int QUADS = INT_WARPS * 8, AT_ONCE = 4;
        const int n_groups = a.k_chunks * 8, quad = (int)threadIdx.x / 4;

#pragma unroll 1
        for (int token = 0; token < T; token++) {
            const bf16 *row = (const bf16 *)a.x_data + (int64_t)token * a.x_cols + 2 * t;
            const int cols = token < a.n_tokens ? (int)a.x_cols - 2 * t : 0;
#pragma unroll 1
            for (int begin = 0; begin < n_groups; begin += QUADS * AT_ONCE) {
                uint32_t v[AT_ONCE][4];
#pragma unroll
                for (int u = 0; u < AT_ONCE; u++) {
                    const int col = (begin + u * QUADS + quad) * 32;
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        v[u][i] = col + i * 8 < cols ? __ldcg((const uint32_t *)(row + col + i * 8)) : 0;
                    }
                }
#pragma unroll
                for (int u = 0; u < AT_ONCE; u++) {
                    const int group = begin + u * QUADS + quad;
                    if (begin + u * QUADS + warp * 8 < n_groups) { /* whole warps: n_groups is a multiple of 8 */
                        take_group(v[u], group * T + token);
                    }
                }
            }
        }
    }

    __device__ __forceinline__ void take_group(const uint32_t (&v)[4], int at) const
    {
        uint32_t top = 0; /* bits of magnitudes are in their order; infinity and NaN are behind all others */
#pragma unroll
        for (int i = 0; i < 4; i++) {
            top = max(top, max(v[i] << 16 & 0x7fff0000u, v[i] & 0x7fff0000u));
        }
        top = max(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = max(top, __shfl_xor_sync(0xffffffffu, top, 2));
        const int e = max((int)(top >> 23), 15); /* both powers are normal numbers */
        const float to_int = __uint_as_float((uint32_t)(268 - e) << 23); /* the largest becomes 2^14 .. 2^15 */
        int hi[8], lo[8], sum = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float f = __uint_as_float(i % 2 ? v[i / 2] & 0xffff0000u : v[i / 2] << 16);
            const int n = min(__float2int_rn(f * to_int), 127 * 256 + 127);
            lo[i] = (int)(int8_t)n;
            hi[i] = (n - lo[i]) >> 8;
            sum += n;
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        uint2 *to = (uint2 *)(x + at * INT_X_BYTES) + t;
        to[0] = make_uint2(bytes(hi), bytes(hi + 4));
        to[4] = make_uint2(bytes(lo), bytes(lo + 4));
        if (t == 0) {
            const float unit = __uint_as_float(e == 255 ? 0x7fc00000u : (uint32_t)(e - 14) << 23);
            scales[at] = {unit, unit * (float)sum};
        }
    }

    /* Columns 2t, 2t + 8, 2t + 1, 2t + 9, as codes lie in a word; n: 2t, 2t + 1, 2t + 8, 2t + 9. */
    static __device__ __forceinline__ uint32_t bytes(const int *n)
    {
        return __byte_perm(__byte_perm(n[0], n[2], 0x0040), __byte_perm(n[1], n[3], 0x0040), 0x5410);
    }

    /* A group's left operand: rows g + 8 are 16 times what they should be, see TIMES. */
    static __device__ __forceinline__ void take_codes(uint32_t (&op)[4], const uint4 (&q)[4], int group)
    {
        const uint4 w = q[group / 2];
        const uint32_t w0 = group % 2 ? w.z : w.x, w1 = group % 2 ? w.w : w.y;
        op[0] = w0 & 0x0f0f0f0fu, op[1] = w0 & 0xf0f0f0f0u, op[2] = w1 & 0x0f0f0f0fu, op[3] = w1 & 0xf0f0f0f0u;
    }

    /* The warp's share of the products. */
    __device__ __forceinline__ void multiply()
    {
        const int column_group = keep(g / 2 % GROUPS), column_token = g / 2 / GROUPS;
        const int my_group = t % GROUPS, my_token = t / GROUPS;
        float acc[2] = {};
        uint2 b[8] = {};
        const int x_lane = keep((int)(x - raw) + (column_group * T + column_token) * INT_X_BYTES + (g % 2 * 4 + t) * 8);
        const int scale_lane = keep((int)((char *)scales - raw) + (my_group * T + my_token) * 8);
        const int of_row = keep((int)(ring - raw) + CODES + 256 + g * 4), bar0 = keep((int)full);
        int codes = keep((int)(ring - raw) + lane * 16), entry = keep((int)(ring - raw) + CODES + entry_at<META>(g, my_group));
        int k = (int)((unsigned)chunk0 % (unsigned)a.k_chunks), bar = bar0;
        float *to = sums + warp * a.splits * (T * WQ_ROWS) + my_token * WQ_ROWS + g;
        uint32_t parity = 0;

#pragma unroll 1
        for (int i = 0; i < n_chunks; i++) {
            uint4 q[4];
            float2 e[SETS][2];
            mbar_wait(bar, parity);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                q[j] = *(const uint4 *)(raw + codes + j * 512);
            }
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float2 d = META == WQ_K ? wq_halves(*(const uint32_t *)(raw + of_row + (bar - bar0) / 8 * CHUNK + h * 32)) : float2{};
#pragma unroll
                for (int s = 0; s < SETS; s++) {
                    e[s][h] = int_entry<META>(raw + entry + entry_at<META>(h * 8, s * GROUPS), d);
                }
            }
            const char *xk = raw + x_lane + k * (8 * T * INT_X_BYTES);
            const int_scale *sk = (const int_scale *)(raw + scale_lane + k * (8 * T * 8));
#pragma unroll
            for (int j = 0; j < 8; j++) {
                if (j % GROUPS == column_group) { /* what is of other groups stays zero */
                    b[j] = *(const uint2 *)(xk + j / GROUPS * GROUPS * T * INT_X_BYTES);
                }
            }
            __syncwarp();
            copy_next();
            bar += 8, codes += CHUNK, entry += CHUNK;
            if (bar == bar0 + stages * 8) {
                bar = bar0, codes -= stages * CHUNK, entry -= stages * CHUNK;
                parity ^= 1;
            }
#pragma unroll
            for (int s = 0; s < SETS; s++) {
                int c[4] = {};
#pragma unroll
                for (int j = 0; j < GROUPS; j++) {
                    const int group = s * GROUPS + j;
                    uint32_t op[4];
                    take_codes(op, q, group);
                    mma_int(c, op, b[group]);
                }
                const int_scale of = sk[s * GROUPS * T];
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const float v = (float)(c[2 * h] * 256 + c[2 * h + 1]), sum = h ? of.sum * TIMES : of.sum;
                    acc[h] = fmaf(e[s][h].x, ZERO != 0.0f ? fmaf(of.unit, v, ZERO * sum) : of.unit * v, acc[h]);
                    if constexpr (META == WQ_M || META == WQ_K) {
                        acc[h] = fmaf(e[s][h].y, sum, acc[h]);
                    }
                }
            }
            if (++k == a.k_chunks || i + 1 == n_chunks) { /* the sums of a row group */
                acc[1] *= 1.0f / TIMES;
#pragma unroll
                for (int o = 1; o < GROUPS; o *= 2) {
                    acc[0] += __shfl_xor_sync(0xffffffffu, acc[0], o);
                    acc[1] += __shfl_xor_sync(0xffffffffu, acc[1], o);
                }
                if (my_group == 0) {
                    to[0] = acc[0];
                    to[8] = acc[1];
                }
                acc[0] = acc[1] = 0.0f;
                k = 0;
                to += T * WQ_ROWS;
            }
        }
    }

    /* All threads, when all sums are there: those of the warps that had a share of a row group, in order. */
    __device__ __forceinline__ void add_up() const
    {
#pragma unroll 1
        for (int i = (int)threadIdx.x; i < n_tiles * T * WQ_ROWS; i += INT_WARPS * 32) {
            const int tile = i / (T * WQ_ROWS), begin = tile * a.k_chunks;
            int w = (int)((unsigned)begin * INT_WARPS / (unsigned)(n_tiles * a.k_chunks));
            float v = 0.0f;
            while (first_of(w + 1) <= begin) {
                w++;
            }
#pragma unroll 1
            for (; w < INT_WARPS && first_of(w) < begin + a.k_chunks; w++) {
                const int place = tile - (int)((unsigned)first_of(w) / (unsigned)a.k_chunks);
                if (first_of(w) < first_of(w + 1)) {
                    v += sums[(w * a.splits + place) * (T * WQ_ROWS) + i % (T * WQ_ROWS)];
                }
            }
            store_one(a, tile0 + tile, i % WQ_ROWS, i / WQ_ROWS % T, v);
        }
    }
};

/* a: n_units row groups, of each warp w_stages of its ring and `splits` places for sums. */
template <int META, int T>
static __global__ void __launch_bounds__(INT_WARPS * 32, 1) linear_wq_int_kernel(const __grid_constant__ wq_params a)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900 /* launched on 9.0 only */
    extern __shared__ char raw[];
    int_block<META, T> b(a, raw);

    if (b.lane == 0) {
#pragma unroll 1
        for (int i = 0; i < a.w_stages; i++) {
            mbar_init(b.full + i * 8, 1);
        }
        mbar_fence_init();
    }
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < a.w_stages; i++) { /* depends on no kernel */
        b.copy_next();
    }
    pdl_wait();
    b.take_x();
    __syncthreads();
    b.multiply();
    __syncthreads();
    b.add_up();
#else
    (void)a;
#endif
}

#endif
