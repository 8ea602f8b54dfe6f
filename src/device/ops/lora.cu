/* SPDX-License-Identifier: Apache-2.0
 * lora: y[t, row0_p + i] += scale * sum_r B[i, r] sum_k A[r, k] x[t, k], A and B of token t's adapter,
 * all adapters and all parts of a product in two launches.
 * Shapes    x [n_tokens, cols]; A [rank, cols]; B transposed [rank, rows of the part]; y [n_tokens, y_stride];
 *           hidden [n_tokens, n_parts, max_rank] f32 between the two.
 * Work      shrink: a warp takes one row of A for a tile of tokens, which it walks in runs of one adapter: a
 *           row is read once for a run. Tiles are one token long where every token is a sequence of its
 *           own, else eight. expand: a thread takes eight columns of y for a tile; hidden waits in shared
 *           memory. Which adapter a token has, and where its pairs are, is read from memory: a recorded
 *           graph serves every mix of adapters.
 * Bound     memory: A and B of each adapter in the step, from L2 where tokens share them.
 */
#include "device/ops/common.cuh"

extern "C" {
#include "base/dtype.h"
}

enum { LORA_WARPS = 8, LORA_TILE = 8, LORA_ADD_THREADS = 128 };

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

/* Row `a` of a pair with n tokens from x on; n <= TILE. */
template <typename T, typename W, int TILE>
static __device__ __forceinline__ void lora_dot(const W *a, const T *x, int64_t cols, int n, float *sum)
{
    const int lane = threadIdx.x & 31;

    if (cols % 16 == 0) {
        for (int64_t k = lane * 8; k < cols; k += 256) {
            float w[8], v[8];
            eight(a + k, w);
#pragma unroll
            for (int j = 0; j < TILE; j++) {
                if (j < n) {
                    eight(x + j * cols + k, v);
#pragma unroll
                    for (int i = 0; i < 8; i++) {
                        sum[j] = fmaf(w[i], v[i], sum[j]);
                    }
                }
            }
        }
        return;
    }
    for (int64_t k = lane; k < cols; k += 32) {
        const float w = to_f(a[k]);
#pragma unroll
        for (int j = 0; j < TILE; j++) {
            if (j < n) {
                sum[j] = fmaf(w, to_f(x[j * cols + k]), sum[j]);
            }
        }
    }
}

template <typename T, int TILE>
static __global__ void __launch_bounds__(LORA_WARPS * 32) lora_shrink_kernel(lora_params a)
{
    const int t0 = blockIdx.x * TILE, part = blockIdx.y;
    const int r = blockIdx.z * LORA_WARPS + (threadIdx.x >> 5);
    const int t1 = t0 + TILE < a.n_tokens ? t0 + TILE : a.n_tokens;

    pdl_wait();
    pdl_go();
    for (int t = t0, n; t < t1; t += n) {
        const int slot = a.token_slot[t];
        for (n = 1; t + n < t1 && a.token_slot[t + n] == slot; n++) {
        }
        if (slot < 0) {
            continue;
        }
        const nrd_lora_pair w = a.pairs[slot * a.slot_stride + part];
        if (r >= w.rank) {
            continue;
        }
        const T *x = (const T *)a.x + t * a.cols;
        float sum[TILE];
#pragma unroll
        for (int j = 0; j < TILE; j++) {
            sum[j] = 0.0f;
        }
        if (w.dtype == NRD_DTYPE_BF16) {
            lora_dot<T, bf16, TILE>((const bf16 *)w.a + r * a.cols, x, a.cols, n, sum);
        } else if (w.dtype == NRD_DTYPE_F16) {
            lora_dot<T, f16, TILE>((const f16 *)w.a + r * a.cols, x, a.cols, n, sum);
        } else {
            lora_dot<T, float, TILE>((const float *)w.a + r * a.cols, x, a.cols, n, sum);
        }
#pragma unroll
        for (int j = 0; j < TILE; j++) {
            const float s = warp_reduce<op_sum>(sum[j]);
            if (j < n && (threadIdx.x & 31) == 0) {
                const float scale = w.scale * (a.x_scale ? a.x_scale[t + j] : 1.0f);
                a.hidden[((int64_t)(t + j) * a.n_parts + part) * a.max_rank + r] = s * scale;
            }
        }
    }
}

/* Eight columns of y, from column `at` of the part on: n of them are there. */
template <typename W>
static __device__ __forceinline__ void lora_sum(const W *b, int64_t stride, int rank, const float *h, int at, int n,
                                                float *sum)
{
    if (n == 8 && stride % 8 == 0 && at % 8 == 0) {
        for (int r = 0; r < rank; r++) {
            float w[8];
            load8(b + r * stride + at, w);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                sum[i] = fmaf(w[i], h[r], sum[i]);
            }
        }
        return;
    }
    for (int r = 0; r < rank; r++) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (i < n && at + i >= 0) {
                sum[i] = fmaf(to_f(b[r * stride + at + i]), h[r], sum[i]);
            }
        }
    }
}

/* What the parts add to columns [c, c + 8) of token t. `any`: a part reaches them. */
static __device__ __forceinline__ bool lora_columns(const lora_params &a, int slot, const float *h, int c, float *sum)
{
    bool any = false;

    for (int p = 0; p < a.n_parts; p++) {
        const int at = c - a.row0[p], left = a.n_rows[p] - at, n = left < 8 ? left : 8;
        if (n <= 0 || at <= -8) {
            continue;
        }
        const nrd_lora_pair w = a.pairs[slot * a.slot_stride + p];
        if (w.rank == 0) {
            continue;
        }
        any = true;
        if (w.dtype == NRD_DTYPE_BF16) {
            lora_sum((const bf16 *)w.b, a.n_rows[p], w.rank, h + p * a.max_rank, at, n, sum);
        } else if (w.dtype == NRD_DTYPE_F16) {
            lora_sum((const f16 *)w.b, a.n_rows[p], w.rank, h + p * a.max_rank, at, n, sum);
        } else {
            lora_sum((const float *)w.b, a.n_rows[p], w.rank, h + p * a.max_rank, at, n, sum);
        }
    }
    return any;
}

template <typename T, int TILE>
static __global__ void __launch_bounds__(LORA_ADD_THREADS) lora_expand_kernel(lora_params a)
{
    extern __shared__ float h[]; /* [n_parts, max_rank] */
    const int t0 = blockIdx.y * TILE, n_h = a.n_parts * a.max_rank;
    const int t1 = t0 + TILE < a.n_tokens ? t0 + TILE : a.n_tokens;
    const int c = (blockIdx.x * LORA_ADD_THREADS + threadIdx.x) * 8;

    pdl_wait();
    pdl_go();
    for (int t = t0; t < t1; t++) {
        const int slot = a.token_slot[t];
        if (slot < 0) {
            continue; /* the same for the whole block */
        }
        __syncthreads(); /* h may still be read for the token before */
        for (int i = threadIdx.x; i < n_h; i += LORA_ADD_THREADS) {
            h[i] = a.hidden[(int64_t)t * n_h + i];
        }
        __syncthreads();
        float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (c >= a.y_stride || !lora_columns(a, slot, h, c, sum)) {
            continue;
        }
        T *y = (T *)a.y + t * a.y_stride + c;
        if (a.y_stride % 8 == 0) {
            float v[8];
            load8(y, v);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                v[i] += sum[i];
            }
            store8(y, v);
        } else {
            for (int i = 0; i < 8 && c + i < a.y_stride; i++) {
                y[i] = from_f<T>(to_f(y[i]) + sum[i]);
            }
        }
    }
}

template <typename T>
static nrd_error *run_shrink(nrd_stream *s, const lora_params &p, bool single)
{
    const unsigned rows = (unsigned)(p.max_rank + LORA_WARPS - 1) / LORA_WARPS;
    const unsigned n = (unsigned)p.n_tokens;

    if (single) {
        return launch(s, lora_shrink_kernel<T, 1>, dim3(n, (unsigned)p.n_parts, rows), dim3(LORA_WARPS * 32), 0, p);
    }
    return launch(s, lora_shrink_kernel<T, LORA_TILE>,
                  dim3((n + LORA_TILE - 1) / LORA_TILE, (unsigned)p.n_parts, rows), dim3(LORA_WARPS * 32), 0, p);
}

template <typename T>
static nrd_error *run_expand(nrd_stream *s, const lora_params &p, bool single)
{
    const unsigned columns = (unsigned)((p.y_stride + LORA_ADD_THREADS * 8 - 1) / (LORA_ADD_THREADS * 8));
    const unsigned n = (unsigned)p.n_tokens;
    const size_t smem = (size_t)p.n_parts * (size_t)p.max_rank * sizeof(float);

    if (single) {
        return launch(s, lora_expand_kernel<T, 1>, dim3(columns, n), dim3(LORA_ADD_THREADS), smem, p);
    }
    return launch(s, lora_expand_kernel<T, LORA_TILE>, dim3(columns, (n + LORA_TILE - 1) / LORA_TILE),
                  dim3(LORA_ADD_THREADS), smem, p);
}

/* At most so many tokens, or tiles of them, fit the second dimension of a grid. */
enum { LORA_MAX_TILES = 65535 };

nrd_error *nrd_cuda_lora(nrd_stream *s, const nrd_lora_args *a)
{
    lora_params p = {};
    nrd_error *err = NULL;
    const bool single = a->single_tokens && a->n_tokens <= LORA_MAX_TILES;

    if (a->n_tokens <= 0) {
        return NULL;
    }
    if ((!is_act_dtype(a->x_dtype) && a->x_dtype != NRD_DTYPE_F8_E4M3) || !is_act_dtype(a->y_dtype) ||
        !aligned16(a->x) || !aligned16(a->y) || a->n_parts < 1 || a->n_parts > NRD_LORA_MAX_PARTS ||
        a->max_rank < 1 || a->max_rank > NRD_LORA_MAX_RANK ||
        a->n_tokens > (int64_t)LORA_MAX_TILES * LORA_TILE) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: lora from %s to %s, %d tokens, rank %d",
                          nrd_dtype_name(a->x_dtype), nrd_dtype_name(a->y_dtype), a->n_tokens, a->max_rank);
    }
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
        err = run_shrink<f8>(s, p, single);
    } else {
        ACT_TYPE(a->x_dtype, err = run_shrink<T>(s, p, single));
    }
    if (err) {
        return err;
    }
    ACT_TYPE(a->y_dtype, err = run_expand<T>(s, p, single));
    return err;
}
