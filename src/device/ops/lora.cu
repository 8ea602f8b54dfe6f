/* SPDX-License-Identifier: Apache-2.0
 * lora: y[t, row0_p + i] += scale * sum_r B[i, r] sum_k A[r, k] x[t, k], A and B of token t's adapter, then its gain,
 * all adapters and all parts of a product in two launches.
 * Shapes    x [n_tokens, cols]; A [rank, cols]; B transposed [rank, rows of the part]; y [n_tokens, y_stride];
 *           hidden [n_tokens, n_parts, max_rank] f32 between the two.
 * Work      shrink: a block takes one, two or four rows of A for a tile of tokens, which it walks in runs of one
 *           adapter: a row is read once for a run, by all threads at once, since a warp alone would wait for
 *           memory at every 256 columns. Tiles are one token long where every token is a sequence of its
 *           own, else eight, four to expand. expand: a thread takes eight columns of y for a run; hidden waits in shared
 *           memory. Which adapter a token has, and where its pairs are, is read from memory: a recorded
 *           graph serves every mix of adapters.
 * Bound     memory: A and B of each adapter in the step, from L2 where tokens share them.
 */
#include "device/ops/common.cuh"

extern "C" {
#include "base/dtype.h"
}

enum {
    LORA_THREADS = 256,
    LORA_TILE = 8,
    LORA_ADD_TILE = 4, /* their hidden fits 48 KiB of shared memory for every rank */
    LORA_ADD_THREADS = 128,
    LORA_FEW_BLOCKS = 512,
    LORA_MAX_TILES = 65535, /* that fit the second dimension of a grid */
};

struct lora_params {
    const int32_t *token_slot;
    const nrd_lora_pair *pairs;
    int64_t slot_stride, cols, y_stride;
    const void *x;
    const float *x_scale;
    void *y;
    float *hidden;
    int n_tokens, n_parts, max_rank;
    int row0[NRD_LORA_MAX_PARTS], n_rows[NRD_LORA_MAX_PARTS];
};

/* Eight elements from p on, aligned to 16 bytes (f8: 8). */
template <typename T> static __device__ __forceinline__ void eight(const T *p, float *v)
{
    if constexpr (sizeof(T) == 1) {
        const uint2 raw = *(const uint2 *)p;
        T t[8];
        memcpy(t, &raw, 8);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            v[i] = to_f(t[i]);
        }
    } else {
        load8(p, v);
    }
}

/* n tokens from x on (n <= TILE) with R rows of A from a on, of which n_rows are there: this thread's share of the
 * columns, which every form divides alike, so that a token's bits do not depend on the others of the step. */
template <typename T, typename W, int TILE, int R>
static __device__ __forceinline__ void lora_dots(const W *a, int n_rows, const T *x, int64_t cols, int n,
                                                 float (&sum)[TILE][R])
{
    if (cols % 16 == 0) {
#pragma unroll 2
        for (int64_t k = threadIdx.x * 8; k < cols; k += LORA_THREADS * 8) {
            float w[R][8], v[8];
#pragma unroll
            for (int r = 0; r < R; r++) {
                eight(a + (r < n_rows ? r : 0) * cols + k, w[r]);
            }
#pragma unroll
            for (int j = 0; j < TILE; j++) {
                if (j < n) {
                    eight(x + j * cols + k, v);
#pragma unroll
                    for (int r = 0; r < R; r++) {
#pragma unroll
                        for (int i = 0; i < 8; i++) {
                            sum[j][r] = fmaf(w[r][i], v[i], sum[j][r]);
                        }
                    }
                }
            }
        }
        return;
    }
    for (int64_t k = threadIdx.x; k < cols; k += LORA_THREADS) {
        for (int r = 0; r < R; r++) {
            const float w = to_f(a[(r < n_rows ? r : 0) * cols + k]);
#pragma unroll
            for (int j = 0; j < TILE; j++) {
                if (j < n) {
                    sum[j][r] = fmaf(w, to_f(x[j * cols + k]), sum[j][r]);
                }
            }
        }
    }
}

template <typename T, int TILE, int R>
static __global__ void __launch_bounds__(LORA_THREADS) lora_shrink_kernel(lora_params a)
{
    enum { WARPS = LORA_THREADS / 32 };
    __shared__ float part_sum[WARPS][TILE * R];
    const int t0 = blockIdx.x * TILE, part = blockIdx.y, r0 = blockIdx.z * R;
    const int t1 = t0 + TILE < a.n_tokens ? t0 + TILE : a.n_tokens;

    pdl_wait();
    pdl_go();
    for (int t = t0, n; t < t1; t += n) { /* all that is decided here is the same for the whole block */
        const int slot = a.token_slot[t];
        for (n = 1; t + n < t1 && a.token_slot[t + n] == slot; n++) {
        }
        if (slot < 0) {
            continue;
        }
        const nrd_lora_pair w = a.pairs[slot * a.slot_stride + part];
        const int n_rows = w.rank - r0 < R ? w.rank - r0 : R;
        if (n_rows <= 0) {
            continue;
        }
        const T *x = (const T *)a.x + t * a.cols;
        float sum[TILE][R] = {};
        if (w.dtype == NRD_DTYPE_BF16) {
            lora_dots<T, bf16, TILE, R>((const bf16 *)w.a + r0 * a.cols, n_rows, x, a.cols, n, sum);
        } else if (w.dtype == NRD_DTYPE_F16) {
            lora_dots<T, f16, TILE, R>((const f16 *)w.a + r0 * a.cols, n_rows, x, a.cols, n, sum);
        } else {
            lora_dots<T, float, TILE, R>((const float *)w.a + r0 * a.cols, n_rows, x, a.cols, n, sum);
        }
        __syncthreads(); /* part_sum may still be read for the run before */
#pragma unroll
        for (int j = 0; j < TILE; j++) {
#pragma unroll
            for (int r = 0; r < R; r++) {
                const float s = warp_reduce<op_sum>(sum[j][r]);
                if ((threadIdx.x & 31) == 0) {
                    part_sum[threadIdx.x >> 5][j * R + r] = s;
                }
            }
        }
        __syncthreads();
        const int j = threadIdx.x / R, r = threadIdx.x % R;
        if (j < n && r < n_rows) {
            float s = 0.0f;
            for (int i = 0; i < WARPS; i++) {
                s += part_sum[i][j * R + r];
            }
            const float scale = w.scale * (a.x_scale ? a.x_scale[t + j] : 1.0f);
            a.hidden[((int64_t)(t + j) * a.n_parts + part) * a.max_rank + r0 + r] = s * scale;
        }
    }
}

/* Eight columns of y for n tokens of one adapter, from column `at` of the part on: n_cols of them are there. h: of a
 * token n_h floats behind that of the one before. */
template <typename W, int TILE>
static __device__ __forceinline__ void lora_sum(const W *b, int64_t stride, int rank, const float *h, int n_h, int at,
                                                int n_cols, int n, float (&sum)[TILE][8])
{
    if (n_cols == 8 && stride % 8 == 0 && at % 8 == 0) {
#pragma unroll 8
        for (int r = 0; r < rank; r++) {
            float w[8];
            load8(b + r * stride + at, w);
#pragma unroll
            for (int j = 0; j < TILE; j++) {
                if (j < n) {
#pragma unroll
                    for (int i = 0; i < 8; i++) {
                        sum[j][i] = fmaf(w[i], h[j * n_h + r], sum[j][i]);
                    }
                }
            }
        }
        return;
    }
    for (int r = 0; r < rank; r++) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (i < n_cols && at + i >= 0) {
                const float w = to_f(b[r * stride + at + i]);
#pragma unroll
                for (int j = 0; j < TILE; j++) {
                    if (j < n) {
                        sum[j][i] = fmaf(w, h[j * n_h + r], sum[j][i]);
                    }
                }
            }
        }
    }
}

/* A part's gain of columns from `at` of it on, for what is already in `sum` and what y had. */
template <int TILE>
static __device__ __forceinline__ void lora_gain(const float *gain, int n_rows, int at, float (&sum)[TILE][8], float (&mul)[8])
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (at + i >= 0 && at + i < n_rows) {
            const float g = gain[at + i], add = gain[n_rows + at + i];
            mul[i] *= g;
#pragma unroll
            for (int j = 0; j < TILE; j++) {
                sum[j][i] = fmaf(sum[j][i], g, add);
            }
        }
    }
}

/* Columns [c, c + 8) of n tokens become mul * y + sum by the parts. True: a part reaches them. */
template <int TILE>
static __device__ __forceinline__ bool lora_columns(const lora_params &a, int slot, const float *h, int c, int n,
                                                    float (&sum)[TILE][8], float (&mul)[8])
{
    const int n_h = a.n_parts * a.max_rank;
    bool any = false;

    for (int p = 0; p < a.n_parts; p++) {
        const int at = c - a.row0[p], left = a.n_rows[p] - at, n_cols = left < 8 ? left : 8;
        if (n_cols <= 0 || at <= -8) {
            continue;
        }
        const nrd_lora_pair w = a.pairs[slot * a.slot_stride + p];
        if (w.rank == 0) {
            continue;
        }
        any = true;
        const float *hp = h + p * a.max_rank;
        if (w.dtype == NRD_DTYPE_BF16) {
            lora_sum<bf16, TILE>((const bf16 *)w.b, a.n_rows[p], w.rank, hp, n_h, at, n_cols, n, sum);
        } else if (w.dtype == NRD_DTYPE_F16) {
            lora_sum<f16, TILE>((const f16 *)w.b, a.n_rows[p], w.rank, hp, n_h, at, n_cols, n, sum);
        } else {
            lora_sum<float, TILE>((const float *)w.b, a.n_rows[p], w.rank, hp, n_h, at, n_cols, n, sum);
        }
        if (w.gain) {
            lora_gain<TILE>(w.gain, a.n_rows[p], at, sum, mul);
        }
    }
    return any;
}

template <typename T>
static __device__ __forceinline__ void add_columns(T *y, const lora_params &a, int c, const float *sum, const float *mul)
{
    if (a.y_stride % 8 == 0) {
        float v[8];
        load8(y, v);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            v[i] = fmaf(v[i], mul[i], sum[i]);
        }
        store8(y, v);
        return;
    }
    for (int i = 0; i < 8 && c + i < a.y_stride; i++) {
        y[i] = from_f<T>(fmaf(to_f(y[i]), mul[i], sum[i]));
    }
}

template <typename T, int TILE>
static __global__ void __launch_bounds__(LORA_ADD_THREADS) lora_expand_kernel(lora_params a)
{
    extern __shared__ float h[]; /* [TILE, n_parts, max_rank] */
    const int t0 = blockIdx.y * TILE, n_h = a.n_parts * a.max_rank;
    const int t1 = t0 + TILE < a.n_tokens ? t0 + TILE : a.n_tokens;
    const int c = (blockIdx.x * LORA_ADD_THREADS + threadIdx.x) * 8;

    pdl_wait();
    pdl_go();
    for (int t = t0, n; t < t1; t += n) { /* runs of one adapter, as above */
        const int slot = a.token_slot[t];
        for (n = 1; t + n < t1 && a.token_slot[t + n] == slot; n++) {
        }
        if (slot < 0) {
            continue;
        }
        __syncthreads(); /* h may still be read for the run before */
        for (int i = threadIdx.x; i < n * n_h; i += LORA_ADD_THREADS) {
            h[i] = a.hidden[(int64_t)t * n_h + i];
        }
        __syncthreads();
        float sum[TILE][8] = {}, mul[8] = {1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f};
        if (c >= a.y_stride || !lora_columns<TILE>(a, slot, h, c, n, sum, mul)) {
            continue;
        }
#pragma unroll
        for (int j = 0; j < TILE; j++) {
            if (j < n) {
                add_columns((T *)a.y + (t + j) * a.y_stride + c, a, c, sum[j], mul);
            }
        }
    }
}

template <typename T, int TILE, int R>
static nrd_error *shrink(nrd_stream *s, const lora_params &p)
{
    const unsigned tiles = ((unsigned)p.n_tokens + TILE - 1) / TILE, rows = ((unsigned)p.max_rank + R - 1) / R;
    return launch(s, lora_shrink_kernel<T, TILE, R>, dim3(tiles, (unsigned)p.n_parts, rows), dim3(LORA_THREADS), 0, p);
}

/* Few tokens: a block for each row of A, so that enough of them wait for memory; many: rows share what is read of x. */
template <typename T>
static nrd_error *run_shrink(nrd_stream *s, const lora_params &p, int tile)
{
    if (tile > 1) {
        return shrink<T, LORA_TILE, 2>(s, p);
    }
    return (int64_t)p.n_tokens * p.n_parts * p.max_rank <= LORA_FEW_BLOCKS ? shrink<T, 1, 1>(s, p) : shrink<T, 1, 4>(s, p);
}

template <typename T, int TILE>
static nrd_error *expand(nrd_stream *s, const lora_params &p)
{
    const unsigned columns = (unsigned)((p.y_stride + LORA_ADD_THREADS * 8 - 1) / (LORA_ADD_THREADS * 8));
    const size_t smem = (size_t)TILE * (size_t)p.n_parts * (size_t)p.max_rank * sizeof(float);
    return launch(s, lora_expand_kernel<T, TILE>, dim3(columns, ((unsigned)p.n_tokens + TILE - 1) / TILE),
                  dim3(LORA_ADD_THREADS), smem, p);
}

nrd_error *nrd_cuda_lora(nrd_stream *s, const nrd_lora_args *a)
{
    lora_params p = {};
    nrd_error *err = NULL;

    if (a->n_tokens <= 0) {
        return NULL;
    }
    if ((!is_act_dtype(a->x_dtype) && a->x_dtype != NRD_DTYPE_F8_E4M3) || !is_act_dtype(a->y_dtype) ||
        !aligned16(a->x) || !aligned16(a->y) || a->n_parts < 1 || a->n_parts > NRD_LORA_MAX_PARTS ||
        a->max_rank < 1 || a->max_rank > NRD_LORA_MAX_RANK ||
        a->n_tokens > (int64_t)LORA_MAX_TILES * LORA_ADD_TILE) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: lora from %s to %s, %d tokens, rank %d",
                          nrd_dtype_name(a->x_dtype), nrd_dtype_name(a->y_dtype), a->n_tokens, a->max_rank);
    }
    /* Sequences of one token each may have an adapter each, and a tile takes one after the other. */
    const int tile = a->single_tokens && a->n_tokens <= LORA_MAX_TILES ? 1 : LORA_TILE;
    p.token_slot = a->token_slot;
    p.pairs = a->pairs;
    p.slot_stride = a->slot_stride;
    p.cols = a->cols;
    p.y_stride = a->y_stride;
    p.x = a->x;
    p.x_scale = a->x_dtype == NRD_DTYPE_F8_E4M3 ? a->x_row_scale : NULL;
    p.y = a->y;
    p.hidden = a->hidden;
    p.n_tokens = a->n_tokens;
    p.n_parts = a->n_parts;
    p.max_rank = a->max_rank;
    for (int i = 0; i < a->n_parts; i++) {
        p.row0[i] = a->part[i].row0;
        p.n_rows[i] = a->part[i].n_rows;
    }
    if (a->x_dtype == NRD_DTYPE_F8_E4M3) {
        err = run_shrink<f8>(s, p, tile);
    } else {
        ACT_TYPE(a->x_dtype, err = run_shrink<T>(s, p, tile));
    }
    if (err) {
        return err;
    }
    ACT_TYPE(a->y_dtype, err = tile > 1 ? expand<T, LORA_ADD_TILE>(s, p) : expand<T, 1>(s, p));
    return err;
}
