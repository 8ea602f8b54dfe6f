/* SPDX-License-Identifier: Apache-2.0
 * latent_attention: K_h^T q of every head, attention over the cached rows, V_h of the sums.
 * Shapes    q [n_tokens, n_heads, nope_dim + rope_dim], out [n_tokens, n_heads * v_dim]; rows as kv_layout.cuh says.
 * Work      Tokens go in chunks as large as scratch memory allows. Of a chunk: a product for each head into float32
 *           scratch, of few tokens in a form that waits for memory once, of many on the matrix unit where all is in
 *           16 bits; then a block has a token, 16 of its heads and a part of its context, which it walks in tiles of
 *           rows with a running maximum (flash attention, Dao et al. 2022): scores with 4 heads x 2 rows a thread, a
 *           quarter of the row each; sums with a column a thread. Where few blocks would run the context is divided
 *           and the parts are combined. Then the other product. Where all is in 16 bits and sizes are common ones, the
 *           matrix unit does the attention (latent_matrix.cu).
 * Bound     float32 arithmetic: 16 heads share what is read of the cache.
 */
#include "device/ops/latent_attention.cuh"

#include <mma.h>

enum {
    THREADS = 256,
    CHUNK_TOKENS = 512, /* where scratch memory must be made */
    GEMM_TILE = 64,
    GEMM_DEPTH = 16,
    FEW_TOKENS = 64, /* of which each FEW_TILE read the matrices */
    FEW_TILE = 4,
};

/* ---- a product for each head ---- */

struct head_product_params {
    const void *x, *w;
    void *y;
    nrd_dtype x_type, w_type, y_type;
    int64_t x_stride, y_stride; /* of tokens */
    int32_t x_head, y_head;     /* of heads */
    int32_t m, n, k;
    bool turned; /* w is [k, n] for each head, else [n, k] */
};

/* y[t, h, j] = sum over i of x[t, h, i] w_h[i, j]. Thread: 4 x 4 of a tile of 64 x 64. */
static __global__ void __launch_bounds__(THREADS) head_product_kernel(const __grid_constant__ head_product_params a)
{
    __shared__ __align__(16) float xs[GEMM_DEPTH][GEMM_TILE + 4], ws[GEMM_DEPTH][GEMM_TILE + 4];
    const int head = blockIdx.z, m0 = blockIdx.y * GEMM_TILE, n0 = blockIdx.x * GEMM_TILE;
    const int tm = threadIdx.x / 16 * 4, tn = threadIdx.x % 16 * 4;
    const int64_t w0 = (int64_t)head * a.n * a.k;
    float acc[4][4] = {};

    pdl_wait();
    pdl_go();
    for (int k0 = 0; k0 < a.k; k0 += GEMM_DEPTH) {
        for (int i = threadIdx.x; i < GEMM_DEPTH * GEMM_TILE; i += THREADS) {
            const int r = i / GEMM_DEPTH, k = i % GEMM_DEPTH;
            xs[k][r] = m0 + r < a.m && k0 + k < a.k
                           ? load_any(a.x_type, a.x, (int64_t)(m0 + r) * a.x_stride + (int64_t)head * a.x_head + k0 + k)
                           : 0.0f;
            /* neighbours in memory to neighbouring threads */
            const int wk = a.turned ? i / GEMM_TILE : k, wn = a.turned ? i % GEMM_TILE : r;
            ws[wk][wn] = n0 + wn < a.n && k0 + wk < a.k
                             ? load_any(a.w_type, a.w, w0 + (a.turned ? (int64_t)(k0 + wk) * a.n + n0 + wn
                                                                      : (int64_t)(n0 + wn) * a.k + k0 + wk))
                             : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < GEMM_DEPTH; k++) {
            const float4 x = *(const float4 *)&xs[k][tm], w = *(const float4 *)&ws[k][tn];
            const float xv[4] = {x.x, x.y, x.z, x.w}, wv[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    acc[i][j] += xv[i] * wv[j];
                }
            }
        }
        __syncthreads();
    }
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < 4; j++) {
            if (m0 + tm + i < a.m && n0 + tn + j < a.n) {
                store_any(a.y_type, a.y, (int64_t)(m0 + tm + i) * a.y_stride + (int64_t)head * a.y_head + n0 + tn + j, acc[i][j]);
            }
        }
    }
}

/* Eight neighbours of x, in 16 bits: what they are already, or float32 that is rounded as it would be in the end. */
template <typename T> static __device__ __forceinline__ void stage8(nrd_dtype type, const void *p, int64_t i, T *to)
{
    if (type != NRD_DTYPE_F32) {
        *(uint4 *)to = *(const uint4 *)((const T *)p + i);
        return;
    }
    float v[8];
    load8((const float *)p + i, v);
    store8(to, v);
}

/* Many tokens, matrices in 16 bits: the matrix unit. A block has 64 tokens and 64 columns, a warp 16 x 32 of them. */
template <typename T> static __global__ void __launch_bounds__(THREADS) head_matrix_kernel(const __grid_constant__ head_product_params a)
{
    enum { DEPTH = 32, PAD = 8 };
    using namespace nvcuda;
    __shared__ __align__(32) T xs[GEMM_TILE][DEPTH + PAD];
    __shared__ __align__(32) T ws[GEMM_TILE * (DEPTH + PAD)]; /* [n][k], or turned [k][n] */
    __shared__ __align__(32) float ys[GEMM_TILE][GEMM_TILE + 4];
    const int head = blockIdx.z, m0 = blockIdx.y * GEMM_TILE, n0 = blockIdx.x * GEMM_TILE;
    const int warp = threadIdx.x / 32, wm = warp / 2 * 16, wn = warp % 2 * 32;
    const int64_t w0 = (int64_t)head * a.n * a.k;
    const int wide = GEMM_TILE + PAD, deep = DEPTH + PAD;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc[2];

    wmma::fill_fragment(acc[0], 0.0f);
    wmma::fill_fragment(acc[1], 0.0f);
    pdl_wait();
    pdl_go();
    for (int k0 = 0; k0 < a.k; k0 += DEPTH) {
        { /* 64 rows of x, 32 deep: a thread has eight of them, and eight of w */
            const int r = threadIdx.x / 4, k = threadIdx.x % 4 * 8;
            const bool is_there = m0 + r < a.m && k0 + k < a.k;
            if (is_there) {
                stage8(a.x_type, a.x, (int64_t)(m0 + r) * a.x_stride + (int64_t)head * a.x_head + k0 + k, &xs[r][k]);
            } else {
                *(uint4 *)&xs[r][k] = make_uint4(0, 0, 0, 0);
            }
            const int wk = a.turned ? threadIdx.x / 8 : k, wr = a.turned ? threadIdx.x % 8 * 8 : r;
            T *to = ws + (a.turned ? wk * wide + wr : wr * deep + wk);
            if (n0 + wr < a.n && k0 + wk < a.k) {
                const int64_t at = w0 + (a.turned ? (int64_t)(k0 + wk) * a.n + n0 + wr : (int64_t)(n0 + wr) * a.k + k0 + wk);
                *(uint4 *)to = *(const uint4 *)((const T *)a.w + at);
            } else {
                *(uint4 *)to = make_uint4(0, 0, 0, 0);
            }
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < DEPTH; k += 16) {
            wmma::fragment<wmma::matrix_a, 16, 16, 16, T, wmma::row_major> x;
            wmma::load_matrix_sync(x, &xs[wm][k], deep);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                if (a.turned) {
                    wmma::fragment<wmma::matrix_b, 16, 16, 16, T, wmma::row_major> w;
                    wmma::load_matrix_sync(w, ws + k * wide + wn + 16 * j, wide);
                    wmma::mma_sync(acc[j], x, w, acc[j]);
                } else {
                    wmma::fragment<wmma::matrix_b, 16, 16, 16, T, wmma::col_major> w;
                    wmma::load_matrix_sync(w, ws + (wn + 16 * j) * deep + k, deep);
                    wmma::mma_sync(acc[j], x, w, acc[j]);
                }
            }
        }
        __syncthreads();
    }
    wmma::store_matrix_sync(&ys[wm][wn], acc[0], GEMM_TILE + 4, wmma::mem_row_major);
    wmma::store_matrix_sync(&ys[wm][wn + 16], acc[1], GEMM_TILE + 4, wmma::mem_row_major);
    __syncthreads();
    for (int i = threadIdx.x; i < GEMM_TILE * GEMM_TILE; i += THREADS) {
        const int r = i / GEMM_TILE, c = i % GEMM_TILE;
        if (m0 + r < a.m && n0 + c < a.n) {
            store_any(a.y_type, a.y, (int64_t)(m0 + r) * a.y_stride + (int64_t)head * a.y_head + n0 + c, ys[r][c]);
        }
    }
}

/* Few tokens: what counts is that all of w is asked for at once. A warp has a row of w, for FEW_TILE tokens. */
static __global__ void __launch_bounds__(THREADS) head_rows_kernel(const __grid_constant__ head_product_params a)
{
    const int head = blockIdx.z, t0 = blockIdx.y * FEW_TILE, j = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int64_t w0 = ((int64_t)head * a.n + j) * a.k;
    float sum[FEW_TILE] = {};

    pdl_wait();
    pdl_go();
    if (j >= a.n) {
        return;
    }
#pragma unroll 2
    for (int k = lane * 8; k < a.k; k += 256) {
        float w[8], x[8];
        load8_any(a.w_type, a.w, w0 + k, w);
#pragma unroll
        for (int t = 0; t < FEW_TILE; t++) {
            if (t0 + t < a.m) {
                load8_any(a.x_type, a.x, (int64_t)(t0 + t) * a.x_stride + (int64_t)head * a.x_head + k, x);
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    sum[t] = fmaf(w[i], x[i], sum[t]);
                }
            }
        }
    }
#pragma unroll
    for (int t = 0; t < FEW_TILE; t++) {
        const float all = warp_reduce<op_sum>(sum[t]);
        if (lane == 0 && t0 + t < a.m) {
            store_any(a.y_type, a.y, (int64_t)(t0 + t) * a.y_stride + (int64_t)head * a.y_head + j, all);
        }
    }
}

/* The same with w turned: a thread has eight columns, a warp every eighth row. */
static __global__ void __launch_bounds__(THREADS) head_columns_kernel(const __grid_constant__ head_product_params a)
{
    enum { WARPS = THREADS / 32, COLUMNS = 256 };
    __shared__ __align__(16) float part[WARPS][COLUMNS];
    const int head = blockIdx.z, t0 = blockIdx.y * FEW_TILE, c0 = blockIdx.x * COLUMNS, warp = threadIdx.x / 32;
    const int c = threadIdx.x % 32 * 8;
    const bool is_there = c0 + c < a.n;
    const int64_t w0 = (int64_t)head * a.n * a.k + c0 + (is_there ? c : 0);
    float sum[FEW_TILE][8] = {};

    pdl_wait();
    pdl_go();
#pragma unroll 4
    for (int k = warp; k < a.k; k += WARPS) {
        float w[8];
        load8_any(a.w_type, a.w, w0 + (int64_t)k * a.n, w);
#pragma unroll
        for (int t = 0; t < FEW_TILE; t++) {
            const float x = t0 + t < a.m
                                ? load_any(a.x_type, a.x, (int64_t)(t0 + t) * a.x_stride + (int64_t)head * a.x_head + k)
                                : 0.0f;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                sum[t][i] = fmaf(w[i], x, sum[t][i]);
            }
        }
    }
#pragma unroll
    for (int t = 0; t < FEW_TILE; t++) {
        __syncthreads(); /* the parts of the token before were read */
        store8(&part[warp][c], sum[t]);
        __syncthreads();
        if (t0 + t < a.m && c0 + threadIdx.x < a.n) {
            float all = 0.0f;
#pragma unroll
            for (int i = 0; i < WARPS; i++) {
                all += part[i][threadIdx.x];
            }
            store_any(a.y_type, a.y, (int64_t)(t0 + t) * a.y_stride + (int64_t)head * a.y_head + c0 + threadIdx.x, all);
        }
    }
}

/* All but the plain form read eight neighbours at a time. `deterministic`: one form for any number of tokens. */
static nrd_error *head_product(nrd_stream *s, const head_product_params &p, int n_heads, nrd_dtype act, bool deterministic)
{
    const bool wide = p.n % 8 == 0 && p.k % 8 == 0 && p.x_stride % 8 == 0 && p.x_head % 8 == 0 && aligned16(p.w) && aligned16(p.x);
    const unsigned heads = (unsigned)n_heads, n = (unsigned)p.n, m = (unsigned)p.m;
    const dim3 grid((n + GEMM_TILE - 1) / GEMM_TILE, (m + GEMM_TILE - 1) / GEMM_TILE, heads), threads(THREADS);

    if (wide && p.m <= FEW_TOKENS && !deterministic) {
        const unsigned tiles = (m + FEW_TILE - 1) / FEW_TILE;
        return p.turned ? launch(s, head_columns_kernel, dim3((n + 255) / 256, tiles, heads), threads, 0, p)
                        : launch(s, head_rows_kernel, dim3((n + THREADS / 32 - 1) / (THREADS / 32), tiles, heads), threads, 0, p);
    }
    if (wide && !deterministic && act == p.w_type && act == NRD_DTYPE_BF16) {
        return launch(s, head_matrix_kernel<bf16>, grid, threads, 0, p);
    }
    if (wide && !deterministic && act == p.w_type && act == NRD_DTYPE_F16) {
        return launch(s, head_matrix_kernel<f16>, grid, threads, 0, p);
    }
    return launch(s, head_product_kernel, grid, threads, 0, p);
}

/* ---- attention over rows ---- */

/* Floats from row to row in shared memory: four quarters of whole float4, and another bank for each row. */
static inline __host__ __device__ int row_stride(int width)
{
    return (width + 15) / 16 * 16 + 4;
}

/* Rows of positions [from, from + keys) into shared memory, zero where there are none; is_there says which. */
static __device__ void load_rows(const latent_params &a, int seq, int from, int end, float *rows, int *is_there)
{
    const int width = a.rank + a.rope, stride = row_stride(width), warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    for (int k = warp; k < a.keys; k += THREADS / 32) {
        const int pos = from + k;
        const int block = pos < end ? a.block_table[(int64_t)seq * a.table_stride + pos / a.bt] : -1;
        const bool valid = block >= 0 && block < a.n_blocks;
        const int64_t at = valid ? block * a.block_elems + (int64_t)(pos % a.bt) * width : 0;
        float *row = rows + k * stride;
        if (lane == 0) {
            is_there[k] = valid;
        }
        if (a.vectors && valid) {
            for (int d = lane * 8; d < width; d += 256) {
                float v[8];
                load8_any(a.kv, a.cache, at + d, v);
                store8(row + d, v);
            }
        } else {
            for (int d = lane; d < width; d += 32) {
                row[d] = valid ? load_any(a.kv, a.cache, at + d) : 0.0f;
            }
        }
        for (int d = width + lane; d < stride; d += 32) {
            row[d] = 0.0f;
        }
    }
}

/* What a quarter of the row adds to the scores of 4 heads with up to 2 rows; quarters lie one behind the other. */
static __device__ void score_rows(const latent_params &a, const float *q, const float *rows, float *score)
{
    const int stride = row_stride(a.rank + a.rope), step = (stride - 4) / 4;
    const int quarter = threadIdx.x / 64, h0 = threadIdx.x / 16 % 4 * 4, k0 = threadIdx.x % 16;
    float acc[4][2] = {};

    for (int d = quarter * step; d < (quarter + 1) * step; d += 4) {
        float4 x[4];
#pragma unroll
        for (int h = 0; h < 4; h++) {
            x[h] = *(const float4 *)(q + (h0 + h) * stride + d);
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            if (j == 0 || a.keys > 16) {
                const float4 r = *(const float4 *)(rows + (k0 + 16 * j) * stride + d);
#pragma unroll
                for (int h = 0; h < 4; h++) {
                    acc[h][j] += x[h].x * r.x + x[h].y * r.y + x[h].z * r.z + x[h].w * r.w;
                }
            }
        }
    }
    for (int h = 0; h < 4; h++) {
        for (int j = 0; j < (a.keys > 16 ? 2 : 1); j++) {
            score[(quarter * HEADS + h0 + h) * a.keys + k0 + 16 * j] = acc[h][j];
        }
    }
}

/* Weights of a tile's rows, [keys][HEADS], and what the sums so far are multiplied by. A warp has two heads. */
static __device__ void weigh(const latent_params &a, const float *score, const int *is_there, int seq, int t, int from, int end,
                             float *weight, float *state)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float *top = state, *sum = state + HEADS, *factor = state + 2 * HEADS;
    const bool seen = lane < a.keys && from + lane < end && is_there[lane < a.keys ? lane : 0] && sees(a, seq, t, from + lane);

    for (int h = 2 * warp; h < 2 * warp + 2; h++) {
        float x = -INFINITY;
        if (seen) {
            x = 0.0f;
            for (int i = 0; i < 4; i++) {
                x += score[(i * HEADS + h) * a.keys + lane];
            }
        }
        const float before = top[h], m = fmaxf(before, warp_reduce<op_max>(x));
        const float e = m == -INFINITY ? 0.0f : expf(x - m);
        const float f = m == -INFINITY ? 1.0f : expf(before - m), all = warp_reduce<op_sum>(e);
        if (lane < a.keys) {
            weight[lane * HEADS + h] = e;
        }
        __syncwarp();
        if (lane == 0) {
            top[h] = m;
            sum[h] = sum[h] * f + all;
            factor[h] = f;
        }
    }
}

/* COLS: columns of the sum that a thread has. */
template <int COLS> static __global__ void __launch_bounds__(THREADS) latent_kernel(const __grid_constant__ latent_params a)
{
    extern __shared__ float4 room[];
    const int width = a.rank + a.rope, stride = row_stride(width);
    float *q = (float *)room, *rows = q + HEADS * stride, *score = rows + a.keys * stride;
    float *weight = score + 4 * HEADS * a.keys, *state = weight + HEADS * a.keys;
    int *is_there = (int *)(state + 3 * HEADS);
    const int tile = blockIdx.x, t_chunk = tile / a.head_tiles, t = a.first + t_chunk, h0 = tile % a.head_tiles * HEADS;
    float o[COLS][HEADS] = {};

    pdl_wait();
    pdl_go();
    for (int i = threadIdx.x; i < HEADS * stride; i += THREADS) {
        const int h = h0 + i / stride, d = i % stride;
        float x = 0.0f;
        if (h < a.n_heads && d < a.rank) {
            x = a.latent[((int64_t)t_chunk * a.n_heads + h) * a.rank + d];
        } else if (h < a.n_heads && d < width) {
            x = load_any(a.act, a.q, ((int64_t)t * a.n_heads + h) * (a.nope + a.rope) + a.nope + d - a.rank);
        }
        q[i] = x * a.scale;
    }
    if (threadIdx.x < HEADS) {
        state[threadIdx.x] = -INFINITY;
        state[HEADS + threadIdx.x] = 0.0f;
    }
    const int seq = a.token_seq[t], ctx = a.ctx_len[seq], end = a.tree ? ctx : min(ctx, a.positions[t] + 1);
    const int n_tiles = (end + a.keys - 1) / a.keys, each = (n_tiles + a.n_parts - 1) / a.n_parts;
    const int last = min(n_tiles, (int)(blockIdx.y + 1) * each);

    for (int i = blockIdx.y * each; i < last; i++) {
        const int from = i * a.keys;
        __syncthreads(); /* rows and weights were read */
        load_rows(a, seq, from, end, rows, is_there);
        __syncthreads();
        score_rows(a, q, rows, score);
        __syncthreads();
        weigh(a, score, is_there, seq, t, from, end, weight, state);
        __syncthreads();
        const int n = min(a.keys, end - from);
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            const int d = threadIdx.x + c * THREADS, at = d < a.rank ? d : 0;
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                o[c][h] *= state[2 * HEADS + h];
            }
            for (int k = 0; k < n; k++) {
                const float v = rows[k * stride + at];
#pragma unroll
                for (int h = 0; h < HEADS; h += 4) {
                    const float4 w = *(const float4 *)(weight + k * HEADS + h);
                    o[c][h] += w.x * v;
                    o[c][h + 1] += w.y * v;
                    o[c][h + 2] += w.z * v;
                    o[c][h + 3] += w.w * v;
                }
            }
        }
    }
    __syncthreads(); /* the state of a context without rows, too */
    float *part = a.parts ? a.parts + ((int64_t)tile * a.n_parts + blockIdx.y) * HEADS * (a.rank + 2) : NULL;
#pragma unroll
    for (int c = 0; c < COLS; c++) {
        const int d = threadIdx.x + c * THREADS;
#pragma unroll
        for (int h = 0; h < HEADS; h++) { /* all are unrolled: sums stay in registers */
            const float sum = state[HEADS + h];
            if (part && d < a.rank) {
                part[h * (a.rank + 2) + d] = o[c][h];
            } else if (d < a.rank && h0 + h < a.n_heads) {
                a.latent[((int64_t)t_chunk * a.n_heads + h0 + h) * a.rank + d] = sum > 0.0f ? o[c][h] / sum : 0.0f;
            }
        }
    }
    if (part && threadIdx.x < HEADS) {
        part[threadIdx.x * (a.rank + 2) + a.rank] = state[threadIdx.x];
        part[threadIdx.x * (a.rank + 2) + a.rank + 1] = state[HEADS + threadIdx.x];
    }
}

/* One head of a token: the parts' sums, in their order. */
static __global__ void __launch_bounds__(THREADS) latent_combine_kernel(const __grid_constant__ latent_params a)
{
    __shared__ float share[MAX_PARTS];
    const int tile = blockIdx.x / HEADS, h = blockIdx.x % HEADS, head = tile % a.head_tiles * HEADS + h, lane = threadIdx.x;
    const int64_t part_floats = (int64_t)HEADS * (a.rank + 2);
    const float *first = a.parts + (int64_t)tile * a.n_parts * part_floats + (int64_t)h * (a.rank + 2);

    pdl_wait();
    pdl_go();
    if (head >= a.n_heads) {
        return;
    }
    if (lane < 32) {
        float m[MAX_PARTS / 32], sum = 0.0f, top = -INFINITY;
#pragma unroll
        for (int i = 0; i < MAX_PARTS / 32; i++) {
            const int part = lane + 32 * i;
            m[i] = part < a.n_parts ? first[part * part_floats + a.rank] : -INFINITY;
            top = fmaxf(top, m[i]);
        }
        top = warp_reduce<op_max>(top);
#pragma unroll
        for (int i = 0; i < MAX_PARTS / 32; i++) {
            const int part = lane + 32 * i;
            m[i] = m[i] == -INFINITY ? 0.0f : expf(m[i] - top);
            sum += m[i] == 0.0f ? 0.0f : m[i] * first[part * part_floats + a.rank + 1];
        }
        sum = warp_reduce<op_sum>(sum);
#pragma unroll
        for (int i = 0; i < MAX_PARTS / 32; i++) {
            share[lane + 32 * i] = sum > 0.0f ? m[i] / sum : 0.0f;
        }
    }
    __syncthreads();
    for (int d = threadIdx.x; d < a.rank; d += THREADS) {
        float x = 0.0f;
#pragma unroll 8
        for (int i = 0; i < a.n_parts; i++) {
            x += share[i] == 0.0f ? 0.0f : share[i] * first[i * part_floats + d];
        }
        a.latent[((int64_t)(tile / a.head_tiles) * a.n_heads + head) * a.rank + d] = x;
    }
}

static size_t shared_bytes(int width, int keys)
{
    return sizeof(float) * ((size_t)(HEADS + keys) * (size_t)row_stride(width) + (size_t)(5 * HEADS) * (size_t)keys + 3 * HEADS +
                            (size_t)keys);
}

/* Into how many parts each token's context is divided. `rows`: of a tile; `blocks`: so many run on a multiprocessor. The time
 * of a block is that of its tiles, and a start and end that take as long as two more. */
static int parts_of(const nrd_stream *s, const nrd_latent_attention_args *a, int tiles, int rows, int blocks)
{
    const size_t room = SPLIT_WS_BYTES / sizeof(float) / ((size_t)tiles * HEADS * (size_t)(a->kv.head_dim - a->rope_dim + 2));
    const int n_tiles = (a->batch->max_ctx_len + rows - 1) / rows, at_once = blocks * s->dev->n_sm;
    int most = room < MAX_PARTS ? (int)room : (int)MAX_PARTS, best = 1;
    int64_t least = INT64_MAX;

    most = a->deterministic ? 1 : most < n_tiles ? most : n_tiles;
    for (int n = 1; n <= most; n++) {
        const int64_t rounds = ((int64_t)tiles * n + at_once - 1) / at_once;
        const int64_t time = rounds * ((n_tiles + n - 1) / n + 2);
        if (time < least) {
            least = time;
            best = n;
        }
    }
    return best;
}

static latent_params params_of(const nrd_latent_attention_args *a, float *latent, int first, int keys)
{
    const nrd_batch_view *b = a->batch;
    const int width = a->kv.head_dim, bytes = kv_elem_bytes(a->kv.dtype);
    latent_params p = {};

    p.q = a->q;
    p.latent = latent;
    p.cache = a->kv.base;
    p.positions = b->positions;
    p.token_seq = b->token_seq;
    p.q_start = b->q_start;
    p.ctx_len = b->ctx_len;
    p.block_table = b->block_table;
    p.tree = b->tree_mask;
    p.act = a->act_dtype;
    p.kv = a->kv.dtype;
    p.tree_words = b->tree_mask_words;
    p.table_stride = b->block_table_stride;
    p.first = first;
    p.n_heads = a->n_heads;
    p.head_tiles = (a->n_heads + HEADS - 1) / HEADS;
    p.nope = a->nope_dim;
    p.rope = a->rope_dim;
    p.rank = width - a->rope_dim;
    p.bt = a->kv.block_tokens;
    p.n_blocks = a->kv.n_blocks;
    p.window = a->window;
    p.n_sink = a->n_sink;
    p.keys = keys;
    p.block_elems = kv_geom_of(&a->kv).block_elems;
    p.scale = a->scale;
    p.vectors = width % 8 == 0 && width * bytes % 16 == 0 && aligned16(a->kv.base);
    return p;
}

static nrd_error *attend(nrd_stream *s, const nrd_latent_attention_args *a, float *latent, int first, int n, int keys)
{
    latent_params p = params_of(a, latent, first, keys);
    const int tiles = n * p.head_tiles;
    const bool matrix = !a->deterministic && nrd_cuda_latent_matrix_fits(s, p);
    const size_t smem = shared_bytes(a->kv.head_dim, keys);

    p.n_parts = matrix ? parts_of(s, a, tiles, 64, 1) : parts_of(s, a, tiles, keys, 2);
    if (p.n_parts > 1) {
        NRD_TRY(nrd_cuda_stream_scratch(s));
        p.parts = (float *)s->split_ws;
    }
    const dim3 grid((unsigned)tiles, (unsigned)p.n_parts);
    NRD_TRY(matrix                  ? nrd_cuda_latent_matrix(s, p, tiles)
            : p.rank <= 2 * THREADS ? launch(s, latent_kernel<2>, grid, dim3(THREADS), smem, p)
                                    : launch(s, latent_kernel<4>, grid, dim3(THREADS), smem, p));
    return p.n_parts > 1 ? launch(s, latent_combine_kernel, dim3((unsigned)tiles * HEADS), dim3(THREADS), 0, p) : NULL;
}

/* Tokens [first, first + n): K_h^T q into scratch, attention there, V_h into the output. */
static nrd_error *run_chunk(nrd_stream *s, const nrd_latent_attention_args *a, float *latent, void *out, nrd_dtype out_dtype,
                            int first, int n, int keys)
{
    const int rank = a->kv.head_dim - a->rope_dim, q_width = a->nope_dim + a->rope_dim;
    const int elem = kv_elem_bytes(a->act_dtype), out_elem = kv_elem_bytes(out_dtype);
    head_product_params p = {};

    p.x = (const char *)a->q + (size_t)first * (size_t)a->n_heads * (size_t)q_width * (size_t)elem;
    p.x_type = a->act_dtype;
    p.x_stride = (int64_t)a->n_heads * q_width;
    p.x_head = q_width;
    p.w = a->k_b->data;
    p.w_type = a->k_b->dtype;
    p.turned = true;
    p.y = latent;
    p.y_type = NRD_DTYPE_F32;
    p.y_stride = (int64_t)a->n_heads * rank;
    p.y_head = rank;
    p.m = n;
    p.n = rank;
    p.k = a->nope_dim;
    NRD_TRY(head_product(s, p, a->n_heads, a->act_dtype, a->deterministic));
    NRD_TRY(attend(s, a, latent, first, n, keys));
    p.x = latent;
    p.x_type = NRD_DTYPE_F32;
    p.x_stride = (int64_t)a->n_heads * rank;
    p.x_head = rank;
    p.w = a->v_b->data;
    p.w_type = a->v_b->dtype;
    p.turned = false;
    p.y = (char *)out + (size_t)first * (size_t)a->n_heads * (size_t)a->v_dim * (size_t)out_elem;
    p.y_type = out_dtype;
    p.y_stride = (int64_t)a->n_heads * a->v_dim;
    p.y_head = a->v_dim;
    p.n = a->v_dim;
    p.k = rank;
    return head_product(s, p, a->n_heads, a->act_dtype, a->deterministic);
}

static nrd_error *check(const nrd_latent_attention_args *a)
{
    const bool quant = a->out_dtype == NRD_DTYPE_F8_E4M3;

    NRD_TRY(latent_sizes_check("latent_attention", &a->kv, a->n_heads, a->nope_dim, a->rope_dim, a->v_dim));
    if (!is_act_dtype(a->act_dtype) || (quant ? a->out_row_scale == NULL : !is_act_dtype(a->out_dtype)) ||
        !is_act_dtype(a->k_b->dtype) || !is_act_dtype(a->v_b->dtype)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: latent_attention of dtype %d to %d, matrices of %d and %d",
                          (int)a->act_dtype, (int)a->out_dtype, (int)a->k_b->dtype, (int)a->v_b->dtype);
    }
    return NULL;
}

nrd_error *nrd_cuda_latent_attention(nrd_stream *s, const nrd_latent_attention_args *a)
{
    const nrd_batch_view *b = a->batch;
    const bool quant = a->out_dtype == NRD_DTYPE_F8_E4M3;
    const int cols = a->n_heads * a->v_dim;

    NRD_TRY(check(a));
    if (b->n_tokens <= 0 || b->n_seqs <= 0) {
        return NULL;
    }
    int keys = 32;
    while (keys > 8 && shared_bytes(a->kv.head_dim, keys) > s->dev->smem_max) {
        keys /= 2;
    }
    if (keys < 16) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: latent rows of %d do not fit this GPU's shared memory", a->kv.head_dim);
    }
    /* scratch: rows that wait for quantization, and the chunk's float32 */
    const size_t rows = quant ? ((size_t)b->n_tokens * (size_t)cols * (size_t)kv_elem_bytes(a->act_dtype) + 255) & ~(size_t)255 : 0;
    const size_t token = (size_t)a->n_heads * (size_t)(a->kv.head_dim - a->rope_dim) * sizeof(float);
    const size_t least = (size_t)(b->n_tokens < CHUNK_TOKENS ? b->n_tokens : (int32_t)CHUNK_TOKENS) * token;
    const size_t had = s->tmp_bytes > rows ? (s->tmp_bytes - rows) / token : 0;
    void *tmp;
    NRD_TRY(nrd_cuda_stream_tmp(s, had > 0 && s->capturing ? s->tmp_bytes : rows + least, &tmp));
    const size_t room = (s->tmp_bytes - rows) / token;
    const int chunk = room < (size_t)b->n_tokens ? (int)room : b->n_tokens;
    float *latent = (float *)((char *)tmp + rows);
    void *out = quant ? tmp : a->out;
    for (int32_t i = 0; i < b->n_tokens; i += chunk) {
        const int n = b->n_tokens - i < chunk ? b->n_tokens - i : chunk;
        NRD_TRY(run_chunk(s, a, latent, out, quant ? a->act_dtype : a->out_dtype, i, n, keys));
    }
    return quant ? nrd_cuda_row_quant(s, out, a->act_dtype, b->n_tokens, cols, a->out, a->out_row_scale) : NULL;
}
