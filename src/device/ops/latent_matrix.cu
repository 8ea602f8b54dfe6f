/* SPDX-License-Identifier: Apache-2.0
 * latent_matrix: latent attention over the cached rows on the matrix unit, where all is in 16 bits.
 * Shapes    as latent_attention.cu's kernel, whose place it takes: a block has a token, 16 of its heads and a part of its
 *           context. RANK and ROPE are those of published models.
 * Work      Q lies in registers. Tiles of 64 rows come to shared memory, two of them under way. Of a tile a warp scores 8
 *           rows with all heads (four sums, so that no product waits for the one before), then weighs two heads over all
 *           rows, then adds 1/8 of the columns of all rows: each row is read from shared memory once as K and once as V.
 *           Rows there are 16 bytes longer than they need to be: ldmatrix finds eight of them in different banks.
 * Bound     memory: 16 heads share what is read, 30 operations a byte.
 * Sources   FlashAttention-2 (Dao 2023); PTX ISA 9.0 "ldmatrix", "cp.async".
 */
#include "device/ops/attention.cuh"
#include "device/ops/hopper.cuh"
#include "device/ops/latent_attention.cuh"

enum {
    KEYS = 64,
    WARPS = 8,
    THREADS = 32 * WARPS,
    SCORE_PITCH = KEYS + 8, /* floats: lanes write two of eight rows to different banks */
    WEIGHT_PITCH = KEYS + 8,
};

template <typename T, int RANK, int ROPE> struct matrix_block {
    static constexpr bool BF = std::is_same<T, bf16>::value;
    static constexpr int WIDTH = RANK + ROPE, PITCH = WIDTH + 8, COLS = RANK / WARPS, CHUNKS = WIDTH / 8;

    struct room {
        T rows[2][KEYS][PITCH];
        float score[HEADS][SCORE_PITCH];
        T weight[HEADS][WEIGHT_PITCH];
        float top[HEADS], sum[HEADS], factor[HEADS];
        int is_there[2][KEYS];
    };

    const latent_params &a;
    room &m;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int tile = blockIdx.x, t_chunk = tile / a.head_tiles, t = a.first + t_chunk, h0 = tile % a.head_tiles * HEADS;
    int seq, end, begin, last; /* of rows; of tiles: this part's */
    uint32_t q[WIDTH / 16][4];
    float o[COLS / 8][4];

    __device__ __forceinline__ matrix_block(const latent_params &params, char *raw) : a(params), m(*(room *)raw) {}

    /* Where row warp + 8 * lane of a tile lies in the cache, in elements; below 0: there is none. Lanes 0 to 7. */
    __device__ __forceinline__ int64_t find(int i) const
    {
        const int pos = i * KEYS + warp + WARPS * lane;
        if (lane >= KEYS / WARPS || i >= last || pos >= end) {
            return -1;
        }
        const int block = a.block_table[(int64_t)seq * a.table_stride + pos / a.bt];
        return block >= 0 && block < a.n_blocks ? block * a.block_elems + (int64_t)(pos % a.bt) * WIDTH : -1;
    }

    /* Starts copies of a tile to a slot; `at` as find gave it. */
    __device__ __forceinline__ void bring(int slot, int64_t at) const
    {
        if (lane < KEYS / WARPS) {
            m.is_there[slot][warp + WARPS * lane] = at >= 0;
        }
#pragma unroll
        for (int k = 0; k < KEYS / WARPS; k++) {
            const int64_t from = __shfl_sync(0xffffffffu, at, k);
            const T *row = (const T *)a.cache + (from >= 0 ? from : 0);
            const uint32_t to = smem_u32(m.rows[slot][warp + WARPS * k]);
#pragma unroll
            for (int c = 0; c < CHUNKS; c += 32) {
                if (CHUNKS - c >= 32 || lane < CHUNKS - c) {
                    copy16_or_zero(to + (uint32_t)(c + lane) * 16, row + (c + lane) * 8, from >= 0);
                }
            }
        }
    }

    /* Q of the block's heads, scaled, into registers by way of slot 1. */
    __device__ __forceinline__ void load_q()
    {
        for (int i = threadIdx.x; i < HEADS * WIDTH; i += THREADS) {
            const int h = h0 + i / WIDTH, d = i % WIDTH;
            float x = 0.0f;
            if (h < a.n_heads && d < RANK) {
                x = a.latent[((int64_t)t_chunk * a.n_heads + h) * RANK + d];
            } else if (h < a.n_heads) {
                x = to_f(((const T *)a.q)[((int64_t)t * a.n_heads + h) * (a.nope + ROPE) + a.nope + d - RANK]);
            }
            m.rows[1][i / WIDTH][d] = from_f<T>(x * a.scale);
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < WIDTH / 16; k++) {
            ldmatrix4(q[k], smem_u32(&m.rows[1][lane % 16][k * 16 + lane / 16 * 8]));
        }
        __syncthreads();
    }

    __device__ __forceinline__ void score(int slot) const
    {
        float s[4][4] = {};
        const uint32_t at = smem_u32(&m.rows[slot][warp * 8 + lane % 8][lane / 8 * 8]);

#pragma unroll
        for (int k = 0; k < WIDTH / 32; k++) {
            uint32_t b[4];
            ldmatrix4(b, at + k * 64);
            float *s0 = s[k % 2 * 2], *s1 = s[k % 2 * 2 + 1];
            mma16<BF>(s0, q[2 * k][0], q[2 * k][1], q[2 * k][2], q[2 * k][3], b[0], b[1]);
            mma16<BF>(s1, q[2 * k + 1][0], q[2 * k + 1][1], q[2 * k + 1][2], q[2 * k + 1][3], b[2], b[3]);
        }
        const int row = lane / 4, col = warp * 8 + lane % 4 * 2;
        *(float2 *)&m.score[row][col] = make_float2(s[0][0] + s[1][0] + s[2][0] + s[3][0], s[0][1] + s[1][1] + s[2][1] + s[3][1]);
        *(float2 *)&m.score[row + 8][col] =
            make_float2(s[0][2] + s[1][2] + s[2][2] + s[3][2], s[0][3] + s[1][3] + s[2][3] + s[3][3]);
    }

    /* Two heads a warp, two rows a lane. */
    __device__ __forceinline__ void weigh(int i, int slot) const
    {
        bool seen[2];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const int r = lane + 32 * k, pos = i * KEYS + r;
            seen[k] = pos < end && m.is_there[slot][r] && sees(a, seq, t, pos);
        }
#pragma unroll
        for (int h = 2 * warp; h < 2 * warp + 2; h++) {
            const float x0 = seen[0] ? m.score[h][lane] : -INFINITY, x1 = seen[1] ? m.score[h][lane + 32] : -INFINITY;
            const float before = m.top[h], most = fmaxf(before, warp_reduce<op_max>(fmaxf(x0, x1)));
            const T e0 = from_f<T>(most == -INFINITY ? 0.0f : __expf(x0 - most));
            const T e1 = from_f<T>(most == -INFINITY ? 0.0f : __expf(x1 - most));
            const float f = most == -INFINITY ? 1.0f : __expf(before - most), all = warp_reduce<op_sum>(to_f(e0) + to_f(e1));
            m.weight[h][lane] = e0;
            m.weight[h][lane + 32] = e1;
            __syncwarp();
            if (lane == 0) {
                m.top[h] = most;
                m.sum[h] = m.sum[h] * f + all;
                m.factor[h] = f;
            }
        }
    }

    /* The warp's columns of the sums. */
    __device__ __forceinline__ void add(int slot)
    {
        const int half = lane / 8 % 2 * 8 + lane % 8, col = lane / 16 * 8;
        const float f0 = m.factor[lane / 4], f1 = m.factor[lane / 4 + 8];

#pragma unroll
        for (int j = 0; j < COLS / 8; j++) {
            o[j][0] *= f0, o[j][1] *= f0, o[j][2] *= f1, o[j][3] *= f1;
        }
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) {
            uint32_t w[4];
            ldmatrix4(w, smem_u32(&m.weight[half][k * 16 + col]));
            const uint32_t at = smem_u32(&m.rows[slot][k * 16 + half][warp * COLS + col]);
#pragma unroll
            for (int j = 0; j < COLS / 8; j += 2) {
                uint32_t v[4];
                ldmatrix4_t(v, at + j * 16);
                mma16<BF>(o[j], w[0], w[1], w[2], w[3], v[0], v[1]);
                mma16<BF>(o[j + 1], w[0], w[1], w[2], w[3], v[2], v[3]);
            }
        }
    }

    /* The sums of a head, of the lane's columns. */
    __device__ __forceinline__ void put(int h, int at) const
    {
        const float sum = m.sum[h], by = sum > 0.0f ? 1.0f / sum : 0.0f;
        float *part = a.parts ? a.parts + (((int64_t)tile * a.n_parts + blockIdx.y) * HEADS + h) * (RANK + 2) : NULL;

        if (!part && h0 + h >= a.n_heads) {
            return;
        }
        float *to = (part ? part : a.latent + ((int64_t)t_chunk * a.n_heads + h0 + h) * RANK) + warp * COLS + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < COLS / 8; j++) {
            const float x = o[j][at], y = o[j][at + 1];
            *(float2 *)(to + j * 8) = part ? make_float2(x, y) : make_float2(x * by, y * by);
        }
        if (part && warp == 0 && lane % 4 == 0) {
            part[RANK] = m.top[h];
            part[RANK + 1] = sum;
        }
    }

    __device__ __forceinline__ void run()
    {
        seq = a.token_seq[t];
        const int ctx = a.ctx_len[seq];
        end = a.tree ? ctx : min(ctx, a.positions[t] + 1);
        const int n_tiles = (end + KEYS - 1) / KEYS, each = (n_tiles + a.n_parts - 1) / a.n_parts;
        begin = blockIdx.y * each;
        last = min(n_tiles, begin + each);
#pragma unroll
        for (int j = 0; j < COLS / 8; j++) {
            o[j][0] = o[j][1] = o[j][2] = o[j][3] = 0.0f;
        }
        if (threadIdx.x < HEADS) {
            m.top[threadIdx.x] = -INFINITY;
            m.sum[threadIdx.x] = 0.0f;
        }
        if (begin < last) {
            walk();
        } else {
            __syncthreads();
        }
        put(lane / 4, 0);
        put(lane / 4 + 8, 2);
    }

    __device__ __forceinline__ void walk()
    {
        /* slot 1 holds q first: the first tile goes to slot 0, whatever its number is */
        const int first = begin;
        bring(0, find(first));
        copies_end_group();
        load_q();
        bring(1, find(first + 1));
        copies_end_group();
        int64_t at = find(first + 2);
        for (int i = first; i < last; i++) {
            const int slot = (i - first) % 2;
            copies_wait<1>();
            __syncthreads();
            score(slot);
            __syncthreads();
            weigh(i, slot);
            __syncthreads();
            add(slot);
            __syncthreads(); /* the slot is free */
            bring(slot, at);
            copies_end_group();
            at = find(i + 3);
        }
        copies_wait<0>();
    }
};

template <typename T, int RANK, int ROPE>
static __global__ void __launch_bounds__(THREADS, 1) latent_matrix_kernel(const __grid_constant__ latent_params a)
{
    extern __shared__ float4 raw[];

    pdl_wait();
    pdl_go();
    matrix_block<T, RANK, ROPE>(a, (char *)raw).run();
}

template <int RANK, int ROPE> static nrd_error *launch_sizes(nrd_stream *s, const latent_params &p, int tiles)
{
    const dim3 grid((unsigned)tiles, (unsigned)p.n_parts), threads(THREADS);

    return p.kv == NRD_DTYPE_BF16
               ? launch(s, latent_matrix_kernel<bf16, RANK, ROPE>, grid, threads, sizeof(typename matrix_block<bf16, RANK, ROPE>::room), p)
               : launch(s, latent_matrix_kernel<f16, RANK, ROPE>, grid, threads, sizeof(typename matrix_block<f16, RANK, ROPE>::room), p);
}

bool nrd_cuda_latent_matrix_fits(const nrd_stream *s, const latent_params &p)
{
    const size_t room = p.rank == 512 && p.rope == 64   ? sizeof(matrix_block<bf16, 512, 64>::room)
                        : p.rank == 256 && p.rope == 32 ? sizeof(matrix_block<bf16, 256, 32>::room)
                                                        : SIZE_MAX;

    return p.act == p.kv && (p.kv == NRD_DTYPE_BF16 || p.kv == NRD_DTYPE_F16) && p.vectors && room <= s->dev->smem_max;
}

nrd_error *nrd_cuda_latent_matrix(nrd_stream *s, const latent_params &p, int tiles)
{
    return p.rank == 512 ? launch_sizes<512, 64>(s, p, tiles) : launch_sizes<256, 32>(s, p, tiles);
}
