/* SPDX-License-Identifier: Apache-2.0
 * delta_rule, and ssm with one rate a head: prompts in chunks of 64 tokens.
 *
 * Both are S_t = d_t S_(t-1) + k_t^T u_t and o_t = q_t S_t, with a state S [k_dim, v_dim]. In the scan k is b, q is c, and
 * u_t = step_t x_t; in the delta rule u_t = beta_t (v_t - d_t k_t S_(t-1)). With D_t = d_1 ... d_t in a chunk that begins
 * with S_0:
 *   S_t = D_t S_0 + sum over s <= t of (D_t / D_s) k_s^T u_s
 *   O   = D Q S_0 + P U,  P[t, s] = (D_t / D_s) q_t k_s for s <= t
 *   U   = (I + L)^-1 beta (V - D K S_0),  L[t, s] = beta_t (D_t / D_s) k_t k_s for s < t
 * The last is a system of 64 rows: diagonal blocks of 16 rows are inverted, then blocks follow one another.
 *
 * Shapes    as in nereid/device.h; activations of 16 bits.
 * Work      a block 32 columns of one head's state, for all tokens of a sequence: columns do not meet. S in shared memory.
 * Accuracy  float32 throughout but for products on the matrix unit: what is float32 there is two tf32 numbers (21 bits),
 *           q and k as they came fit into one; their lengths, gates and decays are factors of the sums.
 * Bound     prompts of few sequences: the chain of chunks, 22 us each.
 * Measured  H200, bf16, 2,048 tokens of one sequence: delta rule of Qwen3-Next 719 us, scan of Mamba-2 2.7B 587 us (token by
 *           token 15,609 and 4,496; docs/performance/gpu-kernels.md, test_ops --speed recurrent).
 * Sources   Dao and Gu, Mamba-2 (2024), section 6; Yang et al., "Parallelizing linear transformers with the delta rule"
 *           (2024) and "Gated delta networks" (2024). PTX ISA 9.0, "Matrix Fragments for mma.m16n8k8".
 */
#include "device/ops/recurrent.cuh"

extern "C" {
#include "base/dtype.h"
}

enum {
    TOKENS = 64,
    COLUMNS = 32,
    WARPS = 8,
    U_ROW = COLUMNS + 8, /* floats of a row of S and U: no bank conflicts where lanes read 4 rows of 8 columns */
    P_ROW = TOKENS + 4,  /* of P and L: 8 rows of 4 columns */
};

struct chunk_params {
    seq_view v;
    const void *q, *k, *val;                /* rows of tokens, heads first */
    const void *rate_in, *beta;             /* what makes the decay; beta: the delta rule's */
    int64_t key_stride, val_stride, gate_stride;
    int n_heads, n_k_heads, heads_a_key;    /* heads_a_key 0: key heads take turns */
    int k_dim, v_dim, n_slices;
    int wide;                               /* rows of q and k can be read in 16 bytes */
    float beta_top, dt_min, dt_max;
    const float *a, *dt_bias, *d;
    int64_t state_k, state_v;               /* numbers between neighbours of S along k and along v */
    float *state;
    void *out;
};

/* A block's shared memory; kd: k_dim filled up to whole 16s. */
template <typename T> struct chunk_room {
    T *q, *k;         /* [TOKENS][kd + 8] */
    float *s;         /* [kd][U_ROW] */
    float *u;         /* [TOKENS][U_ROW] */
    float *p, *l;     /* [TOKENS][P_ROW]; l: the delta rule's */
    float *g;         /* [TOKENS] log of D */
    float *w;         /* [TOKENS] beta, or step */
    float *q_by, *k_by; /* [TOKENS] factors of rows */
    float *rest;      /* [TOKENS] D_end / D_s times k's factor */
    int kd, row;
};

static size_t chunk_bytes(int k_dim, bool delta)
{
    const size_t kd = (size_t)(k_dim + 15) / 16 * 16;
    return 2 * TOKENS * (kd + 8) * 2 + (kd + TOKENS) * U_ROW * 4 + (delta ? 2 : 1) * TOKENS * P_ROW * 4 + 5 * TOKENS * 4;
}

template <typename T, bool DELTA> static __device__ __forceinline__ chunk_room<T> room_of(char *at, int k_dim)
{
    chunk_room<T> m;
    m.kd = (k_dim + 15) / 16 * 16;
    m.row = m.kd + 8;
    m.q = (T *)at;
    m.k = m.q + TOKENS * m.row;
    m.s = (float *)(m.k + TOKENS * m.row);
    m.u = m.s + m.kd * U_ROW;
    m.p = m.u + TOKENS * U_ROW;
    m.l = m.p + (DELTA ? TOKENS * P_ROW : 0);
    m.g = m.l + TOKENS * P_ROW;
    m.w = m.g + TOKENS;
    m.q_by = m.w + TOKENS;
    m.k_by = m.q_by + TOKENS;
    m.rest = m.k_by + TOKENS;
    return m;
}

/* D (16 x 8, f32) += A (16 x 8) B (8 x 8) of tf32: the low 13 bits of each word do not count. */
static __device__ __forceinline__ void mma_tf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* x = high + low, both tf32. */
struct two_tf32 {
    uint32_t high, low;
};

static __device__ __forceinline__ two_tf32 split(float x)
{
    const uint32_t high = __float_as_uint(x) & 0xffffe000u;
    return {high, __float_as_uint(x - __uint_as_float(high))};
}

template <typename T> static __device__ __forceinline__ uint32_t word(T x)
{
    return __float_as_uint(to_f(x)); /* 16-bit numbers are tf32 numbers */
}

/* The operand A of 16 rows and 8 columns at x. */
template <typename T> static __device__ __forceinline__ void rows_a(const T *x, int row, uint32_t (&a)[4])
{
    const int r = (threadIdx.x & 31) >> 2, c = threadIdx.x & 3;
    a[0] = word(x[r * row + c]);
    a[1] = word(x[(r + 8) * row + c]);
    a[2] = word(x[r * row + c + 4]);
    a[3] = word(x[(r + 8) * row + c + 4]);
}

/* Its rows of q or k by 16 lanes; the sum of squares is theirs to add up. */
template <typename T>
static __device__ __forceinline__ float copy_row(const chunk_params &a, const T *from, bool real, int kd, T *to)
{
    float sum = 0.0f;
    for (int i = (threadIdx.x & 15) * 8; i < kd; i += 128) {
        T x[8];
        uint4 all = make_uint4(0, 0, 0, 0);
        if (real && a.wide) {
            all = *(const uint4 *)(from + i);
        }
        memcpy(x, &all, 16);
        if (real && !a.wide) {
#pragma unroll
            for (int j = 0; j < 8; j++) {
                x[j] = i + j < a.k_dim ? from[i + j] : from_f<T>(0.0f);
            }
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float v = to_f(x[j]);
            sum += v * v;
        }
        memcpy(&all, x, 16);
        *(uint4 *)(to + i) = all;
    }
    return sum;
}

static __device__ __forceinline__ float sum16(float v)
{
#pragma unroll
    for (int o = 8; o > 0; o >>= 1) {
        v += __shfl_xor_sync(0xffffffffu, v, o);
    }
    return v;
}

/* q and k of n tokens from t0, zeros behind them, and the factors of their rows. */
template <typename T, bool DELTA>
static __device__ __forceinline__ void load_keys(const chunk_params &a, const chunk_room<T> &m, int64_t t0, int n, int key_head)
{
    const float q_scale = rsqrtf((float)a.k_dim);
#pragma unroll
    for (int i = 0; i < TOKENS / (2 * WARPS); i++) {
        const int t = threadIdx.x / 16 + i * 2 * WARPS;
        const int64_t at = (t0 + (t < n ? t : 0)) * a.key_stride + (int64_t)key_head * a.k_dim;
        const float q = copy_row(a, (const T *)a.q + at, t < n, m.kd, m.q + t * m.row);
        const float k = copy_row(a, (const T *)a.k + at, t < n, m.kd, m.k + t * m.row);
        if (DELTA) {
            const float qq = sum16(q), kk = sum16(k);
            if ((threadIdx.x & 15) == 0) {
                m.q_by[t] = q_scale * rsqrtf(qq + 1e-6f);
                m.k_by[t] = rsqrtf(kk + 1e-6f);
            }
        } else if ((threadIdx.x & 15) == 0) {
            m.q_by[t] = m.k_by[t] = 1.0f;
        }
    }
}

/* Decays and weights of the chunk's tokens, by one warp; a lane has two. */
template <typename T, bool DELTA>
static __device__ __forceinline__ void load_gates(const chunk_params &a, const chunk_room<T> &m, int64_t t0, int n, int head)
{
    const int lane = threadIdx.x & 31;
    float log_d[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int t = 2 * lane + i;
        float w = 0.0f;
        log_d[i] = 0.0f;
        if (t < n) {
            const int64_t at = (t0 + t) * a.gate_stride + head;
            float step = softplus(to_f(((const T *)a.rate_in)[at]) + a.dt_bias[head]);
            if (DELTA) {
                w = a.beta_top / (1.0f + __expf(-to_f(((const T *)a.beta)[at])));
            } else {
                w = step = fminf(fmaxf(step, a.dt_min), a.dt_max);
            }
            log_d[i] = step * a.a[head];
        }
        m.w[t] = w;
    }
    const float both = log_d[0] + log_d[1];
    float sum = both;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        const float left = __shfl_up_sync(0xffffffffu, sum, o);
        sum += lane >= o ? left : 0.0f;
    }
    m.g[2 * lane] = sum - log_d[1];
    m.g[2 * lane + 1] = sum;
}

/* Row and column in a 16 x 8 tile of number i of this lane's four sums. */
static __device__ __forceinline__ int tile_row(int i)
{
    return ((threadIdx.x & 31) >> 2) + (i >> 1) * 8;
}

static __device__ __forceinline__ int tile_column(int i)
{
    return (threadIdx.x & 3) * 2 + (i & 1);
}

/* Of 16 rows of X (q, or k) from r0: products with k of the tokens up to theirs, and with S. */
template <typename T>
static __device__ __forceinline__ void row_products(const chunk_room<T> &m, const T *x, int r0, float (&with_k)[8][4],
                                                    float (&with_s)[4][4])
{
    const int r = (threadIdx.x & 31) >> 2, c = threadIdx.x & 3, tiles = r0 / 8 + 2;
    for (int i = 0; i < m.kd; i += 8) {
        uint32_t left[4];
        rows_a(x + r0 * m.row + i, m.row, left);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            if (j < tiles) {
                const T *k = m.k + (j * 8 + r) * m.row + i + c;
                mma_tf32(with_k[j], left, word(k[0]), word(k[4]));
            }
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float *s = m.s + (i + c) * U_ROW + j * 8 + r;
            const two_tf32 b0 = split(s[0]), b1 = split(s[4 * U_ROW]);
            mma_tf32(with_s[j], left, b0.low, b1.low);
            mma_tf32(with_s[j], left, b0.high, b1.high);
        }
    }
}

/* What P and L keep of the products of rows from r0: l[t, s] for s < t or p[t, s] for s <= t, zeros beyond in their blocks. */
template <bool IS_L, typename T>
static __device__ __forceinline__ void keep_scores(const chunk_room<T> &m, int r0, const float (&with_k)[8][4])
{
    const int tiles = r0 / 8 + 2;
#pragma unroll
    for (int j = 0; j < 8; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int t = r0 + tile_row(i), s = j * 8 + tile_column(i);
            if (j < tiles) {
                const float by = IS_L ? m.w[t] * m.k_by[t] : m.q_by[t];
                const bool counts = IS_L ? s < t : s <= t;
                (IS_L ? m.l : m.p)[t * P_ROW + s] = counts ? with_k[j][i] * by * m.k_by[s] * __expf(m.g[t] - m.g[s]) : 0.0f;
            }
        }
    }
}

/* The diagonal blocks of I + L become their inverses: a warp a block, a lane a column. */
static __device__ __forceinline__ void invert_blocks(float *l, int block)
{
    const int c = threadIdx.x & 15;
    float x[16];
    l += block * 16 * P_ROW + block * 16;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        float sum = i == c ? 1.0f : 0.0f;
#pragma unroll
        for (int s = 0; s < i; s++) {
            sum -= l[i * P_ROW + s] * x[s];
        }
        x[i] = sum;
    }
    __syncwarp();
    if ((threadIdx.x & 31) < 16) {
#pragma unroll
        for (int i = 0; i < 16; i++) {
            l[i * P_ROW + c] = x[i];
        }
    }
}

/* U = (I + L)^-1 U: a thread two columns of a row in each block of 16. */
static __device__ __forceinline__ void solve(const float *l, float *u)
{
    const int row = threadIdx.x / 16, column = threadIdx.x % 16 * 2;
    for (int b = 0; b < TOKENS; b += 16) {
        float *own = u + (b + row) * U_ROW + column;
        float2 sum = *(const float2 *)own;
#pragma unroll 8
        for (int s = 0; s < b; s++) {
            const float f = l[(b + row) * P_ROW + s];
            const float2 x = *(const float2 *)(u + s * U_ROW + column);
            sum.x -= f * x.x, sum.y -= f * x.y;
        }
        *(float2 *)own = sum;
        __syncthreads();
        sum = make_float2(0.0f, 0.0f);
#pragma unroll
        for (int s = 0; s < 16; s++) {
            const float f = l[(b + row) * P_ROW + b + s];
            const float2 x = *(const float2 *)(u + (b + s) * U_ROW + column);
            sum.x += f * x.x, sum.y += f * x.y;
        }
        __syncthreads();
        *(float2 *)own = sum;
        __syncthreads();
    }
}

/* o of 16 rows from r0 += P U. */
template <typename T> static __device__ __forceinline__ void add_inner(const chunk_room<T> &m, int r0, float (&o)[4][4])
{
    const int r = (threadIdx.x & 31) >> 2, c = threadIdx.x & 3;
    for (int i = 0; i < r0 + 16; i += 8) {
        const float *p = m.p + (r0 + r) * P_ROW + i + c;
        const two_tf32 a[4] = {split(p[0]), split(p[8 * P_ROW]), split(p[4]), split(p[8 * P_ROW + 4])};
        const uint32_t high[4] = {a[0].high, a[1].high, a[2].high, a[3].high};
        const uint32_t low[4] = {a[0].low, a[1].low, a[2].low, a[3].low};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float *u = m.u + (i + c) * U_ROW + j * 8 + r;
            const two_tf32 b0 = split(u[0]), b1 = split(u[4 * U_ROW]);
            mma_tf32(o[j], low, b0.high, b1.high);
            mma_tf32(o[j], high, b0.low, b1.low);
            mma_tf32(o[j], high, b0.high, b1.high);
        }
    }
}

/* 16 rows of S from r0, as the chunk leaves them: D_end S + K^T (rest U). */
template <typename T> static __device__ __forceinline__ void next_state(const chunk_room<T> &m, int r0)
{
    const int r = (threadIdx.x & 31) >> 2, c = threadIdx.x & 3;
    const float keeps = __expf(m.g[TOKENS - 1]);
    float sum[4][4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sum[j][i] = keeps * m.s[(r0 + tile_row(i)) * U_ROW + j * 8 + tile_column(i)];
        }
    }
    for (int t = 0; t < TOKENS; t += 8) {
        const T *k0 = m.k + (t + c) * m.row + r0 + r, *k4 = k0 + 4 * m.row;
        const uint32_t left[4] = {word(k0[0]), word(k0[8]), word(k4[0]), word(k4[8])};
        const float f0 = m.rest[t + c], f4 = m.rest[t + c + 4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float *u = m.u + (t + c) * U_ROW + j * 8 + r;
            const two_tf32 b0 = split(f0 * u[0]), b1 = split(f4 * u[4 * U_ROW]);
            mma_tf32(sum[j], left, b0.low, b1.low);
            mma_tf32(sum[j], left, b0.high, b1.high);
        }
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            m.s[(r0 + tile_row(i)) * U_ROW + j * 8 + tile_column(i)] = sum[j][i];
        }
    }
}

/* Numbers of S in shared memory and in the slot: rows beyond k_dim and columns beyond v_dim are zeros. */
template <bool STORE> static __device__ __forceinline__ void move_state(const chunk_params &a, float *s, float *state, int kd, int j0,
                                                                        bool begins)
{
    const bool along_k = a.state_k == 1; /* neighbours in memory for neighbouring threads */
    for (int i = threadIdx.x; i < kd * COLUMNS; i += 32 * WARPS) {
        const int k = along_k ? i % kd : i / COLUMNS, j = along_k ? i / kd : i % COLUMNS;
        const bool real = k < a.k_dim && j0 + j < a.v_dim;
        float *there = state + k * a.state_k + (j0 + j) * a.state_v;
        if (STORE && real) {
            *there = s[k * U_ROW + j];
        } else if (!STORE) {
            s[k * U_ROW + j] = real && !begins ? *there : 0.0f;
        }
    }
}

/* Token t of the chunk: where its column j of 32 is among the values. */
static __device__ __forceinline__ int64_t value_at(const chunk_params &a, int64_t t, int head, int j)
{
    return t * a.val_stride + (int64_t)head * a.v_dim + j;
}

/* U of 16 rows from r0 before the system is solved; with_s: k S. */
template <typename T, bool DELTA>
static __device__ __forceinline__ void first_u(const chunk_params &a, const chunk_room<T> &m, int64_t t0, int n, int r0, int head,
                                               int j0, const float (&with_s)[4][4])
{
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int t = r0 + tile_row(i), column = j * 8 + tile_column(i);
            const bool real = t < n && j0 + column < a.v_dim;
            float v = real ? to_f(((const T *)a.val)[value_at(a, t0 + t, head, j0 + column)]) : 0.0f;
            if (DELTA) {
                v -= __expf(m.g[t]) * m.k_by[t] * with_s[j][i];
            }
            m.u[t * U_ROW + column] = m.w[t] * v;
        }
    }
}

template <typename T, bool DELTA>
static __device__ __forceinline__ void store_out(const chunk_params &a, int64_t t0, int n, int r0, int head, int j0,
                                                 const float (&o)[4][4])
{
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int t = r0 + tile_row(i), column = j0 + j * 8 + tile_column(i);
            if (t < n && column < a.v_dim) {
                float v = o[j][i];
                if (!DELTA) {
                    v += a.d[head] * to_f(((const T *)a.val)[value_at(a, t0 + t, head, column)]);
                }
                ((T *)a.out)[((t0 + t) * a.n_heads + head) * a.v_dim + column] = from_f<T>(v);
            }
        }
    }
}

/* n tokens from t0. Warps 0 to 3 have 16 rows of k each, 4 to 7 those of q. */
template <typename T, bool DELTA>
static __device__ __forceinline__ void chunk(const chunk_params &a, const chunk_room<T> &m, int64_t t0, int n, int head, int key_head,
                                             int j0)
{
    const int warp = threadIdx.x >> 5, r0 = warp % 4 * 16;
    float with_k[8][4] = {}, o[4][4] = {};

    load_keys<T, DELTA>(a, m, t0, n, key_head);
    if (warp == 0) {
        load_gates<T, DELTA>(a, m, t0, n, head);
    }
    __syncthreads();
    if (threadIdx.x < TOKENS) {
        m.rest[threadIdx.x] = __expf(m.g[TOKENS - 1] - m.g[threadIdx.x]) * m.k_by[threadIdx.x];
    }
    if (warp >= 4) {
        row_products(m, m.q, r0, with_k, o);
        keep_scores<false>(m, r0, with_k);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            o[i / 4][i % 4] *= __expf(m.g[r0 + tile_row(i % 4)]) * m.q_by[r0 + tile_row(i % 4)];
        }
    } else {
        if (DELTA) {
            row_products(m, m.k, r0, with_k, o);
            keep_scores<true>(m, r0, with_k);
        }
        first_u<T, DELTA>(a, m, t0, n, r0, head, j0, o);
    }
    __syncthreads();
    if (DELTA) {
        if (warp < TOKENS / 16) {
            invert_blocks(m.l, warp);
        }
        __syncthreads();
        solve(m.l, m.u);
    }
    if (warp >= 4) {
        add_inner(m, r0, o);
        store_out<T, DELTA>(a, t0, n, r0, head, j0, o);
    }
    for (int i = warp * 16; i < m.kd; i += WARPS * 16) {
        next_state(m, i);
    }
    __syncthreads();
}

template <typename T, bool DELTA> static __global__ void __launch_bounds__(32 * WARPS, 2) chunk_kernel(chunk_params a)
{
    extern __shared__ char chunk_smem[];
    const int head = blockIdx.x / a.n_slices, j0 = blockIdx.x % a.n_slices * COLUMNS;

    pdl_wait();
    pdl_go();
    const seq_range r = range_of(a.v, blockIdx.y);
    if (r.end - r.first < RECURRENT_CHUNK_MIN) {
        return;
    }
    const chunk_room<T> m = room_of<T, DELTA>(chunk_smem, a.k_dim);
    const int key_head = a.heads_a_key > 0 ? head / a.heads_a_key : head % a.n_k_heads;
    float *state = a.state + ((int64_t)(r.slot < 0 ? 0 : r.slot) * a.n_heads + head) * a.k_dim * a.v_dim;

    move_state<false>(a, m.s, state, m.kd, j0, r.begins);
    for (int t = r.first; t < r.end; t += TOKENS) {
        chunk<T, DELTA>(a, m, t, min(TOKENS, r.end - t), head, key_head, j0);
    }
    if (r.slot >= 0) {
        move_state<true>(a, m.s, state, m.kd, j0, false);
    }
}

template <bool DELTA> static nrd_error *chunks(nrd_stream *s, const nrd_batch_view *b, nrd_dtype act, chunk_params p, bool *out_done)
{
    const size_t bytes = chunk_bytes(p.k_dim, DELTA);
    *out_done = act != NRD_DTYPE_F32 && bytes <= s->dev->smem_max;
    if (!*out_done) {
        return NULL;
    }
    p.v = view_of(b);
    p.n_slices = (p.v_dim + COLUMNS - 1) / COLUMNS;
    p.wide = p.k_dim % 16 == 0 && p.key_stride % 8 == 0 && aligned16(p.q) && aligned16(p.k);
    const dim3 grid((unsigned)(p.n_heads * p.n_slices), (unsigned)b->n_seqs), block(32 * WARPS);
    if (act == NRD_DTYPE_BF16) {
        return launch(s, chunk_kernel<bf16, DELTA>, grid, block, bytes, p);
    }
    return launch(s, chunk_kernel<f16, DELTA>, grid, block, bytes, p);
}

nrd_error *nrd_cuda_delta_chunks(nrd_stream *s, const nrd_delta_rule_args *a, bool *out_done)
{
    chunk_params p = {};
    p.q = a->q, p.k = a->k, p.val = a->v, p.rate_in = a->alpha, p.beta = a->beta;
    p.key_stride = p.val_stride = a->qkv_stride, p.gate_stride = a->gate_stride;
    p.n_heads = a->n_heads, p.n_k_heads = a->n_k_heads;
    p.heads_a_key = a->keys_by_turns ? 0 : a->n_heads / a->n_k_heads;
    p.k_dim = a->k_dim, p.v_dim = a->v_dim, p.beta_top = a->twice ? 2.0f : 1.0f;
    p.a = a->a, p.dt_bias = a->dt_bias, p.state_k = a->v_dim, p.state_v = 1, p.state = a->state, p.out = a->out;
    return chunks<true>(s, a->batch, a->act_dtype, p, out_done);
}

nrd_error *nrd_cuda_ssm_chunks(nrd_stream *s, const nrd_ssm_args *a, bool *out_done)
{
    chunk_params p = {};
    p.q = a->c, p.k = a->b, p.val = a->x, p.rate_in = a->dt;
    p.key_stride = a->bc_stride, p.val_stride = a->x_stride, p.gate_stride = a->dt_stride;
    p.n_heads = a->n_heads, p.n_k_heads = a->n_groups, p.heads_a_key = a->n_heads / a->n_groups;
    p.k_dim = a->n_state, p.v_dim = a->head_dim, p.dt_min = a->dt_min, p.dt_max = a->dt_max;
    p.a = a->a, p.dt_bias = a->dt_bias, p.d = a->d, p.state_k = 1, p.state_v = a->n_state, p.state = a->state, p.out = a->out;
    return chunks<false>(s, a->batch, a->act_dtype, p, out_done);
}
