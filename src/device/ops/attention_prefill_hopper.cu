/* SPDX-License-Identifier: Apache-2.0
 * attention_prefill_hopper: the prefill kernel's work on Hopper, where copies, products and softmax
 * overlap.
 * Shapes    rows = new tokens x heads of a KV head; head_dim 64, 96 or 128; cache bf16 or fp16, the activations'
 *           type, int8 (turned into fp16 on its way to the ring) or F8 (likewise, or multiplied as it is); blocks of 64 tokens.
 *           Ragged batches, window, sinks, softcap.
 * Work      128 rows of a (sequence, KV head) are a piece of work, cut as attention_prefill.cu cuts them; of
 *           short prompts several that read the same tiles, brought once, are an item.
 *           One block a multiprocessor takes items, a sequence's longest first, until none is left. Three
 *           warpgroups: one (attention_prefill_hopper.cuh) finds the pieces and brings their rows of Q and
 *           their tiles of 64 tokens (a block of the cache is the tile: two bulk copies) into a ring of
 *           four, ahead into the next piece; two compute 64 rows each. While a computing warpgroup's
 *           softmax of tile i runs, its products for O of tile i - 1 and S of tile i + 1 are under way.
 * Bound     tensor cores: 4 * rows * context / 2 * head_dim operations; the card's power from 8,192
 *           tokens on (690 W, 1.5 to 1.65 GHz).
 * Measured  NVIDIA H100, one sequence, 32 heads over 8 x 128, causal: 8,192 tokens bf16 676, F8 cache 586, F8 as it
 *           is 711 TFLOP/s; 2,048: 445, 408 and 450 (2026-11-28, docs/performance/gpu-kernels.md).
 * Tried     S of tile i + 1 only behind the softmax of tile i: 12 and 8 % slower. F8 one tile ahead in registers: 2 %
 *           slower, and 20 % beside kernels that load memory fully. O's last product beside the next piece's first
 *           softmax: the compiler serializes or spills. Exponentials made to end before the wait for the products: 2 to
 *           3 % slower. A loop of whole tiles without the mask's code: bf16 9 % slower. Warpgroups that start their
 *           products by turns: of 20,000 tokens bf16 3 % faster, F8 and F8 as it is 3 % slower (H200, beside other work).
 *           The next piece found while this one's tiles come, the first before the wait for the kernel in front: 16 x 128 tokens
 *           31.6 -> 36.4 us, 2,048 81.8 -> 95.5.
 * Sources   FlashAttention-3 (Shah et al. 2024); sums promoted as in DeepSeek-V3 (2024).
 */
#include "device/ops/attention_prefill_hopper.cuh"

/* A computing warpgroup: 64 rows of the piece. KIND: what it multiplies, F8 or 16-bit numbers. */
template <typename T, nrd_dtype KIND, int HD> struct hopper_rows {
    static constexpr bool BF = KIND == NRD_DTYPE_BF16, F8 = KIND == NRD_DTYPE_F8_E4M3;
    static constexpr int ND = HD / 8, NK = HD / 16, NJ = H_TILE / 8;
    static constexpr float LOG2E = 1.4426950408889634f;
    /* Weights are at most 2^(SLACK + RAISE): o is multiplied anew only where a row's maximum has grown by more than
     * SLACK. F8 ends at 448 and has nothing between 0 and 2^-9, so that there the largest weight is raised. */
    static constexpr float SLACK = F8 ? 2.0f : 8.0f, RAISE = F8 ? 6.0f : 0.0f;
    /* F8: the tensor cores keep some 14 bits of a sum. It is added to o in float32 after so many tiles. */
    static constexpr int PROMOTE = 8;
    static constexpr int NP = F8 ? NJ : NJ * 2; /* registers of a tile's weights */
    using sizes = hopper_sizes<HD, F8 ? 1 : 2>;

    const attn_params &a;
    hopper_front *front;
    const uint32_t base;
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int first_row = (int)(threadIdx.x / 128 - 1) * 64 + (int)(threadIdx.x / 32 % 4) * 16;
    const bool capped;
    const float s_mul;
    float scale[2], mul[2]; /* of a row of Q and its keys; of its scores in the exponent */
    int cur = 0, next_n = 0; /* the piece; pieces whose Q was taken */
    int at = 0;          /* tiles before this one */
    int i, n_tiles, seen_from, seen_to;
    uint32_t back;       /* barriers that learn of tiles that were used */
    uint32_t q[F8 ? 1 : NK][4], p[NP], pair[F8 ? NP : 1][2]; /* pair: F8's weights as exchanged, before p may be written */
    float s[2][NJ * 4], o[ND * 4], part[F8 ? ND * 4 : 1], top[2], sum[2]; /* part: F8's sum of the last tiles */

    __device__ __forceinline__ hopper_rows(const attn_params &params, char *smem)
        : a(params), front((hopper_front *)smem), base(smem_u32(smem)),
          capped(params.softcap > 0.0f),
          s_mul(params.scale * (capped ? fast_div(1.0f, params.softcap) : LOG2E))
    {
    }

    __device__ __forceinline__ uint32_t q_f8() const
    {
        return base + sizes::Q_F8 + (uint32_t)(threadIdx.x / 128 - 1) * 64 * HD;
    }

    /* The warpgroup's rows of Q, each over a scale of its own, as units of 16 numbers of 64 rows; two threads a row. */
    __device__ __forceinline__ void round_q()
    {
        const int r = (int)threadIdx.x % 128 / 2, half = (int)threadIdx.x % 2, group = (int)threadIdx.x / 128;
        const char *from = (const char *)front + H_FRONT + ((group - 1) * 64 + r) * sizes::Q_PITCH + half * HD;
        f8 *to = (f8 *)((char *)front + sizes::Q_F8 + (group - 1) * 64 * HD) + (half * (HD / 32) * 64 + r) * 16;
        float v[8], most = 0.0f;

#pragma unroll
        for (int x = 0; x < HD / 2; x += 8) {
            load8((const T *)from + x, v);
#pragma unroll
            for (int e = 0; e < 8; e++) {
                most = fmaxf(most, fabsf(v[e]));
            }
        }
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        const float mine = most > 0.0f ? most * (1.0f / 448.0f) : 1.0f, inv = fast_div(1.0f, mine);
        named_sync(1 + group, 128); /* products that read the rows before are done in all four warps */
#pragma unroll
        for (int x = 0; x < HD / 2; x += 8) {
            load8((const T *)from + x, v);
#pragma unroll
            for (int e = 0; e < 8; e++) {
                v[e] *= inv;
            }
            store8(to + x / 16 * 64 * 16 + x % 16, v);
        }
        scale[0] *= __shfl_sync(0xffffffffu, mine, 2 * g);
        scale[1] *= __shfl_sync(0xffffffffu, mine, 2 * g + 16);
        fence_async_proxy();
        named_sync(1 + group, 128);
    }
    __device__ __forceinline__ void load_q()
    {
        const uint32_t row = base + H_FRONT +
                             (uint32_t)((first_row + (lane & 15)) * sizes::Q_PITCH + (lane >> 4) * 16);
#pragma unroll
        for (int k = 0; k < NK; k++) {
            ldmatrix4(q[k], row + k * 32);
            if constexpr (std::is_same<T, bf16>::value != BF) {
#pragma unroll
                for (int x = 0; x < 4; x++) {
                    T e[2];
                    memcpy(e, &q[k][x], sizeof e);
                    q[k][x] = pack2<BF>(to_f(e[0]), to_f(e[1]));
                }
            }
        }
    }

    /* The next piece's rows of Q; false: there is none. */
    __device__ __forceinline__ bool take_q()
    {
        const int slot = next_n % H_PIECES;
        mbar_wait(smem_u32(front->found + slot), (uint32_t)(next_n / H_PIECES) & 1);
        if (front->work[slot].n_tiles == 0) {
            return false;
        }
        scale[0] = scale[1] = k_scale_of(a, front->work[slot].kvh);
        mbar_wait(smem_u32(&front->q_full), (uint32_t)next_n & 1);
        if constexpr (F8) {
            round_q();
        } else {
            load_q();
        }
        mul[0] = capped ? 1.0f : s_mul * scale[0];
        mul[1] = capped ? 1.0f : s_mul * scale[1];
        __syncwarp();
        if (lane == 0) {
            mbar_arrive(smem_u32(&front->q_empty));
        }
        next_n++;
        return true;
    }

    __device__ __forceinline__ void begin_piece()
    {
        i = 0;
        n_tiles = front->work[cur % H_PIECES].n_tiles;
        at = front->work[cur % H_PIECES].at;
        back = smem_u32(front->work[cur % H_PIECES].keeps ? front->nobody : front->empty);
        seen_from = front->work[cur % H_PIECES].seen_from;
        seen_to = capped ? 0 : front->work[cur % H_PIECES].seen_to;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            sum[h] = 0.0f;
            top[h] = -INFINITY;
        }
#pragma unroll
        for (int x = 0; x < ND * 4; x++) {
            o[x] = 0.0f;
        }
        if constexpr (F8) {
#pragma unroll
            for (int x = 0; x < ND * 4; x++) {
                part[x] = 0.0f;
            }
        }
    }

    __device__ __forceinline__ uint32_t stage(int tile) const
    {
        return base + sizes::RING + (uint32_t)(tile % H_STAGES) * 2 * sizes::TILE;
    }

    template <int B> __device__ __forceinline__ void start_s(int tile)
    {
        mbar_wait(smem_u32(front->full + tile % H_STAGES), (uint32_t)(tile / H_STAGES) & 1);
        const uint64_t dk = desc_plain(stage(tile), H_TILE * 16, 128);
        wg_fence();
        if constexpr (F8) {
            const uint64_t dq = desc_plain(q_f8(), 64 * 16, 128);
            wgmma_ss_new_f8(s[B], dq, dk);
#pragma unroll
            for (int k = 1; k < NK / 2; k++) { /* two units of 16 dimensions a step */
                wgmma_ss<NRD_DTYPE_F8_E4M3, H_TILE>(s[B], dq + k * (2 * 64 * 16 >> 4), dk + k * (2 * H_TILE * 16 >> 4));
            }
        } else {
            wgmma_rs_new<BF>(s[B], q[0], dk);
#pragma unroll
            for (int k = 1; k < NK; k++) { /* two units of 8 dimensions a step */
                wgmma_rs<BF, H_TILE>(s[B], q[k][0], q[k][1], q[k][2], q[k][3], dk + k * (2 * H_TILE * 16 >> 4));
            }
        }
        wg_commit();
    }

    __device__ __forceinline__ void start_o(int tile)
    {
        const uint64_t dv = desc_plain(stage(tile) + sizes::TILE, HD * 16, 128);
        if constexpr (F8) {
            wg_hold<ND * 4>(part);
            wg_fence();
#pragma unroll
            for (int k = 0; k < NJ / 4; k++) { /* two units of 16 tokens a step */
                wgmma_rs_f8<HD>(part, p + 4 * k, dv + k * (2 * HD * 16 >> 4));
            }
        } else {
            wg_hold<ND * 4>(o);
            wg_fence();
#pragma unroll
            for (int j = 0; j < NJ; j += 2) { /* two units of 8 tokens a step */
                wgmma_rs<BF, HD>(o, p[2 * j], p[2 * j + 1], p[2 * j + 2], p[2 * j + 3], dv + j * (HD * 16 >> 4));
            }
        }
        wg_commit();
    }

    /* Within 2^-22 of tanh, which is what counts in an exponent. */
    static __device__ __forceinline__ float tanh_f(float x)
    {
        return 1.0f - 2.0f * fast_div(1.0f, 1.0f + fast_exp2(2.0f * LOG2E * x));
    }
    /* The tile's lower left end of what the rows see. */
    __device__ __forceinline__ void mask(float *x, int tok0) const
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const hopper_row see = front->rows[cur % H_PIECES][first_row + g + 8 * h];
#pragma unroll
            for (int j = 0; j < NJ; j++) {
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    const int tok = tok0 + 8 * j + 2 * t + c;
                    const bool seen = tok <= see.upto && (tok > see.after || tok < a.n_sink);
                    x[4 * j + 2 * h + c] = seen ? x[4 * j + 2 * h + c] : -INFINITY;
                }
            }
        }
    }

    /* Scores of a tile that not all rows see whole, or that are capped. */
    __device__ __forceinline__ void cap_and_mask(float *x) const
    {
        if (capped) {
#pragma unroll
            for (int c = 0; c < NJ * 4; c++) {
                x[c] = a.softcap * LOG2E * tanh_f(x[c] * s_mul * scale[c / 2 % 2]);
            }
        }
        mask(x, tile_of(front->work[cur % H_PIECES], i) * H_TILE);
    }

    /* The largest of a row's scores that this thread has, four at a time: a chain of sixteen would be waited for. */
    static __device__ __forceinline__ float most_of(const float *x, int h)
    {
        float m[4];
#pragma unroll
        for (int c = 0; c < 4; c++) {
            m[c] = x[4 * (c / 2) + 2 * h + c % 2];
#pragma unroll
            for (int j = c / 2 + 2; j < NJ; j += 2) {
                m[c] = fmaxf(m[c], x[4 * j + 2 * h + c % 2]);
            }
        }
        return fmaxf(fmaxf(m[0], m[1]), fmaxf(m[2], m[3]));
    }

    /* x becomes weights; what o must be multiplied by goes to fix. True: that is not 1 somewhere in the
     * warp. */
    __device__ __forceinline__ bool softmax(float *x, float *fix)
    {
        if (i < seen_from || i >= seen_to) {
            cap_and_mask(x);
        }
        float high[2] = {most_of(x, 0) * mul[0], most_of(x, 1) * mul[1]};
        const bool grown = __any_sync(0xffffffffu, high[0] > top[0] + SLACK || high[1] > top[1] + SLACK);
        if (grown) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                high[h] = fmaxf(high[h], __shfl_xor_sync(0xffffffffu, high[h], 1));
                high[h] = fmaxf(high[h], __shfl_xor_sync(0xffffffffu, high[h], 2));
                const float now = fmaxf(top[h], high[h]);
                fix[h] = now == -INFINITY ? 1.0f : fast_exp2(top[h] - now);
                sum[h] *= fix[h];
                top[h] = now;
            }
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float less = top[h] == -INFINITY ? 0.0f : RAISE - top[h];
            float two[2] = {0.0f, 0.0f};
#pragma unroll
            for (int j = 0; j < NJ; j++) {
                const float e0 = fast_exp2(fmaf(x[4 * j + 2 * h], mul[h], less));
                const float e1 = fast_exp2(fmaf(x[4 * j + 2 * h + 1], mul[h], less));
                two[0] += e0;
                two[1] += e1;
                x[4 * j + 2 * h] = e0;
                x[4 * j + 2 * h + 1] = e1;
            }
            sum[h] += two[0] + two[1];
        }
        return grown;
    }

    __device__ __forceinline__ void release(int tile) const
    {
        if (threadIdx.x % 128 == 0) {
            mbar_arrive(back + tile % H_STAGES * 8);
        }
    }

    __device__ __forceinline__ void store_rows()
    {
        const hopper_work &w = front->work[cur % H_PIECES];
        const float v_scale = v_scale_of(a, w.kvh);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 1);
            sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 2);
            const int r = first_row + g + 8 * h;
            const int to = front->rows[cur % H_PIECES][r].out, head = a.sink_logits ? to % a.n_heads : 0;
            const float inv = sum[h] > 0.0f ? fast_div(v_scale, with_sink<true>(a, head, top[h] - RAISE, sum[h])) : 0.0f;
            store_row(h, (int64_t)to * HD, inv, r < w.n_rows);
        }
        __syncwarp();
        if (lane == 0) {
            mbar_arrive(smem_u32(front->taken + cur % H_PIECES));
        }
    }
    /* Four threads' four words each: word x of thread t becomes word t of thread x. */
    __device__ __forceinline__ void turn(uint32_t (&u)[4]) const
    {
#pragma unroll
        for (int bit = 1; bit <= 2; bit *= 2) {
#pragma unroll
            for (int x = 0; x < 4; x++) {
                if (!(x & bit)) {
                    const uint32_t got = __shfl_xor_sync(0xffffffffu, t & bit ? u[x] : u[x | bit], bit);
                    u[x] = t & bit ? got : u[x];
                    u[x | bit] = t & bit ? u[x | bit] : got;
                }
            }
        }
    }
    /* Row h of the thread's two, times inv, to element `to` on; all threads come here. */
    __device__ __forceinline__ void store_row(int h, int64_t to, float inv, bool is_there) const
    {
        if (a.o_dtype == NRD_DTYPE_F32) {
#pragma unroll
            for (int d = 0; d < ND && is_there; d++) {
                *(float2 *)((float *)a.out + to + 8 * d + 2 * t) =
                    make_float2(o[4 * d + 2 * h] * inv, o[4 * d + 2 * h + 1] * inv);
            }
            return;
        }
        /* Four threads have eight neighbours, two each: of four such units each takes one whole, 16 bytes. */
        const bool bf = a.o_dtype == NRD_DTYPE_BF16;
#pragma unroll
        for (int d = 0; d < ND; d += 4) {
            uint32_t u[4];
#pragma unroll
            for (int x = 0; x < 4; x++) {
                const float lo = o[4 * (d + x) + 2 * h] * inv, hi = o[4 * (d + x) + 2 * h + 1] * inv;
                u[x] = bf ? pack2<true>(lo, hi) : pack2<false>(lo, hi);
            }
            turn(u);
            if (is_there) {
                *(uint4 *)((uint16_t *)a.out + to + 8 * (d + t)) = make_uint4(u[0], u[1], u[2], u[3]);
            }
        }
    }

    __device__ __forceinline__ void hold_o()
    {
        if constexpr (F8) {
            wg_hold<ND * 4>(part);
        } else {
            wg_hold<ND * 4>(o);
        }
    }
    __device__ __forceinline__ void promote()
    {
        if constexpr (F8) {
#pragma unroll
            for (int x = 0; x < ND * 4; x++) {
                o[x] += part[x];
                part[x] = 0.0f;
            }
        }
    }
    /* An accumulator's thread has tokens 2t, 2t + 1 of each 8; an operand's of F8 has 4t to 4t + 3 of each 16. */
    __device__ __forceinline__ void exchange(const float *x)
    {
        const int from = (lane & ~3) | 2 * (t & 1);
#pragma unroll
        for (int j = 0; j < NJ; j += 2) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float *lo = x + 4 * j + 2 * h, *hi = lo + 4;
                const uint32_t mine = pack4_f8(lo[0], lo[1], hi[0], hi[1]);
                pair[j + h][0] = __shfl_sync(0xffffffffu, mine, from);
                pair[j + h][1] = __shfl_sync(0xffffffffu, mine, from + 1);
            }
        }
    }
    __device__ __forceinline__ void pack_weights(const float *x)
    {
        if constexpr (F8) {
#pragma unroll
            for (int c = 0; c < NP; c++) {
                p[c] = __byte_perm(pair[c][0], pair[c][1], t < 2 ? 0x5410 : 0x7632);
            }
        } else {
#pragma unroll
            for (int c = 0; c < NP; c++) {
                p[c] = pack2<BF>(x[2 * c], x[2 * c + 1]);
            }
        }
    }

    /* s[B] becomes the weights p beside the products that are under way: O of the tile before (not for a
     * piece's FIRST), S of the next. */
    template <int B, bool FIRST> __device__ __forceinline__ void weigh()
    {
        float fix[2];
        const bool grown = softmax(s[B], fix);
        if constexpr (F8) {
            exchange(s[B]);
        }

        wg_wait<0>();
        wg_hold<NJ * 4>(s[B ^ 1]);
        if (!FIRST) {
            hold_o();
            release(at - 1);
        }
        if (!FIRST && (grown || (F8 && i % PROMOTE == 0))) {
            promote();
        }
        if (!FIRST && grown) {
#pragma unroll
            for (int x = 0; x < ND * 4; x++) {
                o[x] *= fix[x / 2 % 2];
            }
        }
        pack_weights(s[B]);
        i++;
        at++;
    }

    /* A tile in the middle of a piece. Nothing is under way when it begins or ends: the compiler keeps
     * products asynchronous only where it sees that. */
    template <int B> __device__ __forceinline__ void step()
    {
        start_o(at - 1);
        start_s<B ^ 1>(at + 1);
        weigh<B, false>();
    }
    template <int B> __device__ __forceinline__ void last_step()
    {
        start_o(at - 1);
        weigh<B, false>();
    }

    /* The tiles of a piece, whose first S is in s[0]; its last O is still to be started. */
    __device__ __forceinline__ void piece()
    {
        begin_piece();
        start_s<1>(n_tiles > 1 ? at + 1 : at); /* of a piece of one tile nobody needs it */
        weigh<0, true>();
        while (i + 2 < n_tiles) {
            step<1>();
            step<0>();
        }
        if (i + 1 < n_tiles) {
            step<1>();
            last_step<0>();
        } else if (i < n_tiles) {
            last_step<1>();
        }
    }

    __device__ __forceinline__ void run()
    {
        bool more = take_q();

        if (!more) {
            return;
        }
        start_s<0>(0);
        wg_wait<0>();
        wg_hold<NJ * 4>(s[0]);
        for (; more; cur++) {
            piece();
            more = take_q();
            start_o(at - 1);
            start_s<0>(more ? front->work[(cur + 1) % H_PIECES].at : at - 1); /* at the end of all nobody needs it */
            wg_wait<0>();
            hold_o();
            wg_hold<NJ * 4>(s[0]);
            promote();
            release(at - 1);
            store_rows();
        }
    }
};

template <typename T, typename C, nrd_dtype KIND, int HD>
static __global__ void __launch_bounds__(H_THREADS, 1)
    attention_prefill_hopper_kernel(attn_params a, int s0, int rows, int n_slots, int *counters)
{
#ifdef NRD_SM90A
    constexpr int ELEM = KIND == NRD_DTYPE_F8_E4M3 ? 1 : 2;
    constexpr int REGS = (int)sizeof(C) < ELEM ? 72 : 40; /* of a thread that brings */
    extern __shared__ __align__(1024) char raw[];
    hopper_front *front = (hopper_front *)raw;

    if (threadIdx.x == 0) {
        for (int i = 0; i < H_STAGES; i++) {
            mbar_init(smem_u32(front->full + i), 1);
            mbar_init(smem_u32(front->empty + i), 2);
            mbar_init(smem_u32(front->nobody + i), 2);
        }
        for (int i = 0; i < H_PIECES; i++) {
            mbar_init(smem_u32(front->found + i), 1);
            mbar_init(smem_u32(front->taken + i), H_WARPS);
        }
        mbar_init(smem_u32(&front->q_full), 128);
        mbar_init(smem_u32(&front->q_empty), H_WARPS);
        mbar_init(smem_u32(&front->alone), 1);
        for (int i = 0; i < H_RAW; i++) {
            mbar_init(smem_u32(front->raw + i), 1);
        }
        mbar_fence_init();
    }
    __syncthreads();
    pdl_wait();
    pdl_go();
    if (threadIdx.x < 128) {
        /* with twice the others' 3 x 168, what the launch took */
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGS));
        hopper_bringer<T, C, HD, ELEM>(a, raw).run(s0, rows, n_slots, counters);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((504 - REGS) / 2));
        hopper_rows<T, KIND, HD>(a, raw).run();
    }
#else
    (void)a, (void)s0, (void)rows, (void)n_slots, (void)counters;
#endif
}

/* Rows of an item: of short prompts all, since their pieces read the same few tiles; but there must be items for all blocks. */
static int item_rows(const attn_params &p, int n_tokens, int s0, int n_blocks)
{
    const int64_t all = (int64_t)(n_tokens - s0) * p.group, seqs = p.n_seqs - s0;
    int64_t pieces = (all / seqs + H_ROWS - 1) / H_ROWS;

    if (n_tokens - s0 > seqs * H_STAGES * H_TILE) {
        return H_ROWS;
    }
    while (pieces > 1 && (all / (pieces * H_ROWS) + seqs / 2) * p.g.n_kv < 2 * n_blocks) {
        pieces--;
    }
    return (int)pieces * H_ROWS;
}

template <typename T, typename C, nrd_dtype KIND, int HD>
static nrd_error *hopper_launch(nrd_stream *s, const attn_params &p, int n_tokens, int s0,
                                int n_blocks)
{
    const int rows = item_rows(p, n_tokens, s0, n_blocks);
    const int slots = (int)((int64_t)(n_tokens - s0) * p.group / rows) + (p.n_seqs - s0);
    const int64_t items = (int64_t)slots * p.g.n_kv;
    const size_t smem = hopper_sizes<HD, KIND == NRD_DTYPE_F8_E4M3 ? 1 : 2>::template all<C>();
    NRD_TRY(nrd_cuda_stream_scratch(s)); /* the counters */
    return launch(s, attention_prefill_hopper_kernel<T, C, KIND, HD>,
                  dim3((unsigned)(items < n_blocks ? items : n_blocks)), dim3(H_THREADS), smem, p, s0, rows,
                  slots, s->counters);
}

template <typename T, typename C, nrd_dtype KIND>
static nrd_error *hopper_dim(nrd_stream *s, const attn_params &p, int n_tokens, int s0, int n_blocks)
{
    return p.g.hd == 64   ? hopper_launch<T, C, KIND, 64>(s, p, n_tokens, s0, n_blocks)
           : p.g.hd == 96 ? hopper_launch<T, C, KIND, 96>(s, p, n_tokens, s0, n_blocks)
                          : hopper_launch<T, C, KIND, 128>(s, p, n_tokens, s0, n_blocks);
}

/* A cache of 16-bit numbers is of the activations' type; one of int8 as fp16, of F8 as it is or as fp16. */
template <typename T, nrd_dtype KIND>
static nrd_error *hopper_kind(nrd_stream *s, const nrd_attention_args *a, const attn_params &p, int s0, int n_blocks)
{
    const int n = a->batch->n_tokens;

    return a->kv.dtype == NRD_DTYPE_I8        ? hopper_dim<T, int8_t, NRD_DTYPE_F16>(s, p, n, s0, n_blocks)
           : a->kv.dtype != NRD_DTYPE_F8_E4M3 ? hopper_dim<T, T, KIND>(s, p, n, s0, n_blocks)
           : a->f8_products                   ? hopper_dim<T, f8, NRD_DTYPE_F8_E4M3>(s, p, n, s0, n_blocks)
                                              : hopper_dim<T, f8, NRD_DTYPE_F16>(s, p, n, s0, n_blocks);
}

nrd_error *nrd_cuda_attention_prefill_hopper(nrd_stream *s, const nrd_attention_args *a, void *out,
                                    nrd_dtype o_dtype, int n_single, int n_blocks, bool *done)
{
    const attn_params p = attn_params_of(a, out, o_dtype);

    *done = s->dev->hopper && a->ahead == 0 && !a->alibi && !a->rel_bias && a->kv.block_tokens == H_TILE &&
            (p.g.hd == 64 || p.g.hd == 96 || p.g.hd == 128) && aligned16(a->kv.base) && aligned16(p.q) && aligned16(out) &&
            p.q_stride % 8 == 0 && (a->act_dtype == NRD_DTYPE_BF16 || a->act_dtype == NRD_DTYPE_F16) &&
            (a->kv.dtype == a->act_dtype || kv_elem_bytes(a->kv.dtype) == 1);
    n_blocks = n_blocks > 0 ? n_blocks : s->dev->n_sm;
    return !*done                               ? NULL
           : a->act_dtype == NRD_DTYPE_BF16 ? hopper_kind<bf16, NRD_DTYPE_BF16>(s, a, p, n_single, n_blocks)
                                            : hopper_kind<f16, NRD_DTYPE_F16>(s, a, p, n_single, n_blocks);
}
