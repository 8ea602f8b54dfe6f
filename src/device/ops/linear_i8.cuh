/* SPDX-License-Identifier: Apache-2.0
 * linear_i8.cuh - products of int8 weights in the layout of wq.cuh with int8 activations on Hopper: the kernel.
 *
 * Shapes    x [tokens, K] int8, columns in the order of i8_column, a scale for each token; W parts [rows, K] int8, a scale for each row;
 *           y [tokens, all rows] bf16 or fp16. K a multiple of 16, rows of 8, pointers aligned to 16 bytes.
 * Work      A tile is 128 or 192 rows of W and TOKENS tokens; sums are integers of 32 bits. W is the left operand of wgmma, from registers: a lane
 *           reads what it owns of a chunk as it lies and sorts the bytes of its two rows. Which column is which k of the product is free as
 *           long as x is written the same way, which i8_column says. A block is a warpgroup for each 64 rows and a thread that brings
 *           stages of 128 columns. Blocks walk over tiles; the two of a cluster have the same tokens and neighbouring rows of W, and each
 *           brings half of the tokens to both. Tiles of the same W follow each other, in groups of tokens that fit the L2.
 * Bound     the tensor cores, from some 200 tokens on; below memory.
 * Measured  NVIDIA H200, 2026-11-28: docs/performance/gpu-kernels.md.
 * Tried     F8 in blocks by the same frame, tokens as the left operand, each 128 columns' sum added to float32 registers: right, and slower than
 *           the library's product of blocks, 823 against 700 us for a layer of Llama-3.1-8B and 2,048 tokens (256 x 128 a block of two
 *           warpgroups; 128 x 128 with two sums by turns 844; warpgroups that take the tensor cores in turns 856). W as
 *           the left operand, 128 of its rows x 192 tokens, two halves of a sum by turns: 985, the library 855 that day. A remote arrival with
 *           .release.cluster is a fence of the whole GPU and took 1 us a stage. Clusters of one: as fast or 8 % slower with 128 tokens a tile,
 *           as fast or 10 % slower with 256.
 */
#ifndef NRD_OPS_LINEAR_I8_CUH
#define NRD_OPS_LINEAR_I8_CUH

#include "device/ops/hopper.cuh"

struct i8_params {
    CUtensorMap w[NRD_LINEAR_MAX_PARTS], x;
    const float *w_scale[NRD_LINEAR_MAX_PARTS], *x_scale;
    int32_t tile_end[NRD_LINEAR_MAX_PARTS]; /* tiles of rows, up to and with this part */
    int32_t rows[NRD_LINEAR_MAX_PARTS], y_off[NRD_LINEAR_MAX_PARTS];
    int32_t n_parts, k_steps, n_tokens, group; /* k_steps: of 128 columns, an even number; group: tiles of tokens that are taken together */
    void *y;
    int64_t ldy;
    bool y_bf16;
};

struct i8_tile {
    int part, row, token;
};

template <int TOKENS_, int WARPGROUPS_> struct i8_shape {
    static constexpr int TOKENS = TOKENS_, CLUSTER = 2, WARPGROUPS = WARPGROUPS_, ROWS = 64 * WARPGROUPS;
    static constexpr int CONSUMERS = 128 * WARPGROUPS, THREADS = CONSUMERS + 128, REGISTERS = WARPGROUPS == 2 ? 232 : 152; /* of a consumer */
    static constexpr int STAGE = (TOKENS + ROWS) * 128, STAGES = 196608 / STAGE;
    static constexpr int CHUNK = 32;  /* tokens on their way to memory at a time */
    static constexpr int PITCH = 144; /* bytes of 64 rows of a token there: stores to different banks */
    static constexpr int AT_STORE = 256, FRONT = (AT_STORE + WARPGROUPS * CHUNK * PITCH + 1023) / 1024 * 1024;
    static constexpr size_t SMEM = (size_t)1024 + FRONT + STAGES * STAGE;
};

/* Which column of 16 stands at place i of them in x: lane t of four has 2t, 2t + 1, 2t + 8 and 2t + 9 of W. */
static __host__ __device__ constexpr int i8_column(int i)
{
    return i / 4 * 2 + i % 2 + i / 2 % 2 * 8;
}

#define I4(d, i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3])
#define I16(d, i) I4(d, i), I4(d, i + 4), I4(d, i + 8), I4(d, i + 12)
#define I32(d, i) I16(d, i), I16(d, i + 16)
#define WGMMA_I8(SHAPE, REGS, REST, ...)                                                                                            \
    asm volatile("wgmma.mma_async.sync.aligned." SHAPE ".s32.s8.s8 " REGS ", " REST ";\n"                                           \
                 : __VA_ARGS__                                                                                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(D))

/* d (64 x N) = (D 0) or += A B, 32 columns; A in registers, B K-major in shared memory. */
template <int N, int D> static __device__ __forceinline__ void wgmma_i8(uint32_t *d, const uint32_t *a, uint64_t b)
{
#ifdef NRD_SM90A
    if constexpr (N == 128) {
        WGMMA_I8("m64n128k32", REGS64, "{%64, %65, %66, %67}, %68, %69", I32(d, 0), I32(d, 32));
    } else {
        WGMMA_I8("m64n256k32", REGS128, "{%128, %129, %130, %131}, %132, %133", I32(d, 0), I32(d, 32), I32(d, 64), I32(d, 96));
    }
#else
    (void)d, (void)a, (void)b;
#endif
}

template <typename S> struct i8_block : stage_ring<S::STAGES, S::STAGE, S::FRONT> {
    const i8_params &a;
    const int rank;
    int at; /* this cluster's next pair of tiles */

    __device__ __forceinline__ i8_block(const i8_params &params, char *raw)
        : stage_ring<S::STAGES, S::STAGE, S::FRONT>(raw), a(params), rank((int)cluster_rank()), at((int)blockIdx.x / S::CLUSTER)
    {
    }

    /* All threads. */
    __device__ __forceinline__ void begin() const
    {
        if (threadIdx.x == 0) {
            this->init(S::CLUSTER * S::WARPGROUPS * 4); /* consuming warps of all blocks that the stage's tokens go to */
        }
        cluster_meet();
        pdl_wait();
        pdl_go();
    }

    /* The next tile; false: there is none. */
    __device__ __forceinline__ bool next(i8_tile *t)
    {
        const int columns = (a.tile_end[a.n_parts - 1] + S::CLUSTER - 1) / S::CLUSTER, all = (a.n_tokens + S::TOKENS - 1) / S::TOKENS;
        if (at >= columns * all) {
            return false;
        }
        const int before = at / (a.group * columns) * a.group, here = at - before * columns, n = min(a.group, all - before);
        const int tile = here / n * S::CLUSTER + rank; /* of rows: one behind the last is multiplied as zeros and not stored */
        t->token = (before + here % n) * S::TOKENS;
        t->part = 0;
        while (t->part + 1 < a.n_parts && tile >= a.tile_end[t->part]) {
            t->part++;
        }
        t->row = (t->part ? tile - a.tile_end[t->part - 1] : tile) * S::ROWS;
        at += (int)gridDim.x / S::CLUSTER;
        return true;
    }
};

/* The thread that brings. */
template <typename S> static __device__ __forceinline__ void i8_bring(i8_block<S> b)
{
    constexpr int OWN = S::TOKENS / S::CLUSTER; /* tokens that this block brings, to all of the cluster */
    const i8_params &a = b.a;
    i8_tile t;

    while (b.next(&t)) {
        for (int k = 0; k < a.k_steps; k++) {
            const uint32_t to = b.base + b.slot * S::STAGE, bar = b.full + b.slot * 8;
            mbar_wait(b.empty + b.slot * 8, b.parity ^ 1);
            mbar_expect(bar, S::STAGE);
            tma_2d_all(to + b.rank * OWN * 128, &a.x, k * 128, t.token + b.rank * OWN, bar, (1 << S::CLUSTER) - 1, L2_EVICT_LAST);
            tma_2d(to + S::TOKENS * 128, &a.w[t.part], k * 256, t.row / 16, bar, L2_EVICT_NORMAL); /* in words of eight bytes */
            b.advance();
        }
    }
}

/* A thread of the warpgroups that multiply. */
template <typename S> struct i8_consumer {
    static constexpr int N = S::TOKENS / 2, CHUNK = S::CHUNK; /* N: sums of a thread */

    i8_block<S> b;
    const i8_params &a;
    const int wg = threadIdx.x / 128, tid = threadIdx.x % 128, warp = tid / 32, lane = threadIdx.x % 32;
    char *const store = b.front + S::AT_STORE + wg * CHUNK * S::PITCH;
    i8_tile t;
    uint32_t acc[N], w[2 * 16];

    __device__ __forceinline__ explicit i8_consumer(const i8_block<S> &of) : b(of), a(b.a) {}

    /* What a lane owns of 16 rows x 128 columns, as the left operands of four products. */
    __device__ __forceinline__ void load_w(uint32_t *to) const
    {
        const char *from = b.front + S::FRONT + b.slot * S::STAGE + S::TOKENS * 128 + (wg * 4 + warp) * 2048 + lane * 16;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint4 v = *(const uint4 *)(from + i * 512);
            to[i * 4] = __byte_perm(v.x, v.y, 0x6420) ^ 0x80808080u;
            to[i * 4 + 1] = __byte_perm(v.x, v.y, 0x7531) ^ 0x80808080u;
            to[i * 4 + 2] = __byte_perm(v.z, v.w, 0x6420) ^ 0x80808080u;
            to[i * 4 + 3] = __byte_perm(v.z, v.w, 0x7531) ^ 0x80808080u;
        }
    }

    template <int CUR, int FIRST> __device__ __forceinline__ void step()
    {
        const int before = b.before();
        mbar_wait(b.full + b.slot * 8, b.parity);
        load_w(w + CUR * 16);
        const uint64_t x = desc_sw128(b.base + b.slot * S::STAGE);
        wg_hold<N>(acc);
        wg_hold<16>(w + CUR * 16);
        wg_fence();
        wgmma_i8<S::TOKENS, FIRST ? 0 : 1>(acc, w + CUR * 16, x);
#pragma unroll
        for (int i = 1; i < 4; i++) {
            wgmma_i8<S::TOKENS, 1>(acc, w + CUR * 16 + i * 4, x + i * 2);
        }
        wg_commit();
        wg_hold<N>(acc);
        if (!FIRST) {
            wg_wait<1>(); /* the stage before is free, and so are its registers of W */
            b.template release<S::CLUSTER>(before, lane);
        }
        b.advance();
    }

    /* Columns are padded to 256: an even number of steps. */
    __device__ __forceinline__ void multiply()
    {
        step<0, 1>();
        step<1, 0>();
        for (int k = 2; k < a.k_steps; k += 2) {
            step<0, 0>();
            step<1, 0>();
        }
        wg_wait<0>();
        wg_hold<N>(acc);
        b.template release<S::CLUSTER>(b.before(), lane);
    }

    __device__ __forceinline__ void meet() const
    {
        if (wg == 0) {
            asm volatile("bar.sync 1, 128;" ::: "memory");
        } else if (S::WARPGROUPS == 2 || wg == 1) {
            asm volatile("bar.sync 2, 128;" ::: "memory");
        } else {
            asm volatile("bar.sync 3, 128;" ::: "memory");
        }
    }

    /* Sixteen tokens, by token to shared memory from row `to` on. */
    template <int AT> __device__ __forceinline__ void put(int to, const float *w_scale) const
    {
        const int token = t.token + AT * 2 + 2 * (lane % 4), last = a.n_tokens - 1;
        const float s[4] = {__ldg(a.x_scale + min(token, last)), __ldg(a.x_scale + min(token + 1, last)),
                            __ldg(a.x_scale + min(token + 8, last)), __ldg(a.x_scale + min(token + 9, last))};
        uint32_t r[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            r[i] = pack_f16(a.y_bf16, (float)(int)acc[AT + i * 2] * (w_scale[i % 2] * s[i / 2 * 2]),
                            (float)(int)acc[AT + i * 2 + 1] * (w_scale[i % 2] * s[i / 2 * 2 + 1]));
        }
        const int matrix = lane / 8, at = to + matrix / 2 * 8 + lane % 8;
        stmatrix4_t(smem_u32(store) + (uint32_t)(at * S::PITCH + warp * 32 + matrix % 2 * 16), r);
    }

    template <int TOKEN> __device__ __forceinline__ void store_from(const float *w_scale) const
    {
        put<TOKEN / 2>(0, w_scale);
        put<TOKEN / 2 + 8>(16, w_scale);
        meet();
        const int row = t.row + wg * 64 + tid % 8 * 8;
#pragma unroll
        for (int i = tid / 8; i < CHUNK; i += 16) {
            const int token = t.token + TOKEN + i;
            if (token < a.n_tokens && row < a.rows[t.part]) {
                *(uint4 *)((uint16_t *)a.y + token * a.ldy + a.y_off[t.part] + row) = *(const uint4 *)(store + i * S::PITCH + tid % 8 * 16);
            }
        }
        meet();
        if constexpr (TOKEN + CHUNK < S::TOKENS) {
            store_from<TOKEN + CHUNK>(w_scale);
        }
    }

    __device__ __forceinline__ void run()
    {
        while (b.next(&t)) {
            const int row = t.row + wg * 64 + warp * 16 + lane / 4, last = a.rows[t.part] - 1;
            multiply();
            const float w_scale[2] = {__ldg(a.w_scale[t.part] + min(row, last)), __ldg(a.w_scale[t.part] + min(row + 8, last))};
            store_from<0>(w_scale);
        }
    }
};

template <typename S> static __global__ void __launch_bounds__(S::THREADS, 1) i8_kernel(const __grid_constant__ i8_params a)
{
#ifdef NRD_SM90A
    extern __shared__ char raw[];
    const i8_block<S> b(a, raw);

    b.begin();
    if (threadIdx.x >= S::CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == S::CONSUMERS) {
            i8_bring<S>(b);
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::REGISTERS));
        i8_consumer<S>(b).run();
    }
    cluster_meet(); /* the other block may still arrive here */
#else
    (void)a;
#endif
}

#endif
