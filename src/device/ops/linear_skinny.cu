/* linear_skinny: y = x W^T (+ bias, softcap) for 1..64 rows of x on Hopper, at the speed of memory.
 * Shapes    x [n <= 64, K], W parts [rows_p, K], bf16, fp16 or F8 with row scales of both sides;
 *           y [n, sum rows_p] bf16, fp16 or f32. K * size and the pointers are multiples of 16 bytes.
 * Work      W is the left operand of wgmma (64 weight rows x N tokens), so that the padding to 64
 *           costs nothing. One block an SM; all (tile of W, 128 bytes of K) units are cut evenly over
 *           the blocks ("stream-K", Osama et al. 2023), which streams W through a ring of TMA stages
 *           without regard to tile borders. A tile shared by several blocks is summed by the last one
 *           to arrive, in block order: the result does not depend on timing.
 *           The ring is filled before griddepcontrol.wait: weights depend on no kernel, so the memory
 *           pipe does not run dry between two operations.
 * Bound     memory: rows * K * size bytes.
 * Measured  docs/performance/gpu-kernels.md.
 */
#include "device/ops/hopper.cuh"

#include <algorithm>

enum { CONSUMERS = 256, THREADS = CONSUMERS + 32, MAX_PARTS = NRD_LINEAR_MAX_PARTS };

struct skinny_params {
    CUtensorMap w[MAX_PARTS], x;
    const float *w_scale[MAX_PARTS], *bias[MAX_PARTS];
    int tile_end[MAX_PARTS]; /* tiles of the parts up to and including this one */
    int rows[MAX_PARTS], y_off[MAX_PARTS];
    const float *x_scale;
    void *y;
    int64_t ldy;
    float *ws;     /* [2 * blocks][BM * N]: a block shares at most its first and its last tile */
    int *counters; /* [tiles] */
    int n_tokens, k_blocks, n_tiles, y_dtype;
    float softcap;
};

template <int N, int MB> struct skinny_shape {
    static constexpr int BM = 128 * MB;
    static constexpr int W_BYTES = BM * 128, X_BYTES = N * 128, STAGE = W_BYTES + X_BYTES;
    static constexpr int STAGES = (220 * 1024) / STAGE > 12 ? 12 : (220 * 1024) / STAGE;
    static constexpr int SMEM = STAGES * STAGE + 1024 /* to align */ + 256 /* barriers */;
};

static __device__ __forceinline__ void bar_consumers()
{
    asm volatile("bar.sync 1, 256;" ::: "memory");
}

template <int N, int MB>
static __device__ void store_tile(const skinny_params &a, const float (*acc)[N / 2], int tile)
{
    const int tid = threadIdx.x, lane = tid & 31, g = lane >> 2, t = lane & 3;
    int part = 0;
    while (tile >= a.tile_end[part]) {
        part++;
    }
    const int tile_in_part = part ? tile - a.tile_end[part - 1] : tile;
    const float *ws = a.w_scale[part], *bias = a.bias[part];

#pragma unroll
    for (int mb = 0; mb < MB; mb++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int r = tile_in_part * skinny_shape<N, MB>::BM + (tid / 128) * 64 * MB + mb * 64 +
                          (tid / 32 % 4) * 16 + half * 8 + g;
            if (r >= a.rows[part]) {
                continue;
            }
            const float scale = ws ? ws[r] : 1.0f, add = bias ? bias[r] : 0.0f;
#pragma unroll
            for (int j = 0; j < N / 8; j++) {
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    const int col = j * 8 + 2 * t + c;
                    if (col >= a.n_tokens) {
                        continue;
                    }
                    float v = acc[mb][j * 4 + half * 2 + c] * scale;
                    if (a.x_scale) {
                        v *= a.x_scale[col];
                    }
                    v += add;
                    if (a.softcap > 0.0f) {
                        v = a.softcap * tanhf(v / a.softcap);
                    }
                    const int64_t at = (int64_t)col * a.ldy + a.y_off[part] + r;
                    if (a.y_dtype == NRD_DTYPE_BF16) {
                        ((bf16 *)a.y)[at] = from_f<bf16>(v);
                    } else if (a.y_dtype == NRD_DTYPE_F16) {
                        ((f16 *)a.y)[at] = from_f<f16>(v);
                    } else {
                        ((float *)a.y)[at] = v;
                    }
                }
            }
        }
    }
}

/* Hands over this block's share of a tile; true for the last of its blocks, which then holds the
 * whole sum. `mine` is the block's number, [first, last] are the blocks that share the tile. */
template <int N, int MB>
static __device__ bool share_tile(const skinny_params &a, float (*acc)[N / 2], int tile, int mine,
                                  int first, int last, int *flag)
{
    constexpr int REGS = MB * N / 2;
    const int tid = threadIdx.x;
    float *flat = &acc[0][0];

    float *to = a.ws + ((int64_t)(mine == first ? 2 * mine + 1 : 2 * mine) * REGS) * CONSUMERS + tid;
#pragma unroll
    for (int i = 0; i < REGS; i++) {
        __stcg(to + i * CONSUMERS, flat[i]);
    }
    __threadfence();
    bar_consumers();
    if (tid == 0) {
        const bool is_last = atomicAdd(&a.counters[tile], 1) == last - first;
        if (is_last) {
            a.counters[tile] = 0;
        }
        *flag = is_last;
        __threadfence();
    }
    bar_consumers();
    const bool is_last = *flag != 0;
    bar_consumers(); /* the flag is free again */
    if (!is_last) {
        return false;
    }
    float sum[REGS];
#pragma unroll
    for (int i = 0; i < REGS; i++) {
        sum[i] = 0.0f;
    }
    for (int c = first; c <= last; c++) {
        const float *from =
            a.ws + ((int64_t)(c == first ? 2 * c + 1 : 2 * c) * REGS) * CONSUMERS + tid;
#pragma unroll
        for (int i = 0; i < REGS; i++) {
            sum[i] += __ldcg(from + i * CONSUMERS);
        }
    }
#pragma unroll
    for (int i = 0; i < REGS; i++) {
        flat[i] = sum[i];
    }
    return true;
}

template <int KIND, int N, int MB>
static __global__ void __launch_bounds__(THREADS, 1)
    skinny_kernel(const __grid_constant__ skinny_params a)
{
    typedef skinny_shape<N, MB> S;
    extern __shared__ char raw[];
    const uint32_t base = (smem_u32(raw) + 1023) & ~1023u;
    const uint32_t full = base + S::STAGES * S::STAGE, empty = full + S::STAGES * 8;
    __shared__ int flag;
    const int64_t total = (int64_t)a.n_tiles * a.k_blocks;
    const int64_t blocks = gridDim.x;
    const int64_t u0 = total * blockIdx.x / blocks, u1 = total * (blockIdx.x + 1) / blocks;
    constexpr int K_STEP = KIND == NRD_DTYPE_F8_E4M3 ? 128 : 64; /* elements in 128 bytes */

    if (threadIdx.x == 0) {
        for (int i = 0; i < S::STAGES; i++) {
            mbar_init(full + i * 8, 1);
            mbar_init(empty + i * 8, 2); /* one arrival for each consumer warpgroup */
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    pdl_go();

    if (threadIdx.x >= CONSUMERS) {
        if (threadIdx.x != CONSUMERS) {
            return;
        }
        const int n = (int)(u1 - u0), ahead = n < S::STAGES ? n : S::STAGES;
        auto load_w = [&](int i) {
            const int64_t u = u0 + i;
            const int tile = (int)(u / a.k_blocks), kb = (int)(u % a.k_blocks), slot = i % S::STAGES;
            int part = 0;
            while (tile >= a.tile_end[part]) {
                part++;
            }
            const int row = (part ? tile - a.tile_end[part - 1] : tile) * S::BM;
            mbar_expect(full + slot * 8, S::STAGE);
            tma_2d(base + slot * S::STAGE, &a.w[part], kb * K_STEP, row, full + slot * 8,
                   L2_EVICT_FIRST);
        };
        auto load_x = [&](int i) {
            const int kb = (int)((u0 + i) % a.k_blocks), slot = i % S::STAGES;
            tma_2d(base + slot * S::STAGE + S::W_BYTES, &a.x, kb * K_STEP, 0, full + slot * 8,
                   L2_EVICT_LAST);
        };
        for (int i = 0; i < ahead; i++) {
            load_w(i);
        }
        pdl_wait();
        for (int i = 0; i < ahead; i++) {
            load_x(i);
        }
        for (int i = ahead; i < n; i++) {
            mbar_wait(empty + (i % S::STAGES) * 8, (uint32_t)((i / S::STAGES - 1) & 1));
            load_w(i);
            load_x(i);
        }
        return;
    }

    const int wg = threadIdx.x / 128;
    float acc[MB][N / 2];
    int slot = 0;
    uint32_t parity = 0;

    pdl_wait();
    for (int64_t u = u0; u < u1;) { /* one tile, or the block's share of it, a turn */
        const int tile = (int)(u / a.k_blocks);
        const int64_t t0 = (int64_t)tile * a.k_blocks, t1 = t0 + a.k_blocks;
        const int n = (int)((t1 < u1 ? t1 : u1) - u);

#pragma unroll
        for (int mb = 0; mb < MB; mb++) {
#pragma unroll
            for (int i = 0; i < N / 2; i++) {
                acc[mb][i] = 0.0f;
            }
        }
        for (int i = 0; i < n; i++) {
            mbar_wait(full + slot * 8, parity);
            const uint32_t w = base + slot * S::STAGE + wg * (64 * MB * 128);
            const uint64_t dw = desc_sw128(w), dx = desc_sw128(base + slot * S::STAGE + S::W_BYTES);
            wg_hold<MB * N / 2>(&acc[0][0]);
            wg_fence();
#pragma unroll
            for (int k = 0; k < 4; k++) {
#pragma unroll
                for (int mb = 0; mb < MB; mb++) {
                    wgmma_ss<KIND, N>(acc[mb], dw + mb * (8192 >> 4) + k * 2, dx + k * 2);
                }
            }
            wg_commit();
            wg_hold<MB * N / 2>(&acc[0][0]);
            /* one group may run on; the stage of the one before is free */
            wg_wait<1>();
            const int before = slot == 0 ? S::STAGES - 1 : slot - 1;
            if (i > 0 && threadIdx.x % 128 == 0) {
                mbar_arrive(empty + before * 8);
            }
            if (++slot == S::STAGES) {
                slot = 0;
                parity ^= 1;
            }
        }
        wg_wait<0>();
        wg_hold<MB * N / 2>(&acc[0][0]);
        if (threadIdx.x % 128 == 0) {
            mbar_arrive(empty + (slot == 0 ? S::STAGES - 1 : slot - 1) * 8);
        }
        /* which blocks share the tile: those that own its first and its last unit */
        const int first = (int)(((t0 + 1) * blocks - 1) / total);
        const int last = (int)((t1 * blocks - 1) / total);
        if (first == last || share_tile<N, MB>(a, acc, tile, (int)blockIdx.x, first, last, &flag)) {
            store_tile<N, MB>(a, acc, tile);
        }
        u += n;
    }
}

static bool encode(const cuda_device *dev, CUtensorMap *map, nrd_dtype dtype, const void *p,
                   int64_t rows, int64_t cols, int box_rows)
{
    const int size = dtype == NRD_DTYPE_F8_E4M3 ? 1 : 2;
    const cuuint64_t dims[2] = {(cuuint64_t)cols, (cuuint64_t)rows};
    const cuuint64_t strides[1] = {(cuuint64_t)cols * (cuuint64_t)size};
    const cuuint32_t box[2] = {(cuuint32_t)(128 / size), (cuuint32_t)box_rows};
    const cuuint32_t ones[2] = {1, 1};

    return dev->encode(map,
                       dtype == NRD_DTYPE_F8_E4M3 ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                       : dtype == NRD_DTYPE_BF16  ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                  : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                       2, (void *)p, dims, strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
                       CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                       CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <int KIND, int N, int MB>
static nrd_error *skinny_run(nrd_stream *s, const nrd_linear_args *a, int32_t t0, int32_t nt,
                             bool *done)
{
    typedef skinny_shape<N, MB> S;
    const cuda_device *dev = s->dev;
    const int64_t cols = a->w[0]->cols;
    const int size = KIND == NRD_DTYPE_F8_E4M3 ? 1 : 2;
    skinny_params p = {};
    int64_t y_cols = 0;

    for (int i = 0; i < a->n_parts; i++) {
        const nrd_weight *w = a->w[i];
        if (!encode(dev, &p.w[i], w->dtype, w->data, w->rows, cols, S::BM)) {
            return NULL;
        }
        p.n_tiles += (int)((w->rows + S::BM - 1) / S::BM);
        p.tile_end[i] = p.n_tiles;
        p.rows[i] = (int)w->rows;
        p.y_off[i] = (int)y_cols;
        p.w_scale[i] = KIND == NRD_DTYPE_F8_E4M3 ? (const float *)w->scales : NULL;
        p.bias[i] = a->bias[i] ? (const float *)a->bias[i]->data : NULL;
        y_cols += w->rows;
    }
    if (!encode(dev, &p.x, (nrd_dtype)KIND, (const char *)a->x + (int64_t)t0 * cols * size, nt, cols,
                N) ||
        p.n_tiles > N_COUNTERS) {
        return NULL;
    }
    NRD_TRY(stream_scratch(s));
    const int y_size = a->y_dtype == NRD_DTYPE_F32 ? 4 : 2;
    p.x_scale = KIND == NRD_DTYPE_F8_E4M3 ? a->x_row_scale + t0 : NULL;
    p.y = (char *)a->y + (int64_t)t0 * y_cols * y_size;
    p.ldy = y_cols;
    p.ws = (float *)s->split_ws;
    p.counters = s->counters;
    p.n_tokens = nt;
    p.k_blocks = (int)((cols * size + 127) / 128);
    p.y_dtype = a->y_dtype;
    p.softcap = a->softcap;
    const int64_t units = (int64_t)p.n_tiles * p.k_blocks;
    const int64_t grid = std::min<int64_t>(dev->n_sm, units);
    if ((size_t)grid * 2 * S::BM * N * 4 > SPLIT_WS_BYTES) {
        return NULL;
    }
    *done = true;
    return launch(s, skinny_kernel<KIND, N, MB>, dim3((unsigned)grid), dim3(THREADS), S::SMEM, p);
}

template <int KIND>
static nrd_error *skinny_kind(nrd_stream *s, const nrd_linear_args *a, int32_t t0, int32_t nt,
                              bool *done)
{
    if (a->deterministic || nt > 32) { /* one shape for every batch where rows must not change */
        return skinny_run<KIND, 64, 2>(s, a, t0, nt, done);
    }
    if (nt > 16) {
        return skinny_run<KIND, 32, 1>(s, a, t0, nt, done);
    }
    if (nt > 8) {
        return skinny_run<KIND, 16, 1>(s, a, t0, nt, done);
    }
    return skinny_run<KIND, 8, 1>(s, a, t0, nt, done);
}

nrd_error *linear_skinny(nrd_stream *s, const nrd_linear_args *a, int32_t t0, int32_t nt, bool *done)
{
    const nrd_dtype dtype = a->w[0]->dtype;
    const int size = dtype == NRD_DTYPE_F8_E4M3 ? 1 : 2;

    *done = false;
    if (!s->dev->hopper || !s->dev->encode || nt > 64 || a->w[0]->cols * size % 16 != 0 ||
        !aligned16(a->x) || !is_act_dtype(a->y_dtype)) {
        return NULL;
    }
    for (int i = 0; i < a->n_parts; i++) {
        if (a->w[i]->dtype != dtype || !aligned16(a->w[i]->data)) {
            return NULL;
        }
    }
    switch (dtype) {
    case NRD_DTYPE_BF16:
        return skinny_kind<NRD_DTYPE_BF16>(s, a, t0, nt, done);
    case NRD_DTYPE_F16:
        return skinny_kind<NRD_DTYPE_F16>(s, a, t0, nt, done);
    case NRD_DTYPE_F8_E4M3:
        return skinny_kind<NRD_DTYPE_F8_E4M3>(s, a, t0, nt, done);
    default:
        return NULL;
    }
}
