/* SPDX-License-Identifier: Apache-2.0
 * attention_prefill_hopper: the prefill kernel's work on Hopper, where copies, products and softmax
 * overlap.
 * Shapes    rows = new tokens x heads of a KV head; head_dim 64 or 128; cache bf16, fp16 or F8 (turned
 *           into fp16 on its way to shared memory) of the activations' type; blocks of 64 tokens.
 *           Ragged batches, window, sinks, softcap.
 * Work      128 rows of a (sequence, KV head) are a piece of work, cut as attention_prefill.cu cuts them.
 *           One block a multiprocessor takes pieces, a sequence's longest first, until none is left. Three
 *           warpgroups: one finds the pieces and brings their tiles of 64 tokens (a block of the cache is
 *           the tile: two bulk copies; F8 through its registers, two tiles ahead) into a ring of four,
 *           ahead into the next piece; two compute 64 rows each. A computing warpgroup starts the next
 *           tile's S before this one's O, so that its softmax runs beside a product; the two drift apart
 *           by themselves and share the tensor cores.
 * Bound     tensor cores: 4 * rows * context / 2 * head_dim operations.
 * Measured  NVIDIA H200, one sequence of 8,192 tokens, 32 heads over 8 x 128, causal: bf16 505, F8
 *           cache 482 TFLOP/s; 2,048 tokens: 422 and 380, where a block a piece reached 351 and 302
 *           (2026-11-21, make gpu-bench).
 * Sources   FlashAttention-3 (Shah et al. 2024).
 */
#include "device/ops/attention.cuh"
#include "device/ops/hopper.cuh"

enum { H_ROWS = 128, H_TILE = 64, H_STAGES = 4, H_THREADS = 384, H_FRONT = 1024 };
enum { H_COUNTER = 0, H_DONE = 1 }; /* of the stream's counters: the next piece, blocks that ended */

struct hopper_work {
    int seq, q0, row0, n_rows, first_pos, last_pos, ctx;
    int lo, sinks, n_tiles, kvh;
};

/* In front of the ring. Barriers of a tile: brought, used; of a piece: found, taken. */
struct hopper_front {
    uint64_t full[H_STAGES], empty[H_STAGES], found[2], taken[2], alone;
    int next[2];
    hopper_work work[2];
};
static_assert(sizeof(hopper_front) <= H_FRONT, "the ring follows");

static __device__ __forceinline__ bool find_work(const attn_params &a, int s0, int slot, hopper_work *w)
{
    const int t0 = s0 > 0 ? s0 : 0; /* sequences before s0 have one token each */
    int lo_s = s0, hi_s = a.n_seqs - 1;

    while (lo_s < hi_s) { /* the last sequence whose first slot is not behind ours */
        const int mid = (lo_s + hi_s + 1) / 2;
        if ((int)((int64_t)(a.q_start[mid] - t0) * a.group / H_ROWS) + mid - s0 <= slot) {
            lo_s = mid;
        } else {
            hi_s = mid - 1;
        }
    }
    const int q0 = a.q_start[lo_s], rows = (a.q_start[lo_s + 1] - q0) * a.group;
    const int row0 = (slot - (int)((int64_t)(q0 - t0) * a.group / H_ROWS) - (lo_s - s0)) * H_ROWS;
    if (row0 < 0 || row0 >= rows || rows <= (s0 > 0 ? 0 : (int)DECODE_ROWS)) {
        return false;
    }
    w->seq = lo_s;
    w->q0 = q0;
    w->row0 = row0;
    w->n_rows = rows - row0 < H_ROWS ? rows - row0 : H_ROWS;
    w->ctx = a.ctx_len[lo_s];
    w->first_pos = a.positions[q0 + row0 / a.group];
    w->last_pos = a.positions[q0 + (row0 + w->n_rows - 1) / a.group];
    w->lo = w->sinks = 0;
    if (a.window > 0 && w->first_pos - a.window + 1 > 0) {
        w->lo = (w->first_pos - a.window + 1) / H_TILE;
        w->sinks = (a.n_sink + H_TILE - 1) / H_TILE;
        w->sinks = w->sinks < w->lo ? w->sinks : w->lo;
    }
    const int end = w->last_pos + 1 < w->ctx ? w->last_pos + 1 : w->ctx;
    w->n_tiles = w->sinks + (end + H_TILE - 1) / H_TILE - w->lo;
    return true;
}

static __device__ __forceinline__ int tile_of(const hopper_work &w, int i) /* its block in the table */
{
    return i < w.sinks ? i : w.lo + i - w.sinks;
}

static __device__ __forceinline__ void named_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Tiles of one piece; the ring has had t0 before. */
template <typename C, int HD>
static __device__ __forceinline__ void bring(const attn_params &a, const hopper_work &w, char *raw, int t0,
                                             uint32_t *alone_parity)
{
    constexpr bool F8C = sizeof(C) == 1;
    constexpr int ELEMS = H_TILE * HD, BYTES = ELEMS * 2, MINE = ELEMS / 16 / 128; /* F8 pieces */
    hopper_front *front = (hopper_front *)raw;
    const int tid = (int)threadIdx.x;
    const uint32_t full = smem_u32(front->full), empty = smem_u32(front->empty);
    const uint32_t alone = smem_u32(&front->alone);
    const int32_t *table = a.block_table + (int64_t)w.seq * a.table_stride;
    const C *cache = (const C *)a.cache + (int64_t)w.kvh * ELEMS;
    const int64_t v_off = (int64_t)a.g.n_kv * ELEMS;
    uint4 kx[2][F8C ? MINE : 1], vx[2][F8C ? MINE : 1];

    auto block_at = [&](int i) { return i < w.n_tiles ? table[tile_of(w, i)] : -1; };
    auto ask = [&](int block, uint4 *k, uint4 *v) { /* F8 */
        const uint4 *src = (const uint4 *)(cache + (int64_t)(block < 0 ? 0 : block) * a.g.block_elems);
        const uint4 *src_v = (const uint4 *)((const C *)src + v_off);
#pragma unroll
        for (int x = 0; x < MINE; x++) {
            k[x] = v[x] = make_uint4(0, 0, 0, 0);
            if (block >= 0) {
                k[x] = __ldg(src + tid + x * 128);
                v[x] = __ldg(src_v + tid + x * 128);
            }
        }
    };
    auto clear_v = [&](uint16_t *vs, int from) { /* tokens from `from` on may be anything */
        for (int x = tid; x < (H_TILE - from) * HD; x += 128) {
            const int tok = from + x / HD, d = x % HD;
            vs[((tok / 8) * HD + d) * 8 + tok % 8] = 0;
        }
    };
    auto give = [&](int i, uint4 *k, uint4 *v, int *ahead) { /* ahead: the block of tile i + 2 */
        const int slot = (t0 + i) % H_STAGES, behind = w.ctx - tile_of(w, i) * H_TILE;
        uint16_t *ks = (uint16_t *)(raw + H_FRONT + (size_t)slot * 2 * BYTES), *vs = ks + ELEMS;
        if (t0 + i >= H_STAGES) {
            mbar_wait(empty + slot * 8, (uint32_t)((t0 + i) / H_STAGES - 1) & 1);
        }
        if constexpr (F8C) {
#pragma unroll
            for (int x = 0; x < MINE; x++) {
                const int p = tid + x * 128; /* K [HD / 16][64 tokens], V [64 / 16][HD] pieces of 16 */
                uint4 first, second;
                f8_to_f16(k[x].x, &first.x, &first.y);
                f8_to_f16(k[x].y, &first.z, &first.w);
                f8_to_f16(k[x].z, &second.x, &second.y);
                f8_to_f16(k[x].w, &second.z, &second.w);
                uint4 *to = (uint4 *)ks + (p / H_TILE) * 2 * H_TILE + p % H_TILE;
                to[0] = first;
                to[H_TILE] = second;
                f8_to_f16(v[x].x, &first.x, &first.y);
                f8_to_f16(v[x].y, &first.z, &first.w);
                f8_to_f16(v[x].z, &second.x, &second.y);
                f8_to_f16(v[x].w, &second.z, &second.w);
                to = (uint4 *)vs + (p / HD) * 2 * HD + p % HD;
                to[0] = first;
                to[HD] = second;
            }
            if (behind < H_TILE) {
                named_sync(1, 128);
                clear_v(vs, behind);
            }
            fence_async_proxy();
            named_sync(1, 128);
            if (tid == 0) {
                mbar_arrive(full + slot * 8);
            }
            ask(*ahead, k, v);
            *ahead = block_at(i + 4);
        } else {
            const int block = block_at(i);
            const C *src = cache + (int64_t)(block < 0 ? 0 : block) * a.g.block_elems;
            if (behind >= H_TILE && block >= 0) {
                if (tid == 0) {
                    mbar_expect(full + slot * 8, 2 * BYTES);
                    bulk_copy(smem_u32(ks), src, BYTES, full + slot * 8);
                    bulk_copy(smem_u32(vs), src + v_off, BYTES, full + slot * 8);
                }
                return;
            }
            if (block >= 0) {
                if (tid == 0) {
                    mbar_expect(alone, 2 * BYTES);
                    bulk_copy(smem_u32(ks), src, BYTES, alone);
                    bulk_copy(smem_u32(vs), src + v_off, BYTES, alone);
                }
                mbar_wait(alone, *alone_parity);
                *alone_parity ^= 1;
            }
            clear_v(vs, block < 0 ? 0 : behind);
            fence_async_proxy();
            named_sync(1, 128);
            if (tid == 0) {
                mbar_arrive(full + slot * 8);
            }
        }
    };

    int even = -1, odd = -1;
    if constexpr (F8C) {
        ask(block_at(0), kx[0], vx[0]);
        ask(block_at(1), kx[1], vx[1]);
        even = block_at(2);
        odd = block_at(3);
    }
    for (int i = 0; i < w.n_tiles; i += 2) {
        give(i, kx[0], vx[0], &even);
        if (i + 1 < w.n_tiles) {
            give(i + 1, kx[1], vx[1], &odd);
        }
    }
}

/* Finds pieces and brings their tiles until none is left; a piece of no tiles tells the others so. */
template <typename C, int HD>
static __device__ __forceinline__ void bring_all(const attn_params &a, char *raw, int s0, int n_slots,
                                                 int *counters)
{
    hopper_front *front = (hopper_front *)raw;
    const int tid = (int)threadIdx.x, n_pieces = n_slots * a.g.n_kv;
    uint32_t alone_parity = 0;

    for (int asked = 0, t0 = 0, n = 0;; asked++) {
        if (tid == 0) {
            front->next[asked & 1] =
                asked == 0 ? (int)blockIdx.x : (int)gridDim.x + atomicAdd(counters + H_COUNTER, 1);
        }
        named_sync(1, 128);
        const int piece = front->next[asked & 1];
        hopper_work w = {};
        if (piece < n_pieces && !find_work(a, s0, n_slots - 1 - piece / a.g.n_kv, &w)) {
            continue;
        }
        w.kvh = piece % a.g.n_kv;
        if (tid == 0) {
            if (n >= 2) {
                mbar_wait(smem_u32(front->taken + (n & 1)), (uint32_t)(n / 2 - 1) & 1);
            }
            front->work[n & 1] = w;
            mbar_arrive(smem_u32(front->found + (n & 1)));
        }
        if (piece >= n_pieces) {
            break;
        }
        named_sync(1, 128);
        bring<C, HD>(a, front->work[n & 1], raw, t0, &alone_parity);
        t0 += front->work[n & 1].n_tiles;
        n++;
    }
    if (tid == 0 && atomicAdd(counters + H_DONE, 1) == (int)gridDim.x - 1) {
        counters[H_COUNTER] = counters[H_DONE] = 0; /* as the next kernel wants them */
    }
}

template <typename T, bool BF, int HD>
static __device__ __forceinline__ void compute(const attn_params &a, const hopper_work &w, char *raw,
                                               int t0)
{
    constexpr int ND = HD / 8, NK = HD / 16, NJ = H_TILE / 8, BYTES = H_TILE * HD * 2;
    const int wg = (int)threadIdx.x / 128 - 1, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int first_row = wg * 64 + (int)(threadIdx.x / 32 % 4) * 16;
    hopper_front *front = (hopper_front *)raw;
    const uint32_t full = smem_u32(front->full), empty = smem_u32(front->empty);
    const uint32_t ring = smem_u32(raw) + H_FRONT;
    const int kvh = w.kvh;
    uint32_t q[NK][4], pr[2][NJ];
    int pos[2];

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int r = first_row + g + 8 * h;
        const bool in = r < w.n_rows;
        const int tok = w.q0 + (w.row0 + (in ? r : 0)) / a.group;
        const int head = kvh * a.group + (w.row0 + (in ? r : 0)) % a.group;
        const T *src = (const T *)a.q + tok * a.q_stride + (int64_t)head * HD;
        pos[h] = a.positions[tok];
#pragma unroll
        for (int k = 0; k < NK; k++) {
#pragma unroll
            for (int s = 0; s < 2; s++) {
                const uint32_t two = *(const uint32_t *)(src + 16 * k + 8 * s + 2 * t);
                if constexpr (std::is_same<T, bf16>::value == BF) {
                    q[k][2 * s + h] = in ? two : 0;
                } else {
                    T e[2];
                    memcpy(e, &two, sizeof e);
                    q[k][2 * s + h] = in ? pack2<BF>(to_f(e[0]), to_f(e[1])) : 0;
                }
            }
        }
    }
    float o[ND][4], s[NJ][4], m_run[2] = {-INFINITY, -INFINITY}, l_run[2] = {0.0f, 0.0f}, fix[2];
#pragma unroll
    for (int n = 0; n < ND; n++) {
        o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0.0f;
    }
    const float log2e = 1.4426950408889634f;
    const bool capped = a.softcap > 0.0f;
    const float s_mul = a.scale * a.k_scale * (capped ? 1.0f / a.softcap : log2e);

    auto start_s = [&](int i) {
        const int at = t0 + i;
        const uint32_t ks = ring + (uint32_t)(at % H_STAGES) * 2 * BYTES;
        mbar_wait(full + at % H_STAGES * 8, (uint32_t)(at / H_STAGES) & 1);
#pragma unroll
        for (int j = 0; j < NJ; j++) {
            s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0.0f;
        }
        wg_hold<NJ * 4>(&s[0][0]);
        wg_fence();
        const uint64_t dk = desc_plain(ks, H_TILE * 16, 128);
#pragma unroll
        for (int k = 0; k < NK; k++) { /* two chunks of 8 dimensions a step */
            wgmma_rs<BF, H_TILE>(&s[0][0], q[k][0], q[k][1], q[k][2], q[k][3],
                                 dk + k * (2 * H_TILE * 16 >> 4));
        }
        wg_commit();
    };
    auto start_o = [&](int i) {
        const uint32_t vs = ring + (uint32_t)((t0 + i) % H_STAGES) * 2 * BYTES + BYTES;
        const uint64_t dv = desc_plain(vs, HD * 16, 128);
        wg_hold<ND * 4>(&o[0][0]);
        wg_fence();
#pragma unroll
        for (int j = 0; j < NJ; j += 2) { /* two units of 8 tokens a step */
            wgmma_rs<BF, HD>(&o[0][0], pr[0][j], pr[1][j], pr[0][j + 1], pr[1][j + 1],
                             dv + j * (HD * 16 >> 4));
        }
        wg_commit();
    };
    /* s becomes weights; what o must be multiplied by is in fix */
    auto softmax = [&](int i) {
        const int tok0 = tile_of(w, i) * H_TILE;
        const bool edge = tok0 + H_TILE > w.first_pos + 1 || a.window > 0;
        float mul = s_mul;
        if (capped) {
            mul = 1.0f;
#pragma unroll
            for (int j = 0; j < NJ; j++) {
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    s[j][c] = a.softcap * log2e * tanhf(s[j][c] * s_mul);
                }
            }
        }
        if (edge) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
#pragma unroll
                for (int j = 0; j < NJ; j++) {
#pragma unroll
                    for (int c = 0; c < 2; c++) {
                        const int tok = tok0 + 8 * j + 2 * t + c;
                        const bool seen =
                            tok <= pos[h] && tok < w.ctx &&
                            (a.window <= 0 || tok > pos[h] - a.window || tok < a.n_sink);
                        s[j][2 * h + c] = seen ? s[j][2 * h + c] : -INFINITY;
                    }
                }
            }
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float top = -INFINITY;
#pragma unroll
            for (int j = 0; j < NJ; j++) {
                top = fmaxf(top, fmaxf(s[j][2 * h], s[j][2 * h + 1]));
            }
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
            const float m_new = fmaxf(m_run[h], top * mul);
            const float m_use = m_new == -INFINITY ? 0.0f : m_new;
            fix[h] = fast_exp2(m_run[h] - m_use);
            m_run[h] = m_new;
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < NJ; j++) {
                s[j][2 * h] = fast_exp2(fmaf(s[j][2 * h], mul, -m_use));
                s[j][2 * h + 1] = fast_exp2(fmaf(s[j][2 * h + 1], mul, -m_use));
                sum += s[j][2 * h] + s[j][2 * h + 1];
            }
            l_run[h] = l_run[h] * fix[h] + sum;
        }
    };
    auto take_weights = [&]() {
#pragma unroll
        for (int j = 0; j < NJ; j++) {
            pr[0][j] = pack2<BF>(s[j][0], s[j][1]);
            pr[1][j] = pack2<BF>(s[j][2], s[j][3]);
        }
    };
    auto release = [&](int i) {
        if (threadIdx.x % 128 == 0) {
            mbar_arrive(empty + (t0 + i) % H_STAGES * 8);
        }
    };

    start_s(0);
    wg_wait<0>();
    wg_hold<NJ * 4>(&s[0][0]);
    softmax(0);
    take_weights();
    for (int i = 1; i < w.n_tiles; i++) {
        start_s(i);
        start_o(i - 1);
        wg_wait<1>();
        wg_hold<NJ * 4>(&s[0][0]);
        softmax(i);
        wg_wait<0>();
        wg_hold<ND * 4>(&o[0][0]);
        release(i - 1);
        take_weights();
#pragma unroll
        for (int n = 0; n < ND; n++) {
            o[n][0] *= fix[0];
            o[n][1] *= fix[0];
            o[n][2] *= fix[1];
            o[n][3] *= fix[1];
        }
    }
    start_o(w.n_tiles - 1);
    wg_wait<0>();
    wg_hold<ND * 4>(&o[0][0]);
    release(w.n_tiles - 1);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        l_run[h] += __shfl_xor_sync(0xffffffffu, l_run[h], 1);
        l_run[h] += __shfl_xor_sync(0xffffffffu, l_run[h], 2);
        const float inv = l_run[h] > 0.0f ? a.v_scale / l_run[h] : 0.0f;
        const int r = first_row + g + 8 * h;
        if (r < w.n_rows) {
            const int64_t tok = w.q0 + (w.row0 + r) / a.group;
            const int64_t head = kvh * a.group + (w.row0 + r) % a.group;
#pragma unroll
            for (int n = 0; n < ND; n++) {
                attn_store2(a, (tok * a.n_heads + head) * HD + 8 * n + 2 * t, o[n][2 * h] * inv,
                            o[n][2 * h + 1] * inv);
            }
        }
    }
}

template <typename T, typename C, int HD>
static __global__ void __launch_bounds__(H_THREADS, 1)
    attention_prefill_hopper_kernel(attn_params a, int s0, int n_slots, int *counters)
{
#ifdef NRD_SM90A
    extern __shared__ __align__(1024) char raw[];
    hopper_front *front = (hopper_front *)raw;

    if (threadIdx.x == 0) {
        for (int i = 0; i < H_STAGES; i++) {
            mbar_init(smem_u32(front->full + i), 1);
            mbar_init(smem_u32(front->empty + i), 2);
        }
        for (int i = 0; i < 2; i++) {
            mbar_init(smem_u32(front->found + i), 1);
            mbar_init(smem_u32(front->taken + i), 2);
        }
        mbar_init(smem_u32(&front->alone), 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    pdl_wait();
    pdl_go();
    if (threadIdx.x < 128) {
        /* 104 + 2 x 200 = 3 x 168, what the launch took */
        asm volatile("setmaxnreg.dec.sync.aligned.u32 104;");
        bring_all<C, HD>(a, raw, s0, n_slots, counters);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 200;");
        for (int n = 0, t0 = 0;; n++) {
            mbar_wait(smem_u32(front->found + (n & 1)), (uint32_t)(n / 2) & 1);
            const hopper_work w = front->work[n & 1];
            named_sync(2 + (int)threadIdx.x / 128, 128); /* all of this warpgroup have read it */
            if (threadIdx.x % 128 == 0) {
                mbar_arrive(smem_u32(front->taken + (n & 1)));
            }
            if (w.n_tiles == 0) {
                break;
            }
            compute<T, std::is_same<C, bf16>::value, HD>(a, w, raw, t0);
            t0 += w.n_tiles;
        }
    }
#else
    (void)a, (void)s0, (void)n_slots, (void)counters;
#endif
}

template <typename T, typename C, int HD>
static nrd_error *hopper_launch(nrd_stream *s, const attn_params &p, int n_tokens, int s0,
                                int n_blocks)
{
    const int slots = (int)((int64_t)(n_tokens - s0) * p.group / H_ROWS) + (p.n_seqs - s0);
    const int64_t pieces = (int64_t)slots * p.g.n_kv;
    const size_t smem = H_FRONT + (size_t)H_STAGES * 2 * H_TILE * HD * 2;
    NRD_TRY(nrd_cuda_stream_scratch(s)); /* the counters */
    return launch(s, attention_prefill_hopper_kernel<T, C, HD>,
                  dim3((unsigned)(pieces < n_blocks ? pieces : n_blocks)), dim3(H_THREADS), smem, p, s0,
                  slots, s->counters);
}

template <typename T, typename C>
static nrd_error *hopper_dim(nrd_stream *s, const attn_params &p, int n_tokens, int s0, int n_blocks)
{
    return p.g.hd == 64 ? hopper_launch<T, C, 64>(s, p, n_tokens, s0, n_blocks)
                        : hopper_launch<T, C, 128>(s, p, n_tokens, s0, n_blocks);
}

nrd_error *nrd_cuda_attention_prefill_hopper(nrd_stream *s, const nrd_attention_args *a, void *out,
                                    nrd_dtype o_dtype, int n_single, int n_blocks, bool *done)
{
    const attn_params p = attn_params_of(a, out, o_dtype);
    const int n = a->batch->n_tokens;

    *done = false;
    if (!s->dev->hopper || a->kv.block_tokens != H_TILE || (p.g.hd != 64 && p.g.hd != 128) ||
        !aligned16(a->kv.base)) {
        return NULL;
    }
    n_blocks = n_blocks > 0 ? n_blocks : s->dev->n_sm;
    *done = true;
    if (a->act_dtype == NRD_DTYPE_BF16 && a->kv.dtype == NRD_DTYPE_BF16) {
        return hopper_dim<bf16, bf16>(s, p, n, n_single, n_blocks);
    }
    if (a->act_dtype == NRD_DTYPE_BF16 && a->kv.dtype == NRD_DTYPE_F8_E4M3) {
        return hopper_dim<bf16, f8>(s, p, n, n_single, n_blocks);
    }
    if (a->act_dtype == NRD_DTYPE_F16 && a->kv.dtype == NRD_DTYPE_F16) {
        return hopper_dim<f16, f16>(s, p, n, n_single, n_blocks);
    }
    if (a->act_dtype == NRD_DTYPE_F16 && a->kv.dtype == NRD_DTYPE_F8_E4M3) {
        return hopper_dim<f16, f8>(s, p, n, n_single, n_blocks);
    }
    *done = false;
    return NULL;
}
